//! Keys as a token has them: which ones there are, how they are named, what is done with them.

use std::fmt;

use cryptoki::error::Error as Failure;
use cryptoki::mechanism::aead::GcmParams;
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsOaepParams, PkcsOaepSource};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::types::Ulong;
use serde::Deserialize;
use sidekey_core::{Error, KeyId, Kind, Provider, Secret, hex, sha256, time};
use sidekey_rest::naming::{Version, scope};

use crate::Pkcs11;
use crate::codes::{self, explain, found};
use crate::library::Link;

/// Longer ones make key_ids that are too long.
const MAX_ID: usize = 255;
const IV: usize = 12;
/// The first byte of what is written, by what follows.
const GCM: u8 = 1;
const OAEP: u8 = 2;

#[rustfmt::skip]
const WANTED: [AttributeType; 9] = [AttributeType::Id, AttributeType::Label, AttributeType::StartDate, AttributeType::ValueLen, AttributeType::CheckValue, AttributeType::Modulus, AttributeType::Encrypt, AttributeType::Decrypt, AttributeType::Extractable];

/// What is done with a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Algorithm {
    /// AES-256-GCM.
    #[default]
    #[serde(rename = "AES-GCM")]
    AesGcm,
    /// RSA with OAEP and SHA-1, which is all that SoftHSM has.
    #[serde(rename = "RSA-OAEP")]
    RsaOaep,
    /// RSA with OAEP and SHA-256.
    #[serde(rename = "RSA-OAEP-256")]
    RsaOaep256,
}

/// Which keys of a token are versions of ours: all that is set must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) algorithm: Algorithm,
    pub(crate) label: Option<String>,
    pub(crate) id: Option<Vec<u8>>,
    /// FIPS tokens take no IV but their own.
    pub(crate) iv_from_token: bool,
}

/// One key.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) handle: ObjectHandle,
    pub(crate) id: Vec<u8>,
    pub(crate) key_id: KeyId,
    /// As `YYYYMMDD`; empty where the token has none.
    start: Vec<u8>,
    pub(crate) bits: u64,
    pub(crate) attributes: Vec<Attribute>,
}

impl Algorithm {
    /// Class and type of the key that decrypts.
    fn template(self) -> [Attribute; 3] {
        let (class, key_type) = match self {
            Self::AesGcm => (ObjectClass::SECRET_KEY, KeyType::AES),
            Self::RsaOaep | Self::RsaOaep256 => (ObjectClass::PRIVATE_KEY, KeyType::RSA),
        };
        [Attribute::Class(class), Attribute::KeyType(key_type), Attribute::Token(true)]
    }

    pub(crate) fn oaep(self) -> Mechanism<'static> {
        let (hash, mask) = match self {
            Self::RsaOaep256 => (MechanismType::SHA256, PkcsMgfType::MGF1_SHA256),
            _ => (MechanismType::SHA1, PkcsMgfType::MGF1_SHA1),
        };
        Mechanism::RsaPkcsOaep(PkcsOaepParams::new(hash, mask, PkcsOaepSource::empty()))
    }
}

impl Selector {
    /// The key that new data is wrapped with: the one with the latest start date that has come,
    /// and of several the one with the greatest id. It follows a rotation in the token.
    pub(crate) fn newest(&self, link: &mut Link) -> Result<Object, Error> {
        let today = time(std::time::SystemTime::now());
        let today: Vec<u8> = today.bytes().filter(u8::is_ascii_digit).take(8).collect();
        let all = self.list(link)?;
        let begun = all.into_iter().filter(|object| object.start <= today);
        let newest = begun.max_by(|a, b| a.age().cmp(&b.age()));
        newest.ok_or_else(|| found(self, codes::NOT_YET))
    }

    /// The key of a key_id, which may be forged: none but ours is looked at.
    pub(crate) fn named(&self, link: &mut Link, key_id: &KeyId) -> Result<Option<Object>, Error> {
        let is_it = |object: &Object| object.answers_to(key_id);
        let known = link.found.iter().find(|(by, object)| by == self && is_it(object));
        if let Some((_, object)) = known {
            return Ok(Some(object.clone()));
        }
        let found = self.list(link)?.into_iter().find(is_it);
        link.found.extend(found.clone().map(|object| (self.clone(), object)));
        Ok(found)
    }

    /// All versions that can be told apart.
    fn list(&self, link: &mut Link) -> Result<Vec<Object>, Error> {
        let mut template = self.algorithm.template().to_vec();
        template.extend(self.label.as_ref().map(|text| Attribute::Label(text.as_bytes().to_vec())));
        template.extend(self.id.clone().map(Attribute::Id));
        let failed = |failure| explain("look", self, &failure);
        let handles = link.session.find_objects(&template).map_err(failed)?;
        let all = handles.into_iter().map(|handle| self.read(link, handle));
        let mut all: Vec<Object> = all.collect::<Result<_, _>>()?;
        let is_there = !all.is_empty();
        all.retain(|object| (1..=MAX_ID).contains(&object.id.len()));
        let twice = |one: &Object| all.iter().filter(|other| other.id == one.id).count() > 1;
        match all.is_empty() {
            true if is_there => Err(found(self, codes::NO_ID)),
            true => Err(found(self, codes::NO_KEY)),
            false if all.iter().any(twice) => Err(found(self, codes::SAME_ID)),
            false => Ok(all),
        }
    }

    fn read(&self, link: &Link, handle: ObjectHandle) -> Result<Object, Error> {
        let failed = |failure| explain("look", self, &failure);
        let attributes = link.session.get_attributes(handle, &WANTED).map_err(failed)?;
        let (mut id, mut start, mut bits) = (Vec::new(), Vec::new(), 0);
        // What no other key has; without it, what no other token has.
        let (mut kind, mut mark) = ("aes", link.serial.clone());
        for attribute in &attributes {
            match attribute {
                Attribute::Id(value) => id.clone_from(value),
                Attribute::StartDate(day) if !day.is_empty() => {
                    start = [&day.year[..], &day.month, &day.day].concat();
                }
                Attribute::ValueLen(bytes) => bits = u64::from(*bytes) * 8,
                Attribute::CheckValue(value) if !value.is_empty() => mark = hex(value),
                Attribute::Modulus(value) => {
                    (kind, mark, bits) = ("rsa", hex(&sha256(value)), value.len() as u64 * 8);
                }
                _ => {}
            }
        }
        let version = Version { scope: scope(&[kind, &mark]), version: hex(&id) };
        let key_id = version.key_id(Pkcs11::NAME)?;
        Ok(Object { handle, id, key_id, start, bits, attributes })
    }

    /// As our own data is written.
    pub(crate) fn seal(
        &self,
        link: &Link,
        object: &Object,
        plaintext: &[u8],
    ) -> Result<Vec<u8>, Error> {
        if self.algorithm != Algorithm::AesGcm {
            let sealed = self.encrypt(link, object, &self.algorithm.oaep(), plaintext)?;
            return Ok([&[OAEP], &*sealed].concat());
        }
        if object.bits != 256 {
            return Err(found(self, codes::TOO_SHORT));
        }
        let (iv, sealed) = self.seal_gcm(link, object, IV, &aad(object), plaintext)?;
        Ok([&[GCM], &*iv, &*sealed].concat())
    }

    /// The IV, and what is encrypted under it.
    pub(crate) fn seal_gcm(
        &self,
        link: &Link,
        object: &Object,
        iv: usize,
        aad: &[u8],
        plaintext: &[u8],
    ) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let mut iv = match self.iv_from_token {
            false => Secret::random(iv)?.expose().to_vec(),
            true => vec![0; iv],
        };
        let sealed = self.encrypt(link, object, &gcm(&mut iv, aad)?, plaintext)?;
        if iv.iter().all(|byte| *byte == 0) {
            return Err(found(self, codes::NO_IV));
        }
        Ok((iv, sealed))
    }

    /// What [`seal`](Self::seal) has written.
    pub(crate) fn open(
        &self,
        link: &Link,
        object: &Object,
        sealed: &[u8],
    ) -> Result<Secret, Error> {
        let other = || found(self, codes::ALTERED);
        let (form, rest) = sealed.split_first().ok_or_else(other)?;
        match (*form, self.algorithm) {
            (GCM, Algorithm::AesGcm) if rest.len() > IV => {
                let (iv, sealed) = rest.split_at(IV);
                self.open_gcm(link, object, iv, &aad(object), sealed)
            }
            (OAEP, Algorithm::RsaOaep | Algorithm::RsaOaep256) => {
                self.decrypt(link, object, &self.algorithm.oaep(), rest)
            }
            _ => Err(other()),
        }
    }

    pub(crate) fn open_gcm(
        &self,
        link: &Link,
        object: &Object,
        iv: &[u8],
        aad: &[u8],
        sealed: &[u8],
    ) -> Result<Secret, Error> {
        self.decrypt(link, object, &gcm(&mut iv.to_vec(), aad)?, sealed)
    }

    /// Some tokens say of a tag that does not fit that the device is broken. If the key reads what
    /// it has just written, it was the ciphertext.
    pub(crate) fn judge(&self, link: &Link, object: &Object, error: Error) -> Error {
        let is_vague = matches!(error.kind(), Kind::Unavailable | Kind::Config | Kind::Invalid);
        let works = || -> Result<bool, Error> {
            let sample = Secret::random(32)?;
            let sealed = self.seal(link, object, sample.expose())?;
            Ok(self.open(link, object, &sealed)? == sample)
        };
        let was_ciphertext = is_vague && works().unwrap_or(false);
        if was_ciphertext { found(self, codes::ALTERED).with_source(error) } else { error }
    }

    fn encrypt(
        &self,
        link: &Link,
        object: &Object,
        mechanism: &Mechanism<'_>,
        plaintext: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let failed = |failure| explain("encrypt", self, &failure);
        let refuse = |finding| Err(found(self, finding));
        let is_aes = self.algorithm == Algorithm::AesGcm;
        let handle = match self.public(link, object).map_err(failed)? {
            _ if plaintext.is_empty() => return refuse(codes::EMPTY),
            _ if is_aes && object.has(&Attribute::Encrypt(false)) => {
                return refuse(codes::NO_ENCRYPT);
            }
            _ if !is_aes && object.bits < 2048 => return refuse(codes::TOO_SHORT),
            None => return refuse(codes::NO_PUBLIC),
            Some(handle) => handle,
        };
        link.session.encrypt(mechanism, handle, plaintext).map_err(failed)
    }

    /// What encrypts for a key: itself, or the public one beside it.
    fn public(&self, link: &Link, object: &Object) -> Result<Option<ObjectHandle>, Failure> {
        if self.algorithm == Algorithm::AesGcm {
            return Ok(Some(object.handle));
        }
        let class = Attribute::Class(ObjectClass::PUBLIC_KEY);
        let id = Attribute::Id(object.id.clone());
        Ok(link.session.find_objects(&[class, id])?.first().copied())
    }

    pub(crate) fn decrypt(
        &self,
        link: &Link,
        object: &Object,
        mechanism: &Mechanism<'_>,
        sealed: &[u8],
    ) -> Result<Secret, Error> {
        if object.has(&Attribute::Decrypt(false)) {
            return Err(found(self, codes::NO_DECRYPT));
        }
        let opened = link.session.decrypt(mechanism, object.handle, sealed);
        opened.map(Secret::new).map_err(|failure| explain("decrypt", self, &failure))
    }
}

impl Object {
    /// What a rotation makes greater. Ids are compared as the numbers that they usually are.
    fn age(&self) -> (&[u8], usize, &[u8]) {
        let zeros = self.id.iter().take_while(|byte| **byte == 0).count();
        (&self.start, self.id.len() - zeros, &self.id[zeros..])
    }

    pub(crate) fn has(&self, attribute: &Attribute) -> bool {
        self.attributes.contains(attribute)
    }

    /// The plugin that was replaced names keys by their ids alone.
    fn answers_to(&self, key_id: &KeyId) -> bool {
        self.key_id == *key_id || hex(&self.id) == key_id.as_str()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("key")?;
        self.label.iter().try_for_each(|label| write!(f, " {label:?}"))?;
        self.id.iter().try_for_each(|id| write!(f, " with CKA_ID {}", hex(id)))
    }
}

/// Binds a ciphertext to its key_id, so that neither can be exchanged.
fn aad(object: &Object) -> Vec<u8> {
    [b"sidekey-pkcs11/1/", object.key_id.as_str().as_bytes()].concat()
}

fn gcm<'a>(iv: &'a mut [u8], aad: &'a [u8]) -> Result<Mechanism<'a>, Error> {
    let bad = |failure| explain("AES-GCM", &"its IV", &failure);
    Ok(Mechanism::AesGcm(GcmParams::new(iv, aad, Ulong::new(128)).map_err(bad)?))
}
