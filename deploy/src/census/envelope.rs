//! What a stored value says of itself: which provider and key it is under. Nothing is decrypted.
//!
//! All of it comes from etcd and may be forged or broken: every length is checked, and what is
//! not exactly as kube-apiserver writes it is unknown, never guessed.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use serde::Serialize;
use sidekey_core::{MAX_ANNOTATIONS, MAX_CIPHERTEXT, MAX_KEY_ID, hex, sha256, split_shim_prefix};

/// How every encrypted value begins.
pub(super) const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Longest name of a provider or key that is believed.
const MAX_NAME: usize = 253;

/// In which way a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Through a KMS v2 plugin.
    KmsV2,
    /// Through a KMS v1 plugin.
    KmsV1,
    /// AES-CBC with a key of EncryptionConfiguration.
    Aescbc,
    /// AES-GCM with a key of EncryptionConfiguration.
    Aesgcm,
    /// XSalsa20-Poly1305 with a key of EncryptionConfiguration.
    Secretbox,
    /// Not encrypted.
    Clear,
    /// It cannot be told.
    Unknown,
}

/// What an object is stored under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Under {
    /// In which way.
    pub kind: Kind,
    /// The name of the KMS provider, or of the key where there is no KMS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The keyID, of what was written through the shim.
    #[serde(rename = "keyID", skip_serializing_if = "Option::is_none")]
    pub key: Option<u64>,
    /// The fingerprint of its KEK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The hash of key_id as kube-apiserver's metrics show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id_hash: Option<String>,
    /// What the KMS has wrapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dek_source: Option<DekSource>,
    /// Why it cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

/// What a KMS v2 plugin has wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DekSource {
    /// The key itself.
    AesGcmKey,
    /// A seed that keys are derived from.
    HkdfSha256Seed,
}

/// `v2.EncryptedObject`: what follows the prefix of KMS v2.
#[derive(Clone, PartialEq, Message)]
struct EncryptedObject {
    #[prost(bytes = "bytes", tag = "1")]
    encrypted_data: Bytes,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(bytes = "bytes", tag = "3")]
    encrypted_dek_source: Bytes,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Bytes>,
    #[prost(int32, tag = "5")]
    encrypted_dek_source_type: i32,
}

impl Kind {
    /// Its name in answers.
    pub fn label(self) -> &'static str {
        match self {
            Self::KmsV2 => "kms-v2",
            Self::KmsV1 => "kms-v1",
            Self::Aescbc => "aescbc",
            Self::Aesgcm => "aesgcm",
            Self::Secretbox => "secretbox",
            Self::Clear => "clear",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it is a KMS that unwraps it.
    pub fn is_kms(self) -> bool {
        matches!(self, Self::KmsV1 | Self::KmsV2)
    }
}

impl Under {
    /// Reads a stored value.
    pub fn of(value: &Bytes) -> Self {
        if let Some(rest) = value.strip_prefix(ENCRYPTED) {
            let at = value.len() - rest.len();
            return encrypted(&value.slice(at..)).unwrap_or_else(Self::unknown);
        }
        // Protobuf, JSON and CBOR, as kube-apiserver writes them.
        let clear = [&b"k8s\0"[..], b"{", b"\xd9\xd9\xf7"];
        match clear.iter().any(|form| value.starts_with(form)) {
            true => Self::new(Kind::Clear),
            false if value.is_empty() => Self::unknown("empty value"),
            false => Self::unknown("neither encrypted nor an object"),
        }
    }

    pub(super) fn unknown(reason: &'static str) -> Self {
        Self { reason: Some(reason), ..Self::new(Kind::Unknown) }
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            provider: None,
            key: None,
            fingerprint: None,
            key_id_hash: None,
            dek_source: None,
            reason: None,
        }
    }

    fn named(kind: Kind, name: &str) -> Self {
        Self { provider: Some(name.to_owned()), ..Self::new(kind) }
    }
}

/// What follows `k8s:enc:`.
fn encrypted(value: &Bytes) -> Result<Under, &'static str> {
    let kinds: [(&[u8], Kind); 5] = [
        (b"kms:v2:", Kind::KmsV2),
        (b"kms:v1:", Kind::KmsV1),
        (b"aescbc:v1:", Kind::Aescbc),
        (b"aesgcm:v1:", Kind::Aesgcm),
        (b"secretbox:v1:", Kind::Secretbox),
    ];
    let found = kinds.iter().find(|(prefix, _)| value.starts_with(prefix));
    let (prefix, kind) = found.ok_or("encrypted in a way that is not known")?;
    let rest = value.slice(prefix.len()..);
    let within = &rest[..rest.len().min(MAX_NAME + 1)];
    let end = within.iter().position(|byte| *byte == b':').ok_or("no provider name")?;
    let name = std::str::from_utf8(&rest[..end]).map_err(|_| "bad provider name")?;
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err("bad provider name");
    }
    let body = rest.slice(end + 1..);
    match kind {
        Kind::KmsV2 => kms_v2(name, body),
        Kind::KmsV1 => kms_v1(name, &body),
        kind if body.is_empty() => Err(match kind {
            Kind::Aescbc => "aescbc without data",
            Kind::Aesgcm => "aesgcm without data",
            _ => "secretbox without data",
        }),
        kind => Ok(Under::named(*kind, name)),
    }
}

/// The checks are kube-apiserver's own, which it makes before it reads an object.
fn kms_v2(name: &str, body: Bytes) -> Result<Under, &'static str> {
    let object = EncryptedObject::decode(body).map_err(|_| "broken KMS v2 envelope")?;
    if object.encrypted_data.is_empty() {
        return Err("KMS v2 envelope without data");
    }
    if object.key_id.is_empty() || object.key_id.len() > MAX_KEY_ID {
        return Err("KMS v2 envelope with a bad key_id");
    }
    let source = object.encrypted_dek_source.len();
    if source == 0 || source > MAX_CIPHERTEXT {
        return Err("KMS v2 envelope with a bad DEK source");
    }
    let annotations = object.annotations.iter().map(|(key, value)| key.len() + value.len());
    if annotations.sum::<usize>() > MAX_ANNOTATIONS {
        return Err("KMS v2 envelope with too large annotations");
    }
    let dek_source = match object.encrypted_dek_source_type {
        0 => DekSource::AesGcmKey,
        1 => DekSource::HkdfSha256Seed,
        _ => return Err("KMS v2 envelope with an unknown DEK source type"),
    };
    let (prefix, _) = split_shim_prefix(&object.key_id);
    Ok(Under {
        key: prefix.map(|prefix| prefix.key),
        fingerprint: prefix.map(|prefix| prefix.fingerprint.to_owned()),
        key_id_hash: Some(format!("sha256:{}", hex(&sha256(object.key_id.as_bytes())))),
        dek_source: Some(dek_source),
        ..Under::named(Kind::KmsV2, name)
    })
}

fn kms_v1(name: &str, body: &[u8]) -> Result<Under, &'static str> {
    let (length, rest) = body.split_at_checked(2).ok_or("broken KMS v1 envelope")?;
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    if length == 0 || rest.len() <= length {
        return Err("broken KMS v1 envelope");
    }
    Ok(Under::named(Kind::KmsV1, name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn of(value: &[u8]) -> Under {
        Under::of(&Bytes::copy_from_slice(value))
    }

    fn object(key_id: &str) -> EncryptedObject {
        EncryptedObject {
            encrypted_data: Bytes::from_static(b"data"),
            key_id: key_id.to_owned(),
            encrypted_dek_source: Bytes::from_static(b"dek"),
            annotations: BTreeMap::from([("a.dev/x".to_owned(), Bytes::from_static(b"val"))]),
            encrypted_dek_source_type: 1,
        }
    }

    fn kms(name: &str, object: &EncryptedObject) -> Vec<u8> {
        let mut value = format!("k8s:enc:kms:v2:{name}:").into_bytes();
        value.extend(object.encode_to_vec());
        value
    }

    #[test]
    fn what_the_shim_wrote_names_provider_key_fingerprint_and_hash() {
        let under = of(&kms("sidekey", &object("sidekey/2-0a1b2c3d/local/x/1")));
        assert_eq!(under.kind, Kind::KmsV2);
        assert_eq!(under.provider.as_deref(), Some("sidekey"));
        assert_eq!((under.key, under.fingerprint.as_deref()), (Some(2), Some("0a1b2c3d")));
        let hash = sidekey_core::KeyId::new("sidekey/2-0a1b2c3d/local/x/1").unwrap().hash();
        assert_eq!(under.key_id_hash, Some(hash));
        assert_eq!(under.dek_source, Some(DekSource::HkdfSha256Seed));
    }

    #[test]
    fn what_another_plugin_wrote_has_no_key_of_ours() {
        let under = of(&kms("aws", &object("arn:aws:kms:x")));
        assert_eq!((under.kind, under.key), (Kind::KmsV2, None));
        assert!(under.key_id_hash.is_some());
    }

    #[test]
    fn the_other_forms_are_told_by_their_prefixes() {
        for (value, kind, name) in [
            (&b"k8s:enc:kms:v1:old:\0\x02ddx"[..], Kind::KmsV1, Some("old")),
            (b"k8s:enc:aescbc:v1:key1:xx", Kind::Aescbc, Some("key1")),
            (b"k8s:enc:aesgcm:v1:key2:xx", Kind::Aesgcm, Some("key2")),
            (b"k8s:enc:secretbox:v1:key3:xx", Kind::Secretbox, Some("key3")),
            (b"k8s\0\x0a", Kind::Clear, None),
            (b"{\"kind\":1}", Kind::Clear, None),
            (b"\xd9\xd9\xf7\xa0", Kind::Clear, None),
        ] {
            let under = of(value);
            assert_eq!((under.kind, under.provider.as_deref()), (kind, name), "{value:?}");
        }
    }

    #[test]
    fn what_is_broken_or_new_is_unknown_and_says_why() {
        let long = [b"k8s:enc:aescbc:v1:".as_slice(), &[b'n'; 300], b":x"].concat();
        let mut bad = vec![
            kms("x", &EncryptedObject { key_id: String::new(), ..object("k") }),
            kms("x", &EncryptedObject { key_id: "k".repeat(1025), ..object("k") }),
            kms("x", &EncryptedObject { encrypted_dek_source_type: 7, ..object("k") }),
            kms("x", &EncryptedObject { encrypted_data: Bytes::new(), ..object("k") }),
            kms("x", &EncryptedObject { encrypted_dek_source: Bytes::new(), ..object("k") }),
            kms(
                "x",
                &EncryptedObject { encrypted_dek_source: vec![0; 1025].into(), ..object("k") },
            ),
            kms("", &object("k")),
            kms("a\nb", &object("k")),
            kms("x", &object("k"))[..30].to_vec(),
            long,
        ];
        for text in [
            &b"k8s:enc:"[..],
            b"k8s:enc:kms:v3:x:y",
            b"k8s:enc:kms:v2:x",
            b"k8s:enc:aescbc:v1:k:",
            b"k8s:enc:aescbc:v2:k:x",
            b"k8s:enc:kms:v1:x:\0\x05ab",
            b"k8s:enc:kms:v1:x:\0",
            b"k8s:enc:kms:v1:x:\0\0ab",
            b"",
            b"rubbish",
            b"k8s",
        ] {
            bad.push(text.to_vec());
        }
        for value in bad {
            let under = of(&value);
            assert_eq!(under.kind, Kind::Unknown, "{:?}", String::from_utf8_lossy(&value));
            assert!(under.reason.is_some());
        }
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(
            prefix in prop::sample::select(vec![
                "", "k8s:enc:", "k8s:enc:kms:v2:", "k8s:enc:kms:v2:sidekey:", "k8s:enc:kms:v1:a:", "k8s:enc:aescbc:v1:",
            ]),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut value = prefix.as_bytes().to_vec();
            value.extend(&rest);
            let under = of(&value);
            prop_assert_eq!(under.kind == Kind::Unknown, under.reason.is_some());
        }

        #[test]
        fn a_flipped_byte_never_moves_an_object_to_another_key_unseen(at in 0_usize..200, bit in 0_u8..8) {
            let good = kms("sidekey", &object("sidekey/2-0a1b2c3d/local/x/1"));
            let mut value = good.clone();
            let at = at % value.len();
            value[at] ^= 1 << bit;
            // Whatever it says now, it is never taken for what it was if its key_id differs.
            let (before, after) = (of(&good), of(&value));
            if after.kind == Kind::KmsV2 && after.key_id_hash != before.key_id_hash {
                prop_assert!(after != before);
            }
        }
    }
}
