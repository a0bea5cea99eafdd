//! What becomes of the key while it is in use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;
use sidekey_core::{Files, KeyId, Kind, Provider, Sealed};

use super::Secret;
use crate::Vault;
use crate::testing::{MADE, Reply, Simulated, call, config, connect, document, sound};

/// A server whose key is what the list says: a second for each version.
struct Stage {
    server: Simulated,
    made: Arc<Mutex<Vec<i64>>>,
    secret: Secret,
}

impl Stage {
    async fn new() -> Self {
        let made = Arc::new(Mutex::new(vec![MADE]));
        let list = made.clone();
        let server = Simulated::start(move |seen| match list.lock().unwrap().as_slice() {
            [] if seen.is("/keys/") => Reply::error(404, ""),
            [] if !seen.is("/login") => Reply::error(400, "encryption key not found"),
            made => sound(seen, "t", made),
        })
        .await;
        Self { server, made, secret: Secret::new() }
    }

    async fn connect(&self) -> Vault {
        connect(&self.secret.config(&[self.server.url()])).await.unwrap()
    }

    fn set(&self, made: &[i64]) {
        *self.made.lock().unwrap() = made.to_vec();
    }
}

#[tokio::test]
async fn one_call_for_each_request_bound_to_version_and_key_id() {
    let stage = Stage::new().await;
    let vault = stage.connect().await;
    let key_id = vault.key_id().await.unwrap();
    let first = vault.encrypt(&key_id, b"first", &call()).await.unwrap();
    vault.verify(&first, &call()).await.unwrap();
    let before = stage.server.seen("").len();
    let sealed = vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
    assert_eq!(stage.server.seen("").len(), before + 1);
    let asked = stage.server.seen("/encrypt/").pop().unwrap();
    let aad = STANDARD.encode(format!("sidekey-vault/1/{key_id}"));
    assert_eq!(asked.line, "POST /v1/transit/encrypt/kms HTTP/1.1");
    assert_eq!(asked.body["key_version"], 1);
    assert_eq!(asked.body["associated_data"], aad.as_str());
    assert_eq!(asked.body["type"], "ecdsa-p256", "so that no key can be made");
    assert_eq!(vault.verify(&sealed, &call()).await.unwrap().0.expose(), b"plain");
    assert_eq!(stage.server.seen("").len(), before + 2);
    assert_eq!(vault.decrypt(&sealed, &call()).await.unwrap().expose(), b"plain");
    assert_eq!(stage.server.seen("").len(), before + 3);
    let asked = stage.server.seen("/decrypt/").pop().unwrap();
    assert_eq!(asked.body["associated_data"], aad.as_str());
}

#[tokio::test]
async fn a_probe_names_no_version_and_so_learns_of_a_rotation_in_one_call() {
    let stage = Stage::new().await;
    let vault = stage.connect().await;
    let first = vault.key_id().await.unwrap();
    let before = stage.server.seen("").len();
    let sealed = vault.encrypt_current(&first, b"plain", &call()).await.unwrap();
    assert_eq!(sealed.key_id, first);
    assert_eq!(stage.server.seen("").len(), before + 1);
    let asked = stage.server.seen("/encrypt/").pop().unwrap();
    assert!(asked.body.get("key_version").is_none(), "{}", asked.body);
    stage.set(&[MADE, MADE + 9]);
    let sealed = vault.encrypt_current(&first, b"plain", &call()).await.unwrap();
    assert_ne!(sealed.key_id, first);
    assert_eq!(vault.verify(&sealed, &call()).await.unwrap().0.expose(), b"plain");
}

#[tokio::test]
async fn rotation_moves_the_key_id_and_old_data_is_still_read() {
    let stage = Stage::new().await;
    let vault = stage.connect().await;
    let first = vault.key_id().await.unwrap();
    let sealed = vault.encrypt(&first, b"old", &call()).await.unwrap();
    stage.set(&[MADE, MADE + 9]);
    let second = vault.key_id().await.unwrap();
    assert_ne!(first, second);
    let new = vault.encrypt(&second, b"new", &call()).await.unwrap();
    assert!(new.ciphertext.starts_with(b"vault:v2:"));
    assert_eq!(vault.decrypt(&sealed, &call()).await.unwrap().expose(), b"old");
}

#[tokio::test]
async fn a_version_that_another_replica_saw_first_is_found() {
    let stage = Stage::new().await;
    let (early, late) = (stage.connect().await, stage.connect().await);
    late.key_id().await.unwrap();
    stage.set(&[MADE, MADE + 9]);
    let second = early.key_id().await.unwrap();
    let sealed = early.encrypt(&second, b"new", &call()).await.unwrap();
    assert_eq!(late.decrypt(&sealed, &call()).await.unwrap().expose(), b"new");
}

#[tokio::test]
async fn a_look_that_failed_does_not_answer_for_others() {
    let (made, failures) = (Arc::new(Mutex::new(vec![MADE])), Arc::new(AtomicUsize::new(0)));
    let (list, left) = (made.clone(), failures.clone());
    let server = Simulated::start(move |seen| {
        let less = |count: usize| count.checked_sub(1);
        let fails = seen.is("/keys/")
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        match fails {
            true => Reply::error(503, "Vault is sealed"),
            false => sound(seen, "t", &list.lock().unwrap()),
        }
    })
    .await;
    let secret = Secret::new();
    let early = connect(&secret.config(&[server.url()])).await.unwrap();
    *made.lock().unwrap() = vec![MADE, MADE + 9];
    let late = connect(&secret.config(&[server.url()])).await.unwrap();
    let key_id = late.key_id().await.unwrap();
    let sealed = late.encrypt(&key_id, b"new", &call()).await.unwrap();
    failures.store(1, Ordering::Relaxed);
    let call = call();
    let (one, other) = tokio::join!(early.decrypt(&sealed, &call), early.decrypt(&sealed, &call));
    assert_eq!(one.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(other.unwrap().expose(), b"new", "it looks for itself");
}

#[tokio::test]
async fn a_key_made_anew_is_another_one() {
    let stage = Stage::new().await;
    let vault = stage.connect().await;
    let key_id = vault.key_id().await.unwrap();
    stage.set(&[MADE + 100]);
    let sealed = vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
    let error = vault.verify(&sealed, &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::KeyState, "what the new key wrapped is never handed out");
    let error = vault.key_id().await.unwrap_err();
    assert_eq!(error.kind(), Kind::KeyState);
    assert!(error.report().contains("made anew"), "{}", error.report());
    stage.set(&[MADE]);
    assert_eq!(vault.key_id().await.unwrap(), key_id, "the old one is welcome again");
    let fresh = Stage::new().await;
    fresh.set(&[MADE + 100]);
    assert_ne!(fresh.connect().await.key_id().await.unwrap(), key_id);
}

#[tokio::test]
async fn a_standby_client_must_find_the_same_key() {
    let stage = Stage::new().await;
    let vault = stage.connect().await;
    stage.set(&[MADE + 100]);
    let config = stage.secret.config(&[stage.server.url()]);
    let files = Files::read([stage.secret.path().as_path()]).unwrap();
    let error = super::refusal(Vault::connect(&config, &files, Some(&vault)).await);
    assert_eq!(error.kind(), Kind::KeyState);
}

#[tokio::test]
async fn a_missing_key_is_a_state_of_the_key() {
    let stage = Stage::new().await;
    let vault = stage.connect().await;
    let key_id = vault.key_id().await.unwrap();
    let sealed = vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
    stage.set(&[]);
    let errors = [
        vault.key_id().await.unwrap_err(),
        vault.encrypt(&key_id, b"plain", &call()).await.unwrap_err(),
        vault.decrypt(&sealed, &call()).await.unwrap_err(),
        vault.verify(&sealed, &call()).await.unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.kind() == Kind::KeyState), "{errors:?}");
}

#[tokio::test]
async fn a_replica_that_lags_behind_does_not_move_the_key_id_back() {
    let stage = Stage::new().await;
    stage.set(&[MADE, MADE + 9]);
    let vault = stage.connect().await;
    let second = vault.key_id().await.unwrap();
    let sealed = vault.encrypt(&second, b"plain", &call()).await.unwrap();
    stage.set(&[MADE]);
    assert_eq!(vault.key_id().await.unwrap(), second);
    // It is the server that is behind, not the key that is gone: another may answer.
    let errors = [
        vault.encrypt(&second, b"plain", &call()).await.unwrap_err(),
        vault.decrypt(&sealed, &call()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
        assert!(error.report().contains("lags behind"), "{}", error.report());
    }
}

#[tokio::test]
async fn altered_data_is_corrupt_and_foreign_data_is_not_sent() {
    let stage = Stage::new().await;
    let vault = stage.connect().await;
    let key_id = vault.key_id().await.unwrap();
    let sealed = vault.encrypt(&key_id, b"plain", &call()).await.unwrap();
    let sent = stage.server.seen("/decrypt/").len();
    let with = |key_id: &str, ciphertext: &str| Sealed {
        key_id: KeyId::new(key_id).unwrap(),
        ciphertext: Bytes::from(ciphertext.to_owned()),
        annotations: Default::default(),
    };
    for (sealed, kind) in [
        (with("local/1", "vault:v1:AAAA"), Kind::KeyState),
        (with(&format!("vault/{}/1", "0".repeat(32)), "vault:v1:AAAA"), Kind::KeyState),
        (with(key_id.as_str(), "vault:v2:AAAA"), Kind::Corrupt),
        (with(key_id.as_str(), "vault:v1:"), Kind::Corrupt),
        (with(key_id.as_str(), "vault:v01:AAAA"), Kind::Corrupt),
        (with(key_id.as_str(), "vault:v1:\"}"), Kind::Corrupt),
        (with(key_id.as_str(), "junk"), Kind::Corrupt),
        (with("2", "vault:v1:AAAA"), Kind::KeyState),
        (with("01", "vault:v1:AAAA"), Kind::KeyState),
        (with("9", "vault:v9:AAAA"), Kind::KeyState),
    ] {
        let error = vault.decrypt(&sealed, &call()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{sealed:?}: {}", error.report());
    }
    assert_eq!(stage.server.seen("/decrypt/").len(), sent, "none of it was sent");
    let altered = with(key_id.as_str(), "vault:v1:9/AAAA");
    let error = vault.decrypt(&altered, &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert_eq!(vault.decrypt(&sealed, &call()).await.unwrap().expose(), b"plain");
}

#[tokio::test]
async fn data_of_vault_kubernetes_kms_is_read_without_associated_data() {
    let stage = Stage::new().await;
    let vault = stage.connect().await;
    let ciphertext = Bytes::from(format!("vault:v1:{MADE}/{}", STANDARD.encode("dek")));
    for key_id in ["1".to_owned(), MADE.to_string()] {
        let key_id = KeyId::new(&key_id).unwrap();
        let sealed =
            Sealed { key_id, ciphertext: ciphertext.clone(), annotations: Default::default() };
        assert_eq!(vault.decrypt(&sealed, &call()).await.unwrap().expose(), b"dek");
        let asked = stage.server.seen("/decrypt/").pop().unwrap();
        assert_eq!(asked.body, json!({"ciphertext": String::from_utf8_lossy(&ciphertext)}));
        let mut strict = document(&[stage.server.url()], &stage.secret.path());
        strict["settings"]["legacyData"] = false.into();
        let strict = connect(&config(&strict)).await.unwrap();
        let error = strict.decrypt(&sealed, &call()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::KeyState);
    }
}

/// A client of the stage's key that binds what it writes, or does not.
async fn client(stage: &Stage, binds: bool) -> Vault {
    let mut document = document(&[stage.server.url()], &stage.secret.path());
    document["settings"]["associatedData"] = binds.into();
    connect(&config(&document)).await.unwrap()
}

#[tokio::test]
async fn what_is_written_with_and_without_associated_data_is_read_in_either_mode() {
    let stage = Stage::new().await;
    let clients = [client(&stage, true).await, client(&stage, false).await];
    for (writer, binds) in clients.iter().zip([true, false]) {
        let key_id = writer.key_id().await.unwrap();
        // The second one is verified together with the first as its witness.
        for _ in 0..2 {
            let sealed = writer.encrypt_current(&key_id, b"dek", &call()).await.unwrap();
            let asked = stage.server.seen("/encrypt/").pop().unwrap();
            assert_eq!(asked.body.get("associated_data").is_some(), binds, "{asked:?}");
            writer.verify(&sealed, &call()).await.unwrap();
            let asked = stage.server.seen("/decrypt/").pop().unwrap().body.to_string();
            assert_eq!(asked.contains("associated_data"), binds, "{asked}");
            for reader in &clients {
                assert_eq!(reader.decrypt(&sealed, &call()).await.unwrap().expose(), b"dek");
                let asked = stage.server.seen("/decrypt/").pop().unwrap();
                assert_eq!(asked.body.get("associated_data").is_some(), binds, "{asked:?}");
            }
        }
    }
    let key_ids = [clients[0].key_id().await.unwrap(), clients[1].key_id().await.unwrap()];
    assert_eq!(key_ids[0], key_ids[1], "it is the same key in either mode");
}

#[tokio::test]
async fn unbound_data_is_refused_where_such_data_is_not_read() {
    let stage = Stage::new().await;
    let writer = client(&stage, false).await;
    let key_id = writer.key_id().await.unwrap();
    let sealed = writer.encrypt(&key_id, b"dek", &call()).await.unwrap();
    let mut strict = document(&[stage.server.url()], &stage.secret.path());
    strict["settings"]["legacyData"] = false.into();
    let strict = connect(&config(&strict)).await.unwrap();
    let error = strict.decrypt(&sealed, &call()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::KeyState);
    assert!(error.report().contains("settings.legacyData"), "{}", error.report());
}

#[tokio::test]
async fn a_key_that_may_be_deleted_is_seen() {
    let allowed = Arc::new(AtomicUsize::new(0));
    let flag = allowed.clone();
    let server = Simulated::start(move |seen| {
        if !seen.is("/keys/") {
            return sound(seen, "t", &[MADE]);
        }
        let data = json!({"type": "aes256-gcm96", "latest_version": 1, "keys": {"1": MADE},
            "deletion_allowed": flag.load(Ordering::Relaxed) > 0, "name": "kms"});
        Reply::new(200, &json!({"data": data}))
    })
    .await;
    let secret = Secret::new();
    let vault = connect(&secret.config(&[server.url()])).await.unwrap();
    assert_eq!(vault.deletion().allowed, Some(false));
    allowed.store(1, Ordering::Relaxed);
    vault.key_id().await.unwrap();
    assert_eq!(vault.deletion().allowed, Some(true));
}
