//! What happens to HSMs and their libraries.

use std::time::{Duration, Instant};

use anyhow::ensure;
use sidekey_conformance::Launched;
use sidekey_e2e::eventually;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::wait::PATIENCE;
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, quick};

#[tokio::test]
async fn a_token_that_is_unplugged_and_back_reads_on_without_a_restart() {
    let stage = Stage::new("unplugged").await;
    let mut served = stage.serve(&quick(&[stage.entry(1)])).await;
    let key_id = served.wait_ok().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let pid = served.plugin.process().pid();
    stage.hsm.unplug().unwrap();
    served.wait_bad().await;
    served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
    stage.hsm.plug().unwrap();
    assert_eq!(served.wait_ok().await, key_id);
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    assert_eq!(served.plugin.process().pid(), pid);
}

#[tokio::test]
async fn a_missing_token_costs_the_others_neither_sessions_nor_logins() {
    let stage = Stage::new("missing").await;
    let mut missing = stage.spoilt(2);
    missing["kek"]["tokenLabel"] = "other".into();
    let served = stage.launch(&quick(&[stage.spoilt(1), missing])).await;
    served.wait_ok().await;
    let other = stage.kms(2).await;
    // For longer than the library is left alone.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(8) {
        other.encrypt(PLAINTEXT).await.unwrap_err();
        served.kms.round_trip(PLAINTEXT).await.unwrap();
    }
    assert_eq!(stage.logins(), 1, "{}", stage.said());
    assert!(!stage.said().contains("initialised anew"), "{}", stage.said());
}

#[tokio::test]
async fn a_device_error_is_over_when_the_device_is_well() {
    let stage = Stage::new("broken").await;
    let served = stage.serve(&quick(&[stage.spoilt(1)])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.spoil("broken");
    let error = served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
    assert!(matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded), "{error}");
    stage.spoil("");
    let read = async || served.kms.reads(&sealed, PLAINTEXT).await;
    eventually("it reads again", PATIENCE, read).await.unwrap();
    served.wait_ok().await;
}

#[tokio::test]
async fn sessions_in_hand_serve_while_the_table_of_sessions_is_full() {
    let stage = Stage::new("full").await;
    let served = stage.serve(&quick(&[stage.spoilt(1)])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.spoil("full");
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    served.kms.round_trip(PLAINTEXT).await.unwrap();
    served.wait_ok().await;
}

#[tokio::test]
async fn a_full_table_of_sessions_is_told_and_passes() {
    let stage = Stage::new("table").await;
    let entry = stage.spoilt(1);
    stage.spoil("full");
    let served = stage.launch(&quick(&[entry])).await;
    let error = served.wait_bad().await;
    assert!(error.message().contains("SessionCount"), "{error}");
    stage.spoil("");
    served.wait_ok().await;
    served.kms.round_trip(PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_library_that_never_returns_is_not_waited_for_and_ends_the_process() {
    let stage = Stage::new("hang").await;
    let mut entry = stage.spoilt(1);
    entry["settings"]["hangLimit"] = "10s".into();
    let config = stage.path("pkcs11.yaml");
    std::fs::write(&config, quick(&[entry]).to_string()).unwrap();
    let mut serve = stage.command();
    serve.arg("--config").arg(config);
    let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
    let kms = stage.kms(1).await;
    let sealed = kms.round_trip(PLAINTEXT).await.unwrap();
    stage.spoil("hang");
    let error = kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    let ended = async || {
        ensure!(launched.log().contains("this process ends"), "it runs on");
        ensure!(KmsClient::connect(&stage.endpoint(1)).await.is_err(), "it listens");
        Ok(())
    };
    eventually("the process ends", PATIENCE, ended).await.unwrap();
    stage.spoil("");
    launched.restart().await.unwrap();
    stage.kms(1).await.reads(&sealed, PLAINTEXT).await.unwrap();
}
