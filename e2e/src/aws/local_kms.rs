//! local-kms as a process under test.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;

use crate::aws::{ACCOUNT, KmsOwner, REGION};
use crate::golang;
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::wait::PATIENCE;

/// A running local-kms: another implementation of KMS, whose keys outlive it.
#[derive(Debug)]
pub struct LocalKms {
    process: Process,
    port: Port,
}

impl LocalKms {
    /// Starts one, its keys and its log in `dir`, and waits until it answers.
    pub async fn start(dir: &Path) -> Result<Self> {
        let program = golang::LOCAL_KMS.build_async().await?;
        let port = Port::free()?;
        let process = Spec::new("local-kms", program, dir.join("local-kms.log"))
            .arg(port.address().to_string())
            .args([ACCOUNT, REGION])
            .arg(dir.join("local-kms"))
            .start()?;
        let mut kms = Self { process, port };
        let owner = kms.owner();
        let ready = async || owner.call("ListKeys", serde_json::json!({})).await.map(drop);
        kms.process.wait_until("it answers", PATIENCE, ready).await?;
        Ok(kms)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// As AWS_ENDPOINT_URL wants it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The one who owns the keys.
    pub fn owner(&self) -> KmsOwner {
        KmsOwner::new(self.address())
    }

    /// The process, to be paused, killed and started again.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
