//! Versions, states and kinds of keys.

use serde_json::json;
use sidekey_e2e::fakes::azure::KeyKind;
use tonic::Code;

use crate::support::{HSM, KEY, PLAINTEXT, Stage, VAULT, quick};

#[tokio::test]
async fn a_rotation_moves_key_id_and_older_versions_go_on_reading() {
    for (host, kind) in [(VAULT, KeyKind::Rsa(2048)), (HSM, KeyKind::Aes)] {
        let stage = Stage::with("rotation", host, kind).await;
        let mut served = stage.serve().await;
        let first = served.round_trip().await;
        assert!(first.key_id.ends_with(&stage.version), "{}", first.key_id);
        let second = stage.rotate();
        let moved = served.wait_moved(&first.key_id).await;
        assert!(moved.ends_with(&second), "{moved}");
        let sealed = served.round_trip().await;
        assert_eq!(sealed.key_id, moved);
        served.reads(&first).await;
        // A version that is shut off is its own data's trouble.
        stage.fake.service().enable(KEY, &stage.version, false);
        let error = served.kms.decrypt(&first).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        served.reads(&sealed).await;
        stage.fake.service().enable(KEY, &stage.version, true);
        // A process that has never seen it reads it all the same.
        served.plugin.restart().await.unwrap();
        let kms = stage.kms(1).await;
        assert_eq!(&kms.decrypt(&first).await.unwrap()[..], PLAINTEXT);
    }
}

#[tokio::test]
async fn a_pinned_version_stays_and_reads_others_of_the_key() {
    let stage = Stage::new("pinned").await;
    let newest = stage.serve().await.round_trip().await;
    let mut key = stage.key(1, &stage.by_secret());
    key["kek"]["version"] = json!(stage.version);
    let second = stage.rotate();
    let mut served = stage.serve_document(&quick(&[key.clone()])).await;
    assert_eq!(served.wait_ok().await, newest.key_id, "the first version, still");
    served.round_trip().await;
    served.plugin.process().kill().unwrap();
    key["kek"]["version"] = json!(second);
    let mut moved = stage.serve_document(&quick(&[key])).await;
    assert_ne!(moved.wait_ok().await, newest.key_id);
    moved.reads(&newest).await;
}

#[tokio::test]
async fn a_key_that_is_disabled_or_deleted_is_told_at_once_and_heals_when_it_is_back() {
    let stage = Stage::new("states").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    stage.fake.service().enable(KEY, &stage.version, false);
    served.wait_bad(Code::FailedPrecondition, "disabled").await;
    stage.fake.service().enable(KEY, &stage.version, true);
    assert_eq!(served.wait_ok().await, sealed.key_id);
    stage.fake.service().delete(KEY, true);
    served.wait_bad(Code::FailedPrecondition, "recover").await;
    stage.fake.service().delete(KEY, false);
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.reads(&sealed).await;
}

#[tokio::test]
async fn a_key_made_anew_under_the_same_name_is_another_one() {
    let stage = Stage::new("anew").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    stage.fake.service().purge(KEY);
    served.wait_bad(Code::FailedPrecondition, "").await;
    stage.fake.service().make(KEY, KeyKind::FreshRsa).unwrap();
    let error = served.kms.decrypt(&sealed).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    served.plugin.process().kill().unwrap();
    let mut served = stage.serve().await;
    assert_ne!(served.wait_ok().await, sealed.key_id);
    assert!(served.kms.decrypt(&sealed).await.is_err());
}

#[tokio::test]
async fn a_key_of_another_kind_or_size_is_refused_with_what_to_do() {
    for (host, kind, hint) in [
        (VAULT, KeyKind::Ec, "RSA key of 2048 to 4096 bits"),
        // What describes an AES key does not tell its size.
        (HSM, KeyKind::ShortAes, "AES of 256 bits"),
    ] {
        let stage = Stage::with("kind", host, kind).await;
        let mut served = stage.spawn(&stage.document()).await;
        served.wait_bad(Code::FailedPrecondition, hint).await;
    }
}

#[tokio::test]
async fn every_size_of_rsa_wraps_what_it_can_and_says_what_it_cannot() {
    for (bits, most) in [(2048, 190), (3072, 318), (4096, 446)] {
        let stage = Stage::with("sizes", VAULT, KeyKind::Rsa(bits)).await;
        let served = stage.serve().await;
        let sealed = served.kms.round_trip(&vec![7; most]).await.unwrap();
        assert_eq!(sealed.ciphertext.len(), bits / 8);
        let error = served.kms.encrypt(&vec![7; most + 1]).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    }
}

#[tokio::test]
async fn who_may_not_look_at_the_key_is_served_and_told_what_is_not_known() {
    let stage = Stage::new("no-get").await;
    stage.fake.service().allow(crate::support::CLIENT, &["encrypt", "decrypt"]);
    let mut served = stage.serve().await;
    let first = served.round_trip().await;
    let told = served.plugin.status().await.unwrap().to_string();
    assert!(told.contains("keys/get is not allowed"), "{told}");
    stage.rotate();
    served.wait_moved(&first.key_id).await;
    served.reads(&first).await;
}

#[tokio::test]
async fn who_may_only_decrypt_reads_every_version_and_is_told_why_nothing_is_encrypted() {
    let stage = Stage::new("decrypt-only").await;
    let mut served = stage.serve().await;
    let first = served.round_trip().await;
    stage.rotate();
    served.wait_moved(&first.key_id).await;
    let second = served.round_trip().await;
    served.plugin.process().kill().unwrap();
    stage.fake.service().allow(crate::support::CLIENT, &["decrypt"]);
    let mut served = stage.spawn(&stage.document()).await;
    served.reads(&first).await;
    served.reads(&second).await;
    served.wait_bad(Code::PermissionDenied, "keys/encrypt").await;
    let error = served.kms.encrypt(PLAINTEXT).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    // Rights that come later are taken up.
    stage.fake.service().allow(crate::support::CLIENT, &["encrypt", "decrypt"]);
    assert_eq!(served.wait_ok().await, second.key_id);
    served.round_trip().await;
}

#[tokio::test]
async fn data_that_was_altered_or_moved_to_another_version_does_not_read() {
    for (host, kind) in [(VAULT, KeyKind::Rsa(2048)), (HSM, KeyKind::Aes)] {
        let stage = Stage::with("altered", host, kind).await;
        let mut served = stage.serve().await;
        let sealed = served.round_trip().await;
        stage.rotate();
        let moved = served.wait_moved(&sealed.key_id).await;
        let mut other = sealed.clone();
        other.key_id = moved;
        assert_eq!(served.kms.decrypt(&other).await.unwrap_err().code(), Code::DataLoss);
        let mut cut = sealed.clone();
        cut.ciphertext.truncate(20);
        assert_eq!(served.kms.decrypt(&cut).await.unwrap_err().code(), Code::DataLoss);
        served.wait_ok().await;
    }
}
