//! The real binary: rotations, new credentials, faults, what a call costs, and what is never shown.

use std::time::Duration;

use anyhow::ensure;
use sidekey_e2e::eventually;
use sidekey_e2e::fakes::ibm::{READER, State, throttled};
use sidekey_e2e::gateway::Fault;
use sidekey_e2e::wait::PATIENCE;
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, calm, quick};

#[tokio::test]
async fn a_rotation_is_announced_by_a_probe_and_old_data_reads_on() {
    let stage = Stage::new("rotated").await;
    let served = stage.serve().await;
    let old = served.wait_ok().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let version = stage.fake.service().rotate(&stage.key);
    let new = served.wait_moved(&old).await;
    assert!(new.ends_with(&version), "{new}");
    assert_eq!(served.kms.round_trip(PLAINTEXT).await.unwrap().key_id, new);
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
}

#[tokio::test]
async fn a_rotation_before_any_probe_is_told_by_the_encrypt_that_meets_it() {
    let stage = Stage::new("met").await;
    let served = stage.serve_document(&calm(&[stage.entry(1, &stage.key)])).await;
    let old = served.wait_ok().await;
    stage.fake.service().rotate(&stage.key);
    let error = served.kms.encrypt(PLAINTEXT).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let new = served.wait_moved(&old).await;
    assert_eq!(served.kms.round_trip(PLAINTEXT).await.unwrap().key_id, new);
}

#[tokio::test]
async fn a_call_costs_what_it_must_and_status_nothing() {
    let stage = Stage::new("costs").await;
    let served = stage.serve_document(&calm(&[stage.entry(1, &stage.key)])).await;
    served.wait_ok().await;
    let calls = || (stage.fake.calls("wrap"), stage.fake.calls("unwrap"), stage.fake.all_calls());
    let (wraps, unwraps, all) = calls();
    let sealed = served.kms.encrypt(PLAINTEXT).await.unwrap();
    assert_eq!(calls(), (wraps + 1, unwraps + 1, all + 2), "the second verifies the first");
    served.kms.decrypt(&sealed).await.unwrap();
    assert_eq!(calls(), (wraps + 1, unwraps + 2, all + 3));
    for _ in 0..50 {
        served.kms.status().await.unwrap();
    }
    assert_eq!(calls(), (wraps + 1, unwraps + 2, all + 3));
    let metrics = served.plugin.metrics().await.unwrap();
    let counted = |operation: &str, purpose: &str| {
        let labels = [("operation", operation), ("purpose", purpose)];
        metrics.sum("kms_backend_calls_total", &labels) as u64
    };
    let requests = ["encrypt", "decrypt"].map(|operation| counted(operation, "request"));
    let probes = ["encrypt", "decrypt"].map(|operation| counted(operation, "probe"));
    assert_eq!((requests, probes), ([1, 2], [wraps, unwraps]), "each is counted for its purpose");
}

#[tokio::test]
async fn a_new_api_key_is_taken_over_without_a_restart() {
    let stage = Stage::new("renewed").await;
    let mut served = stage.serve().await;
    let key_id = served.wait_ok().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let pid = served.plugin.process().pid();
    stage.fake.service().delete_api_key(&stage.api_key);
    stage.fake.service().revoke_tokens();
    served.wait_bad(&[Code::PermissionDenied]).await;
    // What is half-written or empty changes nothing.
    stage.write("api-key", "");
    let new = stage.fake.service().api_key(&READER);
    stage.write("api-key", &new);
    assert_eq!(served.wait_ok().await, key_id);
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    assert_eq!(served.plugin.process().pid(), pid);
}

#[tokio::test]
async fn a_token_that_ends_is_renewed_before() {
    let stage = Stage::new("tokens").await;
    stage.fake.service().set_token_life(Duration::from_secs(30));
    let served = stage.serve().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    eventually("another token is had", PATIENCE, async || {
        ensure!(served.kms.decrypt(&sealed).await? == PLAINTEXT[..], "something else came back");
        let tokens = stage.fake.calls("token");
        ensure!(tokens >= 2, "{tokens}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
}

#[tokio::test]
async fn a_backend_that_is_down_at_the_start_is_waited_for() {
    let stage = Stage::new("down").await;
    stage.fake.gateway().inject(Fault::Cut);
    let mut served = stage.launch(&quick(&[stage.entry(1, &stage.key)])).await;
    served.wait_bad(&[Code::Unavailable]).await;
    stage.fake.gateway().heal();
    served.plugin.wait_ready().await.unwrap();
    served.kms.round_trip(PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_backend_that_goes_away_or_hangs_is_borne_and_healed_by_itself() {
    let stage = Stage::new("away").await;
    let served = stage.serve().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    for fault in [Fault::Cut, Fault::Hang] {
        stage.fake.gateway().inject(fault.clone());
        served.kms.status().await.expect("it coasts");
        let error = served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
        let codes = [Code::Unavailable, Code::DeadlineExceeded];
        assert!(codes.contains(&error.code()), "{fault:?}: {error}");
        served.wait_bad(&codes).await;
        stage.fake.gateway().heal();
        assert_eq!(served.wait_ok().await, sealed.key_id, "{fault:?}");
        assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..], "{fault:?}");
    }
}

#[tokio::test]
async fn a_slow_or_throttling_backend_is_felt_as_latency_alone() {
    let stage = Stage::new("slow").await;
    let served = stage.serve().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.fake.gateway().inject(Fault::Slow(Duration::from_millis(200)));
    served.kms.round_trip(PLAINTEXT).await.unwrap();
    served.kms.status().await.unwrap();
    stage.fake.gateway().heal();
    stage.fake.refuse("unwrap", 1, &throttled(1));
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    served.kms.status().await.unwrap();
}

#[tokio::test]
async fn a_sick_key_leaves_another_of_the_process_alone() {
    let stage = Stage::new("sick").await;
    let other = stage.fake.service().create(&stage.instance);
    let keys = [stage.entry(1, &stage.key), stage.entry(2, &other)];
    let served = stage.serve_document(&quick(&keys)).await;
    let well = stage.kms(2).await;
    stage.fake.service().set_state(&stage.key, State::Suspended);
    served.wait_bad(&[Code::FailedPrecondition]).await;
    well.round_trip(PLAINTEXT).await.unwrap();
    well.status().await.unwrap();
    stage.fake.service().set_state(&stage.key, State::Active);
    served.wait_ok().await;
}

#[tokio::test]
async fn an_expired_key_reads_on_after_a_restart() {
    let stage = Stage::new("expired").await;
    let mut entry = stage.entry(1, &stage.key);
    entry["role"] = "read".into();
    let mut served = stage.serve().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.fake.service().set_state(&stage.key, State::Deactivated);
    served.plugin.process().kill().unwrap();
    drop(served);
    let served = stage.launch(&quick(&[entry])).await;
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    assert_eq!(served.wait_ok().await, sealed.key_id);
}

#[tokio::test]
async fn data_is_read_where_the_version_cannot_be_told() {
    let stage = Stage::new("untold").await;
    let mut served = stage.serve().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    served.plugin.process().kill().unwrap();
    drop(served);
    stage.fake.service().set_rights(&["wrap", "unwrap"]);
    let served = stage.launch(&quick(&[stage.entry(1, &stage.key)])).await;
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    served.wait_bad(&[Code::PermissionDenied]).await;
}

#[tokio::test]
async fn nothing_ever_shows_a_secret() {
    let stage = Stage::new("logs").await;
    let mut document = quick(&[stage.entry(1, &stage.key)]);
    document["log"] = serde_json::json!({"level": "trace"});
    let served = stage.serve_document(&document).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let mut forged = sealed.clone();
    forged.ciphertext = sealed.ciphertext.iter().rev().copied().collect::<Vec<u8>>().into();
    served.kms.decrypt(&forged).await.unwrap_err();
    stage.fake.service().revoke_tokens();
    served.kms.decrypt(&sealed).await.unwrap_err();
    stage.fake.service().delete_api_key(&stage.api_key);
    stage.write("api-key", "aB9_another-that-is-refused");
    eventually("the refused login is logged", PATIENCE, async || {
        let log = std::fs::read_to_string(stage.log())?;
        ensure!(log.contains("BXNIM0415E"), "not yet");
        Ok(())
    })
    .await
    .unwrap();
    let admin = served.plugin.admin();
    let mut shown = std::fs::read_to_string(stage.log()).unwrap();
    for path in ["/status", "/metrics"] {
        shown.push_str(&admin.get(path).await.unwrap().text());
    }
    let ciphertext = std::str::from_utf8(&sealed.ciphertext[20..60]).unwrap();
    let plaintext = std::str::from_utf8(&PLAINTEXT[4..20]).unwrap();
    let secrets = [&stage.api_key, "another-that-is-refused", "eyJraWQ", plaintext, ciphertext];
    for secret in secrets {
        assert!(!shown.contains(secret), "{secret:?} is shown");
    }
}
