//! What is stored, ours and that of the replaced plugin.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;

/// For ever: what is stored is found by it.
const KEY_ID: &str = "gcp/dbb6336c82a6a850f92529be881724a4/1";

/// What Cloud KMS was last sent.
fn sent(stage: &Stage) -> (String, Value) {
    let seen = stage.server.seen().pop().unwrap();
    (seen.path, serde_json::from_slice(&seen.body).unwrap())
}

fn field(body: &Value, name: &str) -> Vec<u8> {
    STANDARD.decode(body[name].as_str().unwrap_or_default()).unwrap()
}

/// A document in the form of the plugin.
fn replacing(stage: &Stage, suffix: &str) -> Value {
    let mut document = stage.document();
    document["settings"]["pluginFormat"] = json!({"keySuffix": suffix});
    document["settings"]["alsoReads"] = json!(["projects/*/locations/*/keyRings/*/cryptoKeys/*"]);
    document
}

#[tokio::test]
async fn what_is_stored_is_bound_to_its_key_id() {
    let stage = Stage::start().await;
    assert_eq!(stage.key, "projects/example/locations/europe-west3/keyRings/etcd/cryptoKeys/kms");
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    assert_eq!(key_id.as_str(), KEY_ID);
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let (path, body) = sent(&stage);
    assert_eq!(path, format!("/v1/{}/cryptoKeyVersions/1:encrypt", stage.key));
    assert_eq!(field(&body, "plaintext"), PLAINTEXT);
    assert_eq!(field(&body, "additionalAuthenticatedData"), KEY_ID.as_bytes());
    let notes: Vec<_> = sealed.annotations.iter().collect();
    assert_eq!(notes, [(&"bound.gcp.sidekey.dev".to_owned(), &Bytes::from_static(b"1"))]);
    client.decrypt(&sealed, &call()).await.unwrap();
    let (path, body) = sent(&stage);
    assert_eq!(path, format!("/v1/{}:decrypt", stage.key));
    assert_eq!(field(&body, "ciphertext"), sealed.ciphertext);
    assert_eq!(field(&body, "additionalAuthenticatedData"), KEY_ID.as_bytes());
}

#[tokio::test]
async fn forged_key_ids_and_annotations_open_nothing() {
    let stage = Stage::start().await;
    let client = stage.connect().await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let kind = async |text: &str, bound: bool| {
        let key_id = KeyId::new(text).unwrap();
        let mut forged = Sealed { key_id, ..sealed.clone() };
        if !bound {
            forged.annotations.clear();
        }
        client.decrypt(&forged, &call()).await.map(drop).map_err(|error| error.kind())
    };
    let version = version_of(&stage.key, 1);
    for (text, bound, expected) in [
        (KEY_ID.replace("/1", "/2"), true, Kind::Corrupt),
        (KEY_ID.to_owned(), false, Kind::Corrupt),
        (version.clone(), true, Kind::Corrupt),
        (version, false, Kind::Corrupt),
        (KEY_ID.replace("/1", "/01"), true, Kind::KeyState),
        (KEY_ID.replacen("gcp/", "gcp/0", 1), true, Kind::KeyState),
        (format!("{KEY_ID}/cryptoKeyVersions/1"), true, Kind::KeyState),
        (stage.key.replace("etcd", "other"), false, Kind::KeyState),
        (stage.key.replace("etcd", "*"), false, Kind::KeyState),
        (stage.key.replace("etcd", ".."), false, Kind::KeyState),
        ("1".into(), true, Kind::KeyState),
    ] {
        assert_eq!(kind(&text, bound).await, Err(expected), "{text}");
    }
    assert_eq!(kind(KEY_ID, true).await, Ok(()));
}

#[tokio::test]
async fn the_replaced_plugins_form_is_written_and_read() {
    let stage = Stage::start().await;
    let version = version_of(&stage.key, 1);
    for (suffix, expected, newest) in
        [("", version.clone(), "/2"), ("2", format!("{version}:2"), "/3")]
    {
        let client = connect(&replacing(&stage, suffix)).await.unwrap();
        let key_id = client.key_id().await.unwrap();
        assert_eq!(key_id.as_str(), expected);
        let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
        let (_, body) = sent(&stage);
        assert_eq!(body["additionalAuthenticatedData"], Value::Null);
        assert!(sealed.key_id == key_id && sealed.annotations.is_empty());
        // Either form is read under both, with any suffix or none.
        let ours = stage.connect().await;
        assert_eq!(ours.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
        for text in [stage.key.clone(), format!("{}:s", stage.key), format!("{version}:x:y")] {
            let sealed = Sealed { key_id: KeyId::new(&text).unwrap(), ..sealed.clone() };
            assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
        }
        let bound = ours.encrypt(&ours.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
        assert_eq!(client.decrypt(&bound, &call()).await.unwrap().expose(), PLAINTEXT);
        stage.service().key(&stage.key).rotate();
        let moved = client.encrypt_current(&key_id, PLAINTEXT, &call()).await.unwrap();
        assert_eq!(moved.key_id.as_str(), expected.replace("/1", newest));
        stage.service().key(&stage.key).primary = 1;
    }
}

#[tokio::test]
async fn data_of_other_keys_is_read_as_far_as_the_configuration_allows() {
    let stage = Stage::start().await;
    let other = stage.service().create_key("other");
    let mut document = replacing(&stage, "");
    document["kek"]["key"] = other.clone().into();
    let theirs = connect(&document).await.unwrap();
    let sealed = theirs.encrypt(&theirs.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
    let as_plugin = connect(&replacing(&stage, "")).await.unwrap();
    assert_eq!(as_plugin.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    let ours = stage.connect().await;
    let refused = ours.decrypt(&sealed, &call()).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::KeyState);
    assert!(refused.report().contains("settings.alsoReads"), "{}", refused.report());
    let mut document = stage.document();
    document["settings"]["alsoReads"] = json!([other]);
    let allowed = connect(&document).await.unwrap();
    assert_eq!(allowed.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
}
