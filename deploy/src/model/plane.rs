//! Where a control plane is: its pods, its API and its etcd.
//!
//! The defaults are those of a control plane that HyperShift hosts.

use std::collections::BTreeMap;

use serde::Serialize;
use sidekey_core::config::Problems;

use super::raw::{RawControlPlane, RawEtcd, RawObjectKey, RawSource};
use super::{FileSource, ObjectKey, files};

/// The kube-apiserver of a control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlane {
    /// Labels of its pods in the namespace.
    pub selector: BTreeMap<String, String>,
    /// Its container in them.
    pub container: String,
    /// How sidecars get into them.
    pub injection: Injection,
    /// Where it listens in its pods.
    pub port: u16,
    /// The kubeconfig of its API, for Jobs and for providers in pods of their own; the operator
    /// never reads it.
    pub kubeconfig: ObjectKey,
    /// The one with which a container of its own pods reaches it, on the pod's loopback.
    pub local_kubeconfig: ObjectKey,
    /// Its etcd, for the Jobs that count; the operator never reaches it.
    pub etcd: EtcdAccess,
}

/// How sidecars get into the pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Injection {
    /// The operator owns the pod template of the Deployment.
    #[default]
    Template,
    /// Another operator does: sidecars come in when a pod is made.
    Webhook,
    /// Somebody else puts them in.
    None,
}

/// How etcd is reached from the control plane's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EtcdAccess {
    /// URLs of its members, or of its Service.
    pub endpoints: Vec<String>,
    /// Certificates; none for plain http.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<EtcdTls>,
}

/// Certificates for etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EtcdTls {
    /// Whom to trust.
    pub ca: FileSource,
    /// The client's certificate.
    pub cert: FileSource,
    /// Its key.
    pub key: FileSource,
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self {
            selector: BTreeMap::from([("app".to_owned(), "kube-apiserver".to_owned())]),
            container: "kube-apiserver".to_owned(),
            injection: Injection::default(),
            port: 6443,
            // The one whose server pods of the namespace reach, also where the cluster is private.
            kubeconfig: object("service-network-admin-kubeconfig", "kubeconfig"),
            local_kubeconfig: object("localhost-kubeconfig", "kubeconfig"),
            etcd: EtcdAccess::default(),
        }
    }
}

impl Default for EtcdAccess {
    fn default() -> Self {
        let endpoints = vec!["https://etcd-client:2379".to_owned()];
        Self { endpoints, tls: Some(EtcdTls::default()) }
    }
}

impl Default for EtcdTls {
    fn default() -> Self {
        Self {
            ca: FileSource::ConfigMap(object("etcd-ca", "ca.crt")),
            cert: FileSource::Secret(object("etcd-client-tls", "etcd-client.crt")),
            key: FileSource::Secret(object("etcd-client-tls", "etcd-client.key")),
        }
    }
}

fn object(name: &str, key: &str) -> ObjectKey {
    ObjectKey { name: name.to_owned(), key: key.to_owned() }
}

pub(super) fn control_plane(
    raw: Option<&RawControlPlane>,
    problems: &mut Problems,
) -> ControlPlane {
    let default = ControlPlane::default();
    let Some(raw) = raw else { return default };
    ControlPlane {
        selector: raw.selector.clone().unwrap_or(default.selector),
        container: raw.container.clone().unwrap_or(default.container),
        injection: raw.injection.unwrap_or_default(),
        port: raw.port.unwrap_or(default.port),
        kubeconfig: kubeconfig("kubeconfig", &raw.kubeconfig, default.kubeconfig, problems),
        local_kubeconfig: kubeconfig(
            "localKubeconfig",
            &raw.local_kubeconfig,
            default.local_kubeconfig,
            problems,
        ),
        etcd: problems.within("etcd", |problems| etcd(raw.etcd.as_ref(), problems)),
    }
}

fn kubeconfig(
    path: &str,
    raw: &Option<RawObjectKey>,
    default: ObjectKey,
    problems: &mut Problems,
) -> ObjectKey {
    let Some(RawObjectKey { name, key }) = raw else { return default };
    let name = problems.within(path, |problems| problems.require("name", name).cloned());
    let key = key.clone().unwrap_or(default.key);
    ObjectKey { name: name.unwrap_or_default(), key }
}

fn etcd(raw: Option<&RawEtcd>, problems: &mut Problems) -> EtcdAccess {
    let Some(raw) = raw else { return EtcdAccess::default() };
    let default = EtcdAccess::default();
    let endpoints = raw.endpoints.clone().unwrap_or(default.endpoints);
    if endpoints.is_empty() {
        problems.add("endpoints", "is empty: name at least one");
    }
    let mut schemes: Vec<&str> = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        match endpoint.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) if !rest.is_empty() => schemes.push(scheme),
            _ => problems.add(&format!("endpoints[{index}]"), "is no http:// or https:// URL"),
        }
    }
    schemes.dedup();
    if schemes.len() > 1 {
        problems.add("endpoints", "some are http and some https");
    }
    let plain = schemes.first() == Some(&"http");
    let tls = match &raw.tls {
        _ if plain => None,
        None => Some(EtcdTls::default()),
        Some(tls) => problems.within("tls", |problems| {
            let default = EtcdTls::default();
            let mut part = |path: &str, raw: &Option<RawSource>, default| match raw {
                None => Some(default),
                Some(RawSource { secret, config_map }) => problems
                    .within(path, |problems| files::source(secret, config_map, &None, problems)),
            };
            let ca = part("ca", &tls.ca, default.ca);
            let cert = part("cert", &tls.cert, default.cert);
            let key = part("key", &tls.key, default.key);
            Some(EtcdTls { ca: ca?, cert: cert?, key: key? })
        }),
    };
    if plain && raw.tls.is_some() {
        problems.add("tls", "is for https endpoints");
    }
    EtcdAccess { endpoints, tls }
}
