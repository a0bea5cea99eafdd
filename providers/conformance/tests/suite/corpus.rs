//! The corpus on trial: a plugin that reads everything passes, and whatever it does not read, or
//! that is no entry, fails.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_conformance::{CorpusKey, assert_reads_corpus};
use sidekey_core::Endpoint;
use sidekey_core::client::connect;
use sidekey_core::proto::v2::EncryptRequest;
use tokio::runtime::Handle;

use crate::plugin::TestPlugin;

const PLAINTEXT: &[u8] = b"0123456789abcdef0123456789abcdef";

/// What the plugin stores, as an entry.
async fn entry(endpoint: &Endpoint) -> Value {
    let mut kms = connect(endpoint).await.unwrap();
    let request = EncryptRequest { plaintext: PLAINTEXT.into(), uid: "test".into() };
    let sealed = kms.encrypt(request).await.unwrap().into_inner();
    let encode = |bytes: &[u8]| STANDARD.encode(bytes);
    let annotations = sealed.annotations.iter().map(|(name, value)| (name.clone(), encode(value)));
    json!({
        "format": "that of the tests", "written_by": "the plugin of the tests",
        "plaintext": encode(PLAINTEXT), "key_id": sealed.key_id,
        "ciphertext": encode(&sealed.ciphertext),
        "annotations": annotations.collect::<std::collections::BTreeMap<_, _>>(),
    })
}

/// What reading this folder ends with, nothing if that is well.
async fn read(folder: &Path, plugin: &Arc<TestPlugin>) -> Result<(), String> {
    let (folder, plugin) = (folder.display().to_string(), plugin.clone());
    let reading = tokio::task::spawn_blocking(move || {
        Handle::current().block_on(assert_reads_corpus(&folder, async |key: &CorpusKey| {
            assert_eq!(key.name(), "kms");
            assert_eq!(key.state::<Value>(), json!({"secret": 1}));
            (vec![("its own", plugin.endpoint())], ())
        }));
    });
    let panic = reading.await.map_err(|error| error.into_panic());
    panic.map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[tokio::test]
async fn every_entry_is_read_and_what_is_not_read_fails() {
    let (folder, plugin) = (tempfile::tempdir().unwrap(), TestPlugin::start(None));
    let good = entry(&plugin.endpoint()).await;
    let write = |name: &str, value: &Value| {
        let file = folder.path().join("kms").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, value.to_string()).unwrap();
    };
    let fails = async |words: &str| {
        let why = read(folder.path(), &plugin).await.expect_err(words);
        assert!(why.contains(words), "{words:?} is not in: {why}");
    };
    fails("has no keys").await;
    write("one.json", &good);
    fails("key.json cannot be read").await;
    write("key.json", &json!({"secret": 1}));
    read(folder.path(), &plugin).await.unwrap();

    let with = |field: &str, value: Value| {
        let mut entry = good.clone();
        entry[field] = value;
        entry
    };
    for (other, words) in [
        (with("plaintext", "AAAA".into()), "two.json (that of the tests; the plugin of the tests)"),
        (with("plaintext", "AAAA".into()), "something else came back"),
        (with("ciphertext", "AAAA".into()), "Decrypt failed"),
        (with("key_id", "another".into()), "under key_id another"),
        (with("ciphertext", "no base64!".into()), "README.md"),
        (with("unknown", "".into()), "README.md"),
    ] {
        write("two.json", &other);
        fails(words).await;
    }
    write("two.json", &good);
    read(folder.path(), &plugin).await.unwrap();
    for name in ["one.json", "two.json"] {
        std::fs::remove_file(folder.path().join("kms").join(name)).unwrap();
    }
    fails("has no entries").await;
}

#[tokio::test]
async fn what_was_stored_without_a_shim_is_read_behind_one_too() {
    let (folder, plugin) = (tempfile::tempdir().unwrap(), TestPlugin::start(None));
    // No shim has written this prefix. The plugin takes any, but no two.
    let mut entry = entry(&plugin.endpoint()).await;
    entry["key_id"] = format!("sidekey/any/{}", entry["key_id"].as_str().unwrap()).into();
    let file = |name: &str| folder.path().join("kms").join(name);
    std::fs::create_dir(folder.path().join("kms")).unwrap();
    std::fs::write(file("key.json"), json!({"secret": 1}).to_string()).unwrap();
    std::fs::write(file("one.json"), entry.to_string()).unwrap();
    let why = read(folder.path(), &plugin).await.unwrap_err();
    assert!(why.contains("under key_id sidekey/9-0a1b2c3d/sidekey/any/"), "{why}");
    assert_eq!(why.matches("one.json").count(), 1, "as it was stored it reads: {why}");
}
