//! Answers that no Key Vault gives, and questions that nobody else may hear. Everything else is
//! proven on the real binary, beside this crate's sources.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sidekey_rest::testing::{Fake, Reply, Seen, takes_no_bad_answer, takes_no_wrong_key};

use super::*;

const HOST: &str = "unit-test.vault.azure.net";
const VERSION: &str = "0123456789abcdef0123456789abcdef";

fn described(kid: &str, kty: &str, modulus: usize) -> Value {
    use base64::Engine;
    let n = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(vec![0x81; modulus]);
    json!({"key": {"kid": kid, "kty": kty, "n": n, "e": "AQAB"}, "attributes": {"enabled": true}})
}

fn kid(host: &str, name: &str, version: &str) -> String {
    format!("https://{host}/keys/{name}/{version}")
}

fn own() -> String {
    kid(HOST, "etcd", VERSION)
}

/// Key Vault and Entra ID as they answer when all is well.
fn sound(seen: &Seen) -> Reply {
    let path = seen.path.split('?').next().unwrap_or_default();
    if path.ends_with("/token") {
        return Reply::json(200, &json!({"access_token": "tok", "expires_in": 3600}));
    }
    assert_eq!(seen.headers["authorization"], "Bearer tok");
    match path.rsplit('/').next() {
        Some("encrypt") => Reply::json(200, &json!({"kid": own(), "value": "c2VhbGVk"})),
        Some("decrypt") => Reply::json(200, &json!({"kid": own(), "value": "cGxhaW4"})),
        _ => Reply::json(200, &described(&own(), "RSA", 256)),
    }
}

struct Setup {
    fake: Fake,
    dir: tempfile::TempDir,
}

impl Setup {
    async fn new() -> Self {
        Self { fake: Fake::https(sound).await, dir: tempfile::tempdir().unwrap() }
    }

    async fn connect(&self, secret: &str) -> Result<Azure, Error> {
        self.connect_to(HOST, secret).await
    }

    async fn connect_to(&self, host: &str, secret: &str) -> Result<Azure, Error> {
        let file = self.dir.path().join("secret");
        std::fs::write(&file, secret).unwrap();
        let ca = self.fake.write_ca(self.dir.path()).unwrap();
        let url = self.fake.url();
        let document = json!({
            "kek": {"vault": format!("https://{host}"), "key": "etcd"},
            "settings": {"endpoint": url, "authority": url, "caFile": ca},
            "credentials": {"tenantId": "t", "clientId": "c", "clientSecretFile": file},
        });
        let config: Config = serde_json::from_value(document).unwrap();
        let mut problems = Problems::default();
        Azure::check(&config, &mut problems);
        assert!(problems.is_empty(), "{problems}");
        let paths = Azure::files(&config);
        let files = Files::read(paths.iter().map(PathBuf::as_path))?;
        Azure::connect(&config, &files, None).await
    }
}

fn call() -> Call<'static> {
    Call { uid: "test", deadline: Instant::now() + Duration::from_secs(10) }
}

#[tokio::test]
async fn no_call_takes_a_bad_answer() {
    let setup = Setup::new().await;
    let (azure, fake) = (setup.connect("bad-answers").await.unwrap(), &setup.fake);
    let key_id = azure.key_id().await.unwrap();
    let sealed = azure.encrypt(&key_id, b"plain", &call()).await.unwrap();
    let none = || {};
    takes_no_bad_answer(fake, none, async || azure.key_id().await.map(drop)).await;
    takes_no_bad_answer(fake, none, async || {
        azure.encrypt(&key_id, b"plain", &call()).await.map(drop)
    })
    .await;
    takes_no_bad_answer(fake, none, async || {
        azure.encrypt_current(&key_id, b"plain", &call()).await.map(drop)
    })
    .await;
    takes_no_bad_answer(fake, none, async || azure.decrypt(&sealed, &call()).await.map(drop)).await;
    let wrong = [("EC", 256), ("RSA", 128), ("RSA", 1024), ("RSA", 0), ("", 256)];
    let wrong = wrong.map(|(kty, size)| (kty, described(&own(), kty, size)));
    takes_no_wrong_key(fake, &wrong, async || azure.key_id().await.map(drop)).await;
    assert_eq!(azure.key_id().await.unwrap(), key_id, "nothing has changed");
    assert_eq!(azure.decrypt(&sealed, &call()).await.unwrap().expose(), b"plain");
}

#[tokio::test]
async fn no_login_takes_a_bad_answer() {
    let (setup, turn) = (Setup::new().await, AtomicUsize::new(0));
    // A source that failed is left alone for a moment: other credentials are not.
    takes_no_bad_answer(
        &setup.fake,
        || {},
        async || {
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            setup.connect(&format!("bad-login-{turn}")).await.map(drop)
        },
    )
    .await;
}

#[tokio::test]
async fn an_answer_about_another_key_is_never_taken() {
    let setup = Setup::new().await;
    let azure = setup.connect("another-key").await.unwrap();
    let key_id = azure.key_id().await.unwrap();
    let sealed = azure.encrypt(&key_id, b"plain", &call()).await.unwrap();
    for other in [
        kid("other.vault.azure.net", "etcd", VERSION),
        kid(HOST, "other", VERSION),
        kid(HOST, "etcd", "ffffffffffffffffffffffffffffffff"),
        String::new(),
    ] {
        let answer = Reply::json(200, &json!({"kid": other, "value": "cGxhaW4"}));
        setup.fake.answer(answer.clone());
        let error = azure.decrypt(&sealed, &call()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
        setup.fake.answer(answer);
        assert!(azure.encrypt(&key_id, b"plain", &call()).await.is_err(), "{other}");
    }
    setup.fake.answer(Reply::json(
        200,
        &described(&kid("other.vault.azure.net", "etcd", "1"), "RSA", 256),
    ));
    assert_eq!(azure.key_id().await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test]
async fn a_challenge_moves_no_token_anywhere_and_is_not_followed() {
    let setup = Setup::new().await;
    let azure = setup.connect("challenge").await.unwrap();
    let key_id = azure.key_id().await.unwrap();
    let stranger = Fake::https(|_| Reply::json(200, &json!({}))).await;
    let before = setup.fake.seen().len();
    let told = format!(r#"Bearer authorization="{0}/t", resource="{0}""#, stranger.url());
    let refusal =
        json!({"error": {"code": "Unauthorized", "message": "AKV10022: Invalid audience."}});
    setup.fake.answer(Reply::json(401, &refusal).with("www-authenticate", told));
    let error = azure.encrypt(&key_id, b"plain", &call()).await.unwrap_err();
    assert!(error.kind() == Kind::Denied && error.needs_reload(), "{}", error.report());
    assert_eq!(setup.fake.seen().len() - before, 1, "a fresh token is not replaced");
    assert!(stranger.seen().is_empty());
    // The next call goes where all went before.
    azure.encrypt(&key_id, b"plain", &call()).await.unwrap();
    assert!(
        setup
            .fake
            .seen()
            .iter()
            .all(|seen| seen.path.contains("/token") || seen.headers["host"] == HOST)
    );
}

#[tokio::test]
async fn a_token_that_the_vault_takes_no_longer_is_replaced_for_the_next_attempt() {
    let setup = Setup::new().await;
    let azure = setup.connect("replaced").await.unwrap();
    let key_id = azure.key_id().await.unwrap();
    let asked =
        |what: &str| setup.fake.seen().iter().filter(|seen| seen.path.contains(what)).count();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    let refusal = json!({"error": {"code": "Unauthorized", "message": "token expired"}});
    setup.fake.answer(Reply::json(401, &refusal));
    assert!(azure.encrypt(&key_id, b"plain", &call()).await.unwrap_err().is_mended());
    azure.encrypt(&key_id, b"plain", &call()).await.unwrap();
    assert_eq!((asked("/token"), asked("/encrypt")), (2, 2));
}

#[tokio::test]
async fn what_key_vault_says_is_told_by_its_code_with_what_to_do() {
    let setup = Setup::new().await;
    let azure = setup.connect("codes").await.unwrap();
    let key_id = azure.key_id().await.unwrap();
    let sealed = azure.encrypt(&key_id, b"plain", &call()).await.unwrap();
    for (status, code, inner, kind) in [
        (403, "Forbidden", Some("KeyDisabled"), Kind::KeyState),
        (403, "Forbidden", Some("ForbiddenByRbac"), Kind::Denied),
        (403, "Forbidden", Some("ForbiddenByFirewall"), Kind::Denied),
        (403, "Forbidden", Some("ForbiddenByNetworkSecurityPerimeter"), Kind::Denied),
        (403, "Forbidden", Some("SomethingNew"), Kind::Denied),
        (404, "KeyNotFound", None, Kind::KeyState),
        (409, "Conflict", Some("ObjectIsDeletedButRecoverable"), Kind::KeyState),
        (400, "BadParameter", None, Kind::Corrupt),
        (503, "ServiceUnavailable", None, Kind::Unavailable),
        (500, "InternalServerError", None, Kind::Unavailable),
        (418, "SomethingNew", None, Kind::Unavailable),
        (429, "Throttled", None, Kind::Throttled),
    ] {
        let mut body = json!({"error": {"code": code, "message": "no eyJhbGciOiJub25l"}});
        if let Some(inner) = inner {
            body["error"]["innererror"] = json!({"code": inner});
        }
        setup.fake.answer(Reply::json(status, &body));
        let error = azure.decrypt(&sealed, &call()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{code} {inner:?}: {}", error.report());
        assert!(
            error.report().contains("keys/decrypt on https://unit-test.vault.azure.net/keys/etcd/")
        );
        assert!(!error.report().contains("eyJ"), "{}", error.report());
        let network =
            inner.is_some_and(|inner| inner.contains("Firewall") || inner.contains("Network"));
        assert_eq!(error.report().contains("firewall"), network, "{}", error.report());
    }
}

#[tokio::test]
async fn a_refusal_that_is_not_key_vaults_may_pass() {
    let setup = Setup::new().await;
    let azure = setup.connect("portal").await.unwrap();
    let key_id = azure.key_id().await.unwrap();
    for body in ["<html>Please log in to the network</html>", "", r#"{"error": "forbidden"}"#] {
        for status in [401, 403] {
            setup.fake.answer(Reply { body: body.into(), ..Reply::json(status, &json!({})) });
            let error = azure.encrypt(&key_id, b"plain", &call()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
            assert!(error.report().contains("not Key Vault that says so"), "{}", error.report());
        }
    }
}

#[tokio::test]
async fn a_vault_that_asks_to_be_left_alone_is_left_alone_by_all_keys_whoever_they_are() {
    const BUSY: &str = "busy-test.vault.azure.net";
    let answer = |seen: &Seen| {
        let text = String::from_utf8(sound(seen).body.to_vec()).unwrap().replace(HOST, BUSY);
        Reply { body: text.into(), ..sound(seen) }
    };
    let setup = Setup { fake: Fake::https(answer).await, dir: tempfile::tempdir().unwrap() };
    let one = setup.connect_to(BUSY, "busy-one").await.unwrap();
    let two = setup.connect_to(BUSY, "busy-two").await.unwrap();
    let key_id = one.key_id().await.unwrap();
    let busy = json!({"error": {"code": "Throttled", "message": "too many"}});
    setup.fake.answer(Reply::json(429, &busy).with("retry-after", "50"));
    assert_eq!(one.encrypt(&key_id, b"plain", &call()).await.unwrap_err().kind(), Kind::Throttled);
    let before = setup.fake.seen().len();
    for azure in [&one, &two] {
        let error = azure.encrypt(&key_id, b"plain", &call()).await.unwrap_err();
        assert!(error.kind() == Kind::Throttled && error.is_final(), "{}", error.report());
    }
    assert_eq!(setup.fake.seen().len(), before, "nobody calls it");
    // Another vault is not concerned.
    let other = setup.connect("busy-other").await;
    assert_eq!(other.err().map(|error| error.kind()), Some(Kind::Unavailable), "it was asked");
}
