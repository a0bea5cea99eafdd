//! A vault that is away, slow, hung or too busy, and a login endpoint that is gone.

use std::time::Duration;

use anyhow::ensure;
use sidekey_e2e::eventually;
use sidekey_e2e::gateway::Fault;
use sidekey_e2e::wait::PATIENCE;
use tonic::Code;

use crate::support::{CLIENT, PLAINTEXT, Stage, calm};

#[tokio::test]
async fn a_vault_that_goes_away_hangs_or_gets_slow_is_borne_and_healed_by_itself() {
    let stage = Stage::new("away").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    for fault in [Fault::Cut, Fault::Hang, Fault::Slow(Duration::from_secs(5))] {
        stage.fake.gateway().inject(fault.clone());
        let error = served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
        let codes = [Code::Unavailable, Code::DeadlineExceeded];
        assert!(codes.contains(&error.code()), "{fault:?}: {error}");
        stage.fake.gateway().heal();
        assert_eq!(served.wait_ok().await, sealed.key_id, "{fault:?}");
        served.reads(&sealed).await;
    }
}

#[tokio::test]
async fn a_vault_that_is_down_at_the_start_is_waited_for() {
    let stage = Stage::new("down").await;
    stage.fake.gateway().inject(Fault::Cut);
    let mut served = stage.spawn(&stage.document()).await;
    let address = stage.fake.address().to_string();
    served.wait_bad(Code::Unavailable, &address).await;
    assert_eq!(served.plugin.admin().get("/livez").await.unwrap().status, 200);
    stage.fake.gateway().heal();
    served.wait_ok().await;
    served.round_trip().await;
}

#[tokio::test]
async fn a_throttling_vault_is_left_alone_as_long_as_it_asks_and_nobody_fails_who_has_that_time() {
    let stage = Stage::new("throttled").await;
    let mut served = stage.serve_document(&calm(&[stage.key(1, &stage.by_secret())])).await;
    served.wait_ok().await;
    let sealed = served.round_trip().await;
    stage.fake.service().throttle(1, Duration::from_secs(1));
    let before = stage.fake.calls("decrypt");
    served.reads(&sealed).await;
    assert_eq!(stage.fake.calls("decrypt") - before, 2, "the refused call and one more");
    // Who has less time than the vault asks for is told so, and the vault is not called.
    stage.fake.service().throttle(1, Duration::from_secs(50));
    let before = stage.fake.calls("decrypt");
    for _ in 0..3 {
        let error = served.kms.decrypt(&sealed).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    }
    assert_eq!(stage.fake.calls("decrypt") - before, 1);
}

#[tokio::test]
async fn a_token_that_ends_is_renewed_before() {
    let stage = Stage::new("tokens").await;
    stage.fake.service().life(Duration::from_secs(30));
    let served = stage.serve().await;
    let sealed = served.round_trip().await;
    let renewed = eventually("another token is had", PATIENCE, async || {
        served.reads(&sealed).await;
        let tokens = stage.fake.calls("token");
        ensure!(tokens >= 2, "{tokens}");
        Ok(())
    });
    renewed.await.unwrap();
    served.reads(&sealed).await;
}

#[tokio::test]
async fn rights_that_are_taken_away_are_denied_and_given_back_are_taken_up() {
    let stage = Stage::new("rights").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    stage.fake.service().allow(CLIENT, &["get", "encrypt"]);
    let error = served.kms.decrypt(&sealed).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    assert!(error.message().contains("Key Vault Crypto User"), "{error}");
    served.wait_bad(Code::PermissionDenied, "decrypt").await;
    stage.fake.service().allow(CLIENT, &["get", "encrypt", "decrypt"]);
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.kms.round_trip(PLAINTEXT).await.unwrap();
}
