//! One request, one answer: connections, their pool, and what breaks them.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{DATE, HOST, HeaderValue};
use http::{Extensions, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper_rustls::{
    DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName,
};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{
    CaptureConnection, Connect, Connected, HttpConnector, HttpInfo, capture_connection,
};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyperlocal::UnixConnector;
use rustls::AlertDescription;
use sidekey_core::{Error, Kind};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};
use zeroize::Zeroizing;

use super::{Answer, Limits, Proxy, Request};
use crate::address::Address;
use crate::clock::Clock;
use crate::tls::Trust;

/// Shorter than any server or balancer waits before it closes, and longer than from one probe to
/// the next.
const IDLE: Duration = Duration::from_secs(60);
/// Sent and not acknowledged for this long means that the way is cut.
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);
/// The most that hyper keeps of one connection.
const BUFFER: usize = 16 * 1024;
/// Who waited this long in vain does not trust the other kept connections either: what swallows
/// requests (a firewall that has forgotten them, an endpoint that was moved) swallows them all.
const SWALLOWED: Duration = Duration::from_millis(500);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Names to addresses; another one in tests.
pub(crate) type Resolver = BoxCloneSyncService<Name, std::vec::IntoIter<SocketAddr>, io::Error>;

/// Servers over TCP, with TLS or without, and over unix sockets.
pub(crate) struct Transport {
    tcp: Pool<HttpsConnector<Dial>>,
    unix: Pool<UnixConnector>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) limits: Limits,
    /// The setting that names the CA bundle, for hints.
    bundle: &'static str,
}

/// TCP, through a proxy if there is one for that host.
type Dial = BoxCloneSyncService<Uri, TokioIo<TcpStream>, BoxError>;

/// Kept connections of one kind.
struct Pool<C> {
    connector: C,
    limits: Limits,
    kept: Mutex<Client<C, Full<Bytes>>>,
    /// Makes a new connection for each request.
    fresh: Client<C, Full<Bytes>>,
    /// Our ends of connections that have answered before. Unix sockets have none, and count as one.
    proven: Mutex<HashSet<Option<SocketAddr>>>,
}

/// Somebody who waits for an answer, on a kept connection as it may turn out.
struct Waiting<'a, C: Connect + Clone + Send + Sync + 'static> {
    pool: &'a Pool<C>,
    since: Instant,
    over: CaptureConnection,
    answered: bool,
}

impl Transport {
    pub(crate) fn new(trust: &Trust, proxy: Proxy, limits: Limits) -> Self {
        Self::with(trust, proxy, limits, names())
    }

    pub(crate) fn with(trust: &Trust, proxy: Proxy, limits: Limits, names: Resolver) -> Self {
        let https = https(dial(tcp(names, limits.connect), proxy), trust);
        let (tcp, unix) = (Pool::new(https, limits), Pool::new(UnixConnector, limits));
        Self { tcp, unix, clock: Arc::default(), limits, bundle: trust.setting }
    }

    /// Sends a request, and reads the whole answer.
    pub(crate) async fn ask(&self, address: &Address, request: &Request) -> Result<Answer, Error> {
        let message = message(address, request)?;
        let sent = match address {
            Address::Tcp { .. } => self.tcp.send(message, request.once).await,
            Address::Unix(_) => self.unix.send(message, request.once).await,
        };
        let answer = sent.map_err(|error| {
            let text = if error.is_connect() { "no connection" } else { "the connection broke" };
            self.broken(address, text, error)
        })?;
        let (head, body) = answer.into_parts();
        if address.is_tls() || !address.is_exposed() {
            self.clock.observe(head.headers.get(DATE));
        }
        let body = self.read(address, body).await?;
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    async fn read(&self, address: &Address, mut incoming: Incoming) -> Result<Bytes, Error> {
        let most = self.limits.answer;
        let too_long = || {
            let text = format!("{address}: the answer is longer than {most} bytes");
            Error::new(Kind::Unavailable, text).with_hint("see whether it is the KMS that answers")
        };
        let told = incoming.size_hint().exact().map(|size| usize::try_from(size).ok());
        let expected = told.unwrap_or_else(|| Some(most.min(4096))).filter(|size| *size <= most);
        let mut body = Zeroizing::new(Vec::with_capacity(expected.ok_or_else(too_long)?));
        while let Some(frame) = incoming.frame().await {
            let frame =
                frame.map_err(|error| self.broken(address, "the answer broke off", error))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = body.len() + data.len();
            if length > most {
                return Err(too_long());
            }
            if length > body.capacity() {
                // Grown by hand, so that no copy is left behind.
                let mut larger = Zeroizing::new(Vec::with_capacity(2 * length));
                larger.extend_from_slice(&body);
                body = larger;
            }
            body.extend_from_slice(&data);
        }
        Ok(Bytes::from_owner(body))
    }

    fn broken(&self, address: &Address, text: &str, error: impl Into<BoxError>) -> Error {
        broken(address, &address.to_string(), self.bundle, text, error)
    }
}

/// What broke a connection decides who must act. Distrust may pass: a CA is swapped on the server a
/// moment before its bundle, which the setting `bundle` names, is swapped here.
pub(crate) fn broken(
    address: &Address,
    name: &str,
    bundle: &str,
    text: &str,
    error: impl Into<BoxError>,
) -> Error {
    let error = error.into();
    if let Some(ours) = find::<Error>(&*error) {
        return Error::new(ours.kind(), format!("{name}: {ours}"));
    }
    let lost = |kind, text: &str| Error::new(kind, format!("{name}: {text}"));
    let (lost, hint) = match find::<rustls::Error>(&*error) {
        Some(rustls::Error::AlertReceived(alert)) if is_about_us(*alert) => (
            lost(Kind::Denied, "the server refuses our certificate"),
            "see whether it is signed by a CA of the server, and not expired".to_owned(),
        ),
        Some(rustls::Error::InvalidCertificate(_)) => (
            lost(Kind::Unavailable, "the server's certificate is not trusted"),
            format!(
                "the server shows a certificate that is not trusted: set {bundle}, or check who \
                 answers at that address"
            ),
        ),
        Some(_) => (lost(Kind::Unavailable, "no TLS"), "see whether TLS is spoken there".into()),
        None => (lost(Kind::Unavailable, text), reach(address, &*error).to_owned()),
    };
    lost.with_source(error).with_hint(hint)
}

fn reach(address: &Address, error: &(dyn std::error::Error + 'static)) -> &'static str {
    let is_dns = |error: &(dyn std::error::Error + 'static)| error.to_string() == "dns error";
    match address {
        Address::Unix(_) => "see whether the agent runs and who may open its socket",
        _ if chain(error).any(is_dns) => "check DNS and the name of the host",
        _ => "check the network and the firewalls on the way to the KMS, and its address",
    }
}

/// Parts of a request are checked where they are made; what is left is ours.
fn message(address: &Address, request: &Request) -> Result<http::Request<Full<Bytes>>, Error> {
    let bad = || Error::new(Kind::Bug, format!("{address}: the request cannot be written"));
    let uri: Uri = match address {
        Address::Unix(path) => hyperlocal::Uri::new(path, &request.path).into(),
        Address::Tcp { .. } => format!("{address}{}", request.path).parse().map_err(|_| bad())?,
    };
    let mut message = http::Request::new(Full::new(request.body.clone()));
    *message.method_mut() = request.method.clone();
    *message.uri_mut() = uri;
    *message.headers_mut() = request.headers.clone();
    let host = HeaderValue::try_from(address.authority()).map_err(|_| bad())?;
    message.headers_mut().entry(HOST).or_insert(host);
    Ok(message)
}

impl<C: Connect + Clone + Send + Sync + 'static> Pool<C> {
    fn new(connector: C, limits: Limits) -> Self {
        let kept = Mutex::new(client(&connector, limits.calls));
        let fresh = client(&connector, 0);
        Self { connector, limits, kept, fresh, proven: Mutex::default() }
    }

    async fn send(
        &self,
        message: http::Request<Full<Bytes>>,
        once: bool,
    ) -> Result<http::Response<Incoming>, legacy::Error> {
        if once {
            return self.fresh.request(message).await;
        }
        let (again, mut message) = (message.clone(), message);
        let over = capture_connection(&mut message);
        let client = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut waiting = Waiting { pool: self, since: Instant::now(), over, answered: false };
        let answer = client.request(message).await;
        waiting.answered = true;
        match answer {
            Ok(answer) => {
                self.prove(answer.extensions());
                Ok(answer)
            }
            Err(error) if self.was_proven(&error) => {
                tracing::debug!(%error, "a kept connection had gone stale");
                self.fresh.request(again).await
            }
            Err(error) => Err(error),
        }
    }

    fn prove(&self, extensions: &Extensions) {
        let mut proven = self.proven();
        if proven.len() > 8 * self.limits.calls {
            // Most of them are closed by now.
            proven.clear();
        }
        proven.insert(own_end(extensions));
    }

    /// Whether the connection that broke had answered before: then the server may have closed it
    /// while it was idle. A new one that breaks says something about the server.
    fn was_proven(&self, error: &legacy::Error) -> bool {
        error.connect_info().is_some_and(|used| self.proven().remove(&end_of(used)))
    }

    fn proven(&self) -> MutexGuard<'_, HashSet<Option<SocketAddr>>> {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end_of(connected: &Connected) -> Option<SocketAddr> {
    let mut extensions = Extensions::new();
    connected.get_extras(&mut extensions);
    own_end(&extensions)
}

fn own_end(extensions: &Extensions) -> Option<SocketAddr> {
    extensions.get().map(HttpInfo::local_addr)
}

fn client<C: Connect + Clone + Send + Sync + 'static>(
    connector: &C,
    idle: usize,
) -> Client<C, Full<Bytes>> {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(idle)
        .http1_max_buf_size(BUFFER)
        .set_host(false)
        .build(connector.clone())
}

impl<C: Connect + Clone + Send + Sync + 'static> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        let pool = self.pool;
        // The wait for a new connection says nothing of those that are kept.
        let was_kept = || {
            let used = self.over.connection_metadata();
            used.as_ref().is_some_and(|used| pool.proven().contains(&end_of(used)))
        };
        if !self.answered && self.since.elapsed() >= SWALLOWED && was_kept() {
            let client = client(&pool.connector, pool.limits.calls);
            *pool.kept.lock().unwrap_or_else(PoisonError::into_inner) = client;
        }
    }
}

/// Names as the system knows them.
pub(crate) fn names() -> Resolver {
    BoxCloneSyncService::new(service_fn(|name: Name| async move {
        let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
        Ok(found.collect::<Vec<_>>().into_iter())
    }))
}

/// TCP; the limit is shared among the addresses of a family, and the families race.
pub(crate) fn tcp(names: Resolver, connect: Duration) -> HttpConnector<Resolver> {
    let mut tcp = HttpConnector::new_with_resolver(names);
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connect));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    tcp
}

/// TLS over that.
pub(crate) fn https<C>(connector: C, trust: &Trust) -> HttpsConnector<C> {
    let resolver: Arc<dyn ResolveServerName + Send + Sync> = match &trust.name {
        None => Arc::new(DefaultServerNameResolver::default()),
        Some(name) => Arc::new(FixedServerNameResolver::new(name.clone())),
    };
    HttpsConnector::new(connector, trust.config.clone(), false, resolver)
}

fn dial(tcp: HttpConnector<Resolver>, proxy: Proxy) -> Dial {
    BoxCloneSyncService::new(service_fn(move |uri: Uri| {
        let (tcp, proxy) = (tcp.clone(), proxy.clone());
        async move {
            let found = proxy.intercept(&uri).map_err(|text| Error::new(Kind::Config, text))?;
            let Some(proxy) = found else { return Ok::<_, BoxError>(tcp.oneshot(uri).await?) };
            let tunnel = Tunnel::new(proxy.uri().clone(), tcp);
            let tunnel = match proxy.basic_auth() {
                Some(auth) => tunnel.with_auth(auth.clone()),
                None => tunnel,
            };
            Ok(tunnel.oneshot(uri).await?)
        }
    }))
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

/// An error of one type somewhere below an error of HTTP or of the stream.
fn find<'a, T: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref::<T>())
}

/// An error and all that caused it; those inside I/O errors too, which hide them.
fn chain<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        match inner {
            Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        }
    })
}
