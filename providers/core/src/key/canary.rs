//! Canaries: proof that a key is the very KEK that wrote the data, which a fresh round trip is
//! not. 32 random bytes are wrapped when a key is created, and kept with their hash.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{Problems, read};
use crate::kms::key_id::hex;
use crate::{Error, KeyId, Kind, Sealed, Secret};

/// A wrapped sample and the hash of what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    /// What the key must be able to unwrap.
    pub sealed: Sealed,
    /// SHA-256 of the plaintext, lower-case hex.
    pub sha256: String,
}

/// The written form.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct RawCanary {
    key_id: Option<String>,
    ciphertext: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    sha256: Option<String>,
}

impl Canary {
    /// Makes a canary of a wrapped sample.
    pub fn new(sealed: Sealed, plaintext: &Secret) -> Self {
        Self { sealed, sha256: sha256(plaintext.expose()) }
    }

    /// Reads `canary` of a key, if there is one.
    pub fn field(value: Option<&Value>, problems: &mut Problems) -> Option<Self> {
        let value = value.filter(|value| !value.is_null())?;
        problems.within("canary", |problems| Self::parse(value, problems))
    }

    /// Reads the written form, with every mistake in it.
    pub fn parse(value: &Value, problems: &mut Problems) -> Option<Self> {
        let raw: RawCanary = read(value, problems)?;
        let key_id = problems.require("keyId", &raw.key_id).and_then(|text| {
            let (_, inner) = crate::kms::key_id::split_shim_prefix(text);
            KeyId::new(inner).map_err(|error| problems.add("keyId", &error.report())).ok()
        });
        let ciphertext = problems
            .require("ciphertext", &raw.ciphertext)
            .and_then(|text| decode("ciphertext", text, problems));
        let mut annotations = BTreeMap::new();
        for (name, text) in &raw.annotations {
            if let Some(value) = decode(&format!("annotations.{name}"), text, problems) {
                annotations.insert(name.clone(), value);
            }
        }
        let sha256 = problems.require("sha256", &raw.sha256)?.to_ascii_lowercase();
        if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
            problems.add("sha256", "is not 64 hex digits");
        }
        let sealed = Sealed { key_id: key_id?, ciphertext: ciphertext?, annotations };
        if let Err(error) = crate::kms::limits::check_sealed(&sealed) {
            problems.add("", &error.report());
        }
        Some(Self { sealed, sha256 })
    }

    /// The written form, for a configuration file.
    pub fn document(&self) -> Value {
        let raw = RawCanary {
            key_id: Some(self.sealed.key_id.to_string()),
            ciphertext: Some(STANDARD.encode(&self.sealed.ciphertext)),
            annotations: self
                .sealed
                .annotations
                .iter()
                .map(|(name, value)| (name.clone(), STANDARD.encode(value)))
                .collect(),
            sha256: Some(self.sha256.clone()),
        };
        serde_json::to_value(raw).unwrap_or_default()
    }

    /// Whether `plaintext` is what was wrapped.
    pub fn verify(&self, plaintext: &Secret) -> Result<(), Error> {
        if sha256(plaintext.expose()) == self.sha256 {
            return Ok(());
        }
        Err(Error::new(Kind::KeyState, "the canary decrypts to something else")
            .with_hint("this is not the KEK that the canary was made with: check the kek settings"))
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&crate::sha256(bytes))
}

fn decode(path: &str, text: &str, problems: &mut Problems) -> Option<Bytes> {
    match STANDARD.decode(text) {
        Ok(bytes) => Some(Bytes::from(bytes)),
        Err(_) => {
            problems.add(path, "is not base64");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn no_document_panics_and_a_sound_one_reads_as_it_was_written(
            key_id in ".{0,20}",
            ciphertext in proptest::collection::vec(any::<u8>(), 0..40),
            name in "[a-z.]{0,6}",
            sha256 in "[0-9a-fA-F]{60,68}",
        ) {
            let value = json!({
                "keyId": key_id,
                "ciphertext": STANDARD.encode(&ciphertext),
                "annotations": {name: "AAAA"},
                "sha256": sha256,
            });
            let mut problems = Problems::default();
            let canary = Canary::parse(&value, &mut problems);
            if let (Some(canary), true) = (canary, problems.is_empty()) {
                prop_assert_eq!(Canary::parse(&canary.document(), &mut problems), Some(canary));
                prop_assert!(problems.is_empty());
            }
        }

        #[test]
        fn no_text_in_the_place_of_a_field_panics(text in ".{0,30}") {
            let mut problems = Problems::default();
            let value = json!({"keyId": 1, "ciphertext": text, "annotations": text, "sha256": text});
            let _ = Canary::parse(&value, &mut problems);
            prop_assert!(!problems.is_empty());
        }
    }
}
