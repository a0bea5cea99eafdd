//! kube-apiserver's EncryptionConfiguration: made here, and read back from wherever it is live.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_core::config::Problems;

use super::{Phase, ResolvedFiles};
use crate::Error;
use crate::model::{Cipher, SecretEncryption, Writer, names, resources};

/// One entry of a stanza's `providers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provider {
    /// A KMS plugin.
    Kms {
        /// The name that stored data carries.
        name: String,
        /// Where kube-apiserver connects.
        endpoint: String,
        /// `v1` or `v2`.
        version: String,
        /// How long it waits.
        timeout: String,
    },
    /// Keys that kube-apiserver holds itself.
    Cipher {
        /// `aescbc`, `aesgcm` or `secretbox`.
        kind: String,
        /// Each key's name, and the hash of it.
        keys: Vec<(String, String)>,
    },
    /// In clear.
    Identity,
}

/// One stanza: resources, and what they are read and written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StanzaView {
    /// Resources.
    pub resources: Vec<String>,
    /// The first writes, all read.
    pub providers: Vec<Provider>,
}

impl Provider {
    /// What data of it is told by, one for each key: `sidekey`, `aescbc/key1`, `identity`.
    pub fn labels(&self) -> Vec<String> {
        match self {
            Self::Kms { name, .. } => vec![name.clone()],
            Self::Cipher { kind, keys } => {
                keys.iter().map(|(name, _)| format!("{kind}/{name}")).collect()
            }
            Self::Identity => vec!["identity".to_owned()],
        }
    }
}

/// The whole document.
pub fn document(stanzas: Vec<Value>) -> Value {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "EncryptionConfiguration",
        "resources": stanzas,
    })
}

/// A KMS v2 provider.
pub fn kms(name: &str, endpoint: &str, timeout: &str) -> Value {
    json!({"kms": {"apiVersion": "v2", "name": name, "endpoint": endpoint, "timeout": timeout}})
}

/// What `encryption` comes to.
pub(super) fn configuration(
    encryption: &SecretEncryption,
    files: &ResolvedFiles,
    phase: Phase,
) -> Result<Value, Error> {
    let spec = &encryption.spec;
    let writer = match phase {
        Phase::Settled => &spec.write,
        Phase::IdentityFirst => &Writer::Identity,
    };
    let unread = |name: &&String| *writer != Writer::Identity && spec.unread.contains(name);
    let (mut list, mut clear) = (Vec::new(), Vec::new());
    for (name, resources) in spec.lists() {
        let new: Vec<&String> = resources.iter().filter(unread).collect();
        let writer = match new.len() == resources.len() {
            true => &Writer::Identity,
            false => {
                clear.extend(new);
                writer
            }
        };
        let providers = stanza_providers(&name, encryption, files, writer)?;
        list.push(json!({"resources": resources, "providers": providers}));
    }
    if !clear.is_empty() {
        // kube-apiserver adds up what stanzas have for one resource, and the first of all writes.
        list.insert(0, json!({"resources": clear, "providers": [{"identity": {}}]}));
    }
    accepted(document(list), &encryption.name)
}

/// The writer first; the others keep their order, with identity at the end.
fn stanza_providers(
    name: &str,
    encryption: &SecretEncryption,
    files: &ResolvedFiles,
    writer: &Writer,
) -> Result<Vec<Value>, Error> {
    let spec = &encryption.spec;
    let mut providers: Vec<(Writer, Value)> = Vec::new();
    if !spec.keys.is_empty() {
        providers.push((Writer::Keys, kms(name, names::SHIM_SOCKET, &spec.timeout)));
    }
    for adoption in &spec.adopt {
        let endpoint = adoption.listen.as_deref().unwrap_or(names::SHIM_SOCKET);
        let old = Writer::Cipher(adoption.name.clone());
        providers.push((old, kms(&adoption.name, endpoint, &spec.timeout)));
    }
    for cipher in &spec.ciphers {
        let writer = Writer::Cipher(cipher.name.clone());
        providers.push((writer, cipher_provider(cipher, files)?));
    }
    providers.push((Writer::Identity, json!({"identity": {}})));
    providers.sort_by_key(|(who, _)| who != writer);
    Ok(providers.into_iter().map(|(_, value)| value).collect())
}

/// The document, if kube-apiserver takes it: running ones would keep what they have, and those that
/// start would not come up.
pub(super) fn accepted(document: Value, name: &str) -> Result<Value, Error> {
    let mut wrong = Vec::new();
    let (mut before, mut kms) = (Vec::new(), BTreeSet::new());
    for stanza in document["resources"].as_array().into_iter().flatten() {
        let mut list: Vec<String> = Vec::new();
        let names = stanza["resources"].as_array().into_iter().flatten();
        for name in names.filter_map(Value::as_str) {
            wrong.extend(resources::problem(name));
            wrong.extend(resources::clash(name, &list, &before));
            list.push(name.to_owned());
        }
        before.extend(list);
        let providers = stanza["providers"].as_array().into_iter().flatten();
        for name in providers.filter_map(|provider| provider["kms"]["name"].as_str()) {
            if !kms.insert(name.to_owned()) {
                wrong.push(format!("two KMS providers have the name {name:?}"));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(document);
    }
    let what = format!("kube-apiserver would refuse the EncryptionConfiguration of {name}");
    Err(Error::usage(format!("{what}: {}", wrong.join("; ")))
        .hint("change resources, stanzas or adopt: what is published stays until then"))
}

fn cipher_provider(cipher: &Cipher, files: &ResolvedFiles) -> Result<Value, Error> {
    let content = files.content(&cipher.source);
    let kind = cipher.kind.label();
    let fits = match kind {
        "secretbox" => content.expose().len() == 32,
        _ => [16, 24, 32].contains(&content.expose().len()),
    };
    if !fits {
        return Err(Error::usage(format!(
            "the key of cipher {} in {} has {} bytes",
            cipher.name,
            cipher.source,
            content.expose().len()
        ))
        .hint(format!("{kind} takes raw keys of 32 bytes (AES also of 16 or 24), not base64")));
    }
    let secret = STANDARD.encode(content.expose());
    Ok(json!({kind: {"keys": [{"name": cipher.name, "secret": secret}]}}))
}

/// Reads a document as kube-apiserver would, with every mistake that matters here.
pub fn view(document: &Value) -> Result<Vec<StanzaView>, Problems> {
    let mut problems = Problems::default();
    if document["kind"].as_str() != Some("EncryptionConfiguration") {
        return Err(Problems::one("kind", "is not EncryptionConfiguration"));
    }
    let mut stanzas = Vec::new();
    for (index, stanza) in document["resources"].as_array().into_iter().flatten().enumerate() {
        problems.within(&format!("resources[{index}]"), |problems| {
            let names = stanza["resources"].as_array().into_iter().flatten();
            let resources = names.filter_map(Value::as_str).map(str::to_owned).collect();
            let mut providers = Vec::new();
            let list = stanza["providers"].as_array().into_iter().flatten();
            for (index, provider) in list.enumerate() {
                match read_provider(provider) {
                    Some(provider) => providers.push(provider),
                    None => problems.add(&format!("providers[{index}]"), "is of no known kind"),
                }
            }
            stanzas.push(StanzaView { resources, providers });
        });
    }
    problems.into_result(Some(stanzas))
}

fn read_provider(value: &Value) -> Option<Provider> {
    let (kind, body) = value.as_object()?.iter().next()?;
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    Some(match kind.as_str() {
        "identity" => Provider::Identity,
        "kms" => Provider::Kms {
            name: text("name"),
            endpoint: text("endpoint"),
            version: text("apiVersion"),
            timeout: text("timeout"),
        },
        "aescbc" | "aesgcm" | "secretbox" => {
            let keys = body["keys"].as_array().into_iter().flatten().map(|key| {
                let secret = key["secret"].as_str().unwrap_or_default();
                let hash = sidekey_core::hex(&sidekey_core::sha256(secret.as_bytes()));
                (key["name"].as_str().unwrap_or_default().to_owned(), hash)
            });
            Provider::Cipher { kind: kind.clone(), keys: keys.collect() }
        }
        _ => return None,
    })
}

/// What a resource is read with, the writer first; none if no stanza has it. As kube-apiserver looks
/// it up: its own name goes before `*.group`, that before `*.*`, and stanzas with the same name add
/// up.
pub fn providers<'a>(stanzas: &'a [StanzaView], resource: &str) -> Option<Vec<&'a Provider>> {
    let fit = |stanza: &StanzaView| {
        stanza.resources.iter().filter_map(|name| resources::fit(name, resource)).max()
    };
    let best = stanzas.iter().filter_map(fit).max()?;
    let named = stanzas.iter().filter(|stanza| fit(stanza) == Some(best));
    Some(named.flat_map(|stanza| &stanza.providers).collect())
}
