//! The identity of a key and of each of its versions.
//!
//! A key_id is `vault/<hash>/<version>`. The hash is over namespace, mount, name, version and the
//! time at which Vault made that version: wherever the cluster is reached the key_id is the same,
//! and a key that was deleted and made anew has others. Each version stands for itself, so that
//! neither trimming nor archiving of old versions changes the key_id of any other.

use std::collections::BTreeMap;

use serde::Deserialize;
use sidekey_core::{Error, KeyId, Kind, hex, sha256};

use crate::config::Kek;

/// So much of the hash tells any two versions apart.
const HASH: usize = 16;
/// Key types that bind associated data to what they encrypt.
const AEAD: [&str; 5] =
    ["aes128-gcm96", "aes256-gcm96", "chacha20-poly1305", "xchacha20-poly1305", "managed_key"];

/// What Vault says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    kek: Kek,
    latest: u32,
    min_decryption: u32,
    min_encryption: u32,
    /// Versions that can be used, with the second at which each was made.
    made: BTreeMap<u32, i64>,
}

/// As Vault writes it.
#[derive(Deserialize)]
pub(crate) struct RawKey {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    derived: bool,
    #[serde(default)]
    soft_deleted: bool,
    latest_version: u32,
    #[serde(default)]
    min_decryption_version: u32,
    #[serde(default)]
    min_encryption_version: u32,
    #[serde(default)]
    keys: BTreeMap<String, serde_json::Value>,
}

/// What a key_id from etcd says; it may be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// One of ours.
    Own(u32),
    /// The number that vault-kubernetes-kms wrote: a version, or in its first releases the second
    /// at which the version was made.
    Legacy(u64),
}

impl Kek {
    fn name(&self, version: u32, made: i64) -> String {
        let Self { namespace, mount, key } = self;
        let text = format!("sidekey-vault/1\0{namespace}\0{mount}\0{key}\0{version}\0{made}");
        format!("vault/{}/{version}", hex(&sha256(text.as_bytes())[..HASH]))
    }

    /// For people.
    pub(crate) fn shown(&self) -> String {
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        format!("{}{slash}{}/keys/{}", self.namespace, self.mount, self.key)
    }
}

impl Lineage {
    /// Refuses what cannot be used, and says why.
    pub(crate) fn new(kek: &Kek, raw: RawKey) -> Result<Self, Error> {
        let refused = |why: String, hint: &str| {
            let text = format!("key {}: {why}", kek.shown());
            Err(Error::new(Kind::KeyState, text).with_hint(hint.to_owned()))
        };
        if raw.soft_deleted {
            return refused(
                "it is marked as deleted".into(),
                "restore it (keys/<key>/soft-delete-restore)",
            );
        }
        if !AEAD.contains(&raw.r#type.as_str()) {
            let why = format!("a key of type {:?} cannot bind associated data", raw.r#type);
            return refused(why, "make one of type aes256-gcm96 and give it a new key id");
        }
        if raw.derived {
            let why = "a derived key needs a context for each call".into();
            return refused(why, "make a key without derivation and give it a new key id");
        }
        let made: BTreeMap<u32, i64> = raw
            .keys
            .iter()
            .filter_map(|(version, value)| Some((number(version)?, second(value)?)))
            .collect();
        if !made.contains_key(&raw.latest_version) {
            let why = format!("Vault does not say when version {} was made", raw.latest_version);
            return refused(why, "report this, with the version of the server");
        }
        Ok(Self {
            kek: kek.clone(),
            latest: raw.latest_version,
            min_decryption: raw.min_decryption_version,
            min_encryption: raw.min_encryption_version,
            made,
        })
    }

    /// The version to write with.
    pub(crate) fn latest(&self) -> u32 {
        self.latest
    }

    /// The lowest version that may encrypt.
    pub(crate) fn min_encryption(&self) -> u32 {
        self.min_encryption
    }

    /// The lowest version that may decrypt.
    pub(crate) fn min_decryption(&self) -> u32 {
        self.min_decryption
    }

    /// The key_id of the version to write with.
    pub(crate) fn key_id(&self) -> Result<KeyId, Error> {
        let made = self.made.get(&self.latest).copied().unwrap_or_default();
        KeyId::new(&self.kek.name(self.latest, made))
    }

    /// Whether `version` can be used, as far as is known.
    pub(crate) fn knows(&self, version: u32) -> bool {
        self.made.contains_key(&version)
    }

    /// Whether `key_id`, which names `version`, is one of this key.
    pub(crate) fn is_own(&self, key_id: &KeyId, version: u32) -> bool {
        let made = self.made.get(&version);
        made.is_some_and(|made| self.kek.name(version, *made) == key_id.as_str())
    }

    /// Whether the number that vault-kubernetes-kms wrote beside a ciphertext of `version` is the
    /// right one.
    pub(crate) fn is_legacy(&self, number: u64, version: u32) -> bool {
        let made = self.made.get(&version).and_then(|made| u64::try_from(*made).ok());
        number == u64::from(version) || made == Some(number)
    }

    /// Whether this is the same key as `old`, perhaps rotated: a version is made only once.
    pub(crate) fn continues(&self, old: &Self) -> bool {
        let shared = self
            .made
            .iter()
            .filter_map(|(version, made)| old.made.get(version).map(|before| before == made));
        let shared: Vec<bool> = shared.collect();
        // With nothing in common the old versions were archived, which needs newer ones.
        let grown = self.latest >= old.latest;
        shared.iter().all(|same| *same) && (!shared.is_empty() || grown)
    }
}

impl Named {
    /// Reads a key_id; `None` for one that nobody here has written.
    pub(crate) fn read(key_id: &KeyId) -> Option<Self> {
        let text = key_id.as_str();
        if let Some(number) = canonical(text) {
            return Some(Self::Legacy(number));
        }
        let (hash, version) = text.strip_prefix("vault/")?.split_once('/')?;
        let sound = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if hash.len() != 2 * HASH || !hash.bytes().all(sound) {
            return None;
        }
        number(version).map(Self::Own)
    }
}

/// The version in `vault:v<version>:…`, the form of every ciphertext of transit.
pub(crate) fn version_of(ciphertext: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(ciphertext).ok()?;
    let (version, data) = text.strip_prefix("vault:v")?.split_once(':')?;
    let base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
    if data.is_empty() || !data.bytes().all(base64) {
        return None;
    }
    number(version)
}

/// A version as Vault writes it: 1, 2, 3 …
fn number(text: &str) -> Option<u32> {
    canonical(text).and_then(|number| u32::try_from(number).ok())
}

fn canonical(text: &str) -> Option<u64> {
    let digits = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// When a version was made, in seconds, or nothing if it is written in another way.
fn second(value: &serde_json::Value) -> Option<i64> {
    value.as_i64()
}
