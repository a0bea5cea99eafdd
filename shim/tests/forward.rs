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
