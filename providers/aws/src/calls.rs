//! What is said in the calls that are made, and what is answered.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use sidekey_core::Secret;
use zeroize::{Zeroize, Zeroizing};

/// More than the names of fields take.
const ROOM: usize = 192;
/// Quotes, colon and comma of an entry.
const MARKS: usize = 6;

/// What DescribeKey tells.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Metadata {
    pub(crate) arn: Option<String>,
    pub(crate) key_spec: Option<String>,
    pub(crate) key_usage: Option<String>,
    pub(crate) key_state: Option<String>,
    /// Seconds since 1970.
    pub(crate) deletion_date: Option<f64>,
    pub(crate) current_key_material_id: Option<String>,
}

/// What Encrypt answers.
pub(crate) struct Encrypted {
    pub(crate) key: Option<String>,
    pub(crate) blob: Vec<u8>,
}

/// What Decrypt answers.
pub(crate) struct Decrypted {
    pub(crate) key: Option<String>,
    pub(crate) plaintext: Secret,
    pub(crate) material: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plaintext: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ciphertext_blob: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    encryption_context: &'a BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer<'a> {
    key_metadata: Option<Metadata>,
    key_id: Option<String>,
    #[serde(borrow)]
    ciphertext_blob: Option<Text<'a>>,
    #[serde(borrow)]
    plaintext: Option<Text<'a>>,
    key_material_id: Option<String>,
}

/// A text where it stands or, if something in it is escaped (some write `\/` for `/`), a copy of
/// it, which is wiped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Text<'_> {
    fn decoded(&self) -> Option<Vec<u8>> {
        STANDARD.decode(self.0.as_bytes()).ok()
    }
}

impl Drop for Text<'_> {
    fn drop(&mut self) {
        if let Cow::Owned(text) = &mut self.0 {
            text.zeroize();
        }
    }
}

/// What GetKeyRotationStatus tells.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RotationStatus {
    #[serde(default)]
    on_demand_rotation_start_date: Option<IgnoredAny>,
}

/// The body of DescribeKey, and of every call that names a key and nothing else.
pub(crate) fn describe(key: &str) -> Option<Secret> {
    let none = BTreeMap::new();
    write(&Request {
        key_id: Some(key),
        plaintext: None,
        ciphertext_blob: None,
        encryption_context: &none,
    })
}

/// The body of Encrypt.
pub(crate) fn encrypt(
    key: &str,
    plaintext: &[u8],
    context: &BTreeMap<String, String>,
) -> Option<Secret> {
    let plaintext = Zeroizing::new(STANDARD.encode(plaintext));
    write(&Request {
        key_id: Some(key),
        plaintext: Some(&plaintext),
        ciphertext_blob: None,
        encryption_context: context,
    })
}

/// The body of Decrypt.
pub(crate) fn decrypt(
    key: Option<&str>,
    blob: &[u8],
    context: &BTreeMap<String, String>,
) -> Option<Secret> {
    write(&Request {
        key_id: key,
        plaintext: None,
        ciphertext_blob: Some(&STANDARD.encode(blob)),
        encryption_context: context,
    })
}

/// Reads the answer to DescribeKey.
pub(crate) fn described(body: &[u8]) -> Option<Metadata> {
    read(body)?.key_metadata
}

/// Reads the answer to Encrypt.
pub(crate) fn encrypted(body: &[u8]) -> Option<Encrypted> {
    let answer = read(body)?;
    let blob = answer.ciphertext_blob?.decoded().filter(|blob| !blob.is_empty())?;
    Some(Encrypted { key: answer.key_id, blob })
}

/// Reads the answer to Decrypt.
pub(crate) fn decrypted(body: &[u8]) -> Option<Decrypted> {
    let answer = read(body)?;
    let plaintext = Secret::new(answer.plaintext?.decoded()?);
    Some(Decrypted { key: answer.key_id, plaintext, material: answer.key_material_id })
}

/// Reads the answer to GetKeyRotationStatus: whether a rotation on demand is under way.
pub(crate) fn is_rotating(body: &[u8]) -> Option<bool> {
    let status: RotationStatus = serde_json::from_slice(body).ok()?;
    Some(status.on_demand_rotation_start_date.is_some())
}

/// Room for all of it from the start: a buffer that grows leaves copies behind.
fn write(request: &Request<'_>) -> Option<Secret> {
    let context = request.encryption_context.iter();
    let context: usize = context.map(|(name, value)| name.len() + value.len() + MARKS).sum();
    let text = request.plaintext.map_or(0, str::len) + request.ciphertext_blob.map_or(0, str::len);
    let key = request.key_id.map_or(0, str::len);
    let mut body = Vec::with_capacity(ROOM + key + text + context * 2);
    serde_json::to_writer(&mut body, request).ok()?;
    Some(Secret::new(body))
}

fn read(body: &[u8]) -> Option<Answer<'_>> {
    serde_json::from_slice(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_kms_takes() {
        let context = BTreeMap::from([("a".to_owned(), "b\"c".to_owned())]);
        let text = |body: Option<Secret>| String::from_utf8(body.unwrap().expose().to_vec());
        let expected = r#"{"KeyId":"k","Plaintext":"c2VlZA==","EncryptionContext":{"a":"b\"c"}}"#;
        assert_eq!(text(encrypt("k", b"seed", &context)).as_deref(), Ok(expected));
        let expected = r#"{"CiphertextBlob":"c2VlZA=="}"#;
        assert_eq!(text(decrypt(None, b"seed", &BTreeMap::new())).as_deref(), Ok(expected));
        assert_eq!(text(describe("alias/x")).as_deref(), Ok(r#"{"KeyId":"alias/x"}"#));
    }

    #[test]
    fn an_answer_that_lacks_what_counts_is_none() {
        for body in ["", "{}", "[]", "<html>", r#"{"Plaintext":7}"#, r#"{"Plaintext":"?"}"#] {
            assert!(decrypted(body.as_bytes()).is_none(), "{body}");
            assert!(encrypted(body.as_bytes()).is_none(), "{body}");
        }
        let body = br#"{"KeyId":"k","Plaintext":"c2VlZA==","KeyMaterialId":"m","New":{"x":[1]}}"#;
        let answer = decrypted(body).unwrap();
        assert_eq!(answer.plaintext.expose(), b"seed");
        assert_eq!(answer.material.as_deref(), Some("m"));
        let escaped = br#"{"Plaintext":"\/\u002f8=","CiphertextBlob":"\/\/8="}"#;
        assert_eq!(decrypted(escaped).unwrap().plaintext.expose(), [0xff, 0xff]);
        assert_eq!(encrypted(escaped).unwrap().blob, [0xff, 0xff]);
    }
}
