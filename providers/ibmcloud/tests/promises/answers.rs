//! What Key Protect and IAM answer, and what comes of it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_core::{KeyId, Kind, Provider, Sealed};
use sidekey_e2e::fakes::ibm::throttled;
use sidekey_e2e::wait::BROKEN;
use sidekey_ibmcloud::IbmCloud;
use sidekey_rest::testing::{Fake, Reply, Seen, takes_no_bad_answer, takes_no_wrong_key};
use tempfile::TempDir;

use crate::support::{PLAINTEXT, Stage, call, connect};

const INSTANCE: &str = "3c1a7a58-9c2d-4f60-8a3e-2f7cfa0c6a10";
const KEY: &str = "02fd6835-6001-4482-a892-13bd2085f75d";
const VERSION: &str = "4fb7ea38-7a4e-4e4c-9a0f-0d6e3f1f1f10";
/// What stands in the README.
const KEY_ID: &str =
    "ibmcloud/a9d4b5c6dfb3fda6c5e4c891503923f6/4fb7ea38-7a4e-4e4c-9a0f-0d6e3f1f1f10";

/// A server that always answers the same, and the files of a client of it.
struct Canned {
    server: Fake,
    dir: TempDir,
}

impl Canned {
    async fn start() -> Self {
        let server = Fake::https(|seen: &Seen| Reply::json(200, &canned(&seen.path))).await;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key"), "aB9_0123456789").unwrap();
        Self { server, dir }
    }

    async fn connect(&self) -> IbmCloud {
        let body = json!({
            "kek": {"instance": INSTANCE, "key": KEY},
            "settings": {
                "address": self.server.url(), "tokenUrl": self.server.url(),
                "caFile": self.server.write_ca(self.dir.path()).unwrap(),
            },
            "credentials": {"apiKeyFile": self.dir.path().join("key")},
        });
        connect(&body).await.unwrap()
    }
}

fn canned(path: &str) -> Value {
    match path.rsplit('/').next() {
        Some("token") => json!({"access_token": "t", "expires_in": 3600}),
        Some("metadata") => json!({
            "resources": [{"state": 1, "extractable": false, "keyVersion": {"id": VERSION}}],
        }),
        Some("wrap") => json!({"ciphertext": "d3JhcHBlZA==", "keyVersion": {"id": VERSION}}),
        // An unwrapping may bring along the same data under a newer version: nothing is made of it.
        _ => json!({
            "plaintext": STANDARD.encode(PLAINTEXT), "ciphertext": "bmV3ZXI=",
            "keyVersion": {"id": VERSION}, "rewrappedKeyVersion": {"id": INSTANCE},
        }),
    }
}

#[tokio::test]
async fn no_call_takes_a_bad_answer() {
    let canned = Canned::start().await;
    let client = canned.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let (server, none) = (&canned.server, || {});
    takes_no_bad_answer(server, none, async || client.key_id().await.map(drop)).await;
    let encrypt = async || client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop);
    takes_no_bad_answer(server, none, encrypt).await;
    let decrypt = async || client.decrypt(&sealed, &call()).await.map(drop);
    takes_no_bad_answer(server, none, decrypt).await;
    assert_eq!(client.key_id().await.unwrap(), key_id, "nothing has changed");
    // The first call of a new client is for a token.
    drop(client);
    let log_in = async || canned.connect().await.key_id().await.map(drop);
    takes_no_bad_answer(server, none, log_in).await;
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_told_when_it_is_looked_at() {
    let canned = Canned::start().await;
    let client = canned.connect().await;
    client.key_id().await.unwrap();
    let described = |state: u64, extractable: bool| {
        let version = json!({"id": VERSION});
        let key = json!({"state": state, "extractable": extractable, "keyVersion": version});
        json!({"resources": [key]})
    };
    let wrong = [
        ("a standard key", described(1, true)),
        ("suspended", described(2, false)),
        ("destroyed", described(5, false)),
    ];
    let look = async || client.key_id().await.map(drop);
    takes_no_wrong_key(&canned.server, &wrong, look).await;
}

#[tokio::test]
async fn a_version_that_could_not_be_read_back_is_not_taken() {
    let canned = Canned::start().await;
    let client = canned.connect().await;
    let key_id = client.key_id().await.unwrap();
    for id in ["", "a/b", "a b", "ü", &"x".repeat(2000)] {
        let answer = json!({"ciphertext": "d3JhcHBlZA==", "keyVersion": {"id": id}});
        canned.server.answer(Reply::json(200, &answer));
        let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
        assert_ne!(error.kind(), Kind::Bug, "{id:?}: {}", error.report());
    }
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
}

#[tokio::test]
async fn the_stored_form_is_as_documented() {
    let canned = Canned::start().await;
    let client = canned.connect().await;
    let key_id = client.key_id().await.unwrap();
    assert_eq!(key_id.as_str(), KEY_ID);
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_eq!((&sealed.ciphertext[..], sealed.annotations.len()), (&b"d3JhcHBlZA=="[..], 0));
    let opened = client.decrypt(&sealed, &call()).await.unwrap();
    assert_eq!(opened.expose(), PLAINTEXT);
    let seen = canned.server.seen();
    let body = |end: &str| -> Value {
        let seen = seen.iter().find(|seen| seen.path.ends_with(end)).unwrap();
        serde_json::from_slice(&seen.body).unwrap()
    };
    let plaintext = STANDARD.encode(PLAINTEXT);
    assert_eq!(body("/actions/wrap"), json!({"plaintext": plaintext, "aad": [KEY_ID]}));
    assert_eq!(body("/actions/unwrap"), json!({"ciphertext": "d3JhcHBlZA==", "aad": [KEY_ID]}));
    let readme = include_str!("../../README.md");
    for part in [INSTANCE, KEY, VERSION, KEY_ID] {
        assert!(readme.contains(part), "the README lacks {part}");
    }
}

#[tokio::test]
async fn refusals_are_of_the_right_kind_and_quote_no_secret() {
    let stage = Stage::new("refusals").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let said = format!("the token eyJraWQiOiJ4In0.{} of {}", "a1".repeat(64), stage.api_key);
    let refused = |status: u16, code: &str| {
        let reason = json!({"code": code, "message": said, "status": status});
        let body = json!({"resources": [{"errorMsg": said, "reasons": [reason]}]});
        sidekey_e2e::fakes::Answer::json(status, &body)
    };
    for (answer, kind) in [
        (throttled(2), Kind::Throttled),
        (refused(404, "KEY_NOT_FOUND_ERR"), Kind::KeyState),
        (refused(410, "KEY_DELETED_ERR"), Kind::KeyState),
        (refused(409, "KEY_ACTION_INVALID_STATE_ERR"), Kind::KeyState),
        (refused(400, "KEY_ROOT_REQ_ERR"), Kind::Config),
        (refused(401, "UNAUTHORIZED_ERR"), Kind::Denied),
        (refused(403, "SOMETHING_NEW"), Kind::Denied),
        (refused(400, "SOMETHING_NEW"), Kind::Unavailable),
        (refused(500, "INCOMPLETE_METADATA_ERR"), Kind::KeyState),
        (refused(503, "SOMETHING_NEW"), Kind::Unavailable),
    ] {
        for operation in ["metadata", "wrap"] {
            stage.fake.refuse(operation, 1, &answer);
        }
        let errors = [
            client.key_id().await.map(drop).unwrap_err(),
            client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            let text = error.report();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.contains(&stage.key), "{text}");
            assert!(!text.contains("eyJraWQ") && !text.contains(&stage.api_key), "{BROKEN}{text}");
        }
    }
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
}

#[tokio::test]
async fn a_refusal_that_is_not_key_protects_may_pass() {
    let canned = Canned::start().await;
    let client = canned.connect().await;
    let key_id = client.key_id().await.unwrap();
    for (body, kind) in [
        ("<html>Please log in to the network</html>", Kind::Unavailable),
        (r#"{"error": "forbidden"}"#, Kind::Unavailable),
        (r#"{"resources": [{"errorMsg": "Unauthorized"}]}"#, Kind::Denied),
    ] {
        for status in [401, 403] {
            canned.server.answer(Reply { body: body.into(), ..Reply::json(status, &json!({})) });
            let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{}", error.report());
            assert!(error.hint().is_some(), "{}", error.report());
        }
    }
}

#[tokio::test]
async fn data_of_ibms_own_plugin_is_refused_and_not_sent() {
    let stage = Stage::new("foreign").await;
    let client = stage.connect().await;
    let own = client.key_id().await.unwrap();
    let foreign = |key_id: &str, ciphertext: &[u8]| Sealed {
        key_id: KeyId::new(key_id).unwrap(),
        ciphertext: ciphertext.to_vec().into(),
        annotations: Default::default(),
    };
    for key_id in ["1", &stage.key, "kp-v2", "ibmcloud/x/1"] {
        let sealed = foreign(key_id, b"\x00\x00\x00\x20whatever that plugin has stored");
        let error = client.decrypt(&sealed, &call()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::KeyState, "{}", error.report());
        assert!(error.hint().unwrap().contains("IBM's own plugin"), "{}", error.report());
    }
    let error = client.decrypt(&foreign(own.as_str(), b"\xff\xfe"), &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{}", error.report());
    assert_eq!(stage.fake.calls("unwrap"), 0);
}

#[tokio::test]
async fn nothing_is_made_of_an_empty_plaintext() {
    let stage = Stage::new("empty").await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let error = client.encrypt(&key_id, b"", &call()).await.unwrap_err();
    assert_eq!((error.kind(), stage.fake.calls("wrap")), (Kind::Invalid, 0));
}
