//! A server that is sealed, away, slow or too busy: what callers see, and that it heals by itself.

use std::time::Duration;

use serde_json::json;
use sidekey_e2e::gateway::{Fault, Gateway};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{OpenBao, Scratch, eventually};
use tokio::task::JoinHandle;
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, failed, quick, says, shared};

/// The time of calls that hang: more than all that is served beside them can take.
const HUNG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_sealed_or_restarted_server_is_an_honest_outage_that_heals_by_itself() {
    let scratch = Scratch::new("sealed").unwrap();
    let mut server = OpenBao::start(&scratch, "bao").await.unwrap();
    let stage = Stage::on_own(&server, "sealed").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;

    server.seal().await.unwrap();
    failed(served.kms.decrypt(&sealed).await, Code::Unavailable, &["sealed"]);
    served.wait_bad_for(Code::Unavailable, "sealed").await;
    server.unseal().await.unwrap();
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.reads(&sealed).await;

    server.process().kill().unwrap();
    failed(served.kms.decrypt(&sealed).await, Code::Unavailable, &[]);
    served.wait_bad_for(Code::Unavailable, "").await;
    // Starts while the server is away: it waits, and says for what.
    served.restart(&stage).await;
    served.logs("probe of the key failed").await;
    let ready = served.plugin.admin().get("/readyz").await.unwrap();
    assert_ne!(ready.status, 200, "{}", ready.text());
    let live = served.plugin.admin().get("/livez").await.unwrap();
    assert_eq!(live.status, 200, "an outage is no reason to be restarted");
    failed(served.kms.encrypt(PLAINTEXT).await, Code::Unavailable, &[]);
    server.revive().await.unwrap();
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.reads(&sealed).await;
    served.round_trip().await;
}

#[tokio::test]
async fn a_killed_plugin_comes_back_as_it_was() {
    let stage = Stage::new("killed").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    for _ in 0..3 {
        served.restart(&stage).await;
        assert_eq!(served.wait_ok().await, sealed.key_id);
        served.reads(&sealed).await;
    }
}

#[tokio::test]
async fn too_many_requests_are_throttled_and_pass() {
    let stage = Stage::new("throttled").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    stage.bao.limit("throttled", "throttled", 0.1).await.unwrap();
    let throttled = eventually("a call is throttled", PATIENCE, async || {
        match served.kms.decrypt(&sealed).await {
            Err(error) if error.code() == Code::ResourceExhausted => Ok(error),
            other => anyhow::bail!("{other:?}"),
        }
    });
    says(&throttled.await.unwrap(), Code::ResourceExhausted, &["429"]);
    served.wait_bad_for(Code::ResourceExhausted, "").await;
    assert!(served.metric("kms_errors_total", &[("kind", "throttled")]).await >= 1.0);
    stage.bao.unlimit("throttled").await.unwrap();
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.reads(&sealed).await;
}

#[tokio::test]
async fn a_sick_key_does_not_slow_another() {
    let stage = Stage::new("apart").await;
    let server = shared().await;
    let gateway = Gateway::start(server.socket_address()).await.unwrap();
    let mut sick = stage.app_role_key(2, &stage.key);
    sick["settings"]["address"] = format!("https://{}", gateway.address()).into();
    let document = quick(&[stage.app_role_key(1, &stage.key), sick]);
    let served = stage.serve_document(&document).await;
    let sealed = served.round_trip().await;
    let sick = stage.kms(2).await;
    sick.round_trip(PLAINTEXT).await.unwrap();

    gateway.inject(Fault::Hang);
    let hung: Vec<_> = (0..64)
        .map(|_| {
            let (sick, sealed) = (sick.within(HUNG), sealed.clone());
            tokio::spawn(async move { sick.decrypt(&sealed).await })
        })
        .collect();
    // All of them are sent, and have come when what is sent after them is answered.
    tokio::task::yield_now().await;
    let _ = sick.status().await;
    for _ in 0..50 {
        served.reads(&sealed).await;
        served.kms.status().await.unwrap();
    }
    assert!(!hung.iter().any(JoinHandle::is_finished), "others were served while these hung");
    for call in hung {
        call.abort();
    }
    // Whoever has less time is told so in that time.
    let error = sick.within(Duration::from_secs(3)).decrypt(&sealed).await.unwrap_err();
    assert!(matches!(error.code(), Code::DeadlineExceeded | Code::Unavailable), "{error}");
    let down = eventually("key 2 is down", PATIENCE, async || {
        anyhow::ensure!(sick.status().await.is_err(), "it is not");
        Ok(())
    });
    down.await.unwrap();
    served.round_trip().await;
    gateway.heal();
    let healed = eventually("key 2 is well", PATIENCE, async || Ok(sick.status().await?));
    assert_eq!(healed.await.unwrap().key_id, sealed.key_id);
    sick.round_trip(PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_slow_server_is_felt_as_latency_and_a_cut_connection_not_at_all() {
    let stage = Stage::new("slow").await;
    let gateway = Gateway::start(shared().await.socket_address()).await.unwrap();
    let mut key = stage.app_role_key(1, &stage.key);
    key["settings"]["address"] = format!("https://{}", gateway.address()).into();
    let mut document = quick(&[key]);
    document["probe"] = json!({"interval": "500ms", "timeout": "10s", "coast": "16s"});
    let mut served = stage.serve_document(&document).await;
    let sealed = served.round_trip().await;
    gateway.inject(Fault::Slow(Duration::from_millis(250)));
    for _ in 0..3 {
        served.reads(&sealed).await;
        served.round_trip().await;
        served.wait_ok().await;
    }
    gateway.heal();
    // Connections that died while idle are no failure of a call.
    for _ in 0..5 {
        gateway.inject(Fault::Cut);
        gateway.heal();
        served.reads(&sealed).await;
    }
}
