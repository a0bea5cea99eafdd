//! One server and the connections to it.
//!
//! HTTP/1.1 over connections that are kept open: plain hyper, with a list of idle connections in
//! the place of a pool with timers, so that an idle process sleeps. A connection that idled too
//! long is let go when the next one comes back.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use sidekey_core::{Error, Kind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::address::Address;

/// Connections to one server at a time; who comes later waits for one of them. Each costs some
/// 60 kB with TLS, and so many serve a start storm at 800 calls a second over a way of 20 ms.
const MAX_CONNECTIONS: usize = 16;
/// So many are kept; what a storm needed beyond them is closed again.
const MAX_KEPT: usize = 8;
/// Shorter than any server or balancer waits before it closes.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// Sent and not acknowledged for this long, in milliseconds, means that the way is cut.
const UNACKNOWLEDGED: u32 = 2_000;
/// More than any answer that we ask for: a key with 10 000 versions takes a quarter of it.
const MAX_ANSWER: usize = 1024 * 1024;
/// The most that hyper keeps of one connection, and the least that it takes.
const MAX_BUFFER: usize = 8 * 1024;

/// Says where a request must be answered from, or with what knowledge.
pub(crate) const INDEX: HeaderName = HeaderName::from_static("x-vault-index");
const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
const INCONSISTENT: HeaderName = HeaderName::from_static("x-vault-inconsistent");
/// Asked of every client of Vault, so that a page in a browser cannot be one.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");

/// What is asked of a server. Not `Debug`: there are secrets in it.
#[derive(Clone)]
pub(crate) struct Request {
    /// GET or POST.
    pub(crate) method: Method,
    /// Below `/v1/`, of parts that need no escaping.
    pub(crate) path: String,
    /// JSON, or nothing.
    pub(crate) body: Bytes,
    /// The namespace that the path is in.
    pub(crate) namespace: Option<HeaderValue>,
    /// Who asks.
    pub(crate) token: Option<HeaderValue>,
    /// What the server must know to answer: the state after our login.
    pub(crate) index: Option<HeaderValue>,
    /// Whether to do it twice is something else than to do it once: then it is sent to one server,
    /// on a new connection.
    pub(crate) once: bool,
}

/// What a server answered, good or bad. Not `Debug`: there are secrets in it.
pub(crate) struct Answer {
    /// The code.
    pub(crate) status: StatusCode,
    /// Where to go instead.
    pub(crate) location: Option<HeaderValue>,
    /// The state of the server after a write.
    pub(crate) index: Option<HeaderValue>,
    /// JSON, with secrets in it.
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// One server.
pub(crate) struct Server {
    address: Address,
    host: HeaderValue,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    idle: Mutex<Vec<Idle>>,
    connections: Semaphore,
}

struct Idle {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

impl Server {
    /// A server that has not been spoken to. `name` is what its certificate must be for, where
    /// that is not the host of its address.
    pub(crate) fn new(
        address: Address,
        tls: Option<Arc<ClientConfig>>,
        name: Option<&str>,
    ) -> Result<Self, Error> {
        let wrong = |what: &str| Error::new(Kind::Config, format!("{address}: {what}"));
        let tls = match (&address, tls) {
            (Address::Tcp { tls: true, host, .. }, Some(config)) => {
                let name = name.unwrap_or(host).to_owned();
                let name = ServerName::try_from(name)
                    .map_err(|_| wrong("is not the name of a server in TLS"))?;
                Some((config, name))
            }
            (Address::Tcp { tls: true, .. }, None) => return Err(wrong("needs TLS")),
            _ => None,
        };
        let host = HeaderValue::try_from(address.authority()).map_err(|_| wrong("is no host"))?;
        let connections = Semaphore::new(MAX_CONNECTIONS);
        Ok(Self { address, host, tls, idle: Mutex::default(), connections })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Asks, and reads the whole answer. `connecting` bounds the time for a new connection.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        connecting: Duration,
    ) -> Result<Answer, Error> {
        // Never closed.
        let _permit = self.connections.acquire().await;
        let kept = if request.once { None } else { self.reuse().await };
        if let Some(sender) = kept {
            match self.exchange(sender, request).await {
                // The server may have closed it a moment ago: this may be asked twice.
                Err(error) => {
                    tracing::debug!(server = %self.address, %error, "a kept connection broke");
                }
                Ok(answer) => return self.read(answer).await,
            }
        }
        let sender = timeout(connecting, self.connect(connecting))
            .await
            .unwrap_or_else(|_| Err(self.lost(Kind::Unavailable, "no connection in time", None)))?;
        match self.exchange(sender, request).await {
            Ok(answer) => self.read(answer).await,
            Err(error) => Err(self.broken(error)),
        }
    }

    async fn reuse(&self) -> Option<SendRequest<Full<Bytes>>> {
        while let Some(Idle { mut sender, since }) = self.newest() {
            // Its last answer has been read: it is ready at once, or closed.
            if since.elapsed() < MAX_IDLE && sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
        None
    }

    fn newest(&self) -> Option<Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < MAX_IDLE && !idle.sender.is_closed());
        if idle.len() < MAX_KEPT {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }

    async fn exchange(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        request: &Request,
    ) -> Result<(http::Response<Incoming>, SendRequest<Full<Bytes>>), hyper::Error> {
        let answer = sender.send_request(self.message(request)).await?;
        Ok((answer, sender))
    }

    /// Parts of a request are checked where they are made, so that this cannot fail.
    fn message(&self, request: &Request) -> http::Request<Full<Bytes>> {
        let mut message = http::Request::new(Full::new(request.body.clone()));
        *message.method_mut() = request.method.clone();
        if let Ok(uri) = format!("/v1/{}", request.path).try_into() {
            *message.uri_mut() = uri;
        }
        let headers = message.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(REQUEST, HeaderValue::from_static("true"));
        let agent = concat!("sidekey-vault/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if !request.body.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(namespace) = &request.namespace {
            headers.insert(NAMESPACE, namespace.clone());
        }
        if let Some(token) = &request.token {
            headers.insert(TOKEN, token.clone());
        }
        if let Some(index) = &request.index {
            // A replica that has not yet heard of our token passes the request on.
            headers.insert(INDEX, index.clone());
            headers.insert(INCONSISTENT, HeaderValue::from_static("forward-active-node"));
        }
        message
    }

    async fn read(
        &self,
        (answer, sender): (http::Response<Incoming>, SendRequest<Full<Bytes>>),
    ) -> Result<Answer, Error> {
        let (mut head, mut incoming) = answer.into_parts();
        let too_long = || self.lost(Kind::Unavailable, "the answer is too long", None);
        let expected = incoming.size_hint().exact().unwrap_or(4096);
        let expected = usize::try_from(expected).ok().filter(|size| *size <= MAX_ANSWER);
        let mut body = Zeroizing::new(Vec::with_capacity(expected.ok_or_else(too_long)?));
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|error| self.broken(error))?;
            let Ok(data) = frame.into_data() else { continue };
            if body.len() + data.len() > MAX_ANSWER {
                return Err(too_long());
            }
            if body.len() + data.len() > body.capacity() {
                // Grown by hand, so that no copy is left behind.
                let mut larger = Zeroizing::new(Vec::with_capacity(2 * (body.len() + data.len())));
                larger.extend_from_slice(&body);
                body = larger;
            }
            body.extend_from_slice(&data);
        }
        self.keep(sender);
        let location = head.headers.remove(LOCATION);
        let index = head.headers.remove(INDEX);
        Ok(Answer { status: head.status, location, index, body })
    }

    async fn connect(&self, limit: Duration) -> Result<SendRequest<Full<Bytes>>, Error> {
        match &self.address {
            Address::Unix(path) => self.handshake(self.unix(path).await?).await,
            Address::Tcp { host, port, .. } => {
                let tcp = self.tcp(host, *port, limit).await?;
                match &self.tls {
                    None => self.handshake(tcp).await,
                    Some((config, name)) => {
                        let connector = TlsConnector::from(config.clone());
                        let stream = connector.connect(name.clone(), tcp).await;
                        self.handshake(stream.map_err(|error| self.broken(error))?).await
                    }
                }
            }
        }
    }

    async fn unix(&self, path: &Path) -> Result<UnixStream, Error> {
        UnixStream::connect(path).await.map_err(|error| {
            self.lost(Kind::Unavailable, "no connection", Some(error.into()))
                .with_hint("see whether the agent runs and who may open its socket")
        })
    }

    /// Tries each address that a name stands for; one that does not answer leaves time for the
    /// others.
    async fn tcp(&self, host: &str, port: u16, limit: Duration) -> Result<TcpStream, Error> {
        let failed =
            |what, error: std::io::Error| self.lost(Kind::Unavailable, what, Some(error.into()));
        let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(ip) => vec![(ip, port).into()],
            Err(_) => tokio::net::lookup_host((host, port))
                .await
                .map_err(|error| failed("the name cannot be resolved", error))?
                .collect(),
        };
        let share = limit / u32::try_from(addresses.len()).unwrap_or(1).max(1);
        let mut last = self.lost(Kind::Unavailable, "the name stands for no address", None);
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Without them it is slower to notice what is wrong, and no worse.
                    let _ = stream.set_nodelay(true);
                    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = failed("no connection", error),
                Err(_) => last = self.lost(Kind::Unavailable, "no connection in time", None),
            }
        }
        Err(last)
    }

    async fn handshake<T>(&self, stream: T) -> Result<SendRequest<Full<Bytes>>, Error>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = Builder::new()
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error))?;
        // It ends with its sender or with the peer; who asks learns of the latter.
        tokio::spawn(connection);
        Ok(sender)
    }

    /// What broke a connection decides who must act.
    fn broken(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let error = error.into();
        match trouble(&*error) {
            Some(rustls::Error::AlertReceived(alert)) if is_about_us(*alert) => self
                .lost(Kind::Denied, "the server refuses our certificate", Some(error))
                .with_hint("see whether it is signed by a CA of the server, and not expired"),
            Some(rustls::Error::InvalidCertificate(_)) => self
                .lost(Kind::Config, "the server's certificate is not trusted", Some(error))
                .with_hint("check settings.tls.caFile and settings.tls.serverName"),
            Some(_) => self.lost(Kind::Unavailable, "no TLS", Some(error)),
            None => self.lost(Kind::Unavailable, "the connection broke", Some(error)),
        }
    }

    fn lost(
        &self,
        kind: Kind,
        what: &str,
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        let error = Error::new(kind, format!("{}: {what}", self.address));
        match source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

/// Whether an alert speaks of the certificate that we have shown, or have not.
fn is_about_us(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
    )
}

/// The error of TLS somewhere below an error of HTTP or of the stream.
fn trouble<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
