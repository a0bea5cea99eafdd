//! Promises of a key with several endpoints, and of what a plugin answers: one that hangs costs
//! its share of the caller's time, what is answered goes back as it is, and Status passes on what
//! our own providers say and coasts over the rest.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::eventually;
use support::plugin::{Manners, Plugin, time};
use support::shim::{Shim, document, key};
use tonic::Code;

/// Two plugins with one KEK, and a shim with both as endpoints of its write key.
async fn pair(directory: &Path) -> (Plugin, Plugin, Shim) {
    let first = Plugin::with(&directory.join("a.sock"), Manners::of_kek(1)).await;
    let second = Plugin::with(&directory.join("b.sock"), Manners::of_kek(1)).await;
    let keys = [key(1, "write", &[&first, &second])];
    let shim = Shim::start(directory, &document(directory, 1, &keys)).await;
    shim.is_ready().await;
    (first, second, shim)
}

#[tokio::test]
async fn beside_an_endpoint_that_hangs_every_call_is_answered_in_its_callers_time() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second, shim) = pair(directory.path()).await;
    let sealed = shim.encrypt(b"before").await.unwrap();
    first.manners.hangs.store(true, Ordering::SeqCst);

    // Until probes have timed out, and after that: it is known to hang, and comes last.
    for _ in 0..8 {
        // Each in the time that its caller has.
        assert_eq!(shim.decrypt(&sealed).await.unwrap(), b"before");
        let again = shim.encrypt(b"again").await.unwrap();
        assert_eq!(again.key_id, sealed.key_id);
        assert_eq!(shim.announced().await.unwrap(), sealed.key_id);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(shim.key(1).await.unwrap()["healthy"], true);
    eventually("an endpoint that is known to hang is asked no more", async || {
        let asked = first.seen_of_callers();
        shim.decrypt(&sealed).await.unwrap();
        (first.seen_of_callers() == asked).then_some(())
    })
    .await;

    first.manners.hangs.store(false, Ordering::SeqCst);
    second.manners.hangs.store(true, Ordering::SeqCst);
    eventually("the first serves again", async || shim.decrypt(&sealed).await.ok()).await;
    assert_eq!(shim.announced().await.unwrap(), sealed.key_id);
}

#[tokio::test]
async fn every_endpoint_is_told_the_callers_whole_time_and_waited_for_its_share() {
    const MINUTE: Duration = Duration::from_secs(60);
    let directory = tempfile::tempdir().unwrap();
    let (first, second, shim) = pair(directory.path()).await;
    let sealed = shim.encrypt(b"before").await.unwrap();
    for plugin in [&first, &second] {
        *plugin.manners.timeout.lock().unwrap() = None;
    }
    // A probe of the shim's own has ten seconds at most.
    let told = eventually("somebody is told", async || {
        assert_eq!(shim.decrypt_within(MINUTE, &sealed).await.unwrap(), b"before");
        let told = |plugin: &Plugin| time(plugin.manners.timeout.lock().unwrap().as_ref()?);
        [told(&first), told(&second)].into_iter().flatten().max().filter(|told| *told > MINUTE / 4)
    })
    .await;
    assert!(told > MINUTE * 3 / 4, "it was told {told:?}, which is its share");
}

#[tokio::test]
async fn a_kms_that_is_away_for_a_third_of_the_callers_time_fails_no_decrypt_at_two_endpoints() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second, shim) = pair(directory.path()).await;
    let sealed = shim.encrypt(b"before").await.unwrap();
    for Plugin { manners, .. } in [&first, &second] {
        manners.fails_with(Some((Code::Unavailable, "the KMS answers 503")));
        manners.tries_again.store(true, Ordering::SeqCst);
    }
    let third = Duration::from_secs(3);
    let heals = async {
        tokio::time::sleep(third).await;
        first.manners.fails_with(None);
        second.manners.fails_with(None);
    };
    let (read, ()) = tokio::join!(shim.decrypt_within(third * 3, &sealed), heals);
    assert_eq!(read.unwrap(), b"before");
}

#[tokio::test]
async fn what_a_plugin_answers_goes_back_as_it_is_and_is_asked_once() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second, shim) = pair(directory.path()).await;
    let sealed = shim.encrypt(b"before").await.unwrap();
    let seen = || first.seen_of_callers() + second.seen_of_callers();
    let before = seen();
    // Either: whoever was slow for a moment is asked last.
    for plugin in [&first, &second] {
        plugin.manners.fails_with(Some((Code::Unavailable, "the KMS is away")));
    }
    let refused = shim.decrypt(&sealed).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("the KMS is away"), "{refused}");
    assert_eq!(seen() - before, 1);
}

#[tokio::test]
async fn a_call_goes_on_where_its_connection_broke_and_waits_where_nobody_is() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second, shim) = pair(directory.path()).await;
    let sealed = shim.encrypt(b"before").await.unwrap();
    let path = first.path.clone();
    let manners = first.kill().await;
    assert_eq!(shim.decrypt(&sealed).await.unwrap(), b"before");
    assert_eq!(shim.encrypt(b"x").await.unwrap().key_id, sealed.key_id);

    second.kill().await;
    let waiting = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        Plugin::with(&path, manners).await
    };
    let (read, _first) = tokio::join!(shim.decrypt(&sealed), waiting);
    assert_eq!(read.unwrap(), b"before");
}

#[tokio::test]
async fn where_two_endpoints_rotate_at_different_moments_no_encrypt_fails_and_no_key_id_returns() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second, shim) = pair(directory.path()).await;
    let old = shim.announced().await.unwrap();
    // The first in order is the first to move.
    first.manners.moves_to("test/2");
    for _ in 0..20 {
        assert_eq!(shim.encrypt(b"x").await.unwrap().key_id, old);
        assert_eq!(shim.announced().await.unwrap(), old);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // What is asked for while the last one moves waits for the new version to be announced.
    second.manners.moves_to("test/2");
    let new = shim.encrypt(b"x").await.unwrap().key_id;
    assert!(new.ends_with("/test/2"), "{new}");
    assert_eq!(shim.announced().await.unwrap(), new);
    // One that lags behind is not written with, and announced never.
    second.manners.moves_to("test/1");
    for _ in 0..20 {
        assert_eq!(shim.encrypt(b"x").await.unwrap().key_id, new);
        assert_eq!(shim.announced().await.unwrap(), new);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_our_provider_answers_is_passed_on_at_once_and_a_foreign_plugins_failure_coasts() {
    for external in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let plugin = Plugin::with(&directory.join("a.sock"), Manners::of_kek(1)).await;
        let mut key = key(1, "write", &[&plugin]);
        key["external"] = external.into();
        let shim = Shim::start(directory, &document(directory, 1, &[key])).await;
        let key_id = shim.is_ready().await;
        plugin.manners.fails_with(Some((Code::FailedPrecondition, "the key is disabled")));
        shim.key_is(1, "the failure is noticed", |key| key["healthy"] == false).await;
        if external {
            // The coast is a minute.
            assert_eq!(shim.announced().await.unwrap(), key_id);
            assert!(shim.key(1).await.unwrap()["coasting_since"].is_string());
            let metrics = shim.get("/metrics").await.unwrap();
            assert!(metrics.contains("kms_shim_coasting_since_timestamp_seconds{key=\"1\"} 1"));
        } else {
            let error = shim.announced().await.unwrap_err();
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
            assert!(error.message().contains("the key is disabled"), "{error}");
        }
        plugin.manners.fails_with(None);
        assert_eq!(shim.is_ready().await, key_id);
    }
}

#[tokio::test]
async fn a_provider_that_has_just_been_started_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second, shim) = pair(directory.path()).await;
    second.kill().await;
    let key_id = shim.announced().await.unwrap();
    let path = first.path.clone();
    let manners = first.kill().await;
    manners.fails_with(Some((Code::Unavailable, "waiting for the first probe of the key")));
    let asked = manners.asked.load(Ordering::SeqCst);
    let first = Plugin::with(&path, manners).await;
    eventually("it has been asked", async || {
        (first.manners.asked.load(Ordering::SeqCst) > asked + 2).then_some(())
    })
    .await;
    assert_eq!(shim.announced().await.unwrap(), key_id);
}

#[tokio::test]
async fn a_coast_that_is_too_short_is_raised_and_said() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let mut document = document(directory, 1, &[key(1, "write", &[&plugin])]);
    document["coast"] = "1s".into();
    let shim = Shim::start(directory, &document).await;
    shim.is_ready().await;
    // It is said once the configuration is on disk.
    let warning = eventually("it is said", async || {
        shim.status().await?["config"]["warnings"][0].as_str().map(str::to_owned)
    })
    .await;
    assert!(warning.contains("a coast of 1s is too short"), "{warning}");
}

#[tokio::test]
async fn forged_data_does_not_make_the_shim_ask_a_foreign_plugin_for_status_all_the_time() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::with(&directory.join("a.sock"), Manners::of_kek(1)).await;
    let mut key = key(1, "write", &[&plugin]);
    key["external"] = true.into();
    let mut document = document(directory, 1, &[key]);
    document["probe"]["interval"] = "1h".into();
    let shim = Shim::start(directory, &document).await;
    shim.is_ready().await;
    let mut forged = shim.encrypt(b"x").await.unwrap();
    let mut bytes = forged.ciphertext.to_vec();
    bytes[0] ^= 0xff;
    forged.ciphertext = bytes.into();
    // Each wait is at least half of what it may be, and twice as long as the one before.
    let asked = || plugin.manners.asked.load(Ordering::SeqCst);
    let (before, began) = (asked(), Instant::now());
    while began.elapsed() < Duration::from_secs(5) {
        shim.decrypt(&forged).await.unwrap_err();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let probes = asked() - before;
    assert!((1..=6).contains(&probes), "{probes} probes");
}
