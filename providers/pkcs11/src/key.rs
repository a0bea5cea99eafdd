//! What is done with a key, in the token.

use cryptoki::error::{Error as Failure, RvError};
use cryptoki::mechanism::aead::GcmParams;
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsOaepParams, PkcsOaepSource};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, ObjectClass, ObjectHandle};
use cryptoki::types::Ulong;
use sidekey_core::{Error, KeyId, Kind, Secret};

use crate::codes::{self, explain, found};
use crate::library::Link;
use crate::object::{Algorithm, Object, Selector};

const IV: usize = 12;
/// The first byte of what is written, by what follows.
const GCM: u8 = 1;
const OAEP: u8 = 2;

/// A key that was found in a session.
pub(crate) struct Key<'a> {
    pub(crate) keys: &'a Selector,
    pub(crate) link: &'a Link,
    pub(crate) object: &'a Object,
}

impl Key<'_> {
    pub(crate) fn is_aes(&self) -> bool {
        self.keys.algorithm == Algorithm::AesGcm
    }

    /// As our own data is written.
    pub(crate) fn seal(&self, plaintext: &[u8]) -> Result<Vec<u8>, Error> {
        if self.object.bits < if self.is_aes() { 256 } else { 2048 } {
            return Err(found(self.keys, codes::TOO_SHORT));
        }
        if !self.is_aes() {
            let sealed = self.encrypt(&oaep(self.keys.algorithm), plaintext)?;
            return Ok([&[OAEP], &*sealed].concat());
        }
        let (iv, sealed) = self.seal_gcm(IV, &aad(&self.object.key_id), plaintext)?;
        Ok([&[GCM], &*iv, &*sealed].concat())
    }

    /// What [`seal`](Self::seal) has written, when the key was named so.
    pub(crate) fn open(&self, key_id: &KeyId, sealed: &[u8]) -> Result<Secret, Error> {
        match sealed.split_first() {
            Some((&GCM, rest)) if self.is_aes() && rest.len() > IV => {
                self.open_gcm(&rest[..IV], &aad(key_id), &rest[IV..])
            }
            Some((&OAEP, rest)) if !self.is_aes() => self.decrypt(&oaep(self.keys.algorithm), rest),
            _ => Err(found(self.keys, codes::ALTERED)),
        }
    }

    /// The IV, and what is encrypted under it.
    pub(crate) fn seal_gcm(
        &self,
        iv: usize,
        aad: &[u8],
        plaintext: &[u8],
    ) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let mut iv = match self.keys.iv_from_token {
            false => Secret::random(iv)?.expose().to_vec(),
            true => vec![0; iv],
        };
        let sealed = self.encrypt(&gcm(&mut iv, aad)?, plaintext)?;
        let is_made = iv.iter().any(|byte| *byte != 0);
        if is_made { Ok((iv, sealed)) } else { Err(found(self.keys, codes::NO_IV)) }
    }

    pub(crate) fn open_gcm(&self, iv: &[u8], aad: &[u8], sealed: &[u8]) -> Result<Secret, Error> {
        self.decrypt(&gcm(&mut iv.to_vec(), aad)?, sealed)
    }

    /// Some tokens say of a tag that does not fit that the device is broken. If the key reads what
    /// it has just written, it was the ciphertext. Of a key that writes nothing, `before` tells
    /// whether it reads what it has read before; if that is nothing, the session is not blamed for
    /// an error that says nothing.
    pub(crate) fn judge(&self, error: Error, before: impl FnOnce() -> Option<bool>) -> Error {
        if !matches!(error.kind(), Kind::Unavailable | Kind::Config | Kind::Invalid) {
            return error;
        }
        let was_vague = self.link.is_vague.take();
        let works = match self.works() {
            Err(refusal) if refusal.kind() == Kind::KeyState => before(),
            works => Some(works.unwrap_or(false)),
        };
        self.link.is_vague.set(was_vague && works.is_none());
        if works != Some(true) {
            return error;
        }
        found(self.keys, codes::ALTERED).with_source(error)
    }

    /// Whether it reads what it has just written, be it as short as it may.
    fn works(&self) -> Result<bool, Error> {
        let sample = Secret::random(32)?;
        if self.is_aes() {
            let (iv, sealed) = self.seal_gcm(IV, &[], sample.expose())?;
            return Ok(self.open_gcm(&iv, &[], &sealed)? == sample);
        }
        let by = oaep(self.keys.algorithm);
        Ok(self.decrypt(&by, &self.encrypt(&by, sample.expose())?)? == sample)
    }

    fn encrypt(&self, mechanism: &Mechanism<'_>, plaintext: &[u8]) -> Result<Vec<u8>, Error> {
        let failed = |failure| explain("encrypt", self.keys, &failure);
        let refuse = |finding| Err(found(self.keys, finding));
        let handle = match self.public().map_err(failed)? {
            _ if plaintext.is_empty() => return refuse(codes::EMPTY),
            _ if self.is_aes() && self.object.has(&Attribute::Encrypt(false)) => {
                return refuse(codes::NO_ENCRYPT);
            }
            None => return refuse(codes::NO_PUBLIC),
            Some(handle) => handle,
        };
        self.link.session.encrypt(mechanism, handle, plaintext).map_err(failed)
    }

    /// What encrypts for a key: itself, or the public one beside it.
    fn public(&self) -> Result<Option<ObjectHandle>, Failure> {
        if self.is_aes() {
            return Ok(Some(self.object.handle));
        }
        let id = Attribute::Id(self.object.id.clone());
        let mut template = vec![Attribute::Class(ObjectClass::PUBLIC_KEY), id];
        // Another pair may have the same id.
        let modulus = |attribute: &&Attribute| matches!(attribute, Attribute::Modulus(_));
        template.extend(self.object.attributes.iter().find(modulus).cloned());
        Ok(self.link.session.find_objects(&template)?.first().copied())
    }

    pub(crate) fn decrypt(&self, by: &Mechanism<'_>, sealed: &[u8]) -> Result<Secret, Error> {
        if self.object.has(&Attribute::Decrypt(false)) {
            return Err(found(self.keys, codes::NO_DECRYPT));
        }
        let opened = self.link.session.decrypt(by, self.object.handle, sealed);
        let vague = [RvError::GeneralError, RvError::FunctionFailed];
        let is_vague = |code| vague.contains(code);
        self.link.is_vague.set(matches!(&opened, Err(Failure::Pkcs11(code, _)) if is_vague(code)));
        opened.map(Secret::new).map_err(|failure| explain("decrypt", self.keys, &failure))
    }
}

/// Binds a ciphertext to its key_id, so that neither can be exchanged.
fn aad(key_id: &KeyId) -> Vec<u8> {
    [b"sidekey-pkcs11/1/", key_id.as_str().as_bytes()].concat()
}

pub(crate) fn oaep(algorithm: Algorithm) -> Mechanism<'static> {
    let (hash, mask) = match algorithm {
        Algorithm::RsaOaep256 => (MechanismType::SHA256, PkcsMgfType::MGF1_SHA256),
        _ => (MechanismType::SHA1, PkcsMgfType::MGF1_SHA1),
    };
    Mechanism::RsaPkcsOaep(PkcsOaepParams::new(hash, mask, PkcsOaepSource::empty()))
}

fn gcm<'a>(iv: &'a mut [u8], aad: &'a [u8]) -> Result<Mechanism<'a>, Error> {
    let bad = |failure| explain("AES-GCM", &"its IV", &failure);
    Ok(Mechanism::AesGcm(GcmParams::new(iv, aad, Ulong::new(128)).map_err(bad)?))
}
