//! What Prometheus sees. Every label is from a fixed list; nothing that a client sends becomes one.

use std::sync::Arc;

use sidekey_core::Connections;
use sidekey_core::kms::Requests;
use sidekey_core::metrics::{Counter, Gauge, Labelled, MetricRegistry, ReloadCounter, seconds};

use super::plugin::SocketError;
use crate::tls::{Identity, Reason};

/// Why a connection was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    Handshake(Reason),
    /// No name of the certificate is on the list.
    NotListed,
    /// Too many at once.
    TooMany,
}

/// Every metric of the process.
pub(super) struct ProxyMetrics {
    registry: MetricRegistry,
    pub(super) requests: Arc<Requests>,
    pub(super) config_reloads: ReloadCounter,
    pub(super) connections: Connections,
    socket_errors: Labelled<Counter>,
    rejected: Labelled<Counter>,
    connected: Gauge,
    /// Where there are certificates to tell of.
    certificates: Option<(Gauge, ReloadCounter)>,
}

impl ProxyMetrics {
    /// `mutual` says whether there are certificates to tell of.
    pub(super) fn new(mutual: bool) -> Self {
        let mut registry = MetricRegistry::default();
        let new = &mut registry;
        new.build_info("socket_proxy", &[]);
        let metrics = Self {
            requests: Requests::new(None, new.requests("socket_proxy")),
            config_reloads: new.reloads(
                "socket_proxy_config_reloads",
                "Attempts to take over a changed configuration",
            ),
            connections: Connections::of_clients(new, "socket_proxy"),
            socket_errors: new.counters(
                "socket_proxy_socket_errors",
                "Failures on the way to the plugin, not answers of the plugin",
            ),
            rejected: new.counters(
                "socket_proxy_rejected_connections",
                "Connections that were not served, or not for long",
            ),
            connected: new.single(
                "socket_proxy_plugin_connected",
                "1 while there is a connection to the plugin",
            ),
            certificates: mutual.then(|| {
                let expiry = "socket_proxy_certificate_expiry_timestamp_seconds";
                let reloads = "socket_proxy_certificate_reloads";
                (
                    new.single(expiry, "When the proxy's own certificate expires"),
                    new.reloads(reloads, "Attempts to take over changed certificates"),
                )
            }),
            registry,
        };
        for error in SocketError::ALL {
            metrics.socket_errors.with([("reason", error.label().into())]);
        }
        for reason in Rejection::all() {
            metrics.rejected.with([("reason", reason.label().into())]);
        }
        metrics
    }

    /// Counts a failure on the way to the plugin.
    pub(super) fn socket_error(&self, error: SocketError) {
        self.socket_errors.with([("reason", error.label().into())]).inc();
    }

    /// Counts a connection that was not served.
    pub(super) fn rejected(&self, rejection: Rejection) {
        self.rejected.with([("reason", rejection.label().into())]).inc();
    }

    /// The text, with what others know now.
    pub(super) fn text(&self, connected: bool, identity: Option<&Identity>) -> String {
        self.connected.set(i64::from(connected));
        if let (Some((expiry, reloads)), Some(identity)) = (&self.certificates, identity) {
            expiry.set(identity.expiry().map_or(0, seconds));
            let (succeeded, failed) = identity.reloads();
            reloads.set(succeeded, failed);
        }
        self.registry.text()
    }
}

impl Rejection {
    fn all() -> impl Iterator<Item = Self> {
        let handshakes = Reason::ALL.into_iter().filter(|reason| *reason != Reason::Name);
        handshakes.map(Self::Handshake).chain([Self::NotListed, Self::TooMany])
    }

    fn label(self) -> &'static str {
        match self {
            Self::Handshake(reason) => reason.label(),
            Self::NotListed => "not_listed",
            Self::TooMany => "too_many",
        }
    }
}
