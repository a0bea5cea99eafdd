//! Requests and answers of KMIP 1.2 to 1.4: one operation in each message.

use sidekey_core::{Error, Kind};
use sidekey_rest::codes::{Code, Refusal, code};
use zeroize::Zeroizing;

use crate::codec::Value::{Enumeration, Integer, Structure};
use crate::codec::{Item, Value, encode};

/// The versions that are spoken, best first, by their minor numbers: keys can be used from 1.2 on.
pub(crate) const VERSIONS: [i32; 3] = [4, 3, 2];
/// The first whose Encrypt and Decrypt have fields for a tag and for additional authenticated data.
pub(crate) const AEAD: i32 = 4;

#[rustfmt::skip]
pub(crate) mod tag {
    macro_rules! tags {
        ($($name:ident $number:literal)*) => { $(pub(crate) const $name: u32 = 0x42_0000 | $number;)* };
    }
    tags! {
        ATTRIBUTE 0x08  ATTRIBUTE_NAME 0x0a  ATTRIBUTE_VALUE 0x0b  BATCH_COUNT 0x0d  BATCH_ITEM 0x0f
        BLOCK_CIPHER_MODE 0x11  CRYPTOGRAPHIC_ALGORITHM 0x28  CRYPTOGRAPHIC_PARAMETERS 0x2b
        IV_COUNTER_NONCE 0x3d  MAXIMUM_ITEMS 0x4f  NAME_TYPE 0x54  NAME_VALUE 0x55  OPERATION 0x5c
        PADDING_METHOD 0x5f  PROTOCOL_VERSION 0x69  PROTOCOL_VERSION_MAJOR 0x6a  PROTOCOL_VERSION_MINOR 0x6b
        REQUEST_HEADER 0x77  REQUEST_MESSAGE 0x78  REQUEST_PAYLOAD 0x79  RESPONSE_MESSAGE 0x7b
        RESPONSE_PAYLOAD 0x7c  RESULT_MESSAGE 0x7d  RESULT_REASON 0x7e  RESULT_STATUS 0x7f
        UNIQUE_IDENTIFIER 0x94  DATA 0xc2  IV_LENGTH 0xcd  TAG_LENGTH 0xce  AEAD_DATA 0xfe  AEAD_TAG 0xff
    }
}

/// Reasons of KMIP 1.4, and those of 2.x that servers give before their time.
#[rustfmt::skip]
const REASONS: [(u32, &str); 18] = [
    (1, "ItemNotFound"), (3, "AuthenticationNotSuccessful"), (4, "InvalidMessage"), (5, "OperationNotSupported"),
    (6, "MissingData"), (7, "InvalidField"), (8, "FeatureNotSupported"), (0xa, "CryptographicFailure"),
    (0xb, "IllegalOperation"), (0xc, "PermissionDenied"), (0xd, "ObjectArchived"), (0x14, "AttestationRequired"),
    (0x15, "AttestationFailed"), (0x24, "BadCryptographicParameters"), (0x29, "IncompatibleCryptographicUsageMask"),
    (0x2a, "WrongKeyLifecycleState"), (0x3e, "UnsupportedCryptographicParameters"), (GENERAL_FAILURE, "GeneralFailure"),
];
const GENERAL_FAILURE: u32 = 0x100;

/// What the reasons mean. A general failure is what some servers say of a ciphertext that does not
/// authenticate, and others while a part of them is down: it may pass.
#[rustfmt::skip]
const CODES: [Code; 8] = [
    code("Decrypt", "CryptographicFailure|InvalidField", Kind::Corrupt, "it was altered, or another key wrapped it"),
    code("Decrypt", "GeneralFailure", Kind::Unavailable, "if the KMS decrypts other data, this was altered, or another key wrapped it"),
    code("", "ItemNotFound|ObjectArchived|WrongKeyLifecycleState|IllegalOperation", Kind::KeyState, "see what has become of the key at the KMS; it is never made by this provider"),
    code("", "AuthenticationNotSuccessful|AttestationRequired|AttestationFailed", Kind::Denied, "see whether the KMS knows our certificate"),
    code("", "PermissionDenied", Kind::Denied, "let the owner of our certificate locate, read the attributes of, encrypt and decrypt with this key"),
    code("", "OperationNotSupported|FeatureNotSupported", Kind::Config, "the KMS must serve Locate, GetAttributes, Encrypt and Decrypt of KMIP 1.2 to 1.4"),
    code("Encrypt", "InvalidField|MissingData|BadCryptographicParameters|UnsupportedCryptographicParameters", Kind::Config, "see whether the KMS has this block cipher mode for AES, and whether the key allows it"),
    code("", "IncompatibleCryptographicUsageMask", Kind::Config, "the key must be for Encrypt and Decrypt"),
];

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Locate = 0x08,
    GetAttributes = 0x0b,
    DiscoverVersions = 0x1e,
    Encrypt = 0x1f,
    Decrypt = 0x20,
}

/// A whole request in this version.
pub(crate) fn request(
    minor: i32,
    operation: Operation,
    payload: &[(u32, Value<'_>)],
) -> Zeroizing<Vec<u8>> {
    let version = version(minor);
    let header = [(tag::PROTOCOL_VERSION, Structure(&version)), (tag::BATCH_COUNT, Integer(1))];
    let item = [
        (tag::OPERATION, Enumeration(operation as u32)),
        (tag::REQUEST_PAYLOAD, Structure(payload)),
    ];
    let message = [(tag::REQUEST_HEADER, Structure(&header)), (tag::BATCH_ITEM, Structure(&item))];
    encode(tag::REQUEST_MESSAGE, Structure(&message))
}

pub(crate) fn version(minor: i32) -> [(u32, Value<'static>); 2] {
    [(tag::PROTOCOL_VERSION_MAJOR, Integer(1)), (tag::PROTOCOL_VERSION_MINOR, Integer(minor))]
}

/// The payload of an answer to `operation` on `object`. If it names a key, it must be that one.
pub(crate) fn payload<'a>(
    answer: &'a [u8],
    operation: Operation,
    object: &str,
) -> Result<Item<'a>, Error> {
    let odd = |what| odd(operation, what);
    let message = Item::parse(answer).map_err(odd)?;
    let mut items = message.items().filter(|item| item.tag == tag::BATCH_ITEM);
    let (Some(item), None) = (items.next(), items.next()) else {
        return Err(odd("the answer is not of one item"));
    };
    let number = |tag| item.find(tag).and_then(Item::number);
    // One who could not read the request does not repeat what was asked.
    if number(tag::OPERATION).is_some_and(|other| other != operation as u32) {
        return Err(odd("the answer is to something else"));
    }
    match number(tag::RESULT_STATUS) {
        Some(0) => {}
        Some(1) => {
            let reason = number(tag::RESULT_REASON).unwrap_or(GENERAL_FAILURE);
            let text = item.find(tag::RESULT_MESSAGE).and_then(Item::text).unwrap_or_default();
            return Err(refused(operation, object, reason, text));
        }
        _ => return Err(odd("the answer is neither good nor bad")),
    }
    let payload = item.find(tag::RESPONSE_PAYLOAD).filter(|payload| payload.is_structure());
    let payload = payload.ok_or_else(|| odd("the answer is empty"))?;
    let named = payload.find(tag::UNIQUE_IDENTIFIER).and_then(Item::text);
    if operation != Operation::Locate && named.is_some_and(|named| named != object) {
        return Err(odd("the answer is of another key"));
    }
    Ok(payload)
}

/// An answer that makes no sense may pass: something else may have given it.
pub(crate) fn odd(operation: Operation, what: &str) -> Error {
    Error::new(Kind::Unavailable, format!("{operation:?}: {what}"))
        .with_hint("see whether it is the KMS that answers")
}

fn refused(operation: Operation, object: &str, reason: u32, text: &str) -> Error {
    let named = REASONS.iter().find(|(number, _)| *number == reason);
    let code = named.map_or_else(|| format!("{reason:#x}"), |(_, name)| (*name).to_owned());
    let action = format!("{operation:?}");
    Refusal { action: &action, object, status: 0, code: Some(&code), text }.explain(&CODES)
}
