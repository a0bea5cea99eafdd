//! Keys as a token has them: which ones there are, and how they are named.

use std::fmt;

use cryptoki::error::Error as Failure;
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use serde::Deserialize;
use sidekey_core::{Error, KeyId, Provider, hex, sha256, time};
use sidekey_rest::naming::{Version, scope};

use crate::Pkcs11;
use crate::codes::{self, explain, found};
use crate::config::unhex;
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
        let mut all = self.list(link, self.id.clone())?;
        let is_there = !all.is_empty();
        all.retain(|object| !object.id.is_empty());
        let none = match all.is_empty() {
            true if is_there => codes::NO_ID,
            true => codes::NO_KEY,
            false => codes::NOT_YET,
        };
        let begun = all.iter().filter(|object| object.start <= today);
        let newest = begun.max_by(|a, b| a.age().cmp(&b.age())).ok_or_else(|| found(self, none))?;
        match all.iter().filter(|object| object.id == newest.id).count() {
            1 => Ok(newest.clone()),
            _ => Err(found(self, codes::SAME_ID)),
        }
    }

    /// Whether a key_id, which may be forged, is of a form that one of these keys could have.
    pub(crate) fn may_be(&self, key_id: &KeyId) -> bool {
        self.id_in(key_id).is_some()
    }

    /// The key that a key_id asks for. Nothing but its CKA_ID finds an AES key: what a token says of
    /// check values and serial numbers may change while the key stays, and the tag of GCM proves it.
    pub(crate) fn named(&self, link: &mut Link, key_id: &KeyId) -> Result<Option<Object>, Error> {
        let Some(id) = self.id_in(key_id) else { return Ok(None) };
        let is_it = |object: &Object| object.is_named(key_id);
        let known = link.found.iter().find(|(by, object)| by == self && is_it(object));
        if let Some((_, object)) = known {
            return Ok(Some(object.clone()));
        }
        let mut all = self.list(link, Some(id))?;
        let is_exact = all.iter().any(is_it);
        if is_exact || self.algorithm != Algorithm::AesGcm {
            all.retain(is_it);
        }
        if all.len() > 1 {
            return Err(found(self, codes::SAME_ID));
        }
        let object = all.pop();
        // What forged key_ids find would fill the memory.
        link.found.extend(object.clone().filter(is_it).map(|object| (self.clone(), object)));
        Ok(object)
    }

    /// The CKA_ID in a key_id of ours or of the plugin that was replaced.
    fn id_in(&self, key_id: &KeyId) -> Option<Vec<u8>> {
        let version = Version::parse(Pkcs11::NAME, key_id.as_str());
        let text = version.as_ref().map_or(key_id.as_str(), |version| &version.version);
        let id = unhex(text).filter(|id| id.len() <= MAX_ID && hex(id) == text)?;
        self.id.as_ref().is_none_or(|ours| *ours == id).then_some(id)
    }

    /// All versions, or those with a CKA_ID.
    fn list(&self, link: &Link, id: Option<Vec<u8>>) -> Result<Vec<Object>, Error> {
        let mut template = self.algorithm.template().to_vec();
        template.extend(self.label.as_ref().map(|text| Attribute::Label(text.as_bytes().to_vec())));
        template.extend(id.map(Attribute::Id));
        let failed = |failure| explain("look", self, &failure);
        let handles = link.session.find_objects(&template).map_err(failed)?;
        handles.into_iter().map(|handle| self.read(link, handle)).collect()
    }

    fn read(&self, link: &Link, handle: ObjectHandle) -> Result<Object, Error> {
        let failed = |failure| explain("look", self, &failure);
        let attributes = attributes(link, handle).map_err(failed)?;
        let (mut id, mut start, mut bits) = (Vec::new(), Vec::new(), 0);
        // What no other key has; without it, what no other token has.
        let (mut kind, mut mark) = ("aes", link.serial.clone());
        for attribute in &attributes {
            match attribute {
                Attribute::Id(value) if value.len() <= MAX_ID => id.clone_from(value),
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
    pub(crate) fn is_named(&self, key_id: &KeyId) -> bool {
        self.key_id == *key_id || hex(&self.id) == key_id.as_str()
    }
}

/// What a token says of a key. What of it cannot be read is as if it were not there, and costs no other
/// key anything.
fn attributes(link: &Link, handle: ObjectHandle) -> Result<Vec<Attribute>, Failure> {
    let read = |wanted: &[AttributeType]| link.session.get_attributes(handle, wanted);
    match read(&WANTED) {
        Ok(attributes) => Ok(attributes),
        Err(failure @ Failure::Pkcs11(..)) => Err(failure),
        Err(_) => {
            let each = WANTED.iter().filter_map(|wanted| match read(&[*wanted]) {
                Err(failure @ Failure::Pkcs11(..)) => Some(Err(failure)),
                Err(_) => None,
                Ok(attributes) => Some(Ok(attributes)),
            });
            Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("key")?;
        self.label.iter().try_for_each(|label| write!(f, " {label:?}"))?;
        self.id.iter().try_for_each(|id| write!(f, " with CKA_ID {}", hex(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_key_ids_that_could_be_of_these_keys_cost_a_look_into_the_token() {
        let scope = scope(&["aes", "0102"]);
        let may_be = |id: Option<&[u8]>, key_id: &str| {
            let keys = Selector { id: id.map(<[u8]>::to_vec), ..Selector::default() };
            keys.may_be(&KeyId::new(key_id).unwrap())
        };
        for ours in [&*format!("pkcs11/{scope}/0a"), "0a"] {
            assert!(may_be(None, ours) && may_be(Some(&[10]), ours), "{ours}");
            assert!(!may_be(Some(&[11]), ours), "{ours}");
        }
        for other in [
            "0A",
            "0",
            "etcd",
            "pkcs11/0a",
            &format!("pkcs11/{scope}/0A"),
            &format!("pkcs11/{scope}/etcd"),
            &format!("azure/{scope}/0a"),
            &"0a".repeat(MAX_ID + 1),
        ] {
            assert!(!may_be(None, other), "{other}");
        }
    }
}
