//! Backends that are away, slow or hung, and processes that are killed.

use std::time::Duration;

use sidekey_e2e::aws::{KmsFault, REGION};
use sidekey_e2e::gateway::Fault;
use tonic::Code;

use crate::support::{Aws, PLAINTEXT, healthy, kms, sick, until};

/// The time of calls that hang: more than all that is served beside them can take.
const HUNG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_backend_that_is_down_at_the_start_is_waited_for() {
    let aws = Aws::start("down").await;
    aws.gateway.inject(Fault::Cut);
    let mut plugin = aws.launch(&aws.flags(&aws.key), &[]).await;
    let socket = plugin.socket("kms");
    until("it listens", async || socket.metadata().map_err(Into::into)).await;
    let client = kms(&plugin, "kms").await;
    let error = client.status().await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let told = until("the reason is told", async || {
        let error = client.status().await.expect_err("KMS is down");
        let said = error.message().to_owned();
        anyhow::ensure!(said.contains(&aws.gateway.address().to_string()), "{said}");
        Ok(said)
    })
    .await;
    assert!(!told.contains("waiting for the first probe"), "{told}");
    assert_eq!(plugin.admin().get("/livez").await.unwrap().status, 200);
    aws.gateway.heal();
    plugin.wait_ready().await.unwrap();
    client.round_trip(&PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_backend_that_goes_away_hangs_or_gets_slow_is_borne_and_healed_by_itself() {
    let aws = Aws::start("away").await;
    let plugin = aws.serve().await;
    let client = kms(&plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    for fault in [Fault::Cut, Fault::Hang, Fault::Slow(Duration::from_secs(5))] {
        aws.gateway.inject(fault.clone());
        // The caller's time is three seconds, and the answer comes in that time.
        let error = client.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
        let codes = [Code::Unavailable, Code::DeadlineExceeded];
        assert!(codes.contains(&error.code()), "{fault:?}: {error}");
        let error = sick(&client).await;
        assert!(codes.contains(&error.code()), "{fault:?}: {error}");
        aws.gateway.heal();
        assert_eq!(healthy(&plugin, "kms").await, sealed.key_id, "{fault:?}");
        assert_eq!(client.decrypt(&sealed).await.unwrap(), PLAINTEXT[..], "{fault:?}");
    }
}

#[tokio::test]
async fn a_slow_backend_is_felt_as_latency_alone() {
    let aws = Aws::start("slow").await;
    let plugin = aws.serve().await;
    let client = kms(&plugin, "kms").await;
    aws.gateway.inject(Fault::Slow(Duration::from_millis(400)));
    let passed = aws.gateway.requests();
    while aws.gateway.requests() < passed + 12 {
        client.round_trip(&PLAINTEXT).await.unwrap();
        client.status().await.unwrap();
    }
}

#[tokio::test]
async fn a_sick_key_does_not_slow_another_key_of_the_process() {
    let aws = Aws::alone("sick").await;
    let other = aws.owner.create_key().await.unwrap();
    let at = |name: &str| aws.dir().join(name).display().to_string();
    let flags = [
        format!("--key={},{other}", aws.key),
        format!("--region={REGION}"),
        format!("--listen={},{}", at("a.sock"), at("b.sock")),
        "--health-port=127.0.0.1:0".to_owned(),
        "--probe-interval=1s".to_owned(),
        "--probe-timeout=2s".to_owned(),
        "--coast=9s".to_owned(),
    ];
    let plugin = aws.serve_with(&flags).await;
    let (sick_one, well) = (kms(&plugin, "a").await, kms(&plugin, "b").await);
    let sealed = sick_one.round_trip(&PLAINTEXT).await.unwrap();
    let id = aws.key.rsplit('/').next().unwrap();
    aws.moto.faults(&[KmsFault::slow(HUNG * 2).of_key(id)]).await.unwrap();
    let mut hung = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (client, sealed) = (sick_one.within(HUNG), sealed.clone());
        hung.spawn(async move { client.decrypt(&sealed).await.map(drop) });
    }
    // All of them are sent, and have come when what is sent after them is answered.
    tokio::task::yield_now().await;
    let _ = sick_one.status().await;
    for _ in 0..10 {
        well.round_trip(&PLAINTEXT).await.unwrap();
        well.status().await.unwrap();
    }
    assert!(hung.try_join_next().is_none(), "others were served while these hung");
    drop(hung);
    let error = sick(&sick_one).await;
    assert!(matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded), "{error}");
    well.status().await.unwrap();
    aws.moto.faults(&[]).await.unwrap();
    healthy(&plugin, "a").await;
}

#[tokio::test]
async fn a_killed_process_comes_back_with_the_same_key_id() {
    let aws = Aws::start("killed").await;
    let mut plugin = aws.serve().await;
    let sealed = kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
    plugin.restart().await.unwrap();
    assert_eq!(healthy(&plugin, "kms").await, sealed.key_id);
    let client = kms(&plugin, "kms").await;
    assert_eq!(client.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
}
