//! Promises about who serves a plugin's socket: nothing is sent to a server of a uid that is not
//! accepted, and the error says what to set.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc;

use serde_json::json;
use sidekey_core::app::App;
use sidekey_shim::proxy::ProxyConfig;
use support::plugin::Plugin;
use support::shim::{Shim, document, key};
use support::{PATIENCE, SHIM, World, dial, encrypt, eventually, metric, status};
use tonic::Code;

/// Nobody who runs tests.
const STRANGER: u32 = 4242;

/// A server of another uid; the receiver gets all that each of its clients sent.
fn stranger(path: &Path) -> mpsc::Receiver<Vec<u8>> {
    let (path, (send, sent)) = (path.to_owned(), mpsc::channel());
    let (ready, listens) = mpsc::channel();
    std::thread::spawn(move || {
        let uid = rustix::process::Uid::from_raw(STRANGER);
        // Of this thread alone.
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("run it as root");
        let listener = UnixListener::bind(path).unwrap();
        ready.send(()).unwrap();
        for stream in listener.incoming() {
            let mut bytes = Vec::new();
            let _ = stream.unwrap().read_to_end(&mut bytes);
            let _ = send.send(bytes);
        }
    });
    listens.recv().unwrap();
    sent
}

#[tokio::test]
async fn the_shim_sends_a_server_of_another_uid_nothing_and_says_what_to_set() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let directory = directory.path();
    let socket = directory.join("a.sock");
    let sent = stranger(&socket);
    let keys = [json!({"id": 1, "role": "write", "endpoints": [socket]})];
    let shim = Shim::start(directory, &document(directory, 1, &keys)).await;
    let error = eventually("the key is refused", async || {
        let key = shim.key(1).await?;
        Some(key["last_error"]["error"].as_str()?.to_owned())
    })
    .await;
    let own = rustix::process::geteuid().as_raw().to_string();
    for part in [socket.to_str().unwrap(), "served by uid 4242", &own, "serverUids"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    assert!(shim.encrypt(b"secret").await.is_err());
    assert!(shim.announced().await.is_err());
    // The stranger may still be at the first of its clients.
    for _ in 0..2 {
        assert_eq!(sent.recv_timeout(PATIENCE).expect("nobody came"), b"", "something was sent");
    }
}

#[tokio::test]
async fn the_list_of_a_key_takes_the_place_of_the_default_and_is_taken_over_by_a_reload() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let own = rustix::process::geteuid().as_raw();
    let mut only = key(1, "write", &[&plugin]);
    only["serverUids"] = json!([STRANGER, own]);
    let shim = Shim::start(directory, &document(directory, 1, &[only.clone()])).await;
    shim.is_ready().await;
    let sealed = shim.encrypt(b"x").await.unwrap();

    only["serverUids"] = json!([STRANGER]);
    shim.write(&document(directory, 2, &[only]));
    let why = shim.refuses().await;
    assert!(why.contains(&format!("served by uid {own}")), "{why}");
    assert_eq!(shim.decrypt(&sealed).await.unwrap(), b"x");
}

#[tokio::test]
async fn the_proxy_sends_a_server_of_another_uid_nothing_and_says_what_to_set() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let mut document = world.document();
    document["serverUids"] = json!([STRANGER]);
    let mut proxy = world.proxy_of(&document).await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let refused = client.encrypt(encrypt(b"secret")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("accepted are [4242]"), "{refused}");
    assert!(metric(&proxy, "socket_proxy_socket_errors_total{reason=\"denied\"}") > 0);
    assert_eq!(plugin.seen(), 0);

    document["serverUids"] = json!([rustix::process::geteuid().as_raw()]);
    proxy.apply(ProxyConfig::parse(&document).unwrap()).await.unwrap();
    client.encrypt(encrypt(b"secret")).await.unwrap();
    client.status(status()).await.unwrap();
    assert_eq!(plugin.seen(), 1);
}

#[tokio::test]
async fn the_flag_is_for_keys_without_a_list_and_leaves_those_behind_certificates_alone() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = Plugin::start(&directory.join("a.sock")).await;
    let own = rustix::process::geteuid().as_raw();
    let mut writer = key(1, "write", &[&plugin]);
    writer["serverUids"] = json!([own]);
    let reader = key(2, "read", &[&plugin]);
    let files = world.server_files();
    let tls = json!({"ca": files.ca, "cert": files.cert, "key": files.key});
    let remote = json!({"id": 3, "role": "read", "endpoints": ["https://127.0.0.1:1"], "tls": tls});
    let keys = [writer, reader, remote];
    let flag = ["--server-uids", "4242"];
    let shim = Shim::with_flags(directory, &document(directory, 1, &keys), &flag).await;
    shim.is_ready().await;
    let error = eventually("the key without a list is refused", async || {
        Some(shim.key(2).await?["last_error"]["error"].as_str()?.to_owned())
    })
    .await;
    assert!(error.contains("accepted are [4242]"), "{error}");
    // Nobody listens there: that is all that is wrong with it.
    let error = eventually("the key behind certificates was asked", async || {
        Some(shim.key(3).await?["last_error"]["error"].as_str()?.to_owned())
    })
    .await;
    assert!(error.contains("cannot connect to https://127.0.0.1:1"), "{error}");
}
