//! Requests and answers of KMIP 1.2 to 1.4: one operation in each message.

use std::fmt;

use sidekey_core::{Error, Kind};
use sidekey_rest::codes::{Code, Refusal, code};
use zeroize::Zeroizing;

use crate::codec::{Item, Writer};

#[rustfmt::skip]
pub(crate) mod tag {
    pub(crate) const ATTRIBUTE: u32 = 0x42_0008;
    pub(crate) const ATTRIBUTE_NAME: u32 = 0x42_000a;
    pub(crate) const ATTRIBUTE_VALUE: u32 = 0x42_000b;
    pub(crate) const BATCH_COUNT: u32 = 0x42_000d;
    pub(crate) const BATCH_ITEM: u32 = 0x42_000f;
    pub(crate) const BLOCK_CIPHER_MODE: u32 = 0x42_0011;
    pub(crate) const CRYPTOGRAPHIC_ALGORITHM: u32 = 0x42_0028;
    pub(crate) const CRYPTOGRAPHIC_PARAMETERS: u32 = 0x42_002b;
    pub(crate) const IV_COUNTER_NONCE: u32 = 0x42_003d;
    pub(crate) const MAXIMUM_ITEMS: u32 = 0x42_004f;
    pub(crate) const NAME_TYPE: u32 = 0x42_0054;
    pub(crate) const NAME_VALUE: u32 = 0x42_0055;
    pub(crate) const OPERATION: u32 = 0x42_005c;
    pub(crate) const PADDING_METHOD: u32 = 0x42_005f;
    pub(crate) const PROTOCOL_VERSION: u32 = 0x42_0069;
    pub(crate) const PROTOCOL_VERSION_MAJOR: u32 = 0x42_006a;
    pub(crate) const PROTOCOL_VERSION_MINOR: u32 = 0x42_006b;
    pub(crate) const REQUEST_HEADER: u32 = 0x42_0077;
    pub(crate) const REQUEST_MESSAGE: u32 = 0x42_0078;
    pub(crate) const REQUEST_PAYLOAD: u32 = 0x42_0079;
    pub(crate) const RESPONSE_MESSAGE: u32 = 0x42_007b;
    pub(crate) const RESPONSE_PAYLOAD: u32 = 0x42_007c;
    pub(crate) const RESULT_MESSAGE: u32 = 0x42_007d;
    pub(crate) const RESULT_REASON: u32 = 0x42_007e;
    pub(crate) const RESULT_STATUS: u32 = 0x42_007f;
    pub(crate) const UNIQUE_IDENTIFIER: u32 = 0x42_0094;
    pub(crate) const DATA: u32 = 0x42_00c2;
    pub(crate) const IV_LENGTH: u32 = 0x42_00cd;
    pub(crate) const TAG_LENGTH: u32 = 0x42_00ce;
    pub(crate) const AEAD_DATA: u32 = 0x42_00fe;
    pub(crate) const AEAD_TAG: u32 = 0x42_00ff;
}

pub(crate) const ITEM_NOT_FOUND: u32 = 1;
pub(crate) const INVALID_MESSAGE: u32 = 4;
pub(crate) const INVALID_FIELD: u32 = 7;
pub(crate) const ILLEGAL_OPERATION: u32 = 0xb;
pub(crate) const PERMISSION_DENIED: u32 = 0xc;
pub(crate) const GENERAL_FAILURE: u32 = 0x100;

/// Reasons of KMIP 1.4, and those of 2.x that servers give before their time.
#[rustfmt::skip]
const REASONS: [(u32, &str); 18] = [
    (ITEM_NOT_FOUND, "ItemNotFound"), (3, "AuthenticationNotSuccessful"), (INVALID_MESSAGE, "InvalidMessage"),
    (5, "OperationNotSupported"), (6, "MissingData"), (INVALID_FIELD, "InvalidField"), (8, "FeatureNotSupported"),
    (0xa, "CryptographicFailure"), (ILLEGAL_OPERATION, "IllegalOperation"), (PERMISSION_DENIED, "PermissionDenied"), (0xd, "ObjectArchived"),
    (0x14, "AttestationRequired"), (0x15, "AttestationFailed"), (0x24, "BadCryptographicParameters"),
    (0x29, "IncompatibleCryptographicUsageMask"), (0x2a, "WrongKeyLifecycleState"), (0x3e, "UnsupportedCryptographicParameters"),
    (GENERAL_FAILURE, "GeneralFailure"),
];

/// What the reasons mean. A general failure is what some servers say of a ciphertext that does not
/// authenticate, and others while a part of them is down: it may pass.
#[rustfmt::skip]
const CODES: [Code; 8] = [
    code("Decrypt", "CryptographicFailure|InvalidField", Kind::Corrupt, "it was altered, or another key wrapped it"),
    code("Decrypt", "GeneralFailure", Kind::Unavailable, "if the server decrypts other data, this was altered, or another key wrapped it"),
    code("", "ItemNotFound|ObjectArchived|WrongKeyLifecycleState|IllegalOperation", Kind::KeyState, "see what has become of the key at the KMS; it is never made by this provider"),
    code("", "AuthenticationNotSuccessful|AttestationRequired|AttestationFailed", Kind::Denied, "see whether the KMS knows our certificate"),
    code("", "PermissionDenied", Kind::Denied, "let the owner of our certificate locate, read the attributes of, encrypt and decrypt with this key"),
    code("", "OperationNotSupported|FeatureNotSupported", Kind::Config, "the KMS must serve Locate, GetAttributes, Encrypt and Decrypt of KMIP 1.2 to 1.4"),
    code("Encrypt", "InvalidField|MissingData|BadCryptographicParameters|UnsupportedCryptographicParameters", Kind::Config, "see whether the KMS has this block cipher mode for AES, and whether the key allows it"),
    code("", "IncompatibleCryptographicUsageMask", Kind::Config, "the key must be for Encrypt and Decrypt"),
];

/// A version of KMIP: 1.2, 1.3 or 1.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(i32);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Locate = 0x08,
    GetAttributes = 0x0b,
    DiscoverVersions = 0x1e,
    Encrypt = 0x1f,
    Decrypt = 0x20,
}

/// A refusal, and the reason that it has in KMIP; no reason if the answer makes no sense.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: Option<u32>,
    pub(crate) error: Error,
}

impl Version {
    /// Best first.
    pub(crate) const ALL: [Self; 3] = [Self(4), Self(3), Self(2)];
    /// The first in which a version can be asked for and keys can be used.
    pub(crate) const OLDEST: Self = Self(2);

    /// Whether its Encrypt and Decrypt have fields for a tag and for additional authenticated data.
    pub fn has_aead(self) -> bool {
        self >= Self(4)
    }

    pub(crate) fn write(self, writer: &mut Writer) {
        writer.structure(tag::PROTOCOL_VERSION, |version| {
            version.integer(tag::PROTOCOL_VERSION_MAJOR, 1);
            version.integer(tag::PROTOCOL_VERSION_MINOR, self.0);
        });
    }

    pub(crate) fn read(item: Item<'_>) -> Option<Self> {
        let number = |tag| item.find(tag).and_then(Item::integer);
        let minor = number(tag::PROTOCOL_VERSION_MINOR)?;
        (number(tag::PROTOCOL_VERSION_MAJOR)? == 1).then_some(Self(minor))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KMIP 1.{}", self.0)
    }
}

impl Failure {
    /// An answer that makes no sense may pass: something else may have given it.
    pub(crate) fn odd(operation: Operation, what: &str) -> Self {
        let error = Error::new(Kind::Unavailable, format!("{operation:?}: {what}"))
            .with_hint("see whether it is the KMS that answers");
        Self { reason: None, error }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// A whole request. `size` is more than its payload has.
pub(crate) fn request(
    version: Version,
    operation: Operation,
    size: usize,
    payload: impl FnOnce(&mut Writer) -> Result<(), Error>,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    const AROUND: usize = 256;
    let mut writer = Writer::new(size + AROUND);
    writer.structure(tag::REQUEST_MESSAGE, |message| {
        message.structure(tag::REQUEST_HEADER, |header| {
            version.write(header);
            header.integer(tag::BATCH_COUNT, 1);
        });
        message.structure(tag::BATCH_ITEM, |item| {
            item.enumeration(tag::OPERATION, operation as u32);
            item.structure(tag::REQUEST_PAYLOAD, payload)
        })
    })?;
    Ok(writer.finish())
}

/// The payload of an answer to `operation` on `object`.
pub(crate) fn payload<'a>(
    answer: &'a [u8],
    operation: Operation,
    object: &str,
) -> Result<Item<'a>, Failure> {
    let odd = |what| Failure::odd(operation, what);
    let message = Item::parse(answer).map_err(odd)?;
    let mut items = message.items().filter(|item| item.tag == tag::BATCH_ITEM);
    let (Some(item), None) = (items.next(), items.next()) else {
        return Err(odd("the answer is not of one item"));
    };
    let number = |tag| item.find(tag).and_then(Item::enumeration);
    // One who could not read the request does not repeat what was asked.
    if number(tag::OPERATION).is_some_and(|other| other != operation as u32) {
        return Err(odd("the answer is to something else"));
    }
    match number(tag::RESULT_STATUS) {
        Some(0) => {
            let payload = item.find(tag::RESPONSE_PAYLOAD).filter(|payload| payload.is_structure());
            payload.ok_or_else(|| odd("the answer is empty"))
        }
        Some(1) => {
            let reason = number(tag::RESULT_REASON).unwrap_or(GENERAL_FAILURE);
            let text = item.find(tag::RESULT_MESSAGE).and_then(Item::text).unwrap_or_default();
            Err(refused(operation, object, reason, text))
        }
        _ => Err(odd("the answer is neither good nor bad")),
    }
}

fn refused(operation: Operation, object: &str, reason: u32, text: &str) -> Failure {
    let named = REASONS.iter().find(|(number, _)| *number == reason);
    let code = named.map_or_else(|| format!("{reason:#x}"), |(_, name)| (*name).to_owned());
    let action = format!("{operation:?}");
    let refusal = Refusal { action: &action, object, status: 0, code: Some(&code), text };
    Failure { reason: Some(reason), error: refusal.explain(&CODES) }
}
