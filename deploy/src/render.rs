//! Makes of a [`SecretEncryption`] what pods mount: kube-apiserver's EncryptionConfiguration, the
//! shim's file, and for each vendor its provider's file with everything that it names.
//!
//! All parts of a key are made together, from one document, and carry one revision: a shim that
//! knows a key finds its provider configured, and data that a key wrote finds its name.

pub mod apiserver;
pub mod encryption;
pub mod hashes;
pub mod hosted;
mod objects;
pub mod profile;
pub mod resolve;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};
use sidekey_core::Secret;

pub use objects::{Created, manifest};
pub use resolve::ResolvedFiles;

use crate::model::{Key, Role, SecretEncryption, names};
use crate::{Error, report};

/// The form of `EncryptionConfiguration` during a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// As the document says.
    #[default]
    Settled,
    /// Everything can be read, new data is stored in clear: until every kube-apiserver has it.
    IdentityFirst,
}

/// Everything that pods mount, at one revision.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// Name of the SecretEncryption.
    pub name: String,
    /// Namespace of the control plane.
    pub namespace: Option<String>,
    /// Number of this revision.
    pub revision: u64,
    /// Hex SHA-256 of all content but the revision's number.
    pub digest: String,
    /// In the order in which they must be published.
    pub parts: Vec<Part>,
    /// What the keys are, without anything secret.
    pub keys: Vec<KeySummary>,
}

/// What one process mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whose.
    pub name: PartName,
    /// Its files.
    pub files: BTreeMap<String, Secret>,
}

/// Whose files these are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartName {
    /// A vendor's provider: before the shim, which may need its keys at once.
    Provider(String),
    /// The shim.
    Shim,
    /// kube-apiserver.
    KubeApiserver,
}

/// A key, without anything secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeySummary {
    /// Its number.
    pub id: u64,
    /// Who serves it.
    #[serde(rename = "type")]
    pub vendor: String,
    /// What it is for.
    pub role: Role,
    /// Of its KEK.
    pub fingerprint: String,
    /// Whether it can be told from another key by what it once wrote.
    pub canary: bool,
}

impl PartName {
    /// The Secret that pods mount.
    pub fn secret(&self) -> String {
        match self {
            Self::Provider(vendor) => names::provider_secret(vendor),
            Self::Shim => names::SHIM_SECRET.to_owned(),
            Self::KubeApiserver => names::ENCRYPTION_SECRET.to_owned(),
        }
    }

    /// The directory on a host that static pods mount.
    pub fn directory(&self) -> &str {
        match self {
            Self::Provider(vendor) => vendor,
            Self::Shim => "shim",
            Self::KubeApiserver => "kube-apiserver",
        }
    }

    /// The file that configures the process.
    pub fn main_file(&self) -> &'static str {
        match self {
            Self::KubeApiserver => names::ENCRYPTION_FILE,
            _ => names::CONFIG_FILE,
        }
    }
}

impl fmt::Display for PartName {
    /// As it stands before the names of files in a revision.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(vendor) => write!(f, "provider-{vendor}"),
            Self::Shim => f.write_str("shim"),
            Self::KubeApiserver => f.write_str("kube-apiserver"),
        }
    }
}

impl Rendered {
    /// One part.
    pub fn part(&self, name: &PartName) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == *name)
    }

    /// What the revision says of itself.
    pub fn summary(&self, created: &str) -> Value {
        json!({
            "name": self.name,
            "revision": self.revision,
            "sha256": self.digest,
            "created": created,
            "keys": self.keys,
        })
    }
}

impl From<&Key> for KeySummary {
    fn from(key: &Key) -> Self {
        Self {
            id: key.id.0,
            vendor: key.vendor.clone(),
            role: key.role,
            fingerprint: key.fingerprint(),
            canary: key.canary.is_some(),
        }
    }
}

/// Renders everything that pods mount. Whatever content is missing is named, all of it at once.
pub fn render(
    encryption: &SecretEncryption,
    revision: u64,
    files: &ResolvedFiles,
    phase: Phase,
) -> Result<Rendered, Error> {
    files.require(encryption)?;
    let mut drafts: Vec<(PartName, Value, BTreeMap<String, Secret>)> = Vec::new();
    for vendor in encryption.vendors() {
        let (document, beside) = provider(encryption, vendor, files);
        drafts.push((PartName::Provider(vendor.to_owned()), document, beside));
    }
    if !encryption.spec.keys.is_empty() {
        drafts.push((PartName::Shim, shim(encryption), shim_files(encryption, files)));
    }
    let configuration = encryption::configuration(encryption, files, phase)?;
    drafts.push((PartName::KubeApiserver, configuration, BTreeMap::new()));
    let digest = digest(&drafts);
    let mut parts = Vec::new();
    for (name, mut document, mut beside) in drafts {
        if name != PartName::KubeApiserver {
            document["revision"] = revision.into();
        }
        let text = report::yaml(&document)?;
        beside.insert(name.main_file().to_owned(), Secret::new(text.into_bytes()));
        parts.push(Part { name, files: beside });
    }
    Ok(Rendered {
        name: encryption.name.clone(),
        namespace: encryption.namespace.clone(),
        revision,
        digest,
        parts,
        keys: encryption.spec.keys.iter().map(KeySummary::from).collect(),
    })
}

/// A provider's file, and what lies beside it.
fn provider(
    encryption: &SecretEncryption,
    vendor: &str,
    files: &ResolvedFiles,
) -> (Value, BTreeMap<String, Secret>) {
    let mut beside = BTreeMap::new();
    let mut list = Vec::new();
    for key in encryption.spec.keys.iter().filter(|key| key.vendor == vendor) {
        // The role tells how the key is to be probed: one that reads costs a tenth.
        let mut entry =
            json!({"id": key.id, "type": vendor, "role": key.role, "listen": key.listen});
        for (name, section) in
            [("kek", &key.kek), ("settings", &key.settings), ("credentials", &key.credentials)]
        {
            if !section.is_null() {
                entry[name] = section.clone();
            }
        }
        if let Some(canary) = &key.canary {
            entry["canary"] = canary.clone();
        }
        list.push(entry);
        for file in &key.files {
            beside.insert(file.name.clone(), files.content(&file.source));
        }
    }
    // Pods of before have no other directory than the one of all sockets.
    let before = list.iter().filter_map(|key: &Value| key["listen"].as_str());
    let admin = match before.filter_map(|listen| names::own_socket(vendor, listen)).next() {
        Some(_) => names::shared_admin_socket(vendor),
        None => names::provider_admin_socket(vendor),
    };
    (json!({"adminSocket": admin, "keys": list}), beside)
}

fn shim_files(encryption: &SecretEncryption, files: &ResolvedFiles) -> BTreeMap<String, Secret> {
    let list = encryption.spec.shim_files.iter();
    list.map(|file| (file.name.clone(), files.content(&file.source))).collect()
}

/// The shim's file: it holds no secrets.
fn shim(encryption: &SecretEncryption) -> Value {
    let spec = &encryption.spec;
    let mut document = Value::Object(spec.shim.clone());
    document["listen"] = names::SHIM_SOCKET.into();
    // Whoever moves the admin endpoints to a socket wants no port.
    if !["admin", "adminSocket", "adminTls"].iter().any(|name| spec.shim.contains_key(*name)) {
        document["admin"] = names::SHIM_ADMIN.into();
    }
    if let Some(key) = spec.legacy_key {
        document["legacyKey"] = key.0.into();
    }
    let adopted = spec.adopt.iter().filter_map(|adoption| {
        Some(json!({"listen": adoption.listen.as_ref()?, "key": adoption.key}))
    });
    let adopted: Vec<Value> = adopted.collect();
    if !adopted.is_empty() {
        document["adopt"] = adopted.into();
    }
    let keys = spec.keys.iter().map(|key| shim_key(key, spec.sockets_apart));
    document["keys"] = keys.collect();
    document
}

fn shim_key(key: &Key, apart: bool) -> Value {
    let mut entry = json!({
        "id": key.id,
        "type": key.vendor,
        "role": key.role,
        "endpoints": key.endpoints(apart),
        "fingerprint": key.fingerprint(),
    });
    if key.is_external() {
        entry["external"] = true.into();
    }
    if !key.server_uids.is_empty() {
        entry["serverUids"] = key.server_uids.as_slice().into();
    }
    if let Some(canary) = &key.canary {
        entry["canary"] = canary.clone();
    }
    entry
}

/// Over all that matters: names, documents without their revision, and other files.
fn digest(drafts: &[(PartName, Value, BTreeMap<String, Secret>)]) -> String {
    let mut all = Vec::new();
    let mut field = |bytes: &[u8]| {
        all.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        all.extend_from_slice(bytes);
    };
    for (name, document, beside) in drafts {
        field(name.to_string().as_bytes());
        field(document.to_string().as_bytes());
        for (name, content) in beside {
            field(name.as_bytes());
            field(content.expose());
        }
    }
    let all = Secret::new(all);
    sidekey_core::hex(&sidekey_core::sha256(all.expose()))
}

#[cfg(test)]
mod tests;
