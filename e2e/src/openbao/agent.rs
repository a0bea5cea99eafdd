//! OpenBao's own proxy, as it runs beside a workload: it logs in by itself and
//! adds its token to what comes in on a unix socket without TLS.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::OpenBao;
use super::auth::AppRole;
use crate::golang::OPENBAO;
use crate::process::{Process, Spec};
use crate::wait::PATIENCE;

/// A running proxy.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    socket: PathBuf,
}

impl Agent {
    /// Starts one in `dir` that logs in by a role of this AppRole mount.
    pub async fn start(dir: &Path, server: &OpenBao, mount: &str, role: &AppRole) -> Result<Self> {
        let program = OPENBAO.build_async().await?;
        let path = |name: &str| dir.join(name).display().to_string();
        let socket = dir.join("agent.sock");
        fs::write(path("agent-role-id"), &role.role_id)?;
        fs::write(path("agent-secret-id"), role.secret_id().await?)?;
        let config = format!(
            r#"vault {{ address = "{}" ca_cert = "{}" }}
            auto_auth {{ method {{
                type = "approle"
                mount_path = "auth/{mount}"
                config = {{
                    role_id_file_path = "{}"
                    secret_id_file_path = "{}"
                    remove_secret_id_file_after_reading = false
                }}
            }} }}
            api_proxy {{ use_auto_auth_token = true }}
            listener "unix" {{ address = "{}" tls_disable = true }}
            "#,
            server.address(),
            server.ca().display(),
            path("agent-role-id"),
            path("agent-secret-id"),
            socket.display(),
        );
        fs::write(path("agent.hcl"), config).context("cannot write the proxy's configuration")?;
        let mut process = Spec::new("openbao proxy", program, dir.join("agent.log"))
            .arg("proxy")
            .arg(format!("-config={}", path("agent.hcl")))
            .start()?;
        let found = |line: &str| line.contains("authentication successful").then_some(());
        process.wait_for_log("it has logged in", PATIENCE, found).await?;
        Ok(Self { process, socket })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process, to be paused and killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
