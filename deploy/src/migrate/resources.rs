//! Which resources are meant, and where a server has them.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Resources as EncryptionConfiguration names them: `secrets`, `widgets.example.com`, `*.apps`,
/// `*.` for the core group, `*.*` for everything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// One resource of a group.
    One {
        /// The group; empty for the core group.
        group: String,
        /// The plural name.
        resource: String,
    },
    /// All resources of a group.
    Group(String),
    /// All resources.
    All,
}

/// A resource that the server stores.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Resource {
    /// The group; empty for the core group.
    pub group: String,
    /// The version by which it is asked for.
    pub version: String,
    /// The plural name.
    pub name: String,
    /// Whether its objects are in namespaces.
    #[serde(skip)]
    pub namespaced: bool,
    /// Whether it can be patched; it is read and put back otherwise.
    #[serde(skip)]
    pub patchable: bool,
}

/// Something that is named but will not be rewritten.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Skipped {
    /// As it was named, or as the server calls it.
    pub resource: String,
    /// Why.
    pub reason: String,
    /// Whether something may be left that had to be rewritten.
    pub matters: bool,
}

/// What some patterns mean on one server.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// What is to be rewritten, each stored resource once.
    pub resources: Vec<Resource>,
    /// The rest.
    pub skipped: Vec<Skipped>,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            format!(
                "{text:?} is no resource ({why}): write as in secrets, widgets.example.com, *.apps, *. or *.*"
            )
        };
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        if text == "*.*" {
            return Ok(Self::All);
        }
        if text == "*" {
            return Err(bad("a star needs a group"));
        }
        if !group.chars().all(allowed) {
            return Err(bad("a name has small letters, digits, - and ."));
        }
        match resource {
            "" => Err(bad("it has no name")),
            "*" => Ok(Self::Group(group.to_owned())),
            _ if !resource.chars().all(allowed) => {
                Err(bad("a name has small letters, digits, - and ."))
            }
            _ => Ok(Self::One { group: group.to_owned(), resource: resource.to_owned() }),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { group, resource } => f.write_str(&id(resource, group)),
            Self::Group(group) => write!(f, "*.{group}"),
            Self::All => f.write_str("*.*"),
        }
    }
}

impl Pattern {
    pub(super) fn covers_group(&self, name: &str) -> bool {
        match self {
            Self::One { group, .. } | Self::Group(group) => group == name,
            Self::All => true,
        }
    }

    pub(super) fn names(&self, resource: &Resource) -> bool {
        matches!(self, Self::One { group, resource: name } if *group == resource.group && *name == resource.name)
    }
}

impl Resource {
    /// As EncryptionConfiguration names it.
    pub fn id(&self) -> String {
        id(&self.name, &self.group)
    }

    /// Where all its objects are listed.
    pub(super) fn list_path(&self) -> String {
        let Self { group, version, name, .. } = self;
        match group.is_empty() {
            true => format!("/api/{version}/{name}"),
            false => format!("/apis/{group}/{version}/{name}"),
        }
    }

    /// Where one object is.
    pub(super) fn object_path(&self, namespace: &str, object: &str) -> String {
        let Self { group, version, name, .. } = self;
        let root = match group.is_empty() {
            true => format!("/api/{version}"),
            false => format!("/apis/{group}/{version}"),
        };
        let object = segment(object);
        match namespace.is_empty() {
            true => format!("{root}/{name}/{object}"),
            false => format!("{root}/namespaces/{}/{name}/{object}", segment(namespace)),
        }
    }
}

pub(super) fn id(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// Some kinds of objects have names with spaces and worse.
fn segment(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_kube_apiserver_reads_them() {
        let one = |resource: &str, group: &str| Pattern::One {
            group: group.to_owned(),
            resource: resource.to_owned(),
        };
        for (text, wanted) in [
            ("secrets", one("secrets", "")),
            ("widgets.example.com", one("widgets", "example.com")),
            ("*.apps", Pattern::Group("apps".into())),
            ("*.", Pattern::Group(String::new())),
            ("*.*", Pattern::All),
        ] {
            let pattern: Pattern = text.parse().unwrap();
            assert_eq!(pattern, wanted);
            assert_eq!(pattern.to_string(), text);
        }
        for bad in ["", "*", ".apps", "Secrets", "pods/status", "secrets.*", "a b"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad:?} is taken");
        }
    }

    #[test]
    fn names_of_objects_are_safe_in_paths() {
        let resource = Resource {
            group: "rbac.authorization.k8s.io".into(),
            version: "v1".into(),
            name: "roles".into(),
            namespaced: true,
            patchable: true,
        };
        let path = resource.object_path("default", "system:a b/ü%");
        let root = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
        assert_eq!(path, format!("{root}/system:a%20b%2F%C3%BC%25"));
        assert_eq!(resource.list_path(), "/apis/rbac.authorization.k8s.io/v1/roles");
    }
}
