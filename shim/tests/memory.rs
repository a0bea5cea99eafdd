//! Promises of what a key remembers: a change of its endpoint or of the process behind it is
//! found out if it leads to another KEK, without a canary or a fingerprint in the configuration,
//! and after a restart of the shim as well.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use sidekey_core::proto::v2::{EncryptRequest, EncryptResponse, StatusRequest};
use sidekey_core::{Canary, Endpoint, KeyId, Sealed, Secret, client};
use support::eventually;
use support::plugin::{Manners, Plugin};
use support::shim::{Shim, document, key};
use tonic::Code;

async fn plugin(directory: &Path, name: &str, kek: u64) -> Plugin {
    Plugin::with(&directory.join(format!("{name}.sock")), Manners::of_kek(kek)).await
}

/// It is refused for its KEK, now and after a restart, and old data stays readable.
async fn stays_refused(shim: &mut Shim, bad: &Value, old: &EncryptResponse) {
    shim.write(bad);
    for restart in [true, false] {
        let why = shim.refuses().await;
        assert!(why.contains("cannot read its canary") && why.contains("another KEK"), "{why}");
        let metrics = shim.get("/metrics").await.unwrap();
        assert!(!metrics.contains("kms_shim_reloads_total{result=\"failure\"} 0"), "{metrics}");
        let status = shim.status().await.unwrap();
        assert_eq!(status["revision"], "1", "{status}");
        shim.is_ready().await;
        assert_eq!(shim.decrypt(old).await.unwrap(), b"old");
        assert!(shim.encrypt(b"new").await.is_ok());
        if restart {
            shim.restart(bad).await;
        }
    }
}

#[tokio::test]
async fn a_write_key_whose_endpoint_leads_to_another_kek_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    // They even agree on the key_id.
    let [right, wrong] = [plugin(directory, "right", 1).await, plugin(directory, "wrong", 2).await];
    let good = document(directory, 1, &[key(1, "write", &[&right])]);
    let mut shim = Shim::start(directory, &good).await;
    shim.is_ready().await;
    let old = shim.encrypt(b"old").await.unwrap();

    for endpoints in [vec![&wrong], vec![&right, &wrong]] {
        let bad = document(directory, 2, &[key(1, "write", &endpoints)]);
        stays_refused(&mut shim, &bad, &old).await;
    }
    let moved = plugin(directory, "moved", 1).await;
    shim.load(&document(directory, 3, &[key(1, "write", &[&moved])])).await;
    assert_eq!(shim.decrypt(&old).await.unwrap(), b"old");
    assert_eq!(shim.encrypt(b"new").await.unwrap().key_id, old.key_id);
}

#[tokio::test]
async fn a_read_key_whose_endpoint_leads_to_another_kek_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let [writes, right] = [plugin(directory, "writes", 3).await, plugin(directory, "r", 1).await];
    let wrong = plugin(directory, "wrong", 2).await;
    // Another control plane's shim has written under key 1.
    let elsewhere = tempfile::tempdir().unwrap();
    let first = document(elsewhere.path(), 1, &[key(1, "write", &[&right])]);
    let other = Shim::start(elsewhere.path(), &first).await;
    other.is_ready().await;
    let old = other.encrypt(b"old").await.unwrap();

    let keys = |reader: &Plugin| [key(2, "write", &[&writes]), key(1, "read", &[reader])];
    let mut shim = Shim::start(directory, &document(directory, 1, &keys(&right))).await;
    shim.is_ready().await;
    assert_eq!(shim.key(1).await.unwrap()["canary_unread"], true);
    let metrics = shim.get("/metrics").await.unwrap();
    assert!(metrics.contains("kms_shim_canary_unread{key=\"1\"} 1"), "{metrics}");
    assert_eq!(shim.decrypt(&old).await.unwrap(), b"old");
    assert_eq!(shim.key(1).await.unwrap()["canary_unread"], false);
    stays_refused(&mut shim, &document(directory, 2, &keys(&wrong)), &old).await;
}

#[tokio::test]
async fn a_key_is_on_trust_until_it_has_read_what_was_not_written_by_the_same_process() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let right = plugin(directory, "right", 1).await;
    // As another replica has written it, or this one before.
    let mut client = client::connect(&Endpoint::Path(right.path.clone())).await.unwrap();
    let request = EncryptRequest { plaintext: b"old".to_vec().into(), uid: "test".into() };
    let mut older = client.encrypt(request).await.unwrap().into_inner();

    let shim = Shim::start(directory, &document(directory, 1, &[key(1, "write", &[&right])])).await;
    older.key_id = shim.is_ready().await;
    let own = shim.encrypt(b"new").await.unwrap();
    assert_eq!(shim.decrypt(&own).await.unwrap(), b"new");
    assert_eq!(shim.key(1).await.unwrap()["canary_unread"], true);
    // Neither does it when the key has changed, or another one writes.
    let moved = plugin(directory, "moved", 1).await;
    shim.load(&document(directory, 2, &[key(1, "write", &[&moved])])).await;
    assert_eq!(shim.decrypt(&own).await.unwrap(), b"new");
    assert_eq!(shim.key(1).await.unwrap()["canary_unread"], true);
    let other = plugin(directory, "other", 2).await;
    let keys = [key(2, "write", &[&other]), key(1, "read", &[&moved])];
    shim.load(&document(directory, 3, &keys)).await;
    assert_eq!(shim.decrypt(&own).await.unwrap(), b"new");
    assert_eq!(shim.key(1).await.unwrap()["canary_unread"], true);

    assert_eq!(shim.decrypt(&older).await.unwrap(), b"old");
    assert_eq!(shim.key(1).await.unwrap()["canary_unread"], false);
}

#[tokio::test]
async fn a_shim_that_is_killed_the_moment_a_version_has_moved_needs_no_new_canary() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let right = plugin(directory, "right", 1).await;
    let mut writes = key(1, "write", &[&right]);
    writes["canary"] = canary(&right).await;
    let good = document(directory, 1, std::slice::from_ref(&writes));
    let mut shim = Shim::start(directory, &good).await;
    shim.is_ready().await;
    right.manners.moves_to("test/2");
    let mut client = shim.client().await;
    while !client.status(StatusRequest {}).await.unwrap().into_inner().key_id.ends_with("/2") {
        tokio::task::yield_now().await;
    }
    *right.manners.retired.lock().unwrap() = Some("test/1".to_owned());
    shim.restart(&good).await;
    assert!(shim.is_ready().await.ends_with("test/2"));
}

#[tokio::test]
async fn a_kms_that_cannot_be_reached_is_no_failed_canary_and_the_switch_waits_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let [first, second] = [plugin(directory, "a", 1).await, plugin(directory, "b", 1).await];
    let shim = Shim::start(directory, &document(directory, 1, &[key(1, "write", &[&first])])).await;
    shim.is_ready().await;
    let old = shim.encrypt(b"old").await.unwrap();
    second.manners.fails_with(Some((Code::Unavailable, "the KMS is away")));
    let next = document(directory, 2, &[key(1, "write", &[&second])]);
    shim.write(&next);
    let why = shim.refuses().await;
    assert!(why.contains("the KMS is away"), "{why}");
    assert_eq!(shim.decrypt(&old).await.unwrap(), b"old");
    second.manners.fails_with(None);
    shim.load(&next).await;
    assert_eq!(shim.decrypt(&old).await.unwrap(), b"old");
}

#[tokio::test]
async fn a_new_process_with_another_kek_is_not_written_with_and_status_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let right = plugin(directory, "right", 1).await;
    let shim = Shim::start(directory, &document(directory, 1, &[key(1, "write", &[&right])])).await;
    let key_id = shim.is_ready().await;
    let old = shim.encrypt(b"old").await.unwrap();
    let (path, manners) = (right.path.clone(), right.kill().await);
    let wrong = Plugin::with(&path, Manners::of_kek(2)).await;

    let refused = shim.encrypt(b"x").await.unwrap_err();
    assert!(refused.message().contains("canary"), "{refused}");
    let error = eventually("Status fails", async || shim.announced().await.err()).await;
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    // Decrypt is not gated: a wrong KEK cannot decrypt.
    let seen = wrong.seen();
    assert!(shim.decrypt(&old).await.is_err());
    assert!(wrong.seen() > seen);

    wrong.kill().await;
    let _right = Plugin::with(&path, manners).await;
    assert_eq!(shim.is_ready().await, key_id);
    assert_eq!(shim.decrypt(&old).await.unwrap(), b"old");
    assert_eq!(shim.encrypt(b"x").await.unwrap().key_id, key_id);
}

#[tokio::test]
async fn a_key_that_may_only_decrypt_is_loaded_and_is_up_with_its_first_decrypt() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let [writes, reads] = [plugin(directory, "writes", 3).await, plugin(directory, "r", 1).await];
    let elsewhere = tempfile::tempdir().unwrap();
    let first = document(elsewhere.path(), 1, &[key(1, "write", &[&reads])]);
    let other = Shim::start(elsewhere.path(), &first).await;
    other.is_ready().await;
    let old = other.encrypt(b"old").await.unwrap();
    drop(other);

    reads.manners.decrypts_only.store(true, Ordering::SeqCst);
    let write = key(2, "write", &[&writes]);
    let shim = Shim::start(directory, &document(directory, 1, std::slice::from_ref(&write))).await;
    let key_id = shim.is_ready().await;
    shim.load(&document(directory, 2, &[write, key(1, "read", &[&reads])])).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(shim.key(1).await.unwrap()["healthy"], false);
    assert_eq!(shim.announced().await.unwrap(), key_id);
    assert_eq!(shim.decrypt(&old).await.unwrap(), b"old");
    assert_eq!(shim.key(1).await.unwrap()["healthy"], true);
    // It stays so: from now on there is something that it can be asked to read.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(shim.key(1).await.unwrap()["healthy"], true);
}

/// A canary of this plugin's KEK, as it would stand in a configuration.
async fn canary(plugin: &Plugin) -> Value {
    let plaintext = [3; 32];
    let mut client = client::connect(&Endpoint::Path(plugin.path.clone())).await.unwrap();
    let request = EncryptRequest { plaintext: plaintext.to_vec().into(), uid: "test".into() };
    let EncryptResponse { ciphertext, key_id, annotations } =
        client.encrypt(request).await.unwrap().into_inner();
    let sealed = Sealed { key_id: KeyId::new(&key_id).unwrap(), ciphertext, annotations };
    Canary::new(sealed, &Secret::new(plaintext.to_vec())).document()
}

#[tokio::test]
async fn a_key_that_has_read_its_canary_outlives_the_version_that_wrapped_it() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let right = plugin(directory, "right", 1).await;
    let mut writes = key(1, "write", &[&right]);
    writes["canary"] = canary(&right).await;
    let good = document(directory, 1, std::slice::from_ref(&writes));
    let mut shim = Shim::start(directory, &good).await;
    shim.is_ready().await;
    right.manners.moves_to("test/2");
    eventually("it follows", async || {
        shim.announced().await.ok().filter(|key_id| key_id.ends_with("test/2"))
    })
    .await;
    *right.manners.retired.lock().unwrap() = Some("test/1".to_owned());
    let (path, manners) = (right.path.clone(), right.kill().await);
    let _right = Plugin::with(&path, manners.clone()).await;
    assert!(shim.encrypt(b"a new process").await.is_ok());
    shim.restart(&good).await;
    assert!(shim.is_ready().await.ends_with("test/2"));
    manners.moves_to("test/3");
    eventually("it follows", async || {
        shim.announced().await.ok().filter(|key_id| key_id.ends_with("test/3"))
    })
    .await;

    // Another KEK is refused as ever, and so is another canary that cannot be read.
    let wrong = plugin(directory, "wrong", 2).await;
    let mut bad = key(1, "write", &[&wrong]);
    bad["canary"] = writes["canary"].clone();
    shim.write(&document(directory, 2, &[bad]));
    assert!(shim.refuses().await.contains("another KEK"));
    shim.load(&document(directory, 3, std::slice::from_ref(&writes))).await;
    writes["canary"]["annotations"]["other.example"] = "AA==".into();
    shim.write(&document(directory, 4, &[writes]));
    assert!(shim.refuses().await.contains("cannot read its canary"));
}

#[tokio::test]
async fn a_canary_of_another_kek_does_not_hide_what_the_key_has_written() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let [right, wrong] = [plugin(directory, "right", 1).await, plugin(directory, "wrong", 2).await];
    let good = document(directory, 1, &[key(1, "write", &[&right])]);
    let mut shim = Shim::start(directory, &good).await;
    shim.is_ready().await;
    let old = shim.encrypt(b"old").await.unwrap();

    let mut bad = key(1, "write", &[&wrong]);
    bad["canary"] = canary(&wrong).await;
    stays_refused(&mut shim, &document(directory, 2, &[bad]), &old).await;
    let mut mended = key(1, "write", &[&right]);
    mended["canary"] = canary(&right).await;
    shim.load(&document(directory, 3, &[mended])).await;
    assert_eq!(shim.decrypt(&old).await.unwrap(), b"old");
}
