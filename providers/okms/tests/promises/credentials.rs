//! Access certificates: unknown ones, new ones, and their end.

use std::fs;
use std::time::{Duration, SystemTime};

use sidekey_core::{Kind, Provider};
use sidekey_e2e::fakes::okms::USER;
use sidekey_e2e::okms::CLIENT;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, eventually};
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, call, connect, quick};

/// Exchanges both files of the access certificate, each as careful writers do it.
fn exchange(stage: &Stage, authority: &Authority, client: &str) {
    let dir = stage.scratch.subdir("next").unwrap();
    let (new, old) =
        (authority.peer(&dir, "client", &[client]).unwrap(), &stage.backend.certificate);
    fs::rename(new.certificate, &old.certificate).unwrap();
    fs::rename(new.key, &old.key).unwrap();
}

#[tokio::test]
async fn a_certificate_that_okms_does_not_know_is_denied() {
    let stage = Stage::new("unknown-certificate").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    stage.fake().service().revoke(CLIENT);
    let errors = [
        client.key_id().await.map(drop).unwrap_err(),
        client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), Kind::Denied, "{}", error.report());
        assert!(error.hint().unwrap().contains("credentials.certFile"), "{}", error.report());
    }
    // Some front ends refuse it already when the connection is made.
    exchange(&stage, &Authority::new("strangers").unwrap(), CLIENT);
    let error = stage.connect().await.key_id().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{}", error.report());
    assert!(error.report().contains("refuses our certificate"), "{}", error.report());
}

#[tokio::test]
async fn the_end_of_the_certificate_is_known() {
    let stage = Stage::new("expiry").await;
    let client = stage.connect().await;
    assert!(client.expiry().unwrap() > SystemTime::now() + Duration::from_secs(3600));
    let dir = Scratch::new("expired").unwrap();
    let expired = stage.backend.authority.expired_peer(dir.path(), "client", CLIENT).unwrap();
    let mut document = stage.key(1, &stage.backend.key);
    document["credentials"]["certFile"] = expired.certificate.display().to_string().into();
    document["credentials"]["keyFile"] = expired.key.display().to_string().into();
    let client = connect(&document).await.unwrap();
    assert!(client.expiry().unwrap() < SystemTime::now());
    assert_eq!(client.key_id().await.unwrap_err().kind(), Kind::Denied);
}

#[tokio::test]
async fn a_new_certificate_is_taken_over_without_a_restart_and_a_bad_one_changes_nothing() {
    let stage = Stage::new("renewed").await;
    let mut served = stage.serve_document(&quick(&[stage.labelled(1)])).await;
    let key_id = served.wait_ok().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let pid = served.plugin.process().pid();
    let logs = async |text: &str| {
        eventually(text, PATIENCE, async || {
            anyhow::ensure!(stage.log().contains(text), "not yet");
            Ok(())
        })
        .await
        .unwrap();
    };
    fs::write(&stage.backend.certificate.certificate, "half of a fi").unwrap();
    logs("holds no certificate").await;
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    // OKMS does not know this one yet: the one before serves on.
    exchange(&stage, &stage.backend.authority, "second.example");
    logs("does not know this certificate").await;
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    stage.fake().service().allow("second.example", &USER);
    logs("new files or settings are in use").await;
    stage.fake().service().revoke(CLIENT);
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    assert_eq!(served.wait_ok().await, key_id);
    assert_eq!(served.plugin.process().pid(), pid);
    // The last one that there is.
    stage.fake().service().revoke("second.example");
    served.wait_bad(Code::PermissionDenied, "does not know this certificate").await;
}
