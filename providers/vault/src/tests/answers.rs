//! Answers that no Vault gives: clear errors, and nothing changes.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sidekey_core::{Kind, Provider};
use sidekey_rest::testing::{takes_no_bad_answer, takes_no_wrong_key};

use super::{Secret, refusal};
use crate::testing::{MADE, Reply, Simulated, call, connect, sound};

#[tokio::test]
async fn no_call_takes_a_bad_answer() {
    let server = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    let key_id = vault.key_id().await.unwrap();
    let sealed = vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
    vault.verify(&sealed, &call()).await.unwrap();
    let none = || {};
    let fake = &server.0;
    takes_no_bad_answer(fake, none, async || vault.key_id().await.map(drop)).await;
    takes_no_bad_answer(fake, none, async || {
        vault.encrypt(&key_id, b"plain", &call()).await.map(drop)
    })
    .await;
    takes_no_bad_answer(fake, none, async || vault.decrypt(&sealed, &call()).await.map(drop)).await;
    takes_no_bad_answer(fake, none, async || vault.verify(&sealed, &call()).await.map(drop)).await;
    let wrong = ["rsa-2048", "ecdsa-p256", "hmac", "aes128-cmac"].map(|name| {
        let key = json!({"type": name, "latest_version": 1, "keys": {"1": MADE}});
        (name, json!({"data": key}))
    });
    takes_no_wrong_key(fake, &wrong, async || vault.key_id().await.map(drop)).await;
    assert_eq!(vault.key_id().await.unwrap(), key_id, "nothing has changed");
    assert_eq!(vault.decrypt(&sealed, &call()).await.unwrap().expose(), b"plain");
}

#[tokio::test]
async fn no_login_takes_a_bad_answer() {
    let server = Simulated::start(|seen| sound(seen, "t", &[MADE])).await;
    let (secret, turn) = (Secret::new(), AtomicUsize::new(0));
    takes_no_bad_answer(
        &server.0,
        || {},
        async || {
            // A source that failed is left alone for a moment: other credentials are not.
            secret.write(&format!("s.bad-answer-{}", turn.fetch_add(1, Ordering::Relaxed)));
            connect(&secret.config(&[server.url()])).await.map(drop)
        },
    )
    .await;
}

#[tokio::test]
async fn a_key_that_is_another_or_of_the_wrong_type_is_refused() {
    let sound_key = json!({"name": "kms", "type": "aes256-gcm96", "latest_version": 1,
        "keys": {"1": MADE}});
    let cases: [(&str, Value, Kind); 6] = [
        ("name", json!("other"), Kind::Unavailable),
        ("type", json!("rsa-2048"), Kind::KeyState),
        ("type", json!("aes128-cmac"), Kind::KeyState),
        ("keys", json!({}), Kind::KeyState),
        ("latest_version", json!(-1), Kind::Unavailable),
        ("latest_version", json!("one"), Kind::Unavailable),
    ];
    for (field, value, kind) in cases {
        let mut key = sound_key.clone();
        key[field] = value.clone();
        let server = Simulated::start(move |seen| match seen.is("/keys/") {
            true => Reply::new(200, &json!({"data": key})),
            false => sound(seen, "t", &[MADE]),
        })
        .await;
        let secret = Secret::new();
        let error = refusal(connect(&secret.config(&[server.url()])).await);
        assert_eq!(error.kind(), kind, "{field} {value}: {}", error.report());
        assert!(error.hint().is_some(), "{}", error.report());
    }
}

#[tokio::test]
async fn a_balancer_that_does_not_find_vault_is_no_missing_key() {
    let server = Simulated::start(|seen| match seen.is("/keys/") {
        true => Reply::new(404, &json!("not here")),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    let error = refusal(connect(&secret.config(&[server.url()])).await);
    assert_eq!(error.kind(), Kind::Unavailable, "it may pass: {}", error.report());
}
