//! `sidekey-aws` as a process under test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::aws::REGION;
use crate::binaries;
use crate::http::HttpClient;
use crate::local::admin_address;
use crate::metrics::Metrics;
use crate::process::{Process, Spec};
use crate::scratch::Scratch;
use crate::wait::PATIENCE;

/// The program's name.
pub const PROGRAM: &str = "sidekey-aws";

/// The configuration's name in the plugin's directory.
const CONFIG: &str = "config.yaml";

/// One running `sidekey-aws` with any number of keys.
#[derive(Debug)]
pub struct AwsPlugin {
    process: Process,
    dir: PathBuf,
    admin: SocketAddr,
}

impl AwsPlugin {
    /// Starts one with the Go plugin's flags, one key on [`socket`](Self::socket)
    /// `kms`, and credentials from the environment; waits until it is ready.
    pub async fn start(scratch: &Scratch, name: &str, key: &str, url: &str) -> Result<Self> {
        let socket = scratch.subdir(name)?.join("kms.sock");
        let args = [
            format!("--key={key}"),
            format!("--region={REGION}"),
            format!("--listen={}", socket.display()),
            "--health-port=127.0.0.1:0".to_owned(),
        ];
        let env = [
            ("AWS_ENDPOINT_URL", url),
            ("AWS_ACCESS_KEY_ID", "flags"),
            ("AWS_SECRET_ACCESS_KEY", "secret-of-flags"),
        ];
        let mut plugin = Self::spawn(scratch, name, &args, &env).await?;
        plugin.wait_ready().await?;
        Ok(plugin)
    }

    /// Starts one with a configuration; what it leaves out of `admin` is filled
    /// in. Does not wait for readiness.
    pub async fn configured(
        scratch: &Scratch,
        name: &str,
        config: &Value,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let path = Self::write_config(&scratch.subdir(name)?, config)?;
        Self::spawn(scratch, name, &[format!("--config={}", path.display())], env).await
    }

    /// Starts one with any arguments but the admin address, and no environment
    /// but this. Does not wait for readiness.
    pub async fn spawn(
        scratch: &Scratch,
        name: &str,
        args: &[String],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let program = binaries::path_async(PROGRAM).await?;
        Self::launch(&program, &scratch.subdir(name)?, args, env).await
    }

    /// The same with any build of the program, its log in `dir`.
    pub async fn launch(
        program: &Path,
        dir: &Path,
        args: &[String],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let mut spec = Spec::new(PROGRAM, program, dir.join("plugin.log"))
            .args(args)
            .env_clear()
            // No credentials file but the test's own is ever found.
            .env("HOME", dir);
        if !args.iter().any(|arg| arg.starts_with("--config")) {
            spec = spec.args(["--admin", "127.0.0.1:0"]);
        }
        for (name, value) in env {
            spec = spec.env(name, value);
        }
        let mut process = spec.start()?;
        let admin = wait_admin(&mut process).await?;
        Ok(Self { process, dir: dir.to_owned(), admin })
    }

    /// Where a key's socket lies by the name that it was given.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.sock"))
    }

    /// A key's endpoint, as EncryptionConfiguration writes it.
    pub fn endpoint(&self, name: &str) -> String {
        format!("unix://{}", self.socket(name).display())
    }

    /// Writes the configuration where [`configured`](Self::configured) does, in
    /// place, and tells where; does not wait.
    pub fn write_config(dir: &Path, config: &Value) -> Result<PathBuf> {
        let path = dir.join(CONFIG);
        write(&path, config)?;
        Ok(path)
    }

    /// Where its sockets and its log lie.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its admin server, which moves when it restarts.
    pub fn admin(&self) -> HttpClient {
        HttpClient::plain(self.admin)
    }

    /// The process, to be paused and killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts it again with the same files (kills it first if it runs) and
    /// waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.admin = wait_admin(&mut self.process).await?;
        self.wait_ready().await
    }

    /// Waits until `/readyz` is good.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let admin = self.admin();
        let ready = async || admin.get("/readyz").await?.ok().map(drop);
        self.process.wait_until("it is ready", PATIENCE, ready).await
    }

    /// Waits until `/status` is as `seen` wants it.
    pub async fn wait_status<T>(
        &mut self,
        what: &str,
        mut seen: impl FnMut(&Value) -> Result<T>,
    ) -> Result<T> {
        let admin = self.admin();
        let asked = async || seen(&admin.get("/status").await?.ok()?.json()?);
        self.process.wait_until(what, PATIENCE, asked).await
    }

    /// Its `/status`.
    pub async fn status(&self) -> Result<Value> {
        self.admin().get("/status").await?.ok()?.json()
    }

    /// The hash of the key_id that its first key announces now.
    pub async fn key_id_hash(&self) -> Result<String> {
        let status = self.status().await?;
        let hash = status["keys"][0]["key_id_hash"].as_str();
        Ok(hash.with_context(|| format!("/status has no key_id_hash: {status}"))?.to_owned())
    }

    /// Waits until its first key announces another key_id than `old`, and tells it.
    pub async fn wait_key_id_moves(&mut self, old: &str) -> Result<String> {
        self.wait_status("key_id moves", |status| {
            let hash = status["keys"][0]["key_id_hash"].as_str().context("no key_id_hash")?;
            ensure!(hash != old, "it is still {old}");
            Ok(hash.to_owned())
        })
        .await
    }

    /// A scrape of its `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics> {
        Metrics::parse(&self.admin().get("/metrics").await?.ok()?.text())
    }
}

fn write(path: &Path, config: &Value) -> Result<()> {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        fields.entry("admin").or_insert_with(|| "127.0.0.1:0".into());
    }
    std::fs::write(path, config.to_string())
        .with_context(|| format!("cannot write {}", path.display()))
}

async fn wait_admin(process: &mut Process) -> Result<SocketAddr> {
    process.wait_for_log("it logs its admin address", PATIENCE, admin_address).await
}
