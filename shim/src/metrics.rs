//! What Prometheus sees of the shim, under the names that the shim's enhancement text gave.

use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sidekey_core::{Error, code_name};

/// From far below a local call to the longest deadline in use.
const BUCKETS: [f64; 12] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0];

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Status,
    Encrypt,
    Decrypt,
}

/// Why a request did not reach a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardError {
    Connection,
    Timeout,
}

/// Every metric of the shim.
pub(crate) struct Metrics {
    requests: Family<RequestLabel, Counter>,
    ok: [Counter; 3],
    durations: [Histogram; 3],
    duration_family: Family<OperationLabel, Histogram, Buckets>,
    forward_errors: Family<ReasonLabel, Counter>,
    plugin_errors: Family<CodeLabel, Counter>,
    shared: Counter,
    pub(crate) refused: Counter,
    healthy: Family<KeyLabel, Gauge>,
    key_ids: Family<HashLabel, Gauge>,
    canary_unread: Family<NumberLabel, Gauge>,
    coasting: Family<NumberLabel, Gauge>,
    reloads: Family<ResultLabel, Counter>,
    revision: Family<RevisionLabel, Gauge>,
    expiry: Gauge,
}

/// A key as the gauges show it.
pub(crate) struct KeyGauges {
    pub(crate) key: u64,
    pub(crate) role: &'static str,
    pub(crate) healthy: bool,
    pub(crate) key_id_hash: Option<String>,
    pub(crate) canary_unread: bool,
    pub(crate) coasting: Option<SystemTime>,
}

#[derive(Clone, Debug)]
struct Buckets;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabel {
    operation: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KeyLabel {
    key: u64,
    role: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NumberLabel {
    key: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HashLabel {
    key: u64,
    role: &'static str,
    key_id_hash: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RevisionLabel {
    revision: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BuildLabel {
    version: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let duration_family = Family::new_with_constructor(Buckets);
        let requests = Family::<RequestLabel, Counter>::default();
        let operations = [Operation::Status, Operation::Encrypt, Operation::Decrypt];
        let ok = operations.map(|op| {
            requests
                .get_or_create(&RequestLabel {
                    operation: op.label(),
                    code: code_name(tonic::Code::Ok),
                })
                .clone()
        });
        let durations = operations.map(|op| {
            let label = OperationLabel { operation: op.label() };
            Family::<_, Histogram, Buckets>::get_or_create(&duration_family, &label).clone()
        });
        let forward_errors = Family::<ReasonLabel, Counter>::default();
        for reason in [ForwardError::Connection, ForwardError::Timeout] {
            let _ = forward_errors.get_or_create(&ReasonLabel { reason: reason.label() });
        }
        let reloads = Family::<ResultLabel, Counter>::default();
        for result in ["success", "failure"] {
            let _ = reloads.get_or_create(&ResultLabel { result });
        }
        Self {
            requests,
            ok,
            durations,
            duration_family,
            forward_errors,
            plugin_errors: Family::default(),
            shared: Counter::default(),
            refused: Counter::default(),
            healthy: Family::default(),
            key_ids: Family::default(),
            canary_unread: Family::default(),
            coasting: Family::default(),
            reloads,
            revision: Family::default(),
            expiry: Gauge::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        self.register_keys(registry);
        let build = Family::<BuildLabel, Gauge>::default();
        build.get_or_create(&BuildLabel { version: sidekey_core::VERSION }).set(1);
        registry.register("kms_shim_build_info", "Version", build);
        registry.register("kms_shim_requests", "Requests served", self.requests.clone());
        registry.register(
            "kms_shim_request_duration_seconds",
            "Time to answer a request",
            self.duration_family.clone(),
        );
        registry.register(
            "kms_shim_forward_errors",
            "Requests that did not reach a plugin",
            self.forward_errors.clone(),
        );
        registry.register(
            "kms_shim_plugin_errors",
            "Requests that a plugin answered with an error",
            self.plugin_errors.clone(),
        );
        registry.register(
            "kms_shim_reloads",
            "Attempts to take over a changed configuration",
            self.reloads.clone(),
        );
        registry.register("kms_shim_revision_info", "The revision in use", self.revision.clone());
        registry.register(
            "kms_shim_shared_decrypts",
            "Decrypt requests answered by an equal one already under way",
            self.shared.clone(),
        );
        registry.register(
            "kms_shim_refused_connections",
            "Connections of users who are not on the allow-list",
            self.refused.clone(),
        );
        registry.register(
            "kms_shim_certificate_expiry_timestamp_seconds",
            "When the first of our certificates expires; 0 without certificates",
            self.expiry.clone(),
        );
    }

    fn register_keys(&self, registry: &mut Registry) {
        registry.register(
            "kms_shim_plugin_healthy",
            "1 while the key's plugin answers Status with ok",
            self.healthy.clone(),
        );
        registry.register(
            "kms_shim_key_id_hash_info",
            "Hash of a proven key_id, in the form of kube-apiserver's own metrics",
            self.key_ids.clone(),
        );
        registry.register(
            "kms_shim_canary_unread",
            "1 while the key has not read anything that was written before",
            self.canary_unread.clone(),
        );
        registry.register(
            "kms_shim_coasting_since_timestamp_seconds",
            "Since when the key fails while Status is still ok",
            self.coasting.clone(),
        );
    }

    pub(crate) fn served(&self, operation: Operation, took: Duration, failure: Option<&Error>) {
        let index = operation as usize;
        self.durations[index].observe(took.as_secs_f64());
        match failure {
            None => {
                self.ok[index].inc();
            }
            Some(error) => {
                let code = code_name(error.kind().code());
                let label = RequestLabel { operation: operation.label(), code };
                self.requests.get_or_create(&label).inc();
            }
        }
    }

    pub(crate) fn forward_error(&self, reason: ForwardError) {
        self.forward_errors.get_or_create(&ReasonLabel { reason: reason.label() }).inc();
    }

    pub(crate) fn plugin_error(&self, code: tonic::Code) {
        self.plugin_errors.get_or_create(&CodeLabel { code: code_name(code) }).inc();
    }

    pub(crate) fn shared(&self) {
        self.shared.inc();
    }

    pub(crate) fn reload(&self, success: bool) {
        let result = if success { "success" } else { "failure" };
        self.reloads.get_or_create(&ResultLabel { result }).inc();
    }

    /// Brings the gauges up to date when they are read.
    pub(crate) fn refresh(&self, revision: Option<&str>, keys: Vec<KeyGauges>) {
        self.revision.clear();
        let revision = revision.unwrap_or("none").to_owned();
        self.revision.get_or_create(&RevisionLabel { revision }).set(1);
        self.healthy.clear();
        self.key_ids.clear();
        self.canary_unread.clear();
        self.coasting.clear();
        for KeyGauges { key, role, healthy, key_id_hash, canary_unread, coasting } in keys {
            let number = NumberLabel { key };
            self.canary_unread.get_or_create(&number).set(i64::from(canary_unread));
            if let Some(since) = coasting.and_then(seconds) {
                self.coasting.get_or_create(&number).set(since);
            }
            self.healthy.get_or_create(&KeyLabel { key, role }).set(i64::from(healthy));
            if let Some(key_id_hash) = key_id_hash {
                self.key_ids.get_or_create(&HashLabel { key, role, key_id_hash }).set(1);
            }
        }
    }

    pub(crate) fn expiry(&self, at: Option<SystemTime>) {
        self.expiry.set(at.and_then(seconds).unwrap_or(0));
    }
}

/// Since 1970, for a gauge.
fn seconds(at: SystemTime) -> Option<i64> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

impl Operation {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
        }
    }
}

impl ForwardError {
    fn label(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
        }
    }
}
