//! Data from before: what the cluster's own operator encrypted, and under which names.
//!
//! Its EncryptionConfiguration says so. Every name in it must stay readable, so each is given the
//! key that wrote it; a name that no key is known for is said, and nothing goes on.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sidekey_core::Secret;
use sidekey_core::config::document;

use super::{Failure, Fault};
use crate::model::{Adoption, AzureKey, CipherKind, Key, names};
use crate::render::{encryption, hashes};

/// The vendor whose plugin keeps the form of its data to itself.
const UNREADABLE: &str = "ibmcloud";

/// What stored data needs.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Names of KMS providers, and the keys that wrote under them.
    pub(super) adopt: Vec<Adoption>,
    /// Keys that kube-apiserver held itself.
    pub(super) ciphers: Vec<(String, CipherKind, Secret)>,
    /// What was encrypted.
    pub(super) resources: Vec<String>,
}

/// Reads an EncryptionConfiguration that is live; `title` says whose. `ours` are the vendors whose data
/// our own programs wrote, where that of the replaced ones cannot be read.
pub(super) fn past(
    title: &str,
    text: &[u8],
    keys: &[Key],
    ours: impl Fn(&str) -> bool,
) -> Result<Past, Failure> {
    let unreadable = |why: String| {
        let text = format!("{title} cannot be read, so nobody knows what is stored: {why}");
        Failure::fault(Fault::UNKNOWN_NAME, text)
    };
    let text = std::str::from_utf8(text).map_err(|error| unreadable(error.to_string()))?;
    let config = document(text).map_err(|wrong| unreadable(wrong.to_string()))?;
    let stanzas = encryption::view(&config).map_err(|wrong| unreadable(wrong.to_string()))?;
    let mut past = Past::default();
    let mut unknown = Vec::new();
    for stanza in stanzas {
        past.resources.extend(stanza.resources);
        for provider in stanza.providers {
            let encryption::Provider::Kms { name, version, .. } = provider else { continue };
            if past.adopt.iter().any(|adoption| adoption.name == name) {
                continue;
            }
            let found = writer(&name, &version, keys).and_then(|key| readable(key, &ours));
            match found {
                Ok(key) => past.adopt.push(Adoption {
                    listen: Some(format!("unix://{}/adopt-{name}.sock", names::SOCKETS)),
                    key: key.id,
                    name,
                }),
                Err(why) => unknown.push(format!("{name}: {why}")),
            }
        }
    }
    if !unknown.is_empty() {
        let text = format!(
            "data is stored under names of {title} that no key is known for\n{}",
            unknown.join("\n")
        );
        return Err(Failure::fault(Fault::UNKNOWN_NAME, text));
    }
    past.ciphers = ciphers(&config).map_err(unreadable)?;
    past.resources.dedup();
    Ok(past)
}

/// The key that HyperShift wrote with under this name.
fn writer<'a>(name: &str, version: &str, keys: &'a [Key]) -> Result<&'a Key, &'static str> {
    if version == "v1" {
        return Err("it is of KMS v1, which is not served: have it rewritten as v2 before");
    }
    let mut same = keys.iter().filter(|key| native_name(key).as_deref() == Some(name));
    match (same.next(), same.next()) {
        (Some(key), None) => Ok(key),
        (Some(key), Some(_)) if key.vendor == UNREADABLE => Err(
            "several keys wrote under it, and one of them can be adopted: have everything rewritten under the newest \
             while the present plugin serves all of them, and then leave that one in the spec",
        ),
        (Some(_), Some(_)) => Err("several keys write under it: leave one of them in the spec"),
        _ => Err("name its key as backupKey, so that it stays readable"),
    }
}

/// Our provider reads what the replaced plugin of its vendor wrote, but for one vendor's.
fn readable(key: &Key, ours: impl Fn(&str) -> bool) -> Result<&Key, &'static str> {
    if key.vendor != UNREADABLE || ours(&key.vendor) {
        return Ok(key);
    }
    Err(
        "IBM's own plugin reads what it wrote, and no other program does: keep it behind the shim as a \
         key of type external, in a SecretEncryption that you write, until nothing is stored under \
         it; if it was sidekey-ibmcloud that ran there, write vendors: {ibmcloud: {ownData: true}} into \
         the annotation sidekey.dev/settings",
    )
}

/// The name that HyperShift gives the provider of a key.
fn native_name(key: &Key) -> Option<String> {
    let text = |name: &str| key.kek[name].as_str();
    match key.vendor.as_str() {
        "aws" => text("key").map(hashes::aws_provider),
        "azure" => AzureKey::of(&key.kek).map(|key| hashes::azure_provider(&key)),
        "ibmcloud" => Some("ibmv2".to_owned()),
        _ => None,
    }
}

fn ciphers(config: &Value) -> Result<Vec<(String, CipherKind, Secret)>, String> {
    let mut found: Vec<(String, CipherKind, Secret)> = Vec::new();
    let stanzas = config["resources"].as_array().into_iter().flatten();
    let providers = stanzas.flat_map(|stanza| stanza["providers"].as_array().into_iter().flatten());
    for provider in providers {
        for kind in [CipherKind::Aescbc, CipherKind::Aesgcm, CipherKind::Secretbox] {
            for key in provider[kind.label()]["keys"].as_array().into_iter().flatten() {
                let name = key["name"].as_str().unwrap_or_default().to_owned();
                let secret = key["secret"].as_str().unwrap_or_default();
                let Ok(content) = STANDARD.decode(secret) else {
                    return Err(format!("the secret of {} key {name} is no base64", kind.label()));
                };
                match found.iter().find(|(other, ..)| *other == name) {
                    None => found.push((name, kind, Secret::new(content))),
                    Some((_, _, same)) if same.expose() == content => {}
                    Some(_) => return Err(format!("two keys have the name {name}")),
                }
            }
        }
    }
    Ok(found)
}
