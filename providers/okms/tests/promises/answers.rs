//! What OKMS answers, and what comes of it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_core::{Error, KeyId, Kind, Provider, Sealed};
use sidekey_e2e::fakes::Answer;
use sidekey_e2e::fakes::okms::{throttled, unwell};
use sidekey_e2e::pki::Authority;
use sidekey_okms::Okms;
use sidekey_rest::testing::{Fake, Reply, Seen, takes_no_bad_answer, takes_no_wrong_key};
use tempfile::TempDir;

use crate::support::{PLAINTEXT, Stage, call, connect};

const DOMAIN: &str = "113d1c44-2b1d-239c-a929-c11bd1847057";
const KEY: &str = "70001308-5674-43fe-93dd-6270ecac0710";
const JWE: &str = "eyJhbGciOiJkaXIifQ..bm9uY2U.Y2lwaGVydGV4dA.dGFn";
/// What stands in the README.
const KEY_ID: &str = "okms/3a316fa8162231508f4cba7155e31e61/70001308-5674-43fe-93dd-6270ecac0710";
const LABELLED: &str = "okms/e123d0bb61f499a127c1d61df5c86fb9/70001308-5674-43fe-93dd-6270ecac0710";

/// A server that always answers the same, and the files of a client of it.
struct Canned {
    server: Fake,
    dir: TempDir,
}

impl Canned {
    async fn start() -> Self {
        let server = Fake::https(|seen: &Seen| {
            let body = canned(&seen.path).to_string().replace('+', "\\u002B");
            Reply { body: body.into(), ..Reply::json(200, &json!({})) }
        });
        let (server, dir) = (server.await, tempfile::tempdir().unwrap());
        let authority = Authority::new("access certificates").unwrap();
        authority.peer(dir.path(), "client", &["client.example"]).unwrap();
        Self { server, dir }
    }

    async fn connect(&self, kek: Value) -> Okms {
        let body = json!({
            "kek": kek,
            "settings": {
                "address": self.server.url(),
                "caFile": self.server.write_ca(self.dir.path()).unwrap(),
            },
            "credentials": {
                "certFile": self.dir.path().join("client.crt"),
                "keyFile": self.dir.path().join("client.key"),
            },
        });
        connect(&body).await.unwrap()
    }

    async fn by_id(&self) -> Okms {
        self.connect(json!({"okmsId": DOMAIN, "key": KEY.to_uppercase()})).await
    }

    async fn by_label(&self) -> Okms {
        self.connect(json!({"okmsId": DOMAIN, "label": "etcd"})).await
    }
}

fn described() -> Value {
    json!({
        "id": KEY, "name": "etcd", "type": "oct", "operations": ["encrypt", "decrypt"],
        "attributes": {"state": "active"},
    })
}

fn canned(path: &str) -> Value {
    match path.rsplit('/').next() {
        Some("encrypt") => json!({"ciphertext": JWE}),
        Some("decrypt") => json!({"plaintext": STANDARD.encode(plaintext())}),
        Some(KEY) => described(),
        _ => json!({
            "objects_list": [described()], "is_truncated": false, "continuation_token": "x",
        }),
    }
}

/// Its base64 has characters that some write escaped in JSON.
fn plaintext() -> Vec<u8> {
    [&[0xfb, 0xef, 0xbe], &PLAINTEXT[..]].concat()
}

#[tokio::test]
async fn no_call_takes_a_bad_answer() {
    let canned = Canned::start().await;
    let (client, labelled) = (canned.by_id().await, canned.by_label().await);
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let (server, none) = (&canned.server, || {});
    takes_no_bad_answer(server, none, async || client.key_id().await.map(drop)).await;
    let encrypt = async || client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop);
    takes_no_bad_answer(server, none, encrypt).await;
    let decrypt = async || client.decrypt(&sealed, &call()).await.map(drop);
    takes_no_bad_answer(server, none, decrypt).await;
    assert_eq!(client.key_id().await.unwrap(), key_id, "nothing has changed");
    let current = labelled.key_id().await.unwrap();
    takes_no_bad_answer(server, none, async || labelled.key_id().await.map(drop)).await;
    let follow = async || labelled.encrypt_current(&current, PLAINTEXT, &call()).await.map(drop);
    takes_no_bad_answer(server, none, follow).await;
    assert_eq!(labelled.key_id().await.unwrap(), current, "nothing has changed");
}

#[tokio::test]
async fn an_answer_without_what_was_asked_for_or_about_another_key_is_not_taken() {
    let canned = Canned::start().await;
    let client = canned.by_id().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let may_pass = |error: Error| {
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
        assert!(error.hint().is_some(), "{}", error.report());
    };
    for body in [json!({}), json!({"plaintext": "AAAA"}), json!({"ciphertext": ""})] {
        canned.server.answer(Reply::json(200, &body));
        may_pass(client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err());
    }
    for body in [json!({}), json!({"ciphertext": "AAAA"}), json!({"plaintext": "no base64"})] {
        canned.server.answer(Reply::json(200, &body));
        may_pass(client.decrypt(&sealed, &call()).await.map(drop).unwrap_err());
    }
    let mut other = described();
    other["id"] = DOMAIN.into();
    canned.server.answer(Reply::json(200, &other));
    may_pass(client.key_id().await.unwrap_err());
    for id in [json!(null), json!(""), json!("../x"), json!(7)] {
        other["id"] = id;
        canned.server.answer(Reply::json(200, &other));
        may_pass(client.key_id().await.unwrap_err());
        let page = json!({"objects_list": [other], "is_truncated": false});
        canned.server.answer(Reply::json(200, &page));
        may_pass(canned.by_label().await.key_id().await.unwrap_err());
    }
}

#[tokio::test]
async fn pages_without_end_are_not_followed_without_end() {
    let canned = Canned::start().await;
    let client = canned.by_label().await;
    let page = json!({"objects_list": [], "is_truncated": true, "continuation_token": "a/b+c"});
    (0..200).for_each(|_| canned.server.answer(Reply::json(200, &page)));
    let error = client.key_id().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
    assert_eq!(canned.server.seen().len(), 100);
    let asked = canned.server.seen().pop().unwrap().path;
    assert!(asked.ends_with("?continuation-token=a%2Fb%2Bc&state=active"), "{asked}");
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_told_when_it_is_looked_at() {
    let canned = Canned::start().await;
    let client = canned.by_id().await;
    client.key_id().await.unwrap();
    let with = |field: &str, value: Value| {
        let mut key = described();
        key[field] = value;
        key
    };
    let wrong = [
        ("deactivated", with("attributes", json!({"state": "deactivated"}))),
        ("compromised", with("attributes", json!({"state": "compromised"}))),
        ("not active yet", with("attributes", json!({"state": "pre_active"}))),
        ("a state that is new", with("attributes", json!({"state": "suspended"}))),
        ("RSA", with("type", json!("RSA"))),
        ("for data keys", with("operations", json!(["wrapKey", "unwrapKey"]))),
        ("for encryption alone", with("operations", json!(["encrypt"]))),
    ];
    takes_no_wrong_key(&canned.server, &wrong, async || client.key_id().await.map(drop)).await;
    // Attributes are optional.
    canned.server.answer(Reply::json(200, &with("attributes", Value::Null)));
    client.key_id().await.unwrap();
}

#[tokio::test]
async fn the_stored_form_is_as_documented() {
    let canned = Canned::start().await;
    let (client, labelled) = (canned.by_id().await, canned.by_label().await);
    let key_id = client.key_id().await.unwrap();
    assert_eq!(key_id.as_str(), KEY_ID);
    assert_eq!(labelled.key_id().await.unwrap().as_str(), LABELLED);
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_eq!((&sealed.ciphertext[..], sealed.annotations.len()), (JWE.as_bytes(), 0));
    assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), plaintext());
    let seen = canned.server.seen();
    let body = |end: &str| -> Value {
        let path = format!("/api/{DOMAIN}/v1/servicekey/{KEY}/{end}");
        let seen = seen.iter().find(|seen| seen.path == path).unwrap();
        serde_json::from_slice(&seen.body).unwrap()
    };
    let scope = KEY_ID.split('/').nth(1).unwrap();
    let plaintext = STANDARD.encode(PLAINTEXT);
    assert_eq!(body("encrypt"), json!({"plaintext": plaintext, "context": scope}));
    assert_eq!(body("decrypt"), json!({"ciphertext": JWE, "context": scope}));
    let readme = include_str!("../../README.md");
    for part in [DOMAIN, KEY, KEY_ID, LABELLED] {
        assert!(readme.contains(part), "the README lacks {part}");
    }
}

#[tokio::test]
async fn what_is_no_jwe_is_refused_and_not_sent() {
    let canned = Canned::start().await;
    let client = canned.by_id().await;
    let (key_id, ciphertext) = (KeyId::new(KEY_ID).unwrap(), b"\xff\xfe".to_vec().into());
    let sealed = Sealed { key_id, ciphertext, annotations: Default::default() };
    let error = client.decrypt(&sealed, &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{}", error.report());
    assert_eq!(canned.server.seen().len(), 0);
}

#[tokio::test]
async fn refusals_are_of_the_right_kind_and_tell_the_request() {
    let stage = Stage::new("refusals").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let refused = |status: u16, code: u32| {
        let body = json!({
            "error_id": "x", "error_code": code, "errors": ["one", "two"],
            "request_id": "79b66eba-273e-4f7a-b954-78ed7e70b85d",
        });
        Answer::json(status, &body)
    };
    for (answer, kind) in [
        (throttled(), Kind::Throttled),
        (refused(401, 50_475_011), Kind::Denied),
        (refused(401, 16_920_577), Kind::Denied),
        (refused(403, 16_924_673), Kind::Denied),
        (refused(404, 17_125_377), Kind::KeyState),
        (refused(404, 16_994_305), Kind::KeyState),
        (refused(400, 50_405_377), Kind::Config),
        (refused(400, 16_850_946), Kind::Config),
        (refused(500, 16_846_849), Kind::Unavailable),
        (refused(503, 50_425_858), Kind::Unavailable),
        (refused(400, 50_395_137), Kind::Unavailable),
        (refused(418, u32::MAX), Kind::Unavailable),
    ] {
        stage.fake().refuse("encrypt", 1, &answer);
        let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
        let text = error.report();
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains("encrypt on") && text.contains(&stage.backend.key), "{text}");
        let said: Value = serde_json::from_str(&answer.body).unwrap();
        for part in [&said["error_code"].to_string(), said["request_id"].as_str().unwrap()] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
    }
    for answer in unwell() {
        stage.fake().refuse("encrypt", 1, &answer);
        let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
    }
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
}

#[tokio::test]
async fn a_refusal_that_is_not_okmss_may_pass() {
    let canned = Canned::start().await;
    let client = canned.by_id().await;
    let key_id = client.key_id().await.unwrap();
    for body in ["<html>Please log in to the network</html>", r#"{"error": "forbidden"}"#, "[]"] {
        for status in [302, 400, 401, 403, 404, 502] {
            canned.server.answer(Reply { body: body.into(), ..Reply::json(status, &json!({})) });
            let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
            assert!(error.kind().is_transient(), "{status}: {}", error.report());
        }
    }
}
