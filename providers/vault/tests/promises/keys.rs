//! What the key does at Vault, and what that does to key_id and data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{OpenBao, Scratch};
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, calm, failed, quick};

#[tokio::test]
async fn rotation_in_vault_moves_key_id_by_itself_and_old_data_stays_readable() {
    let stage = Stage::new("rotation").await;
    let mut served = stage.serve().await;
    let mut written = vec![served.round_trip().await];
    for version in 2..=4 {
        let old = served.wait_ok().await;
        assert_eq!(stage.key.rotate().await.unwrap(), version);
        let new = served.wait_moved(&old).await;
        assert!(written.iter().all(|sealed| sealed.key_id != new), "{new} was there before");
        let sealed = served.round_trip().await;
        assert_eq!(sealed.key_id, new);
        assert!(sealed.ciphertext.starts_with(format!("vault:v{version}:").as_bytes()));
        written.push(sealed);
        for sealed in &written {
            served.reads(sealed).await;
        }
    }
    // Neither a restart nor another process changes what a version is called.
    served.restart(&stage).await;
    assert_eq!(served.wait_ok().await, written[3].key_id);
    for sealed in &written {
        served.reads(sealed).await;
    }
}

#[tokio::test]
async fn encrypt_uses_just_the_version_that_status_announced() {
    let stage = Stage::new("pinned").await;
    let mut served = stage.serve_document(&calm(&[stage.app_role_key(1, &stage.key)])).await;
    let announced = served.wait_ok().await;
    stage.key.rotate().await.unwrap();
    // Nobody has noticed yet: what is written bears the announced name, and is what it says.
    let sealed = served.round_trip().await;
    assert_eq!(sealed.key_id, announced);
    assert!(sealed.ciphertext.starts_with(b"vault:v1:"), "another version was used");
    // A version that this process has not seen yet is looked up: another replica wrote it.
    let other = stage.replica().await;
    let newer = other.round_trip().await;
    assert!(newer.ciphertext.starts_with(b"vault:v2:"));
    served.reads(&newer).await;
}

#[tokio::test]
async fn a_server_restored_from_an_old_backup_moves_nothing_back() {
    let scratch = Scratch::new("backup").unwrap();
    let mut server = OpenBao::start(&scratch, "bao").await.unwrap();
    let stage = Stage::on_own(&server, "backup").await;
    let mut served = stage.serve().await;
    let first = served.round_trip().await;
    server.back_up("old").await.unwrap();
    served.wait_ok().await;
    let key = server.root().key("backup", "kms");
    key.rotate().await.unwrap();
    served.wait_moved(&first.key_id).await;
    let second = served.round_trip().await;
    server.back_up("new").await.unwrap();
    served.wait_ok().await;

    server.restore("old").await.unwrap();
    // It has just version 1 again: what it can read is read, and nothing is written with it.
    served.reads(&first).await;
    failed(served.kms.encrypt(PLAINTEXT).await, Code::Unavailable, &["old backup"]);
    failed(served.kms.decrypt(&second).await, Code::Unavailable, &["old backup"]);
    served.wait_bad_for(Code::Unavailable, "old backup").await;
    served.reads(&first).await;

    server.restore("new").await.unwrap();
    assert_eq!(served.wait_ok().await, second.key_id);
    served.reads(&first).await;
    served.reads(&second).await;

    // Rotated after an old backup, it has another version 2 than the one that wrote.
    server.restore("old").await.unwrap();
    server.root().key("backup", "kms").rotate().await.unwrap();
    served.wait_bad_for(Code::FailedPrecondition, "made anew").await;
    failed(served.kms.encrypt(PLAINTEXT).await, Code::FailedPrecondition, &[]);
    server.restore("new").await.unwrap();
    assert_eq!(served.wait_ok().await, second.key_id);
    served.reads(&second).await;
}

#[tokio::test]
async fn a_ciphertext_is_bound_to_its_key_id() {
    let stage = Stage::new("bound").await;
    let mut served = stage.serve().await;
    let first = served.round_trip().await;
    stage.key.rotate().await.unwrap();
    served.wait_moved(&first.key_id).await;
    let second = served.round_trip().await;
    let moved = |from: &EncryptResponse, to: &EncryptResponse| EncryptResponse {
        ciphertext: from.ciphertext.clone(),
        ..to.clone()
    };
    for forged in [moved(&first, &second), moved(&second, &first)] {
        let result = served.kms.decrypt(&forged).await;
        let error = result.expect_err("a moved ciphertext is refused");
        assert!(matches!(error.code(), Code::DataLoss | Code::FailedPrecondition), "{error}");
    }
    // Vault itself holds the binding: it decrypts with the name that wrote, and with no other.
    let text = String::from_utf8(first.ciphertext.to_vec()).unwrap();
    let decrypt = async |aad: &str| {
        let order = json!({"ciphertext": text, "associated_data": STANDARD.encode(aad)});
        stage.bao.write(&stage.key.path("decrypt"), &order).await
    };
    let name = |sealed: &EncryptResponse| format!("sidekey-vault/1/{}", sealed.key_id);
    let read = decrypt(&name(&first)).await.unwrap();
    assert_eq!(read["data"]["plaintext"], STANDARD.encode(PLAINTEXT));
    assert!(decrypt(&name(&second)).await.is_err(), "another key_id reads it");
    assert!(decrypt("").await.is_err(), "it is not bound at all");
    let mut altered = first.clone();
    let mut bytes = altered.ciphertext.to_vec();
    let last = bytes.len() - 6;
    bytes[last] = if bytes[last] == b'A' { b'B' } else { b'A' };
    altered.ciphertext = bytes.into();
    failed(served.kms.decrypt(&altered).await, Code::DataLoss, &[]);
    served.wait_ok().await;
    served.reads(&first).await;
}

#[tokio::test]
async fn a_deleted_and_recreated_key_is_noticed_and_never_looks_the_same() {
    let stage = Stage::new("recreated").await;
    let mut served = stage.serve().await;
    let lost = served.round_trip().await;
    stage.key.outlive_its_second().await.unwrap();
    stage.key.delete().await.unwrap();
    served.wait_bad_for(Code::FailedPrecondition, "recreated/keys/kms").await;
    failed(served.kms.encrypt(PLAINTEXT).await, Code::FailedPrecondition, &[]);

    stage.key.recreate().await.unwrap();
    for _ in 0..3 {
        failed(served.kms.encrypt(PLAINTEXT).await, Code::FailedPrecondition, &[]);
        failed(served.kms.decrypt(&lost).await, Code::FailedPrecondition, &[]);
    }
    served.wait_bad_for(Code::FailedPrecondition, "recreated/keys/kms").await;
    // A process that starts now serves the new key under another name.
    served.restart(&stage).await;
    let new = served.wait_ok().await;
    assert_ne!(new, lost.key_id, "another key under the same name");
    let error = served.kms.decrypt(&lost).await.expect_err("it is gone");
    assert!(matches!(error.code(), Code::DataLoss | Code::FailedPrecondition), "{error}");
}

#[tokio::test]
async fn a_key_recreated_between_two_calls_writes_nothing_under_the_old_name() {
    let stage = Stage::new("swapped").await;
    let mut served = stage.serve_document(&calm(&[stage.app_role_key(1, &stage.key)])).await;
    served.wait_ok().await;
    served.round_trip().await;
    stage.key.delete().await.unwrap();
    stage.key.recreate().await.unwrap();
    // No probe comes: Encrypt itself must notice, the first time and every time.
    for _ in 0..3 {
        failed(served.kms.encrypt(PLAINTEXT).await, Code::FailedPrecondition, &[]);
    }
}

#[tokio::test]
async fn a_missing_key_is_an_error_and_is_never_created() {
    let stage = Stage::new("missing").await;
    stage.allow(&["read", "encrypt", "decrypt", "create"]).await.unwrap();
    let ghost = stage.bao.key(&stage.name, "ghost");
    let document = quick(&[stage.app_role_key(1, &ghost)]);
    let mut served = stage.spawn(&document).await;
    served.logs("probe of the key failed").await;
    let words = ["missing/keys/ghost", "never made"];
    served.wait_bad_for_all(Code::FailedPrecondition, &words).await;
    failed(served.kms.encrypt(PLAINTEXT).await, Code::FailedPrecondition, &[]);
    assert!(!ghost.exists().await.unwrap(), "it was made by asking for it");
    drop(served);

    // The same for a key that goes while it is in use.
    let mut served = stage.serve_document(&calm(&[stage.app_role_key(1, &stage.key)])).await;
    served.wait_ok().await;
    stage.key.delete().await.unwrap();
    for _ in 0..3 {
        failed(
            served.kms.encrypt(PLAINTEXT).await,
            Code::FailedPrecondition,
            &["missing/keys/kms", "never made"],
        );
        assert!(!stage.key.exists().await.unwrap(), "it was made by asking for it");
    }
    // The policy would have allowed it: this test can fail.
    let token = stage.bao.make_token(&[&stage.name], &json!({})).await.unwrap();
    let client = crate::support::shared().await.client(&token);
    client.key(&stage.name, "kms").encrypt(PLAINTEXT).await.unwrap();
    assert!(stage.key.exists().await.unwrap());
}

#[tokio::test]
async fn versions_that_were_shut_off_or_deleted_give_a_clear_key_state_error() {
    let stage = Stage::new("minimum").await;
    let mut served = stage.serve().await;
    let first = served.round_trip().await;
    stage.key.rotate().await.unwrap();
    served.wait_moved(&first.key_id).await;
    let second = served.round_trip().await;

    stage.key.configure(&json!({"min_decryption_version": 2})).await.unwrap();
    let words = ["version 1", "min_decryption_version"];
    failed(served.kms.decrypt(&first).await, Code::FailedPrecondition, &words);
    served.reads(&second).await;
    served.round_trip().await;
    stage.key.configure(&json!({"min_decryption_version": 1})).await.unwrap();
    served.reads(&first).await;

    stage.key.trim(2).await.unwrap();
    failed(served.kms.decrypt(&first).await, Code::FailedPrecondition, &["version 1"]);
    served.reads(&second).await;
    assert_eq!(served.wait_ok().await, second.key_id, "trimming changes no other version");
    assert_eq!(served.round_trip().await.key_id, second.key_id);
}

#[tokio::test]
async fn a_key_that_cannot_bind_associated_data_is_refused() {
    let stage = Stage::new("kinds").await;
    for (name, options) in [
        ("rsa", json!({"type": "rsa-2048"})),
        ("derived", json!({"type": "aes256-gcm96", "derived": true})),
    ] {
        let key = stage.bao.key(&stage.name, name);
        stage.bao.write(&key.path("keys"), &options).await.unwrap();
        let mut served = stage.spawn(&quick(&[stage.app_role_key(1, &key)])).await;
        served.logs("probe of the key failed").await;
        served.wait_bad_for(Code::FailedPrecondition, "new key id").await;
    }
    for kind in ["chacha20-poly1305", "aes128-gcm96"] {
        let key = stage.bao.key(&stage.name, kind);
        stage.bao.write(&key.path("keys"), &json!({"type": kind})).await.unwrap();
        let served = stage.serve_document(&quick(&[stage.app_role_key(1, &key)])).await;
        served.round_trip().await;
    }
}

#[tokio::test]
async fn data_of_a_mount_that_was_renamed_is_read_under_its_former_name() {
    let stage = Stage::new("moved").await;
    let mut served = stage.serve().await;
    let old = served.round_trip().await;
    let order = json!({"from": "moved", "to": "moved-away"});
    stage.bao.write("sys/remount", &order).await.unwrap();
    let paths = ["keys", "encrypt", "decrypt"].map(|verb| format!("moved-away/{verb}/kms"));
    let rules: [(&str, &[&str]); 3] =
        [(&paths[0], &["read"]), (&paths[1], &["update"]), (&paths[2], &["update"])];
    stage.bao.policy(&stage.name, &rules).await.unwrap();
    served.wait_bad().await;

    // It is the same key, but nothing says so; the refusal names the way.
    let mut key = stage.app_role_key(1, &stage.bao.key("moved-away", "kms"));
    served.plugin.reconfigure(&quick(&[key.clone()])).unwrap();
    served.restart(&stage).await;
    let new = served.wait_ok().await;
    assert_ne!(new, old.key_id);
    failed(served.kms.decrypt(&old).await, Code::FailedPrecondition, &["settings.formerKeks"]);

    key["settings"]["formerKeks"] = json!([{"mount": "moved", "key": "kms"}]);
    served.plugin.reconfigure(&quick(&[key])).unwrap();
    served.logs("new configuration is in use").await;
    let read = sidekey_e2e::eventually("old data reads", PATIENCE, async || {
        Ok(served.kms.decrypt(&old).await?)
    });
    assert_eq!(&read.await.unwrap()[..], PLAINTEXT);
    assert_eq!(served.round_trip().await.key_id, new);
    // A former name is no licence: another key's data stays refused.
    let stranger = Stage::new("stranger-to-moved").await;
    let theirs = stranger.serve().await.round_trip().await;
    failed(served.kms.decrypt(&theirs).await, Code::FailedPrecondition, &[]);
}

#[tokio::test]
async fn a_key_that_may_be_deleted_is_a_gauge() {
    for (name, allowed) in [("deletable", true), ("undeletable", false)] {
        let stage = Stage::new(name).await;
        stage.key.configure(&json!({"deletion_allowed": allowed})).await.unwrap();
        let served = stage.serve().await;
        let gauge = served.metric("kms_key_deletion_allowed", &[]).await;
        assert_eq!(gauge, f64::from(u8::from(allowed)), "{name}");
    }
}
