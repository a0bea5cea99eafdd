//! `SecretEncryption`: how one control plane is encrypted, in one document.
//!
//! It says which keys there are and what they are for, how their providers are set up, and which
//! resources of the API are encrypted. The same types serve the command, which reads them from a
//! file, and the operator, which reads them from the cluster.
//!
//! What belongs to a vendor (`kek`, `settings`, `credentials`) is passed on as it is written: the
//! provider's own binary judges it.

mod files;
mod keys;
mod labels;
pub mod names;
mod parse;
mod period;
mod plane;
mod raw;
pub mod resources;
mod tokens;
mod vendors;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value, json};
use sidekey_core::config::Problems;

pub(crate) use parse::is_label as is_name;
pub use period::parse_period;
pub use plane::{ControlPlane, EtcdAccess, EtcdTls, Injection};
pub use sidekey_core::config::KeyNumber;
pub use tokens::{Account, Minted, PodToken, Token, TokenSource, kept_tokens, told_tokens};
pub use vendors::AzureKey;
pub(crate) use vendors::{PUBLIC_CLOUD as AZURE_PUBLIC_CLOUD, azure_cloud};

/// The group and version of [`SecretEncryption`].
pub const API_VERSION: &str = "sidekey.dev/v1alpha1";
/// Its kind.
pub const KIND: &str = "SecretEncryption";
/// The type of a key whose plugin somebody else runs.
pub const EXTERNAL: &str = "external";
/// What is encrypted where nothing is said.
const DEFAULT_RESOURCES: [&str; 2] = ["secrets", "configmaps"];

/// How one control plane is encrypted.
#[derive(Clone, Debug, PartialEq)]
pub struct SecretEncryption {
    /// Name of the object.
    pub name: String,
    /// Namespace of the control plane; none for files on a host.
    pub namespace: Option<String>,
    /// What is wanted.
    pub spec: Spec,
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The kube-apiserver that it is for.
    pub control_plane: ControlPlane,
    /// Resources under the provider name `sidekey`.
    pub resources: Vec<String>,
    /// More of them, each under a name of its own; the socket is the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stanzas: Vec<Stanza>,
    /// Those of all of them that are read with everything and written in clear, until every
    /// kube-apiserver can read them otherwise. No document says it: it is the operator's to know.
    #[serde(skip)]
    pub unread: Vec<String>,
    /// No pod has all of its sockets in one directory any more, as pods had them before. No document
    /// says it: it is for whoever publishes to know.
    #[serde(skip)]
    pub sockets_apart: bool,
    /// How long kube-apiserver waits for the shim.
    pub timeout: String,
    /// Where providers run.
    pub placement: Placement,
    /// Images of the sidecars, by the name of their binary without `sidekey-`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
    /// Passed on to the shim's file.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub shim: Map<String, Value>,
    /// What lands beside the shim's file: certificates for its TLS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shim_files: Vec<FileRef>,
    /// The key of data that was written without the shim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub legacy_key: Option<KeyNumber>,
    /// Names that stored data carries from before, kept until a census of them is zero.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adopt: Vec<Adoption>,
    /// Keys that kube-apiserver holds itself, of before or for after a KMS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ciphers: Vec<Cipher>,
    /// What new data is written with.
    pub write: Writer,
    /// How long a key_id that has moved at the vendor must stay before what is stored follows.
    pub convergence: String,
    /// When the operator asks the vendor for a new version of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_rotation: Option<AutoRotation>,
    /// Tokens of the control plane's that are minted beside providers, which log in with them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Token>,
    /// The keys of KMSs; exactly one writes.
    pub keys: Vec<Key>,
}

/// A schedule of new key versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AutoRotation {
    /// So long after the last one.
    pub every: String,
}

/// Resources under a provider name of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stanza {
    /// The provider name is `sidekey-<name>`.
    pub name: String,
    /// Resources, as EncryptionConfiguration names them.
    pub resources: Vec<String>,
}

/// Where providers run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Placement {
    /// In kube-apiserver's pods.
    #[default]
    Sidecar,
    /// In a Deployment of their own, behind the socket proxy.
    Proxy,
}

/// An old provider name whose data the shim reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Adoption {
    /// The name in the stored data.
    pub name: String,
    /// A socket of the shim's for it alone; none if `legacyKey` of the main socket serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// The key that wrote it.
    pub key: KeyNumber,
}

/// A key that kube-apiserver holds itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cipher {
    /// Its name in the stored data.
    pub name: String,
    /// The algorithm.
    #[serde(rename = "type")]
    pub kind: CipherKind,
    /// Where the key is: its raw bytes.
    #[serde(flatten)]
    pub source: FileSource,
}

/// Algorithms that kube-apiserver has itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CipherKind {
    /// AES-CBC.
    Aescbc,
    /// AES-GCM.
    Aesgcm,
    /// XSalsa20 and Poly1305.
    Secretbox,
}

/// What new data is written with; everything else is only read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Writer {
    /// The shim, and behind it the key whose role is write.
    #[default]
    Keys,
    /// The cipher of this name.
    Cipher(String),
    /// Nothing: new data is stored in clear.
    Identity,
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Wraps new data; exactly one key has this role.
    Write,
    /// Unwraps old data.
    Read,
}

/// One key of a KMS.
#[derive(Clone, PartialEq, Serialize)]
pub struct Key {
    /// Its number, never reused.
    pub id: KeyNumber,
    /// Who serves it: the binary `sidekey-<vendor>`, or [`EXTERNAL`] for a plugin of others.
    #[serde(rename = "type")]
    pub vendor: String,
    /// What it is for.
    pub role: Role,
    /// What makes the KEK: a change here is another key.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub kek: Value,
    /// How it is reached.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub settings: Value,
    /// How the provider logs in: paths of `files`.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub credentials: Value,
    /// What lands beside the provider's file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRef>,
    /// What the key must be able to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Value>,
    /// Set only where it is not that of `kek`.
    #[serde(rename = "fingerprint", skip_serializing_if = "Option::is_none")]
    pub given_fingerprint: Option<String>,
    /// The provider's socket.
    pub listen: String,
    /// How the shim reaches it, if not through that socket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// The uids that may serve an external plugin's sockets; the shim's own and root if empty.
    #[serde(rename = "serverUids", skip_serializing_if = "Vec::is_empty")]
    pub server_uids: Vec<u32>,
}

/// A file that pods mount, and where its content comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileRef {
    /// Its name in `/etc/sidekey`.
    pub name: String,
    /// Where its content comes from.
    #[serde(flatten)]
    pub source: FileSource,
}

/// Where content comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FileSource {
    /// A Secret of the control plane's namespace.
    Secret(ObjectKey),
    /// A ConfigMap of the control plane's namespace.
    ConfigMap(ObjectKey),
    /// A file beside the document; for people, not for the operator.
    File(PathBuf),
}

/// One entry of a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ObjectKey {
    /// Name of the object.
    pub name: String,
    /// The key in its data.
    pub key: String,
}

impl Default for Spec {
    /// Nothing is encrypted.
    fn default() -> Self {
        Self {
            control_plane: ControlPlane::default(),
            resources: DEFAULT_RESOURCES.map(str::to_owned).to_vec(),
            stanzas: Vec::new(),
            unread: Vec::new(),
            sockets_apart: false,
            timeout: "5s".to_owned(),
            placement: Placement::default(),
            images: BTreeMap::new(),
            shim: Map::new(),
            shim_files: Vec::new(),
            legacy_key: None,
            adopt: Vec::new(),
            ciphers: Vec::new(),
            write: Writer::Identity,
            convergence: "5m".to_owned(),
            auto_rotation: None,
            tokens: Vec::new(),
            keys: Vec::new(),
        }
    }
}

impl Spec {
    /// Every list of resources, with the provider name of the shim in it.
    pub fn lists(&self) -> Vec<(String, &[String])> {
        let more = self.stanzas.iter();
        let more = more.map(|one| (names::stanza_name(&one.name), one.resources.as_slice()));
        let first = (names::PROVIDER_NAME.to_owned(), self.resources.as_slice());
        [first].into_iter().chain(more).collect()
    }
}

impl SecretEncryption {
    /// Reads YAML or JSON; `Err` lists every mistake in it.
    pub fn parse(text: &str) -> Result<Self, Problems> {
        parse::parse(&sidekey_core::config::document(text)?)
    }

    /// Reads a document; `Err` lists every mistake in it.
    pub fn from_document(document: &Value) -> Result<Self, Problems> {
        parse::parse(document)
    }

    /// The document, with all that was left to defaults.
    pub fn document(&self) -> Value {
        let mut metadata = json!({"name": self.name});
        if let Some(namespace) = &self.namespace {
            metadata["namespace"] = namespace.as_str().into();
        }
        let spec = serde_json::to_value(&self.spec).unwrap_or_default();
        json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
    }

    /// The key that writes; there is one where there are keys.
    pub fn writer(&self) -> Option<&Key> {
        self.spec.keys.iter().find(|key| key.role == Role::Write)
    }

    /// The key of this number.
    pub fn key(&self, id: KeyNumber) -> Option<&Key> {
        self.spec.keys.iter().find(|key| key.id == id)
    }

    /// Every vendor whose provider is ours to run, in order of name.
    pub fn vendors(&self) -> Vec<&str> {
        let ours = self.spec.keys.iter().filter(|key| !key.is_external());
        let mut vendors: Vec<&str> = ours.map(|key| key.vendor.as_str()).collect();
        vendors.sort_unstable();
        vendors.dedup();
        vendors
    }

    /// The token that a vendor's provider logs in with, if one is made for it.
    pub fn token(&self, vendor: &str) -> Option<&Token> {
        self.spec.tokens.iter().find(|token| token.vendor == vendor)
    }

    /// Everything that content is needed of.
    pub fn sources(&self) -> Vec<&FileSource> {
        let spec = &self.spec;
        let files = spec.keys.iter().flat_map(|key| &key.files).chain(&spec.shim_files);
        let ciphers = spec.ciphers.iter().map(|cipher| &cipher.source);
        let mut sources: Vec<&FileSource> = files.map(|file| &file.source).chain(ciphers).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// The image of a sidecar (`shim`, `proxy` or a vendor), or of the command (`sidekey`).
    pub fn image(&self, name: &str) -> String {
        let prefix = if name == "sidekey" { "" } else { "sidekey-" };
        let default = || format!("localhost/{prefix}{name}:{}", crate::VERSION);
        self.spec.images.get(name).cloned().unwrap_or_else(default)
    }
}

impl Key {
    /// As the shim puts it into key_ids.
    pub fn fingerprint(&self) -> String {
        let given = self.given_fingerprint.clone();
        given.unwrap_or_else(|| sidekey_core::fingerprint(&self.kek))
    }

    /// Whether somebody else runs the plugin.
    pub fn is_external(&self) -> bool {
        self.vendor == EXTERNAL
    }

    /// How the shim reaches it.
    ///
    /// What a provider listens on in the one directory of before is in its own one now, wherever
    /// pods are of today's form; in older pods it is where it was, and both places are named until
    /// all pods have sockets `apart`.
    pub fn endpoints(&self, apart: bool) -> Vec<String> {
        let own = names::own_socket(&self.vendor, &self.listen).filter(|_| !self.is_external());
        let Some(own) = own.filter(|own| self.is_local(own)) else {
            let listen = [&self.listen].into_iter().filter(|_| self.endpoints.is_empty());
            return listen.chain(&self.endpoints).cloned().collect();
        };
        let before = Some(self.listen.clone()).filter(|_| !apart);
        [own].into_iter().chain(before).collect()
    }

    /// Whether no endpoint is said to be anywhere but where it listens.
    fn is_local(&self, own: &str) -> bool {
        self.endpoints.iter().all(|endpoint| *endpoint == self.listen || endpoint == own)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let document = serde_json::to_value(self).unwrap_or_default();
        write!(f, "Key({})", sidekey_core::config::redacted(&document))
    }
}

#[cfg(test)]
mod tests;
