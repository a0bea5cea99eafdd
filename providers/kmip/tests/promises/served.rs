//! The real binary: rotations, new certificates, faults, what a call costs, and what is never shown.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use sidekey_e2e::eventually;
use sidekey_e2e::gateway::{Fault, Gateway};
use sidekey_e2e::ports::Port;
use sidekey_e2e::wait::PATIENCE;
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, by_name, calm, quick};

#[tokio::test]
async fn a_rotation_is_announced_by_a_probe_and_old_data_reads_on() {
    let stage = Stage::new("rotated").await;
    let served = stage.serve(&stage.document()).await;
    let old = served.wait_ok().await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let new = stage.rotate().await;
    let moved = served.wait_moved(&old).await;
    assert!(moved.ends_with(&new), "{moved}");
    assert_eq!(served.kms.round_trip(PLAINTEXT).await.unwrap().key_id, moved);
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
}

#[tokio::test]
async fn a_name_that_no_key_has_for_a_moment_is_borne_and_then_told_and_heals() {
    let stage = Stage::new("nameless").await;
    let served = stage.serve(&stage.document()).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.server.change(&stage.key, &json!({"Name": "kms-old"})).await.unwrap();
    // The announced key is well, and serves. What may pass is told once it has lasted for the coast.
    assert_eq!(served.kms.round_trip(PLAINTEXT).await.unwrap().key_id, sealed.key_id);
    let error = served.wait_bad().await;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("0 active keys"), "{error}");
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    stage.server.change(&stage.key, &json!({"Name": "kms"})).await.unwrap();
    assert_eq!(served.wait_ok().await, sealed.key_id);
}

#[tokio::test]
async fn a_call_costs_what_it_must_and_status_nothing() {
    let stage = Stage::new("costs").await;
    let served = stage.serve(&calm(&[stage.entry(1, by_name())])).await;
    served.wait_ok().await;
    let calls = async || {
        let calls = stage.server.calls().await.unwrap();
        let of = |name: &str| calls.get(name).copied().unwrap_or_default();
        (of("Encrypt"), of("Decrypt"), calls.values().sum::<u64>())
    };
    let (encrypts, decrypts, all) = calls().await;
    let sealed = served.kms.encrypt(PLAINTEXT).await.unwrap();
    assert_eq!(calls().await, (encrypts + 1, decrypts + 1, all + 2), "the second verifies");
    served.kms.decrypt(&sealed).await.unwrap();
    assert_eq!(calls().await, (encrypts + 1, decrypts + 2, all + 3));
    for _ in 0..50 {
        served.kms.status().await.unwrap();
    }
    assert_eq!(calls().await, (encrypts + 1, decrypts + 2, all + 3));
}

#[tokio::test]
async fn a_new_certificate_is_taken_over_without_a_restart_and_a_bad_one_is_not() {
    let stage = Stage::new("renewed").await;
    let identities = stage.server.identities();
    stage.replace("tls.crt", &identities.client().certificate);
    stage.replace("tls.key", &identities.client().key);
    let mut entry = stage.entry(1, by_name());
    let files = json!({"certFile": stage.path("tls.crt"), "keyFile": stage.path("tls.key")});
    entry["credentials"] = files;
    let mut served = stage.serve(&quick(&[entry])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let pid = served.plugin.process().pid();
    let authority = identities.authority();
    // The server refuses it, so that the old one stays in use.
    let expired = authority.expired_peer(stage.scratch.path(), "expired", "client").unwrap();
    stage.replace("tls.crt", &expired.certificate);
    stage.replace("tls.key", &expired.key);
    stage.logs("the last good ones stay in use").await;
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    let new = authority.peer(stage.scratch.path(), "new", &["client"]).unwrap();
    stage.replace("tls.crt", &new.certificate);
    stage.replace("tls.key", &new.key);
    stage.logs("new files or settings are in use").await;
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    assert_eq!(served.wait_ok().await, sealed.key_id);
    assert_eq!(served.plugin.process().pid(), pid);
    let shown = served.plugin.admin().get("/metrics").await.unwrap().text();
    assert!(shown.contains("kms_credentials_expiry"), "{shown}");
}

#[tokio::test]
async fn a_server_that_is_killed_is_an_honest_outage_and_heals_with_its_return() {
    let mut stage = Stage::new("killed").await;
    let served = stage.serve(&stage.document()).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.server.process().kill().unwrap();
    served.kms.status().await.expect("it coasts");
    let error = served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(served.wait_bad().await.code(), Code::Unavailable);
    stage.server.revive().await.unwrap();
    assert_eq!(served.wait_ok().await, sealed.key_id);
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
}

#[tokio::test]
async fn a_server_that_hangs_is_slow_or_cuts_is_borne() {
    let stage = Stage::new("hangs").await;
    let gateway = Gateway::start(stage.server.address()).await.unwrap();
    let entry = stage.entry_at(1, by_name(), &[gateway.address()]);
    let served = stage.serve(&quick(&[entry])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    // Connections that died while idle are no failure of a call.
    for _ in 0..3 {
        gateway.inject(Fault::Cut);
        gateway.heal();
        assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    }
    gateway.inject(Fault::Slow(Duration::from_millis(100)));
    served.kms.round_trip(PLAINTEXT).await.unwrap();
    gateway.inject(Fault::Hang);
    let error = served.kms.as_kube_apiserver().decrypt(&sealed).await.unwrap_err();
    let codes = [Code::Unavailable, Code::DeadlineExceeded];
    assert!(codes.contains(&error.code()), "{error}");
    assert!(codes.contains(&served.wait_bad().await.code()));
    gateway.heal();
    assert_eq!(served.wait_ok().await, sealed.key_id);
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
}

#[tokio::test]
async fn one_of_several_servers_may_be_down_or_hang() {
    let stage = Stage::new("servers").await;
    let first = Gateway::start(stage.server.address()).await.unwrap();
    let second = Gateway::start(stage.server.address()).await.unwrap();
    let nobody = Port::free().unwrap();
    let servers = [nobody.address(), first.address(), second.address()];
    let mut document = quick(&[stage.entry_at(1, by_name(), &servers)]);
    // A probe that meets the one that hangs has time left for another.
    document["probe"]["timeout"] = "8s".into();
    let served = stage.serve(&document).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    for away in [&first, &second] {
        for fault in [Fault::Cut, Fault::Hang] {
            away.inject(fault);
            let patient = served.kms.within(Duration::from_secs(20));
            assert_eq!(patient.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
            away.heal();
        }
    }
    served.kms.round_trip(PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_sick_key_leaves_another_of_the_process_alone_and_comes_back() {
    let stage = Stage::new("sick").await;
    let other = stage.server.create("other", json!({})).await.unwrap();
    let keys = [stage.entry(1, json!({"id": stage.key})), stage.entry(2, json!({"id": other}))];
    let served = stage.serve(&quick(&keys)).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let well = stage.kms(2).await;
    stage.server.change(&stage.key, &json!({"State": "Deactivated"})).await.unwrap();
    let error = served.wait_bad().await;
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..], "it reads on");
    well.round_trip(PLAINTEXT).await.unwrap();
    well.status().await.unwrap();
    stage.server.change(&stage.key, &json!({"State": "Active"})).await.unwrap();
    assert_eq!(served.wait_ok().await, sealed.key_id);
}

#[tokio::test]
async fn a_backend_that_is_no_kmip_server_is_waited_for() {
    let stage = Stage::new("other").await;
    let identities = stage.server.identities();
    let dir = stage.scratch.subdir("front").unwrap();
    let files = identities.authority().server(&dir, "front").unwrap();
    let page = Gateway::tls(stage.server.address(), &files).await.unwrap();
    page.inject(Fault::Raw("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".into()));
    let entry = stage.entry_at(1, by_name(), &[page.address()]);
    let served = stage.launch(&quick(&[entry])).await;
    let error = served.wait_bad().await;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    stage.logs("none of KMIP's").await;
}

#[tokio::test]
async fn nothing_ever_shows_a_secret() {
    let stage = Stage::new("logs").await;
    let mut document = stage.document();
    document["log"] = json!({"level": "trace"});
    let served = stage.serve(&document).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let mut forged = sealed.clone();
    forged.ciphertext = sealed.ciphertext.iter().rev().copied().collect::<Vec<u8>>().into();
    served.kms.decrypt(&forged).await.unwrap_err();
    stage.server.change(&stage.key, &json!({"State": "Destroyed"})).await.unwrap();
    served.kms.decrypt(&sealed).await.unwrap_err();
    let admin = served.plugin.admin();
    let shown = eventually("the failure is logged", PATIENCE, async || {
        let mut shown = std::fs::read(stage.log())?;
        let text = String::from_utf8_lossy(&shown).into_owned();
        ensure!(text.contains("destroyed"), "not yet");
        for path in ["/status", "/metrics"] {
            shown.extend_from_slice(admin.get(path).await?.text().as_bytes());
        }
        Ok(shown)
    });
    let shown = shown.await.unwrap();
    let key = std::fs::read_to_string(&stage.server.identities().client().key).unwrap();
    let key = key.lines().nth(1).unwrap();
    for secret in [&PLAINTEXT[4..20], &sealed.ciphertext[20..40], key.as_bytes()] {
        assert!(!shown.windows(secret.len()).any(|window| window == secret), "it is shown");
    }
}
