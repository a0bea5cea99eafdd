//! Resources as EncryptionConfiguration names them, by kube-apiserver's own rules: a document that
//! breaks one of them is refused as a whole, and a kube-apiserver that starts with it does not come
//! up.

/// What is stored and is no resource of the API.
const WITHOUT_API: [&str; 3] =
    ["apiserveripinfo", "serviceipallocations", "servicenodeportallocations"];

/// The resource and its group: `*` stands for all of them.
fn parts(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

/// Whether it names more than one resource: `*.group`, `*.` or `*.*`.
pub fn is_wildcard(name: &str) -> bool {
    parts(name).0 == "*"
}

/// Whether two names are one: `secrets` and `secrets.` are.
pub fn same(name: &str, other: &str) -> bool {
    parts(name) == parts(other)
}

/// Whether all that `other` names is named by `name` too.
pub fn covers(name: &str, other: &str) -> bool {
    let ((resource, group), (_, other_group)) = (parts(name), parts(other));
    same(name, other) || (resource == "*" && (group == "*" || group == other_group))
}

/// How well `name` fits a resource that it covers: of several the best one counts.
pub fn fit(name: &str, resource: &str) -> Option<u8> {
    covers(name, resource).then(|| match parts(name) {
        _ if same(name, resource) => 2,
        (_, "*") => 0,
        _ => 1,
    })
}

/// Why a name is none.
pub fn problem(name: &str) -> Option<String> {
    let (resource, group) = parts(name);
    let sound = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-*".contains(&b);
    let partial = |part: &str| part != "*" && part.contains('*');
    let why = if resource.is_empty() || !name.bytes().all(sound) {
        "is no resource: write secrets, or name.group, without capital letters"
    } else if name == "*" {
        "is no resource: write *. for the core group, or *.* for all of them"
    } else if WITHOUT_API.contains(&name) {
        "cannot be encrypted: it has no API"
    } else if group == "events.k8s.io" {
        "is stored as events of the core group: write events"
    } else if group == "extensions" {
        "is of a group that is gone: kube-apiserver refuses it"
    } else if group == "*" && resource != "*" {
        "is one resource of all groups: name its group"
    } else if partial(resource) || partial(group) {
        "has a * for a part of a name: it stands for whole ones alone, as in *.apps, *. and *.*"
    } else {
        return None;
    };
    Some(format!("{name:?} {why}"))
}

/// Why a name cannot follow these of its own list, and these of the lists before it.
pub fn clash(name: &str, list: &[String], before: &[String]) -> Option<String> {
    if list.iter().any(|other| same(other, name)) {
        return Some(format!("{name:?} is listed twice"));
    }
    let mut masks = list.iter().chain(before.iter().filter(|other| is_wildcard(other)));
    if let Some(other) = masks.find(|other| covers(other, name)) {
        return Some(format!("{name:?} is in {other:?} already, which comes before it"));
    }
    let within = list.iter().find(|other| covers(name, other))?;
    Some(format!("{name:?} has {within:?} in it, which is in the same list: leave that one out"))
}
