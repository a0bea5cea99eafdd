//! Keys in a file, and what they seal.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{digest, rand};
use bytes::Bytes;

/// The first byte of every ciphertext.
const FORMAT: u8 = 1;

/// A file with one key on each line; the n-th line is version n. It outlives the plugin.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    path: PathBuf,
}

/// One version.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) version: usize,
    pub(crate) id: String,
    pub(crate) secret: Vec<u8>,
}

impl Store {
    /// Opens the file, which must have a key, or makes a new one.
    pub(crate) fn open(path: PathBuf) -> Self {
        let store = Self { path };
        if !store.path.exists() {
            store.rotate();
        }
        store
    }

    /// Adds a version, which becomes the one to encrypt with.
    pub(crate) fn rotate(&self) {
        let mut lines = std::fs::read_to_string(&self.path).unwrap_or_default();
        let mut secret = [0; 32];
        rand::fill(&mut secret).unwrap();
        writeln!(lines, "{}", hex(&secret)).unwrap();
        let next = self.path.with_extension("next");
        std::fs::write(&next, lines).unwrap();
        std::fs::rename(next, &self.path).unwrap();
    }

    /// How long the file is: it only ever grows.
    pub(crate) fn length(&self) -> u64 {
        std::fs::metadata(&self.path).unwrap().len()
    }

    /// All versions, the oldest first.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let lines = std::fs::read_to_string(&self.path).unwrap();
        let key = |(index, line): (usize, &str)| {
            let digit = |at| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
            let secret: Vec<u8> = (0..line.len()).step_by(2).map(digit).collect();
            let fingerprint = &hex(digest::digest(&digest::SHA256, &secret).as_ref())[..8];
            let version = index + 1;
            let id = format!("test-kms/keys/primary/versions/{version}-{fingerprint}");
            Key { version, id, secret }
        };
        lines.lines().enumerate().map(key).collect()
    }
}

impl Key {
    pub(crate) fn seal(&self, nonce: [u8; NONCE_LEN], plaintext: &[u8], aad: &[u8]) -> Vec<u8> {
        let mut sealed = plaintext.to_vec();
        let nonce_value = Nonce::assume_unique_for_key(nonce);
        self.aead().seal_in_place_append_tag(nonce_value, Aad::from(aad), &mut sealed).unwrap();
        [&[FORMAT][..], &nonce, &sealed].concat()
    }

    pub(crate) fn unseal(&self, ciphertext: &[u8], aad: &[u8]) -> Option<Vec<u8>> {
        let (&format, rest) = ciphertext.split_first()?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let opened = self.aead().open_in_place(nonce, Aad::from(aad), &mut sealed).ok()?;
        (format == FORMAT).then(|| opened.to_vec())
    }

    fn aead(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &self.secret).unwrap())
    }
}

/// What is authenticated beside the plaintext: the key_id and the annotations, with lengths.
pub(crate) fn aad(key_id: &str, annotations: &BTreeMap<String, Bytes>) -> Vec<u8> {
    let mut aad = Vec::new();
    let mut add = |bytes: &[u8]| {
        aad.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        aad.extend_from_slice(bytes);
    };
    add(key_id.as_bytes());
    for (key, value) in annotations {
        add(key.as_bytes());
        add(value);
    }
    aad
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).unwrap();
    bytes
}
