//! The metrics of a provider's keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;

use super::{
    Counter, Gauge, Labelled, MetricRegistry, OperationMetrics, ReloadCounter, RequestMetrics,
    seconds,
};
use crate::config::KeyNumber;
use crate::kms::Operation;
use crate::provider::backend::Backend;
use crate::{Connections, Deletion, Endpoint, KeyId, Kind};

/// What is asked of a KMS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendCall {
    KeyId,
    Encrypt,
    Decrypt,
}

crate::labels! {
    pub(crate) BackendCall: KeyId = "key_id", Encrypt = "encrypt", Decrypt = "decrypt",
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
    coasting: Labelled<Gauge>,
    key_ids: Labelled<Gauge>,
    reloads: Labelled<Counter>,
    expiry: Labelled<Gauge>,
    deletion: Labelled<Gauge>,
    deletable: Labelled<Gauge>,
    shared: Labelled<Counter>,
    refused: Labelled<Counter>,
}

/// The calls to the KMS for one purpose, in the order of [`BackendCall`].
pub(crate) struct BackendCalls([(Counter, Histogram); 3]);

/// The metrics of one key, looked up once.
pub(crate) struct KeyMetrics {
    metrics: Arc<ProviderMetrics>,
    key: String,
    endpoint: String,
    /// Calls that somebody asked for.
    pub(crate) requests: BackendCalls,
    /// Those that keep the key proven.
    pub(crate) probes: BackendCalls,
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
        new.build_info("kms", &[("provider", provider)]);
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
            coasting: new.gauges(
                "kms_coasting_since_timestamp_seconds",
                "Since when the key fails while Status still answers ok, if it does",
            ),
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
            deletion: new.gauges(
                "kms_key_deletion_timestamp_seconds",
                "When the KMS deletes the key, where that is planned",
            ),
            deletable: new.gauges(
                "kms_key_deletion_allowed",
                "1 if the KMS would let somebody delete the key at once, where it tells",
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
        let backend = |purpose: &'static str| {
            BackendCalls(BackendCall::ALL.map(|call| {
                let [key, operation] = [of_key(), ("operation", call.label().into())];
                let durations = metrics.backend_durations.with([key.clone(), operation.clone()]);
                let purpose = ("purpose", purpose.into());
                (metrics.backend_calls.with([key, operation, purpose]), durations)
            }))
        };
        for kind in Kind::ALL {
            metrics.errors.with([of_key(), ("kind", kind.label().into())]);
        }
        let this = Self {
            endpoint: endpoint.to_string(),
            requests: backend("request"),
            probes: backend("probe"),
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

    /// Since when the key fails while Status is ok, if it does.
    pub(crate) fn coasting(&self, since: Option<SystemTime>) {
        self.set(&self.metrics.coasting, since.map(seconds));
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
        let ProviderMetrics { expiry, deletion, deletable, coasting, .. } = &*self.metrics;
        for gauge in [expiry, deletion, deletable, coasting] {
            gauge.remove([("key", self.key.clone().into())]);
        }
        self.show_hash(None);
    }

    /// What a client knows of times to come: the end of its credentials and of the key itself.
    pub(crate) fn ends(&self, backend: &dyn Backend) {
        let Deletion { at, allowed } = backend.deletion();
        self.set(&self.metrics.expiry, backend.expiry().map(seconds));
        self.set(&self.metrics.deletion, at.map(seconds));
        self.set(&self.metrics.deletable, allowed.map(i64::from));
    }

    fn set(&self, gauge: &Labelled<Gauge>, value: Option<i64>) {
        let labels = [("key", self.key.clone().into())];
        match value {
            _ if self.retired() => {}
            Some(value) => {
                gauge.with(labels).set(value);
            }
            None => gauge.remove(labels),
        }
    }

    fn show_hash(&self, hash: Option<String>) {
        let labels =
            |hash: String| [("key", self.key.clone().into()), ("key_id_hash", hash.into())];
        let mut announced = self.announced.lock();
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

impl BackendCalls {
    /// Counts one call.
    pub(crate) fn called(&self, call: BackendCall, took: Duration) {
        let (calls, durations) = &self.0[call as usize];
        calls.inc();
        durations.observe(took.as_secs_f64());
    }
}
