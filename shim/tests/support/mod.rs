//! Certificates, a plugin and clients, for the tests of the proxy.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod plugin;
pub mod shim;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use sidekey_core::app::App;
use sidekey_core::client::Connection;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, StatusRequest};
use sidekey_core::{Error, Watcher, client};
use sidekey_shim::proxy::{Proxy, ProxyConfig};
use sidekey_shim::tls::{Identity, TlsFiles};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

pub const SERVER: &str = "proxy.example";
pub const SHIM: &str = "shim.cluster-a.example";

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a certificate may be used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Server,
    Client,
}

/// Signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub fn issue(&self, usage: Use, names: &[&str]) -> Pair {
        self.issue_until(usage, names, SystemTime::now() + Duration::from_secs(3600))
    }

    pub fn issue_until(&self, usage: Use, names: &[&str], expires: SystemTime) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names.iter().map(|name| san(name)).collect();
        params.extended_key_usages = vec![match usage {
            Use::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Use::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.not_before = date_time_ymd(2020, 1, 1);
        let since = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        params.not_after = date_time_ymd(1970, 1, 1) + since;
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { cert, key: key.serialize_pem() }
    }
}

fn san(name: &str) -> SanType {
    if let Ok(address) = name.parse::<IpAddr>() {
        SanType::IpAddress(address)
    } else if name.contains("://") {
        SanType::URI(name.try_into().unwrap())
    } else {
        SanType::DnsName(name.try_into().unwrap())
    }
}

/// Writes a set of files as an issuer of certificates does: each in place.
pub fn write(directory: &Path, ca: &str, pair: &Pair) -> TlsFiles {
    std::fs::create_dir_all(directory).unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    TlsFiles {
        ca: file("ca.crt", ca),
        cert: file("tls.crt", &pair.cert),
        key: file("tls.key", &pair.key),
    }
}

/// One CA, a directory, and what stands for the other side of the world.
pub struct World {
    pub directory: tempfile::TempDir,
    pub authority: Authority,
    pub watcher: Watcher,
}

impl World {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            authority: Authority::new("control plane"),
            watcher: Watcher::new(Duration::from_secs(1)),
        }
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// A client's identity with these names.
    pub fn client(&self, names: &[&str]) -> Arc<Identity> {
        let pair = self.authority.issue(Use::Client, names);
        self.client_with(&pair)
    }

    /// A client with this certificate, which trusts this world's proxies.
    pub fn client_with(&self, pair: &Pair) -> Arc<Identity> {
        let directory = tempfile::tempdir_in(self.directory.path()).unwrap().keep();
        Identity::load(write(&directory, &self.authority.pem, pair)).unwrap()
    }

    pub fn server_files(&self) -> TlsFiles {
        let pair = self.authority.issue(Use::Server, &[SERVER, "127.0.0.1"]);
        write(&self.path("server"), &self.authority.pem, &pair)
    }

    /// A configuration in which the shim may do everything.
    pub fn document(&self) -> Value {
        let files = self.server_files();
        json!({
            "listen": "127.0.0.1:0",
            "plugin": self.path("kms.sock"),
            "tls": {"ca": files.ca, "cert": files.cert, "key": files.key},
            "clients": [
                {"san": SHIM, "allow": ["status", "encrypt", "decrypt"]},
                {"san": "spiffe://example/reader", "allow": ["status", "decrypt"]},
            ],
        })
    }

    pub async fn proxy(&self) -> Proxy {
        self.proxy_of(&self.document()).await
    }

    pub async fn proxy_of(&self, document: &Value) -> Proxy {
        let config = ProxyConfig::parse(document).unwrap();
        Proxy::start(config, "test", &self.watcher).await.unwrap()
    }
}

/// An address that nobody listens on. Other connections of this machine take their ports from
/// another address, so that none of them takes this one before it is listened on.
pub fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap()
}

/// Connects as the shim does.
pub async fn dial(
    identity: &Identity,
    address: SocketAddr,
) -> Result<KeyManagementServiceClient<Connection>, Error> {
    let tcp = TcpStream::connect(address).await.unwrap();
    let stream = identity.connect(tcp, SERVER).await?;
    let origin = "https://proxy.example".parse().unwrap();
    Ok(client::open(stream, origin).await.unwrap().0)
}

pub fn encrypt(plaintext: &[u8]) -> EncryptRequest {
    EncryptRequest { plaintext: plaintext.to_vec().into(), uid: "test".into() }
}

pub fn decrypt(ciphertext: &[u8]) -> DecryptRequest {
    DecryptRequest {
        ciphertext: ciphertext.to_vec().into(),
        uid: "test".into(),
        key_id: plugin::KEY_ID.into(),
        annotations: [].into(),
    }
}

pub fn status() -> StatusRequest {
    StatusRequest {}
}

/// Waits for a condition.
pub async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// What `/metrics` says.
pub fn metrics(proxy: &Proxy) -> String {
    proxy.source().metrics()
}

/// The value of a metric with just these labels.
pub fn metric(proxy: &Proxy, name: &str) -> i64 {
    let text = metrics(proxy);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let Some(value) = line else { panic!("no metric {name} in\n{text}") };
    value.parse().unwrap()
}

/// A client of its own making: without a certificate, or with an old protocol. The server's
/// verdict on it comes with the first read.
pub async fn raw_handshake(
    address: SocketAddr,
    ca: &str,
    version: &'static rustls::SupportedProtocolVersion,
) -> std::io::Error {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    match connector.connect(ServerName::try_from(SERVER).unwrap(), tcp).await {
        Err(error) => error,
        Ok(mut stream) => stream.read_u8().await.expect_err("the server should have hung up"),
    }
}
