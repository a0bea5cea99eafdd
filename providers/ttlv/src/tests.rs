//! The client against a scripted server: what it asks, and which answers it takes.

mod answers;
mod fuzz;
mod servers;

use std::time::Duration;

use sidekey_core::Kind;
use tokio::time::Instant;

use crate::codec::Item;
use crate::protocol::{Operation, tag};
use crate::testing::{Fake, Reply, Seen, Writer, answer, asked, operation, refusal};
use crate::{Cipher, Client, Mode, address};

const TAG: [u8; 16] = [7; 16];
const GCM: Cipher<'_> = Cipher { mode: Mode::Gcm, iv: &[1; 12], aad: b"aad" };
const BARE: Cipher<'_> = Cipher { mode: Mode::Gcm, iv: &[1; 12], aad: &[] };

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn bytes<'a>(item: Item<'a>, tag: u32) -> Option<&'a [u8]> {
    item.find(tag).and_then(Item::bytes)
}

/// Encrypts by turning bits, and has a tag of its own; speaks KMIP up to `1.minor`. Its keys are in
/// the state that their names say, and `reader` is for Decrypt alone.
fn kms(minor: i32) -> impl Fn(&[u8]) -> Reply + Send + Sync + Clone + 'static {
    move |request: &[u8]| Reply::Answer(answered(request, minor), 1)
}

fn answered(request: &[u8], minor: i32) -> Vec<u8> {
    let (code, asked) = (operation(request), asked(request));
    let uid = asked.find(tag::UNIQUE_IDENTIFIER).and_then(Item::text).unwrap_or_default();
    let data = bytes(asked, tag::DATA).unwrap_or_default();
    let turned: Vec<u8> = data.iter().map(|byte| !byte).collect();
    let is_gcm = asked
        .find(tag::CRYPTOGRAPHIC_PARAMETERS)
        .and_then(|parameters| parameters.find(tag::BLOCK_CIPHER_MODE)?.number())
        == Some(Mode::Gcm as u32);
    answer(code, |payload| match code {
        code if code == Operation::DiscoverVersions as u32 => {
            (2..=minor).for_each(|minor| payload.version(minor));
        }
        code if code == Operation::Locate as u32 => {
            payload.text(tag::UNIQUE_IDENTIFIER, "key-2");
            payload.text(tag::UNIQUE_IDENTIFIER, "key-1");
        }
        code if code == Operation::GetAttributes as u32 => {
            payload.text(tag::UNIQUE_IDENTIFIER, uid);
            let state = ["", "waiting", "active", "deactivated", "compromised", "destroyed"];
            let state = state.iter().position(|state| *state == uid).unwrap_or(2);
            let usage = if uid == "reader" { 0x8 } else { 0xc };
            attributes(payload, state as u32, 2, 3, usage);
        }
        code if code == Operation::Encrypt as u32 => {
            payload.text(tag::UNIQUE_IDENTIFIER, uid);
            match (is_gcm, minor) {
                (true, 4) => {
                    payload.bytes(tag::DATA, &turned);
                    payload.bytes(tag::AEAD_TAG, &TAG);
                }
                (true, _) => payload.bytes(tag::DATA, &[&turned[..], &TAG].concat()),
                (false, _) => payload.bytes(tag::DATA, &turned),
            }
        }
        _ => {
            payload.text(tag::UNIQUE_IDENTIFIER, uid);
            let tag_len = if is_gcm && minor < 4 { TAG.len() } else { 0 };
            payload.bytes(tag::DATA, &turned[..turned.len() - tag_len]);
        }
    })
}

fn attributes(payload: &mut Writer, state: u32, kind: u32, algorithm: u32, usage: i32) {
    let mut attribute = |name: &str, fill: &dyn Fn(&mut Writer)| {
        payload.structure(tag::ATTRIBUTE, |attribute| {
            attribute.text(tag::ATTRIBUTE_NAME, name);
            fill(attribute);
        });
    };
    attribute("State", &|item| item.enumeration(tag::ATTRIBUTE_VALUE, state));
    attribute("Object Type", &|item| item.enumeration(tag::ATTRIBUTE_VALUE, kind));
    attribute("Cryptographic Algorithm", &|item| item.enumeration(tag::ATTRIBUTE_VALUE, algorithm));
    attribute("Cryptographic Usage Mask", &|item| item.integer(tag::ATTRIBUTE_VALUE, usage));
}

#[tokio::test]
async fn the_best_version_that_both_speak_is_used_and_a_tag_is_where_that_version_has_it() {
    for minor in [4, 3, 2] {
        let fake = Fake::start(kms(minor)).await;
        let client = fake.client();
        let cipher = if minor == 4 { GCM } else { BARE };
        let encrypted = client.encrypt("key-1", &cipher, b"secret", soon()).await.unwrap();
        assert_eq!(encrypted, [&b"secret".map(|byte| !byte)[..], &TAG].concat(), "1.{minor}");
        let decrypted = client.decrypt("key-1", &cipher, &encrypted, soon()).await.unwrap();
        assert_eq!(decrypted.expose(), b"secret");
        let seen = fake.seen.lock().unwrap();
        let [_, Seen(_, encrypt), Seen(_, decrypt)] = &seen[..] else {
            panic!("{} calls", seen.len())
        };
        for (request, data) in [(encrypt, &b"secret"[..]), (decrypt, &encrypted)] {
            let header = Item::parse(request).unwrap().items().next().unwrap();
            let version = header.find(tag::PROTOCOL_VERSION).unwrap();
            let spoken = version.find(tag::PROTOCOL_VERSION_MINOR).and_then(Item::number);
            assert_eq!(spoken, u32::try_from(minor).ok());
            let asked = asked(request);
            assert_eq!(bytes(asked, tag::IV_COUNTER_NONCE), Some(GCM.iv));
            assert_eq!(bytes(asked, tag::AEAD_DATA), (minor == 4).then_some(GCM.aad));
            let tagged = minor == 4 && request == decrypt;
            assert_eq!(bytes(asked, tag::AEAD_TAG), tagged.then_some(&TAG[..]));
            let data = if tagged { &data[..data.len() - TAG.len()] } else { data };
            assert_eq!(bytes(asked, tag::DATA), Some(data));
        }
    }
}

#[tokio::test]
async fn additional_data_is_not_left_out_where_the_version_has_none() {
    let fake = Fake::start(kms(3)).await;
    let client = fake.client();
    let error = client.encrypt("key-1", &GCM, b"secret", soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(
        error.report().contains("KMIP 1.3, or this mode, has no additional authenticated data")
    );
    let error = client.decrypt("key-1", &GCM, &[0; 32], soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    let discover = (0, Operation::DiscoverVersions as u32);
    assert_eq!(fake.operations()[0], discover);
    assert!(fake.operations().iter().all(|(_, operation)| *operation == discover.1));
}

#[tokio::test]
async fn a_server_of_other_versions_is_refused() {
    let none = |request: &[u8]| Reply::Answer(answer(operation(request), |_| {}), 1);
    let error = Fake::start(none).await.client().locate("kms", soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(error.report().contains("none of KMIP 1.2 to 1.4"), "{}", error.report());
}

#[tokio::test]
async fn modes_without_a_tag_are_asked_for_without_padding() {
    let fake = Fake::start(kms(2)).await;
    let client = fake.client();
    for (mode, padding) in [(Mode::Cbc, Some(1)), (Mode::Ctr, None)] {
        let cipher = Cipher { mode, iv: &[2; 16], aad: &[] };
        let encrypted = client.encrypt("key-1", &cipher, &[5; 32], soon()).await.unwrap();
        assert_eq!(encrypted, [!5; 32]);
        let decrypted = client.decrypt("key-1", &cipher, &encrypted, soon()).await.unwrap();
        assert_eq!(decrypted.expose(), [5; 32]);
        let seen = fake.seen.lock().unwrap();
        let parameters =
            asked(&seen.last().unwrap().1).find(tag::CRYPTOGRAPHIC_PARAMETERS).unwrap();
        assert_eq!(parameters.find(tag::PADDING_METHOD).and_then(Item::number), padding);
        assert_eq!(parameters.find(tag::TAG_LENGTH), None);
    }
}

#[tokio::test]
async fn keys_are_found_by_name_if_they_are_active_and_symmetric() {
    let fake = Fake::start(kms(4)).await;
    assert_eq!(fake.client().locate("kms", soon()).await.unwrap(), ["key-2", "key-1"]);
    let seen = fake.seen.lock().unwrap();
    let asked = asked(&seen.last().unwrap().1);
    let attributes = asked.items().filter(|item| item.tag == tag::ATTRIBUTE);
    let wanted: Vec<_> = attributes.map(|one| one.find(tag::ATTRIBUTE_VALUE).unwrap()).collect();
    assert_eq!(wanted[0].find(tag::NAME_VALUE).and_then(Item::text), Some("kms"));
    assert_eq!(wanted[1].number(), Some(2), "active");
    assert_eq!(wanted[2].number(), Some(2), "symmetric key");
}

#[tokio::test]
async fn a_key_that_is_not_for_this_is_refused_for_what_it_is() {
    for (state, kind, algorithm, usage, expected) in [
        (2, 2, 3, 0xc, None),
        (2, 2, 3, 0xffff, None),
        (1, 2, 3, 0xc, Some((Kind::KeyState, "not yet active"))),
        (3, 2, 3, 0xc, Some((Kind::KeyState, "deactivated"))),
        (4, 2, 3, 0xc, Some((Kind::KeyState, "compromised"))),
        (5, 2, 3, 0xc, Some((Kind::KeyState, "destroyed"))),
        (0, 2, 3, 0xc, Some((Kind::KeyState, "key key-1 is in no state"))),
        (u32::MAX, 2, 3, 0xc, Some((Kind::KeyState, "key key-1 is in no state"))),
        (2, 3, 4, 0xc, Some((Kind::Config, "no symmetric key of AES"))),
        (2, 2, 2, 0xc, Some((Kind::Config, "no symmetric key of AES"))),
        (2, 2, 3, 0x4, Some((Kind::Config, "not for both Encrypt and Decrypt"))),
        (2, 2, 3, 0x8, Some((Kind::Config, "not for both Encrypt and Decrypt"))),
    ] {
        let fake = Fake::start(move |request: &[u8]| match operation(request) {
            code if code == Operation::GetAttributes as u32 => Reply::Answer(
                answer(code, |payload| attributes(payload, state, kind, algorithm, usage)),
                1,
            ),
            _ => kms(4)(request),
        });
        let checked = fake.await.client().check("key-1", soon()).await;
        match (checked, expected) {
            (Ok(()), None) => {}
            (Err(error), Some((kind, text))) => {
                assert_eq!(error.kind(), kind, "{}", error.report());
                assert!(error.report().contains(text), "{}", error.report());
            }
            (checked, _) => panic!("{state} {kind} {algorithm} {usage}: {checked:?}"),
        }
    }
}

#[tokio::test]
async fn a_refusal_that_may_mean_the_keys_state_is_told_as_that() {
    for (uid, reason, kind, text) in [
        ("deactivated", 0xc, Kind::KeyState, "is deactivated"),
        ("deactivated", 0x2a, Kind::KeyState, "is deactivated"),
        ("deactivated", 5, Kind::KeyState, "is deactivated"),
        ("compromised", 0xb, Kind::KeyState, "is compromised"),
        ("destroyed", 0x100, Kind::KeyState, "is destroyed"),
        ("destroyed", 0xa, Kind::KeyState, "is destroyed"),
        ("waiting", 0x100, Kind::KeyState, "is not yet active"),
        ("waiting", 0xa, Kind::KeyState, "is not yet active"),
        ("reader", 0x29, Kind::Config, "is not for both"),
        // What decrypts may fail for a moment, and may be given what was altered.
        ("deactivated", 0x100, Kind::Unavailable, "GeneralFailure"),
        ("compromised", 0x3fff, Kind::Unavailable, "0x3fff"),
        ("deactivated", 0xa, Kind::Corrupt, "CryptographicFailure"),
        ("compromised", 7, Kind::Corrupt, "InvalidField"),
        ("reader", 0x100, Kind::Unavailable, "GeneralFailure"),
        ("reader", 0xa, Kind::Corrupt, "CryptographicFailure"),
        ("active", 0xc, Kind::Denied, "PermissionDenied"),
        ("active", 0x100, Kind::Unavailable, "GeneralFailure"),
        ("active", 1, Kind::KeyState, "ItemNotFound"),
        ("active", 3, Kind::Denied, "AuthenticationNotSuccessful"),
        ("active", 0xa, Kind::Corrupt, "CryptographicFailure"),
        ("active", 5, Kind::Config, "OperationNotSupported"),
        ("active", 0x3fff, Kind::Unavailable, "0x3fff"),
    ] {
        let client = refusing(vec![(Operation::Decrypt, reason)]).await;
        let error = client.decrypt(uid, &GCM, &[0; 32], soon()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{uid} {reason:#x}: {}", error.report());
        for word in [uid, text] {
            assert!(error.report().contains(word), "{uid} {reason:#x}: {}", error.report());
        }
    }
}

#[tokio::test]
async fn nothing_can_be_encrypted_by_a_key_that_is_not_active_and_that_is_what_is_told() {
    for uid in ["waiting", "deactivated", "compromised", "destroyed"] {
        for reason in [5, 0xc, 0x100] {
            let client = refusing(vec![(Operation::Encrypt, reason)]).await;
            let error = client.encrypt(uid, &GCM, b"secret", soon()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::KeyState, "{uid} {reason:#x}: {}", error.report());
        }
    }
}

#[tokio::test]
async fn a_state_that_cannot_be_asked_for_takes_the_place_of_no_refusal_unless_the_key_is_gone() {
    for (reason, kind) in
        [(1, Kind::KeyState), (5, Kind::Corrupt), (0xc, Kind::Corrupt), (0x100, Kind::Corrupt)]
    {
        let refused = vec![(Operation::Decrypt, 0xa), (Operation::GetAttributes, reason)];
        let client = refusing(refused).await;
        let error = client.decrypt("key-1", &GCM, &[0; 32], soon()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{reason:#x}: {}", error.report());
    }
}

/// A client of a server that refuses these operations for these reasons.
async fn refusing(refused: Vec<(Operation, u32)>) -> Client {
    let fake = Fake::start(move |request: &[u8]| {
        let code = operation(request);
        match refused.iter().find(|(operation, _)| *operation as u32 == code) {
            Some((_, reason)) => Reply::Answer(refusal(code, *reason, "no"), 1),
            None => kms(4)(request),
        }
    });
    fake.await.client()
}

#[test]
fn addresses_have_the_port_of_kmip_unless_they_say_another() {
    for (text, authority) in [
        ("kms.example", "kms.example:5696"),
        ("KMS.example:1234", "kms.example:1234"),
        ("127.0.0.1", "127.0.0.1:5696"),
        ("[2001:db8::1]", "[2001:db8::1]:5696"),
        ("[2001:db8::1]:1234", "[2001:db8::1]:1234"),
    ] {
        assert_eq!(address(text).unwrap().authority(), authority);
    }
    for text in
        ["", ":", ":5696", "https://kms", "a b", "kms/x", "kms:0", "kms:x", "u@kms", "2001:db8::1"]
    {
        assert!(address(text).is_err(), "{text}");
    }
}
