//! KMIP servers: one on OVHcloud's kmip-go, with what PyKMIP lacks, and PyKMIP itself.

mod pykmip;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::{Value, json};

use crate::golang;
use crate::http::HttpClient;
use crate::pki::{Authority, CertificateFiles};
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::scratch::Scratch;
use crate::wait::PATIENCE;

pub use pykmip::PyKmip;

/// Installs and builds what the tests need, so that none of them waits for it.
pub async fn install() -> Result<()> {
    pykmip::install().await
}

/// Certificates of a server and of a client that it knows.
pub struct Identities {
    authority: Authority,
    ca: PathBuf,
    server: CertificateFiles,
    client: CertificateFiles,
}

/// A KMIP server on kmip-go; its keys outlive it.
pub struct KmipServer {
    process: Process,
    port: Port,
    control: Port,
    identities: Identities,
}

impl Identities {
    fn new(dir: &Path) -> Result<Self> {
        let authority = Authority::new("KMIP CA")?;
        let ca = authority.file(dir)?;
        let server = authority.server(dir, "server")?;
        let client = authority.peer(dir, "client", &["client"])?;
        Ok(Self { authority, ca, server, client })
    }

    /// Who signs both.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Its certificate.
    pub fn ca(&self) -> &Path {
        &self.ca
    }

    /// A client that the server knows.
    pub fn client(&self) -> &CertificateFiles {
        &self.client
    }

    /// `settings` and `credentials` of a key of a server at these addresses.
    pub fn fill(&self, key: &mut Value, addresses: &[SocketAddr]) {
        key["settings"] = json!({"addresses": addresses, "caFile": self.ca});
        let CertificateFiles { certificate, key: private } = &self.client;
        key["credentials"] = json!({"certFile": certificate, "keyFile": private});
    }
}

impl KmipServer {
    /// Starts one that speaks up to KMIP 1.4.
    pub async fn start(scratch: &Scratch, name: &str) -> Result<Self> {
        Self::speaking(scratch, name, 4).await
    }

    /// The same up to another version of KMIP 1.
    pub async fn speaking(scratch: &Scratch, name: &str, newest: u8) -> Result<Self> {
        let program = golang::KMIP.build_async().await?;
        let dir = scratch.subdir(name)?;
        let identities = Identities::new(&dir)?;
        let (port, control) = (Port::free()?, Port::free()?);
        let process = Spec::new(format!("kmip {name}"), program, dir.join("server.log"))
            .args([port.address().to_string(), control.address().to_string(), newest.to_string()])
            .args([&identities.server.certificate, &identities.server.key, &identities.ca])
            .arg(dir.join("keys.json"))
            .start()?;
        let mut server = Self { process, port, control, identities };
        server.wait_ready().await?;
        Ok(server)
    }

    /// Starts it again, with the keys that it had.
    pub async fn revive(&mut self) -> Result<()> {
        self.process.start()?;
        self.wait_ready().await
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let http = HttpClient::plain(self.control.address()).connecting_anew();
        let ready = async || http.get("/calls").await?.ok().map(drop);
        self.process.wait_until("it answers", PATIENCE, ready).await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its certificates.
    pub fn identities(&self) -> &Identities {
        &self.identities
    }

    /// The process, to be paused, killed and started again.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Makes a key of this name, active and for AES-256, or with other fields than these; tells its
    /// unique identifier.
    pub async fn create(&self, name: &str, other: Value) -> Result<String> {
        let mut body = json!({"Name": name});
        if let (Some(body), Value::Object(other)) = (body.as_object_mut(), other) {
            body.extend(other);
        }
        let made = self.control(Method::POST, "/keys", Some(&body)).await?;
        Ok(made["id"].as_str().context("no id")?.to_owned())
    }

    /// Takes over a key with all that is known of it.
    pub async fn import(&self, id: &str, fields: &Value) -> Result<()> {
        self.control(Method::POST, &format!("/keys/{id}"), Some(fields)).await.map(drop)
    }

    /// Changes `Name`, `State` or others of a key.
    pub async fn change(&self, id: &str, fields: &Value) -> Result<()> {
        self.control(Method::PATCH, &format!("/keys/{id}"), Some(fields)).await.map(drop)
    }

    /// Forgets a key.
    pub async fn delete(&self, id: &str) -> Result<()> {
        self.control(Method::DELETE, &format!("/keys/{id}"), None).await.map(drop)
    }

    /// Refuses everybody, or nobody any more.
    pub async fn deny(&self, denied: bool) -> Result<()> {
        self.control(Method::PUT, "/denied", Some(&denied.into())).await.map(drop)
    }

    /// How often each operation was asked for.
    pub async fn calls(&self) -> Result<BTreeMap<String, u64>> {
        Ok(serde_json::from_value(self.control(Method::GET, "/calls", None).await?)?)
    }

    async fn control(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let http = HttpClient::plain(self.control.address()).connecting_anew();
        http.send(method, path, body).await?.ok()?.json()
    }
}
