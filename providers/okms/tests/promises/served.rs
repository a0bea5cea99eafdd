//! The real binary: labels that move, faults, what a call costs, and what is never shown.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sidekey_e2e::fakes::okms::{State, USER, throttled, unwell};
use sidekey_e2e::gateway::Fault;
use sidekey_e2e::okms::CLIENT;
use tonic::Code;

use crate::support::{LABEL, PLAINTEXT, Stage, calm, quick};

#[tokio::test]
async fn a_label_that_is_turned_to_another_key_is_announced_by_a_probe_and_old_data_reads_on() {
    let stage = Stage::new("rotated").await;
    let document = quick(&[stage.labelled(1)]);
    let mut served = stage.serve_document(&document).await;
    let old = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let id = stage.repoint();
    let new = served.wait_moved(&old.key_id).await;
    assert!(new.ends_with(&id), "{new}");
    assert_eq!(served.kms.round_trip(PLAINTEXT).await.unwrap().key_id, new);
    served.kms.reads(&old, PLAINTEXT).await.unwrap();
    served.plugin.process().kill().unwrap();
    drop(served);
    // Another replica comes to the same, and reads what it has not seen.
    let served = stage.serve_document(&document).await;
    assert_eq!(served.wait_ok().await, new);
    served.kms.reads(&old, PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_label_without_a_key_is_borne_and_told_and_never_an_empty_key_id() {
    let stage = Stage::new("unlabelled").await;
    let served = stage.serve_document(&quick(&[stage.labelled(1)])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.fake().service().rename(&stage.backend.key, "gone");
    // What is announced is still a key, and works.
    served.kms.round_trip(PLAINTEXT).await.unwrap();
    served.wait_bad(Code::Unavailable, LABEL).await;
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    stage.fake().service().rename(&stage.backend.key, LABEL);
    assert_eq!(served.wait_ok().await, sealed.key_id);
    drop(served);
    stage.fake().service().rename(&stage.backend.key, "gone");
    let served = stage.launch(&quick(&[stage.labelled(1)])).await;
    served.wait_bad(Code::Unavailable, "0 active keys").await;
    served.kms.encrypt(PLAINTEXT).await.unwrap_err();
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_call_costs_what_it_must_and_status_nothing() {
    let stage = Stage::new("costs").await;
    let served = stage.serve_document(&calm(&[stage.labelled(1)])).await;
    served.wait_ok().await;
    let fake = stage.fake();
    let calls = || (fake.calls("encrypt"), fake.calls("decrypt"), fake.all_calls());
    let (encrypts, decrypts, all) = calls();
    let sealed = served.kms.encrypt(PLAINTEXT).await.unwrap();
    assert_eq!(calls(), (encrypts + 1, decrypts + 1, all + 2), "the second verifies the first");
    served.kms.decrypt(&sealed).await.unwrap();
    assert_eq!(calls(), (encrypts + 1, decrypts + 2, all + 3));
    for _ in 0..50 {
        served.kms.status().await.unwrap();
    }
    assert_eq!(calls(), (encrypts + 1, decrypts + 2, all + 3));
}

#[tokio::test]
async fn an_okms_that_is_down_at_the_start_is_waited_for() {
    let stage = Stage::new("down").await;
    stage.fake().gateway().inject(Fault::Cut);
    let mut served = stage.launch(&quick(&[stage.key(1, &stage.backend.key)])).await;
    served.wait_bad(Code::Unavailable, "").await;
    assert_eq!(served.plugin.admin().get("/livez").await.unwrap().status, 200);
    stage.fake().gateway().heal();
    served.plugin.wait_ready().await.unwrap();
    served.kms.round_trip(PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn an_okms_that_goes_away_or_hangs_is_borne_and_healed_by_itself() {
    let stage = Stage::new("away").await;
    let served = stage.serve().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    for fault in [Fault::Cut, Fault::Hang] {
        stage.fake().gateway().inject(fault.clone());
        served.kms.status().await.expect("it coasts");
        let error = served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
        let codes = [Code::Unavailable, Code::DeadlineExceeded];
        assert!(codes.contains(&error.code()), "{fault:?}: {error}");
        stage.fake().gateway().heal();
        assert_eq!(served.wait_ok().await, sealed.key_id, "{fault:?}");
        served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    }
    stage.fake().gateway().inject(Fault::Cut);
    served.wait_bad(Code::Unavailable, "").await;
    stage.fake().gateway().heal();
    assert_eq!(served.wait_ok().await, sealed.key_id);
}

#[tokio::test]
async fn a_slow_or_refusing_okms_is_felt_as_latency_alone_and_a_lasting_refusal_is_told() {
    let stage = Stage::new("slow").await;
    let served = stage.serve().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.fake().gateway().inject(Fault::Slow(Duration::from_millis(200)));
    served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.fake().gateway().heal();
    for answer in [&[throttled()][..], &unwell()].concat() {
        stage.fake().refuse("decrypt", 1, &answer);
        served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    }
    served.kms.status().await.unwrap();
    stage.fake().refuse("decrypt", 1000, &throttled());
    let error = served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    served.wait_bad(Code::ResourceExhausted, "too often").await;
}

#[tokio::test]
async fn a_sick_key_leaves_another_of_the_process_alone_and_comes_back() {
    let stage = Stage::new("sick").await;
    let other = stage.fake().service().create("other");
    let keys = [stage.key(1, &stage.backend.key), stage.key(2, &other)];
    let served = stage.serve_document(&quick(&keys)).await;
    let well = stage.kms(2).await;
    stage.fake().service().set_state(&stage.backend.key, State::Deactivated);
    served.wait_bad(Code::FailedPrecondition, "deactivated").await;
    well.round_trip(PLAINTEXT).await.unwrap();
    well.status().await.unwrap();
    stage.fake().service().set_state(&stage.backend.key, State::Active);
    served.wait_ok().await;
}

#[tokio::test]
async fn a_key_that_may_only_decrypt_reads_without_any_other_right() {
    let stage = Stage::new("reader").await;
    let sealed = stage.serve().await.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.fake().service().allow(CLIENT, &["decrypt"]);
    let mut key = stage.key(1, &stage.backend.key);
    key["role"] = "read".into();
    let served = stage.launch(&calm(&[key])).await;
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn nothing_ever_shows_a_secret() {
    let stage = Stage::new("logs").await;
    let mut document = quick(&[stage.labelled(1)]);
    document["log"] = serde_json::json!({"level": "trace"});
    let served = stage.serve_document(&document).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let mut forged = sealed.clone();
    forged.ciphertext = sealed.ciphertext.iter().rev().copied().collect::<Vec<u8>>().into();
    served.kms.decrypt(&forged).await.unwrap_err();
    stage.fake().service().revoke(CLIENT);
    served.kms.decrypt(&sealed).await.unwrap_err();
    served.wait_bad(Code::PermissionDenied, "").await;
    stage.fake().service().allow(CLIENT, &USER);
    served.wait_ok().await;
    let admin = served.plugin.admin();
    let mut shown = stage.log();
    for path in ["/status", "/metrics"] {
        shown.push_str(&admin.get(path).await.unwrap().text());
    }
    let key = std::fs::read_to_string(&stage.backend.certificate.key).unwrap();
    let ciphertext = std::str::from_utf8(&sealed.ciphertext).unwrap();
    let secrets = [
        key.lines().nth(1).unwrap(),
        &ciphertext[ciphertext.len() - 40..],
        std::str::from_utf8(PLAINTEXT).unwrap(),
        &STANDARD.encode(PLAINTEXT),
    ];
    for secret in secrets {
        assert!(!shown.contains(secret), "{secret:?} is shown");
    }
}
