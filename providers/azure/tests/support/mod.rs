//! A fake of Azure with a key for each test, and the real binary on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::fakes::Fake;
use sidekey_e2e::fakes::azure::{Azure, KeyKind, TENANT};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::process::Spec;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, Sidecar, eventually};
use tonic::{Code, Status};

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: &[u8; 32] = b"Zq3!promised-never-to-be-seen#7x";
pub(crate) const VAULT: &str = "sidekey-test.vault.azure.net";
pub(crate) const HSM: &str = "sidekey-test.managedhsm.azure.net";
pub(crate) const CLIENT: &str = "99999999-8888-7777-6666-555555555555";
pub(crate) const SECRET: &str = "S3cret~never-to-be-seen-wJalrXUtnFEMI7";
pub(crate) const KEY: &str = "etcd";

/// A vault, or a Managed HSM, with one key, and a directory for the plugin.
pub(crate) struct Stage {
    pub(crate) fake: Fake<Azure>,
    pub(crate) host: &'static str,
    /// The first version of the key.
    pub(crate) version: String,
    pub(crate) scratch: Scratch,
}

impl Stage {
    /// A vault with an RSA key.
    pub(crate) async fn new(name: &str) -> Self {
        Self::with(name, VAULT, KeyKind::Rsa(2048)).await
    }

    pub(crate) async fn with(name: &str, host: &'static str, kind: KeyKind) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let mut azure = Azure::new(host);
        let version = azure.make(KEY, kind).unwrap();
        azure.secret(CLIENT, SECRET);
        let fake = Fake::start(&scratch, "azure", azure).await.unwrap();
        let stage = Self { fake, host, version, scratch };
        stage.write("secret", SECRET);
        stage
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes a file as careful writers do it: beside, then renamed.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let fresh = self.path(&format!(".{name}.new"));
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, self.path(name)).unwrap();
        self.path(name)
    }

    pub(crate) fn endpoint(&self, id: u64) -> String {
        format!("unix://{}", self.path(&format!("kms-{id}.sock")).display())
    }

    /// The settings that lead to the fake.
    pub(crate) fn settings(&self) -> Value {
        let url = self.fake.url();
        let metadata = format!("https://{}", self.fake.address());
        json!({"endpoint": url, "authority": url, "metadataEndpoint": metadata, "caFile": self.fake.ca()})
    }

    pub(crate) fn by_secret(&self) -> Value {
        json!({"tenantId": TENANT, "clientId": CLIENT, "clientSecretFile": self.path("secret")})
    }

    /// A key of the configuration.
    pub(crate) fn key(&self, id: u64, credentials: &Value) -> Value {
        json!({
            "id": id, "type": "azure", "listen": self.endpoint(id),
            "kek": {"vault": format!("https://{}", self.host), "key": KEY},
            "settings": self.settings(), "credentials": credentials,
        })
    }

    /// The configuration of one key that follows the newest version, with quick probes.
    pub(crate) fn document(&self) -> Value {
        quick(&[self.key(1, &self.by_secret())])
    }

    pub(crate) async fn serve(&self) -> Served {
        self.serve_document(&self.document()).await
    }

    /// Starts the plugin and waits until it is ready.
    pub(crate) async fn serve_document(&self, document: &Value) -> Served {
        let mut served = self.spawn(document).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    /// The same without waiting.
    pub(crate) async fn spawn(&self, document: &Value) -> Served {
        let config = self.write("azure.yaml", &document.to_string());
        self.launch(&["--config".to_owned(), config.display().to_string()], &[]).await
    }

    /// Starts the plugin with any flags and variables.
    pub(crate) async fn launch(&self, flags: &[String], env: &[(&str, &str)]) -> Served {
        let log = self.path("plugin.log");
        let mut spec =
            Spec::new("sidekey-azure", Path::new(binary()), &log).args(flags).env_clear();
        for (name, value) in env {
            spec = spec.env(name, value);
        }
        let mut plugin = Sidecar::start(spec).await.unwrap();
        let endpoint = self.endpoint(1);
        let connected = plugin
            .process()
            .wait_until("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await);
        let kms = connected.await.unwrap();
        Served { plugin, kms, log }
    }

    /// A client of another key of this stage.
    pub(crate) async fn kms(&self, id: u64) -> KmsClient {
        let endpoint = self.endpoint(id);
        eventually("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await)
            .await
            .unwrap()
    }

    pub(crate) fn rotate(&self) -> String {
        self.fake.service().rotate(KEY).unwrap()
    }
}

/// A running plugin and a client of its first key.
pub(crate) struct Served {
    pub(crate) plugin: Sidecar,
    pub(crate) kms: KmsClient,
    log: PathBuf,
}

impl Served {
    /// Waits until Status is ok, and gives the key_id.
    pub(crate) async fn wait_ok(&mut self) -> String {
        let kms = self.kms.clone();
        let ok = self.plugin.process().wait_until("Status is ok", PATIENCE, async || {
            let status = kms.status().await?;
            ensure!(status.version == "v2" && status.healthz == "ok", "{status:?}");
            Ok(status.key_id)
        });
        ok.await.unwrap()
    }

    /// Waits until Status is an error with this code and text.
    pub(crate) async fn wait_bad(&mut self, code: Code, text: &str) -> Status {
        let kms = self.kms.clone();
        let what = format!("Status fails with {code:?} and {text:?}");
        let bad =
            self.plugin.process().wait_until(&what, PATIENCE, async || match kms.status().await {
                Err(error) if error.code() == code && error.message().contains(text) => Ok(error),
                other => bail!("{other:?}"),
            });
        bad.await.unwrap()
    }

    /// Waits until Status names another key_id than this.
    pub(crate) async fn wait_moved(&mut self, old: &str) -> String {
        let kms = self.kms.clone();
        let moved = self.plugin.process().wait_until("key_id moves", PATIENCE, async || {
            let status = kms.status().await?;
            ensure!(status.key_id != old, "it is still {old}");
            Ok(status.key_id)
        });
        moved.await.unwrap()
    }

    pub(crate) async fn round_trip(&self) -> EncryptResponse {
        self.kms.round_trip(PLAINTEXT).await.unwrap()
    }

    /// What was wrapped before reads back.
    pub(crate) async fn reads(&self, sealed: &EncryptResponse) {
        assert_eq!(&self.kms.decrypt(sealed).await.unwrap()[..], PLAINTEXT);
    }

    /// Waits until the log holds this.
    pub(crate) async fn logs(&mut self, text: &str) {
        let log = self.log.clone();
        let what = format!("{text:?} is logged");
        let found = self.plugin.process().wait_until(&what, PATIENCE, async || {
            ensure!(std::fs::read_to_string(&log)?.contains(text), "not yet");
            Ok(())
        });
        found.await.unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

/// A document with quick probes.
pub(crate) fn quick(keys: &[Value]) -> Value {
    json!({
        "admin": "127.0.0.1:0", "keys": keys,
        "probe": {"interval": "300ms", "timeout": "2s", "coast": "9s"},
    })
}

/// A document whose probes come once an hour: nothing but requests calls the vault.
pub(crate) fn calm(keys: &[Value]) -> Value {
    json!({"admin": "127.0.0.1:0", "keys": keys, "probe": {"interval": "1h"}})
}

/// The binary under test.
pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_sidekey-azure")
}

/// Runs it to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).env_clear().stdin(Stdio::null()).output().unwrap()
}
