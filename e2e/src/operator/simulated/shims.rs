//! A simulated shim for every control plane: it says that it has loaded what is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sidekey_core::KeyId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::heads::Heads;
use super::kubelet::Taken;
use crate::KubeClient;

/// Where the operator asks shims.
pub(super) const PORT: u16 = 8094;
/// What every simulated provider announces.
pub(super) const KEY_ID: &str = "simulated";

/// All of them. Ended when this is dropped.
#[derive(Debug)]
pub(super) struct SimulatedShims {
    task: JoinHandle<()>,
    asked: Arc<AtomicU64>,
}

impl SimulatedShims {
    /// Answers wherever an address is taken.
    pub(super) fn start(client: KubeClient, mut taken: UnboundedReceiver<Taken>) -> Self {
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let heads = Heads::follow(client);
        let task = tokio::spawn(async move {
            let mut shims = JoinSet::new();
            while let Some(one) = taken.recv().await {
                shims.spawn(serve(one, Arc::clone(&heads), Arc::clone(&count)));
            }
        });
        Self { task, asked }
    }

    /// How often a status was given.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// The same, to be looked at while something else is borrowed.
    pub(super) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.asked)
    }
}

impl Drop for SimulatedShims {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One shim.
async fn serve(Taken { namespace, listener }: Taken, heads: Arc<Heads>, count: Arc<AtomicU64>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return eprintln!("simulated shim of {namespace}: {error}"),
    };
    let namespace = Arc::<str>::from(namespace);
    while let Ok((stream, _)) = listener.accept().await {
        let (heads, count) = (Arc::clone(&heads), Arc::clone(&count));
        let namespace = Arc::clone(&namespace);
        tokio::spawn(async move {
            // Whoever asks sees a closed connection, as with a shim that has nothing yet.
            if answer(&heads, &namespace, stream).await.is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

async fn answer(heads: &Heads, namespace: &str, stream: TcpStream) -> Result<()> {
    let shim = heads.shim(namespace).context("it has no head yet")?;
    let mut stream = shim.tls.accept(stream).await?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0; 1024];
        let read = stream.read(&mut byte).await?;
        if read == 0 {
            bail!("no request");
        }
        request.extend(&byte[..read]);
    }
    let (body, length) = (&shim.status, shim.status.len());
    let text = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}

/// A shim that has loaded its head.
pub(super) struct Shim {
    tls: TlsAcceptor,
    status: String,
}

impl Shim {
    /// As it is once it has loaded this Secret.
    pub(super) fn load(secret: &Value) -> Result<Self> {
        let head = Head::read(secret)?;
        let tls = TlsAcceptor::from(Arc::new(head.tls()?));
        Ok(Self { tls, status: head.status().to_string() })
    }
}

/// What a shim mounts.
struct Head {
    config: Value,
    files: Map<String, Value>,
}

impl Head {
    fn read(secret: &Value) -> Result<Self> {
        let files = secret["data"].as_object().context("a head without data")?.clone();
        let mut head = Self { config: Value::Null, files };
        head.config = serde_saphyr::from_slice(&head.file("config.yaml")?).context("no YAML")?;
        Ok(head)
    }

    /// A file, by its path in the pod.
    fn file(&self, path: &str) -> Result<Vec<u8>> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let text = self.files.get(name).and_then(Value::as_str);
        Ok(STANDARD.decode(text.with_context(|| format!("the head has no {name}"))?)?)
    }

    fn tls(&self) -> Result<ServerConfig> {
        let tls = &self.config["adminTls"];
        let file = |name: &str| self.file(tls[name].as_str().context("no adminTls")?);
        let (ca, cert, key) = (file("ca")?, file("cert")?, file("key")?);
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&ca) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(default_provider());
        let callers =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let chain = CertificateDer::pem_slice_iter(&cert).collect::<Result<Vec<_>, _>>()?;
        Ok(ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(callers.build()?)
            .with_single_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?)
    }

    /// What `/status` says, in the shim's own words.
    fn status(&self) -> Value {
        // In YAML it is a number, if nobody put it in quotes.
        let revision = match &self.config["revision"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let time = "2026-01-01T00:00:00Z";
        let hash = |key: &Value| {
            let (id, fingerprint) = (&key["id"], key["fingerprint"].as_str().unwrap_or_default());
            let key_id = KeyId::new(&format!("sidekey/{id}-{fingerprint}/{KEY_ID}"));
            key_id.map(|key_id| key_id.hash()).unwrap_or_default()
        };
        let keys = self.config["keys"].as_array().cloned().unwrap_or_default();
        let writer = keys.iter().find(|key| key["role"] == "write").cloned().unwrap_or_default();
        let told: Vec<Value> = keys
            .iter()
            .map(|key| {
                json!({
                    "id": key["id"].to_string(), "role": key["role"],
                    "fingerprint": key["fingerprint"], "canary": !key["canary"].is_null(),
                    "healthy": true, "since": time, "key_id_hash": hash(key),
                    "last_success": time,
                })
            })
            .collect();
        json!({
            "version": "simulated", "started": time, "mode": "route", "revision": revision,
            "config": {"source": "/etc/sidekey/config.yaml", "revision": revision, "loaded": time},
            "healthy": true, "write_key": writer["id"].to_string(), "key_id_hash": hash(&writer),
            "keys": told,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_simulated_shim_says_what_its_head_says() {
        let config = json!({"revision": 7, "keys": [
            {"id": 2, "role": "write", "fingerprint": "ab"}, {"id": 1, "role": "read"},
        ]});
        let data = json!({"config.yaml": STANDARD.encode(config.to_string())});
        let head = Head::read(&json!({"data": data})).unwrap();
        let status = head.status();
        assert_eq!(status["revision"], "7");
        assert_eq!(status["write_key"], "2");
        assert_eq!(status["keys"][1]["role"], "read");
        assert_eq!(status["key_id_hash"], status["keys"][0]["key_id_hash"]);
        assert!(head.tls().is_err(), "it has no certificate");
    }
}
