//! A KMIP server on kmip-go with one key, and the provider in front of it: in this process or as the
//! real binary.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use sidekey_core::{Call, Error, Files, Kind, Provider};
use sidekey_e2e::kmip::KmipServer;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::process::Spec;
use sidekey_e2e::sidecar::Sidecar;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, eventually};
use sidekey_kmip::{Config, Kmip};
use tokio::time::Instant;

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: &[u8; 32] = b"Zq3!promised-never-to-be-seen#7x";

/// A server with one key of the name `kms`.
pub(crate) struct Stage {
    pub(crate) server: KmipServer,
    pub(crate) key: String,
    pub(crate) scratch: Scratch,
}

/// A running plugin and a client of its first socket.
pub(crate) struct Served {
    pub(crate) plugin: Sidecar,
    pub(crate) kms: KmsClient,
}

impl Stage {
    pub(crate) async fn new(name: &str) -> Self {
        Self::speaking(name, 4).await
    }

    /// With a server that speaks up to another version.
    pub(crate) async fn speaking(name: &str, newest: u8) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let server = KmipServer::speaking(&scratch, "server", newest).await.unwrap();
        let key = server.create("kms", json!({})).await.unwrap();
        Self { server, key, scratch }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Puts another file in the place of one.
    pub(crate) fn replace(&self, name: &str, by: &Path) {
        let fresh = self.path(&format!(".{name}.new"));
        std::fs::copy(by, &fresh).unwrap();
        std::fs::rename(&fresh, self.path(name)).unwrap();
    }

    pub(crate) fn endpoint(&self, id: u64) -> String {
        format!("unix://{}", self.path(&format!("kms-{id}.sock")).display())
    }

    /// `kek`, `settings` and `credentials` of a key.
    pub(crate) fn body(&self, kek: Value) -> Value {
        self.body_at(kek, &[self.server.address()])
    }

    pub(crate) fn body_at(&self, kek: Value, addresses: &[SocketAddr]) -> Value {
        let mut body = json!({"kek": kek});
        self.server.identities().fill(&mut body, addresses);
        body
    }

    pub(crate) fn entry_at(&self, id: u64, kek: Value, addresses: &[SocketAddr]) -> Value {
        let mut entry = self.body_at(kek, addresses);
        entry["id"] = id.into();
        entry["type"] = "kmip".into();
        entry["listen"] = self.endpoint(id).into();
        entry
    }

    /// A whole key of the configuration.
    pub(crate) fn entry(&self, id: u64, kek: Value) -> Value {
        self.entry_at(id, kek, &[self.server.address()])
    }

    /// The configuration of the key by its name, with quick probes.
    pub(crate) fn document(&self) -> Value {
        quick(&[self.entry(1, by_name())])
    }

    /// A client in this process.
    pub(crate) async fn connect(&self, kek: Value) -> Kmip {
        connect(&self.body(kek)).await.unwrap()
    }

    /// One that takes the place of another, which is found by its name.
    pub(crate) async fn connect_after(&self, previous: &Kmip) -> Kmip {
        connect_with(&self.body(by_name()), Some(previous)).await.unwrap()
    }

    /// One that wraps in another mode.
    pub(crate) async fn connect_in(&self, mode: &str) -> Kmip {
        let mut body = self.body(by_name());
        body["settings"]["mode"] = mode.into();
        connect(&body).await.unwrap()
    }

    /// The name goes to a new key.
    pub(crate) async fn rotate(&self) -> String {
        self.server.change(&self.key, &json!({"Name": "kms-old"})).await.unwrap();
        self.server.create("kms", json!({})).await.unwrap()
    }

    /// Starts the binary and waits until it is ready.
    pub(crate) async fn serve(&self, document: &Value) -> Served {
        let mut served = self.launch(document).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    /// Starts the binary and waits until it listens.
    pub(crate) async fn launch(&self, document: &Value) -> Served {
        let config = self.path("kmip.yaml");
        let mut document = document.clone();
        document["admin"] = "127.0.0.1:0".into();
        std::fs::write(&config, document.to_string()).unwrap();
        let spec = Spec::new("sidekey-kmip", binary(), self.log()).env_clear();
        let mut plugin = Sidecar::start(spec.arg("--config").arg(config)).await.unwrap();
        let endpoint = self.endpoint(1);
        let connected = plugin
            .process()
            .wait_until("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await);
        let kms = connected.await.unwrap();
        Served { plugin, kms }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("plugin.log")
    }

    /// Waits until the log says so.
    pub(crate) async fn logs(&self, text: &str) {
        let logged = eventually(text, PATIENCE, async || {
            ensure!(std::fs::read_to_string(self.log())?.contains(text), "it is not logged");
            Ok(())
        });
        logged.await.unwrap();
    }

    /// A client of another socket.
    pub(crate) async fn kms(&self, id: u64) -> KmsClient {
        let endpoint = self.endpoint(id);
        eventually("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await)
            .await
            .unwrap()
    }
}

impl Served {
    /// Waits until Status is ok, and gives the key_id.
    pub(crate) async fn wait_ok(&self) -> String {
        let ok = eventually("Status is ok", PATIENCE, async || Ok(self.kms.status().await?.key_id));
        ok.await.unwrap()
    }

    /// Waits until Status is an error, and gives it.
    pub(crate) async fn wait_bad(&self) -> tonic::Status {
        let bad =
            eventually("Status is an error", PATIENCE, async || match self.kms.status().await {
                Err(error) => Ok(error),
                Ok(status) => bail!("it is {status:?}"),
            });
        bad.await.unwrap()
    }

    /// Waits until Status names another key_id than this.
    pub(crate) async fn wait_moved(&self, old: &str) -> String {
        let moved = eventually("key_id moves", PATIENCE, async || {
            let status = self.kms.status().await?;
            ensure!(status.key_id != old, "it is still {old}");
            Ok(status.key_id)
        });
        moved.await.unwrap()
    }
}

/// A client of a key that is configured so.
pub(crate) async fn connect(body: &Value) -> Result<Kmip, Error> {
    connect_with(body, None).await
}

async fn connect_with(body: &Value, previous: Option<&Kmip>) -> Result<Kmip, Error> {
    let config: Config = serde_json::from_value(body.clone()).unwrap();
    let paths = Kmip::files(&config);
    let files = Files::read(paths.iter().map(PathBuf::as_path)).unwrap();
    Kmip::connect(&config, &files, previous).await
}

pub(crate) fn by_name() -> Value {
    json!({"name": "kms"})
}

/// A call that has time.
pub(crate) fn call() -> Call<'static> {
    let deadline = Instant::now() + Duration::from_secs(30);
    Call { uid: "0b8e0cf0-7a5b-4c68-9f0e-2f6f0f4e8a11", deadline }
}

/// Fails unless it is an error of that kind, and its text has these words.
pub(crate) fn fails<T>(result: Result<T, Error>, kind: Kind, words: &[&str]) {
    let error = result.err().expect("it must fail");
    assert_eq!(error.kind(), kind, "{}", error.report());
    for word in words {
        assert!(error.report().contains(word), "no {word:?} in {}", error.report());
    }
}

/// The configuration of some keys, with quick probes.
pub(crate) fn quick(keys: &[Value]) -> Value {
    json!({"keys": keys, "probe": {"interval": "300ms", "timeout": "2s", "coast": "9s"}})
}

/// The same with probes that do not come again while a test runs.
pub(crate) fn calm(keys: &[Value]) -> Value {
    json!({"keys": keys, "probe": {"interval": "1h", "timeout": "10s", "coast": "2h"}})
}

pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_sidekey-kmip")
}
