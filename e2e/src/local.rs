//! `sidekey-local` as a process under test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::binaries;
use crate::http::HttpClient;
use crate::metrics::Metrics;
use crate::process::{Process, Spec};
use crate::scratch::Scratch;
use crate::wait::PATIENCE;

/// The program's name.
pub const PROGRAM: &str = "sidekey-local";

/// One running `sidekey-local` with one key.
#[derive(Debug)]
pub struct LocalPlugin {
    process: Process,
    socket: PathBuf,
    key_file: PathBuf,
    admin: SocketAddr,
}

impl LocalPlugin {
    /// Starts one with a new key, its files in a directory of `scratch`, and
    /// waits until it is ready.
    pub async fn start(scratch: &Scratch, name: &str) -> Result<Self> {
        let key_file = scratch.subdir(name)?.join("key");
        Self::with_key_file(scratch, name, &key_file).await
    }

    /// Starts one that shares a key file with others, as the plugins of
    /// several replicas do; makes the file if it is not there.
    pub async fn with_key_file(scratch: &Scratch, name: &str, key_file: &Path) -> Result<Self> {
        Self::in_directory(&scratch.subdir(name)?, name, key_file).await
    }

    /// Starts one with its socket and its log in a directory that stays.
    pub async fn in_directory(dir: &Path, name: &str, key_file: &Path) -> Result<Self> {
        let program = binaries::path_async(PROGRAM).await?;
        let socket = dir.join("kms.sock");
        let spec = Spec::new(format!("{PROGRAM} {name}"), program, dir.join("plugin.log"))
            .arg("--listen")
            .arg(format!("unix://{}", socket.display()))
            .arg("--key-file")
            .arg(key_file)
            .arg("--create-key")
            .args(["--admin", "127.0.0.1:0"]);
        let (mut process, key_file) = (spec.start()?, key_file.to_owned());
        let admin = wait_serving(&mut process).await?;
        Ok(Self { process, socket, key_file, admin })
    }

    /// Its endpoint, as EncryptionConfiguration writes it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its key file.
    pub fn key_file(&self) -> &Path {
        &self.key_file
    }

    /// Its admin server, which moves when it restarts.
    pub fn admin(&self) -> HttpClient {
        HttpClient::plain(self.admin)
    }

    /// The process, to be paused and killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts it again with the same files (kills it first if it runs).
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.admin = wait_serving(&mut self.process).await?;
        Ok(())
    }

    /// Its `/status`.
    pub async fn status(&self) -> Result<Value> {
        self.admin().get("/status").await?.ok()?.json()
    }

    /// The hash of the key_id that it announces now.
    pub async fn key_id_hash(&self) -> Result<String> {
        let status = self.status().await?;
        let hash = status["keys"][0]["key_id_hash"].as_str();
        Ok(hash.with_context(|| format!("/status has no key_id_hash: {status}"))?.to_owned())
    }

    /// A scrape of its `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics> {
        Metrics::parse(&self.admin().get("/metrics").await?.ok()?.text())
    }

    /// `sidekey-local rotate`: adds a key version, with which nobody writes yet,
    /// and tells its number.
    pub async fn rotate(&self) -> Result<u32> {
        let key_file = self.key_file.as_os_str();
        let args =
            ["rotate".as_ref(), "--key-file".as_ref(), key_file, "-o".as_ref(), "json".as_ref()];
        let said = binaries::run(PROGRAM, &args).await?.ok()?;
        let answer: Value = serde_json::from_str(&said.stdout)
            .with_context(|| format!("rotate printed no JSON: {}", said.stdout))?;
        let versions = answer["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let newest = versions.iter().filter_map(Value::as_u64).max();
        let newest = newest.and_then(|version| u32::try_from(version).ok());
        newest.with_context(|| format!("rotate printed no versions: {answer}"))
    }

    /// `sidekey-local activate`: writes with that version from now on.
    pub async fn activate(&self, version: u32) -> Result<()> {
        let (key_file, version) = (self.key_file.as_os_str(), version.to_string());
        let args = [
            "activate".as_ref(),
            "--key-file".as_ref(),
            key_file,
            "--version".as_ref(),
            version.as_ref(),
        ];
        binaries::run(PROGRAM, &args).await?.ok()?;
        Ok(())
    }

    /// Waits until it announces another key_id than `old`, and tells it.
    pub async fn wait_key_id_moves(&mut self, old: &str) -> Result<String> {
        let admin = self.admin();
        self.process
            .wait_until("key_id moves after a rotation", PATIENCE, async || {
                let status = admin.get("/status").await?.ok()?.json()?;
                let hash = status["keys"][0]["key_id_hash"].as_str().context("no key_id_hash")?;
                ensure!(hash != old, "it is still {old}");
                Ok(hash.to_owned())
            })
            .await
    }
}

/// Reads the admin address from the log, then waits for readiness.
async fn wait_serving(process: &mut Process) -> Result<SocketAddr> {
    let admin = process.wait_for_log("it logs its admin address", PATIENCE, admin_address).await?;
    let http = HttpClient::plain(admin);
    process
        .wait_until("it is ready", PATIENCE, async || {
            let ready = http.get("/readyz").await?;
            if ready.status != 200 {
                bail!("/readyz: {} {}", ready.status, ready.text());
            }
            Ok(())
        })
        .await?;
    Ok(admin)
}

/// The address in the line by which our binaries announce their admin server.
pub fn admin_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("address=").filter(|_| line.contains("admin listening"))?;
    rest.split_whitespace().next()?.trim_matches('"').parse().ok()
}
