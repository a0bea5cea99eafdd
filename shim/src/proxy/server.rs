//! Accepting connections: handshake, service, trust that ends.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sidekey_core::kms::KmsService;
use sidekey_core::proto::v2::key_management_service_server::KeyManagementServiceServer;
use sidekey_core::server::{Stop, serve_kms_over, stopper};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Shared;
use super::leg::PluginLeg;
use super::metrics::Rejection;
use crate::tls::{Identity, Peer, Protocol};

/// Clients that have shown who they are: a shim has one connection for each endpoint.
const MAX_CONNECTIONS: usize = 256;
/// Clients that have not. When more come, the oldest is let go: whoever means well is through
/// its handshake in milliseconds, so that those who sit and wait keep nobody out.
const MAX_HANDSHAKES: usize = 64;
/// A trusted client that is not on the list gets this long to learn so.
const STRANGER: Duration = Duration::from_secs(10);
/// Open requests of a client that is no longer trusted.
const FAREWELL: Duration = Duration::from_secs(10);
/// Accepting fails when there are no file descriptors left; they come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until told to stop, then lets open requests end.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, mut stop: Stop) {
    let mut connections = JoinSet::new();
    let mut waiting: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = connections.join_next(), if !connections.is_empty() => continue,
            () = stop.stopped() => break,
        };
        match accepted {
            Ok((tcp, from)) => {
                waiting.retain(|handshake| !handshake.is_closed());
                if waiting.len() >= MAX_HANDSHAKES {
                    drop(waiting.pop_front());
                }
                let (patience, given_up) = oneshot::channel();
                waiting.push_back(patience);
                let visit = Visit { shared: shared.clone(), from, stop: stop.clone() };
                connections.spawn(visit.run(tcp, given_up));
            }
            Err(error) => failed_to_accept(&error).await,
        }
    }
    drop((listener, waiting));
    let all = async { while connections.join_next().await.is_some() {} };
    let drain = *shared.drain.load_full();
    if tokio::time::timeout(drain, all).await.is_err() {
        tracing::warn!(?drain, "open requests were cut off after the drain deadline");
    }
}

async fn failed_to_accept(error: &io::Error) {
    // These speak of one connection that is gone, not of the listener.
    let passing = [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset];
    if passing.contains(&error.kind()) {
        return;
    }
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// One connection.
struct Visit {
    shared: Arc<Shared>,
    from: SocketAddr,
    stop: Stop,
}

impl Visit {
    async fn run(mut self, tcp: TcpStream, given_up: oneshot::Receiver<()>) {
        let Some(identity) = self.shared.identity.clone() else {
            drop(given_up);
            // Without it small answers would wait for more.
            let _ = tcp.set_nodelay(true);
            return self.host(tcp, None).await;
        };
        let shaken = tokio::select! {
            shaken = identity.accept(tcp, Protocol::Http2) => shaken,
            _ = given_up => return self.reject(Rejection::TooMany, "too many open handshakes"),
            () = self.stop.stopped() => return,
        };
        match shaken {
            Ok((stream, peer)) => self.host(stream, Some((identity, peer))).await,
            Err(refusal) => {
                self.reject(Rejection::Handshake(refusal.reason), &refusal.error.report());
            }
        }
    }

    /// Serves a client that has shown who it is.
    async fn host<T>(self, stream: T, trust: Option<(Arc<Identity>, Peer)>)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(_seat) = Seat::take(&self.shared) else {
            return self.reject(Rejection::TooMany, "too many open connections");
        };
        let _guest = self.shared.connected.enter();
        let names = trust.as_ref().map(|(_, peer)| peer.sans.clone());
        let leg = PluginLeg { shared: self.shared.clone(), names: names.clone() };
        let service = KmsService::new(leg, self.shared.metrics.requests.clone());
        let service = KeyManagementServiceServer::new(service);
        let (stopper, stopped) = stopper();
        let mut serving = std::pin::pin!(serve_kms_over(stream, service, stopped));
        let mut stop = self.stop.clone();
        let end = tokio::select! {
            () = &mut serving => return,
            () = stop.stopped() => End::Stop,
            end = self.outstayed(trust) => end,
        };
        stopper.stop();
        match end {
            // The server's own deadline for all of them.
            End::Stop => serving.await,
            End::Distrusted => {
                tracing::info!(from = %self.from, client = ?names,
                    "connection closed: the client's certificate is no longer accepted");
                let _ = tokio::time::timeout(FAREWELL, serving).await;
            }
            End::Stranger => self.reject(
                Rejection::NotListed,
                &format!("no name in the client's certificate ({:?}) is on the list", names),
            ),
        }
    }

    /// Ends when the client's time is over.
    async fn outstayed(&self, trust: Option<(Arc<Identity>, Peer)>) -> End {
        let Some((identity, peer)) = trust else { return std::future::pending().await };
        let known = self.shared.clients.load().know(&peer.sans);
        let stranger = async {
            if known {
                return std::future::pending().await;
            }
            tokio::time::sleep(STRANGER).await;
            // It may have been put on the list meanwhile.
            if self.shared.clients.load().know(&peer.sans) {
                std::future::pending().await
            }
        };
        tokio::select! {
            () = identity.distrusted(&peer) => End::Distrusted,
            () = stranger => End::Stranger,
        }
    }

    fn reject(&self, rejection: Rejection, why: &str) {
        self.shared.metrics.rejected(rejection);
        if let Some(suppressed) = self.shared.rejections_logged.pass() {
            tracing::warn!(from = %self.from, reason = ?rejection, why, suppressed, "connection rejected");
        } else {
            tracing::debug!(from = %self.from, reason = ?rejection, why, "connection rejected");
        }
    }
}

/// Why a connection that works is closed by us.
enum End {
    Stop,
    Distrusted,
    Stranger,
}

/// A place among the open connections.
struct Seat(Arc<Shared>);

impl Seat {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let taken = usize::try_from(shared.metrics.connections.inc()).unwrap_or(usize::MAX);
        let seat = Self(shared.clone());
        // Dropped again, and so given back, if there was none left.
        (taken < MAX_CONNECTIONS).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}
