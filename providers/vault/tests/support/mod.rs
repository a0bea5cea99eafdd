//! A real OpenBao that the tests of one file share, and the real binary on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::openbao::Bao;
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::openbao::client::TransitKey;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{OpenBao, Scratch, VaultPlugin, eventually};
use tokio::sync::OnceCell;
use tonic::{Code, Status};

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: &[u8; 32] = b"Zq3!promised-never-to-be-seen#7x";

/// The server of all tests that do not hurt it; the watchdog ends it with this process.
static SHARED: OnceCell<(Scratch, OpenBao)> = OnceCell::const_new();

/// The server that is shared.
pub(crate) async fn shared() -> &'static OpenBao {
    let start = || async {
        let scratch = Scratch::new("shared").unwrap();
        let server = OpenBao::start(&scratch, "bao").await.unwrap();
        (scratch, server)
    };
    &SHARED.get_or_init(start).await.1
}

/// What one test has of a server: an engine, a key, a policy and a role of its own, and a
/// directory for the plugin.
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) bao: Bao,
    pub(crate) key: TransitKey,
    pub(crate) role: AppRole,
    address: String,
    ca: PathBuf,
    scratch: Scratch,
}

/// How a stage's role gives out tokens unless a test wants it otherwise.
fn an_hour() -> Value {
    json!({"token_ttl": "1h"})
}

impl Stage {
    /// On the shared server.
    pub(crate) async fn new(name: &str) -> Self {
        Self::on(shared().await, name, &an_hour()).await.unwrap()
    }

    /// On a server of the test's own.
    pub(crate) async fn on_own(server: &OpenBao, name: &str) -> Self {
        Self::on(server, name, &an_hour()).await.unwrap()
    }

    /// With a role of one's own options.
    pub(crate) async fn on(server: &OpenBao, name: &str, role: &Value) -> Result<Self> {
        Self::within(server, server.root(), name, role).await
    }

    /// In a namespace.
    pub(crate) async fn within(
        server: &OpenBao,
        bao: Bao,
        name: &str,
        role: &Value,
    ) -> Result<Self> {
        bao.enable("transit", name).await?;
        bao.enable_auth("approle", name).await?;
        let key = bao.make_key(name, "kms").await?;
        let role = AppRole::create(&bao, name, "kms", &[name], role).await?;
        let scratch = Scratch::new(name)?;
        let (address, ca, name) = (server.address(), server.ca(), name.to_owned());
        let stage = Self { name, bao, key, role, address, ca, scratch };
        stage.allow(&["read", "encrypt", "decrypt"]).await?;
        stage.write("secret-id", &stage.role.secret_id().await?);
        Ok(stage)
    }

    /// What the role may do with every key of the engine, as the README has it.
    pub(crate) async fn allow(&self, what: &[&str]) -> Result<()> {
        let paths = ["keys/*", "encrypt/*", "decrypt/*", "keys/kms/rotate"];
        let paths = paths.map(|path| format!("{}/{path}", self.name));
        let can = |word| what.contains(&word);
        let rules: [(&str, &[&str]); 4] = [
            (&paths[0], if can("read") { &["read"] } else { &["deny"] }),
            (
                &paths[1],
                match (can("encrypt"), can("create")) {
                    (true, true) => &["create", "update"],
                    (true, false) => &["update"],
                    _ => &["deny"],
                },
            ),
            (&paths[2], if can("decrypt") { &["update"] } else { &["deny"] }),
            (&paths[3], if can("rotate") { &["update"] } else { &["deny"] }),
        ];
        self.bao.policy(&self.name, &rules).await
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
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

    /// The endpoint of a key.
    pub(crate) fn endpoint(&self, id: u64) -> String {
        format!("unix://{}", self.path(&format!("kms-{id}.sock")).display())
    }

    /// A key of the configuration, with AppRole.
    pub(crate) fn app_role_key(&self, id: u64, key: &TransitKey) -> Value {
        let way = json!({"appRole": {
            "mount": self.name, "roleId": self.role.role_id, "secretIdFile": self.path("secret-id"),
        }});
        self.key_with(id, key, &way)
    }

    /// A key of the configuration, with any credentials.
    pub(crate) fn key_with(&self, id: u64, key: &TransitKey, credentials: &Value) -> Value {
        json!({
            "id": id, "type": "vault", "listen": self.endpoint(id),
            "kek": {"mount": key.mount(), "key": key.name()},
            "settings": {"address": self.address, "tls": {"caFile": self.ca}},
            "credentials": credentials,
        })
    }

    /// The configuration of this stage's one key, with quick probes.
    pub(crate) fn document(&self) -> Value {
        quick(&[self.app_role_key(1, &self.key)])
    }

    /// Starts the plugin with [`document`](Self::document).
    pub(crate) async fn serve(&self) -> Served {
        self.serve_document(&self.document()).await
    }

    /// Starts the plugin and waits until it is ready.
    pub(crate) async fn serve_document(&self, document: &Value) -> Served {
        let mut served = self.spawn(document).await;
        served.plugin.wait_ready().await.unwrap();
        served
    }

    /// Starts the plugin without waiting for readiness.
    pub(crate) async fn spawn(&self, document: &Value) -> Served {
        let (dir, program) = (self.scratch.path(), Path::new(binary()));
        let plugin = VaultPlugin::spawn_program(program, dir, &self.name, document).await.unwrap();
        self.served(plugin).await
    }

    /// Another process with the same key, as another replica has it, on a socket of its own.
    pub(crate) async fn replica(&self) -> Served {
        let mut key = self.app_role_key(9, &self.key);
        let dir = self.scratch.subdir("replica").unwrap();
        let listen = format!("unix://{}", dir.join("kms.sock").display());
        key["listen"] = listen.as_str().into();
        let program = Path::new(binary());
        let spawned = VaultPlugin::spawn_program(program, &dir, "replica", &quick(&[key])).await;
        let mut plugin = spawned.unwrap();
        plugin.wait_ready().await.unwrap();
        Served { plugin, kms: KmsClient::connect(&listen).await.unwrap() }
    }

    /// Starts the plugin with any flags, and waits until Status is ok.
    pub(crate) async fn serve_flags(&self, flags: &[String]) -> Served {
        let flags: Vec<_> = flags.iter().map(Into::into).collect();
        let (dir, program) = (self.scratch.path(), Path::new(binary()));
        let plugin = VaultPlugin::with_arguments(program, dir, &self.name, &flags).await.unwrap();
        let mut served = self.served(plugin).await;
        served.wait_ok().await;
        served
    }

    async fn served(&self, mut plugin: VaultPlugin) -> Served {
        let endpoint = self.endpoint(1);
        let connected = plugin
            .process()
            .wait_until("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await);
        let kms = connected.await.unwrap();
        Served { plugin, kms }
    }

    /// A client of another key of this stage. It has time: where a call must end sooner than on a
    /// busy machine, the test says so.
    pub(crate) async fn kms(&self, id: u64) -> KmsClient {
        let endpoint = self.endpoint(id);
        let opened =
            eventually("it listens", PATIENCE, async || KmsClient::connect(&endpoint).await);
        opened.await.unwrap()
    }

    /// How often the audit log of the shared server has this path of the stage's engine.
    pub(crate) async fn asked(&self, verb: &str) -> usize {
        shared().await.audit().count(&self.key.path(verb)).unwrap()
    }

    /// How often somebody logged in by the stage's role.
    pub(crate) async fn logins(&self) -> usize {
        shared().await.audit().count(&self.role.login_path()).unwrap()
    }

    /// What the server knows of the tokens that it gave by these logins, and that still live.
    pub(crate) async fn tokens(&self) -> Result<Vec<Value>> {
        let path = self.role.login_path();
        let listed = self.bao.read(&format!("sys/leases/lookup/{path}?list=true")).await?;
        let names = listed["data"]["keys"].as_array().context("no keys")?;
        let mut tokens = Vec::new();
        for name in names.iter().filter_map(Value::as_str) {
            let order = json!({"lease_id": format!("{path}/{name}")});
            let mut known = self.bao.write("sys/leases/lookup", &order).await?;
            tokens.push(known["data"].take());
        }
        Ok(tokens)
    }
}

impl Stage {
    /// What the shared server has refused to do with the stage's engine, and why.
    pub(crate) async fn refusals(&self) -> Vec<String> {
        let all = shared().await.audit().all().unwrap();
        let engine = format!("{}/", self.name);
        let ours = all.into_iter().filter(|asked| asked.path.starts_with(&engine));
        ours.map(|asked| asked.error).filter(|error| !error.is_empty()).collect()
    }
}

/// A running plugin and a client of its key.
pub(crate) struct Served {
    pub(crate) plugin: VaultPlugin,
    pub(crate) kms: KmsClient,
}

impl Served {
    /// Kills it, starts it again and opens a new connection.
    pub(crate) async fn restart(&mut self, stage: &Stage) {
        self.plugin.respawn().await.unwrap();
        self.kms = stage.kms(1).await;
    }

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

    /// Waits until Status is an error, and gives it.
    pub(crate) async fn wait_bad(&mut self) -> Status {
        let kms = self.kms.clone();
        let bad = self.plugin.process().wait_until("Status is an error", PATIENCE, async || {
            match kms.status().await {
                Err(error) => Ok(error),
                Ok(status) => bail!("it is {status:?}"),
            }
        });
        bad.await.unwrap()
    }

    /// Waits until Status is an error with this in its text.
    pub(crate) async fn wait_bad_for(&mut self, code: Code, text: &str) {
        self.wait_bad_for_all(code, &[text]).await;
    }

    /// The same with several words. A probe that came too late on a busy machine says something
    /// else, until the next one.
    pub(crate) async fn wait_bad_for_all(&mut self, code: Code, words: &[&str]) {
        let kms = self.kms.clone();
        let what = format!("Status fails with {words:?}");
        let is_meant = |error: &Status| {
            error.code() == code && words.iter().all(|word| error.message().contains(word))
        };
        let bad =
            self.plugin.process().wait_until(&what, PATIENCE, async || match kms.status().await {
                Err(error) if is_meant(&error) => Ok(()),
                other => bail!("{other:?}"),
            });
        bad.await.unwrap();
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

    /// Waits until the log holds this.
    pub(crate) async fn logs(&mut self, text: &str) {
        let found = |line: &str| line.contains(text).then_some(());
        let what = format!("{text:?} is logged");
        self.plugin.process().wait_for_log(&what, PATIENCE, found).await.unwrap();
    }

    /// Waits until the log holds this so many times.
    pub(crate) async fn logs_times(&mut self, text: &str, times: usize) {
        let log = self.plugin.log_path();
        let what = format!("{text:?} is logged {times} times");
        let counted = self.plugin.process().wait_until(&what, PATIENCE, async || {
            let found = std::fs::read_to_string(&log)?.matches(text).count();
            ensure!(found >= times, "{found} times");
            Ok(())
        });
        counted.await.unwrap();
    }

    /// A number of its metrics: the sum over everything with these labels.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.plugin.metrics().await.unwrap().sum(name, labels)
    }
}

/// Between two rounds of a [`Pulse`], so that others can run too.
const PACE: Duration = Duration::from_millis(40);

/// Makes calls from now on until it is stopped: each must succeed.
pub(crate) struct Pulse {
    stop: tokio::sync::watch::Sender<bool>,
    calls: tokio::task::JoinHandle<Result<u64>>,
}

impl Pulse {
    pub(crate) fn start(kms: &KmsClient, sealed: &EncryptResponse) -> Self {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let (kms, sealed) = (kms.clone(), sealed.clone());
        let calls = tokio::spawn(async move {
            let mut calls = 0;
            loop {
                let ending = *stopped.borrow();
                let back = kms.decrypt(&sealed).await;
                let back = back.with_context(|| format!("decrypt {calls}"))?;
                ensure!(back == PLAINTEXT[..], "something else came back");
                kms.round_trip(PLAINTEXT).await.with_context(|| format!("encrypt {calls}"))?;
                kms.status().await.with_context(|| format!("status {calls}"))?;
                calls += 1;
                // At least one call comes after the order to stop.
                if ending {
                    return Ok(calls);
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
    env!("CARGO_BIN_EXE_sidekey-vault")
}

/// Runs the binary to its end.
pub(crate) fn run(args: &[String]) -> Output {
    let mut command = Command::new(binary());
    command.env_remove("RUST_BACKTRACE").args(args).stdin(Stdio::null()).output().unwrap()
}

/// Asserts the code of a failure and words of its text.
#[track_caller]
pub(crate) fn failed<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, words: &[&str]) {
    let error = result.expect_err("it should have failed");
    says(&error, code, words);
}

/// The same of an error that is at hand.
#[track_caller]
pub(crate) fn says(error: &Status, code: Code, words: &[&str]) {
    assert_eq!(error.code(), code, "{error}");
    let text = error.message();
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    assert!(missing.is_empty(), "{missing:?} not in: {text}");
}
