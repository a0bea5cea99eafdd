//! The document that is published: what is wanted, and what must stay until nothing needs it.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sidekey_core::Secret;
use sidekey_core::config::document;

use super::resources::unread;
use super::writes::{Writes, promote};
use crate::Error;
use crate::model::{
    Adoption, Cipher, CipherKind, FileRef, FileSource, Key, KeyNumber, ObjectKey, SecretEncryption,
    Writer, names, resources,
};
use crate::publish::{Live, View};
use crate::render::encryption::Provider;
use crate::render::{PartName, ResolvedFiles};

/// What is to be published.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// What is wanted, and what is retained.
    pub(super) document: SecretEncryption,
    /// What is not wanted any more and stays until etcd was counted.
    pub(super) retained: Vec<Retained>,
    /// Content that no object of the cluster has by itself.
    pub(super) files: ResolvedFiles,
}

/// What is not wanted any more.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Retained {
    /// A key behind the shim.
    Key(Box<Key>),
    /// A cipher of kube-apiserver's own.
    Cipher(Cipher),
    /// A provider name from before the shim.
    Adopted(Adoption),
}

/// How far the change is that a draft is made for.
#[derive(Clone, Debug)]
pub(super) struct Stand {
    /// What kube-apiserver writes with.
    pub(super) writes: Writes,
    /// What the shim writes with, if it is another key than the published one.
    pub(super) promoted: Option<KeyNumber>,
    /// The only keys that may be new; none: all that are wanted.
    pub(super) newcomers: Option<BTreeSet<KeyNumber>>,
    /// What may go: keys by number, ciphers and providers by name.
    pub(super) leaving: BTreeSet<String>,
    /// What a key's preflight has made for it to read.
    pub(super) canary: Option<(KeyNumber, Value)>,
    /// Every kube-apiserver has what is published, and can read with all of it.
    pub(super) proven: bool,
}

/// What is known besides documents.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// What the sources of the wanted document hold.
    pub(super) files: &'a ResolvedFiles,
    /// Keys that were retained before.
    pub(super) retained: &'a BTreeSet<u64>,
}

impl Stand {
    pub(super) fn of(writes: Writes) -> Self {
        let promoted = writes.key();
        let leaving = BTreeSet::new();
        Self { writes, promoted, newcomers: None, leaving, canary: None, proven: false }
    }
}

impl Retained {
    /// What a census, and whoever allows it to go, calls it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Key(key) => key.id.to_string(),
            Self::Cipher(cipher) => cipher.name.clone(),
            Self::Adopted(adoption) => adoption.name.clone(),
        }
    }
}

/// What is to be published: `wanted`, and all of what is live that may still be needed.
pub(super) fn draft(
    wanted: &SecretEncryption,
    live: &Live,
    stand: &Stand,
    known: Known<'_>,
) -> Result<Draft, Error> {
    let view = live.view()?;
    let mut made =
        Draft { document: wanted.clone(), retained: Vec::new(), files: known.files.clone() };
    made.admit(live, stand)?;
    made.keep_keys(live, stand, known)?;
    made.keep_names(live, &view, stand)?;
    made.keep_resources(&view);
    let document = &mut made.document;
    document.spec.write = stand.writes.writer();
    // Somebody writes behind the shim, also while kube-apiserver writes with something else.
    let there = |id: &KeyNumber| document.key(*id).is_some();
    let writer = stand.promoted.or_else(|| view.writer()).filter(there);
    let writer = writer.or_else(|| document.writer().map(|key| key.id));
    let writer = writer.or_else(|| document.spec.keys.last().map(|key| key.id));
    if let Some(writer) = writer {
        promote(document, writer);
    }
    if document.spec.keys.is_empty() && document.spec.write == Writer::Keys {
        document.spec.write = Writer::Identity;
    }
    document.spec.unread = unread(document, &view, stand.proven)?;
    Ok(made)
}

impl Draft {
    /// Of what is wanted, what may be there at this stage; and what the keys must be able to read.
    fn admit(&mut self, live: &Live, stand: &Stand) -> Result<(), Error> {
        if let Some(newcomers) = &stand.newcomers {
            let published = live.view()?.keys;
            let there = |id| published.contains_key(&id);
            let leaves = |id: KeyNumber| stand.leaving.contains(&id.to_string());
            let may = |id| newcomers.contains(&id) || (there(id) && !leaves(id));
            self.document.spec.keys.retain(|key| may(key.id));
        }
        let spec = &mut self.document.spec;
        spec.adopt.retain(|adoption| !stand.leaving.contains(&adoption.name));
        spec.ciphers.retain(|cipher| !stand.leaving.contains(&cipher.name));
        for key in self.document.spec.keys.iter_mut().filter(|key| key.canary.is_none()) {
            let made = stand.canary.as_ref().filter(|(id, _)| *id == key.id);
            // What was made is the newer one.
            key.canary = match made {
                Some((_, canary)) => Some(canary.clone()),
                None => live.canary(key)?,
            };
        }
        Ok(())
    }

    fn keep_keys(&mut self, live: &Live, stand: &Stand, known: Known<'_>) -> Result<(), Error> {
        for mut key in live.keys()? {
            let leaves = stand.leaving.contains(&key.id.to_string());
            if leaves || self.document.key(key.id).is_some() {
                continue;
            }
            self.keep_files(&mut key, live, known);
            // Where it is reached now is for its placement to say.
            let proxied = |endpoint: &String| endpoint.contains(names::PROVIDERS);
            if key.endpoints.iter().any(proxied) {
                key.endpoints.clear();
            }
            self.retained.push(Retained::Key(Box::new(key.clone())));
            self.document.spec.keys.push(key);
        }
        Ok(())
    }

    /// Keys of one vendor share a directory. A file that a wanted key has under the same name is
    /// the same credential, and is followed, unless it became another one in the very change that
    /// the key was left in: then the key keeps what it had, under a name of its own.
    fn keep_files(&mut self, key: &mut Key, live: &Live, known: Known<'_>) {
        let part = live.parts.get(&PartName::Provider(key.vendor.clone()));
        let ours = self.document.spec.keys.iter().filter(|other| other.vendor == key.vendor);
        let shared: Vec<FileRef> = ours.flat_map(|other| other.files.clone()).collect();
        let mut files = Vec::new();
        for mut file in std::mem::take(&mut key.files) {
            let content = part.and_then(|part| part.files.get(&file.name)).cloned();
            let content = content.unwrap_or_default();
            if let Some(twin) = shared.iter().find(|twin| twin.name == file.name) {
                let same = known.files.content(&twin.source) == content;
                if same || known.retained.contains(&key.id.0) {
                    file.source = twin.source.clone();
                } else {
                    file = own(key, &file.name);
                    self.files.insert(file.source.clone(), content);
                }
            } else {
                self.files.insert(file.source.clone(), content);
            }
            files.push(file);
        }
        key.files = files;
    }

    /// Ciphers and names from before the shim, as kube-apiserver's file has them.
    fn keep_names(&mut self, live: &Live, view: &View, stand: &Stand) -> Result<(), Error> {
        if self.document.spec.legacy_key.is_none() {
            let legacy = view.legacy.get(names::SHIM_SOCKET).copied();
            self.document.spec.legacy_key = legacy.filter(|id| self.document.key(*id).is_some());
        }
        let Some(configuration) = configuration(live) else { return Ok(()) };
        let stanzas = configuration["resources"].as_array().into_iter().flatten();
        let providers = stanzas.flat_map(|stanza| stanza["providers"].as_array()).flatten();
        for (kind, body) in providers.filter_map(|one| one.as_object()?.iter().next()) {
            match kind.as_str() {
                "identity" => {}
                "kms" => self.keep_adopted(body, view, stand),
                kind => self.keep_ciphers(kind, body, stand)?,
            }
        }
        Ok(())
    }

    fn keep_adopted(&mut self, body: &Value, view: &View, stand: &Stand) {
        let name = body["name"].as_str().unwrap_or_default();
        let known = self.document.spec.adopt.iter().any(|adoption| adoption.name == name);
        if names::is_ours(name) || known || name.is_empty() || stand.leaving.contains(name) {
            return;
        }
        let endpoint = body["endpoint"].as_str().unwrap_or_default();
        let Some(key) = view.legacy.get(endpoint).copied() else { return };
        let listen = (endpoint != names::SHIM_SOCKET).then(|| endpoint.to_owned());
        let adoption = Adoption { name: name.to_owned(), listen, key };
        self.retained.push(Retained::Adopted(adoption.clone()));
        self.document.spec.adopt.push(adoption);
    }

    fn keep_ciphers(&mut self, kind: &str, body: &Value, stand: &Stand) -> Result<(), Error> {
        let kind: CipherKind = serde_json::from_value(Value::from(kind))
            .map_err(|error| Error::failed(format!("{kind} is published")).because(error))?;
        for key in body["keys"].as_array().into_iter().flatten() {
            let name = key["name"].as_str().unwrap_or_default();
            let known = self.document.spec.ciphers.iter().any(|cipher| cipher.name == name);
            if known || stand.leaving.contains(name) {
                continue;
            }
            let content = STANDARD.decode(key["secret"].as_str().unwrap_or_default());
            let content = content.map_err(|error| {
                Error::failed(format!("the published key of cipher {name} is not base64"))
                    .because(error)
            })?;
            // Its source may be gone; what is published is not.
            let source = FileSource::Secret(ObjectKey {
                name: names::ENCRYPTION_SECRET.to_owned(),
                key: format!("{} of {name}", kind.label()),
            });
            self.files.insert(source.clone(), Secret::new(content));
            let cipher = Cipher { name: name.to_owned(), kind, source };
            self.retained.push(Retained::Cipher(cipher.clone()));
            self.document.spec.ciphers.push(cipher);
        }
        Ok(())
    }

    /// What was encrypted of a resource must stay readable, so the resource stays. It is there
    /// already if its own list has it, or a wildcard for it, or another list its very name.
    fn keep_resources(&mut self, view: &View) {
        let spec = &mut self.document.spec;
        let stanzas = view.stanzas.iter().flatten();
        // Those of identity alone have what is in others too, and say nothing of whose it is.
        let (clear, named): (Vec<_>, Vec<_>) =
            stanzas.partition(|stanza| stanza.providers == [Provider::Identity]);
        for stanza in named.into_iter().chain(clear) {
            let name = stanza.providers.iter().find_map(|provider| match provider {
                Provider::Kms { name, .. } => names::stanza_of(name),
                _ => None,
            });
            let own = spec.stanzas.iter().position(|other| Some(other.name.as_str()) == name);
            for resource in &stanza.resources {
                let named = |name: &String| resources::same(name, resource);
                let known = spec.lists().iter().any(|(_, list)| list.iter().any(named));
                let list = match own {
                    Some(own) => &mut spec.stanzas[own].resources,
                    None => &mut spec.resources,
                };
                if !known && !list.iter().any(|name| resources::covers(name, resource)) {
                    // One list has either the wildcard or what is in it.
                    list.retain(|name| !resources::covers(resource, name));
                    list.push(resource.clone());
                }
            }
        }
    }
}

/// Gives a key a file of its own in the place of one that it shared.
fn own(key: &mut Key, name: &str) -> FileRef {
    let new = format!("key-{}-{name}", key.id);
    let (old_path, new_path) =
        (format!("{}/{name}", names::MOUNT), format!("{}/{new}", names::MOUNT));
    for section in [&mut key.settings, &mut key.credentials] {
        replace(section, &old_path, &new_path);
    }
    let secret = PartName::Provider(key.vendor.clone()).secret();
    FileRef { source: FileSource::Secret(ObjectKey { name: secret, key: new.clone() }), name: new }
}

/// Every string that is this path.
fn replace(value: &mut Value, old: &str, new: &str) {
    match value {
        Value::String(text) if text == old => new.clone_into(text),
        Value::Array(list) => list.iter_mut().for_each(|one| replace(one, old, new)),
        Value::Object(map) => map.values_mut().for_each(|one| replace(one, old, new)),
        _ => {}
    }
}

fn configuration(live: &Live) -> Option<Value> {
    let part = live.parts.get(&PartName::KubeApiserver)?;
    document(part.files.get(names::ENCRYPTION_FILE)?.as_text()?).ok()
}
