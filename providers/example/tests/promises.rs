//! What this provider promises beyond KMS v2.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use sidekey_core::{Call, Kind, Provider};
use sidekey_e2e::Sidecar;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::process::Spec;
use sidekey_e2e::wait::{PATIENCE, eventually};
use sidekey_example::Example;
use sidekey_rest::testing::{Reply, takes_no_bad_answer};
use support::Kms;
use tokio::time::Instant;

fn call() -> Call<'static> {
    Call { uid: "test", deadline: Instant::now() + Duration::from_secs(30) }
}

/// The real binary with that time between probes, and a client at its socket.
async fn serve(kms: &Kms, interval: &str) -> (Sidecar, KmsClient) {
    let endpoint = format!("unix://{}", kms.path("kms.sock").display());
    let mut document = kms.document(&endpoint);
    document["admin"] = "127.0.0.1:0".into();
    document["probe"]["interval"] = interval.into();
    let config = kms.path("example.yaml");
    std::fs::write(&config, document.to_string()).unwrap();
    let program = env!("CARGO_BIN_EXE_sidekey-example");
    let spec = Spec::new("sidekey-example", program, kms.path("log")).arg("--config").arg(&config);
    let mut process = Sidecar::start(spec).await.unwrap();
    process.wait_ready().await.unwrap();
    (process, KmsClient::connect(&endpoint).await.unwrap())
}

#[tokio::test]
async fn new_credentials_are_taken_over_without_a_restart() {
    let kms = Kms::start().await;
    let (mut process, client) = serve(&kms, "500ms").await;
    let sealed = client.round_trip(b"seed").await.unwrap();
    let token = "anOTHER9876543210anOTHER9876543210anOTHER9876543210";
    kms.takes(token);
    std::fs::write(kms.path("token"), token).unwrap();
    let reads = async || {
        client.reads(&sealed, b"seed").await?;
        client.status().await?;
        Ok(())
    };
    eventually("the new token is in use", PATIENCE, reads).await.unwrap();
    process.process().check_running().unwrap();
    assert_eq!(client.round_trip(b"more").await.unwrap().key_id, sealed.key_id);
}

#[tokio::test]
async fn one_fault_of_the_kms_fails_no_request() {
    let kms = Kms::start().await;
    // No probe takes the fault instead.
    let (_process, client) = serve(&kms, "1h").await;
    // What hangs is waited for by its share of that.
    let client = client.within(Duration::from_secs(10));
    let sealed = client.round_trip(b"seed").await.unwrap();
    let refused = |status, code| Reply::json(status, &json!({"code": code, "message": "no"}));
    let hanging = Reply { delay: Duration::from_secs(3600), ..refused(500, "Late") };
    for fault in [refused(503, "Maintenance"), refused(429, "SlowDown"), hanging] {
        let asked = kms.calls();
        kms.server.answer(fault);
        client.reads(&sealed, b"seed").await.unwrap();
        assert_eq!(kms.calls(), asked + 2, "it was refused once, and asked again");
    }
}

#[tokio::test]
async fn an_outage_is_borne_for_the_coast_told_then_and_heals_by_itself() {
    let kms = Kms::start().await;
    let (mut process, client) = serve(&kms, "500ms").await;
    let sealed = client.round_trip(b"seed").await.unwrap();
    kms.refuses(Some((503, "Maintenance")));
    client.status().await.expect("it was proven a moment ago");
    let is_told = async || {
        let error = client.status().await.err();
        ensure!(error.is_some_and(|error| error.message().contains("Maintenance")), "it is not");
        Ok(())
    };
    eventually("the outage is told", PATIENCE, is_told).await.unwrap();
    kms.refuses(None);
    let is_well = async || {
        client.reads(&sealed, b"seed").await?;
        client.status().await?;
        Ok(())
    };
    eventually("it heals", PATIENCE, is_well).await.unwrap();
    process.process().check_running().unwrap();
}

#[tokio::test]
async fn no_call_takes_a_bad_answer() {
    let kms = Kms::start().await;
    let client = kms.connect().await.unwrap();
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, b"plain", &call()).await.unwrap();
    let (fake, none) = (&kms.server, || {});
    takes_no_bad_answer(fake, none, async || kms.connect().await.map(drop)).await;
    takes_no_bad_answer(fake, none, async || client.key_id().await.map(drop)).await;
    let encrypt = async || client.encrypt(&key_id, b"plain", &call()).await.map(drop);
    takes_no_bad_answer(fake, none, encrypt).await;
    let decrypt = async || client.decrypt(&sealed, &call()).await.map(drop);
    takes_no_bad_answer(fake, none, decrypt).await;
    assert_eq!(client.key_id().await.unwrap(), key_id, "nothing has changed");
}

#[tokio::test]
async fn a_key_made_anew_under_the_same_name_is_another_one() {
    let kms = Kms::start().await;
    let client = kms.connect().await.unwrap();
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, b"plain", &call()).await.unwrap();
    kms.make_anew();
    let kind = |result: Result<(), sidekey_core::Error>| result.map_err(|error| error.kind());
    assert_eq!(kind(client.key_id().await.map(drop)), Err(Kind::KeyState));
    let wrapped = client.encrypt(&key_id, b"plain", &call()).await;
    assert_eq!(kind(wrapped.map(drop)), Err(Kind::KeyState));
    let fresh = kms.connect().await.unwrap();
    assert_ne!(fresh.key_id().await.unwrap(), key_id);
    assert_eq!(kind(fresh.decrypt(&sealed, &call()).await.map(drop)), Err(Kind::KeyState));
}

#[tokio::test]
async fn a_rotation_is_told_and_old_data_stays_readable() {
    let kms = Kms::start().await;
    let client = kms.connect().await.unwrap();
    let old = client.key_id().await.unwrap();
    let sealed = client.encrypt(&old, b"plain", &call()).await.unwrap();
    kms.rotate();
    let current = client.encrypt_current(&old, b"probe", &call()).await.unwrap();
    assert_ne!(current.key_id, old);
    assert_eq!(client.key_id().await.unwrap(), current.key_id);
    assert_eq!(client.encrypt(&old, b"x", &call()).await.unwrap().key_id, old, "it is pinned");
    for (sealed, plain) in [(&sealed, b"plain"), (&current, b"probe")] {
        assert_eq!(client.decrypt(sealed, &call()).await.unwrap().expose(), plain);
    }
}

#[tokio::test]
async fn refusals_say_what_to_do_and_never_quote_the_token() {
    let kms = Kms::start().await;
    let client = kms.connect().await.unwrap();
    for (status, code, kind) in [
        (403, "BadToken", Kind::Denied),
        (404, "NoSuchKey", Kind::KeyState),
        (403, "KeyDisabled", Kind::KeyState),
        (429, "SlowDown", Kind::Throttled),
        (503, "Maintenance", Kind::Unavailable),
    ] {
        let said = format!("token {} was refused", support::TOKEN);
        kms.server.answer(Reply::json(status, &json!({"code": code, "message": said})));
        let error = client.key_id().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.report());
        assert!(!error.report().contains(support::TOKEN), "{}", error.report());
    }
}

#[test]
fn every_mistake_of_a_configuration_is_reported_at_once() {
    let document = json!({"keys": [{
        "id": 1,
        "kek": {"key": "a/b"},
        "settings": {"address": "http://kms.example", "caFile": "ca.pem"},
    }]});
    let problems = sidekey_core::config::parse::<Example>(&document).err().unwrap();
    let paths: Vec<String> = problems.iter().map(|problem| problem.path.clone()).collect();
    assert_eq!(
        paths,
        ["kek.key", "settings.address", "credentials.tokenFile", "settings.caFile"]
            .map(|path| format!("keys[0].{path}"))
    );
}
