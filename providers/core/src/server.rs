//! Serving HTTP on a socket: accept, serve, drain with a deadline.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::Admin;
use crate::proto::v2::key_management_service_server::{
    KeyManagementService, KeyManagementServiceServer,
};
use crate::socket::{Listener, SocketOptions};
use crate::{Endpoint, Error};

/// A kube-apiserver has one connection per resources stanza.
const MAX_CONNECTIONS: usize = 256;
/// Concurrent requests on one connection: a start storm must not be refused.
const MAX_STREAMS: u32 = 1024;
/// Somebody who opens a connection to the admin server has this long to ask.
const ADMIN_HEADER_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Serves KMS v2 until told to stop, then lets open requests end within `drain`. `refusals` is
/// told of connections by users who may not connect.
pub async fn serve_kms<S: KeyManagementService>(
    listener: Listener,
    service: S,
    mut stop: Stop,
    drain: Duration,
    mut refusals: impl FnMut(u64),
) {
    let service = KeyManagementServiceServer::new(service);
    let mut connections = JoinSet::new();
    let mut refused = listener.refused();
    loop {
        let (stream, _peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = connections.join_next(), if !connections.is_empty() => continue,
            () = stop.stopped() => break,
        };
        if refused < listener.refused() {
            refusals(listener.refused() - refused);
            refused = listener.refused();
        }
        if connections.len() >= MAX_CONNECTIONS {
            tracing::warn!(socket = %listener.endpoint(), limit = MAX_CONNECTIONS, "too many connections, closing one");
            continue;
        }
        connections.spawn(serve_kms_over(stream, service.clone(), stop.clone()));
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
    let serving = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(MAX_STREAMS)
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
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = connections.join_next(), if !connections.is_empty() => continue,
            () = stop.stopped() => break,
        };
        match accepted {
            Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                connections.spawn(serve_http1(stream, admin.clone()));
            }
            Ok(_) => tracing::warn!(limit = MAX_CONNECTIONS, "too many admin connections"),
            Err(error) => {
                tracing::warn!(%error, "cannot accept on the admin address");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves the admin endpoints on a unix socket, calls that change state included.
pub(crate) async fn serve_admin_socket(listener: Listener, admin: Arc<Admin>, mut stop: Stop) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = connections.join_next(), if !connections.is_empty() => continue,
            () = stop.stopped() => break,
        };
        if connections.len() < MAX_CONNECTIONS {
            connections.spawn(serve_http1(stream, admin.clone()));
        }
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
    let result = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_HEADER_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .await;
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
