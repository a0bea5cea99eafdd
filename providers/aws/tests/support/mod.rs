//! The real binary, the AWS it talks to, and the ways to look at both.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Method;
use serde_json::json;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::aws::{AwsPlugin, KmsOwner, Moto, REGION};
use sidekey_e2e::gateway::Gateway;
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::{Scratch, eventually};
use tokio::sync::OnceCell;

/// Nothing here takes longer, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long passing faults are borne, unless a test says otherwise.
pub(crate) const COAST: Duration = Duration::from_secs(9);

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: [u8; 32] = *b"Zq3!promised-never-to-be-seen#7x";

/// The static credentials of most tests.
pub(crate) const ACCESS_KEY: &str = "AKIATESTTESTTEST";
pub(crate) const SECRET_KEY: &str = "wJalrXUtnFEMI-never-to-be-seen-K7MDENG";

/// The server of all tests that neither change nor count what it does for others.
static SHARED: OnceCell<&Moto> = OnceCell::const_new();

/// Servers that one test at a time has to itself, and that none has now.
static IDLE: Mutex<Vec<&Moto>> = Mutex::new(Vec::new());

/// A key of a moto, and a gateway in front of it that counts and can be hurt.
///
/// Dropped, and so ended, in this order.
pub(crate) struct Aws {
    pub(crate) gateway: Gateway,
    pub(crate) moto: &'static Moto,
    _lease: Option<Lease>,
    pub(crate) owner: KmsOwner,
    pub(crate) key: String,
    pub(crate) scratch: Scratch,
}

/// A server that no other test has until this is dropped.
struct Lease(&'static Moto);

impl Lease {
    /// One that has served before, and forgets what it was told, or a new one.
    async fn any() -> Self {
        let idle = idle().pop();
        match idle {
            Some(moto) => {
                forget(moto).await;
                Self(moto)
            }
            None => Self::fresh().await,
        }
    }

    async fn fresh() -> Self {
        Self(start().await)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        idle().push(self.0);
    }
}

fn idle() -> MutexGuard<'static, Vec<&'static Moto>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts one that lives as long as this process, with which the watchdog ends it.
async fn start() -> &'static Moto {
    let scratch = Scratch::new("moto").unwrap();
    let moto = Moto::start(scratch.path()).await.unwrap();
    moto.check_signatures(ACCESS_KEY, SECRET_KEY).await.unwrap();
    &Box::leak(Box::new((scratch, moto))).1
}

/// Ends whatever a former test has asked for. Keys, sessions and counts stay.
async fn forget(moto: &Moto) {
    let nothing = json!({
        "faults": [], "tokens": null, "access_keys": null, "session_seconds": null,
        "material_ids": true,
    });
    let control = HttpClient::plain(moto.address());
    control.send(Method::PUT, "/control", Some(&nothing)).await.unwrap().ok().unwrap();
}

impl Aws {
    /// On the server that is shared: what a test does there must concern its own key alone.
    pub(crate) async fn start(name: &str) -> Self {
        Self::on(SHARED.get_or_init(start).await, None, name).await
    }

    /// On a server that no other test has at the time, for faults of the whole server.
    pub(crate) async fn alone(name: &str) -> Self {
        Self::leased(Lease::any().await, name).await
    }

    /// On a server that nobody has called before, for tests that count every call.
    pub(crate) async fn fresh(name: &str) -> Self {
        Self::leased(Lease::fresh().await, name).await
    }

    async fn leased(lease: Lease, name: &str) -> Self {
        Self::on(lease.0, Some(lease), name).await
    }

    async fn on(moto: &'static Moto, lease: Option<Lease>, name: &str) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let gateway = Gateway::start(moto.address()).await.unwrap();
        let owner = moto.owner();
        let key = owner.create_key().await.unwrap();
        Self { gateway, moto, _lease: lease, owner, key, scratch }
    }

    /// Where the plugin is to find AWS.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.gateway.address())
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.scratch.subdir("plugin").unwrap()
    }

    /// The Go plugin's flags for that key on `kms.sock`, and quick probes.
    pub(crate) fn flags(&self, key: &str) -> Vec<String> {
        vec![
            format!("--key={key}"),
            format!("--region={REGION}"),
            format!("--listen={}", self.dir().join("kms.sock").display()),
            "--probe-interval=300ms".to_owned(),
            "--probe-timeout=2s".to_owned(),
            format!("--coast={}s", COAST.as_secs()),
        ]
    }

    /// Starts the plugin with these flags and static credentials, and waits until it is ready.
    pub(crate) async fn serve_with(&self, flags: &[String]) -> AwsPlugin {
        let mut plugin = self.launch(flags, &[]).await;
        plugin.wait_ready().await.unwrap();
        plugin
    }

    /// The same with the usual flags.
    pub(crate) async fn serve(&self) -> AwsPlugin {
        self.serve_with(&self.flags(&self.key)).await
    }

    /// Starts the plugin with static credentials and more, and waits for nothing.
    pub(crate) async fn launch(&self, flags: &[String], more: &[(&str, &str)]) -> AwsPlugin {
        let url = self.url();
        let mut env = vec![
            ("AWS_ENDPOINT_URL", url.as_str()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ];
        env.extend(more);
        launch(&self.dir(), flags, &env).await
    }

    /// Starts the plugin with flags and this environment alone.
    pub(crate) async fn launch_bare(&self, flags: &[String], env: &[(&str, &str)]) -> AwsPlugin {
        let url = self.url();
        let mut all = vec![("AWS_ENDPOINT_URL", url.as_str())];
        all.extend(env);
        launch(&self.dir(), flags, &all).await
    }
}

/// The binary under test.
pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_sidekey-aws"))
}

pub(crate) async fn launch(dir: &Path, flags: &[String], env: &[(&str, &str)]) -> AwsPlugin {
    let mut flags = flags.to_vec();
    // The Go plugin's own is :8080 on all addresses.
    if !flags.iter().any(|flag| flag.starts_with("--health-port") || flag.starts_with("--config")) {
        flags.push("--health-port=127.0.0.1:0".to_owned());
    }
    AwsPlugin::launch(binary(), dir, &flags, env).await.unwrap()
}

/// A client of the key on this socket, as soon as it is there. It has time: where a call must end
/// sooner than on a busy machine, the test says so.
pub(crate) async fn kms(plugin: &AwsPlugin, socket: &str) -> KmsClient {
    let endpoint = plugin.endpoint(socket);
    until("it listens", async || KmsClient::connect(&endpoint).await).await
}

/// Waits until Status says ok on this socket, and gives the key_id.
pub(crate) async fn healthy(plugin: &AwsPlugin, socket: &str) -> String {
    let client = kms(plugin, socket).await;
    until("Status is ok", async || {
        let status = client.status().await?;
        anyhow::ensure!(status.healthz == "ok" && status.version == "v2", "{status:?}");
        Ok(status.key_id)
    })
    .await
}

/// Waits until Status fails, and gives the error.
pub(crate) async fn sick(client: &KmsClient) -> tonic::Status {
    until("Status fails", async || match client.status().await {
        Ok(status) => anyhow::bail!("it is {status:?}"),
        Err(error) => Ok(error),
    })
    .await
}

/// Waits for something to come true.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> anyhow::Result<T>) -> T {
    eventually(what, PATIENCE, look).await.unwrap()
}

/// What the Go plugin would have stored: its format byte, then what KMS answered.
pub(crate) async fn written_by_the_go_plugin(
    owner: &KmsOwner,
    arn: &str,
    key_id: &str,
    context: &[(&str, &str)],
) -> EncryptResponse {
    let mut ciphertext = b"1".to_vec();
    ciphertext.extend(owner.encrypt(arn, &PLAINTEXT, context).await.unwrap());
    EncryptResponse {
        ciphertext: ciphertext.into(),
        key_id: key_id.to_owned(),
        annotations: Default::default(),
    }
}
