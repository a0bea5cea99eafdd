//! Which resource a key of etcd belongs to, and which keys belong to a resource.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// Where kube-apiserver, OpenShift's and HyperShift's kube-apiserver, and OpenShift's own API
/// servers store their objects.
pub(super) const PREFIXES: [&str; 3] = ["/registry", "/kubernetes.io", "/openshift.io"];

/// Longest name that is believed.
const MAX_NAME: usize = 253;

/// Paths that are not the name of their resource.
const PATHS: [(&str, &str, &str); 9] = [
    ("services/specs", "services", ""),
    ("services/endpoints", "endpoints", ""),
    ("minions", "nodes", ""),
    ("controllers", "replicationcontrollers", ""),
    ("ingress", "ingresses", "networking.k8s.io"),
    ("oauth/accesstokens", "oauthaccesstokens", "oauth.openshift.io"),
    ("oauth/authorizetokens", "oauthauthorizetokens", "oauth.openshift.io"),
    ("oauth/clientauthorizations", "oauthclientauthorizations", "oauth.openshift.io"),
    ("oauth/clients", "oauthclients", "oauth.openshift.io"),
];

/// Groups whose resources are stored under their own names alone.
const GROUPS: [(&str, &[&str]); 17] = [
    (
        "admissionregistration.k8s.io",
        &[
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
        ],
    ),
    ("apps", &["controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"]),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    ("certificates.k8s.io", &["certificatesigningrequests", "clustertrustbundles"]),
    ("coordination.k8s.io", &["leasecandidates", "leases"]),
    ("discovery.k8s.io", &["endpointslices"]),
    ("flowcontrol.apiserver.k8s.io", &["flowschemas", "prioritylevelconfigurations"]),
    ("internal.apiserver.k8s.io", &["storageversions"]),
    ("networking.k8s.io", &["ingressclasses", "ipaddresses", "networkpolicies", "servicecidrs"]),
    ("node.k8s.io", &["runtimeclasses"]),
    ("policy", &["poddisruptionbudgets"]),
    (
        "rbac.authorization.k8s.io",
        &["clusterrolebindings", "clusterroles", "rolebindings", "roles"],
    ),
    (
        "resource.k8s.io",
        &["deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"],
    ),
    ("route.openshift.io", &["routes"]),
    ("scheduling.k8s.io", &["priorityclasses"]),
    (
        "storage.k8s.io",
        &[
            "csidrivers",
            "csinodes",
            "csistoragecapacities",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ],
    ),
];

/// A resource as EncryptionConfiguration names it: `secrets`, `widgets.example.com`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    name: String,
    group: String,
}

/// Resources as EncryptionConfiguration selects them: by name, or `*.apps`, `*.` and `*.*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(Resource);

impl Resource {
    /// The resource of a key, by what follows the prefix of its API server.
    pub(super) fn of_path(path: &[u8]) -> Option<Self> {
        let mut parts = path.splitn(3, |byte| *byte == b'/');
        let first = component(parts.next()?)?;
        let second = parts.next();
        if let Some(second) = second.and_then(component) {
            let both = format!("{first}/{second}");
            if let Some((_, name, group)) = PATHS.iter().find(|(path, ..)| *path == both) {
                return Some(Self::new(name, group));
            }
            // Custom resources and the API's own: their groups have dots, and no resource has.
            if first.contains('.') {
                return Some(Self::new(second, first));
            }
        }
        // The object's name must follow.
        second.filter(|_| !first.contains('.'))?;
        if let Some((_, name, group)) = PATHS.iter().find(|(path, ..)| *path == first) {
            return Some(Self::new(name, group));
        }
        let group = GROUPS.iter().find(|(_, names)| names.contains(&first));
        Some(Self::new(first, group.map_or("", |(group, _)| group)))
    }

    /// Below which paths it may be stored.
    fn paths(&self) -> Vec<String> {
        let (name, group) = (self.name.as_str(), self.group.as_str());
        let special = PATHS.iter().find(|(_, n, g)| (*n, *g) == (name, group));
        if let Some((path, ..)) = special {
            return vec![format!("{path}/")];
        }
        let mut paths = Vec::new();
        if group.contains('.') {
            paths.push(format!("{group}/{name}/"));
        }
        // What is not in the table may be newer than the table.
        if !group.contains('.') || group.ends_with(".k8s.io") || group.ends_with(".openshift.io") {
            paths.push(format!("{name}/"));
        }
        paths
    }

    fn new(name: &str, group: &str) -> Self {
        Self { name: name.to_owned(), group: group.to_owned() }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group.as_str() {
            "" => f.write_str(&self.name),
            group => write!(f, "{}.{group}", self.name),
        }
    }
}

impl FromStr for Resource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Selector(resource) = text.parse()?;
        match resource.name.contains('*') || resource.group.contains('*') {
            true => Err(Error::usage(format!("{text:?} is not one resource"))),
            false => Ok(resource),
        }
    }
}

impl Selector {
    /// Whether it selects that resource.
    pub fn selects(&self, resource: &Resource) -> bool {
        let Resource { name, group } = &self.0;
        let group_fits = group == "*" || *group == resource.group || {
            // A group that the table does not know yet, of a resource that it takes for core.
            resource.group.is_empty()
                && !group.is_empty()
                && name != "*"
                && group.ends_with(".k8s.io")
        };
        group_fits && (name == "*" || *name == resource.name)
    }

    /// Below which paths all that it selects is; `None` is everywhere.
    pub(super) fn paths(&self) -> Option<Vec<String>> {
        (self.0.name != "*" && self.0.group != "*").then(|| self.0.paths())
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.name.as_str(), self.0.group.as_str()) {
            ("*", "") => f.write_str("*."),
            _ => self.0.fmt(f),
        }
    }
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, group) = text.split_once('.').unwrap_or((text, ""));
        let sound = |part: &str| {
            part == "*"
                || part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
        };
        let star_alone = text == "*" || (group == "*" && name != "*");
        if name.is_empty()
            || star_alone
            || !sound(name)
            || !sound(group)
            || text.len() > 2 * MAX_NAME
        {
            return Err(Error::usage(format!("{text:?} is not a resource")).hint(
                "write it as in EncryptionConfiguration: secrets, widgets.example.com, *.apps",
            ));
        }
        Ok(Self(Resource::new(name, group)))
    }
}

fn component(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let sound = !text.is_empty() && text.len() <= MAX_NAME && !text.chars().any(char::is_control);
    sound.then_some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(path: &str) -> Option<String> {
        Resource::of_path(path.as_bytes()).map(|resource| resource.to_string())
    }

    #[test]
    fn paths_are_named_as_encryption_configuration_names_them() {
        for (path, name) in [
            ("secrets/default/x", "secrets"),
            ("namespaces/default", "namespaces"),
            ("deployments/default/x", "deployments.apps"),
            ("services/specs/default/x", "services"),
            ("services/endpoints/default/x", "endpoints"),
            ("minions/node-1", "nodes"),
            ("ingress/default/x", "ingresses.networking.k8s.io"),
            ("leases/kube-system/x", "leases.coordination.k8s.io"),
            ("example.com/widgets/default/x", "widgets.example.com"),
            ("example.com/services/specs", "services.example.com"),
            ("apiregistration.k8s.io/apiservices/v1.apps", "apiservices.apiregistration.k8s.io"),
            ("oauth/accesstokens/x", "oauthaccesstokens.oauth.openshift.io"),
            ("ranges/serviceips", "ranges"),
        ] {
            assert_eq!(of(path).as_deref(), Some(name), "{path}");
        }
        for path in ["", "/", "secrets", "a\nb/x", "example.com/", "example.com"] {
            assert_eq!(of(path), None, "{path:?}");
        }
    }

    #[test]
    fn a_selector_finds_its_objects_below_its_paths() {
        for path in [
            "secrets/default/x",
            "deployments/default/x",
            "services/specs/default/x",
            "ingress/default/x",
            "example.com/widgets/default/x",
            "apiregistration.k8s.io/apiservices/v1.apps",
            "routes/ns/x",
        ] {
            let resource = Resource::of_path(path.as_bytes()).unwrap();
            let selector: Selector = resource.to_string().parse().unwrap();
            assert!(selector.selects(&resource), "{selector}");
            let paths = selector.paths().unwrap();
            assert!(paths.iter().any(|below| path.starts_with(below)), "{selector}: {paths:?}");
        }
    }

    #[test]
    fn wildcards_select_as_in_encryption_configuration() {
        let selects = |selector: &str, path: &str| {
            let resource = Resource::of_path(path.as_bytes()).unwrap();
            selector.parse::<Selector>().unwrap().selects(&resource)
        };
        assert!(selects("*.apps", "deployments/a/b"));
        assert!(!selects("*.apps", "secrets/a/b"));
        assert!(selects("*.", "secrets/a/b"));
        assert!(!selects("*.", "deployments/a/b"));
        assert!(selects("*.*", "example.com/widgets/a/b"));
        assert!(!selects("widgets.example.com", "example.org/widgets/a/b"));
        for bad in ["", "*", "secrets.*", "a b", "Secrets", ".x"] {
            assert!(bad.parse::<Selector>().is_err(), "{bad:?}");
        }
    }
}
