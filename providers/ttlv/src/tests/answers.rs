//! Answers that nobody may take, to every operation.

use proptest::prelude::*;

use super::*;
use crate::client::crypted;
use crate::protocol::payload;
use crate::testing::{RESPONSE_HEADER, item};

/// What a server may send in the place of an answer to `operation`.
fn bad(code: u32) -> Vec<(&'static str, Vec<u8>)> {
    let uid = |payload: &mut Writer| payload.text(tag::UNIQUE_IDENTIFIER, "another");
    let good = answer(code, uid);
    let mut long = good.clone();
    long[4..8].copy_from_slice(&0x7fff_ffff_u32.to_be_bytes());
    let mut broken = good.clone();
    broken[15] = 0xff;
    let mut two = Writer::default();
    two.structure(tag::RESPONSE_MESSAGE, |message| {
        message.structure(RESPONSE_HEADER, |header| header.integer(tag::BATCH_COUNT, 2));
        for _ in 0..2 {
            message.structure(tag::BATCH_ITEM, |item| item.enumeration(tag::RESULT_STATUS, 0));
        }
    });
    let mut none = Writer::default();
    none.structure(tag::RESPONSE_MESSAGE, |_| {});
    vec![
        ("a page", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec()),
        ("a request", vec![0x42, 0, 0x78, 1, 0, 0, 0, 0]),
        ("a length beyond all", long),
        ("a length that lies", broken),
        ("half of it", good[..good.len() / 2].to_vec()),
        ("nothing", Vec::new()),
        ("no item", none.0),
        ("two items", two.0),
        ("another operation", answer(code ^ 1, uid)),
        ("no status", item(|item| item.enumeration(tag::OPERATION, code))),
        ("pending", item(|item| item.enumeration(tag::RESULT_STATUS, 2))),
        ("no payload", item(|item| item.enumeration(tag::RESULT_STATUS, 0))),
        (
            "a payload that is none",
            item(|item| {
                item.enumeration(tag::RESULT_STATUS, 0);
                item.bytes(tag::RESPONSE_PAYLOAD, b"x");
            }),
        ),
        ("a refusal without a reason", item(|item| item.enumeration(tag::RESULT_STATUS, 1))),
    ]
}

/// Asks `code` of a server that gives this answer to it.
async fn ask(code: u32, bytes: Vec<u8>) -> sidekey_core::Error {
    let fake = Fake::start(move |request: &[u8]| match operation(request) {
        asked if asked == code => Reply::Last(bytes.clone()),
        _ => kms(4)(request),
    });
    let client = fake.await.client();
    let refused = match code {
        0x08 | 0x1e => client.locate("kms", soon()).await.map(drop),
        0x0b => client.check("key-1", soon()).await,
        0x1f => client.encrypt("key-1", &GCM, b"secret", soon()).await.map(drop),
        _ => client.decrypt("key-1", &GCM, &[0; 22], soon()).await.map(drop),
    };
    refused.unwrap_err()
}

#[tokio::test]
async fn no_bad_answer_to_any_operation_is_taken() {
    for code in [0x08, 0x0b, 0x1e, 0x1f, 0x20] {
        for (what, bytes) in bad(code) {
            let error = ask(code, bytes).await;
            assert_eq!(error.kind(), Kind::Unavailable, "{what} to {code:#x}: {}", error.report());
        }
    }
}

#[tokio::test]
async fn what_is_of_another_key_or_of_another_length_is_not_taken() {
    let of = |uid: &'static str, data: &'static [u8], tag: &'static [u8]| {
        move |payload: &mut Writer| {
            payload.text(tag::UNIQUE_IDENTIFIER, uid);
            payload.bytes(tag::DATA, data);
            payload.bytes(tag::AEAD_TAG, tag);
        }
    };
    for (code, payload) in [
        (0x1f, of("key-2", b"secret", &TAG)),
        (0x20, of("key-2", b"secret", &[])),
        (0x1f, of("key-1", b"secret", &[])),
        (0x1f, of("key-1", b"secre", &TAG)),
        (0x1f, of("key-1", b"secret", &[0; 17])),
        (0x20, of("key-1", b"secrets", &[])),
        (0x20, of("key-1", b"", &[])),
    ] {
        let error = ask(code, answer(code, payload)).await;
        assert_eq!(error.kind(), Kind::Unavailable, "{code:#x}: {}", error.report());
        assert!(!error.report().contains("secre"), "{}", error.report());
    }
    let error = ask(0x0b, answer(0x0b, |payload| payload.text(tag::UNIQUE_IDENTIFIER, "x"))).await;
    assert_eq!(error.kind(), Kind::Unavailable);
    let no_text = answer(0x08, |payload| payload.bytes(tag::UNIQUE_IDENTIFIER, b"key-1"));
    assert_eq!(ask(0x08, no_text).await.kind(), Kind::Unavailable);
}

#[tokio::test]
async fn an_answer_in_many_parts_is_read_whole() {
    let fake = Fake::start(|request: &[u8]| Reply::Answer(answered(request, 4), 9)).await;
    assert_eq!(fake.client().locate("kms", soon()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn no_text_of_a_server_shows_what_was_sent() {
    let echo = format!("cannot decrypt {}", "aB3xYz90".repeat(12));
    let error = ask(0x20, refusal(0x20, 0x100, &echo)).await;
    assert!(error.report().contains("[redacted]"), "{}", error.report());
    assert!(!error.report().contains("aB3xYz90"), "{}", error.report());
}

#[tokio::test]
async fn a_ciphertext_without_a_whole_tag_is_sent_to_nobody() {
    let fake = Fake::start(kms(4)).await;
    let client: Client = fake.client();
    for length in [0, 1, 15] {
        let error = client.decrypt("key-1", &GCM, &vec![0; length], soon()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
    }
    assert_eq!(fake.operations(), []);
}

/// Everything that is made of an answer.
fn read(bytes: &[u8]) {
    for operation in [Operation::Locate, Operation::GetAttributes, Operation::Encrypt] {
        if let Ok(payload) = payload(bytes, operation, "key-1") {
            assert!(crypted(payload).expose().len() <= bytes.len());
        }
    }
}

proptest! {
    #[test]
    fn no_change_of_an_answer_makes_it_panic(
        which in 0..3_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let code = [0x08_u32, 0x0b, 0x1f][which];
        let mut bytes = answer(code, |payload| {
            payload.text(tag::UNIQUE_IDENTIFIER, "key-1");
            attributes(payload, 2, 2, 3, 0xc);
            payload.bytes(tag::DATA, b"secret");
            payload.bytes(tag::AEAD_TAG, &TAG);
        });
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read(&bytes);
        read(&bytes[..cut.index(bytes.len())]);
    }
}
