//! Copies of what a foreign object refers to, in the control plane's namespace.
//!
//! Only the entries that are needed are copied. A copy follows its source in place, also one that
//! belongs to an older key of the SecretEncryption, and is written only if it differs. Keys of
//! kube-apiserver's own are different: what is in their Secret is what data is encrypted with, so
//! each content has a copy of its own, which never changes.
//!
//! The operator may read what those who write Secrets beside a control plane may not. So nothing
//! there decides what is read: sources are in the namespace of the object that is served, and
//! their names come from it or from its SecretEncryption.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret as Object};
use kube::api::{Api, DynamicObject, GetParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use sidekey_core::Secret;

use super::{Failure, Fault, Front};
use crate::Error;
use crate::cluster::refused;
use crate::model::{Cipher, CipherKind, FileSource, Key, ObjectKey, names};
use crate::render::ResolvedFiles;

/// On a copy: the name of the SecretEncryption that it is for.
const LABEL_COPY: &str = "sidekey.dev/copy-for";
/// On a copy, for people alone: what it is a copy of, as `Secret/namespace/name`. It is never read:
/// whoever may write Secrets there could have any Secret copied.
const ANNOTATION_ORIGIN: &str = "sidekey.dev/copy-of";
/// The entry of a Secret with a key of kube-apiserver's own.
const CIPHER_ENTRY: &str = "key";

/// The copies of one control plane.
pub(super) struct Copies<'a> {
    front: &'a Front<'a>,
    api: Api<Object>,
    ours: BTreeMap<String, Object>,
    /// What the keys and shims of the SecretEncryption read, as it stands there.
    in_use: BTreeMap<Origin, BTreeSet<String>>,
}

/// An object that is copied, and what of it.
#[derive(Default)]
struct Wanted {
    /// Must be there.
    needed: BTreeSet<String>,
    /// An older key reads it.
    in_use: BTreeSet<String>,
}

/// What is copied: kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Origin {
    kind: &'static str,
    namespace: String,
    name: String,
}

impl Origin {
    const SECRET: &'static str = "Secret";
    const CONFIG_MAP: &'static str = "ConfigMap";

    /// What a copy of this name is made from, in the namespace of the object that is served.
    fn of_copy(copy: &str, front: &Front<'_>) -> Option<Self> {
        let namespace = front.sources.clone();
        [Self::SECRET, Self::CONFIG_MAP].into_iter().find_map(|kind| {
            let name = copy.strip_prefix(Self::prefix(kind))?.to_owned();
            Some(Self { kind, namespace: namespace.clone(), name })
        })
    }

    fn text(&self) -> String {
        format!("{}/{}/{}", self.kind, self.namespace, self.name)
    }

    /// The version of what is there, if anything is.
    pub(super) async fn version(&self, client: &Client) -> Result<Option<String>, Error> {
        let Self { kind, namespace, name } = self;
        let parameters = GetParams::any();
        let found = if *kind == Self::SECRET {
            let api: Api<Object> = Api::namespaced(client.clone(), namespace);
            api.get_metadata_opt_with(name, &parameters).await.map(|one| one.map(|o| o.metadata))
        } else {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            api.get_metadata_opt_with(name, &parameters).await.map(|one| one.map(|o| o.metadata))
        };
        let what = || format!("cannot read {kind} {namespace}/{name}");
        let found = found.map_err(|error| refused(what(), error))?;
        Ok(found.and_then(|metadata| metadata.resource_version))
    }

    /// The Secret that it is copied to.
    fn copy(&self) -> String {
        format!("{}{}", Self::prefix(self.kind), self.name)
    }

    /// Of the names of copies.
    fn prefix(kind: &str) -> &'static str {
        if kind == Self::SECRET { "sidekey-source-" } else { "sidekey-bundle-" }
    }
}

impl<'a> Copies<'a> {
    /// All that there are.
    pub(super) async fn load(
        front: &'a Front<'a>,
        existing: Option<&DynamicObject>,
    ) -> Result<Self, Error> {
        let api: Api<Object> = Api::namespaced(front.ctx.client.clone(), &front.namespace);
        let ours = ListParams::default().labels(&format!("{LABEL_COPY}={}", front.name));
        let what = || format!("cannot list Secrets of {}", front.namespace);
        let list = api.list(&ours).await.map_err(|error| refused(what(), error))?;
        let ours = list.items.into_iter().map(|object| (object.name_any(), object)).collect();
        Ok(Self { front, api, ours, in_use: in_use(front, existing) })
    }

    /// Copies what these refer to, keeps older copies in step, and turns the references to them.
    pub(super) async fn follow(
        &mut self,
        keys: &mut [Key],
        more: &mut [crate::model::FileRef],
    ) -> Result<(), Failure> {
        let mut all: BTreeMap<Origin, Wanted> = BTreeMap::new();
        for (origin, entries) in &self.in_use {
            if self.ours.contains_key(&origin.copy()) {
                all.entry(origin.clone()).or_default().in_use.clone_from(entries);
            }
        }
        let files = keys.iter_mut().flat_map(|key| &mut key.files).chain(more);
        for file in files {
            let Some((origin, entry)) = self.origin(&file.source) else {
                let text = format!("{} is no object of the cluster", file.source);
                return Err(Failure::fault(Fault::INVALID, text));
            };
            let copied = ObjectKey { name: origin.copy(), key: entry.clone() };
            all.entry(origin).or_default().needed.insert(entry);
            file.source = FileSource::Secret(copied);
        }
        let mut missing = Vec::new();
        let mut changes = Vec::new();
        for (origin, wanted) in all {
            let found = read(self.front, &origin).await?;
            for entry in &wanted.needed {
                if found.get(entry).is_none_or(|content| content.expose().is_empty()) {
                    let Origin { kind, namespace, name } = &origin;
                    missing.push(format!("{kind} {namespace}/{name}, key {entry}: not found"));
                }
            }
            changes.push((origin, wanted, found));
        }
        if !missing.is_empty() {
            let text = format!("it refers to what is not there\n{}", missing.join("\n"));
            return Err(Failure::fault(Fault::MISSING, text));
        }
        for (origin, wanted, found) in changes {
            self.put(&origin, &wanted, found).await?;
        }
        Ok(())
    }

    fn origin(&self, source: &FileSource) -> Option<(Origin, String)> {
        let namespace = self.front.sources.clone();
        let (kind, object) = match source {
            FileSource::Secret(object) => (Origin::SECRET, object),
            FileSource::ConfigMap(object) => (Origin::CONFIG_MAP, object),
            FileSource::File(_) => return None,
        };
        Some((Origin { kind, namespace, name: object.name.clone() }, object.key.clone()))
    }

    async fn put(
        &mut self,
        origin: &Origin,
        wanted: &Wanted,
        mut found: BTreeMap<String, Secret>,
    ) -> Result<(), Failure> {
        let name = origin.copy();
        let before = self.ours.get(&name).and_then(|object| object.data.clone());
        // What the source has no more may still be all that an old key has to log in with.
        let mut data = before.clone().unwrap_or_default();
        for entry in wanted.needed.union(&wanted.in_use) {
            let content = found.remove(entry).map(|content| ByteString(content.expose().to_vec()));
            data.extend(content.map(|content| (entry.clone(), content)));
        }
        if data.is_empty() || before.as_ref() == Some(&data) {
            return Ok(());
        }
        let mut object = self.blank(&name);
        object.annotations_mut().insert(ANNOTATION_ORIGIN.to_owned(), origin.text());
        object.data = Some(data);
        self.refuse_others(&name).await?;
        let parameters = PatchParams::apply(self.front.manager).force();
        let written = self.api.patch(&name, &parameters, &Patch::Apply(&object)).await;
        let what = format!("cannot write Secret {}/{name}", self.front.namespace);
        let written = written.map_err(|error| self.front.write_failed(what, error))?;
        self.ours.insert(name, written);
        Ok(())
    }

    /// A Secret with just this key, for ever; gives the cipher that refers to it.
    pub(super) async fn cipher(
        &mut self,
        name: &str,
        kind: CipherKind,
        content: &[u8],
    ) -> Result<Cipher, Failure> {
        let secret = cipher_secret(name);
        let wanted = ByteString(content.to_vec());
        if !self.ours.contains_key(&secret) {
            self.refuse_others(&secret).await?;
            let mut object = self.blank(&secret);
            object.data = Some(BTreeMap::from([(CIPHER_ENTRY.to_owned(), wanted.clone())]));
            object.immutable = Some(true);
            let manager = Some(self.front.manager.to_owned());
            let parameters = PostParams { field_manager: manager, ..PostParams::default() };
            let what = format!("cannot create Secret {}/{secret}", self.front.namespace);
            let made = self.api.create(&parameters, &object).await;
            let made = made.map_err(|error| self.front.write_failed(what, error))?;
            self.ours.insert(secret.clone(), made);
        }
        if self.content(&secret) != Some(&wanted) {
            let text = format!("Secret {}/{secret} holds another key", self.front.namespace);
            return Err(Failure::fault(Fault::NOT_OURS, text));
        }
        let source = ObjectKey { name: secret, key: CIPHER_ENTRY.to_owned() };
        Ok(Cipher { name: name.to_owned(), kind, source: FileSource::Secret(source) })
    }

    /// The key that was made for a cipher, if its Secret is there.
    pub(super) fn made(&self, name: &str) -> Option<Secret> {
        self.content(&cipher_secret(name)).map(|content| Secret::new(content.0.clone()))
    }

    fn content(&self, secret: &str) -> Option<&ByteString> {
        self.ours.get(secret)?.data.as_ref()?.get(CIPHER_ENTRY)
    }

    fn blank(&self, name: &str) -> Object {
        let mut object = Object::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.namespace = Some(self.front.namespace.clone());
        let (managed, by) = names::MANAGED_BY;
        let labels = [(managed, by), (LABEL_COPY, self.front.name.as_str())];
        object.labels_mut().extend(labels.map(|(name, value)| (name.into(), value.into())));
        object
    }

    /// A Secret of this name that is not among ours stays as it is.
    async fn refuse_others(&self, name: &str) -> Result<(), Failure> {
        if self.ours.contains_key(name) {
            return Ok(());
        }
        let what = || format!("cannot read Secret {}/{name}", self.front.namespace);
        let found = self.api.get_metadata_opt(name).await;
        let found = found.map_err(|error| refused(what(), error))?;
        if found.is_some_and(|found| found.labels().get(LABEL_COPY) != Some(&self.front.name)) {
            let text = format!(
                "Secret {}/{name} is there and not ours: rename it, the name is needed",
                self.front.namespace
            );
            return Err(Failure::fault(Fault::NOT_OURS, text));
        }
        Ok(())
    }
}

/// What the document refers to among copies: a key that the object names no more may still log in
/// with it.
fn in_use(
    front: &Front<'_>,
    existing: Option<&DynamicObject>,
) -> BTreeMap<Origin, BTreeSet<String>> {
    let mut all: BTreeMap<Origin, BTreeSet<String>> = BTreeMap::new();
    let Some(spec) = existing.map(|existing| &existing.data["spec"]) else { return all };
    let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let keys = items(&spec["keys"]).into_iter().flat_map(|key| items(&key["files"]));
    for file in keys.chain(items(&spec["shimFiles"])) {
        let text = |field: &str| file["secret"][field].as_str();
        let Some((copy, entry)) = text("name").zip(text("key")) else { continue };
        if let Some(origin) = Origin::of_copy(copy, front) {
            all.entry(origin).or_default().insert(entry.to_owned());
        }
    }
    all
}

fn cipher_secret(name: &str) -> String {
    format!("sidekey-cipher-{}", name.to_lowercase().replace('_', "-"))
}

/// Reads what must be known before a translation; what is not there is left out.
pub(super) async fn resolve(
    front: &Front<'_>,
    sources: &[FileSource],
) -> Result<ResolvedFiles, Error> {
    let mut files = ResolvedFiles::default();
    for source in sources {
        let FileSource::Secret(object) = source else { continue };
        if let Some(content) = entry(front, &front.sources, &object.name, &object.key).await? {
            files.insert(source.clone(), content);
        }
    }
    Ok(files)
}

/// One entry of a Secret; nothing if it is not there or empty.
pub(super) async fn entry(
    front: &Front<'_>,
    namespace: &str,
    name: &str,
    key: &str,
) -> Result<Option<Secret>, Error> {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let origin = Origin { kind: Origin::SECRET, namespace, name };
    let mut found = read(front, &origin).await?;
    Ok(found.remove(key).filter(|content| !content.expose().is_empty()))
}

async fn read(front: &Front<'_>, origin: &Origin) -> Result<BTreeMap<String, Secret>, Error> {
    let Origin { kind, namespace, name } = origin;
    let client = &front.ctx.client;
    let note = |version: Option<String>| {
        front.sources_read().entry(origin.clone()).or_insert(version);
    };
    let failed = |error| refused(format!("cannot read {kind} {namespace}/{name}"), error);
    if *kind == Origin::SECRET {
        let api: Api<Object> = Api::namespaced(client.clone(), namespace);
        let object = api.get_opt(name).await.map_err(failed)?;
        note(object.as_ref().and_then(ResourceExt::resource_version));
        let data = object.and_then(|object| object.data).unwrap_or_default();
        return Ok(data.into_iter().map(|(key, bytes)| (key, Secret::new(bytes.0))).collect());
    }
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let object = api.get_opt(name).await.map_err(failed)?.unwrap_or_default();
    note(object.resource_version());
    let text = object.data.unwrap_or_default().into_iter();
    Ok(text.map(|(key, text)| (key, Secret::new(text.into_bytes()))).collect())
}
