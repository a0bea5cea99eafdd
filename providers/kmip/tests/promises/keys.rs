//! Which key is meant, and what becomes of it.

use serde_json::json;
use sidekey_core::{KeyId, Kind, Provider, Sealed};

use crate::support::{PLAINTEXT, Stage, by_name, call, connect, fails};

#[tokio::test]
async fn a_key_is_found_by_its_name_or_named_by_its_identifier() {
    let stage = Stage::new("found").await;
    for kek in [by_name(), json!({"id": stage.key})] {
        let client = stage.connect(kek).await;
        let key_id = client.key_id().await.unwrap();
        assert!(key_id.as_str().ends_with(&format!("/{}", stage.key)), "{key_id}");
        let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
        assert_eq!(sealed.key_id, key_id);
        assert_eq!(client.decrypt(&sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    }
}

#[tokio::test]
async fn a_name_is_followed_to_its_new_key_and_the_old_ones_read_on() {
    let stage = Stage::new("followed").await;
    let client = stage.connect(by_name()).await;
    let old = client.key_id().await.unwrap();
    let before = client.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
    let new = stage.rotate().await;
    let pinned = client.encrypt(&old, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(pinned.key_id, old, "what is told a version keeps to it");
    let probed = client.encrypt_current(&old, PLAINTEXT, &call()).await.unwrap();
    assert!(probed.key_id.as_str().ends_with(&new), "{}", probed.key_id);
    assert_eq!(client.key_id().await.unwrap(), probed.key_id);
    // A server that keeps to KMIP's states lets a deactivated key decrypt.
    stage.server.change(&stage.key, &json!({"State": "Deactivated"})).await.unwrap();
    for sealed in [&before, &pinned, &probed] {
        assert_eq!(client.decrypt(sealed, &call()).await.unwrap().expose(), PLAINTEXT);
    }
    fails(client.encrypt(&old, PLAINTEXT, &call()).await, Kind::KeyState, &["deactivated"]);
    // What was altered is told as that, whatever has become of its key.
    let mut altered = before.ciphertext.to_vec();
    *altered.last_mut().unwrap() ^= 1;
    let altered = Sealed { ciphertext: altered.into(), ..before };
    fails(client.decrypt(&altered, &call()).await, Kind::Corrupt, &["CryptographicFailure"]);
}

#[tokio::test]
async fn where_several_keys_have_the_name_the_one_in_use_stays_and_no_other_is_guessed() {
    let stage = Stage::new("several").await;
    let client = stage.connect(by_name()).await;
    let key_id = client.key_id().await.unwrap();
    stage.server.create("kms", json!({})).await.unwrap();
    let probed = client.encrypt_current(&key_id, PLAINTEXT, &call()).await.unwrap();
    assert_eq!(probed.key_id, key_id);
    assert_eq!(client.key_id().await.unwrap(), key_id);
    // A client that takes its place knows it too.
    let next = stage.connect_after(&client).await;
    assert_eq!(next.key_id().await.unwrap(), key_id);
    let fresh = stage.connect(by_name()).await;
    fails(fresh.key_id().await, Kind::Unavailable, &["2 active keys", "\"kms\""]);
    stage.server.change(&stage.key, &json!({"State": "Deactivated"})).await.unwrap();
    assert_ne!(fresh.key_id().await.unwrap(), key_id);
}

#[tokio::test]
async fn a_key_that_cannot_write_is_told_by_what_it_is() {
    let stage = Stage::new("unfit").await;
    for (fields, kind, word) in [
        (json!({"State": "PreActive"}), Kind::KeyState, "not yet active"),
        (json!({"State": "Deactivated"}), Kind::KeyState, "deactivated"),
        (json!({"State": "Compromised"}), Kind::KeyState, "compromised"),
        (json!({"State": "Destroyed"}), Kind::KeyState, "destroyed"),
        (json!({"State": "Active", "Usage": "Encrypt"}), Kind::Config, "Decrypt"),
        (
            json!({"Usage": "Encrypt | Decrypt", "Algorithm": "DES3"}),
            Kind::Config,
            "no symmetric key of AES",
        ),
        (
            json!({"Algorithm": "AES", "Type": "SecretData"}),
            Kind::Config,
            "no symmetric key of AES",
        ),
    ] {
        stage.server.change(&stage.key, &fields).await.unwrap();
        let client = stage.connect(json!({"id": stage.key})).await;
        fails(client.key_id().await, kind, &[word, &stage.key]);
        if fields["State"] != "Active" && fields["State"].is_string() {
            fails(
                stage.connect(by_name()).await.key_id().await,
                Kind::Unavailable,
                &["0 active keys", "\"kms\""],
            );
        }
    }
}

#[tokio::test]
async fn a_key_that_is_gone_is_told_as_gone() {
    let stage = Stage::new("gone").await;
    let client = stage.connect(json!({"id": stage.key})).await;
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    stage.server.change(&stage.key, &json!({"State": "Destroyed"})).await.unwrap();
    fails(client.decrypt(&sealed, &call()).await, Kind::KeyState, &["destroyed"]);
    stage.server.delete(&stage.key).await.unwrap();
    fails(client.decrypt(&sealed, &call()).await, Kind::KeyState, &["ItemNotFound", &stage.key]);
    fails(client.key_id().await, Kind::KeyState, &["ItemNotFound"]);
}

#[tokio::test]
async fn a_lack_of_rights_is_denied_and_a_stranger_to_the_server_too() {
    let stage = Stage::new("denied").await;
    let client = stage.connect(by_name()).await;
    let key_id = client.key_id().await.unwrap();
    stage.server.deny(true).await.unwrap();
    fails(client.key_id().await, Kind::Denied, &["PermissionDenied"]);
    let refused = client.encrypt(&key_id, PLAINTEXT, &call()).await;
    fails(refused, Kind::Denied, &["PermissionDenied", "certificate"]);
    stage.server.deny(false).await.unwrap();
    let stranger = sidekey_e2e::pki::Authority::new("stranger").unwrap();
    let files = stranger.peer(stage.scratch.path(), "stranger", &["client"]).unwrap();
    let mut body = stage.body(by_name());
    body["credentials"] = json!({"certFile": files.certificate, "keyFile": files.key});
    let client = connect(&body).await.unwrap();
    fails(client.key_id().await, Kind::Denied, &["our certificate"]);
}

#[tokio::test]
async fn data_of_another_key_is_refused_before_anybody_is_asked() {
    let stage = Stage::new("foreign").await;
    let (named, by_id) = (stage.connect(by_name()).await, json!({"id": stage.key}));
    let by_id = stage.connect(by_id).await;
    let key_id = named.key_id().await.unwrap();
    let mut sealed = named.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let calls = stage.server.calls().await.unwrap();
    fails(by_id.decrypt(&sealed, &call()).await, Kind::KeyState, &["is of another key"]);
    let own = by_id_scope(&stage.key);
    for forged in [
        "kms-1".to_owned(),
        format!("kmip/{}/{}", "0".repeat(32), stage.key),
        format!("{key_id}/1"),
        format!("{own}x"),
    ] {
        sealed.key_id = KeyId::new(&forged).unwrap();
        fails(by_id.decrypt(&sealed, &call()).await, Kind::KeyState, &["is of another key"]);
    }
    assert_eq!(stage.server.calls().await.unwrap(), calls);
    // Another object of the server is one that may have had the name: its data does not authenticate.
    let other = stage.server.create("other", json!({})).await.unwrap();
    let key_id = key_id.as_str().replace(&stage.key, &other);
    sealed.key_id = KeyId::new(&key_id).unwrap();
    fails(named.decrypt(&sealed, &call()).await, Kind::Corrupt, &["CryptographicFailure"]);
}

fn by_id_scope(uid: &str) -> String {
    format!("kmip/{}/{uid}", sidekey_rest::naming::scope(&["id", uid]))
}
