//! Promises of a cold start.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use serde_json::{Value, json};
use support::plugin::{Manners, Plugin};
use support::shim::{Shim, document, key};

/// A key at whose socket nobody listens.
fn unreachable(id: u64, role: &str, directory: &std::path::Path) -> Value {
    json!({"id": id, "role": role, "endpoints": [directory.join("nobody.sock")]})
}

#[tokio::test]
async fn a_key_that_cannot_be_reached_never_prevents_the_start_and_the_others_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::with(&directory.join("a.sock"), Manners::of_kek(1)).await;
    let keys = [key(1, "write", &[&plugin]), unreachable(2, "read", directory)];
    let mut shim = Shim::start(directory, &document(directory, 1, &keys)).await;
    shim.is_ready().await;
    let sealed = shim.encrypt(b"x").await.unwrap();

    let keys = [unreachable(2, "write", directory), key(1, "read", &[&plugin])];
    let other = document(directory, 2, &keys);
    for name in [".kms.sock.last-good.json", ".shim.yaml.last-good.json"] {
        std::fs::remove_file(directory.join(name)).unwrap();
    }
    shim.restart(&other).await;
    assert_eq!(shim.decrypt(&sealed).await.unwrap(), b"x");
    let refused = shim.announced().await.unwrap_err();
    assert!(refused.message().contains("write key 2"), "{refused}");
    let _late = Plugin::with(&directory.join("nobody.sock"), Manners::of_kek(2)).await;
    assert!(shim.is_ready().await.starts_with("sidekey/2-"));
}

#[tokio::test]
async fn where_the_configuration_cannot_be_read_the_last_good_one_beside_listen_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let listen = format!("unix://{}", directory.join("kms.sock").display());
    let flags = ["--listen", listen.as_str()];
    let good = document(directory, 1, &[key(1, "write", &[&plugin])]);
    let shim = Shim::with_flags(directory, &good, &flags).await;
    let key_id = shim.is_ready().await;
    drop(shim);
    // As if the configuration were mounted read-only.
    std::fs::remove_file(directory.join(".shim.yaml.last-good.json")).unwrap();
    let shim = Shim::with_flags(directory, &json!("no configuration"), &flags).await;
    assert_eq!(shim.is_ready().await, key_id);
    assert!(shim.refuses().await.contains("not a mapping"));
}

#[tokio::test]
async fn where_nothing_says_where_the_socket_is_the_last_good_one_beside_the_configuration_is_used()
{
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let mut shim =
        Shim::start(directory, &document(directory, 1, &[key(1, "write", &[&plugin])])).await;
    let key_id = shim.is_ready().await;
    std::fs::remove_file(directory.join(".kms.sock.last-good.json")).unwrap();
    shim.restart(&json!("no configuration")).await;
    assert_eq!(shim.is_ready().await, key_id);
    assert!(shim.refuses().await.contains("not a mapping"));
}
