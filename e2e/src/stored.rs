//! What kube-apiserver has stored: plain, or wrapped by which key of whom.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use aws_lc_rs::digest;
use bytes::Bytes;
use prost::Message;

/// How an object that was encrypted through KMS v2 begins.
pub const KMS_V2: &[u8] = b"k8s:enc:kms:v2:";

/// An object that was encrypted through KMS v2.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The provider's name in EncryptionConfiguration.
    pub provider: String,
    /// What follows the prefix.
    pub object: EncryptedObject,
}

impl Stored {
    /// Takes a value from etcd apart; a plain one is an error.
    pub fn parse(value: &[u8]) -> Result<Self> {
        let Some(rest) = value.strip_prefix(KMS_V2) else {
            let begin = String::from_utf8_lossy(&value[..value.len().min(24)]).into_owned();
            bail!("not encrypted through KMS v2: the value begins {begin:?}");
        };
        let colon = rest.iter().position(|byte| *byte == b':').context("no provider name")?;
        let provider = std::str::from_utf8(&rest[..colon]).context("provider name")?.to_owned();
        let object = EncryptedObject::decode(&rest[colon + 1..]).context("EncryptedObject")?;
        Ok(Self { provider, object })
    }

    /// The hash of its key_id as kube-apiserver's metrics show it.
    pub fn key_id_hash(&self) -> String {
        key_id_hash(&self.object.key_id)
    }
}

/// kube-apiserver's own form: `sha256:<hex>`.
pub fn key_id_hash(key_id: &str) -> String {
    let hash = digest::digest(&digest::SHA256, key_id.as_bytes());
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The message behind the prefix.
#[derive(Clone, PartialEq, Message)]
pub struct EncryptedObject {
    /// The object, encrypted with the DEK.
    #[prost(bytes = "bytes", tag = "1")]
    pub encrypted_data: Bytes,
    /// The plugin's key_id that wrapped the DEK source.
    #[prost(string, tag = "2")]
    pub key_id: String,
    /// What the plugin answered to Encrypt.
    #[prost(bytes = "bytes", tag = "3")]
    pub encrypted_dek_source: Bytes,
    /// The plugin's annotations.
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Bytes>,
    /// 0: an AES-GCM key; 1: a seed for HKDF-SHA256.
    #[prost(int32, tag = "5")]
    pub encrypted_dek_source_type: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_object_is_taken_apart() {
        // Field by field as the wire contract numbers them.
        let mut value = b"k8s:enc:kms:v2:sidekey:".to_vec();
        value.extend(b"\x0a\x04data\x12\x05key-1\x1a\x03dek");
        value.extend(b"\x22\x0e\x0a\x07a.dev/x\x12\x03val\x28\x01");
        let stored = Stored::parse(&value).unwrap();
        assert_eq!(stored.provider, "sidekey");
        assert_eq!(stored.object.encrypted_data, "data");
        assert_eq!(stored.object.key_id, "key-1");
        assert_eq!(stored.object.encrypted_dek_source, "dek");
        assert_eq!(stored.object.annotations["a.dev/x"], "val");
        assert_eq!(stored.object.encrypted_dek_source_type, 1);
    }

    #[test]
    fn plain_and_foreign_values_are_refused() {
        for value in [&b"k8s\0\x0a"[..], b"{}", b"", b"k8s:enc:aescbc:v1:a:x", b"k8s:enc:kms:v2:x"]
        {
            Stored::parse(value).unwrap_err();
        }
    }

    #[test]
    fn a_key_id_is_hashed_as_kube_apiserver_does() {
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(key_id_hash("abc"), abc);
    }
}
