//! A fake Key Protect with one key, and the provider in front of it: in this process or as the real
//! binary. Everything but the fake is what it seems to be.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use sidekey_core::{Call, Error, Files, Provider};
use sidekey_e2e::fakes::Fake;
use sidekey_e2e::fakes::ibm::{KeyProtect, READER};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::process::Spec;
use sidekey_e2e::sidecar::Sidecar;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, eventually};
use sidekey_ibmcloud::{Config, IbmCloud};
use tokio::time::Instant;
use tonic::Code;

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: &[u8; 32] = b"Zq3!promised-never-to-be-seen#7x";

/// One instance with one root key, and a service ID that may use it.
pub(crate) struct Stage {
    pub(crate) fake: Fake<KeyProtect>,
    pub(crate) instance: String,
    pub(crate) key: String,
    pub(crate) api_key: String,
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
        let mut service = KeyProtect::default();
        let instance = service.instance();
        let (key, api_key) = (service.create(&instance), service.api_key(&READER));
        let fake = Fake::start(&scratch, "kms", service).await.unwrap();
        let stage = Self { fake, instance, key, api_key, scratch };
        stage.write("api-key", &stage.api_key);
        stage
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes a file as careful writers do it: beside, then renamed.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let fresh = self.path(&format!(".{name}.new"));
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, self.path(name)).unwrap();
    }

    pub(crate) fn endpoint(&self, id: u64) -> String {
        format!("unix://{}", self.path(&format!("kms-{id}.sock")).display())
    }

    /// `kek`, `settings` and `credentials` of a key.
    pub(crate) fn body(&self, key: &str) -> Value {
        json!({
            "kek": {"instance": self.instance, "key": key},
            "settings": {
                "address": self.fake.url(), "caFile": self.fake.ca(),
                "tokenUrl": format!("{}/identity/token", self.fake.url()),
            },
            "credentials": {"apiKeyFile": self.path("api-key")},
        })
    }

    /// A whole key of the configuration.
    pub(crate) fn entry(&self, id: u64, key: &str) -> Value {
        let mut entry = self.body(key);
        entry["id"] = id.into();
        entry["type"] = "ibmcloud".into();
        entry["listen"] = self.endpoint(id).into();
        entry
    }

    /// A client in this process.
    pub(crate) async fn connect(&self) -> IbmCloud {
        connect(&self.body(&self.key)).await.unwrap()
    }

    /// Starts the binary with quick probes of this stage's key, and waits until it is ready.
    pub(crate) async fn serve(&self) -> Served {
        self.serve_document(&quick(&[self.entry(1, &self.key)])).await
    }

    pub(crate) async fn serve_document(&self, document: &Value) -> Served {
        let mut served = self.launch(document).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    /// Starts the binary and waits until it listens.
    pub(crate) async fn launch(&self, document: &Value) -> Served {
        let config = self.path("ibmcloud.yaml");
        let mut document = document.clone();
        document["admin"] = "127.0.0.1:0".into();
        std::fs::write(&config, document.to_string()).unwrap();
        let spec = self.spec().arg("--config").arg(config);
        self.start(spec, &self.endpoint(1)).await
    }

    /// The binary, with nothing of this process's environment.
    pub(crate) fn spec(&self) -> Spec {
        Spec::new("sidekey-ibmcloud", binary(), self.log()).env_clear()
    }

    pub(crate) async fn start(&self, spec: Spec, endpoint: &str) -> Served {
        let mut plugin = Sidecar::start(spec).await.unwrap();
        let connected = plugin
            .process()
            .wait_until("it listens", PATIENCE, async || KmsClient::connect(endpoint).await);
        let kms = connected.await.unwrap();
        Served { plugin, kms }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("plugin.log")
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
        let ok = eventually("Status is ok", PATIENCE, async || {
            let status = self.kms.status().await?;
            ensure!(status.version == "v2" && status.healthz == "ok", "{status:?}");
            Ok(status.key_id)
        });
        ok.await.unwrap()
    }

    /// Waits until Status is an error with one of these codes. Before the first probe, and after one
    /// that came too late on a busy machine, it says something else.
    pub(crate) async fn wait_bad(&self, codes: &[Code]) {
        let what = format!("Status fails with {codes:?}");
        let bad = eventually(&what, PATIENCE, async || match self.kms.status().await {
            Err(error) if codes.contains(&error.code()) => Ok(()),
            other => bail!("it is {other:?}"),
        });
        bad.await.unwrap();
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
pub(crate) async fn connect(body: &Value) -> Result<IbmCloud, Error> {
    let config: Config = serde_json::from_value(body.clone()).unwrap();
    let paths = IbmCloud::files(&config);
    let files = Files::read(paths.iter().map(PathBuf::as_path)).unwrap();
    IbmCloud::connect(&config, &files, None).await
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

pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sidekey-ibmcloud"))
}
