//! A service that is down, slow, hangs or throttles.

use std::time::Duration;

use sidekey_e2e::fakes::gcp::{throttled, unavailable};
use sidekey_e2e::gateway::Fault;
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, quick};

#[tokio::test]
async fn a_service_that_is_down_at_the_start_is_waited_for() {
    let stage = Stage::new("down").await;
    stage.fake().gateway().inject(Fault::Cut);
    let mut served = stage.spawn(&stage.document(), &[]).await;
    let address = stage.fake().address().to_string();
    served.wait_bad(Code::Unavailable, &address).await;
    assert_eq!(served.plugin.admin().get("/livez").await.unwrap().status, 200);
    stage.fake().gateway().heal();
    served.plugin.wait_ready().await.unwrap();
    served.round_trip().await;
}

#[tokio::test]
async fn a_service_that_goes_away_hangs_or_gets_slow_is_borne_and_heals_by_itself() {
    let stage = Stage::new("away").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    for fault in [Fault::Cut, Fault::Hang, Fault::Slow(Duration::from_secs(5))] {
        stage.fake().gateway().inject(fault.clone());
        // The caller's time is three seconds, and the answer comes in that time.
        let error = served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
        let codes = [Code::Unavailable, Code::DeadlineExceeded];
        assert!(codes.contains(&error.code()), "{fault:?}: {error}");
        stage.fake().gateway().heal();
        served.reads(&sealed).await;
        assert_eq!(served.wait_ok().await, sealed.key_id, "{fault:?}");
    }
    stage.fake().gateway().inject(Fault::Cut);
    served.wait_bad(Code::Unavailable, "connection").await;
    stage.fake().gateway().heal();
    assert_eq!(served.wait_ok().await, sealed.key_id);
}

#[tokio::test]
async fn a_passing_refusal_is_not_felt_and_lasting_ones_are_told() {
    let stage = Stage::new("throttled").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    for answer in [throttled(), unavailable()] {
        stage.fake().refuse("decrypt", 1, &answer);
        served.reads(&sealed).await;
    }
    stage.fake().refuse("decrypt", 1000, &throttled());
    // It is asked as often as the caller's time allows.
    let error = served.kms.within(Duration::from_secs(10)).decrypt(&sealed).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("quota"), "{error}");
    served.wait_bad(Code::ResourceExhausted, "RESOURCE_EXHAUSTED").await;
}

#[tokio::test]
async fn a_sick_key_does_not_slow_another_key_of_the_process() {
    let (stage, sick) = (Stage::new("well").await, Stage::new("sick").await);
    let mut key = sick.key(2, &sick.backend.key);
    key["listen"] = stage.endpoint(2).into();
    let keys = [stage.key(1, &stage.backend.key), key];
    let served = stage.serve_document(&quick(&keys), &[]).await;
    let second = stage.kms(2).await;
    let sealed = second.round_trip(PLAINTEXT).await.unwrap();
    sick.fake().gateway().inject(Fault::Hang);
    let mut hung = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (kms, sealed) = (second.within(Duration::from_secs(120)), sealed.clone());
        hung.spawn(async move { kms.decrypt(&sealed).await.map(drop) });
    }
    for _ in 0..10 {
        served.round_trip().await;
        served.kms.status().await.unwrap();
    }
    drop(hung);
}

#[tokio::test]
async fn a_killed_process_comes_back_with_the_same_key_id() {
    let stage = Stage::new("killed").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    served.plugin.restart().await.unwrap();
    served.kms = stage.kms(1).await;
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.reads(&sealed).await;
}
