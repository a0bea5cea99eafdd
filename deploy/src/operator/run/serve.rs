//! Serving HTTP to others: bounded in number, size and time, with certificates that may change.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use sidekey_core::server::Stop;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::Error;

/// Open connections; the oldest makes room for the newest.
const MAX_CONNECTIONS: usize = 128;
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time to ask, and to ask again. Longer than the 90 s that Go keeps a connection that is idle: a
/// caller should never find that we have just closed it.
const IDLE: Duration = Duration::from_secs(120);
/// Time for a request, its body and its answer.
const REQUEST: Duration = Duration::from_secs(15);
/// Time for open requests after the order to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// What is answered.
pub(crate) type Answer = Response<Full<Bytes>>;

/// Answers requests.
pub(crate) trait Site: Send + Sync + 'static {
    /// The answer to one.
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Answer>;
}

/// A server that listens.
pub(crate) struct Server {
    what: &'static str,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    oldest_first: VecDeque<AbortHandle>,
}

impl Server {
    /// Listens; with `tls`, speaks nothing else. `what` is said in logs and errors.
    pub(crate) async fn bind(
        what: &'static str,
        address: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
    ) -> Result<Self, Error> {
        let listener = listen(address).await.map_err(|error| {
            Error::failed(format!("cannot listen for the {what} on {address}"))
                .because(error)
                .hint(format!("choose another address with --{what}-listen; port 0 picks one"))
        })?;
        let server = Self { what, listener, tls: tls.map(TlsAcceptor::from) };
        tracing::info!(address = %server.address(address), "{what} listening");
        Ok(server)
    }

    /// Where it listens.
    pub(crate) fn address(&self, asked: SocketAddr) -> SocketAddr {
        self.listener.local_addr().unwrap_or(asked)
    }

    /// Serves until told to stop, then lets open requests end.
    pub(crate) async fn serve(self, site: Arc<dyn Site>, mut stop: Stop) {
        let mut connections = Connections::default();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = connections.leave() => continue,
                () = stop.stopped() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (tls, site) = (self.tls.clone(), site.clone());
                    connections.take_in(connection(stream, tls, site, stop.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, server = self.what, "cannot accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(self.listener);
        let all = async { while connections.tasks.join_next().await.is_some() {} };
        if timeout(DRAIN, all).await.is_err() {
            tracing::warn!(server = self.what, "open requests were cut off");
        }
    }
}

impl Connections {
    fn take_in(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        if self.tasks.len() >= MAX_CONNECTIONS {
            self.oldest_first.retain(|connection| !connection.is_finished());
            if let Some(oldest) = self.oldest_first.pop_front() {
                oldest.abort();
            }
        }
        self.oldest_first.push_back(self.tasks.spawn(serving));
    }

    /// Waits until one has left.
    async fn leave(&mut self) {
        if self.tasks.is_empty() {
            return std::future::pending().await;
        }
        let _ = self.tasks.join_next().await;
        if self.tasks.is_empty() {
            self.oldest_first.clear();
        }
    }
}

/// Where a node has no IPv6, every address is every IPv4 address.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listener => listener,
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, site: Arc<dyn Site>, stop: Stop) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return over(stream, site, stop).await };
    match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => over(stream, site, stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "no handshake"),
        Err(_) => tracing::debug!("no handshake in time"),
    }
}

/// Serves one connection.
async fn over<T>(stream: T, site: Arc<dyn Site>, mut stop: Stop)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = site.clone().answer(request);
        async move {
            let late = || text(StatusCode::SERVICE_UNAVAILABLE, "it took too long; try again\n");
            Ok::<_, Infallible>(timeout(REQUEST, answer).await.unwrap_or_else(|_| late()))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = stop.stopped() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

/// A body of this type. Nobody is to keep it, or to guess another type.
pub(crate) fn typed(status: StatusCode, content: &'static str, body: impl Into<String>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body.into())));
    *answer.status_mut() = status;
    let fields = [
        (header::CONTENT_TYPE, content),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in fields {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}
