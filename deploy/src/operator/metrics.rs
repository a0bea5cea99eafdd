//! Metrics of the operator, as OpenMetrics text.
//!
//! Only what happens is counted here. What is so (states, conditions, replicas) is read from the
//! cached objects when somebody asks, so that nothing is left of an object that is gone.

#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use kube::ResourceExt;
use kube::api::DynamicObject;

use super::status::Status;
use text::Text;

/// From a pass that finds nothing to do to one that waits for every shim.
const BUCKETS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];

/// Whose passes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The core.
    SecretEncryption,
    /// The front end of HyperShift.
    HostedCluster,
    /// The front end of OpenShift.
    ApiServer,
}

/// Every count of the process; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Counts>);

/// A pass that waits for its turn, then runs; counted until it is dropped.
#[derive(Debug)]
pub struct Pass {
    metrics: Metrics,
    kind: Kind,
    running: Option<tokio::time::Instant>,
}

#[derive(Debug, Default)]
struct Counts {
    kinds: [Passes; Kind::ALL.len()],
    jobs: Mutex<BTreeMap<JobLabel, u64>>,
    leader: AtomicBool,
}

#[derive(Debug, Default)]
struct Passes {
    waiting: AtomicI64,
    active: AtomicI64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    micros: AtomicU64,
    within: [AtomicU64; BUCKETS.len()],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct JobLabel {
    namespace: String,
    name: String,
    task: String,
}

/// One control plane, as its cached object says.
struct Plane {
    namespace: String,
    name: String,
    status: Status,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SecretEncryption, Self::HostedCluster, Self::ApiServer];

    /// As Kubernetes writes it.
    pub fn label(self) -> &'static str {
        match self {
            Self::SecretEncryption => "SecretEncryption",
            Self::HostedCluster => "HostedCluster",
            Self::ApiServer => "APIServer",
        }
    }
}

impl Metrics {
    /// A pass over an object of this kind waits for its turn.
    pub fn waiting(&self, kind: Kind) -> Pass {
        self.of(kind).waiting.fetch_add(1, Ordering::Relaxed);
        Pass { metrics: self.clone(), kind, running: None }
    }

    /// A Job of this SecretEncryption has failed; `task` is what it was for, in one word
    /// (`migrate`, `census`, `preflight`, `gate`).
    pub fn job_failed(&self, namespace: &str, name: &str, task: &str) {
        let label = JobLabel { namespace: namespace.into(), name: name.into(), task: task.into() };
        *held(&self.0.jobs).entry(label).or_default() += 1;
    }

    /// Whether this process holds the lease.
    pub fn leading(&self, leader: bool) {
        self.0.leader.store(leader, Ordering::Relaxed);
    }

    /// The whole text, with what the cached SecretEncryptions say.
    pub fn text(&self, objects: &[Arc<DynamicObject>]) -> String {
        let planes: Vec<Plane> = objects.iter().map(|object| Plane::of(object)).collect();
        let mut text = Text::default();
        self.process(&mut text);
        self.passes(&mut text);
        self.failures(&planes, &mut text);
        rotations(&planes, &mut text);
        conditions(&planes, &mut text);
        text.finish()
    }

    fn of(&self, kind: Kind) -> &Passes {
        &self.0.kinds[kind as usize]
    }

    fn process(&self, text: &mut Text) {
        text.gauge("sidekey_operator_build", "Version");
        text.sample("sidekey_operator_build", &[("version", crate::VERSION)], 1.0);
        text.gauge("sidekey_operator_leader", "1 while this process holds the lease");
        let leader = self.0.leader.load(Ordering::Relaxed);
        text.sample("sidekey_operator_leader", &[], f64::from(u8::from(leader)));
        if let Some(bytes) = resident() {
            text.gauge("process_resident_memory_bytes", "Resident memory");
            text.sample("process_resident_memory_bytes", &[], bytes);
        }
    }

    fn passes(&self, text: &mut Text) {
        let each = || Kind::ALL.into_iter().map(|kind| (kind.label(), self.of(kind)));
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        text.counter("sidekey_operator_reconciles", "Passes that are over");
        for (kind, passes) in each() {
            for (result, counter) in [("success", &passes.succeeded), ("error", &passes.failed)] {
                let labels = [("kind", kind), ("result", result)];
                text.sample("sidekey_operator_reconciles_total", &labels, load(counter));
            }
        }
        text.counter("sidekey_operator_reconcile_errors", "Passes that failed");
        for (kind, passes) in each() {
            let errors = load(&passes.failed);
            text.sample("sidekey_operator_reconcile_errors_total", &[("kind", kind)], errors);
        }
        for (name, help, gauge) in [
            ("sidekey_operator_queue", "Passes that wait for their turn", 0),
            ("sidekey_operator_reconciles_active", "Passes that run", 1),
        ] {
            text.gauge(name, help);
            for (kind, passes) in each() {
                let value = [&passes.waiting, &passes.active][gauge].load(Ordering::Relaxed);
                text.sample(name, &[("kind", kind)], value as f64);
            }
        }
        let name = "sidekey_operator_reconcile_duration_seconds";
        text.histogram(name, "How long passes took");
        for (kind, passes) in each() {
            let count = load(&passes.succeeded) + load(&passes.failed);
            let within = BUCKETS.iter().zip(&passes.within).map(|(le, c)| (*le, load(c)));
            let sum = load(&passes.micros) / 1e6;
            text.distribution(name, &[("kind", kind)], within, sum, count);
        }
    }

    /// Of objects that are still there; the counts of others are dropped.
    fn failures(&self, planes: &[Plane], text: &mut Text) {
        let known: HashSet<(&str, &str)> =
            planes.iter().map(|plane| (plane.namespace.as_str(), plane.name.as_str())).collect();
        let mut jobs = held(&self.0.jobs);
        jobs.retain(|label, _| known.contains(&(label.namespace.as_str(), label.name.as_str())));
        text.counter("sidekey_operator_job_failures", "Jobs that failed");
        for (label, count) in jobs.iter() {
            let labels =
                [("namespace", &*label.namespace), ("name", &*label.name), ("task", &*label.task)];
            text.sample("sidekey_operator_job_failures_total", &labels, *count as f64);
        }
        let name = "hypershift_encryption_migration_failures";
        text.counter(name, "Migrations of stored data that failed");
        for (label, count) in jobs.iter().filter(|(label, _)| label.task == "migrate") {
            let labels = [("namespace", &*label.namespace), ("name", &*label.name)];
            text.sample(&format!("{name}_total"), &labels, *count as f64);
        }
    }
}

/// Where each control plane is, under our names and under HyperShift's.
fn rotations(planes: &[Plane], text: &mut Text) {
    text.gauge("sidekey_operator_control_planes", "SecretEncryptions that are looked after");
    text.sample("sidekey_operator_control_planes", &[], planes.len() as f64);
    for (name, help) in [
        ("sidekey_operator_rotation_state", "1 for the state of the last rotation"),
        ("hypershift_encryption_migration_state", "1 for the state of the last rotation"),
    ] {
        text.gauge(name, help);
        for plane in planes {
            let Some(state) = plane.state() else { continue };
            text.sample(name, &plane.labels(&[("state", state)]), 1.0);
        }
    }
    let name = "hypershift_encryption_migration_duration_seconds";
    text.gauge(name, "How long the last rotation took, or the one under way takes so far");
    for plane in planes {
        if let Some(took) = plane.duration(SystemTime::now()) {
            text.sample(name, &plane.labels(&[]), took.as_secs_f64());
        }
    }
}

fn conditions(planes: &[Plane], text: &mut Text) {
    let name = "sidekey_operator_condition";
    text.gauge(name, "1 for the status that a condition has");
    for plane in planes {
        for condition in &plane.status.conditions {
            let labels = [("type", &*condition.kind), ("status", &*condition.status)];
            text.sample(name, &plane.labels(&labels), 1.0);
        }
    }
    let name = "sidekey_operator_replicas";
    text.gauge(name, "Replicas of kube-apiserver by health of their write key");
    for plane in planes {
        let healthy = plane.status.replicas.iter().filter(|replica| replica.healthy).count();
        let sick = plane.status.replicas.len() - healthy;
        text.sample(name, &plane.labels(&[("healthy", "true")]), healthy as f64);
        text.sample(name, &plane.labels(&[("healthy", "false")]), sick as f64);
    }
    let name = "sidekey_operator_keys";
    text.gauge(name, "Keys that are loaded or retired");
    for plane in planes {
        let (loaded, retired) = (plane.status.keys.len(), plane.status.retired.len());
        text.sample(name, &plane.labels(&[("state", "loaded")]), loaded as f64);
        text.sample(name, &plane.labels(&[("state", "retired")]), retired as f64);
    }
}

impl Plane {
    fn of(object: &DynamicObject) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            status: Status::of(object),
        }
    }

    fn labels<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut labels = vec![("namespace", &*self.namespace), ("name", &*self.name)];
        labels.extend_from_slice(more);
        labels
    }

    fn state(&self) -> Option<&'static str> {
        let under_way = self.status.rotation.as_ref().map(|rotation| rotation.stage);
        let stage = under_way.or_else(|| Some(self.status.history.first()?.state));
        stage.map(|stage| stage.label())
    }

    fn duration(&self, now: SystemTime) -> Option<Duration> {
        let time = |text: &str| humantime::parse_rfc3339(text).ok();
        match (&self.status.rotation, self.status.history.first()) {
            (Some(rotation), _) => now.duration_since(time(&rotation.started_time)?).ok(),
            (None, Some(past)) => {
                time(&past.completion_time)?.duration_since(time(&past.started_time)?).ok()
            }
            (None, None) => None,
        }
    }
}

impl Pass {
    /// Its turn has come.
    pub fn start(&mut self) {
        let passes = self.metrics.of(self.kind);
        passes.waiting.fetch_sub(1, Ordering::Relaxed);
        passes.active.fetch_add(1, Ordering::Relaxed);
        self.running = Some(tokio::time::Instant::now());
    }

    /// It is over.
    pub fn end(self, succeeded: bool) {
        let Some(started) = self.running else { return };
        let (passes, took) = (self.metrics.of(self.kind), started.elapsed());
        let result = if succeeded { &passes.succeeded } else { &passes.failed };
        result.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        passes.micros.fetch_add(micros, Ordering::Relaxed);
        for (bound, counter) in BUCKETS.iter().zip(&passes.within) {
            if took.as_secs_f64() <= *bound {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let passes = self.metrics.of(self.kind);
        let gauge = if self.running.is_some() { &passes.active } else { &passes.waiting };
        gauge.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Resident bytes of this process.
fn resident() -> Option<f64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}

/// Every critical section leaves the value whole.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
