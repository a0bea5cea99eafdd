//! What Prometheus sees. Labels are bounded: key numbers, operations, codes and kinds, and the
//! hash of the one key_id that is announced.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::config::KeyNumber;
use crate::{Endpoint, KeyId, Kind, code_name};

/// From far below a local call to the longest deadline in use.
const BUCKETS: [f64; 12] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0];

/// What is called, at the socket or at the KMS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Status,
    Encrypt,
    Decrypt,
    KeyId,
}

/// How an attempt to take over changed files or configuration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Success,
    Failure,
}

/// Every metric of the process.
pub(crate) struct Metrics {
    encrypts: Family<KeyCode, Counter>,
    decrypts: Family<KeyCode, Counter>,
    durations: Family<KeyOperation, Histogram, Buckets>,
    backend_calls: Family<KeyOperation, Counter>,
    backend_durations: Family<KeyOperation, Histogram, Buckets>,
    errors: Family<KeyKind, Counter>,
    healthy: Family<KeyEndpoint, Gauge>,
    key_ids: Family<KeyHash, Gauge>,
    reloads: Family<KeyOutcome, Counter>,
    config_reloads: Family<OutcomeLabel, Counter>,
    expiry: Family<KeyLabel, Gauge>,
    shared: Family<KeyLabel, Counter>,
    refused: Family<KeyLabel, Counter>,
}

/// The metrics of one key, looked up once.
pub(crate) struct KeyMetrics {
    metrics: std::sync::Arc<Metrics>,
    key: u64,
    endpoint: String,
    served: [Histogram; 3],
    backend: [(Counter, Histogram); 3],
    ok: [Counter; 2],
    shared: Counter,
    refused: Counter,
    announced: Mutex<Option<KeyHash>>,
    /// Set when the key has been removed or has moved: its gauges may be another's by now.
    retired: AtomicBool,
}

#[derive(Clone, Debug)]
struct Buckets;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KeyLabel {
    key: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KeyCode {
    key: u64,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KeyOperation {
    key: u64,
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KeyKind {
    key: u64,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KeyEndpoint {
    key: u64,
    endpoint: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KeyHash {
    key: u64,
    key_id_hash: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KeyOutcome {
    key: u64,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    provider: &'static str,
    version: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            encrypts: Family::default(),
            decrypts: Family::default(),
            durations: Family::new_with_constructor(Buckets),
            backend_calls: Family::default(),
            backend_durations: Family::new_with_constructor(Buckets),
            errors: Family::default(),
            healthy: Family::default(),
            key_ids: Family::default(),
            reloads: Family::default(),
            config_reloads: Family::default(),
            expiry: Family::default(),
            shared: Family::default(),
            refused: Family::default(),
        }
    }
}

impl Metrics {
    /// Registers everything under the names that dashboards and alerts know.
    pub(crate) fn register(&self, registry: &mut Registry, provider: &'static str) {
        let build = Family::<Build, Gauge>::default();
        build.get_or_create(&Build { provider, version: crate::VERSION }).set(1);
        for outcome in [Outcome::Success, Outcome::Failure] {
            let _ = self.config_reloads.get_or_create(&OutcomeLabel { result: outcome.label() });
        }
        registry.register("kms_build_info", "Provider and version", build);
        registry.register("kms_encrypt_requests", "Encrypt requests served", self.encrypts.clone());
        registry.register("kms_decrypt_requests", "Decrypt requests served", self.decrypts.clone());
        registry.register(
            "kms_request_duration_seconds",
            "Time to answer a request on the socket",
            self.durations.clone(),
        );
        registry.register(
            "kms_backend_calls",
            "Calls made to the KMS, probes included",
            self.backend_calls.clone(),
        );
        registry.register(
            "kms_plugin_request_duration_seconds",
            "Time that the KMS took to answer, probes included",
            self.backend_durations.clone(),
        );
        registry.register("kms_errors", "Failed requests and probes by kind", self.errors.clone());
        registry.register(
            "kms_plugin_status_healthy",
            "1 while Status answers ok on this endpoint",
            self.healthy.clone(),
        );
        registry.register(
            "kms_plugin_key_id_hash_info",
            "Hash of the announced key_id, in the form of kube-apiserver's own metrics",
            self.key_ids.clone(),
        );
        registry.register(
            "kms_reloads",
            "Attempts to take over a key's changed files or settings",
            self.reloads.clone(),
        );
        registry.register(
            "kms_config_reloads",
            "Attempts to take over a changed configuration file",
            self.config_reloads.clone(),
        );
        registry.register(
            "kms_credentials_expiry_timestamp_seconds",
            "When the credentials in use expire, where that is known",
            self.expiry.clone(),
        );
        registry.register(
            "kms_shared_decrypts",
            "Decrypt requests answered by an equal one already under way",
            self.shared.clone(),
        );
        registry.register(
            "kms_refused_connections",
            "Connections of users who are not on the allow-list",
            self.refused.clone(),
        );
    }

    /// Counts an attempt to take over the configuration file.
    pub(crate) fn config_reload(&self, outcome: Outcome) {
        self.config_reloads.get_or_create(&OutcomeLabel { result: outcome.label() }).inc();
    }
}

impl KeyMetrics {
    pub(crate) fn new(
        metrics: std::sync::Arc<Metrics>,
        key: KeyNumber,
        endpoint: &Endpoint,
    ) -> Self {
        let key = key.0;
        let operation = |op: Operation| KeyOperation { key, operation: op.label() };
        let served = [Operation::Status, Operation::Encrypt, Operation::Decrypt]
            .map(|op| metrics.durations.get_or_create(&operation(op)).clone());
        let backend = [Operation::KeyId, Operation::Encrypt, Operation::Decrypt].map(|op| {
            (
                metrics.backend_calls.get_or_create(&operation(op)).clone(),
                metrics.backend_durations.get_or_create(&operation(op)).clone(),
            )
        });
        let ok = KeyCode { key, code: code_name(tonic::Code::Ok) };
        let ok = [&metrics.encrypts, &metrics.decrypts].map(|f| f.get_or_create(&ok).clone());
        for outcome in [Outcome::Success, Outcome::Failure] {
            let _ = metrics.reloads.get_or_create(&KeyOutcome { key, result: outcome.label() });
        }
        for kind in Kind::ALL {
            let _ = metrics.errors.get_or_create(&KeyKind { key, kind: kind.label() });
        }
        let shared = metrics.shared.get_or_create(&KeyLabel { key }).clone();
        let refused = metrics.refused.get_or_create(&KeyLabel { key }).clone();
        let endpoint = endpoint.to_string();
        let this = Self {
            key,
            endpoint,
            served,
            backend,
            ok,
            shared,
            refused,
            announced: Mutex::default(),
            retired: AtomicBool::new(false),
            metrics,
        };
        this.healthy(false);
        this
    }

    /// Counts one answered request.
    pub(crate) fn served(&self, op: Operation, took: Duration, failure: Option<Kind>) {
        let (index, family) = match op {
            Operation::Encrypt => (1, Some((&self.ok[0], &self.metrics.encrypts))),
            Operation::Decrypt => (2, Some((&self.ok[1], &self.metrics.decrypts))),
            Operation::Status | Operation::KeyId => (0, None),
        };
        self.served[index].observe(took.as_secs_f64());
        match (family, failure) {
            (Some((ok, _)), None) => {
                ok.inc();
            }
            (Some((_, family)), Some(kind)) => {
                let code = code_name(kind.code());
                family.get_or_create(&KeyCode { key: self.key, code }).inc();
                self.failed(kind);
            }
            (None, _) => {}
        }
    }

    /// Counts one call to the KMS.
    pub(crate) fn called(&self, op: Operation, took: Duration) {
        let index = match op {
            Operation::KeyId | Operation::Status => 0,
            Operation::Encrypt => 1,
            Operation::Decrypt => 2,
        };
        let (calls, durations) = &self.backend[index];
        calls.inc();
        durations.observe(took.as_secs_f64());
    }

    /// Counts a failed request or probe.
    pub(crate) fn failed(&self, kind: Kind) {
        self.metrics.errors.get_or_create(&KeyKind { key: self.key, kind: kind.label() }).inc();
    }

    /// Counts a Decrypt that another one answered.
    pub(crate) fn shared(&self) {
        self.shared.inc();
    }

    /// Counts connections of somebody who may not connect.
    pub(crate) fn refused(&self, count: u64) {
        self.refused.inc_by(count);
    }

    /// What Status says now.
    pub(crate) fn healthy(&self, healthy: bool) {
        if self.retired() {
            return;
        }
        let label = KeyEndpoint { key: self.key, endpoint: self.endpoint.clone() };
        self.metrics.healthy.get_or_create(&label).set(i64::from(healthy));
    }

    /// The key_id that Status announces now.
    pub(crate) fn announced(&self, key_id: &KeyId) {
        if self.retired() {
            return;
        }
        let label = KeyHash { key: self.key, key_id_hash: key_id.hash() };
        let Ok(mut announced) = self.announced.lock() else { return };
        if let Some(old) = announced.as_ref().filter(|old| **old != label) {
            self.metrics.key_ids.remove(old);
        }
        self.metrics.key_ids.get_or_create(&label).set(1);
        *announced = Some(label);
    }

    /// A removed key takes its gauges along at once, though its last requests may still run; its
    /// counters stay, as counters should.
    pub(crate) fn retire(&self) {
        if self.retired.swap(true, Ordering::Relaxed) {
            return;
        }
        let endpoint = self.endpoint.clone();
        self.metrics.healthy.remove(&KeyEndpoint { key: self.key, endpoint });
        self.metrics.expiry.remove(&KeyLabel { key: self.key });
        if let Ok(mut announced) = self.announced.lock()
            && let Some(label) = announced.take()
        {
            self.metrics.key_ids.remove(&label);
        }
    }

    fn retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Counts an attempt to take over changed files or settings.
    pub(crate) fn reload(&self, outcome: Outcome) {
        let label = KeyOutcome { key: self.key, result: outcome.label() };
        self.metrics.reloads.get_or_create(&label).inc();
    }

    /// When the credentials in use expire.
    pub(crate) fn expiry(&self, at: Option<SystemTime>) {
        if self.retired() {
            return;
        }
        let label = KeyLabel { key: self.key };
        match at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            Some(at) => {
                let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
                self.metrics.expiry.get_or_create(&label).set(seconds);
            }
            None => {
                self.metrics.expiry.remove(&label);
            }
        }
    }
}

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

impl Operation {
    fn label(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::KeyId => "key_id",
        }
    }
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}
