//! One of our programs under test: its process, and the admin server that it announces.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::http::HttpClient;
use crate::metrics::Metrics;
use crate::process::{Process, Spec};
use crate::wait::PATIENCE;

/// A running provider or shim, whose admin server is on a port of its own choice.
#[derive(Debug)]
pub struct Sidecar {
    process: Process,
    admin: SocketAddr,
}

impl Sidecar {
    /// Starts it, and waits until it has announced its admin server, not until it is ready.
    pub async fn start(spec: Spec) -> Result<Self> {
        let mut process = spec.start()?;
        let admin = wait_admin(&mut process).await?;
        Ok(Self { process, admin })
    }

    /// Its admin server, which moves when it restarts.
    pub fn admin(&self) -> HttpClient {
        HttpClient::plain(self.admin)
    }

    /// Where that is.
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// The process, to be paused and killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts it again with the same files (kills it first if it runs) and waits until
    /// it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.respawn().await?;
        self.wait_ready().await
    }

    /// The same without waiting for readiness.
    pub async fn respawn(&mut self) -> Result<()> {
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

    /// The hash of the key_id that it announces now; a provider's is that of its first key.
    pub async fn key_id_hash(&self) -> Result<String> {
        hash_of(&self.status().await?)
    }

    /// Waits until it announces another key_id than `old`, and tells its hash.
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

/// The address in the line by which our binaries announce their admin server.
pub fn admin_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("address=").filter(|_| line.contains("admin listening"))?;
    rest.split_whitespace().next()?.trim_matches('"').parse().ok()
}

/// Writes a configuration with an admin server on any port, in the place of the one before.
pub(crate) fn write_config(path: &Path, document: &Value) -> Result<()> {
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

/// A shim's own, or that of a provider's first key.
fn hash_of(status: &Value) -> Result<String> {
    let hash = status["key_id_hash"].as_str().or_else(|| status["keys"][0]["key_id_hash"].as_str());
    Ok(hash.with_context(|| format!("/status has no key_id_hash: {status}"))?.to_owned())
}
