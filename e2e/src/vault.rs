//! `sidekey-vault` as a process under test.

use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use crate::binaries;
use crate::process::Spec;
use crate::sidecar::{Sidecar, write_config};

/// The program's name.
pub const PROGRAM: &str = "sidekey-vault";

/// Its log's name.
const LOG: &str = "plugin.log";

/// One running `sidekey-vault`.
#[derive(Debug)]
pub struct VaultPlugin {
    sidecar: Sidecar,
    dir: PathBuf,
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
        let sidecar = Sidecar::start(spec.args(arguments)).await?;
        Ok(Self { sidecar, dir: dir.to_owned() })
    }

    /// Replaces its configuration; does not wait.
    pub fn reconfigure(&self, document: &Value) -> Result<()> {
        write_config(&self.dir.join("config.yaml"), document)
    }

    /// Its log, of all its starts.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join(LOG)
    }
}

impl Deref for VaultPlugin {
    type Target = Sidecar;

    fn deref(&self) -> &Sidecar {
        &self.sidecar
    }
}

impl DerefMut for VaultPlugin {
    fn deref_mut(&mut self) -> &mut Sidecar {
        &mut self.sidecar
    }
}
