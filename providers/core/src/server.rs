//! Serving HTTP on a socket: accept, serve, drain with a deadline.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{FutureExt, MapOk, TryFutureExt};
use http::HeaderValue;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use crate::admin::Admin;
use crate::proto::v2::key_management_service_server::{
    KeyManagementService, KeyManagementServiceServer,
};
use crate::socket::{Listener, SocketOptions};
use crate::stream::QuietStream;
use crate::telemetry::RateLimit;
use crate::{Clients, Endpoint, Error};

/// A kube-apiserver has one connection per resources stanza.
const MAX_CONNECTIONS: usize = 256;
/// Concurrent requests on one connection; more of them wait at the caller, as HTTP/2 has it.
const MAX_STREAMS: u32 = 128;
/// Longest request: twice what the protocol's limits add up to, in whatever way it is cut into
/// annotations. It bounds what a caller can make us remember.
const MAX_REQUEST: usize = 128 * 1024;
/// The codes of gRPC for a request longer than [`MAX_REQUEST`]: as the decoder has it, and as it
/// should be.
const OUT_OF_RANGE: &str = "11";
const INVALID_ARGUMENT: &str = "3";
/// Somebody who opens a connection to the admin server has this long to ask.
const ADMIN_HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// And this long to keep on asking: whoever reads nothing must not stay for ever.
const ADMIN_LIFETIME: Duration = Duration::from_secs(60);

/// Tells every server of the process, or of one key, to stop.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// The other end of [`Stop`]; dropping it stops too.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// A pair: what waits and what ends the waiting.
pub fn stopper() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

/// Connections to the admin endpoints. The oldest makes room for the newest: a probe is answered
/// at once, and whoever opens connections and is silent must not keep probes out.
struct Callers {
    tasks: JoinSet<()>,
    oldest_first: VecDeque<AbortHandle>,
    crowded: RateLimit,
}

/// Answers a request that is longer than it may be as bad input, which it is.
#[derive(Clone)]
struct Strict<S>(S);

impl Stopper {
    /// Tells everybody to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Waits for the order to stop.
    pub async fn stopped(&mut self) {
        // An error means that the sender is gone, which also means stop.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

impl Default for Callers {
    fn default() -> Self {
        let (tasks, oldest_first) = Default::default();
        Self { tasks, oldest_first, crowded: RateLimit::rare() }
    }
}

impl Callers {
    fn take_in(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        if self.tasks.len() >= MAX_CONNECTIONS {
            self.oldest_first.retain(|caller| !caller.is_finished());
            if let Some(oldest) = self.oldest_first.pop_front() {
                oldest.abort();
            }
            if let Some(suppressed) = self.crowded.pass() {
                tracing::warn!(
                    limit = MAX_CONNECTIONS,
                    suppressed,
                    "too many admin connections, closing the oldest"
                );
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

impl<S> Service<http::Request<Incoming>> for Strict<S>
where
    S: Service<http::Request<Incoming>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = MapOk<S::Future, fn(S::Response) -> S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Incoming>) -> Self::Future {
        self.0.call(request).map_ok(|mut response| {
            let code = response.headers_mut().get_mut(Status::GRPC_STATUS);
            // Only the decoder says so, and only of length: no kind of error has this code.
            if let Some(code) = code.filter(|code| *code == OUT_OF_RANGE) {
                *code = HeaderValue::from_static(INVALID_ARGUMENT);
            }
            response
        })
    }
}

/// Serves KMS v2 until told to stop, then lets open requests end within `drain`. Connections are
/// counted among `clients`; `refusals` is told of those by users who may not connect.
pub async fn serve_kms<S: KeyManagementService>(
    listener: Listener,
    service: S,
    mut stop: Stop,
    drain: Duration,
    clients: Clients,
    mut refusals: impl FnMut(u64),
) {
    let service = KeyManagementServiceServer::new(service);
    let mut connections = JoinSet::new();
    let mut refused = listener.refused();
    let crowded = RateLimit::rare();
    loop {
        let (stream, _peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = listener.refusal() => {
                refusals(listener.refused() - refused);
                refused = listener.refused();
                continue;
            }
            _ = connections.join_next(), if !connections.is_empty() => continue,
            () = stop.stopped() => break,
        };
        if connections.len() >= MAX_CONNECTIONS {
            if let Some(suppressed) = crowded.pass() {
                tracing::warn!(socket = %listener.endpoint(), limit = MAX_CONNECTIONS, suppressed, "too many connections, closing the newest");
            }
            continue;
        }
        match QuietStream::new(stream) {
            Ok(stream) => {
                let serving = serve_kms_over(stream, service.clone(), stop.clone());
                let guest = clients.enter();
                connections.spawn(serving.inspect(move |()| drop(guest)));
            }
            Err(error) => tracing::warn!(%error, "cannot take a connection over"),
        }
    }
    // First no new connections and no socket that leads nowhere, then the open requests.
    listener.close();
    settle(connections, drain).await;
}

/// Serves KMS v2 on one open connection until it ends or, once told to stop, has no open request.
pub async fn serve_kms_over<T, S>(stream: T, service: KeyManagementServiceServer<S>, mut stop: Stop)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: KeyManagementService,
{
    let service = Strict(service.max_decoding_message_size(MAX_REQUEST));
    let serving = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MAX_STREAMS)
        // Nobody asks for the date.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
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

/// Serves the admin endpoints on TCP.
pub(crate) async fn serve_admin(listener: TcpListener, admin: Arc<Admin>, mut stop: Stop) {
    let mut callers = Callers::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = callers.leave() => continue,
            () = stop.stopped() => break,
        };
        match accepted {
            Ok((stream, _)) => callers.take_in(serve_http1(stream, admin.clone())),
            Err(error) => {
                tracing::warn!(%error, "cannot accept on the admin address");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves the admin endpoints on a unix socket, calls that change state included.
pub(crate) async fn serve_admin_socket(listener: Listener, admin: Arc<Admin>, mut stop: Stop) {
    let mut callers = Callers::default();
    loop {
        let (stream, _peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = callers.leave() => continue,
            () = stop.stopped() => break,
        };
        callers.take_in(serve_http1(stream, admin.clone()));
    }
    listener.close();
}

pub(crate) async fn serve_http1<T>(stream: T, admin: Arc<Admin>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let response = admin.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_HEADER_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = tokio::time::sleep(ADMIN_LIFETIME) => {
            serving.as_mut().graceful_shutdown();
            tokio::time::timeout(ADMIN_HEADER_TIMEOUT, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "admin connection ended");
    }
}

/// Waits for open connections, but no longer than `drain`.
async fn settle(mut connections: JoinSet<()>, drain: Duration) {
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(drain, all).await.is_err() {
        tracing::warn!(?drain, "open requests were cut off after the drain deadline");
    }
}

/// Binds, and says so when the directory is open to strangers.
pub async fn bind(endpoint: &Endpoint, options: &SocketOptions) -> Result<Listener, Error> {
    let (listener, warning) = Listener::bind(endpoint, options).await?;
    if let Some(warning) = warning {
        tracing::warn!(socket = %endpoint, warning, "socket directory is too open");
    }
    Ok(listener)
}
