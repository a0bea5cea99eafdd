//! Keys, their versions, and what is done with them.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_core::Secret;

use super::{Refusal, Result, invalid};

/// The beginning of every ciphertext: the version that it is of.
const HEAD: usize = 4;

/// A key.
pub struct Key {
    /// What it is for.
    pub purpose: &'static str,
    /// What its versions encrypt with.
    pub algorithm: &'static str,
    /// The version that encrypts.
    pub primary: u64,
    versions: Vec<Version>,
}

/// A version of a key.
struct Version {
    state: &'static str,
    /// When it is destroyed, if that is planned.
    destroyed: Option<&'static str>,
    material: RandomizedNonceKey,
}

impl Key {
    /// A key with one version.
    pub fn new(purpose: &'static str) -> Self {
        let algorithm = match purpose {
            "ENCRYPT_DECRYPT" => "GOOGLE_SYMMETRIC_ENCRYPTION",
            "RAW_ENCRYPT_DECRYPT" => "AES_256_GCM",
            _ => "RSA_SIGN_PSS_2048_SHA256",
        };
        let mut key = Self { purpose, algorithm, primary: 0, versions: Vec::new() };
        key.rotate();
        key
    }

    pub(super) fn restored(materials: &[[u8; 32]]) -> Self {
        let mut key = Self { versions: Vec::new(), ..Self::new("ENCRYPT_DECRYPT") };
        materials.iter().for_each(|material| key.add(material));
        key
    }

    /// Makes a version, and that the primary one.
    #[allow(clippy::missing_panics_doc, clippy::expect_used)]
    pub fn rotate(&mut self) {
        let material = Secret::random(32).expect("the system has random numbers");
        self.add(material.expose());
    }

    #[allow(clippy::expect_used)]
    fn add(&mut self, material: &[u8]) {
        let material = RandomizedNonceKey::new(&AES_256_GCM, material).expect("32 bytes");
        self.versions.push(Version { state: "ENABLED", destroyed: None, material });
        self.primary = self.versions.len() as u64;
    }

    /// Brings a version to another state.
    pub fn set_state(&mut self, number: u64, state: &'static str) {
        for (index, version) in (1..).zip(&mut self.versions) {
            if index == number {
                version.state = state;
                version.destroyed =
                    (state == "DESTROY_SCHEDULED").then_some("2031-05-06T07:08:09.123Z");
            }
        }
    }

    pub(super) fn describe(&self, name: &str, numbers: bool) -> Value {
        let word = |word: &'static str| if numbers { enumerated(word).into() } else { json!(word) };
        let mut described = json!({
            "name": name,
            "purpose": word(self.purpose),
            "createTime": "2026-01-02T03:04:05.678901234Z",
            "versionTemplate": {
                "protectionLevel": word("SOFTWARE"), "algorithm": word(self.algorithm),
            },
            "destroyScheduledDuration": "2592000s",
        });
        // Only keys of this purpose have one.
        let version = self.version(self.primary).filter(|_| self.purpose == "ENCRYPT_DECRYPT");
        if let Some(version) = version {
            described["primary"] = json!({
                "name": format!("{name}/cryptoKeyVersions/{}", self.primary),
                "state": word(version.state),
                "createTime": "2026-01-02T03:04:05.678901234Z",
                "protectionLevel": word("SOFTWARE"),
                "algorithm": word(self.algorithm),
            });
            if let Some(time) = version.destroyed {
                described["primary"]["destroyTime"] = time.into();
            }
        }
        described
    }

    pub(super) fn encrypt(
        &self,
        name: &str,
        number: u64,
        plaintext: &[u8],
        aad: &[u8],
    ) -> Result<Vec<u8>> {
        let version = self.usable(name, number)?;
        let mut data = plaintext.to_vec();
        let sealed = version.material.seal_in_place_append_tag(Aad::from(aad), &mut data);
        let nonce = sealed.map_err(|_| invalid("encryption failed"))?;
        let head = u32::try_from(number).unwrap_or_default().to_be_bytes();
        Ok([&head[..], nonce.as_ref(), &data].concat())
    }

    pub(super) fn decrypt(
        &self,
        name: &str,
        ciphertext: &[u8],
        aad: &[u8],
    ) -> Result<(Vec<u8>, u64)> {
        let refused =
            || invalid("Decryption failed: verify that 'name' refers to the correct CryptoKey.");
        let (head, rest) = ciphertext.split_first_chunk::<HEAD>().ok_or_else(refused)?;
        let number = u64::from(u32::from_be_bytes(*head));
        self.version(number).ok_or_else(refused)?;
        let version = self.usable(name, number)?;
        let (nonce, data) = rest.split_at_checked(NONCE_LEN).ok_or_else(refused)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| refused())?;
        let mut data = data.to_vec();
        let opened = version.material.open_in_place(nonce, Aad::from(aad), &mut data);
        Ok((opened.map_err(|_| refused())?.to_vec(), number))
    }

    fn version(&self, number: u64) -> Option<&Version> {
        self.versions.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    fn usable(&self, name: &str, number: u64) -> Result<&Version> {
        let name = format!("{name}/cryptoKeyVersions/{number}");
        let refused = |text| Err(Refusal(400, "FAILED_PRECONDITION", text, ""));
        if self.purpose != "ENCRYPT_DECRYPT" {
            return refused(format!("{name} has purpose {}.", self.purpose));
        }
        let missing = || Refusal(404, "NOT_FOUND", format!("{name} not found."), "");
        let version = self.version(number).ok_or_else(missing)?;
        if version.state == "ENABLED" {
            return Ok(version);
        }
        refused(format!("{name} is not enabled, current state is: {}.", version.state))
    }
}

/// The numbers of words in Cloud KMS's protocol buffers.
fn enumerated(word: &str) -> u32 {
    let words = [
        ("ENCRYPT_DECRYPT", 1),
        ("ASYMMETRIC_SIGN", 5),
        ("RAW_ENCRYPT_DECRYPT", 7),
        ("SOFTWARE", 1),
        ("GOOGLE_SYMMETRIC_ENCRYPTION", 1),
        ("RSA_SIGN_PSS_2048_SHA256", 2),
        ("AES_256_GCM", 19),
        ("ENABLED", 1),
        ("DISABLED", 2),
        ("DESTROYED", 3),
        ("DESTROY_SCHEDULED", 4),
        ("PENDING_GENERATION", 5),
    ];
    words.iter().find(|(known, _)| *known == word).map_or(0, |(_, number)| *number)
}

/// CRC-32C, bit by bit: another way than the provider's.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), bit))
}

pub(super) fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(super) fn bytes(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
