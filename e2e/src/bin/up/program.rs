//! One of our programs, running with a configuration file.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;
use sidekey_e2e::binaries;
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::local::admin_address;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::wait::PATIENCE;

/// A running program and its admin server.
pub(crate) struct Program {
    pub(crate) process: Process,
    admin: SocketAddr,
}

impl Program {
    /// Starts it, and waits until it is ready.
    pub(crate) async fn start(name: &'static str, config: &Path, log: &Path) -> Result<Self> {
        let path = binaries::path_async(name).await?;
        let mut process = Spec::new(name, path, log).arg("--config").arg(config).start()?;
        let what = "it logs its admin address";
        let admin = process.wait_for_log(what, PATIENCE, admin_address).await?;
        let http = HttpClient::plain(admin);
        let ready = async || http.get("/readyz").await?.ok().map(drop);
        process.wait_until("it is ready", PATIENCE, ready).await?;
        Ok(Self { process, admin })
    }

    /// Where its admin server is.
    pub(crate) fn admin(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// Waits until its `/status` is as `seen` wants it.
    pub(crate) async fn wait_status(
        &mut self,
        what: &str,
        seen: impl Fn(&Value) -> Result<()>,
    ) -> Result<()> {
        let http = HttpClient::plain(self.admin);
        let asked = async || seen(&http.get("/status").await?.ok()?.json()?);
        self.process.wait_until(what, PATIENCE, asked).await
    }
}
