//! Promise: a shim and a proxy that may linger serve on after SIGTERM, in full, while clients are
//! connected, and end by themselves when these have left.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::path::Path;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sidekey_core::{Endpoint, client};
use support::plugin::Plugin;
use support::{SHIM, World, decrypt, dial, eventually, status};
use tempfile::NamedTempFile;

const SERVES_ON: &str = "ending: serving on until clients have left";

/// A running program, killed with the test.
struct Process {
    child: Child,
    log: NamedTempFile,
}

impl Process {
    fn start(binary: &str, arguments: &[&str]) -> Self {
        // A file, not a pipe: what it has written before anything else is seen of it is there.
        let log = NamedTempFile::new().unwrap();
        let stderr = log.reopen().unwrap();
        let child = Command::new(binary).args(arguments).stderr(stderr).spawn().unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    /// Waits until it has logged this, and gives what follows.
    async fn logs(&self, text: &str) -> String {
        eventually(text, async || {
            let log = self.log();
            log.split_once(text).map(|(_, rest)| rest.to_owned()).filter(|rest| rest.contains('\n'))
        })
        .await
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    async fn ends_well(&mut self) {
        let ended = eventually("it ends", async || self.child.try_wait().unwrap()).await;
        assert!(ended.success(), "{ended}: {}", self.log());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn url(path: &Path) -> String {
    format!("unix://{}", path.display())
}

#[tokio::test]
async fn the_shim_serves_on_for_kube_apiserver_and_waits_for_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(&directory.path().join("plugin.sock")).await;
    let (endpoint, socket) = (url(&plugin.path), directory.path().join("kms.sock"));
    let listen = url(&socket);
    let arguments = ["--forward", &endpoint, "--listen", &listen, "--linger"];
    let connect = async || client::connect(&Endpoint::Path(socket.clone())).await;
    for (linger, order) in [("1h", Signal::TERM), ("0s", Signal::TERM), ("1h", Signal::INT)] {
        let mut shim = Process::start(
            env!("CARGO_BIN_EXE_sidekey-shim"),
            &[&arguments[..], &[linger]].concat(),
        );
        let mut old = eventually("Status is ok", async || {
            let mut client = connect().await.ok()?;
            client.status(status()).await.ok().map(|_| client)
        })
        .await;
        shim.signal(order);
        if (linger, order) == ("1h", Signal::TERM) {
            shim.logs(SERVES_ON).await;
            old.decrypt(decrypt(b"x")).await.unwrap();
            let mut new = connect().await.unwrap();
            new.decrypt(decrypt(b"x")).await.unwrap();
            drop((old, new));
            shim.ends_well().await;
            shim.logs("no client is connected").await;
        } else {
            shim.ends_well().await;
            assert!(!shim.log().contains(SERVES_ON), "{}", shim.log());
        }
        assert!(!socket.exists(), "{linger}");
    }
}

#[tokio::test]
async fn the_proxy_serves_on_for_its_clients() {
    let world = World::new();
    let _plugin = Plugin::start(&world.path("kms.sock")).await;
    let mut document = world.document();
    document["linger"] = json!("1h");
    let file = world.path("proxy.yaml");
    std::fs::write(&file, document.to_string()).unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let mut proxy = Process::start(env!("CARGO_BIN_EXE_sidekey-proxy"), &arguments);
    let rest = proxy.logs("proxy listening address=").await;
    let address = rest.split_whitespace().next().unwrap().parse().unwrap();
    let identity = world.client(&[SHIM]);
    let mut old = dial(&identity, address).await.unwrap();
    old.status(status()).await.unwrap();
    proxy.signal(Signal::TERM);
    proxy.logs(SERVES_ON).await;
    old.decrypt(decrypt(b"x")).await.unwrap();
    let mut new = dial(&identity, address).await.unwrap();
    new.decrypt(decrypt(b"x")).await.unwrap();
    drop((old, new));
    proxy.ends_well().await;
    proxy.logs("no client is connected").await;
}
