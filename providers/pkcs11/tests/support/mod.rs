//! A token of SoftHSM with one key, and the provider in front of it as the real binary. Where a test
//! says so, a fake stands between the two: a library that passes every call on to SoftHSM but for those
//! that it was told to spoil.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::process::Spec;
use sidekey_e2e::sidecar::Sidecar;
use sidekey_e2e::softhsm::{self, SoftHsm};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, binaries, eventually};

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: &[u8; 32] = b"Zq3!promised-never-to-be-seen#7x";
/// The label of the key.
pub(crate) const LABEL: &str = "etcd";

/// One token with one key.
pub(crate) struct Stage {
    pub(crate) hsm: SoftHsm,
    pub(crate) scratch: Scratch,
    program: PathBuf,
}

/// A running plugin and a client of its first socket.
pub(crate) struct Served {
    pub(crate) plugin: Sidecar,
    pub(crate) kms: KmsClient,
}

impl Stage {
    pub(crate) async fn new(name: &str) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let hsm = SoftHsm::start(&scratch, "hsm").await.unwrap();
        hsm.make_aes(LABEL, "01", 32).await.unwrap();
        // The one that cargo builds with this test is static.
        let program = binaries::path_async(softhsm::PROGRAM).await.unwrap();
        Self { hsm, scratch, program }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes a file as careful writers do it: beside, then renamed.
    pub(crate) fn write(&self, path: &Path, text: &str) {
        let fresh = self.path(".new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, path).unwrap();
    }

    pub(crate) fn endpoint(&self, id: u64) -> String {
        format!("unix://{}", self.path(&format!("kms-{id}.sock")).display())
    }

    /// A whole key of the configuration.
    pub(crate) fn entry(&self, id: u64) -> Value {
        self.hsm.entry(id, LABEL, &self.endpoint(id))
    }

    /// The same behind the fake.
    pub(crate) fn spoilt(&self, id: u64) -> Value {
        let mut entry = self.entry(id);
        entry["settings"]["library"] = json!(self.fake());
        entry
    }

    /// What the fake is to spoil from now on; empty for nothing.
    pub(crate) fn spoil(&self, what: &str) {
        self.write(&self.path("fake.order"), what);
    }

    /// How often the token was logged in to through the fake.
    pub(crate) fn logins(&self) -> usize {
        std::fs::read(self.path("fake.logins")).map_or(0, |log| log.len())
    }

    fn fake(&self) -> PathBuf {
        let library = self.path("libfake.so");
        if !library.is_file() {
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/fake.c");
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"]);
            assert!(compiler.status().unwrap().success(), "the fake library was not compiled");
            self.spoil("");
        }
        library
    }

    /// The binary, with nothing of this process's environment.
    pub(crate) fn spec(&self) -> Spec {
        let spec = Spec::new(softhsm::PROGRAM, &self.program, self.log()).env_clear();
        spec.env(softhsm::CONF, self.hsm.conf()).env("FAKE_DIR", self.scratch.path())
    }

    /// The command of [`spec`](Self::spec).
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env(softhsm::CONF, self.hsm.conf());
        command.env("FAKE_DIR", self.scratch.path());
        command
    }

    /// Starts the binary and waits until it listens.
    pub(crate) async fn launch(&self, document: &Value) -> Served {
        let config = self.path("pkcs11.yaml");
        let mut document = document.clone();
        document["admin"] = "127.0.0.1:0".into();
        std::fs::write(&config, document.to_string()).unwrap();
        self.start(self.spec().arg("--config").arg(config)).await
    }

    pub(crate) async fn start(&self, spec: Spec) -> Served {
        let mut plugin = Sidecar::start(spec).await.unwrap();
        let kms = connect(plugin.process(), &self.endpoint(1)).await;
        Served { plugin, kms }
    }

    /// The same, and waits until it is ready.
    pub(crate) async fn serve(&self, document: &Value) -> Served {
        let mut served = self.launch(document).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path("plugin.log")
    }

    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap()
    }

    /// A client of another socket.
    pub(crate) async fn kms(&self, id: u64) -> KmsClient {
        let endpoint = self.endpoint(id);
        eventually("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await)
            .await
            .unwrap()
    }
}

async fn connect(process: &mut sidekey_e2e::process::Process, endpoint: &str) -> KmsClient {
    let connected =
        process.wait_until("it listens", PATIENCE, async || KmsClient::connect(endpoint).await);
    connected.await.unwrap()
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

    /// Waits until Status is an error that says what is wrong, and gives it.
    pub(crate) async fn wait_bad(&self) -> tonic::Status {
        let bad =
            eventually("Status is an error", PATIENCE, async || match self.kms.status().await {
                Err(error) if error.message().contains("waiting for") => bail!("{error}"),
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

/// The configuration of some keys, with quick probes.
pub(crate) fn quick(keys: &[Value]) -> Value {
    json!({"keys": keys, "probe": {"interval": "300ms", "timeout": "2s", "coast": "9s"}})
}
