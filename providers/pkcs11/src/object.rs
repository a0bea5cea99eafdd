//! Keys as a token has them: which ones there are, and how they are named.

use std::fmt;

use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use serde::Deserialize;
use sidekey_core::{Error, KeyId, Provider, hex, sha256, time};
use sidekey_rest::naming::{Version, scope};

use crate::Pkcs11;
use crate::codes::{self, explain, found};
use crate::library::Link;

/// Longer ones make key_ids that are too long.
const MAX_ID: usize = 255;

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
