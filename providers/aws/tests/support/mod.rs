//! The real binary, the AWS it talks to, and the ways to look at both.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::aws::{AwsPlugin, KmsOwner, Moto, REGION};
use sidekey_e2e::gateway::Gateway;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::{Scratch, eventually};

/// Nothing here takes longer, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the tests wrap: no run of these bytes occurs elsewhere by chance.
pub(crate) const PLAINTEXT: [u8; 32] = *b"Zq3!promised-never-to-be-seen#7x";

/// The static credentials of most tests.
pub(crate) const ACCESS_KEY: &str = "AKIATESTTESTTEST";
pub(crate) const SECRET_KEY: &str = "wJalrXUtnFEMI-never-to-be-seen-K7MDENG";

/// A moto with one key, and a gateway in front of it that counts and can be hurt.
///
/// Dropped, and so ended, in this order.
pub(crate) struct Aws {
    pub(crate) gateway: Gateway,
    pub(crate) moto: Moto,
    pub(crate) owner: KmsOwner,
    pub(crate) key: String,
    pub(crate) scratch: Scratch,
}

impl Aws {
    pub(crate) async fn start(name: &str) -> Self {
        let scratch = Scratch::new(name).unwrap();
        let moto = Moto::start(scratch.path()).await.unwrap();
        let gateway = Gateway::start(moto.address()).await.unwrap();
        moto.check_signatures(ACCESS_KEY, SECRET_KEY).await.unwrap();
        let owner = moto.owner();
        let key = owner.create_key().await.unwrap();
        Self { gateway, moto, owner, key, scratch }
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
            "--probe-interval=1s".to_owned(),
            "--probe-timeout=2s".to_owned(),
            "--coast=3s".to_owned(),
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

/// A client of the key on this socket, as soon as it is there.
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
