//! What Prometheus sees, for every process. Labels are bounded: key numbers, operations, codes and
//! kinds, and the hashes of key_ids that are announced. Nothing that a caller sends becomes one.

mod key;

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use tonic::Code;

pub(crate) use key::{BackendCall, BackendCalls, KeyMetrics, ProviderMetrics};
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::gauge::Gauge;

use crate::kms::Operation;
use crate::{Kind, code_name};

/// From far below a local call to the longest deadline in use.
const BUCKETS: [f64; 12] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0];

/// Gives an enum without fields its list and its labels: what configuration, metrics, `/status` and
/// log call each.
#[macro_export]
macro_rules! labels {
    ($visibility:vis $name:ident: $($variant:ident = $label:literal),+ $(,)?) => {
        impl $name {
            /// Every one, in its order.
            $visibility const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// As it is written and shown.
            $visibility fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }
    };
}

/// The metrics of a process; each is registered where it is made.
#[derive(Debug, Default)]
pub struct MetricRegistry(Registry);

/// A label and its value.
type Label = (&'static str, Cow<'static, str>);

/// A metric that has labels.
#[derive(Clone, Debug)]
pub struct Labelled<M>(Family<Vec<Label>, M, fn() -> M>);

/// Attempts to take something over: `result` is `success` or `failure`.
#[derive(Clone, Debug)]
pub struct ReloadCounter {
    success: Counter,
    failure: Counter,
}

/// Requests by operation and code, and how long they took.
#[derive(Debug)]
pub struct RequestMetrics {
    operations: [OperationMetrics; 3],
    /// Failures by kind, of one key.
    kinds: Option<(Labelled<Counter>, String)>,
}

#[derive(Debug)]
struct OperationMetrics {
    duration: Histogram,
    /// Looked up once, because nearly all succeed.
    ok: Counter,
    codes: Labelled<Counter>,
    /// The other label beside the code.
    label: Label,
}

impl MetricRegistry {
    /// Counts by label.
    pub fn counters(&mut self, name: &str, help: &str) -> Labelled<Counter> {
        self.labelled(name, help, Counter::default)
    }

    /// States by label.
    pub fn gauges(&mut self, name: &str, help: &str) -> Labelled<Gauge> {
        self.labelled(name, help, Gauge::default)
    }

    /// Times by label.
    pub fn durations(&mut self, name: &str, help: &str) -> Labelled<Histogram> {
        self.labelled(name, help, || Histogram::new(BUCKETS))
    }

    /// One count or state without labels.
    pub fn single<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }

    /// Says what runs here, in `<prefix>_build_info`, and whether its cryptography is that of a FIPS
    /// module, in `<prefix>_fips_mode`.
    pub fn build_info(&mut self, prefix: &str, more: &[(&'static str, &'static str)]) {
        let labels = more.iter().copied().chain([("version", crate::VERSION)]);
        let labels = labels.map(|(name, value)| (name, value.into())).collect();
        let help = "What runs here, and its version";
        self.gauges(&format!("{prefix}_build_info"), help).0.get_or_create(&labels).set(1);
        let (name, help) = (format!("{prefix}_fips_mode"), "Whether it is AWS-LC's FIPS module");
        self.single::<Gauge>(&name, help).set(aws_lc_rs::try_fips_mode().is_ok().into());
    }

    /// Attempts to take something over.
    pub fn reloads(&mut self, name: &str, help: &str) -> ReloadCounter {
        ReloadCounter::of(&self.counters(name, help), &[])
    }

    /// Requests of a whole process, in `<prefix>_requests` and `<prefix>_request_duration_seconds`.
    pub fn requests(&mut self, prefix: &str) -> RequestMetrics {
        let codes = self.counters(&format!("{prefix}_requests"), "Requests answered");
        let name = format!("{prefix}_request_duration_seconds");
        let durations = self.durations(&name, "Time to answer a request");
        let operations = Operation::ALL.map(|operation| {
            let label = ("operation", operation.label().into());
            OperationMetrics::new(durations.with([label.clone()]), codes.clone(), label)
        });
        RequestMetrics { operations, kinds: None }
    }

    /// Everything in OpenMetrics text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0);
        text
    }

    fn labelled<M>(&mut self, name: &str, help: &str, make: fn() -> M) -> Labelled<M>
    where
        M: Clone + std::fmt::Debug + Send + Sync + 'static,
        Family<Vec<Label>, M, fn() -> M>: Metric,
    {
        let family = Family::new_with_constructor(make);
        self.0.register(name, help, family.clone());
        Labelled(family)
    }
}

impl<M: Clone> Labelled<M> {
    /// The metric with these labels.
    pub fn with<const N: usize>(&self, labels: [Label; N]) -> M {
        self.0.get_or_create_owned(&labels.into())
    }

    /// Takes the metric with these labels away.
    pub fn remove<const N: usize>(&self, labels: [Label; N]) {
        self.0.remove(&labels.into());
    }

    /// Takes all of them away.
    pub fn clear(&self) {
        self.0.clear();
    }
}

impl ReloadCounter {
    fn of(family: &Labelled<Counter>, labels: &[Label]) -> Self {
        let count = |result: &'static str| {
            let result = [("result", result.into())];
            family.0.get_or_create_owned(&labels.iter().cloned().chain(result).collect())
        };
        Self { success: count("success"), failure: count("failure") }
    }

    /// Counts an attempt.
    pub fn count(&self, succeeded: bool) {
        if succeeded { &self.success } else { &self.failure }.inc();
    }

    /// Takes over what somebody else has counted.
    pub fn set(&self, succeeded: u64, failed: u64) {
        for (counter, count) in [(&self.success, succeeded), (&self.failure, failed)] {
            counter.inner().store(count, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl RequestMetrics {
    /// Counts one answered request.
    pub(crate) fn answered(
        &self,
        operation: Operation,
        took: Duration,
        code: Code,
        kind: Option<Kind>,
    ) {
        let metrics = &self.operations[operation as usize];
        metrics.duration.observe(took.as_secs_f64());
        if code == Code::Ok {
            metrics.ok.inc();
            return;
        }
        metrics.codes.with([metrics.label.clone(), ("code", code_name(code).into())]).inc();
        // What Status says of a key has been counted when its probe failed.
        if let (Some((kinds, key)), Some(kind)) = (&self.kinds, kind)
            && operation != Operation::Status
        {
            kinds.with([("key", key.clone().into()), ("kind", kind.label().into())]).inc();
        }
    }
}

impl OperationMetrics {
    fn new(duration: Histogram, codes: Labelled<Counter>, label: Label) -> Self {
        let ok = codes.with([label.clone(), ("code", code_name(Code::Ok).into())]);
        Self { duration, ok, codes, label }
    }
}

/// A time as a gauge shows it: since 1970.
pub fn seconds(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
