//! `sidekey-okms` before a fake of OKMS: what its own tests, and those of all vendors, start.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::fakes::Fake;
use crate::fakes::okms::{Okms, USER};
use crate::pki::{Authority, CertificateFiles};
use crate::process::Spec;
use crate::scratch::Scratch;
use crate::sidecar::{Sidecar, write_config};

/// The program's name.
pub const PROGRAM: &str = "sidekey-okms";
/// The name in the access certificate that the tests use.
pub const CLIENT: &str = "control-plane.example";

/// A fake with one key, and an access certificate that may use it.
pub struct OkmsBackend {
    /// The fake.
    pub fake: Fake<Okms>,
    /// The key's id.
    pub key: String,
    /// Who signs access certificates.
    pub authority: Authority,
    /// The access certificate.
    pub certificate: CertificateFiles,
}

impl OkmsBackend {
    /// Starts it; the key has this label.
    pub async fn start(scratch: &Scratch, label: &str) -> Result<Self> {
        let authority = Authority::new("access certificates")?;
        let certificate = authority.peer(&scratch.subdir("okms-client")?, "client", &[CLIENT])?;
        let fake = Fake::start_mutual(scratch, "okms", &authority, Okms::default()).await?;
        let key = fake.service().create(label);
        fake.service().allow(CLIENT, &USER);
        Ok(Self { fake, key, authority, certificate })
    }

    /// `kek` of a key by its id.
    pub fn kek(&self, key: &str) -> Value {
        json!({"okmsId": self.fake.service().domain, "key": key})
    }

    /// `kek` of whatever key has a label.
    pub fn labelled(&self, label: &str) -> Value {
        json!({"okmsId": self.fake.service().domain, "label": label})
    }

    /// A key of a configuration.
    pub fn document(&self, id: u64, kek: &Value, endpoint: &str) -> Value {
        json!({
            "id": id, "type": "okms", "listen": endpoint, "kek": kek,
            "settings": {"address": self.fake.url(), "caFile": self.fake.ca()},
            "credentials": {
                "certFile": self.certificate.certificate, "keyFile": self.certificate.key,
            },
        })
    }
}

/// Starts the program with a configuration, which is written into `dir`, and no environment. Does not
/// wait for readiness.
pub async fn spawn(program: &Path, dir: &Path, document: &Value) -> Result<Sidecar> {
    let config = dir.join("config.yaml");
    write_config(&config, document)?;
    let spec = Spec::new(PROGRAM, program, dir.join("plugin.log"));
    Sidecar::start(spec.env_clear().arg(format!("--config={}", config.display()))).await
}
