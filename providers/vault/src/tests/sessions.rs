//! Logins: shared, renewed, replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use sidekey_core::{Call, Kind, Provider};
use tokio::time::Instant;

use super::{Secret, refusal};
use crate::testing::{MADE, Reply, Simulated, call, config, connect, document, encrypt, sound};

#[tokio::test]
async fn keys_with_the_same_credentials_share_one_login() {
    let server = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let secret = Secret::new();
    let one = secret.config(&[server.url()]);
    let mut other = document(&[server.url()], &secret.path());
    other["kek"]["key"] = "other".into();
    let other = config(&other);
    let (one, other) = tokio::join!(connect(&one), connect(&other));
    assert_eq!(server.seen("/login").len(), 1);
    drop((one.unwrap(), other.unwrap()));
    secret.write("s.another\n");
    connect(&secret.config(&[server.url()])).await.unwrap();
    let logins = server.seen("/login");
    assert_eq!(logins.len(), 2, "other credentials are another session");
    assert_eq!(logins[1].body, json!({"role_id": "role", "secret_id": "s.another"}));
}

#[tokio::test]
async fn a_token_that_vault_forgot_is_replaced_once_for_all_who_wait() {
    let good = Arc::new(AtomicUsize::new(1));
    let (known, granted) = (good.clone(), AtomicUsize::new(0));
    let server = Simulated::start(move |seen| {
        if seen.is("/login") {
            let number = granted.fetch_add(1, Ordering::Relaxed) + 1;
            return sound(seen, &format!("t{number}"), &[MADE]);
        }
        let token = format!("t{}", known.load(Ordering::Relaxed));
        match seen.header("x-vault-token") == Some(&token) {
            true => sound(seen, "", &[MADE]),
            false => Reply::error(403, "permission denied"),
        }
    })
    .await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    good.store(2, Ordering::Relaxed);
    let mut set = tokio::task::JoinSet::new();
    let vault = Arc::new(vault);
    for _ in 0..8 {
        let (vault, key_id) = (vault.clone(), key_id.clone());
        set.spawn(async move { encrypt(&vault, &key_id).await });
    }
    while let Some(done) = set.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(server.seen("/login").len(), 2, "eight callers share one login");
}

#[tokio::test]
async fn a_login_that_is_slower_than_its_caller_is_not_in_vain() {
    let (known, granted) = (Arc::new(AtomicUsize::new(1)), AtomicUsize::new(0));
    let good = known.clone();
    let server = Simulated::start(move |seen| {
        if seen.is("/login") {
            let number = granted.fetch_add(1, Ordering::Relaxed) + 1;
            let slow = Duration::from_millis(if number > 1 { 1000 } else { 0 });
            return sound(seen, &format!("t{number}"), &[MADE]).after(slow);
        }
        let token = format!("t{}", known.load(Ordering::Relaxed));
        match seen.header("x-vault-token") == Some(&token) {
            true => sound(seen, "", &[MADE]),
            false => Reply::error(403, "permission denied"),
        }
    })
    .await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    good.store(2, Ordering::Relaxed);
    // As the runtime does it: whoever has no more time is gone.
    let hasty = Call { uid: "test", deadline: Instant::now() + Duration::from_millis(500) };
    let lost = tokio::time::timeout_at(hasty.deadline, vault.encrypt(&key_id, b"plain", &hasty));
    assert!(!matches!(lost.await, Ok(Ok(_))), "it had no time for it");
    encrypt(&vault, &key_id).await.unwrap();
    assert_eq!(server.seen("/login").len(), 2, "the login goes on without its caller");
}

#[tokio::test]
async fn what_a_fresh_token_may_not_do_is_denied_without_login_after_login() {
    let server = Simulated::start(|seen| match seen.is("/encrypt/") {
        true => Reply::error(403, "permission denied"),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    let error = vault.encrypt(&key_id, b"plain", &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.report().contains("update on transit/encrypt/kms"), "{}", error.report());
    assert_eq!(server.seen("/login").len(), 1);
}

#[tokio::test]
async fn a_policy_that_hides_tokens_from_themselves_makes_no_storm_of_logins() {
    let denied = Arc::new(AtomicU64::new(0));
    let flag = denied.clone();
    let server = Simulated::start(move |seen| {
        let hidden = seen.is("/lookup-self") || flag.load(Ordering::Relaxed) > 0;
        match hidden && !seen.is("/login") && !seen.is("/keys/") {
            true => Reply::error(403, "permission denied"),
            false => sound(seen, "t", &[MADE]),
        }
    })
    .await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    denied.store(1, Ordering::Relaxed);
    for _ in 0..5 {
        assert_eq!(encrypt(&vault, &key_id).await.unwrap_err().kind(), Kind::Denied);
    }
    assert_eq!(server.seen("/encrypt/").len(), 6, "each attempt is one call");
    assert_eq!(server.seen("/login").len(), 2, "the second one shows that logins do not help");
}

#[tokio::test]
async fn refused_credentials_are_not_sent_again_at_once() {
    let server = Simulated::start(|seen| match seen.is("/login") {
        true => Reply::error(400, "invalid role or secret ID"),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    secret.write("s.refused-credentials");
    for _ in 0..5 {
        let error = refusal(connect(&secret.config(&[server.url()])).await);
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.report().contains("invalid role or secret ID"), "{}", error.report());
        assert!(!error.report().contains("s.refused"), "{}", error.report());
    }
    assert_eq!(server.seen("/login").len(), 1);
}

/// Waits for something that a background task does.
pub(super) async fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A server whose tokens live for five seconds, so that a busy machine renews them in time, and after a renewal for as long as `renewed` says.
async fn short_lived(renewed: Arc<AtomicU64>) -> Simulated {
    Simulated::start(move |seen| {
        let life = match (seen.is("/login"), seen.is("/renew-self")) {
            (true, _) => 5,
            (_, true) => renewed.load(Ordering::Relaxed),
            _ => return sound(seen, "t", &[MADE]),
        };
        if life == 0 {
            return Reply::error(403, "permission denied");
        }
        let auth = json!({"client_token": "t", "lease_duration": life, "renewable": true});
        Reply::new(200, &json!({"auth": auth}))
    })
    .await
}

#[tokio::test]
async fn a_token_is_renewed_before_it_expires() {
    let server = short_lived(Arc::new(AtomicU64::new(3600))).await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    let before = vault.expiry().unwrap();
    until("a renewal", || vault.expiry().unwrap() > before + Duration::from_secs(3000)).await;
    assert_eq!(server.seen("/login").len(), 1);
    assert_eq!(server.seen("/renew-self").len(), 1);
}

#[tokio::test]
async fn a_token_that_cannot_be_renewed_is_replaced_before_it_expires() {
    let server = short_lived(Arc::new(AtomicU64::new(0))).await;
    let secret = Secret::new();
    let _vault = connect(&secret.config(&[server.url()])).await.unwrap();
    until("a second login", || server.seen("/login").len() > 1).await;
}

#[tokio::test]
async fn a_client_that_is_gone_renews_nothing() {
    let server = short_lived(Arc::new(AtomicU64::new(5))).await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    until("a renewal", || !server.seen("/renew-self").is_empty()).await;
    drop(vault);
    let count = server.seen("/renew-self").len();
    // The clock: a client that is still there, with tokens of the same life.
    let witness = short_lived(Arc::new(AtomicU64::new(5))).await;
    let other = connect(&secret.config(&[witness.url()])).await.unwrap();
    until("two renewals by another", || witness.seen("/renew-self").len() > 1).await;
    drop(other);
    assert_eq!(server.seen("/renew-self").len(), count);
}

#[tokio::test]
async fn a_token_is_given_back_when_the_process_ends() {
    let server = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let secret = Secret::new();
    let one = secret.config(&[server.url()]);
    let (first, second) = (connect(&one).await.unwrap(), connect(&one).await.unwrap());
    first.close().await;
    second.close().await;
    let given = server.seen("/revoke-self");
    assert_eq!(given.len(), 1, "they share one token");
    assert_eq!(given[0].header("x-vault-token"), Some("t"));
}

#[tokio::test]
async fn replicas_are_told_what_they_must_know() {
    let server = Simulated::start(|seen| match seen.is("/login") {
        true => sound(seen, "t", &[MADE]).with("x-vault-index", "djE6abc"),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    connect(&secret.config(&[server.url()])).await.unwrap();
    let asked = &server.seen("/keys/")[0];
    assert_eq!(asked.header("x-vault-index"), Some("djE6abc"));
    assert_eq!(asked.header("x-vault-inconsistent"), Some("forward-active-node"));
    assert_eq!(asked.header("x-vault-request"), Some("true"));
}

#[tokio::test]
async fn namespaces_of_key_and_login_are_kept_apart() {
    let server = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let secret = Secret::new();
    let mut written = document(&[server.url()], &secret.path());
    written["kek"]["namespace"] = "/team/a/".into();
    connect(&config(&written)).await.unwrap();
    written["settings"]["authNamespace"] = "logins".into();
    connect(&config(&written)).await.unwrap();
    written["settings"]["authNamespace"] = "".into();
    connect(&config(&written)).await.unwrap();
    let of = |part: &str| -> Vec<Option<String>> {
        let seen = server.seen(part).into_iter();
        seen.map(|seen| seen.header("x-vault-namespace").map(str::to_owned)).collect()
    };
    assert_eq!(of("/login"), [Some("team/a".into()), Some("logins".into()), None]);
    assert!(of("/keys/").iter().all(|found| found.as_deref() == Some("team/a")));
}

#[tokio::test]
async fn three_replicas_with_a_wrong_secret_id_are_three_refusals_whatever_else_changes() {
    let server = Simulated::start(|seen| match seen.is("/login") {
        true => Reply::error(400, "invalid role or secret ID"),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    secret.write("s.refused-for-good");
    // What one replica does: it tries again and again, its settings change meanwhile, and another
    // key names the cluster by other addresses.
    let by_name = server.url().replace("127.0.0.1", "localhost");
    let (one, other) = (vec![server.url()], vec![by_name, server.url()]);
    for (timeout, addresses) in [("1s", &one), ("2s", &one), ("2s", &other), ("3s", &other)] {
        let mut document = document(addresses, &secret.path());
        document["settings"]["requestTimeout"] = timeout.into();
        for _ in 0..3 {
            let error = refusal(connect(&config(&document)).await);
            assert_eq!(error.kind(), Kind::Denied, "{}", error.report());
            assert!(error.is_lasting(), "waiting does not mend it");
        }
    }
    assert_eq!(server.seen("/login").len(), 1, "one refusal of each replica");
    secret.write("s.right-but-refused");
    refusal(connect(&secret.config(&[server.url()])).await);
    assert_eq!(server.seen("/login").len(), 2, "other credentials are tried at once");
}

#[tokio::test]
async fn a_password_that_one_cluster_refuses_is_tried_at_another_where_it_may_be_right() {
    let refusing = Simulated::start(|seen| match seen.is("/login") {
        true => Reply::error(400, "invalid username or password"),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let right = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let secret = Secret::new();
    secret.write("s.password-of-two-clusters");
    let with = |server: &Simulated, credentials: serde_json::Value| {
        let mut document = document(&[server.url()], &secret.path());
        document["credentials"] = credentials;
        config(&document)
    };
    let path = secret.path();
    for credentials in [
        json!({"userpass": {"username": "kms", "passwordFile": path}}),
        // A name that people give, and nothing secret beside it.
        json!({"appRole": {"roleId": "kms"}}),
    ] {
        refusal(connect(&with(&refusing, credentials.clone())).await);
        refusal(connect(&with(&refusing, credentials.clone())).await);
        connect(&with(&right, credentials)).await.expect("another cluster, another user");
    }
    assert_eq!((refusing.seen("/login").len(), right.seen("/login").len()), (2, 2));
}

#[tokio::test]
async fn the_last_token_serves_while_a_new_login_is_refused() {
    let logins = Arc::new(AtomicUsize::new(0));
    let count = logins.clone();
    let server = Simulated::start(move |seen| {
        if seen.is("/login") && count.fetch_add(1, Ordering::Relaxed) > 0 {
            return Reply::error(400, "invalid role or secret ID");
        }
        if seen.is("/login") || seen.is("/renew-self") {
            let auth = json!({"client_token": "t", "lease_duration": 24, "renewable": false});
            return Reply::new(200, &json!({"auth": auth}));
        }
        sound(seen, "t", &[MADE])
    })
    .await;
    let secret = Secret::new();
    secret.write("s.refused-later");
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    until("a refused login", || logins.load(Ordering::Relaxed) > 1).await;
    let key_id = vault.key_id().await.expect("the token is still valid");
    let mut last = Ok(());
    until_async("the end of the token", async || {
        last = vault.encrypt(&key_id, b"plain", &call()).await.map(|_| ());
        last.is_err()
    })
    .await;
    assert_eq!(last.unwrap_err().kind(), Kind::Denied);
    assert_eq!(logins.load(Ordering::Relaxed), 2, "a refused login is not repeated");
}

/// Waits for something that asking shows.
async fn until_async(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done().await {
        assert!(Instant::now() < end, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_token_that_may_not_look_at_itself_gets_a_true_hint() {
    let server = Simulated::start(|seen| match seen.is("/lookup-self") {
        true => Reply::error(403, "permission denied"),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    secret.write("s.blind-token");
    let mut document = document(&[server.url()], &secret.path());
    document["credentials"] = json!({"token": {"file": secret.path()}});
    let error = refusal(connect(&config(&document)).await);
    assert_eq!(error.kind(), Kind::Denied);
    let hint = error.hint().unwrap_or_default();
    for part in ["expired or was revoked", "auth/token/lookup-self", "`default`"] {
        assert!(hint.contains(part), "{hint}");
    }
}
