//! What a change would do, before it is done: part by part and field by field, with nothing
//! secret in it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};
use sidekey_core::Secret;

use crate::Error;
use crate::publish::{Live, View, check};
use crate::render::{PartName, Rendered};

/// What would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// The keys, and what happens to each.
    pub keys: Vec<KeyChange>,
    /// Each part in which anything changes.
    pub parts: Vec<PartDiff>,
    /// Why it would be refused.
    pub refused: Vec<String>,
}

/// What happens to a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyChange {
    /// Its number.
    pub id: u64,
    /// What happens.
    pub what: KeyFate,
    /// Sections of it that change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sections: Vec<String>,
}

/// What happens to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyFate {
    /// It is a new key, to be read with.
    New,
    /// It goes.
    Gone,
    /// It begins to write.
    Promoted,
    /// It no longer writes.
    Demoted,
    /// Its settings, credentials or files change; the KEK stays, nothing is migrated.
    InPlace,
    /// Another KEK under the same number: this wants a new number.
    AnotherKek,
}

/// What changes in a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartDiff {
    /// `shim`, `provider-vault`, `kube-apiserver`.
    pub part: String,
    /// The changes.
    pub changes: Vec<Change>,
}

/// One field or file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `config.yaml: keys[2].settings.address`, or the name of a file.
    pub path: String,
    /// As it is; a hash where it may be secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// As it would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

impl Diff {
    /// Compares what is live with what is to be.
    pub fn between(live: &Live, draft: &Rendered) -> Result<Self, Error> {
        let (old, new) = (live.view()?, View::of(draft)?);
        let refused = check::objections(&old, &new).into_iter().map(|objection| objection.what);
        let mut parts = Vec::new();
        let none = BTreeMap::new();
        for part in &draft.parts {
            let before = live.parts.get(&part.name).map_or(&none, |part| &part.files);
            let changes = files(&part.name, before, &part.files)?;
            if !changes.is_empty() {
                parts.push(PartDiff { part: part.name.to_string(), changes });
            }
        }
        Ok(Self { keys: keys(&old, &new), parts, refused: refused.collect() })
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.keys.is_empty()
    }
}

impl KeyFate {
    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Gone => "goes",
            Self::Promoted => "begins to write",
            Self::Demoted => "reads only",
            Self::InPlace => "in place",
            Self::AnotherKek => "another KEK: needs a new number",
        }
    }
}

fn keys(old: &View, new: &View) -> Vec<KeyChange> {
    let ids: BTreeSet<_> = old.keys.keys().chain(new.keys.keys()).collect();
    let mut changes = Vec::new();
    for id in ids {
        let body = |view: &View| {
            let mut keys = view.providers.values().filter_map(|keys| keys.get(id));
            keys.next().cloned().unwrap_or_default()
        };
        let (before, after) = (body(old), body(new));
        let names = ["kek", "settings", "credentials", "canary", "listen"];
        let differs = |name: &&&str| before[**name] != after[**name];
        let mut sections: Vec<String> =
            names.iter().filter(differs).map(|name| (*name).to_owned()).collect();
        let what = match (old.keys.get(id), new.keys.get(id)) {
            (None, _) => KeyFate::New,
            (_, None) => KeyFate::Gone,
            (Some(a), Some(b)) if a.fingerprint != b.fingerprint => KeyFate::AnotherKek,
            (Some(a), Some(b)) if a.writes != b.writes => {
                if b.writes {
                    KeyFate::Promoted
                } else {
                    KeyFate::Demoted
                }
            }
            (Some(a), Some(b)) if sections.is_empty() && a == b => continue,
            _ => KeyFate::InPlace,
        };
        if matches!(what, KeyFate::New | KeyFate::Gone) {
            sections.clear();
        }
        changes.push(KeyChange { id: id.0, what, sections });
    }
    changes
}

fn files(
    part: &PartName,
    old: &BTreeMap<String, Secret>,
    new: &BTreeMap<String, Secret>,
) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let (before, after) = (old.get(name), new.get(name));
        if name == part.main_file() {
            let (before, after) = (document(before)?, document(after)?);
            let root = format!("{name}:");
            fields(&root, &before, &after, false, &mut changes);
        } else if before != after {
            let (old, new) = (before.map(hash), after.map(hash));
            changes.push(Change { path: name.clone(), old, new });
        }
    }
    Ok(changes)
}

/// The document without its revision, which changes each time.
fn document(content: Option<&Secret>) -> Result<Value, Error> {
    let Some(text) = content.and_then(Secret::as_text) else { return Ok(Value::Null) };
    let mut document = sidekey_core::config::document(text)
        .map_err(|error| Error::failed("cannot read what is live").because(error))?;
    if let Some(map) = document.as_object_mut() {
        map.remove("revision");
    }
    Ok(document)
}

fn hash(content: &Secret) -> String {
    hash_of(content.expose())
}

fn hash_of(bytes: &[u8]) -> String {
    format!("sha256 {}…", &sidekey_core::hex(&sidekey_core::sha256(bytes))[..12])
}

/// Compares two trees; what lies below `credentials` and the like is shown as hashes.
fn fields(path: &str, old: &Value, new: &Value, secret: bool, changes: &mut Vec<Change>) {
    if old == new {
        return;
    }
    let empty = Map::new();
    let bare = |value: &Value| value.as_object().is_none_or(Map::is_empty);
    match (old, new) {
        _ if bare(old) && bare(new) && !old.is_array() && !new.is_array() => {
            let (old, new) = (shown(old, secret), shown(new, secret));
            changes.push(Change { path: path.to_owned(), old, new });
        }
        (Value::Object(_) | Value::Null, Value::Object(_)) | (Value::Object(_), Value::Null) => {
            let (a, b) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let hidden = secret
                    || ["credentials", "ciphertext", "annotations", "secret"]
                        .contains(&name.as_str());
                let dot = if path.ends_with(':') { " " } else { "." };
                let null = &Value::Null;
                let (a, b) = (a.get(name).unwrap_or(null), b.get(name).unwrap_or(null));
                fields(&format!("{path}{dot}{name}"), a, b, hidden, changes);
            }
        }
        (Value::Array(a), Value::Array(b)) => lists(path, a, b, secret, changes),
        (Value::Null, Value::Array(b)) => lists(path, &[], b, secret, changes),
        (Value::Array(a), Value::Null) => lists(path, a, &[], secret, changes),
        _ => {
            let (old, new) = (shown(old, secret), shown(new, secret));
            changes.push(Change { path: path.to_owned(), old, new });
        }
    }
}

/// For people; what may be secret is shown as its hash.
fn shown(value: &Value, secret: bool) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) if secret && text.starts_with('/') => Some(text.clone()),
        value if secret => Some(hash_of(value.to_string().as_bytes())),
        Value::String(text) => Some(text.clone()),
        value => Some(value.to_string()),
    }
}

/// Lists of things with an `id` are compared by it, others by position.
fn lists(path: &str, old: &[Value], new: &[Value], secret: bool, changes: &mut Vec<Change>) {
    let id = |value: &Value| match &value["id"] {
        Value::Null => None,
        id => Some(sidekey_core::config::fields::plain(id)),
    };
    let by_id = old.iter().chain(new).all(|value| id(value).is_some());
    let label = |(index, value): (usize, &Value)| match id(value) {
        Some(id) if by_id => id,
        _ => index.to_string(),
    };
    let index = |list: &[Value]| -> BTreeMap<String, Value> {
        list.iter().enumerate().map(|entry| (label(entry), entry.1.clone())).collect()
    };
    let (a, b) = (index(old), index(new));
    let labels: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for label in labels {
        let null = &Value::Null;
        let (a, b) = (a.get(label).unwrap_or(null), b.get(label).unwrap_or(null));
        fields(&format!("{path}[{label}]"), a, b, secret, changes);
    }
}

#[cfg(test)]
mod tests;
