//! Where the pods are in a text.

use std::collections::BTreeSet;
use std::fmt;

use crate::Error;

use super::text::{Draft, Kind, Node, Path};

/// Kinds whose pods are described by a template.
const TEMPLATED: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"];

/// An object that describes a pod.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) kind: String,
    pub(super) name: String,
    /// Where its `metadata` and `spec` of a pod are.
    pub(super) pod: Path,
}

impl Object {
    pub(super) fn spec(&self) -> Path {
        self.pod.key("spec")
    }

    pub(super) fn annotations(&self) -> Path {
        self.pod.keys(&["metadata", "annotations"])
    }

    /// Nobody can give Secrets to a pod that a node runs by itself.
    pub(super) fn is_pod(&self) -> bool {
        self.kind == "Pod"
    }

    /// The container of this name, among those that are not init containers.
    pub(super) fn container(&self, draft: &Draft, name: &str) -> Option<Path> {
        let containers = self.spec().key("containers");
        let index = draft.at(&containers)?.items().iter().position(|item| named(item, name))?;
        Some(containers.index(index))
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Whether an object of a list has this name.
pub(super) fn named(item: &Node, name: &str) -> bool {
    item.get("name").and_then(Node::text) == Some(name)
}

/// Everything in a text that describes a pod.
pub(super) fn all(draft: &Draft) -> Vec<Object> {
    let mut objects = Vec::new();
    let mut kinds = BTreeSet::new();
    collect(draft.root(), &Path::default(), &mut objects, &mut kinds);
    objects
}

/// Those that have a container of this name: at least one.
pub(super) fn with_container(draft: &Draft, name: &str) -> Result<Vec<Object>, Error> {
    let (mut objects, mut kinds) = (Vec::new(), BTreeSet::new());
    collect(draft.root(), &Path::default(), &mut objects, &mut kinds);
    if objects.is_empty() {
        let found = match kinds.into_iter().collect::<Vec<_>>().join(", ") {
            kinds if kinds.is_empty() => "no object".to_owned(),
            kinds => kinds,
        };
        let wanted = "a Pod, Deployment, StatefulSet, DaemonSet, or a list of them";
        return Err(Error::usage(format!("there is {found}, and nothing that describes a pod"))
            .hint(format!("give {wanted}")));
    }
    let mut seen = BTreeSet::new();
    for object in &objects {
        let containers = draft.at(&object.spec().key("containers")).map_or(&[][..], Node::items);
        if containers.iter().any(|item| matches!(item.kind, Kind::Alias(_))) {
            return Err(Error::usage(format!(
                "{object}: a container is a reference to another part of the file; write it out"
            )));
        }
        seen.extend(containers.iter().filter_map(|item| item.get("name")?.text()));
    }
    let seen = seen.into_iter().collect::<Vec<_>>().join(", ");
    objects.retain(|object| object.container(draft, name).is_some());
    if objects.is_empty() {
        let hint = if seen.is_empty() { "no container is there".to_owned() } else { seen };
        return Err(Error::usage(format!("no container has the name {name}"))
            .hint(format!("choose one with --container: {hint}")));
    }
    Ok(objects)
}

fn collect(list: &Node, path: &Path, objects: &mut Vec<Object>, kinds: &mut BTreeSet<String>) {
    for (index, node) in list.items().iter().enumerate() {
        let path = path.index(index);
        let text = |node: Option<&Node>| node.and_then(Node::text).unwrap_or_default().to_owned();
        let kind = text(node.get("kind"));
        if let Some(items) = node.get("items").filter(|_| kind.ends_with("List")) {
            collect(items, &path.key("items"), objects, kinds);
            continue;
        }
        let metadata = node.get("metadata");
        let name = text(metadata.and_then(|metadata| metadata.get("name")));
        let pod = if kind == "Pod" {
            path
        } else if TEMPLATED.contains(&kind.as_str()) {
            path.keys(&["spec", "template"])
        } else {
            if !kind.is_empty() {
                kinds.insert(kind);
            }
            continue;
        };
        objects.push(Object { kind, name, pod });
    }
}
