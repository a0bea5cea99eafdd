//! Refused logins, and tokens that come to an end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sidekey_core::{Kind, Provider};

use super::sessions::until;
use super::{Secret, refusal};
use crate::testing::{MADE, Reply, Simulated, call, config, connect, document, encrypt, sound};

/// In how many seconds a refused login is tried again, by what people are told.
fn again(error: &sidekey_core::Error) -> u64 {
    let hint = error.hint().unwrap_or_default();
    let (_, rest) = hint.split_once("tried again in ").expect(hint);
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn only_what_vault_counts_before_it_locks_is_not_tried_again_for_a_long_time() {
    let credentials = |way: &str, path: &Path| match way {
        "jwt" => json!({"jwt": {"role": "r", "tokenFile": path}}),
        "userpass" => json!({"userpass": {"username": "u", "passwordFile": path}}),
        _ => json!({"appRole": {"roleId": "r", "secretIdFile": path}}),
    };
    let ways = [
        ("appRole", 400, "wrong, expired or used up", true),
        ("userpass", 400, "wrong, expired or used up", true),
        ("jwt", 400, "wrong, expired or used up", false),
        // Locked already, from a wrong address, or into a mount that is not there.
        ("appRole", 403, "sys/locked-users", false),
        ("userpass", 403, "CIDR", false),
    ];
    for (index, (way, status, part, is_long)) in ways.into_iter().enumerate() {
        let server = Simulated::start(move |seen| match seen.is("/login") {
            true => Reply::error(status, "no"),
            false => sound(seen, "t", &[MADE]),
        })
        .await;
        let secret = Secret::new();
        secret.write(&format!("s.of-way-{index}"));
        let mut document = document(&[server.url()], &secret.path());
        document["credentials"] = credentials(way, &secret.path());
        let first = refusal(connect(&config(&document)).await);
        assert!(first.kind() == Kind::Denied && first.is_lasting(), "{}", first.report());
        assert!(first.hint().unwrap_or_default().contains(part), "{}", first.report());
        let next = refusal(connect(&config(&document)).await);
        assert_eq!(again(&next) > 900, is_long, "{}", next.report());
        assert!(is_long || again(&next) <= 61, "{}", next.report());
        assert_eq!(server.seen("/login").len(), 1);
    }
}

#[tokio::test]
async fn a_token_that_works_is_renewed_while_its_credential_is_refused() {
    let logins = AtomicUsize::new(0);
    let server = Simulated::start(move |seen| {
        if seen.is("/login") && logins.fetch_add(1, Ordering::Relaxed) > 0 {
            return Reply::error(400, "invalid role or secret ID");
        }
        if seen.is("/login") || seen.is("/renew-self") {
            let auth = json!({"client_token": "t", "lease_duration": 15, "renewable": true});
            return Reply::new(200, &json!({"auth": auth}));
        }
        sound(seen, "t", &[MADE])
    })
    .await;
    let secret = Secret::new();
    secret.write("s.expired-meanwhile");
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    // Another setting makes another session, whose login is refused: the old one serves on.
    let mut other = document(&[server.url()], &secret.path());
    other["settings"]["requestTimeout"] = "3s".into();
    assert_eq!(refusal(connect(&config(&other)).await).kind(), Kind::Denied);
    let first = vault.expiry().unwrap();
    until("renewals", || server.seen("/renew-self").len() > 1).await;
    until("a later end", || vault.expiry().unwrap() > first).await;
    vault.key_id().await.expect("its token is as good as ever");
    assert_eq!(server.seen("/login").len(), 2);
}

#[tokio::test]
async fn a_given_token_ends_when_vault_says_so_also_in_its_last_second() {
    for (ttl, expire_time, ends) in [
        (0, Value::Null, false),
        (3600, "2030-01-01T00:00:00Z".into(), true),
        (0, "2030-01-01T00:00:00Z".into(), true),
        (-1, "2030-01-01T00:00:00Z".into(), true),
    ] {
        let data = json!({"ttl": ttl, "expire_time": expire_time, "renewable": false});
        let known = json!({"data": data});
        let server = Simulated::start(move |seen| match seen.is("/lookup-self") {
            true => Reply::new(200, &known),
            false => sound(seen, "t", &[MADE]),
        })
        .await;
        let secret = Secret::new();
        secret.write(&format!("s.ends-in-{ttl}-{ends}"));
        let mut document = document(&[server.url()], &secret.path());
        document["credentials"] = json!({"token": {"file": secret.path()}});
        let vault = connect(&config(&document)).await.unwrap();
        assert_eq!(vault.expiry().is_some(), ends, "{data}");
    }
}

#[tokio::test]
async fn what_no_vault_has_said_is_no_refusal_of_a_credential() {
    for status in [400, 401, 403] {
        let answers = AtomicUsize::new(0);
        let server = Simulated::start(move |seen| {
            // A balancer is set up anew, and answers in its own way meanwhile.
            match seen.is("/login") && answers.fetch_add(1, Ordering::Relaxed) == 0 {
                true => Reply::new(status, &json!("<html>no service</html>")),
                false => sound(seen, "t", &[MADE]),
            }
        })
        .await;
        let secret = Secret::new();
        secret.write(&format!("s.behind-a-balancer-{status}"));
        let config = secret.config(&[server.url()]);
        let first = refusal(connect(&config).await);
        assert!(first.kind() == Kind::Unavailable && !first.is_lasting(), "{}", first.report());
        assert!(first.hint().unwrap_or_default().contains("before it"), "{}", first.report());
        connect(&config).await.expect("nothing keeps it from the next attempt");
    }
}

#[tokio::test]
async fn what_no_vault_has_said_of_a_request_may_pass_and_costs_no_login() {
    for status in [400, 403, 404] {
        let between = Arc::new(AtomicBool::new(false));
        let answers = between.clone();
        let server = Simulated::start(move |seen| {
            let data = seen.is("/encrypt/") || seen.is("/decrypt/") || seen.is("/keys/");
            match data && answers.load(Ordering::Relaxed) {
                true => Reply::new(status, &json!("<html>no service</html>")),
                false => sound(seen, "t", &[MADE]),
            }
        })
        .await;
        let secret = Secret::new();
        secret.write(&format!("s.asks-through-a-balancer-{status}"));
        let vault = connect(&secret.config(&[server.url()])).await.unwrap();
        let key_id = vault.key_id().await.unwrap();
        let sealed = encrypt(&vault, &key_id).await.unwrap();
        between.store(true, Ordering::Relaxed);
        for error in [
            encrypt(&vault, &key_id).await.map(drop).unwrap_err(),
            vault.decrypt(&sealed, &call()).await.map(drop).unwrap_err(),
            vault.key_id().await.map(drop).unwrap_err(),
        ] {
            assert!(error.kind().is_transient(), "{status}: {}", error.report());
        }
        between.store(false, Ordering::Relaxed);
        assert!(vault.decrypt(&sealed, &call()).await.is_ok());
        assert_eq!(server.seen("/login").len(), 1);
        assert!(server.seen("/lookup-self").is_empty());
    }
}

#[tokio::test]
async fn a_refused_login_hides_no_refusal_of_a_token_that_is_good() {
    let (logins, is_denied) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let denied = is_denied.clone();
    let server = Simulated::start(move |seen| {
        if seen.is("/login") && logins.fetch_add(1, Ordering::Relaxed) > 0 {
            return Reply::error(400, "invalid role or secret ID");
        }
        if seen.is("/keys/") && denied.load(Ordering::Relaxed) {
            return Reply::error(403, "permission denied");
        }
        match seen.is("/lookup-self") {
            true => Reply::new(200, &json!({"data": {}})),
            false => sound(seen, "t", &[MADE]),
        }
    })
    .await;
    let secret = Secret::new();
    secret.write("s.used-up-since");
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    // The token is no longer so young that it is believed to be known.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    is_denied.store(true, Ordering::Relaxed);
    let refused = vault.key_id().await.unwrap_err();
    // The policy is told, which may be there again soon, and not the credential.
    assert!(refused.kind() == Kind::Denied && !refused.is_lasting(), "{}", refused.report());
    assert!(!refused.report().contains("login"), "{}", refused.report());
    assert_eq!(server.seen("/login").len(), 2);
}
