//! The fake of AWS KMS.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use serde::{Deserialize, Serialize};

use super::{Answer, DECRYPT, ENCRYPT};

/// The keys that it has.
pub const KEYS: [&str; 2] = [
    "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    "arn:aws:kms:us-east-1:111122223333:key/2345bcde-23bc-45de-67fa-2345678901bc",
];

/// The key material of each.
const MATERIALS: [&str; 2] = [
    "96083e4fb6dbc41d77578a213a6b6669c044dd4c143e96755396d2bf11fd6068",
    "a6083e4fb6dbc41d77578a213a6b6669c044dd4c143e96755396d2bf11fd6069",
];

/// Where the operation stands.
const TARGET: &str = "x-amz-target";

/// How a ciphertext begins. The header is as long as that of AWS, so that messages are too.
const MAGIC: &[u8] = b"fake ciphertext of a benchmark, key ";
const HEADER: usize = 152;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Asked<'a> {
    key_id: Option<&'a str>,
    plaintext: Option<&'a str>,
    ciphertext_blob: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Described<'a> {
    key_metadata: Metadata<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Metadata<'a> {
    arn: &'a str,
    key_id: &'a str,
    enabled: bool,
    key_state: &'a str,
    key_spec: &'a str,
    key_usage: &'a str,
    current_key_material_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Encrypted<'a> {
    ciphertext_blob: String,
    encryption_algorithm: &'a str,
    key_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Decrypted<'a> {
    encryption_algorithm: &'a str,
    key_id: &'a str,
    key_material_id: &'a str,
    plaintext: String,
}

#[derive(Serialize)]
struct Refusal<'a> {
    #[serde(rename = "__type")]
    kind: &'a str,
    message: &'a str,
}

const ALGORITHM: &str = "SYMMETRIC_DEFAULT";

pub(super) fn answer(head: &Parts, body: &[u8]) -> Answer {
    match known(head, body) {
        Ok(answer) => answer,
        Err((kind, message)) => {
            Answer::refused(StatusCode::BAD_REQUEST, &Refusal { kind, message })
        }
    }
}

fn known(head: &Parts, body: &[u8]) -> Result<Answer, (&'static str, &'static str)> {
    let header = |name: &str| head.headers.get(name)?.to_str().ok();
    if !header(AUTHORIZATION.as_str()).is_some_and(|text| text.starts_with("AWS4-HMAC-SHA256 ")) {
        return Err(("MissingAuthenticationTokenException", "the request is not signed"));
    }
    let invalid = ("SerializationException", "the body is not what was expected");
    let asked: Asked<'_> = serde_json::from_slice(body).map_err(|_| invalid)?;
    match header(TARGET).and_then(|target| target.strip_prefix("TrentService.")) {
        Some("DescribeKey") => describe(find(asked.key_id)?),
        Some(ENCRYPT) => encrypt(find(asked.key_id)?, asked.plaintext.ok_or(invalid)?),
        Some(DECRYPT) => decrypt(asked.key_id, asked.ciphertext_blob.ok_or(invalid)?),
        _ => Err(("UnknownOperationException", "the fake knows DescribeKey, Encrypt and Decrypt")),
    }
}

fn find(name: Option<&str>) -> Result<usize, (&'static str, &'static str)> {
    let known = |arn: &&str| name == Some(arn) || name == Some(id(arn));
    KEYS.iter().position(known).ok_or(("NotFoundException", "the fake has no such key"))
}

/// The last part of an ARN.
fn id(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap_or_default()
}

fn describe(key: usize) -> Result<Answer, (&'static str, &'static str)> {
    let key_metadata = Metadata {
        arn: KEYS[key],
        key_id: id(KEYS[key]),
        enabled: true,
        key_state: "Enabled",
        key_spec: ALGORITHM,
        key_usage: "ENCRYPT_DECRYPT",
        current_key_material_id: MATERIALS[key],
    };
    Ok(Answer::good("DescribeKey", &Described { key_metadata }))
}

fn encrypt(key: usize, plaintext: &str) -> Result<Answer, (&'static str, &'static str)> {
    let plaintext = STANDARD.decode(plaintext).map_err(|_| INVALID_PLAINTEXT)?;
    let mut blob = Vec::with_capacity(HEADER + plaintext.len());
    blob.extend_from_slice(MAGIC);
    blob.extend_from_slice(id(KEYS[key]).as_bytes());
    blob.resize(HEADER, 0);
    blob.extend_from_slice(&plaintext);
    Ok(Answer::good(
        ENCRYPT,
        &Encrypted {
            ciphertext_blob: STANDARD.encode(blob),
            encryption_algorithm: ALGORITHM,
            key_id: KEYS[key],
        },
    ))
}

const INVALID_PLAINTEXT: (&str, &str) = ("ValidationException", "the plaintext is not base64");

fn decrypt(asked: Option<&str>, blob: &str) -> Result<Answer, (&'static str, &'static str)> {
    let invalid = ("InvalidCiphertextException", "the ciphertext is not one of the fake");
    let blob = STANDARD.decode(blob).map_err(|_| invalid)?;
    let (header, plaintext) = blob.split_at_checked(HEADER).ok_or(invalid)?;
    let named = header.strip_prefix(MAGIC).ok_or(invalid)?;
    let wrote = |arn: &&str| named.starts_with(id(arn).as_bytes());
    let key = KEYS.iter().position(wrote).ok_or(invalid)?;
    if asked.is_some() && find(asked)? != key {
        return Err(("IncorrectKeyException", "another key wrote the ciphertext"));
    }
    Ok(Answer::good(
        DECRYPT,
        &Decrypted {
            encryption_algorithm: ALGORITHM,
            key_id: KEYS[key],
            key_material_id: MATERIALS[key],
            plaintext: STANDARD.encode(plaintext),
        },
    ))
}
