//! Continuous load that forgives nothing: each request is sent once, and any
//! answer but 2xx, any reset, time-out or wrong content is a failure.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;

use crate::kube::{Kind, KubeClient};
use crate::wait::{BROKEN, PATIENCE, eventually};

/// How many failures are kept in words.
const QUOTED_FAILURES: usize = 10;

/// Each writer keeps its first objects and every n-th for ever: old data for
/// the readers, whatever key it was written under.
const KEEP_FIRST: u64 = 5;
const KEEP_EVERY: u64 = 10;

/// How much load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Tasks that create through one server, read through another, update
    /// there, read back, list and delete.
    pub writers: usize,
    /// Tasks that read what the writers kept, through each server in turn.
    pub readers: usize,
    /// The namespace, which must exist.
    pub namespace: String,
    /// Rest of each task between two rounds, so that others can run too.
    pub rest: Duration,
}

impl Default for LoadOptions {
    fn default() -> Self {
        let namespace = "default".to_owned();
        Self { writers: 3, readers: 2, namespace, rest: Duration::from_millis(20) }
    }
}

/// What has been counted so far.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// All requests that were sent.
    pub requests: u64,
    /// Those that failed.
    pub failures: u64,
    /// Requests by what they did.
    pub by_verb: BTreeMap<&'static str, u64>,
    /// The first failures in words.
    pub first_failures: Vec<String>,
    /// What was written and must stay; told once the load has stopped.
    kept: Vec<Object>,
}

impl Report {
    /// An error that quotes the first failures if there was any.
    pub fn without_failures(self) -> Result<Self> {
        ensure!(self.failures == 0, "{self}");
        ensure!(self.requests > 0, "the load has not sent a single request");
        Ok(self)
    }

    /// Everything that the load has left is there through this server, with its contents.
    pub async fn all_reads(&self, server: &KubeClient, namespace: &str) -> Result<()> {
        ensure!(!self.kept.is_empty(), "the load has left nothing, or has not stopped");
        for kind in Kind::ALL {
            let listed = server.list(kind, namespace).await?;
            for Object { name, value, .. } in self.kept.iter().filter(|one| one.kind == kind) {
                let found = listed.get(name).and_then(|data| data.get("value"));
                let (kind, server) = (kind.plural(), server.name());
                ensure!(
                    found == Some(value),
                    "{BROKEN}{kind} {name} through {server} holds {found:?}, not {value:?}"
                );
            }
        }
        Ok(())
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} requests failed ({:?})", self.failures, self.requests, self.by_verb)?;
        self.first_failures.iter().try_for_each(|text| write!(f, "\n  {text}"))
    }
}

/// Loads that were started: what one leaves behind is not in the way of the next.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Running load; dropped, it stops at once.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

impl Load {
    /// Starts it on one or more servers of the same etcd.
    pub fn start(servers: Vec<KubeClient>, options: LoadOptions) -> Result<Self> {
        ensure!(!servers.is_empty(), "load needs at least one kube-apiserver");
        let (writers, readers) = (options.writers, options.readers);
        let shared = Arc::new(Shared {
            run: RUNS.fetch_add(1, Ordering::Relaxed),
            servers,
            options,
            stop: AtomicBool::new(false),
            report: Mutex::default(),
            kept: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for number in 0..writers {
            let shared = Arc::clone(&shared);
            tasks.spawn(async move { Worker { shared, number }.write().await });
        }
        for number in 0..readers {
            let shared = Arc::clone(&shared);
            tasks.spawn(async move { Worker { shared, number }.read().await });
        }
        Ok(Self { shared, tasks })
    }

    /// The counts so far.
    pub fn report(&self) -> Report {
        lock(&self.shared.report).clone()
    }

    /// Waits until so many more requests have been sent.
    pub async fn more(&self, requests: u64) -> Result<()> {
        let goal = self.report().requests + requests;
        eventually(format!("the load goes on for {requests} requests"), PATIENCE, async || {
            let now = self.report().requests;
            if now < goal {
                bail!("{now} of {goal}");
            }
            Ok(())
        })
        .await
    }

    /// Lets every request in flight end and tells the final counts.
    pub async fn stop(mut self) -> Result<Report> {
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a task of the load has died")?;
        }
        let kept = std::mem::take(&mut *lock(&self.shared.kept));
        Ok(Report { kept, ..self.report() })
    }
}

#[derive(Debug)]
struct Shared {
    run: u64,
    servers: Vec<KubeClient>,
    options: LoadOptions,
    stop: AtomicBool,
    report: Mutex<Report>,
    kept: Mutex<Vec<Object>>,
}

#[derive(Clone, Debug)]
struct Object {
    kind: Kind,
    name: String,
    value: String,
}

#[derive(Debug)]
struct Worker {
    shared: Arc<Shared>,
    number: usize,
}

impl Worker {
    async fn write(&self) {
        let mut round = 0;
        while self.goes_on() {
            // A failed round is counted; the next one begins with a new object.
            if self.write_once(round).await.is_none() {
                tokio::task::yield_now().await;
            }
            round += 1;
            tokio::time::sleep(self.shared.options.rest).await;
        }
    }

    async fn write_once(&self, round: u64) -> Option<()> {
        let kind = Kind::ALL[usize::try_from(round).unwrap_or_default() % Kind::ALL.len()];
        let (one, other) = (self.server(round), self.server(round + 1));
        let namespace = self.shared.options.namespace.as_str();
        let name = format!("load-{}-{}-{round}", self.shared.run, self.number);
        let (first, second) = (format!("{name} first"), format!("{name} second"));
        self.count("create", one.create(kind, namespace, &name, &[("value", &first)])).await?;
        self.count("read", expect(other, namespace, kind, &name, &first)).await?;
        self.count("update", other.update(kind, namespace, &name, &[("value", &second)])).await?;
        self.count("read", expect(one, namespace, kind, &name, &second)).await?;
        if round % 10 == 9 {
            self.count("list", one.list(kind, namespace)).await?;
        }
        if round < KEEP_FIRST || round.is_multiple_of(KEEP_EVERY) {
            lock(&self.shared.kept).push(Object { kind, name, value: second });
            return Some(());
        }
        self.count("delete", other.delete(kind, namespace, &name)).await.map(drop)
    }

    async fn read(&self) {
        let mut round = u64::try_from(self.number).unwrap_or_default();
        while self.goes_on() {
            let object = {
                let kept = lock(&self.shared.kept);
                let count = u64::try_from(kept.len()).unwrap_or_default().max(1);
                kept.get(usize::try_from(round % count).unwrap_or_default()).cloned()
            };
            if let Some(Object { kind, name, value }) = object {
                let namespace = &self.shared.options.namespace;
                let server = self.server(round / 3);
                let _ = self.count("read", expect(server, namespace, kind, &name, &value)).await;
            }
            round += 1;
            tokio::time::sleep(self.shared.options.rest).await;
        }
    }

    fn goes_on(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }

    fn server(&self, round: u64) -> &KubeClient {
        let servers = &self.shared.servers;
        &servers[(usize::try_from(round).unwrap_or_default() + self.number) % servers.len()]
    }

    async fn count<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Option<T> {
        let outcome = call.await;
        let mut report = lock(&self.shared.report);
        report.requests += 1;
        *report.by_verb.entry(verb).or_default() += 1;
        if let Err(error) = &outcome {
            report.failures += 1;
            if report.first_failures.len() < QUOTED_FAILURES {
                report.first_failures.push(format!("{verb}: {error:#}"));
            }
        }
        outcome.ok()
    }
}

async fn expect(
    server: &KubeClient,
    namespace: &str,
    kind: Kind,
    name: &str,
    value: &str,
) -> Result<()> {
    let data = server.read(kind, namespace, name).await?;
    ensure!(
        data.get("value").is_some_and(|found| found == value),
        "{BROKEN}{} {name} through {} holds {data:?}, not {value:?}",
        kind.plural(),
        server.name()
    );
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
