//! A fake of Cloud KMS for each test, and the real binary before it. It is a fake, proven by
//! Google's own client: see `sidekey_e2e::fakes::gcp`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::fakes::Fake;
use sidekey_e2e::fakes::gcp::Gcp;
use sidekey_e2e::gcp::{GcpBackend, GcpPlugin};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, eventually};
use tonic::{Code, Status};

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: &[u8; 32] = b"Zq3!promised-never-to-be-seen#7x";

/// A fake, and a directory for the plugin.
pub(crate) struct Stage {
    pub(crate) backend: GcpBackend,
    pub(crate) scratch: Scratch,
}

impl Stage {
    pub(crate) async fn new(name: &str) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let backend = GcpBackend::start(&scratch).await.unwrap();
        Self { backend, scratch }
    }

    pub(crate) fn fake(&self) -> &Fake<Gcp> {
        &self.backend.fake
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes a file as careful writers do it: beside, then renamed.
    pub(crate) fn write(&self, path: &Path, text: &str) {
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, path).unwrap();
    }

    /// The endpoint of a key.
    pub(crate) fn endpoint(&self, id: u64) -> String {
        format!("unix://{}", self.path(&format!("kms-{id}.sock")).display())
    }

    /// A key of the configuration.
    pub(crate) fn key(&self, id: u64, name: &str) -> Value {
        self.backend.document(id, name, &self.endpoint(id))
    }

    /// The configuration of the one key, with quick probes.
    pub(crate) fn document(&self) -> Value {
        quick(&[self.key(1, &self.backend.key)])
    }

    /// The key is rotated.
    pub(crate) fn rotate(&self) {
        self.fake().service().key(&self.backend.key).rotate();
    }

    /// Starts the plugin with [`document`](Self::document).
    pub(crate) async fn serve(&self) -> Served {
        self.serve_document(&self.document(), &[]).await
    }

    /// Starts the plugin and waits until it is ready.
    pub(crate) async fn serve_document(&self, document: &Value, env: &[(&str, &str)]) -> Served {
        let mut served = self.spawn(document, env).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    /// Starts the plugin without waiting for readiness.
    pub(crate) async fn spawn(&self, document: &Value, env: &[(&str, &str)]) -> Served {
        let (program, dir) = (Path::new(binary()), self.scratch.path());
        let plugin = GcpPlugin::spawn(program, dir, document, env).await.unwrap();
        self.served(plugin).await
    }

    /// Starts the plugin with flags, and waits until it is ready.
    pub(crate) async fn serve_flags(&self, flags: &[String], env: &[(&str, &str)]) -> Served {
        let (program, dir) = (Path::new(binary()), self.scratch.path());
        let plugin = GcpPlugin::launch(program, dir, flags, env).await.unwrap();
        let mut served = self.served(plugin).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    async fn served(&self, mut plugin: GcpPlugin) -> Served {
        let endpoint = self.endpoint(1);
        let connected = plugin
            .process()
            .wait_until("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await);
        let kms = connected.await.unwrap();
        Served { plugin, kms }
    }

    /// A client of another key.
    pub(crate) async fn kms(&self, id: u64) -> KmsClient {
        let endpoint = self.endpoint(id);
        let opened =
            eventually("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await);
        opened.await.unwrap()
    }
}

/// A running plugin and a client of its key.
pub(crate) struct Served {
    pub(crate) plugin: GcpPlugin,
    pub(crate) kms: KmsClient,
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

    /// Waits until Status is an error with this code and these words.
    pub(crate) async fn wait_bad(&mut self, code: Code, words: &str) -> Status {
        let kms = self.kms.clone();
        let what = format!("Status fails with {code:?} and {words:?}");
        let bad =
            self.plugin.process().wait_until(&what, PATIENCE, async || match kms.status().await {
                Err(error) if error.code() == code && error.message().contains(words) => Ok(error),
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

    /// Wraps and unwraps the plaintext of the tests.
    pub(crate) async fn round_trip(&self) -> EncryptResponse {
        self.kms.round_trip(PLAINTEXT).await.unwrap()
    }

    /// What was wrapped before reads back.
    pub(crate) async fn reads(&self, sealed: &EncryptResponse) {
        assert_eq!(&self.kms.decrypt(sealed).await.unwrap()[..], PLAINTEXT);
    }

    /// Waits until the log holds this so many times.
    pub(crate) async fn logs(&mut self, text: &str, times: usize) {
        let log = self.plugin.log_path();
        let what = format!("{text:?} is logged {times} times");
        let counted = self.plugin.process().wait_until(&what, PATIENCE, async || {
            let found = std::fs::read_to_string(&log)?.matches(text).count();
            ensure!(found >= times, "{found} times");
            Ok(())
        });
        counted.await.unwrap();
    }
}

/// Between two rounds of a [`Pulse`], so that others can run too.
const PACE: Duration = Duration::from_millis(40);

/// Makes calls from now on until it is stopped: each must succeed.
pub(crate) struct Pulse {
    stop: tokio::sync::watch::Sender<bool>,
    calls: tokio::task::JoinHandle<Result<()>>,
}

impl Pulse {
    pub(crate) fn start(kms: &KmsClient, sealed: &EncryptResponse) -> Self {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let (kms, sealed) = (kms.clone(), sealed.clone());
        let calls = tokio::spawn(async move {
            loop {
                let ending = *stopped.borrow();
                let back = kms.decrypt(&sealed).await.context("decrypt")?;
                ensure!(back == PLAINTEXT[..], "something else came back");
                kms.round_trip(PLAINTEXT).await.context("encrypt")?;
                kms.status().await.context("status")?;
                // At least one call comes after the order to stop.
                if ending {
                    return Ok(());
                }
                tokio::time::sleep(PACE).await;
            }
        });
        Self { stop, calls }
    }

    /// Ends; not one call may have failed.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        self.calls.await.unwrap().expect("no call fails");
    }
}

/// The configuration of some keys, with quick probes.
pub(crate) fn quick(keys: &[Value]) -> Value {
    json!({"keys": keys, "probe": {"interval": "500ms", "timeout": "2s", "coast": "8s"}})
}

/// The same with probes that do not come again while a test runs.
pub(crate) fn calm(keys: &[Value]) -> Value {
    json!({"keys": keys, "probe": {"interval": "1h", "timeout": "10s", "coast": "2h"}})
}

pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_sidekey-gcp")
}

/// Asserts the code of a failure and words of its text.
#[track_caller]
pub(crate) fn failed<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, words: &[&str]) {
    let error = result.expect_err("it should have failed");
    assert_eq!(error.code(), code, "{error}");
    let text = error.message();
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    assert!(missing.is_empty(), "{missing:?} not in: {text}");
}
