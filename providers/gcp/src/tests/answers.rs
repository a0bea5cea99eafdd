//! Answers that nobody may take, and refusals.

use sidekey_e2e::fakes::gcp::{throttled, unavailable};
use sidekey_rest::testing::{takes_no_bad_answer, takes_no_wrong_key};

use super::*;

#[tokio::test]
async fn no_call_takes_a_bad_answer() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let (fake, none) = (&stage.server, || {});
    takes_no_bad_answer(fake, none, async || client.key_id().await.map(drop)).await;
    let encrypt = async || client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop);
    takes_no_bad_answer(fake, none, encrypt).await;
    let current = async || client.encrypt_current(&key_id, PLAINTEXT, &call()).await.map(drop);
    takes_no_bad_answer(fake, none, current).await;
    let decrypt = async || client.decrypt(&sealed, &call()).await.map(drop);
    takes_no_bad_answer(fake, none, decrypt).await;
    assert_eq!(client.key_id().await.unwrap(), key_id, "nothing has changed");
}

#[tokio::test]
async fn what_was_altered_on_the_way_is_not_taken() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    stage.service().wrong_sums = true;
    let answers = [
        client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop),
        client.decrypt(&sealed, &call()).await.map(drop),
    ];
    for answer in answers {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.report().contains("CRC32C"), "{}", error.report());
    }
    stage.service().wrong_sums = false;
    let body: Value = serde_json::from_slice(&stage.server.seen().pop().unwrap().body).unwrap();
    assert!(body["ciphertextCrc32c"].is_string(), "sums go along: {body}");
    // Cloud KMS says whether what it got is what was sent; whoever does not say it has not looked.
    for field in ["verifiedPlaintextCrc32c", "verifiedAdditionalAuthenticatedDataCrc32c"] {
        let mut answer = json!({
            "name": version_of(&stage.key, 1), "ciphertext": "AAAA",
            "ciphertextCrc32c": sidekey_rest::crc32c(&[0; 3]).to_string(), "verifiedPlaintextCrc32c": true,
            "verifiedAdditionalAuthenticatedDataCrc32c": true,
        });
        stage.server.answer(Reply::json(200, &answer));
        assert!(client.encrypt(&key_id, PLAINTEXT, &call()).await.is_ok(), "it can be right");
        answer[field] = false.into();
        stage.server.answer(Reply::json(200, &answer));
        let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{field}");
    }
    assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
}

#[tokio::test]
async fn an_answer_in_the_name_of_another_key_is_not_taken() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let other = stage.service().create_key("other");
    for name in [other.clone(), stage.key.replace("europe-west3", "us-east1"), "x".into()] {
        stage.service().wrong_name = Some(name.clone());
        let answers = [
            client.encrypt(&key_id, PLAINTEXT, &call()).await.map(drop),
            client.encrypt_current(&key_id, PLAINTEXT, &call()).await.map(drop),
            client.key_id().await.map(drop),
        ];
        for answer in answers {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable, "{name}");
            assert!(error.report().contains("another key"), "{}", error.report());
        }
    }
    // A project has an id and a number.
    stage.service().wrong_name = Some(stage.key.replace("projects/example", "projects/123456"));
    assert_eq!(client.key_id().await.unwrap(), key_id);
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
}

#[tokio::test]
async fn what_another_version_than_the_announced_one_has_wrapped_is_not_taken() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let by = |version| {
        Reply::json(
            200,
            &json!({
                "name": version_of(&stage.key, version), "ciphertext": "AAAA",
                "ciphertextCrc32c": sidekey_rest::crc32c(&[0; 3]).to_string(),
                "verifiedPlaintextCrc32c": true, "verifiedAdditionalAuthenticatedDataCrc32c": true,
            }),
        )
    };
    stage.server.answer(by(1));
    assert_eq!(client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap().key_id, key_id);
    stage.server.answer(by(2));
    let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.report().contains("another version"), "{}", error.report());
}

#[tokio::test]
async fn a_key_of_the_wrong_kind_is_refused_for_good() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    client.key_id().await.unwrap();
    let primary = json!({
        "name": version_of(&stage.key, 1), "state": "ENABLED",
        "algorithm": "GOOGLE_SYMMETRIC_ENCRYPTION",
    });
    let key = |purpose: &str, primary: Value| json!({"name": stage.key, "purpose": purpose, "primary": primary});
    let mut algorithm = primary.clone();
    algorithm["algorithm"] = "AES_256_GCM".into();
    let keys = [
        ("a key that signs", key("ASYMMETRIC_SIGN", Value::Null)),
        ("a key for raw encryption", key("RAW_ENCRYPT_DECRYPT", primary.clone())),
        ("no purpose", json!({"name": stage.key, "primary": primary})),
        ("no primary version", key("ENCRYPT_DECRYPT", Value::Null)),
        ("another algorithm", key("ENCRYPT_DECRYPT", algorithm)),
    ];
    takes_no_wrong_key(&stage.server, &keys, async || client.key_id().await.map(drop)).await;
}

#[tokio::test]
async fn refusals_are_of_the_right_kind_and_never_quote_a_token() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sent = stage.server.seen().pop().unwrap();
    let token = sent.headers["authorization"].to_str().unwrap()["Bearer ".len()..].to_owned();
    let google = |status: u16, name: &str| {
        let message = format!("token {token} was not taken");
        Reply::json(status, &json!({"error": {"code": status, "status": name, "message": message}}))
    };
    let plain = |answer: sidekey_e2e::fakes::Answer| Reply {
        status: answer.status,
        headers: answer.headers,
        body: answer.body.into(),
        delay: Duration::ZERO,
    };
    for (reply, kind) in [
        (google(401, "UNAUTHENTICATED"), Kind::Denied),
        (google(403, "PERMISSION_DENIED"), Kind::Denied),
        (google(404, "NOT_FOUND"), Kind::KeyState),
        (plain(throttled()), Kind::Throttled),
        (plain(unavailable()), Kind::Unavailable),
    ] {
        stage.server.answer(reply);
        let error = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.report());
        assert!(!error.report().contains(&token), "{}", error.report());
        assert!(error.hint().is_some(), "{}", error.report());
    }
}
