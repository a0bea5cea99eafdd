//! `sidekey-aws` as a process under test.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::aws::REGION;
use crate::binaries;
use crate::process::Spec;
use crate::scratch::Scratch;
use crate::sidecar::Sidecar;

/// The program's name.
pub const PROGRAM: &str = "sidekey-aws";

/// The configuration's name in the plugin's directory.
const CONFIG: &str = "config.yaml";

/// One running `sidekey-aws` with any number of keys.
#[derive(Debug)]
pub struct AwsPlugin {
    sidecar: Sidecar,
    dir: PathBuf,
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
        Ok(Self { sidecar: Sidecar::start(spec).await?, dir: dir.to_owned() })
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
}

impl Deref for AwsPlugin {
    type Target = Sidecar;

    fn deref(&self) -> &Sidecar {
        &self.sidecar
    }
}

impl DerefMut for AwsPlugin {
    fn deref_mut(&mut self) -> &mut Sidecar {
        &mut self.sidecar
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
