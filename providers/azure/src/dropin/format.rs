//! How wrapped keys are stored: in our own form, and in the two of the replaced plugins.
//!
//! Azure/kubernetes-kms, and OpenShift's fork up to 4.18, store Key Vault's answer as the text that
//! it is (`text`). The fork from 4.19 on stores the block that this text stands for (`binary`), and
//! what it had encrypted is not the plaintext but its base64url text. Both write the same annotations
//! and the same key_id, and neither can read what the other wrote. A block is no text: hundreds of
//! random bytes do not all happen to be among 64 letters.
//!
//! Ours has another version in its annotation, which both refuse by name.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::Deserialize;
use sidekey_core::{Error, KeyId, Kind, Sealed, Secret};
use zeroize::Zeroizing;

const VERSION: &str = "version.azure.akv.io";
const ALGORITHM: &str = "algorithm.azure.akv.io";
const THEIRS: &[u8] = b"1";
const OURS: &[u8] = b"sidekey/1";

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Format {
    /// Our own form.
    #[default]
    #[serde(rename = "sidekey")]
    Own,
    /// That of Azure/kubernetes-kms.
    #[serde(rename = "text")]
    Text,
    /// That of OpenShift's fork since 4.19.
    #[serde(rename = "binary")]
    Binary,
}

/// The algorithms that we use, as Key Vault names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rsa,
    Aes,
}

impl Algorithm {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rsa => "RSA-OAEP-256",
            Self::Aes => "A256GCM",
        }
    }

    fn of(name: &[u8]) -> Option<Self> {
        [Self::Rsa, Self::Aes].into_iter().find(|known| known.name().as_bytes() == name)
    }
}

/// A wrapped key, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) format: Format,
    pub(crate) algorithm: Algorithm,
    /// What Key Vault gave.
    pub(crate) block: Bytes,
}

impl Format {
    /// What Key Vault is to encrypt.
    pub(crate) fn encoded(self, plaintext: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Own | Self::Text => plaintext.to_vec(),
            Self::Binary => URL_SAFE_NO_PAD.encode(plaintext).into_bytes(),
        })
    }

    /// The plaintext in what Key Vault has decrypted.
    pub(crate) fn decoded(self, decrypted: Vec<u8>) -> Result<Secret, Error> {
        let decrypted = Secret::new(decrypted);
        if self != Self::Binary {
            return Ok(decrypted);
        }
        let plaintext = URL_SAFE_NO_PAD.decode(decrypted.expose());
        plaintext.map(Secret::new).map_err(|_| bad("it holds no text in base64url"))
    }

    /// How a block is stored.
    pub(crate) fn stored(self, key_id: KeyId, algorithm: Algorithm, block: Vec<u8>) -> Sealed {
        let ciphertext = match self {
            Self::Own | Self::Binary => block,
            Self::Text => URL_SAFE_NO_PAD.encode(block).into_bytes(),
        };
        let version = if self == Self::Own { OURS } else { THEIRS };
        let annotations = [(VERSION, version), (ALGORITHM, algorithm.name().as_bytes())];
        let annotations =
            annotations.map(|(name, value)| (name.to_owned(), Bytes::from_static(value)));
        Sealed { key_id, ciphertext: ciphertext.into(), annotations: BTreeMap::from(annotations) }
    }
}

impl Stored {
    /// Takes apart what was stored by anybody.
    pub(crate) fn read(sealed: &Sealed) -> Result<Self, Error> {
        let note = |name: &str| sealed.annotations.get(name).map_or(&b""[..], |value| value);
        let algorithm = Algorithm::of(note(ALGORITHM))
            .ok_or_else(|| bad("its annotations name no algorithm that is known"))?;
        let block = sealed.ciphertext.clone();
        match (note(VERSION), algorithm) {
            (OURS, _) => Ok(Self { format: Format::Own, algorithm, block }),
            (THEIRS, Algorithm::Rsa) => {
                let is_text = block.iter().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(b));
                if !is_text {
                    return Ok(Self { format: Format::Binary, algorithm, block });
                }
                let decoded = URL_SAFE_NO_PAD.decode(&block);
                let block = decoded.map_err(|_| bad("it is no base64url"))?.into();
                Ok(Self { format: Format::Text, algorithm, block })
            }
            _ => Err(bad("its annotations name no version of a format that is known")),
        }
    }
}

fn bad(why: &str) -> Error {
    let text = format!(
        "the stored data was written neither by this provider nor by a plugin that it replaces, or was altered: {why}"
    );
    Error::new(Kind::Corrupt, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_id() -> KeyId {
        KeyId::new("k").unwrap()
    }

    #[test]
    fn each_form_is_read_as_it_was_written() {
        // 512 bytes are an RSA-4096 block, and an RSA-3072 block as text.
        for size in [256, 384, 512] {
            let block: Vec<u8> = (0..size).map(|index| (index * 7 % 256) as u8).collect();
            for format in [Format::Own, Format::Text, Format::Binary] {
                let sealed = format.stored(key_id(), Algorithm::Rsa, block.clone());
                let read = Stored::read(&sealed).unwrap();
                assert_eq!((read.format, &read.block[..]), (format, &block[..]));
                let plain = format.decoded(format.encoded(b"seed").to_vec()).unwrap();
                assert_eq!(plain.expose(), b"seed");
            }
        }
        let sizes = [(256, 342), (384, 512), (512, 683)];
        for (block, text) in sizes {
            let sealed = Format::Text.stored(key_id(), Algorithm::Rsa, vec![7; block]);
            assert_eq!(sealed.ciphertext.len(), text);
        }
    }

    #[test]
    fn what_nobody_wrote_is_refused() {
        let sealed = Format::Text.stored(key_id(), Algorithm::Rsa, vec![7; 256]);
        let with = |name: &str, value: Option<&'static [u8]>| {
            let mut sealed = sealed.clone();
            sealed.annotations.remove(name);
            sealed
                .annotations
                .extend(value.map(|value| (name.to_owned(), Bytes::from_static(value))));
            Stored::read(&sealed).map_err(|error| error.kind())
        };
        assert!(with("other.example", Some(b"x")).is_ok());
        for (name, value) in [
            (VERSION, None),
            (VERSION, Some(&b"2"[..])),
            (ALGORITHM, None),
            (ALGORITHM, Some(b"RSA1_5")),
            (ALGORITHM, Some(b"A256GCM")),
        ] {
            assert_eq!(with(name, value), Err(Kind::Corrupt), "{name} {value:?}");
        }
        let mut odd = sealed.clone();
        odd.ciphertext = Bytes::from_static(b"AAAAA");
        assert_eq!(Stored::read(&odd).unwrap_err().kind(), Kind::Corrupt, "no length of base64");
        assert_eq!(Format::Binary.decoded(b"\xff".to_vec()).unwrap_err().kind(), Kind::Corrupt);
    }
}
