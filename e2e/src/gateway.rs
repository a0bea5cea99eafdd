//! Simulated faults of the network: a forwarder on loopback in front of a real
//! backend, over TCP, that can be cut, hang, be slow or answer by itself, and
//! that counts what passes. What it does not spoil is the backend's answer.
//!
//! It knows no protocol. What a client sends until it is answered is one
//! request: that is right for HTTP/1.1, plain or with TLS that ends here. TLS
//! that ends at the backend passes as well; then handshakes count too.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::pki::CertificateFiles;

/// What is done to everything that comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Connections are closed, new ones as soon as they are made.
    Cut,
    /// Connections are taken, and nothing passes, as if packets got lost.
    Hang,
    /// Each request passes this much later.
    Slow(Duration),
    /// Each request gets this HTTP answer and never reaches the backend.
    Answer(Answer),
    /// Each request gets these bytes, be they an answer or not, and then the end.
    Raw(String),
}

/// An HTTP answer that the gateway gives by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

#[derive(Clone, Debug, Default)]
struct Now {
    fault: Option<Fault>,
    /// Connections of an older generation have been cut.
    generation: u64,
}

impl Answer {
    fn text(&self) -> String {
        let Self { status, content_type, body } = self;
        let length = body.len();
        format!(
            "HTTP/1.1 {status} Simulated\r\ncontent-type: {content_type}\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }
}

/// A running forwarder; it ends, and its connections with it, when dropped.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    plan: Arc<Plan>,
    accepting: JoinHandle<()>,
}

struct Plan {
    now: watch::Sender<Now>,
    target: Mutex<SocketAddr>,
    tls: Mutex<Option<TlsAcceptor>>,
    requests: AtomicU64,
    connections: AtomicU64,
}

impl Gateway {
    /// Forwards bytes as they are.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::with(target, None).await
    }

    /// Ends TLS with this certificate and forwards to a backend without TLS.
    pub async fn tls(target: SocketAddr, certificate: &CertificateFiles) -> Result<Self> {
        Self::with(target, Some(acceptor(certificate)?)).await
    }

    async fn with(target: SocketAddr, tls: Option<TlsAcceptor>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for a gateway")?;
        let address = listener.local_addr()?;
        let plan = Arc::new(Plan {
            now: watch::Sender::new(Now::default()),
            target: Mutex::new(target),
            tls: Mutex::new(tls),
            requests: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&plan)));
        Ok(Self { address, plan, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Spoils everything from now on, open connections too.
    pub fn inject(&self, fault: Fault) {
        self.plan.now.send_modify(|now| {
            now.generation += u64::from(fault == Fault::Cut);
            now.fault = Some(fault);
        });
    }

    /// Forwards faithfully again.
    pub fn heal(&self) {
        self.plan.now.send_modify(|now| now.fault = None);
    }

    /// Leads new connections to another backend.
    pub fn lead_to(&self, target: SocketAddr) {
        *lock(&self.plan.target) = target;
    }

    /// Shows another certificate on new connections, and closes those that are open.
    pub fn present(&self, certificate: &CertificateFiles) -> Result<()> {
        *lock(&self.plan.tls) = Some(acceptor(certificate)?);
        self.plan.now.send_modify(|now| now.generation += 1);
        Ok(())
    }

    /// How many requests have reached the backend.
    pub fn requests(&self) -> u64 {
        self.plan.requests.load(Ordering::Relaxed)
    }

    /// How many connections have come.
    pub fn connections(&self) -> u64 {
        self.plan.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("now", &*self.now.borrow()).finish_non_exhaustive()
    }
}

async fn accept(listener: TcpListener, plan: Arc<Plan>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        plan.connections.fetch_add(1, Ordering::Relaxed);
        let (plan, now) = (Arc::clone(&plan), plan.now.subscribe());
        connections.spawn(async move {
            let tls = lock(&plan.tls).clone();
            // Whatever goes wrong here is an end of the connection for both sides.
            let _ = match tls {
                None => Link::new(client, plan, now).run().await,
                Some(tls) => match tls.accept(client).await {
                    Ok(client) => Link::new(client, plan, now).run().await,
                    Err(error) => Err(error.into()),
                },
            };
        });
        while connections.try_join_next().is_some() {}
    }
}

/// One client and, after its first request, one connection to the backend.
struct Link<S> {
    client: S,
    backend: Option<TcpStream>,
    answered: bool,
    plan: Arc<Plan>,
    now: watch::Receiver<Now>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    fn new(client: S, plan: Arc<Plan>, now: watch::Receiver<Now>) -> Self {
        Self { client, backend: None, answered: true, plan, now }
    }

    async fn run(mut self) -> Result<()> {
        let (mut up, mut down) = (vec![0; 16 << 10], vec![0; 16 << 10]);
        let generation = self.now.borrow().generation;
        loop {
            let now = self.now.borrow_and_update().clone();
            if now.fault == Some(Fault::Cut) || now.generation != generation {
                return Ok(());
            }
            tokio::select! {
                changed = self.now.changed() => changed?,
                read = self.client.read(&mut up) => {
                    let count = read?;
                    if count == 0 || !self.forward(&up[..count]).await? {
                        return Ok(());
                    }
                }
                read = receive(&mut self.backend, &mut down) => {
                    let count = read?;
                    self.unless_hung().await?;
                    if count == 0 {
                        return Ok(self.client.shutdown().await?);
                    }
                    self.client.write_all(&down[..count]).await?;
                    self.client.flush().await?;
                    self.answered = true;
                }
            }
        }
    }

    /// Passes on what the client sent; whether the connection lives on.
    async fn forward(&mut self, bytes: &[u8]) -> Result<bool> {
        self.unless_hung().await?;
        if std::mem::take(&mut self.answered) {
            let fault = self.now.borrow().fault.clone();
            match fault {
                Some(Fault::Cut) => return Ok(false),
                Some(Fault::Answer(answer)) => return self.answer(&answer.text()).await,
                Some(Fault::Raw(text)) => return self.answer(&text).await,
                Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
                Some(Fault::Hang) | None => {}
            }
            self.plan.requests.fetch_add(1, Ordering::Relaxed);
        }
        let backend = match &mut self.backend {
            Some(backend) => backend,
            none => {
                let target = *lock(&self.plan.target);
                let connected = TcpStream::connect(target).await?;
                connected.set_nodelay(true)?;
                none.insert(connected)
            }
        };
        backend.write_all(bytes).await?;
        Ok(true)
    }

    async fn unless_hung(&mut self) -> Result<()> {
        self.now.wait_for(|now| now.fault != Some(Fault::Hang)).await?;
        Ok(())
    }

    /// Answers, and takes in what is left of the request, so that the answer is not lost.
    async fn answer(&mut self, text: &str) -> Result<bool> {
        self.client.write_all(text.as_bytes()).await?;
        self.client.shutdown().await?;
        let mut rest = [0; 1 << 10];
        while self.client.read(&mut rest).await? > 0 {}
        Ok(false)
    }
}

/// What the backend sends; nothing as long as there is none.
async fn receive(backend: &mut Option<TcpStream>, buffer: &mut [u8]) -> Result<usize> {
    match backend {
        Some(backend) => Ok(backend.read(buffer).await?),
        None => std::future::pending().await,
    }
}

fn acceptor(files: &CertificateFiles) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(&files.certificate)?.collect::<Result<_, _>>()?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&files.key)?)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
