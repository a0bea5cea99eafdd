//! `sidekey-local` as a process under test.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::binaries;
use crate::process::Spec;
use crate::scratch::Scratch;
use crate::sidecar::Sidecar;

/// The program's name.
pub const PROGRAM: &str = "sidekey-local";

/// One running `sidekey-local` with one key.
#[derive(Debug)]
pub struct LocalPlugin {
    sidecar: Sidecar,
    socket: PathBuf,
    key_file: PathBuf,
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
        let mut sidecar = Sidecar::start(spec).await?;
        sidecar.wait_ready().await?;
        Ok(Self { sidecar, socket, key_file: key_file.to_owned() })
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
}

impl Deref for LocalPlugin {
    type Target = Sidecar;

    fn deref(&self) -> &Sidecar {
        &self.sidecar
    }
}

impl DerefMut for LocalPlugin {
    fn deref_mut(&mut self) -> &mut Sidecar {
        &mut self.sidecar
    }
}
