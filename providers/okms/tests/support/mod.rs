//! A fake OKMS with one key, and the provider in front of it: in this process or as the real binary. It
//! is a fake, proven by OVHcloud's own client: see `sidekey_e2e::fakes::okms`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use sidekey_core::config::Problems;
use sidekey_core::{Call, Error, Files, Provider};
use sidekey_e2e::fakes::Fake;
use sidekey_e2e::fakes::okms::Okms as Service;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::okms::{OkmsBackend, spawn};
use sidekey_e2e::process::Spec;
use sidekey_e2e::sidecar::Sidecar;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, eventually};
use sidekey_okms::{Config, Okms};
use tokio::time::Instant;
use tonic::{Code, Status};

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: &[u8; 32] = b"Zq3!promised-never-to-be-seen#7x";
/// The label of the first key.
pub(crate) const LABEL: &str = "etcd";

/// A fake, and a directory for the plugin.
pub(crate) struct Stage {
    pub(crate) backend: OkmsBackend,
    pub(crate) scratch: Scratch,
}

/// A running plugin and a client of its first socket.
pub(crate) struct Served {
    pub(crate) plugin: Sidecar,
    pub(crate) kms: KmsClient,
}

impl Stage {
    pub(crate) async fn new(name: &str) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let backend = OkmsBackend::start(&scratch, LABEL).await.unwrap();
        Self { backend, scratch }
    }

    pub(crate) fn fake(&self) -> &Fake<Service> {
        &self.backend.fake
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("plugin.log")).unwrap()
    }

    pub(crate) fn endpoint(&self, id: u64) -> String {
        format!("unix://{}", self.path(&format!("kms-{id}.sock")).display())
    }

    /// A key of the configuration, by its id.
    pub(crate) fn key(&self, id: u64, key: &str) -> Value {
        self.backend.document(id, &self.backend.kek(key), &self.endpoint(id))
    }

    /// Whatever key has the label.
    pub(crate) fn labelled(&self, id: u64) -> Value {
        self.backend.document(id, &self.backend.labelled(LABEL), &self.endpoint(id))
    }

    /// A client of the first key in this process.
    pub(crate) async fn connect(&self) -> Okms {
        connect(&self.key(1, &self.backend.key)).await.unwrap()
    }

    /// The label is turned to a new key.
    pub(crate) fn repoint(&self) -> String {
        let mut service = self.fake().service();
        let new = service.create("next");
        service.repoint(LABEL, &self.backend.key, &new);
        new
    }

    /// Starts the plugin for the first key, with quick probes, and waits until it is ready.
    pub(crate) async fn serve(&self) -> Served {
        self.serve_document(&quick(&[self.key(1, &self.backend.key)])).await
    }

    pub(crate) async fn serve_document(&self, document: &Value) -> Served {
        let mut served = self.launch(document).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    /// Starts the plugin and waits until it listens.
    pub(crate) async fn launch(&self, document: &Value) -> Served {
        let plugin = spawn(Path::new(binary()), self.scratch.path(), document).await.unwrap();
        self.served(plugin).await
    }

    /// Starts the plugin with arguments and an environment, and waits until it is ready.
    pub(crate) async fn serve_flags(&self, flags: &[String], env: &[(&str, &str)]) -> Served {
        let spec = Spec::new("sidekey-okms", binary(), self.path("plugin.log"));
        let mut spec = spec.env_clear().args(flags);
        for (name, value) in env {
            spec = spec.env(name, value);
        }
        let mut served = self.served(Sidecar::start(spec).await.unwrap()).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    async fn served(&self, plugin: Sidecar) -> Served {
        connected(plugin, &self.endpoint(1)).await
    }

    /// A client of another socket.
    pub(crate) async fn kms(&self, id: u64) -> KmsClient {
        let endpoint = self.endpoint(id);
        let opened =
            eventually("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await);
        opened.await.unwrap()
    }
}

impl Served {
    /// Waits until Status is ok, and gives the key_id.
    pub(crate) async fn wait_ok(&self) -> String {
        let ok = eventually("Status is ok", PATIENCE, async || {
            let status = self.kms.status().await?;
            ensure!(status.version == "v2" && status.healthz == "ok", "{status:?}");
            Ok(status.key_id)
        });
        ok.await.unwrap()
    }

    /// Waits until Status is an error with this code and these words.
    pub(crate) async fn wait_bad(&self, code: Code, words: &str) -> Status {
        let what = format!("Status fails with {code:?} and {words:?}");
        let bad = eventually(&what, PATIENCE, async || match self.kms.status().await {
            Err(error) if error.code() == code && error.message().contains(words) => Ok(error),
            other => bail!("{other:?}"),
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

/// Waits until a plugin listens.
pub(crate) async fn connected(mut plugin: Sidecar, endpoint: &str) -> Served {
    let connecting = plugin
        .process()
        .wait_until("it listens", PATIENCE, async || KmsClient::connect(endpoint).await);
    let kms = connecting.await.unwrap();
    Served { plugin, kms }
}

/// A client of a key that is configured so.
pub(crate) async fn connect(document: &Value) -> Result<Okms, Error> {
    let config: Config = serde_json::from_value(document.clone()).unwrap();
    let mut problems = Problems::default();
    Okms::check(&config, &mut problems);
    assert!(problems.is_empty(), "{problems}");
    let paths = Okms::files(&config);
    let files = Files::read(paths.iter().map(PathBuf::as_path)).unwrap();
    Okms::connect(&config, &files, None).await
}

/// A call that has time.
pub(crate) fn call() -> Call<'static> {
    let deadline = Instant::now() + Duration::from_secs(30);
    Call { uid: "0b8e0cf0-7a5b-4c68-9f0e-2f6f0f4e8a11", deadline }
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
    env!("CARGO_BIN_EXE_sidekey-okms")
}
