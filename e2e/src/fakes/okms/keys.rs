//! Service keys of the fake OKMS: states, operations, JWEs.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sidekey_core::hex;

use super::{Refusal, nothing};
use crate::fakes::Answer;

/// Most that is encrypted at once, in bytes, and longest JWE and context, in characters.
const MAX_PLAINTEXT: usize = 4096;
const MAX_CIPHERTEXT: usize = 5464;
const MAX_CONTEXT: usize = 64;
const MAX_NAME: usize = 32;
const TAG_LEN: usize = 16;
/// Nothing here depends on when a key was made.
const CREATED: &str = "2026-11-01T08:00:00Z";

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It may be used.
    Active,
    /// Somebody has deactivated it.
    Deactivated,
    /// The same, because somebody else may know it.
    Compromised,
}

/// One key.
#[derive(Debug)]
pub(super) struct ServiceKey {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) state: State,
    of: String,
    operations: Vec<String>,
    material: RandomizedNonceKey,
}

impl State {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Deactivated => "deactivated",
            Self::Compromised => "compromised",
        }
    }
}

impl ServiceKey {
    pub(super) fn new(name: &str, of: &str, operations: &[&str]) -> Self {
        let operations = operations.iter().map(|one| (*one).to_owned()).collect();
        let (name, of, state) = (name.to_owned(), of.to_owned(), State::Active);
        Self { id: uuid(), name, state, of, operations, material: material(&random(32)) }
    }

    pub(super) fn restored(id: &str, name: &str, value: &[u8; 32]) -> Self {
        let key = Self::new(name, "oct", &["encrypt", "decrypt"]);
        Self { id: id.to_owned(), material: material(value), ..key }
    }

    /// The key that a client wants to have made.
    pub(super) fn asked_for(body: &Value) -> Result<Self, Refusal> {
        let operations = body["operations"].as_array().ok_or(Refusal::BAD_ARGUMENT)?;
        let operations: Vec<&str> = operations.iter().filter_map(Value::as_str).collect();
        let of = body["type"].as_str().ok_or(Refusal::BAD_ARGUMENT)?;
        Ok(Self::new(name(body)?, of, &operations))
    }

    pub(super) fn is_deletable(&self) -> Result<(), Refusal> {
        if self.state == State::Active { Err(Refusal::BAD_STATE) } else { Ok(()) }
    }

    pub(super) fn described(&self) -> Value {
        let mut described = json!({
            "id": self.id, "name": self.name, "type": self.of, "operations": self.operations,
            "attributes": {
                "state": self.state.word(), "created_at": CREATED, "activation_date": CREATED,
            },
        });
        match self.of.as_str() {
            "oct" => described["size"] = 256.into(),
            "RSA" => described["size"] = 2048.into(),
            _ => described["curve"] = "P-256".into(),
        }
        described
    }

    pub(super) fn answer(&mut self, operation: &str, body: &Value) -> Result<Answer, Refusal> {
        match operation {
            "get" => {}
            "update" => self.name = name(body)?.to_owned(),
            "activate" => {
                self.state = State::Active;
                return Ok(nothing());
            }
            "deactivate" => {
                let reason = body["reason"].as_str().ok_or(Refusal::BAD_ARGUMENT)?;
                let lost = reason == "key_compromise";
                self.state = if lost { State::Compromised } else { State::Deactivated };
                return Ok(nothing());
            }
            _ => return self.apply(operation, body),
        }
        Ok(Answer::json(200, &self.described()))
    }

    /// Encrypts or decrypts.
    fn apply(&self, operation: &str, body: &Value) -> Result<Answer, Refusal> {
        if self.state != State::Active {
            return Err(Refusal::BAD_STATE);
        }
        if self.of != "oct" || !self.operations.iter().any(|own| own == operation) {
            return Err(Refusal::BAD_USAGE);
        }
        let context = body["context"].as_str().unwrap_or_default();
        if context.chars().count() > MAX_CONTEXT {
            return Err(Refusal::BAD_ARGUMENT);
        }
        if operation == "decrypt" {
            let jwe = body["ciphertext"].as_str().filter(|jwe| jwe.len() <= MAX_CIPHERTEXT);
            let jwe = jwe.filter(|jwe| !jwe.is_empty()).ok_or(Refusal::BAD_ARGUMENT)?;
            let plaintext = self.open(jwe, context).ok_or(Refusal::BAD_CIPHERTEXT)?;
            return Ok(Answer::json(200, &json!({"plaintext": STANDARD.encode(plaintext)})));
        }
        let plaintext = body["plaintext"].as_str().and_then(|text| STANDARD.decode(text).ok());
        let plaintext = plaintext.filter(|data| (1..=MAX_PLAINTEXT).contains(&data.len()));
        let jwe = self.seal(plaintext.ok_or(Refusal::BAD_ARGUMENT)?, context)?;
        Ok(Answer::json(200, &json!({"ciphertext": jwe})))
    }

    /// A compact JWE; the context is authenticated beside its header.
    fn seal(&self, mut data: Vec<u8>, context: &str) -> Result<String, Refusal> {
        let header = json!({"alg": "dir", "enc": "A256GCM", "kid": self.id}).to_string();
        let header = URL_SAFE_NO_PAD.encode(header);
        let aad = format!("{header}.{context}");
        let nonce = self.material.seal_in_place_append_tag(Aad::from(aad.as_bytes()), &mut data);
        let nonce = nonce.map_err(|_| Refusal::BAD_ARGUMENT)?;
        let nonce: &[u8; NONCE_LEN] = nonce.as_ref();
        let (data, tag) = data.split_at(data.len() - TAG_LEN);
        let [nonce, data, tag] =
            [nonce.as_slice(), data, tag].map(|part| URL_SAFE_NO_PAD.encode(part));
        Ok(format!("{header}..{nonce}.{data}.{tag}"))
    }

    fn open(&self, jwe: &str, context: &str) -> Option<Vec<u8>> {
        let parts: Vec<&str> = jwe.split('.').collect();
        let [header, "", nonce, data, tag] = parts.as_slice() else { return None };
        let known: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        if known["kid"] != *self.id {
            return None;
        }
        let [nonce, data, tag] = [nonce, data, tag].map(|part| URL_SAFE_NO_PAD.decode(part).ok());
        let nonce = Nonce::try_assume_unique_for_key(&nonce?).ok()?;
        let mut data = [data?, tag?].concat();
        let aad = format!("{header}.{context}");
        let opened = self.material.open_in_place(nonce, Aad::from(aad.as_bytes()), &mut data);
        Some(opened.ok()?.to_vec())
    }
}

fn name(body: &Value) -> Result<&str, Refusal> {
    let name = body["name"].as_str().ok_or(Refusal::BAD_ARGUMENT)?;
    let fits = (1..=MAX_NAME).contains(&name.chars().count());
    if fits { Ok(name) } else { Err(Refusal::BAD_ARGUMENT) }
}

#[allow(clippy::expect_used)]
fn material(value: &[u8]) -> RandomizedNonceKey {
    RandomizedNonceKey::new(&AES_256_GCM, value).expect("a key of 32 bytes")
}

#[allow(clippy::expect_used)]
fn random(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    aws_lc_rs::rand::fill(&mut bytes).expect("random bytes");
    bytes
}

/// A random id.
pub(super) fn uuid() -> String {
    let hex = hex(&random(16));
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}
