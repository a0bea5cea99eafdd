//! The metrics of a provider's keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::histogram::Histogram;

use super::{
    Counter, Gauge, Labelled, MetricRegistry, OperationMetrics, ReloadCounter, RequestMetrics,
    seconds,
};
use crate::config::KeyNumber;
use crate::kms::Operation;
use crate::{Connections, Endpoint, KeyId, Kind};

/// What is asked of a KMS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendCall {
    KeyId,
    Encrypt,
    Decrypt,
}

/// Every metric of a provider.
pub(crate) struct ProviderMetrics {
    pub(crate) registry: MetricRegistry,
    pub(crate) config_reloads: ReloadCounter,
    pub(crate) connections: Connections,
    /// In the order of [`Operation`].
    requests: [Labelled<Counter>; 3],
    durations: Labelled<Histogram>,
    backend_calls: Labelled<Counter>,
    backend_durations: Labelled<Histogram>,
    errors: Labelled<Counter>,
    healthy: Labelled<Gauge>,
    key_ids: Labelled<Gauge>,
    reloads: Labelled<Counter>,
    expiry: Labelled<Gauge>,
    shared: Labelled<Counter>,
    refused: Labelled<Counter>,
}

/// The metrics of one key, looked up once.
pub(crate) struct KeyMetrics {
    metrics: Arc<ProviderMetrics>,
    key: String,
    endpoint: String,
    backend: [(Counter, Histogram); 3],
    pub(crate) reloads: ReloadCounter,
    pub(crate) shared: Counter,
    pub(crate) refused: Counter,
    announced: Mutex<Option<String>>,
    /// Set when the key has been removed or has moved: its gauges may be another's by now.
    retired: AtomicBool,
}

impl ProviderMetrics {
    /// Registers everything under the names that dashboards and alerts know.
    pub(crate) fn new(provider: &'static str) -> Self {
        let mut registry = MetricRegistry::default();
        let new = &mut registry;
        new.build_info("kms_build_info", &[("provider", provider)]);
        Self {
            connections: Connections::of_clients(new, "kms"),
            config_reloads: new.reloads(
                "kms_config_reloads",
                "Attempts to take over a changed configuration file",
            ),
            requests: Operation::ALL.map(|operation| {
                let name = format!("kms_{}_requests", operation.label());
                new.counters(&name, "Requests served by code")
            }),
            durations: new.durations(
                "kms_request_duration_seconds",
                "Time to answer a request on the socket",
            ),
            backend_calls: new
                .counters("kms_backend_calls", "Calls made to the KMS, probes included"),
            backend_durations: new.durations(
                "kms_plugin_request_duration_seconds",
                "Time that the KMS took to answer, probes included",
            ),
            errors: new.counters("kms_errors", "Failed requests and probes by kind"),
            healthy: new
                .gauges("kms_plugin_status_healthy", "1 while Status answers ok on this endpoint"),
            key_ids: new.gauges(
                "kms_plugin_key_id_hash_info",
                "Hash of the announced key_id, in the form of kube-apiserver's own metrics",
            ),
            reloads: new
                .counters("kms_reloads", "Attempts to take over a key's changed files or settings"),
            expiry: new.gauges(
                "kms_credentials_expiry_timestamp_seconds",
                "When the credentials in use expire, where that is known",
            ),
            shared: new.counters(
                "kms_shared_decrypts",
                "Decrypt requests answered by an equal one already under way",
            ),
            refused: new.counters(
                "kms_refused_connections",
                "Connections of users who are not on the allow-list",
            ),
            registry,
        }
    }

    /// The requests on the socket of one key.
    pub(crate) fn requests(&self, key: KeyNumber) -> RequestMetrics {
        let key = key.to_string();
        let operations = Operation::ALL.map(|operation| {
            let label = ("key", key.clone().into());
            let duration =
                self.durations.with([label.clone(), ("operation", operation.label().into())]);
            OperationMetrics::new(duration, self.requests[operation as usize].clone(), label)
        });
        RequestMetrics { operations, kinds: Some((self.errors.clone(), key)) }
    }
}

impl KeyMetrics {
    pub(crate) fn new(metrics: Arc<ProviderMetrics>, key: KeyNumber, endpoint: &Endpoint) -> Self {
        let key = key.to_string();
        let of_key = || ("key", key.clone().into());
        let calls = [BackendCall::KeyId, BackendCall::Encrypt, BackendCall::Decrypt];
        let backend = calls.map(|call| {
            let labels = || [of_key(), ("operation", call.label().into())];
            (metrics.backend_calls.with(labels()), metrics.backend_durations.with(labels()))
        });
        for kind in Kind::ALL {
            metrics.errors.with([of_key(), ("kind", kind.label().into())]);
        }
        let this = Self {
            endpoint: endpoint.to_string(),
            backend,
            reloads: ReloadCounter::of(&metrics.reloads, &[of_key()]),
            shared: metrics.shared.with([of_key()]),
            refused: metrics.refused.with([of_key()]),
            announced: Mutex::default(),
            retired: AtomicBool::new(false),
            key: key.clone(),
            metrics,
        };
        this.healthy(false);
        this
    }

    /// Counts one call to the KMS.
    pub(crate) fn called(&self, call: BackendCall, took: Duration) {
        let (calls, durations) = &self.backend[call as usize];
        calls.inc();
        durations.observe(took.as_secs_f64());
    }

    /// Counts a failed probe.
    pub(crate) fn failed(&self, kind: Kind) {
        let kind = kind.label().into();
        self.metrics.errors.with([("key", self.key.clone().into()), ("kind", kind)]).inc();
    }

    /// What Status says now.
    pub(crate) fn healthy(&self, healthy: bool) {
        if self.retired() {
            return;
        }
        let (key, endpoint) = (self.key.clone().into(), self.endpoint.clone().into());
        let gauge = self.metrics.healthy.with([("key", key), ("endpoint", endpoint)]);
        gauge.set(i64::from(healthy));
    }

    /// The key_id that Status announces now.
    pub(crate) fn announced(&self, key_id: &KeyId) {
        if !self.retired() {
            self.show_hash(Some(key_id.hash()));
        }
    }

    /// A removed key takes its gauges along at once, though its last requests may still run; its
    /// counters stay, as counters should.
    pub(crate) fn retire(&self) {
        if self.retired.swap(true, Ordering::Relaxed) {
            return;
        }
        let (key, endpoint) = (self.key.clone().into(), self.endpoint.clone().into());
        self.metrics.healthy.remove([("key", key), ("endpoint", endpoint)]);
        self.metrics.expiry.remove([("key", self.key.clone().into())]);
        self.show_hash(None);
    }

    /// When the credentials in use expire.
    pub(crate) fn expiry(&self, at: Option<SystemTime>) {
        let labels = [("key", self.key.clone().into())];
        match at {
            _ if self.retired() => {}
            Some(at) => {
                self.metrics.expiry.with(labels).set(seconds(at));
            }
            None => self.metrics.expiry.remove(labels),
        }
    }

    fn show_hash(&self, hash: Option<String>) {
        let labels =
            |hash: String| [("key", self.key.clone().into()), ("key_id_hash", hash.into())];
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = announced.take().filter(|old| Some(old) != hash.as_ref()) {
            self.metrics.key_ids.remove(labels(old));
        }
        if let Some(hash) = &hash {
            self.metrics.key_ids.with(labels(hash.clone())).set(1);
        }
        *announced = hash;
    }

    fn retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}

impl BackendCall {
    fn label(self) -> &'static str {
        match self {
            Self::KeyId => "key_id",
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
        }
    }
}
