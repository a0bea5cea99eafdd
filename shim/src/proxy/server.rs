//! Accepting connections: handshake, service, trust that ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sidekey_core::Slot;
use sidekey_core::kms::KmsService;
use sidekey_core::proto::v2::key_management_service_server::KeyManagementServiceServer;
use sidekey_core::server::{Stop, accept, serve_kms_over, settle, stopper};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::Shared;
use super::leg::PluginLeg;
use super::metrics::Rejection;
use crate::tls::{Identity, Protocol, TlsPeer};

/// A trusted client that is not on the list gets this long to learn so.
const STRANGER: Duration = Duration::from_secs(5);
/// Open requests of a client that is no longer trusted.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// Serves until told to stop, then lets open requests end.
pub(super) async fn serve(mut listener: TcpListener, shared: Arc<Shared>, mut stop: Stop) {
    let order = stop.clone();
    let serving = accept(&mut listener, &mut stop, |tcp, from| {
        let connection = ClientConnection { shared: shared.clone(), from, stop: order.clone() };
        connection.run(tcp, shared.strangers.enter())
    });
    let open = serving.await;
    drop(listener);
    settle(open, *shared.drain.load_full()).await;
}

/// One connection.
struct ClientConnection {
    shared: Arc<Shared>,
    from: SocketAddr,
    stop: Stop,
}

impl ClientConnection {
    /// Whoever has not shown who it is has a place among strangers, which the oldest of them
    /// leaves for the newest: who means well is through its handshake in milliseconds.
    async fn run(mut self, tcp: TcpStream, stranger: Option<Slot>) {
        let Some(stranger) = stranger else { return };
        let Some(identity) = self.shared.identity.clone() else {
            // Without it small answers would wait for more.
            let _ = tcp.set_nodelay(true);
            drop(stranger);
            return self.host(tcp, self.shared.connections().enter(), None).await;
        };
        let shaken = tokio::select! {
            shaken = identity.accept(tcp, Protocol::Http2) => shaken,
            _ = stranger.ordered() => return self.reject(Rejection::TooMany, "too many strangers"),
            () = self.stop.stopped() => return,
        };
        match shaken {
            Ok((stream, peer)) if self.shared.clients.load().know(&peer.sans) => {
                drop(stranger);
                let slot = self.shared.connections().enter();
                self.host(stream, slot, Some((identity, peer))).await;
            }
            Ok((stream, peer)) => {
                let names = peer.sans.clone();
                let hosting = self.host(stream, Some(stranger), Some((identity, peer)));
                let _ = tokio::time::timeout(STRANGER, hosting).await;
                let why = format!("no name in the client's certificate ({names:?}) is on the list");
                self.reject(Rejection::NotListed, &why);
            }
            Err(refusal) => {
                self.reject(Rejection::Handshake(refusal.reason), &refusal.error.report());
            }
        }
    }

    /// Serves a client that has shown who it is.
    async fn host<T>(&self, stream: T, slot: Option<Slot>, trust: Option<(Arc<Identity>, TlsPeer)>)
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(slot) = slot else {
            return self.reject(Rejection::TooMany, "too many open connections");
        };
        let names = trust.as_ref().map(|(_, peer)| peer.sans.clone());
        let leg = PluginLeg { shared: self.shared.clone(), names: names.clone() };
        let service = Arc::new(KmsService::new(leg, self.shared.metrics.requests.clone()));
        let server = KeyManagementServiceServer::from_arc(service.clone());
        let refuse = move |operation| service.refuse(operation);
        let (stopper, stopped) = stopper();
        let mut serving = std::pin::pin!(serve_kms_over(stream, server, refuse, slot, stopped));
        let mut stop = self.stop.clone();
        let distrusted = async {
            match &trust {
                Some((identity, peer)) => identity.distrusted(peer).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = &mut serving => {}
            () = stop.stopped() => {
                // The server's own deadline for all of them.
                stopper.stop();
                serving.await;
            }
            () = distrusted => {
                tracing::info!(from = %self.from, client = ?names,
                    "connection closed: the client's certificate is no longer accepted");
                stopper.stop();
                let _ = tokio::time::timeout(CLOSE_TIME, serving).await;
            }
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
