//! What Prometheus sees. Every label is from a fixed list; nothing that a client sends becomes one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sidekey_core::code_name;
use tonic::Code;

use super::config::Operation;
use super::plugin::SocketError;
use crate::tls::{Identity, Reason};

/// From a local plugin that answers at once to the longest deadline in use.
const BUCKETS: [f64; 12] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0];

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
pub(super) struct Metrics {
    requests: Family<OperationCode, Counter>,
    durations: Family<OperationLabel, Histogram, Buckets>,
    socket_errors: Family<ReasonLabel, Counter>,
    rejected: Family<ReasonLabel, Counter>,
    config_reloads: Family<ResultLabel, Counter>,
    pub(super) connections: Gauge,
    connected: Gauge,
    expiry: Gauge,
    certificate_reloads: Family<ResultLabel, Counter>,
    served: [(Counter, Histogram); 3],
    registry: Registry,
}

#[derive(Clone, Debug)]
struct Buckets;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationCode {
    operation: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

const SUCCESS: ResultLabel = ResultLabel { result: "success" };
const FAILURE: ResultLabel = ResultLabel { result: "failure" };

impl Metrics {
    /// `mutual` says whether there are certificates to tell of.
    pub(super) fn new(mutual: bool) -> Self {
        let requests = Family::<OperationCode, Counter>::default();
        let durations = Family::new_with_constructor(Buckets);
        let served = Operation::ALL.map(|operation| {
            let operation = operation.label();
            let ok = requests
                .get_or_create(&OperationCode { operation, code: code_name(Code::Ok) })
                .clone();
            (ok, durations.get_or_create(&OperationLabel { operation }).clone())
        });
        let mut metrics = Self {
            requests,
            durations,
            socket_errors: Family::default(),
            rejected: Family::default(),
            config_reloads: Family::default(),
            connections: Gauge::default(),
            connected: Gauge::default(),
            expiry: Gauge::default(),
            certificate_reloads: Family::default(),
            served,
            registry: Registry::default(),
        };
        for error in SocketError::ALL {
            let _ = metrics.socket_errors.get_or_create(&ReasonLabel { reason: error.label() });
        }
        for result in [SUCCESS, FAILURE] {
            let _ = metrics.config_reloads.get_or_create(&result);
            let _ = metrics.certificate_reloads.get_or_create(&result);
        }
        for reason in Rejection::all() {
            let _ = metrics.rejected.get_or_create(&ReasonLabel { reason: reason.label() });
        }
        metrics.register(mutual);
        metrics
    }

    fn register(&mut self, mutual: bool) {
        let build = Family::<Build, Gauge>::default();
        build.get_or_create(&Build { version: sidekey_core::VERSION }).set(1);
        let registry = &mut self.registry;
        registry.register("socket_proxy_build_info", "Version", build);
        registry.register("socket_proxy_requests", "Requests answered", self.requests.clone());
        registry.register(
            "socket_proxy_request_duration_seconds",
            "Time to answer a request, the plugin's included",
            self.durations.clone(),
        );
        registry.register(
            "socket_proxy_socket_errors",
            "Failures on the way to the plugin, not answers of the plugin",
            self.socket_errors.clone(),
        );
        registry.register(
            "socket_proxy_plugin_connected",
            "1 while there is a connection to the plugin",
            self.connected.clone(),
        );
        registry.register(
            "socket_proxy_connections",
            "Open connections of clients",
            self.connections.clone(),
        );
        registry.register(
            "socket_proxy_config_reloads",
            "Attempts to take over a changed configuration",
            self.config_reloads.clone(),
        );
        registry.register(
            "socket_proxy_rejected_connections",
            "Connections that were not served, or not for long",
            self.rejected.clone(),
        );
        if mutual {
            registry.register(
                "socket_proxy_certificate_expiry_timestamp_seconds",
                "When the proxy's own certificate expires",
                self.expiry.clone(),
            );
            registry.register(
                "socket_proxy_certificate_reloads",
                "Attempts to take over changed certificates",
                self.certificate_reloads.clone(),
            );
        }
    }

    /// Counts one answered request.
    pub(super) fn answered(&self, operation: Operation, code: Code, took: Duration) {
        let (ok, duration) = &self.served[operation as usize];
        duration.observe(took.as_secs_f64());
        if code == Code::Ok {
            ok.inc();
            return;
        }
        let (operation, code) = (operation.label(), code_name(code));
        self.requests.get_or_create(&OperationCode { operation, code }).inc();
    }

    /// Counts a failure on the way to the plugin.
    pub(super) fn socket_error(&self, error: SocketError) {
        self.socket_errors.get_or_create(&ReasonLabel { reason: error.label() }).inc();
    }

    /// Counts a connection that was not served.
    pub(super) fn rejected(&self, rejection: Rejection) {
        self.rejected.get_or_create(&ReasonLabel { reason: rejection.label() }).inc();
    }

    /// Counts an attempt to take over the configuration.
    pub(super) fn config_reload(&self, success: bool) {
        self.config_reloads.get_or_create(if success { &SUCCESS } else { &FAILURE }).inc();
    }

    /// The text, with what others know now.
    pub(super) fn text(&self, connected: bool, identity: Option<&Identity>) -> String {
        self.connected.set(i64::from(connected));
        if let Some(identity) = identity {
            let since = identity.expiry().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            self.expiry.set(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
            let (succeeded, failed) = identity.reloads();
            for (label, count) in [(SUCCESS, succeeded), (FAILURE, failed)] {
                let counter = self.certificate_reloads.get_or_create(&label);
                let inner: &AtomicU64 = counter.inner();
                inner.store(count, Ordering::Relaxed);
            }
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
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

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}
