//! `sidekey-gcp` as a process under test.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use crate::fakes::Fake;
use crate::fakes::gcp::{DECRYPT, ENCRYPT, Gcp, LOOK};
use crate::process::Spec;
use crate::scratch::Scratch;
use crate::sidecar::{Sidecar, write_config};

/// The program's name.
pub const PROGRAM: &str = "sidekey-gcp";

/// The service account that the tests use.
pub const ACCOUNT: &str = "kms@example.iam.gserviceaccount.com";

/// A fake with one key, and a service account that may use it.
pub struct GcpBackend {
    /// The fake.
    pub fake: Fake<Gcp>,
    /// The key's name.
    pub key: String,
    /// The file of the account's key.
    pub credentials: PathBuf,
}

impl GcpBackend {
    /// Starts it.
    pub async fn start(scratch: &Scratch) -> Result<Self> {
        let fake = Fake::start(scratch, "gcp", Gcp::default()).await?;
        let credentials = scratch.subdir("gcp")?.join("credentials.json");
        let (key, file) = {
            let mut service = fake.service();
            service.allow(ACCOUNT, &[ENCRYPT, DECRYPT, LOOK]);
            (service.create_key("kms"), service.tokens.service_account(ACCOUNT, &fake.url()))
        };
        std::fs::write(&credentials, file.to_string())?;
        Ok(Self { fake, key, credentials })
    }

    /// A key of a configuration.
    pub fn document(&self, id: u64, key: &str, endpoint: &str) -> Value {
        json!({
            "id": id, "type": "gcp", "listen": endpoint, "kek": {"key": key},
            "settings": {"endpoint": self.fake.url(), "caFile": self.fake.ca()},
            "credentials": {"file": self.credentials},
        })
    }
}

/// One running `sidekey-gcp`.
#[derive(Debug)]
pub struct GcpPlugin {
    sidecar: Sidecar,
    dir: PathBuf,
}

impl GcpPlugin {
    /// Starts one with a configuration, which is written into `dir`, and no environment but this.
    /// Does not wait for readiness.
    pub async fn spawn(
        program: &Path,
        dir: &Path,
        document: &Value,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let config = dir.join("config.yaml");
        write_config(&config, document)?;
        Self::launch(program, dir, &[format!("--config={}", config.display())], env).await
    }

    /// The same with any arguments that make it serve an admin address.
    pub async fn launch(
        program: &Path,
        dir: &Path,
        args: &[String],
        env: &[(&str, &str)],
    ) -> Result<Self> {
        // No credentials file but the test's own is ever found.
        let mut spec = Spec::new(PROGRAM, program, dir.join("plugin.log"))
            .args(args)
            .env_clear()
            .env("HOME", dir);
        for (name, value) in env {
            spec = spec.env(name, value);
        }
        Ok(Self { sidecar: Sidecar::start(spec).await?, dir: dir.to_owned() })
    }

    /// Replaces its configuration; does not wait.
    pub fn reconfigure(&self, document: &Value) -> Result<()> {
        write_config(&self.dir.join("config.yaml"), document)
    }

    /// Its log, of all its starts.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("plugin.log")
    }
}

impl Deref for GcpPlugin {
    type Target = Sidecar;

    fn deref(&self) -> &Sidecar {
        &self.sidecar
    }
}

impl DerefMut for GcpPlugin {
    fn deref_mut(&mut self) -> &mut Sidecar {
        &mut self.sidecar
    }
}
