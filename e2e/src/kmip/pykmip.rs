//! PyKMIP as a process under test, and its client for the owner of keys.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::kmip::Identities;
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::python::{PYKMIP, Python};
use crate::scratch::Scratch;
use crate::wait::PATIENCE;

const LAUNCHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/pykmip.py");

pub(super) async fn install() -> Result<()> {
    Python::with(&PYKMIP).await.map(drop)
}

/// A running PyKMIP: TLS 1.2 alone, and a client's common name is who it is.
pub struct PyKmip {
    process: Process,
    python: Python,
    port: Port,
    identities: Identities,
}

impl PyKmip {
    /// Starts one, and waits until it listens.
    pub async fn start(scratch: &Scratch, name: &str) -> Result<Self> {
        let python = Python::with(&PYKMIP).await?;
        let dir = scratch.subdir(name)?;
        let policies = scratch.subdir(&format!("{name}/policies"))?;
        let identities = Identities::new(&dir)?;
        let port = Port::free()?;
        let (config, shown) =
            (dir.join("server.conf"), |path: &std::path::Path| path.display().to_string());
        let text = format!(
            "[server]\nhostname=127.0.0.1\nport={}\ncertificate_path={}\nkey_path={}\nca_path={}\n\
             auth_suite=TLS1.2\nenable_tls_client_auth=True\npolicy_path={}\ndatabase_path={}\n",
            port.number(),
            shown(&identities.server.certificate),
            shown(&identities.server.key),
            shown(identities.ca()),
            shown(&policies),
            shown(&dir.join("database")),
        );
        std::fs::write(&config, text)?;
        let process = Spec::new(format!("pykmip {name}"), &python.program, dir.join("server.out"))
            .args(["-B", LAUNCHER, "serve"])
            .arg(config)
            .arg(dir.join("server.log"))
            .env("PYTHONPATH", &python.packages)
            .start()?;
        let mut server = Self { process, python, port, identities };
        let address = server.address();
        let listens = async || Ok(TcpStream::connect(address).await.map(drop)?);
        server.process.wait_until("it listens", PATIENCE, listens).await?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its certificates.
    pub fn identities(&self) -> &Identities {
        &self.identities
    }

    /// Calls methods of PyKMIP's own client, such as `["create", "kms"]`, as the owner of all keys.
    pub async fn owner(&self, calls: &[Value]) -> Result<Vec<Value>> {
        let client = self.identities.client();
        let mut child = Command::new(&self.python.program)
            .args(["-B", LAUNCHER, "owner", &self.port.number().to_string()])
            .args([&client.certificate, &client.key])
            .arg(self.identities.ca())
            .env("PYTHONPATH", &self.python.packages)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let lines: String = calls.iter().map(|call| format!("{call}\n")).collect();
        child.stdin.take().context("no stdin")?.write_all(lines.as_bytes()).await?;
        let ended = child.wait_with_output().await?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "PyKMIP's client: {said}");
        // What it says of configuration files that it has not found stands before.
        let answers = String::from_utf8(ended.stdout)?;
        let answers = answers.lines().filter_map(|line| serde_json::from_str(line).ok());
        Ok(answers.collect())
    }
}
