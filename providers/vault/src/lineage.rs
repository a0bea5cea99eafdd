//! The identity of a key and of each of its versions.
//!
//! A key_id is `vault/<hash>/<version>`. The hash is over namespace, mount, name, version and the
//! time at which Vault made that version: wherever the cluster is reached the key_id is the same,
//! and a key that was deleted and made anew has others. Each version stands for itself, so that
//! neither trimming nor archiving of old versions changes the key_id of any other.

use std::collections::BTreeMap;

use serde::Deserialize;
use sidekey_core::{Error, KeyId, Kind, hex, sha256};
use sidekey_rest::naming::Version;

use crate::config::Kek;

/// So much of the hash tells any two versions apart.
const HASH: usize = 16;
/// Key types that bind associated data to what they encrypt, and tell when a version was made.
const AEAD: [&str; 4] = ["aes128-gcm96", "aes256-gcm96", "chacha20-poly1305", "xchacha20-poly1305"];

/// What Vault says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    kek: Kek,
    /// The version to write with.
    pub(crate) latest: u32,
    /// The lowest version that may decrypt.
    pub(crate) min_decryption: u32,
    /// The lowest version that may encrypt.
    pub(crate) min_encryption: u32,
    /// Versions that can be used, with the second at which each was made.
    pub(crate) made: BTreeMap<u32, i64>,
    /// Whether Vault would delete the key if it were told to.
    pub(crate) deletion_allowed: bool,
}

/// As Vault writes it.
#[derive(Deserialize)]
pub(crate) struct RawKey {
    name: Option<String>,
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
    deletion_allowed: bool,
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
        if let Some(name) = raw.name.as_ref().filter(|name| **name != kek.key) {
            let text = format!("key {}: the answer is about a key {name:?}", kek.shown());
            return Err(Error::new(Kind::Unavailable, text)
                .with_hint("see whether it is Vault that answers, or a cache in its place"));
        }
        if raw.soft_deleted {
            return refused(
                "it is marked as deleted".into(),
                "restore it (keys/<key>/soft-delete-restore)",
            );
        }
        if !AEAD.contains(&raw.r#type.as_str()) {
            let kind = &raw.r#type;
            let why = format!("a key of type {kind:?} cannot be used with associated data here");
            return refused(why, "make one of type aes256-gcm96 and give it a new key id");
        }
        if raw.derived {
            let why = "a derived key needs a context for each call".into();
            return refused(why, "make a key without derivation and give it a new key id");
        }
        let made: BTreeMap<u32, i64> = raw
            .keys
            .iter()
            .filter_map(|(version, second)| Some((number(version)?, second.as_i64()?)))
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
            deletion_allowed: raw.deletion_allowed,
        })
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

    /// Whether `key_id`, which names `version`, is one of this key, as it is called now or was
    /// called before.
    pub(crate) fn is_own(&self, key_id: &KeyId, version: u32, former: &[Kek]) -> bool {
        let Some(made) = self.made.get(&version) else { return false };
        let mut names = std::iter::once(&self.kek).chain(former);
        names.any(|kek| kek.name(version, *made) == key_id.as_str())
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
        number(&Version::parse("vault", text)?.version).map(Self::Own)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn kek(namespace: &str, mount: &str, key: &str) -> Kek {
        Kek { namespace: namespace.into(), mount: mount.into(), key: key.into() }
    }

    fn lineage(kek: &Kek, made: &[(u32, i64)], min_decryption: u32) -> Lineage {
        let keys: serde_json::Map<String, serde_json::Value> =
            made.iter().map(|(version, made)| (version.to_string(), json!(made))).collect();
        let latest = made.iter().map(|(version, _)| *version).max();
        let raw = json!({"type": "aes256-gcm96", "latest_version": latest, "keys": keys,
            "min_decryption_version": min_decryption});
        Lineage::new(kek, serde_json::from_value(raw).unwrap()).unwrap()
    }

    #[test]
    fn every_part_of_the_identity_changes_the_key_id() {
        let of = |kek: &Kek, made: &[(u32, i64)]| lineage(kek, made, 1).key_id().unwrap();
        let all = [
            of(&kek("", "transit", "kms"), &[(1, 5)]),
            of(&kek("a", "transit", "kms"), &[(1, 5)]),
            of(&kek("", "a/transit", "kms"), &[(1, 5)]),
            of(&kek("", "transit", "kms2"), &[(1, 5)]),
            of(&kek("", "transit", "kms"), &[(1, 6)]),
            of(&kek("", "transit", "kms"), &[(1, 5), (2, 5)]),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().map(KeyId::as_str).collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(all[0].as_str(), "vault/d854b4540604e0e6383b89ef902ba675/1", "for ever");
    }

    #[test]
    fn trimming_and_archiving_old_versions_change_no_key_id() {
        let kek = kek("", "transit", "kms");
        let whole = lineage(&kek, &[(1, 5), (2, 6), (3, 7)], 1);
        let trimmed = lineage(&kek, &[(3, 7)], 3);
        assert_eq!(whole.key_id().unwrap(), trimmed.key_id().unwrap());
        assert!(trimmed.continues(&whole) && whole.continues(&trimmed));
        assert!(whole.is_own(&trimmed.key_id().unwrap(), 3, &[]));
        let later = lineage(&kek, &[(4, 8)], 4);
        assert!(later.continues(&trimmed), "rotated, and everything older shut off");
    }

    #[test]
    fn a_key_made_anew_does_not_continue_the_old_one() {
        let kek = kek("", "transit", "kms");
        let old = lineage(&kek, &[(1, 5), (2, 6)], 1);
        for anew in [&[(1, 9)][..], &[(1, 9), (2, 9)], &[(1, 9), (2, 9), (3, 9)], &[(1, 5), (2, 9)]]
        {
            assert!(!lineage(&kek, anew, 1).continues(&old), "{anew:?}");
        }
        let archived = lineage(&kek, &[(5, 9)], 5);
        assert!(!lineage(&kek, &[(1, 20)], 1).continues(&archived));
        assert!(lineage(&kek, &[(1, 5)], 1).continues(&old), "a replica that lags behind");
    }

    #[test]
    fn keys_that_cannot_be_used_are_refused_with_a_reason() {
        let kek = kek("", "transit", "kms");
        let base = json!({"type": "aes256-gcm96", "latest_version": 1, "keys": {"1": 5}});
        let refuse = |field: &str, value: serde_json::Value, part: &str| {
            let mut raw = base.clone();
            raw[field] = value;
            let error = Lineage::new(&kek, serde_json::from_value(raw).unwrap()).unwrap_err();
            assert_eq!(error.kind(), Kind::KeyState);
            assert!(error.report().contains(part), "{}", error.report());
        };
        refuse("type", json!("rsa-4096"), "associated data");
        refuse("derived", json!(true), "derived");
        refuse("soft_deleted", json!(true), "deleted");
        refuse("keys", json!({"1": {"creation_time": "2026"}}), "version 1");
        refuse("latest_version", json!(2), "version 2");
    }

    #[test]
    fn a_legacy_number_must_be_one_that_this_key_has_had() {
        let lineage =
            lineage(&kek("", "transit", "kms"), &[(2, 1_700_000_000), (3, 1_800_000_000)], 2);
        for number in [1, 2, 3, 1_700_000_000, 1_800_000_000] {
            assert!(lineage.is_legacy(number), "{number}");
        }
        for number in [0, 4, 1_700_000_001, u64::MAX] {
            assert!(!lineage.is_legacy(number), "{number}");
        }
    }

    #[test]
    fn key_ids_and_ciphertexts_are_read_in_one_form_only() {
        let own = format!("vault/{}/12", "0123456789abcdef".repeat(2));
        assert_eq!(Named::read(&KeyId::new(&own).unwrap()), Some(Named::Own(12)));
        assert_eq!(Named::read(&KeyId::new("7").unwrap()), Some(Named::Legacy(7)));
        for text in [
            "0".to_owned(),
            "07".to_owned(),
            "+7".to_owned(),
            "-7".to_owned(),
            "99999999999999999999".to_owned(),
            own.replace("/12", "/012"),
            own.replace("/12", "/0"),
            own.replace("/12", "/99999999999"),
            own.replace("/12", "/"),
            own.replace("abcdef", "ABCDEF"),
            own.replacen('0', "", 1),
            format!("{own}/1"),
            format!("x{own}"),
        ] {
            assert_eq!(Named::read(&KeyId::new(&text).unwrap()), None, "{text}");
        }
        assert_eq!(version_of(b"vault:v3:AAA+/="), Some(3));
        for text in
            ["vault:v0:A", "vault:v3:", "vault:v3", "vault:3:A", "vault:v3:A:A", "vault:v3:A A"]
        {
            assert_eq!(version_of(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_from_etcd_panics(key_id in ".{1,60}", ciphertext in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(key_id) = KeyId::new(&key_id) {
                let _ = Named::read(&key_id);
            }
            let _ = version_of(&ciphertext);
        }

        #[test]
        fn what_is_announced_is_recognised(versions in proptest::collection::btree_map(1u32..500, any::<i64>(), 1..9)) {
            let made: Vec<(u32, i64)> = versions.into_iter().collect();
            let lineage = lineage(&kek("ns", "transit", "kms"), &made, 1);
            let key_id = lineage.key_id().unwrap();
            let latest = lineage.latest;
            prop_assert_eq!(Named::read(&key_id), Some(Named::Own(latest)));
            prop_assert!(lineage.is_own(&key_id, latest, &[]));
            for (version, _) in made.iter().filter(|(version, _)| *version != latest) {
                prop_assert!(!lineage.is_own(&key_id, *version, &[]));
            }
        }
    }
}
