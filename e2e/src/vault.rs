//! `sidekey-vault` as a process under test.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::binaries;
use crate::http::HttpClient;
use crate::local::admin_address;
use crate::metrics::Metrics;
use crate::process::{Process, Spec};
use crate::wait::PATIENCE;

/// The program's name.
pub const PROGRAM: &str = "sidekey-vault";

/// Its log's name.
const LOG: &str = "plugin.log";

/// One running `sidekey-vault`.
#[derive(Debug)]
pub struct VaultPlugin {
    process: Process,
    dir: PathBuf,
    admin: SocketAddr,
}

impl VaultPlugin {
    /// Starts one with a configuration of several keys, waits until all of
    /// them are ready. Its files lie in `dir`, `admin` is filled in.
    pub async fn start(dir: &Path, name: &str, document: &Value) -> Result<Self> {
        let mut plugin = Self::spawn(dir, name, document).await?;
        plugin.wait_ready().await?;
        Ok(plugin)
    }

    /// The same without waiting for readiness, for those whose Vault is not
    /// there yet.
    pub async fn spawn(dir: &Path, name: &str, document: &Value) -> Result<Self> {
        let program = binaries::path_async(PROGRAM).await?;
        Self::spawn_program(&program, dir, name, document).await
    }

    /// The same with another build of the program.
    pub async fn spawn_program(
        program: &Path,
        dir: &Path,
        name: &str,
        document: &Value,
    ) -> Result<Self> {
        let config = dir.join("config.yaml");
        write_config(&config, document)?;
        Self::with_arguments(program, dir, name, &["--config".into(), config.into()]).await
    }

    /// Starts one with any command line that makes it serve an admin address.
    pub async fn with_arguments(
        program: &Path,
        dir: &Path,
        name: &str,
        arguments: &[OsString],
    ) -> Result<Self> {
        let spec = Spec::new(format!("{PROGRAM} {name}"), program, dir.join(LOG));
        let mut process = spec.args(arguments).start()?;
        let admin = wait_admin(&mut process).await?;
        Ok(Self { process, dir: dir.to_owned(), admin })
    }

    /// Replaces its configuration; does not wait.
    pub fn reconfigure(&self, document: &Value) -> Result<()> {
        write_config(&self.dir.join("config.yaml"), document)
    }

    /// Its log, of all its starts.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// Its admin server, which moves when it restarts.
    pub fn admin(&self) -> HttpClient {
        HttpClient::plain(self.admin)
    }

    /// The process, to be paused and killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts it again with the same files (kills it first if it runs), without
    /// waiting for readiness.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.admin = wait_admin(&mut self.process).await?;
        Ok(())
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
        hash_of(&self.status().await?)
    }

    /// Waits until its first key announces another key_id than `old`.
    pub async fn wait_key_id_moves(&mut self, old: &str) -> Result<String> {
        self.wait_status("key_id moves", |status| {
            let hash = hash_of(status)?;
            ensure!(hash != old, "it is still {old}");
            Ok(hash)
        })
        .await
    }

    /// A scrape of its `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics> {
        Metrics::parse(&self.admin().get("/metrics").await?.ok()?.text())
    }
}

fn hash_of(status: &Value) -> Result<String> {
    let hash = status["keys"][0]["key_id_hash"].as_str();
    Ok(hash.with_context(|| format!("/status has no key_id_hash: {status}"))?.to_owned())
}

fn write_config(path: &Path, document: &Value) -> Result<()> {
    let mut document = document.clone();
    document["admin"] = "127.0.0.1:0".into();
    let fresh = path.with_extension("new");
    let write = || {
        std::fs::write(&fresh, document.to_string())?;
        std::fs::rename(&fresh, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

async fn wait_admin(process: &mut Process) -> Result<SocketAddr> {
    process.wait_for_log("it logs its admin address", PATIENCE, admin_address).await
}
