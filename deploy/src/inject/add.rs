//! Puts sidecars, volumes, mounts and flags into one object.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::pods::{Object, named};
use super::record::Record;
use super::text::{Draft, Node, Path};
use super::{Change, Wanted, flags};

/// What a profile puts into a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Addition {
    /// Native sidecars.
    pub(super) init_containers: Vec<Value>,
    pub(super) containers: Vec<Value>,
    pub(super) volumes: Vec<Value>,
    /// Volumes that must be there already.
    pub(super) needs: Vec<&'static str>,
    /// Of the container that encrypts.
    pub(super) mounts: Vec<Value>,
    pub(super) flags: Vec<(&'static str, String)>,
    pub(super) warnings: Vec<String>,
    pub(super) problems: Vec<String>,
}

/// What a profile must know of the pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) static_pod: bool,
    /// The user that the container runs as, if the manifest says so.
    pub(super) uid: Option<u64>,
    /// Ports that somebody in the pod seems to use.
    pub(super) ports: BTreeSet<u16>,
    /// What HyperShift's own token minters mount: volumes by container and path.
    pub(super) minters: BTreeMap<(String, String), String>,
}

/// After the vendor in the name of HyperShift's own token minters.
const NATIVE_MINTER: &str = "-kms-token-minter";

/// Adds what is wanted; all problems at once.
pub(super) fn add(
    draft: &mut Draft,
    object: &Object,
    wanted: &Wanted,
    warnings: &mut Vec<String>,
) -> Result<Change, Vec<String>> {
    let missing = || vec![format!("there is no container {}", wanted.container)];
    let path = object.container(draft, &wanted.container).ok_or_else(missing)?;
    let facts = Facts::of(draft, object, &path, wanted);
    let mut addition = wanted.sidecars.addition(wanted, &facts);
    let mut problems = std::mem::take(&mut addition.problems);
    conflicts(draft, object, &path, &mut addition, &mut problems);
    let editable = check_flags(draft, &path, wanted, &addition, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    if let Err(why) = &editable {
        warnings.push(format!("{object}: {why}; set these yourself: {}", listed(&addition.flags)));
        addition.flags.clear();
    }
    warnings.extend(addition.warnings.iter().map(|text| format!("{object}: {text}")));
    put(draft, object, &path, wanted, &addition).map_err(|problem| vec![problem])
}

fn listed(flags: &[(&str, String)]) -> String {
    let flags: Vec<_> = flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    flags.join(" ")
}

/// Whether the flags can be set, or why not.
fn check_flags(
    draft: &Draft,
    container: &Path,
    wanted: &Wanted,
    addition: &Addition,
    problems: &mut Vec<String>,
) -> Result<(), String> {
    if addition.flags.is_empty() {
        return Ok(());
    }
    if !wanted.flags {
        return Err("its flags were left alone".to_owned());
    }
    let Some(node) = draft.at(container) else { return Ok(()) };
    if !flags::readable(node) {
        return Err("its flags refer to other parts of the file".to_owned());
    }
    flags::field(node)?;
    for (name, _) in &addition.flags {
        if flags::given_twice(node, name) {
            problems.push(format!("{name} is given twice; leave one"));
        }
    }
    Ok(())
}

/// What is there already under our names: the same may stay, anything else is a problem.
fn conflicts(
    draft: &Draft,
    object: &Object,
    container: &Path,
    addition: &mut Addition,
    problems: &mut Vec<String>,
) {
    let spec = object.spec();
    let items = |path: &Path| draft.at(path).map_or(&[][..], Node::items);
    for field in ["containers", "initContainers"] {
        let there = items(&spec.key(field));
        for ours in addition.init_containers.iter().chain(&addition.containers) {
            if let Some(name) =
                ours["name"].as_str().filter(|name| there.iter().any(|item| named(item, name)))
            {
                problems.push(format!(
                    "{field} has {name} already, and it is not from here; take it out first"
                ));
            }
        }
    }
    let volumes = items(&spec.key("volumes"));
    for name in &addition.needs {
        if !volumes.iter().any(|item| named(item, name)) {
            problems.push(format!("there is no volume {name}, which the sidecars need"));
        }
    }
    addition.volumes.retain(|ours| {
        let name = ours["name"].as_str().unwrap_or_default();
        let Some(theirs) = volumes.iter().find(|item| named(item, name)) else { return true };
        if !within(ours, &theirs.value()) {
            problems.push(format!("there is another volume {name}; take it out, or rename it"));
        }
        false
    });
    let mounts = items(&container.key("volumeMounts"));
    addition.mounts.retain(|ours| {
        let path = ours["mountPath"].as_str().unwrap_or_default();
        let at = |mount: &&Node| mount.get("mountPath").and_then(Node::text) == Some(path);
        let Some(theirs) = mounts.iter().find(at) else { return true };
        if theirs.get("name").and_then(Node::text) != ours["name"].as_str() {
            problems.push(format!("something else is mounted at {path}"));
        }
        false
    });
}

/// Whether all of a value is said in another one, which may say more.
fn within(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|other| within(value, other)))
        }
        _ => part == whole,
    }
}

fn put(
    draft: &mut Draft,
    object: &Object,
    container: &Path,
    wanted: &Wanted,
    addition: &Addition,
) -> Result<Change, String> {
    let profile = wanted.sidecars.profile();
    let mut record = Record::new(profile, &wanted.container, super::form(wanted));
    let spec = object.spec();
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let lists = [
        ("initContainers", &addition.init_containers),
        ("containers", &addition.containers),
        ("volumes", &addition.volumes),
    ];
    for (field, values) in lists {
        for value in values {
            let origin = draft.append(&spec, field, value)?;
            record.field(field, origin);
        }
    }
    record.init_containers = addition.init_containers.iter().map(name).collect();
    record.containers = addition.containers.iter().map(name).collect();
    record.volumes = addition.volumes.iter().map(name).collect();
    for mount in &addition.mounts {
        let origin = draft.append(container, "volumeMounts", mount)?;
        record.field("volumeMounts", origin);
        record.mounts.push(mount["mountPath"].as_str().unwrap_or_default().to_owned());
    }
    for (name, value) in &addition.flags {
        flags::set(draft, container, (name, value), &mut record)?;
    }
    let containers = record.init_containers.iter().chain(&record.containers).cloned().collect();
    record.write(draft, object)?;
    Ok(Change { object: object.to_string(), containers, profile })
}

impl Facts {
    fn of(draft: &Draft, object: &Object, container: &Path, wanted: &Wanted) -> Self {
        let spec = draft.at(&object.spec());
        let uid = |node: Option<&Node>| {
            node?.get("securityContext")?.get("runAsUser")?.text()?.parse().ok()
        };
        let (mut ports, mut minters) = (BTreeSet::new(), BTreeMap::new());
        for field in ["containers", "initContainers"] {
            for item in spec.and_then(|spec| spec.get(field)).map_or(&[][..], Node::items) {
                used_ports(item, "", &mut ports);
                native_minter(item, &mut minters);
            }
        }
        Self {
            static_pod: wanted.static_pod || object.is_pod(),
            uid: uid(draft.at(container)).or_else(|| uid(spec)),
            ports,
            minters,
        }
    }

    /// The volume in which somebody else mints a vendor's token, if so.
    pub(super) fn minted(&self, vendor: &str, directory: &str) -> Option<&str> {
        let place = (format!("{vendor}{NATIVE_MINTER}"), directory.to_owned());
        self.minters.get(&place).map(String::as_str)
    }
}

fn native_minter(container: &Node, minters: &mut BTreeMap<(String, String), String>) {
    let text = |node: &Node, name: &str| node.get(name).and_then(Node::text).map(str::to_owned);
    let Some(name) = text(container, "name").filter(|name| name.ends_with(NATIVE_MINTER)) else {
        return;
    };
    for mount in container.get("volumeMounts").map_or(&[][..], Node::items) {
        if let (Some(path), Some(volume)) = (text(mount, "mountPath"), text(mount, "name")) {
            minters.insert((name.clone(), path.trim_end_matches('/').to_owned()), volume);
        }
    }
}

/// Ports that are declared, probed, or named in flags. One too many does no harm.
fn used_ports(node: &Node, key: &str, ports: &mut BTreeSet<u16>) {
    for (name, value) in node.entries() {
        used_ports(value, name.text().unwrap_or_default(), ports);
    }
    for item in node.items() {
        used_ports(item, key, ports);
    }
    let Some(text) = node.text() else { return };
    let tail = match key {
        "containerPort" | "hostPort" | "port" => text,
        "args" | "command" | "value" => text.rsplit([':', '=']).next().unwrap_or_default(),
        _ => return,
    };
    ports.extend(tail.parse::<u16>().ok());
}
