//! Promises of one-endpoint mode: key_ids pass untouched, and going into this mode or out of it
//! is the administrator's word alone.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use sidekey_core::proto::v2::StatusRequest;
use sidekey_core::{Endpoint, client};
use support::eventually;
use support::plugin::{KEY_ID, Plugin};
use support::shim::{self, document, key};

const BINARY: &str = env!("CARGO_BIN_EXE_sidekey-shim");

/// A running shim, killed with the test.
struct Shim(Child);

impl Shim {
    fn start(arguments: &[&str]) -> Self {
        Self(Command::new(BINARY).args(arguments).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the shim announces this key_id, and never mind what it says before.
async fn announces(socket: &Path, wanted: &str) {
    let endpoint = Endpoint::Path(socket.to_owned());
    eventually(&format!("{wanted} is announced"), async || {
        let mut client = client::connect(&endpoint).await.ok()?;
        let status = client.status(StatusRequest {}).await.ok()?.into_inner();
        (status.key_id == wanted).then_some(())
    })
    .await;
}

fn url(path: &Path) -> String {
    format!("unix://{}", path.display())
}

fn routed(listen: &Path, writer: u64, plugin: &Path) -> Value {
    let key = json!({"id": writer.to_string(), "role": "write", "endpoints": [url(plugin)]});
    json!({"listen": url(listen), "keys": [key]})
}

#[tokio::test]
async fn the_command_line_wins_over_what_was_in_use_before() {
    let directory = tempfile::tempdir().unwrap();
    let (listen, file) = (directory.path().join("kms.sock"), directory.path().join("shim.yaml"));
    let plugin = Plugin::start(&directory.path().join("plugin.sock")).await;
    let (endpoint, socket) = (url(&plugin.path), url(&listen));
    let forward = ["--forward", &endpoint, "--listen", &socket];

    let shim = Shim::start(&forward);
    announces(&listen, KEY_ID).await;
    drop(shim);
    std::fs::write(&file, routed(&listen, 2, &plugin.path).to_string()).unwrap();
    let shim = Shim::start(&["--config", file.to_str().unwrap()]);
    announces(&listen, &format!("sidekey/2-00000000/{KEY_ID}")).await;
    drop(shim);
    let _shim = Shim::start(&forward);
    announces(&listen, KEY_ID).await;
}

#[tokio::test]
async fn a_reload_changes_the_mode_of_a_key_that_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (listen, file) = (directory.path().join("kms.sock"), directory.path().join("shim.yaml"));
    let plugin = Plugin::start(&directory.path().join("plugin.sock")).await;
    let mut document = routed(&listen, 1, &plugin.path);
    document["mode"] = "forward".into();
    std::fs::write(&file, document.to_string()).unwrap();
    let _shim = Shim::start(&["--config", file.to_str().unwrap()]);
    announces(&listen, KEY_ID).await;
    document["mode"] = "route".into();
    std::fs::write(&file, document.to_string()).unwrap();
    announces(&listen, &format!("sidekey/1-00000000/{KEY_ID}")).await;
}

#[tokio::test]
async fn a_key_that_wrote_before_this_mode_never_writes_again_under_its_number() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(&directory.path().join("plugin.sock")).await;
    let routed = |revision, writer, reader| {
        let keys = [key(writer, "write", &[&plugin]), key(reader, "read", &[&plugin])];
        document(directory.path(), revision, &keys)
    };
    let mut forwarding = document(directory.path(), 2, &[key(1, "write", &[&plugin])]);
    forwarding["mode"] = "forward".into();
    let mut shim = shim::Shim::start(directory.path(), &routed(1, 1, 2)).await;
    shim.is_ready().await;
    shim.load(&forwarding).await;
    shim.write(&routed(3, 1, 2));
    assert!(shim.refuses().await.contains("key 1 has been the write key before"));
    shim.load(&routed(4, 2, 1)).await;
    shim.write(&routed(5, 1, 2));
    assert!(shim.refuses().await.contains("key 1 has been the write key before"));
    // Neither does a restart forget it.
    shim.restart(&routed(6, 1, 2)).await;
    assert!(shim.refuses().await.contains("key 1 has been the write key before"));
    assert_eq!(shim.is_ready().await, format!("sidekey/2-00000000/{KEY_ID}"));
}
