//! What is published now.

use std::collections::BTreeMap;

use serde_json::Value;
use sidekey_core::Secret;
use sidekey_core::config::document;
use sidekey_core::config::fields::plain;

use super::View;
use crate::Error;
use crate::model::{FileRef, FileSource, Key, KeyNumber, ObjectKey, Role, SecretEncryption, names};
use crate::render::hosted::KnownKey;
use crate::render::{Part, PartName, Rendered};

/// What is published now.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// What each process mounts.
    pub parts: BTreeMap<PartName, LivePart>,
    /// Numbers of the revisions that are kept, in order.
    pub revisions: Vec<u64>,
    /// Everything in the newest one.
    pub newest: BTreeMap<String, Secret>,
    /// Where contents can be read again.
    pub(super) source: Source,
}

/// Where contents can be read again.
#[derive(Clone, Debug, Default)]
pub(super) enum Source {
    /// From the heads themselves.
    #[default]
    Cluster,
    /// From files.
    Directory(std::path::PathBuf),
}

/// What one process mounts.
#[derive(Clone, Debug, Default)]
pub struct LivePart {
    /// Its files.
    pub files: BTreeMap<String, Secret>,
    /// The object's version, in a cluster.
    pub version: Option<String>,
}

impl Live {
    /// What the parts say together.
    pub fn view(&self) -> Result<View, Error> {
        View::read(self.parts.iter().map(|(name, part)| (name, &part.files)))
    }

    /// What the heads say, and what the newest revision does: a head may have been edited, and a
    /// revision may have been left half published. Whatever either of them holds must stay.
    pub fn views(&self) -> Result<Vec<View>, Error> {
        let mut parts: BTreeMap<PartName, BTreeMap<String, Secret>> = BTreeMap::new();
        for (name, content) in &self.newest {
            let Some((part, file)) = name.split_once('_') else { continue };
            let part = match part.strip_prefix("provider-") {
                Some(vendor) => PartName::Provider(vendor.to_owned()),
                None if part == "shim" => PartName::Shim,
                None => PartName::KubeApiserver,
            };
            parts.entry(part).or_default().insert(file.to_owned(), content.clone());
        }
        let mut views = vec![self.view()?];
        if !parts.is_empty() {
            views.push(View::read(parts.iter())?);
        }
        Ok(views)
    }

    /// The digest that the newest revision says of itself.
    fn newest_digest(&self) -> Option<String> {
        let summary = self.newest.get(names::REVISION_FILE)?;
        let summary: Value = serde_json::from_slice(summary.expose()).ok()?;
        summary["sha256"].as_str().map(str::to_owned)
    }

    /// The number of the next revision: the newest one's, if that holds just this and was left
    /// half published.
    pub(super) fn next(&self, digest: &str) -> u64 {
        let newest = self.highest();
        let half = self.newest_digest().as_deref() == Some(digest)
            && self.revisions.last() == Some(&newest);
        if half { newest } else { newest + 1 }
    }

    /// The revision that publishing would lead to, and whether anything would change.
    pub fn plan(&self, draft: &Rendered) -> (u64, bool) {
        match self.holds(draft) {
            Some(revision) => (revision, false),
            None => (self.next(&draft.digest), true),
        }
    }

    /// The highest number there is, in history or in a head.
    pub(crate) fn highest(&self) -> u64 {
        let heads = self.heads().flatten();
        self.revisions.iter().copied().chain(heads).max().unwrap_or(0)
    }

    /// The newest revision that heads carry.
    pub fn revision(&self) -> Option<u64> {
        self.heads().flatten().max()
    }

    /// The revisions that heads carry.
    pub(super) fn heads(&self) -> impl Iterator<Item = Option<u64>> {
        let ours = self.parts.iter().filter(|(name, _)| **name != PartName::KubeApiserver);
        ours.map(|(name, part)| main(name, &part.files).and_then(|main| number(&main["revision"])))
    }

    /// The revision, if all that is to be published is there already.
    pub(super) fn holds(&self, draft: &Rendered) -> Option<u64> {
        let same = |part: &Part| {
            let live = self.parts.get(&part.name);
            live.is_some_and(|live| equal(&part.name, &live.files, &part.files))
        };
        let all = draft.parts.iter().all(same);
        let wanted = draft.parts.iter().filter(|part| part.name != PartName::KubeApiserver);
        let mut revision = None;
        for part in wanted {
            let main = main(&part.name, &self.parts.get(&part.name)?.files)?;
            let number = number(&main["revision"])?;
            if revision.is_some_and(|revision| revision != number) {
                return None;
            }
            revision = Some(number);
        }
        let revision = revision.or_else(|| self.revisions.last().copied())?;
        (all && self.revisions.contains(&revision)).then_some(revision)
    }

    /// The keys of before, for whoever numbers new ones.
    pub fn known(&self) -> Result<Vec<KnownKey>, Error> {
        let keys = self.view()?.keys;
        let known = keys.into_iter().map(|(id, key)| KnownKey { id, fingerprint: key.fingerprint });
        Ok(known.collect())
    }

    /// The keys as they are published, with their files taken from where they lie.
    pub fn keys(&self) -> Result<Vec<Key>, Error> {
        let view = self.view()?;
        let mut keys = Vec::new();
        for (id, seen) in &view.keys {
            let body = view.providers.get(&seen.vendor).and_then(|keys| keys.get(id));
            let section = |name: &str| body.map_or(Value::Null, |body| body[name].clone());
            let kek = section("kek");
            let derived = sidekey_core::fingerprint(&kek);
            let listen = body.and_then(|body| body["listen"].as_str().map(str::to_owned));
            let listen = listen.or_else(|| seen.endpoints.first().cloned());
            let listen = listen.unwrap_or_else(|| names::key_socket(&seen.vendor, *id));
            keys.push(Key {
                id: *id,
                vendor: seen.vendor.clone(),
                role: if seen.writes { Role::Write } else { Role::Read },
                kek,
                settings: section("settings"),
                credentials: section("credentials"),
                files: self.files_of(&seen.vendor, body.unwrap_or(&Value::Null)),
                canary: Some(section("canary")).filter(|canary| !canary.is_null()),
                given_fingerprint: Some(seen.fingerprint.clone()).filter(|own| *own != derived),
                endpoints: match seen.endpoints.as_slice() {
                    [only] if *only == listen => Vec::new(),
                    others => others.to_vec(),
                },
                server_uids: seen.server_uids.clone(),
                listen,
            });
        }
        Ok(keys)
    }

    /// The canary that is published for a key, if it is of the same KEK.
    pub(crate) fn canary(&self, key: &Key) -> Result<Option<Value>, Error> {
        let same = |other: &Key| other.id == key.id && other.fingerprint() == key.fingerprint();
        Ok(self.keys()?.into_iter().find(same).and_then(|other| other.canary))
    }

    /// Gives every key of a document without a canary the one that is published for it.
    pub(crate) fn keep_canaries(&self, document: &mut SecretEncryption) -> Result<(), Error> {
        for key in document.spec.keys.iter_mut().filter(|key| key.canary.is_none()) {
            key.canary = self.canary(key)?;
        }
        Ok(())
    }

    /// The files that a key's sections name.
    fn files_of(&self, vendor: &str, body: &Value) -> Vec<FileRef> {
        let part = PartName::Provider(vendor.to_owned());
        let Some(live) = self.parts.get(&part) else { return Vec::new() };
        let text = format!("{}{}", body["settings"], body["credentials"]);
        let named = |name: &&String| text.contains(&format!("\"/etc/sidekey/{name}\""));
        let source = |name: &String| match &self.source {
            Source::Cluster => {
                FileSource::Secret(ObjectKey { name: part.secret(), key: name.clone() })
            }
            Source::Directory(path) => FileSource::File(path.join(part.directory()).join(name)),
        };
        let names = live.files.keys().filter(named);
        names.map(|name| FileRef { name: name.clone(), source: source(name) }).collect()
    }
}

/// The document that configures a part's process.
pub(super) fn main(name: &PartName, files: &BTreeMap<String, Secret>) -> Option<Value> {
    let text = files.get(name.main_file())?.as_text()?.to_owned();
    document(&text).ok()
}

/// Whether two parts say the same, whatever their revision.
pub(super) fn equal(
    name: &PartName,
    one: &BTreeMap<String, Secret>,
    two: &BTreeMap<String, Secret>,
) -> bool {
    let rest = |files: &BTreeMap<String, Secret>| -> Vec<(String, Secret)> {
        let others = files.iter().filter(|(file, _)| *file != name.main_file());
        others.map(|(file, content)| (file.clone(), content.clone())).collect()
    };
    let bare = |files| {
        let mut document = main(name, files)?;
        if let Some(map) = document.as_object_mut() {
            map.remove("revision");
        }
        Some(document)
    };
    match (bare(one), bare(two)) {
        (Some(a), Some(b)) => a == b && rest(one) == rest(two),
        _ => false,
    }
}

/// A number, whatever YAML made of it.
pub(super) fn number(value: &Value) -> Option<u64> {
    plain(value).parse().ok()
}

/// A key's number, whatever YAML made of it.
pub(super) fn key_number(value: &Value) -> Option<KeyNumber> {
    number(value).map(KeyNumber)
}

/// Revisions to prune once `number` is published: beyond the newest `keep`, and in no head that
/// stays as it is.
pub(super) fn prunable(live: &Live, number: u64, keep: usize) -> Vec<u64> {
    let mut all: Vec<u64> = live.revisions.clone();
    if !all.contains(&number) {
        all.push(number);
    }
    all.sort_unstable_by(|a, b| b.cmp(a));
    let carried: Vec<u64> = live.heads().flatten().collect();
    // The heads of before may still be mounted somewhere until kubelet has swapped them.
    let old = all.into_iter().skip(keep.max(1));
    old.filter(|old| *old != number && !carried.contains(old)).collect()
}

#[cfg(test)]
mod tests;
