//! Several servers, redirects and broken connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sidekey_core::{Kind, Provider};

use super::{Secret, refusal};
use crate::testing::{MADE, Reply, Simulated, call, connect, sound};

/// An address where nobody listens.
async fn nobody() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn a_server_that_is_gone_or_sealed_is_passed_over() {
    let sealed = Simulated::start(|_| Reply::error(503, "Vault is sealed")).await;
    let good = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[nobody().await, sealed.url(), good.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    let asked = sealed.seen("").len();
    vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
    assert_eq!(sealed.seen("").len(), asked, "the server that answered last is asked first");
}

#[tokio::test]
async fn a_standby_without_an_active_server_is_passed_over() {
    let lost = Simulated::start(|_| Reply::error(500, "active cluster node not found")).await;
    let good = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let secret = Secret::new();
    connect(&secret.config(&[lost.url(), good.url()])).await.unwrap();
    assert_eq!(lost.seen("").len(), 1);
}

#[tokio::test]
async fn all_servers_sealed_is_a_passing_failure_that_names_one() {
    let sealed = Simulated::start(|_| Reply::error(503, "Vault is sealed")).await;
    let secret = Secret::new();
    let error = refusal(connect(&secret.config(&[sealed.url()])).await);
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.report().contains("Vault is sealed"), "{}", error.report());
    assert!(error.report().contains(&sealed.url()), "{}", error.report());
}

#[tokio::test]
async fn codes_have_their_kinds() {
    for (status, kind) in [
        (400, Kind::Unavailable),
        (418, Kind::Unavailable),
        (412, Kind::Unavailable),
        (429, Kind::Throttled),
        (472, Kind::Unavailable),
        (473, Kind::Unavailable),
        (500, Kind::Unavailable),
        (502, Kind::Unavailable),
        (405, Kind::Config),
        (404, Kind::KeyState),
        (403, Kind::Denied),
    ] {
        let server = Simulated::start(move |seen| match seen.is("/keys/") {
            true => Reply::error(status, "no"),
            false => sound(seen, "t", &[MADE]),
        })
        .await;
        let secret = Secret::new();
        let error = refusal(connect(&secret.config(&[server.url()])).await);
        assert_eq!(error.kind(), kind, "{status}: {}", error.report());
    }
}

#[tokio::test]
async fn a_redirect_to_a_configured_server_is_followed_and_remembered() {
    let active = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let to = active.url();
    let standby = Simulated::start(move |seen| {
        let path = seen.line.split(' ').nth(1).unwrap();
        Reply::error(307, "").with("location", &format!("{to}{path}"))
    })
    .await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[standby.url(), active.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    let asked = standby.seen("").len();
    vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
    assert_eq!(standby.seen("").len(), asked, "the active server is asked first");
}

#[tokio::test]
async fn a_redirect_to_a_stranger_gets_no_token() {
    let stranger = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let to = stranger.url();
    let server = Simulated::start(move |seen| match seen.is("/keys/") {
        true => Reply::error(307, "").with("location", &format!("{to}/v1/transit/keys/kms")),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    let error = refusal(connect(&secret.config(&[server.url()])).await);
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.report().contains("is not configured"), "{}", error.report());
    assert!(stranger.seen("").is_empty(), "nothing may be sent to it");
}

#[tokio::test]
async fn redirects_without_end_or_to_another_path_are_not_followed() {
    for location in ["/v1/transit/keys/kms", "/v1/sys/other", "//nowhere", ""] {
        let server = Simulated::start(move |seen| {
            if !seen.is("/keys/") {
                return sound(seen, "t", &[MADE]);
            }
            let host = seen.header("host").unwrap();
            Reply::error(307, "").with("location", &format!("http://{host}{location}"))
        })
        .await;
        let secret = Secret::new();
        let error = refusal(connect(&secret.config(&[server.url()])).await);
        assert_eq!(error.kind(), Kind::Unavailable, "{location}");
        assert!(server.seen("/keys/").len() <= 3, "{location}");
        assert!(server.seen("/sys/").is_empty());
    }
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced_unnoticed() {
    let server = Simulated::start(|seen| sound(seen, "t", &[MADE]).closing()).await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    for _ in 0..10 {
        let sealed = vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
        assert_eq!(vault.decrypt(&sealed, &call()).await.unwrap().expose(), b"plain");
    }
}

#[tokio::test]
async fn a_server_that_hangs_does_not_use_up_the_callers_time() {
    let hangs = Arc::new(AtomicBool::new(false));
    let flag = hangs.clone();
    let first = Simulated::start(move |seen| {
        let reply = sound(seen, "t", &[MADE]);
        if flag.load(Ordering::Relaxed) { reply.hanging() } else { reply }
    })
    .await;
    let second = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let secret = Secret::new();
    let mut document = crate::testing::document(&[first.url(), second.url()], &secret.path());
    document["settings"]["requestTimeout"] = "200ms".into();
    let vault = connect(&crate::testing::config(&document)).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    hangs.store(true, Ordering::Relaxed);
    vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
    assert_eq!(second.seen("/encrypt/").len(), 1);
}

#[tokio::test]
async fn an_answer_without_end_is_refused() {
    let server = Simulated::start(|seen| match seen.is("/keys/") {
        true => Reply::new(200, &serde_json::json!("x".repeat(2 * 1024 * 1024))),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    let error = refusal(connect(&secret.config(&[server.url()])).await);
    assert!(error.report().contains("longer than"), "{}", error.report());
}

#[tokio::test]
async fn two_servers_that_hang_leave_time_for_the_third() {
    let hangs = Arc::new(AtomicBool::new(false));
    let server = async |may_hang: bool| {
        let flag = hangs.clone();
        Simulated::start(move |seen| {
            let reply = sound(seen, "t", &[MADE]);
            if may_hang && flag.load(Ordering::Relaxed) { reply.hanging() } else { reply }
        })
        .await
    };
    let (first, second, third) = (server(true).await, server(true).await, server(false).await);
    let secret = Secret::new();
    let vault = connect(&secret.config(&[first.url(), second.url(), third.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    hangs.store(true, Ordering::Relaxed);
    // Less than the default of requestTimeout for each of the two.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(3);
    let call = sidekey_core::Call { uid: "test", deadline };
    vault.encrypt(&key_id, b"plain", &call).await.unwrap();
    assert_eq!(third.seen("/encrypt/").len(), 1);
}
