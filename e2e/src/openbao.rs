//! OpenBao as users run it: TLS, storage on disk, initialised and unsealed by
//! an operator, and hurt in every way that happens to a Vault.

pub mod agent;
pub mod audit;
pub mod auth;
pub mod client;
pub mod cluster;
pub mod jwt;
mod prepared;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tokio_rustls::TlsConnector;

use crate::golang::OPENBAO;
use crate::http::HttpClient;
use crate::pki::Authority;
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::scratch::Scratch;
use crate::wait::PATIENCE;

pub use agent::Agent;
pub use audit::Audit;
pub use client::Bao;
pub use cluster::Cluster;
pub use prepared::Prepared;

/// The DNS name of the listener whose certificate has no address in it.
pub const NAMED: &str = "vault.sidekey.test";

/// One OpenBao server.
pub struct OpenBao {
    process: Process,
    dir: PathBuf,
    audit: PathBuf,
    port: Port,
    named: Port,
    plain: Port,
    authority: Arc<Authority>,
    trust: TlsConnector,
    keys: Arc<Keys>,
}

/// What an operator keeps in a safe.
#[derive(Default)]
struct Keys {
    root: String,
    unseal: String,
}

/// Where a server keeps its data.
enum Storage<'a> {
    File,
    Raft { port: &'a Port, leader: Option<&'a OpenBao> },
}

impl OpenBao {
    /// Starts one with an authority of its own, initialised and unsealed; its
    /// data, certificates and logs lie in a directory of `scratch`.
    pub async fn start(scratch: &Scratch, name: &str) -> Result<Self> {
        let authority = Arc::new(Authority::new(&format!("{name} CA"))?);
        let mut server = Self::spawn(scratch, name, authority, &Storage::File).await?;
        server.initialise().await?;
        server.unseal().await?;
        Ok(server)
    }

    async fn spawn(
        scratch: &Scratch,
        name: &str,
        authority: Arc<Authority>,
        storage: &Storage<'_>,
    ) -> Result<Self> {
        let program = OPENBAO.build_async().await?;
        let dir = scratch.subdir(name)?;
        scratch.subdir(&format!("{name}/data"))?;
        let (port, named, plain) = (Port::free()?, Port::free()?, Port::free()?);
        authority.file(&dir)?;
        authority.server(&dir, "server")?;
        authority.peer(&dir, "named", &[NAMED])?;
        let config = dir.join("config.json");
        // The nodes of a cluster agree on everything, on this path too.
        let audit = match storage {
            Storage::Raft { leader: Some(leader), .. } => leader.audit.clone(),
            _ => dir.join("audit.log"),
        };
        let document = document(&dir, name, &audit, [&port, &named, &plain], storage);
        fs::write(&config, document.to_string())
            .with_context(|| format!("cannot write {}", config.display()))?;
        let process = Spec::new(format!("openbao {name}"), program, dir.join("server.log"))
            .arg("server")
            .arg(format!("-config={}", config.display()))
            .start()?;
        let (trust, keys) = (authority.connector()?, Arc::default());
        let mut server = Self { process, dir, audit, port, named, plain, authority, trust, keys };
        server.wait_listening().await?;
        Ok(server)
    }

    /// Its address, `https://127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("https://{}", self.port.address())
    }

    /// The same server behind a certificate that has [`NAMED`] in it and no
    /// address: whoever connects by address must send that name.
    pub fn named_address(&self) -> String {
        format!("https://{}", self.named.address())
    }

    /// The same server without TLS, for command lines that have it so.
    pub fn plain_address(&self) -> String {
        format!("http://{}", self.plain.address())
    }

    /// The port of [`address`](Self::address), to put a forwarder in front.
    pub fn socket_address(&self) -> std::net::SocketAddr {
        self.port.address()
    }

    /// A listener without TLS on a unix socket, as agents have it.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("bao.sock")
    }

    /// The certificate of the authority that it was started with.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The authority that signs its certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// A client with the root token.
    pub fn root(&self) -> Bao {
        self.client(&self.keys.root)
    }

    /// A client with any token.
    pub fn client(&self, token: &str) -> Bao {
        let token = (!token.is_empty()).then(|| token.to_owned());
        Bao::new(HttpClient::tls(self.port.address(), self.trust.clone(), token))
    }

    /// The process, to be paused and killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// What it has been asked since it was started first.
    pub fn audit(&self) -> Audit {
        Audit::at(self.audit.clone())
    }

    /// Seals it: it answers, but nobody can use a key.
    pub async fn seal(&self) -> Result<()> {
        self.root().write("sys/seal", &json!({})).await.map(drop)
    }

    /// Unseals it and waits until it serves.
    pub async fn unseal(&mut self) -> Result<()> {
        self.offer_key().await?;
        let root = self.root();
        self.process
            .wait_until("it is unsealed and serves", PATIENCE, async || {
                // A standby answers 429, an active node 200.
                let health = root.http().get("/v1/sys/health?standbyok=true").await?;
                ensure!(health.status == 200, "health is {}: {}", health.status, health.text());
                root.read("auth/token/lookup-self").await?;
                Ok(())
            })
            .await
    }

    /// Kills it, starts it again and unseals it.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        self.revive().await
    }

    /// Starts a killed one again and unseals it.
    pub async fn revive(&mut self) -> Result<()> {
        self.process.start()?;
        self.wait_listening().await?;
        self.unseal().await
    }

    /// Stops it, keeps a copy of its data under a name, and starts it again.
    pub async fn back_up(&mut self, name: &str) -> Result<()> {
        self.process.kill()?;
        copy(&self.dir.join("data"), &self.dir.join(name))?;
        self.revive().await
    }

    /// Stops it, puts a copy in the place of its data, and starts it again.
    pub async fn restore(&mut self, name: &str) -> Result<()> {
        self.process.kill()?;
        let data = self.dir.join("data");
        fs::remove_dir_all(&data).context("cannot remove the data")?;
        copy(&self.dir.join(name), &data)?;
        self.revive().await
    }

    /// Its certificate comes from another authority from now on; clients that
    /// trust the old one alone are refused on new connections.
    pub async fn change_authority(&mut self, authority: Arc<Authority>) -> Result<()> {
        authority.server(&self.dir, "server")?;
        authority.peer(&self.dir, "named", &[NAMED])?;
        self.trust = authority.connector()?;
        self.authority = authority;
        self.process.signal(Signal::HUP)?;
        let root = self.root();
        self.process
            .wait_until("it shows its new certificate", PATIENCE, async || {
                root.http().get("/v1/sys/health").await.map(drop)
            })
            .await
    }

    async fn initialise(&mut self) -> Result<()> {
        let order = json!({"secret_shares": 1, "secret_threshold": 1});
        let answer = self.client("").write("sys/init", &order).await?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("init told no key");
        let (root, unseal) = (text(&answer["root_token"])?, text(&answer["keys_base64"][0])?);
        self.keys = Arc::new(Keys { root, unseal });
        Ok(())
    }

    async fn offer_key(&self) -> Result<()> {
        let order = json!({"key": self.keys.unseal});
        self.client("").write("sys/unseal", &order).await.map(drop)
    }

    async fn wait_listening(&mut self) -> Result<()> {
        let client = self.client("");
        self.process
            .wait_until("it listens", PATIENCE, async || {
                client.http().get("/v1/sys/seal-status").await?.ok().map(drop)
            })
            .await
    }
}

/// The configuration, as an operator writes it.
fn document(
    dir: &Path,
    name: &str,
    audit: &Path,
    ports: [&Port; 3],
    storage: &Storage<'_>,
) -> Value {
    let path = |name: &str| dir.join(name).display().to_string();
    let address = |port: &Port| port.address().to_string();
    let tcp = |port: &Port, file: &str| {
        let mut tcp = Map::new();
        tcp.insert("address".to_owned(), address(port).into());
        tcp.insert("tls_cert_file".to_owned(), path(&format!("{file}.crt")).into());
        tcp.insert("tls_key_file".to_owned(), path(&format!("{file}.key")).into());
        if let Storage::Raft { port, .. } = storage {
            tcp.insert("cluster_address".to_owned(), address(port).into());
        }
        tcp
    };
    let [main, named, plain] = ports;
    let mut listeners = vec![json!({"tcp": tcp(main, "server")})];
    if matches!(storage, Storage::File) {
        listeners.push(json!({"tcp": tcp(named, "named")}));
        listeners.push(json!({"tcp": {"address": address(plain), "tls_disable": true}}));
    }
    listeners.push(json!({"unix": {"address": path("bao.sock")}}));
    let options = json!({"file_path": audit.display().to_string()});
    let audit = json!({"type": "file", "path": "calls", "options": options});
    let mut document = json!({
        "listener": listeners,
        "api_addr": format!("https://{}", main.address()),
        "audit": [audit],
        "log_level": "info",
    });
    document["storage"] = match storage {
        Storage::File => {
            // Alone it needs no cluster listener, which would take the port after each of ours.
            document["disable_clustering"] = true.into();
            json!({"file": {"path": path("data")}})
        }
        Storage::Raft { port, .. } => {
            document["cluster_addr"] = format!("https://{}", port.address()).into();
            // Nodes that are quick to trust each other.
            json!({"raft": {
                "path": path("data"), "node_id": name, "performance_multiplier": "1",
                "autopilot_reconcile_interval": "1s", "autopilot_update_interval": "500ms",
            }})
        }
    };
    document
}

/// Copies a directory with all that is in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let what = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to).with_context(what)?;
    for entry in fs::read_dir(from).with_context(what)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target).with_context(what)?;
        }
    }
    Ok(())
}
