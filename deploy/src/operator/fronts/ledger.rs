//! What HyperShift calls the keys that have our numbers: kept on the SecretEncryption, because its
//! status speaks of keys that the HostedCluster has long forgotten.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::render::hosted::Identity;
use crate::rotate::Turn;

/// On a SecretEncryption: this ledger, as JSON.
pub(super) const ANNOTATION_LEDGER: &str = "sidekey.dev/hosted-keys";
/// More than any history shows.
const MOST: usize = 40;

/// Keys by their number, ciphers by their name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ledger(BTreeMap<String, Value>);

impl Ledger {
    /// What is kept on the object; nothing where that cannot be read.
    pub(super) fn of(encryption: Option<&DynamicObject>) -> Self {
        let text = encryption.and_then(|object| object.annotations().get(ANNOTATION_LEDGER));
        Self(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
    }

    /// A key of a KMS.
    pub(super) fn key(&mut self, id: u64, identity: &Identity) {
        let entry = json!({"key": identity.status(""), "fingerprint": identity.fingerprint()});
        self.0.insert(id.to_string(), entry);
    }

    /// A key that kube-apiserver holds itself, with what it is made of.
    pub(super) fn cipher(&mut self, name: &str, secret: &str, content: &[u8]) {
        let hash = |bytes: &[u8]| sidekey_core::hex(&sidekey_core::sha256(bytes));
        let data = hash(content);
        let fingerprint = hash(format!("{secret}/{data}").as_bytes());
        let identity = Identity::Aescbc { secret: secret.to_owned() };
        let entry = json!({"key": identity.status(&data), "fingerprint": fingerprint});
        self.0.insert(name.to_owned(), entry);
    }

    /// As it is kept.
    pub(super) fn annotation(&self) -> Option<String> {
        let mut kept = self.0.clone();
        let mut numbers: Vec<u64> = kept.keys().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        for old in numbers.iter().rev().skip(MOST) {
            kept.remove(&old.to_string());
        }
        if kept.is_empty() {
            return None;
        }
        serde_json::to_string(&kept).ok()
    }

    /// The key as HyperShift's status has it.
    pub(super) fn shown(&self, turn: &Turn) -> Option<Value> {
        self.entry(turn).map(|entry| entry["key"].clone())
    }

    /// The key as HyperShift's history has it.
    pub(super) fn reference(&self, turn: &Turn) -> Option<Value> {
        let entry = self.entry(turn)?;
        let provider = &entry["key"]["provider"];
        Some(json!({"provider": provider, "fingerprint": entry["fingerprint"]}))
    }

    fn entry(&self, turn: &Turn) -> Option<&Value> {
        match turn.id {
            0 => self.0.get(&turn.fingerprint).or_else(|| self.0.get(&turn.vendor)),
            id => self.0.get(&id.to_string()),
        }
    }
}
