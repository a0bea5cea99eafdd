//! What is stored: how a plaintext is wrapped with a key of the KMS, and bound to its key_id.
//!
//! The first byte is KMIP's number of the block cipher mode.
//!
//! | mode | what follows |
//! |---|---|
//! | 9, GCM | IV (12), ciphertext, tag (16), of the KMS; additional authenticated data: the key_id |
//! | 1, CBC; 6, CTR | IV (16), a one-time key (32) as the KMS encrypted it; nonce (12), ciphertext, tag (16), of AES-256-GCM in this process |
//!
//! CBC and CTR have no integrity, and a plaintext that was altered must not be taken for one. So the
//! KMS encrypts no more than the one-time key, 32 random bytes that need no padding. The key of
//! AES-256-GCM is HKDF-SHA-256 over it, with all before the nonce as salt and the key_id as info:
//! whoever alters a byte before the nonce gets an unrelated key, which nobody knows, and the tag
//! does not fit. No padding is looked at, so there is no oracle of it.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use sidekey_core::{Error, KeyId, Kind, Secret};
use sidekey_ttlv::{Cipher, Client, Mode, TAG_LEN};
use tokio::time::Instant;
use zeroize::Zeroizing;

/// Of AES-256, and of the one-time key.
const KEY_LEN: usize = 32;

/// A key of the KMS, as it is used for one request.
pub(crate) struct Wrapping<'a> {
    pub(crate) client: &'a Client,
    pub(crate) uid: &'a str,
    pub(crate) key_id: &'a KeyId,
    pub(crate) deadline: Instant,
}

impl Wrapping<'_> {
    pub(crate) async fn seal(&self, mode: Mode, plaintext: &[u8]) -> Result<Vec<u8>, Error> {
        let iv = Secret::random(iv_len(mode))?;
        let (cipher, mut sealed) = self.begin(mode, iv.expose());
        if mode == Mode::Gcm {
            let asked = self.client.encrypt(self.uid, &cipher, plaintext, self.deadline);
            sealed.extend_from_slice(&asked.await?);
            return Ok(sealed);
        }
        let key = Secret::random(KEY_LEN)?;
        let asked = self.client.encrypt(self.uid, &cipher, key.expose(), self.deadline);
        sealed.extend_from_slice(&asked.await?);
        let failed = |_| Error::new(Kind::Bug, "AES-256-GCM failed");
        let key = self.derived(&key, &sealed).map_err(failed)?;
        let mut inner = plaintext.to_vec();
        let nonce = key.seal_in_place_append_tag(Aad::empty(), &mut inner).map_err(failed)?;
        sealed.extend_from_slice(nonce.as_ref());
        sealed.extend_from_slice(&inner);
        Ok(sealed)
    }

    pub(crate) async fn open(&self, sealed: &[u8]) -> Result<Secret, Error> {
        let corrupt = || {
            Error::new(Kind::Corrupt, format!("the ciphertext is none of key {}", self.uid))
                .with_hint("it was altered, or another key wrapped it")
        };
        let modes = [Mode::Gcm, Mode::Ctr, Mode::Cbc];
        let mode = modes.into_iter().find(|mode| sealed.first() == Some(&(*mode as u8)));
        let mode = mode.ok_or_else(corrupt)?;
        let (head, rest) = sealed.split_at_checked(1 + iv_len(mode)).ok_or_else(corrupt)?;
        let (cipher, _) = self.begin(mode, &head[1..]);
        if mode == Mode::Gcm {
            return self.client.decrypt(self.uid, &cipher, rest, self.deadline).await;
        }
        let (key, rest) = rest.split_at_checked(KEY_LEN).ok_or_else(corrupt)?;
        let (nonce, inner) = rest.split_at_checked(NONCE_LEN).ok_or_else(corrupt)?;
        let key = self.client.decrypt(self.uid, &cipher, key, self.deadline).await?;
        let key = self.derived(&key, &sealed[..1 + iv_len(mode) + KEY_LEN]);
        let nonce = Nonce::try_assume_unique_for_key(nonce);
        let (Ok(key), Ok(nonce)) = (key, nonce) else { return Err(corrupt()) };
        let mut inner = Zeroizing::new(inner.to_vec());
        let opened = key.open_in_place(nonce, Aad::empty(), &mut inner);
        opened.map(|opened| Secret::new(opened.to_vec())).map_err(|_| corrupt())
    }

    /// How the KMS is to encrypt, and how the result begins.
    fn begin<'a>(&'a self, mode: Mode, iv: &'a [u8]) -> (Cipher<'a>, Vec<u8>) {
        let aad = if mode == Mode::Gcm { self.key_id.as_str().as_bytes() } else { &[] };
        (Cipher { mode, iv, aad }, [&[mode as u8], iv].concat())
    }

    fn derived(&self, key: &Secret, before: &[u8]) -> Result<RandomizedNonceKey, Unspecified> {
        let info = [self.key_id.as_str().as_bytes()];
        let mut derived = Zeroizing::new([0; KEY_LEN]);
        let extracted = Salt::new(HKDF_SHA256, before).extract(key.expose());
        extracted.expand(&info, HKDF_SHA256)?.fill(&mut derived[..])?;
        RandomizedNonceKey::new(&AES_256_GCM, &derived[..])
    }
}

fn iv_len(mode: Mode) -> usize {
    if mode == Mode::Gcm { NONCE_LEN } else { TAG_LEN }
}
