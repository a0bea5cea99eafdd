//! Keys: rotation, what has taken a key's place, and keys that cannot serve.

use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::softhsm::SoftHsm;
use tonic::Code;

use crate::support::{LABEL, PLAINTEXT, Stage, quick};

#[tokio::test]
async fn a_new_key_under_the_label_is_announced_and_old_data_reads_on() {
    let stage = Stage::new("rotated").await;
    let served = stage.serve(&quick(&[stage.entry(1)])).await;
    let old = served.wait_ok().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    // Ids are numbers: this one is greater.
    stage.hsm.make_aes(LABEL, "0100", 32).await.unwrap();
    let new = served.wait_moved(&old).await;
    assert!(new.ends_with("/0100"), "{new}");
    assert_eq!(served.kms.round_trip(PLAINTEXT).await.unwrap().key_id, new);
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_key_made_anew_under_the_same_label_and_id_is_another_one() {
    let stage = Stage::new("anew").await;
    let served = stage.serve(&quick(&[stage.entry(1)])).await;
    served.wait_ok().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.hsm.delete_aes("01").await.unwrap();
    stage.hsm.make_aes(LABEL, "01", 32).await.unwrap();
    let error = served.wait_bad().await;
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    let error = served.kms.decrypt(&sealed).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
}

#[tokio::test]
async fn data_reads_on_when_the_token_begins_or_ceases_to_report_check_values() {
    let stage = Stage::new("bare").await;
    let mut served = stage.serve(&quick(&[stage.spoilt(1)])).await;
    let checked = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.spoil("bare");
    served.plugin.restart().await.unwrap();
    served.plugin.wait_ready().await.unwrap();
    let kms = stage.kms(1).await;
    let bare = kms.round_trip(PLAINTEXT).await.unwrap();
    assert_ne!(bare.key_id, checked.key_id);
    kms.reads(&checked, PLAINTEXT).await.unwrap();
    stage.spoil("");
    served.plugin.restart().await.unwrap();
    let kms = stage.kms(1).await;
    kms.reads(&bare, PLAINTEXT).await.unwrap();
    // The key_id is authenticated all the same.
    let exchanged = EncryptResponse { key_id: checked.key_id, ..bare };
    assert_eq!(kms.decrypt(&exchanged).await.unwrap_err().code(), Code::DataLoss);
}

#[tokio::test]
async fn a_key_that_was_restored_into_another_token_reads_on_without_check_values() {
    let mut stage = Stage::new("restored").await;
    let entry = stage.spoilt(1);
    stage.spoil("bare");
    stage.hsm.delete_aes("01").await.unwrap();
    stage.hsm.import_aes(LABEL, "01", PLAINTEXT).await.unwrap();
    let served = stage.serve(&quick(&[entry])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    drop(served);
    stage.hsm = SoftHsm::start(&stage.scratch, "hsm-2").await.unwrap();
    stage.hsm.import_aes(LABEL, "01", PLAINTEXT).await.unwrap();
    let served = stage.serve(&quick(&[stage.spoilt(1)])).await;
    assert_ne!(served.wait_ok().await, sealed.key_id, "another serial number");
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn keys_that_cannot_be_told_apart_cost_the_others_under_the_label_nothing() {
    let stage = Stage::new("others").await;
    let served = stage.serve(&quick(&[stage.entry(1)])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    drop(served);
    stage.hsm.make_aes(LABEL, "02", 32).await.unwrap();
    stage.hsm.make_aes(LABEL, "02", 32).await.unwrap();
    let served = stage.launch(&quick(&[stage.entry(1)])).await;
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    let error = served.wait_bad().await;
    assert!(error.message().contains("same CKA_ID"), "{error}");
}

#[tokio::test]
async fn altered_data_of_a_key_that_only_decrypts_is_told_as_that() {
    let stage = Stage::new("reader").await;
    stage.hsm.make_rsa("pair", "07", 2048).await.unwrap();
    let mut entry = stage.entry(1);
    entry["kek"] = json!({"tokenLabel": "kms", "keyId": "07", "algorithm": "RSA-OAEP"});
    let served = stage.serve(&quick(&[entry])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.hsm.keys(&["--delete-object", "--type", "pubkey", "--id", "07"]).await.unwrap();
    served.kms.encrypt(PLAINTEXT).await.unwrap_err();
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    let mut bytes = sealed.ciphertext.to_vec();
    bytes[100] ^= 1;
    let altered = EncryptResponse { ciphertext: bytes.into(), ..sealed };
    let error = served.kms.decrypt(&altered).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
}

#[tokio::test]
async fn rsa_wraps_with_the_public_key_of_its_own_pair() {
    let stage = Stage::new("pairs").await;
    stage.hsm.make_rsa("former", "07", 2048).await.unwrap();
    let former = ["--delete-object", "--type", "privkey", "--label", "former"];
    stage.hsm.keys(&former).await.unwrap();
    stage.hsm.make_rsa("pair", "07", 2048).await.unwrap();
    let mut entry = stage.entry(1);
    entry["kek"] = json!({"tokenLabel": "kms", "keyLabel": "pair", "algorithm": "RSA-OAEP"});
    let served = stage.serve(&quick(&[entry])).await;
    served.kms.round_trip(PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn rsa_wraps_with_the_public_key_and_unwraps_with_the_private_one() {
    let stage = Stage::new("rsa").await;
    stage.hsm.make_rsa("pair", "07", 2048).await.unwrap();
    let mut entry = stage.entry(1);
    entry["kek"] = json!({"tokenLabel": "kms", "keyId": "07", "algorithm": "RSA-OAEP"});
    let served = stage.serve(&quick(&[entry])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let mut altered = sealed.clone();
    let mut bytes = altered.ciphertext.to_vec();
    bytes[100] ^= 1;
    altered.ciphertext = bytes.into();
    let error = served.kms.decrypt(&altered).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
    served.wait_ok().await;
}

#[tokio::test]
async fn an_iv_of_the_tokens_own_is_used_and_one_that_it_does_not_make_is_an_error() {
    let stage = Stage::new("iv").await;
    let mut entry = stage.spoilt(1);
    entry["settings"]["ivFromToken"] = true.into();
    let served = stage.launch(&quick(&[entry])).await;
    let error = served.wait_bad().await;
    assert!(error.message().contains("IV of the token's own"), "{error}");
    stage.spoil("iv");
    served.wait_ok().await;
    let one = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let two = served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_ne!(one.ciphertext[1..13], two.ciphertext[1..13]);
    assert_ne!(one.ciphertext[1..13], [0; 12]);
}

/// What Status says of a key that is selected so.
async fn refused(stage: &Stage, kek: Value, settings: Value) -> tonic::Status {
    let mut entry = stage.entry(1);
    for (name, value) in kek.as_object().unwrap() {
        entry["kek"][name] = value.clone();
    }
    for (name, value) in settings.as_object().unwrap() {
        entry["settings"][name] = value.clone();
    }
    stage.launch(&quick(&[entry])).await.wait_bad().await
}

#[tokio::test]
async fn keys_that_cannot_serve_are_told_with_what_is_wrong() {
    let stage = Stage::new("states").await;
    stage.hsm.make_aes("short", "10", 16).await.unwrap();
    stage.hsm.make_aes("twice", "11", 32).await.unwrap();
    stage.hsm.make_aes("twice", "11", 32).await.unwrap();
    stage.hsm.make_rsa("sha", "12", 2048).await.unwrap();
    for (kek, settings, code, word) in [
        (
            json!({"keyLabel": "none"}),
            json!({}),
            Code::FailedPrecondition,
            "there is none in the token",
        ),
        (json!({"keyLabel": "short"}), json!({}), Code::FailedPrecondition, "too short"),
        (json!({"keyLabel": "twice"}), json!({}), Code::FailedPrecondition, "same CKA_ID"),
        (
            json!({"keyLabel": "sha", "algorithm": "RSA-OAEP-256"}),
            json!({}),
            Code::FailedPrecondition,
            "kek.algorithm",
        ),
        (json!({"tokenLabel": "other"}), json!({}), Code::Unavailable, "is in no slot"),
        (
            json!({}),
            json!({"library": "/lib/x86_64-linux-gnu/libm.so.6"}),
            Code::FailedPrecondition,
            "cannot be loaded",
        ),
        (
            json!({}),
            json!({"library": "/does/not/exist.so"}),
            Code::FailedPrecondition,
            "cannot be loaded",
        ),
    ] {
        let error = refused(&stage, kek.clone(), settings).await;
        assert_eq!(error.code(), code, "{kek}: {error}");
        assert!(error.message().contains(word), "{kek}: {error}");
    }
}
