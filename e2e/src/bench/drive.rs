//! The load: many calls in flight on one connection, as kube-apiserver sends them.

use std::cell::Cell as Shared;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::{JoinSet, LocalSet};

use super::direct::{self, Direct};
use super::fake::Calls;
use super::figures::{Beside, Cell};
use super::memory::cpu_time;
use super::plugin::Plugin;
use super::reach::Reach;
use crate::http::HttpClient;
use crate::metrics::Metrics;

/// Counter of calls to the backend, which our providers have.
const BACKEND_CALLS: &str = "kms_backend_calls_total";

/// Where two things are measured, each gets its time in so many turns: whatever else the
/// machine does in between falls on both.
const TURNS: u32 = 5;

/// How much to do.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Calls in flight, one measurement for each.
    pub concurrency: Vec<usize>,
    /// Ciphertexts to decrypt, all different.
    pub pool: usize,
    /// Measured time of each operation at each concurrency.
    pub time: Duration,
    /// Calls to make in all; what the measurements leave over is made at the end.
    pub calls: u64,
}

/// A plugin to drive.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where it listens.
    pub reach: Reach,
    /// For its CPU time.
    pub pid: Option<u32>,
    /// For its count of backend calls.
    pub counter: Counter,
}

/// Who counts the calls to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Nobody whom we know.
    Nobody,
    /// The plugin itself, on its admin server.
    Plugin(SocketAddr),
    /// The fake endpoint.
    Fake(SocketAddr),
}

/// What is driven in turns with a plugin, so that the figures say what the plugin adds.
#[derive(Clone, Debug)]
pub enum Companion {
    /// The plugin behind it, without it.
    Plugin(String, Target),
    /// The fake endpoint behind it, by plain HTTP: Decrypt only.
    Direct(SocketAddr, u32),
}

/// The measured calls, and how many were made in all.
#[derive(Debug)]
pub struct LoadFigures {
    /// One for each operation and concurrency.
    pub cells: Vec<Cell>,
    /// Warming up and preparation included.
    pub calls: u64,
    /// The companion's.
    pub beside: Option<Beside>,
}

/// Drives a target, in turns with its companion, with every operation at every concurrency. A
/// call that fails or answers wrongly ends the measurement: figures of a broken plugin mean
/// nothing.
pub async fn measure_load(
    target: &Target,
    companion: Option<&Companion>,
    effort: &Effort,
) -> Result<LoadFigures> {
    let (loads, beside) = prepare(target, companion, effort).await?;
    let mut cells: Vec<Vec<Cell>> = loads.iter().map(|_| Vec::new()).collect();
    let turns = if loads.len() > 1 { TURNS } else { 1 };
    for operation in [Operation::Decrypt, Operation::Encrypt, Operation::Status] {
        for concurrency in &effort.concurrency {
            let what = || format!("{} at concurrency {concurrency}", operation.name());
            let mut tallies: Vec<Tally> = loads.iter().map(|_| Tally::default()).collect();
            let able = || loads.iter().enumerate().filter(|(_, load)| load.caller.can(operation));
            for _ in 0..turns {
                for (index, load) in able() {
                    let (time, tally) = (effort.time / turns, &mut tallies[index]);
                    load.turn(operation, *concurrency, time, tally).await.with_context(what)?;
                }
            }
            for (index, _) in able() {
                let tally = std::mem::take(&mut tallies[index]);
                cells[index].push(tally.cell(operation, *concurrency).with_context(what)?);
            }
        }
    }
    loads[0].finish(effort).await.context("the rest of the calls")?;
    let mut cells = cells.into_iter();
    let own = cells.next().unwrap_or_default();
    let beside = beside.zip(cells.next()).map(|(subject, load)| Beside { subject, load });
    Ok(LoadFigures { cells: own, calls: loads[0].calls(), beside })
}

/// The target's load comes first, then its companion's, of which the name is given.
async fn prepare(
    target: &Target,
    companion: Option<&Companion>,
    effort: &Effort,
) -> Result<(Vec<Load>, Option<String>)> {
    let fake = match companion {
        Some(Companion::Direct(fake, _)) => Some(*fake),
        _ => None,
    };
    let (plugin, records) = Plugin::prepare(&target.reach, effort.pool, fake).await?;
    let mut loads = vec![Load::new(Caller::Plugin(plugin), target.pid, target.counter)];
    let name = match companion {
        None => None,
        Some(Companion::Plugin(name, target)) => {
            let (plugin, _) = Plugin::prepare(&target.reach, effort.pool, None).await?;
            loads.push(Load::new(Caller::Plugin(plugin), target.pid, target.counter));
            Some(name.clone())
        }
        Some(Companion::Direct(fake, pid)) => {
            let caller = Caller::Direct(Direct::new(*fake, records)?);
            loads.push(Load::new(caller, Some(*pid), Counter::Fake(*fake)));
            Some(direct::NAME.to_owned())
        }
    };
    Ok((loads, name))
}

/// What is asked of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Status,
    Encrypt,
    Decrypt,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Status => "Status",
            Self::Encrypt => "Encrypt",
            Self::Decrypt => "Decrypt",
        }
    }
}

/// Who makes the calls.
#[derive(Clone)]
enum Caller {
    Plugin(Plugin),
    Direct(Direct),
}

impl Caller {
    fn can(&self, operation: Operation) -> bool {
        matches!(self, Self::Plugin(_)) || operation == Operation::Decrypt
    }

    async fn call(&mut self, operation: Operation, number: u64) -> Result<()> {
        match self {
            Self::Plugin(plugin) => plugin.call(operation, number).await,
            Self::Direct(direct) => direct.call(number).await,
        }
    }
}

/// What was counted of one operation at one concurrency so far.
#[derive(Debug, Default)]
struct Tally {
    latencies: Vec<u32>,
    took: Duration,
    /// Warming up included, as in what follows.
    calls: u64,
    cpu: Option<Duration>,
    backend: Option<BTreeMap<String, f64>>,
}

impl Tally {
    fn cell(mut self, operation: Operation, concurrency: usize) -> Result<Cell> {
        let latencies = &mut self.latencies;
        latencies.sort_unstable();
        ensure!(!latencies.is_empty(), "no call was answered in {:?}", self.took);
        let calls = self.calls as f64;
        let mut backend = self.backend;
        backend.iter_mut().flat_map(BTreeMap::values_mut).for_each(|count| *count /= calls);
        Ok(Cell {
            operation: operation.name(),
            concurrency,
            calls: latencies.len() as u64,
            rate: latencies.len() as f64 / self.took.as_secs_f64(),
            p50_us: percentile(latencies, 0.50),
            p99_us: percentile(latencies, 0.99),
            max_us: percentile(latencies, 1.0),
            server_cpu_us: self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / calls),
            // Not sum(), which is -0 where there are none.
            backend_calls: backend.as_ref().map(|counts| counts.values().fold(0.0, |a, b| a + b)),
            backend_operations: backend,
        })
    }

    /// Adds what the backend was asked between two counts.
    fn add_backend(&mut self, before: &BTreeMap<String, f64>, after: BTreeMap<String, f64>) {
        let counts = self.backend.get_or_insert_default();
        for (operation, count) in after {
            let more = count - before.get(&operation).copied().unwrap_or_default();
            if more > 0.0 {
                *counts.entry(operation).or_default() += more;
            }
        }
    }
}

#[derive(Clone)]
struct Load {
    caller: Caller,
    /// Number of the next call.
    next: Rc<Shared<u64>>,
    pid: Option<u32>,
    counter: Counter,
}

impl Load {
    fn new(caller: Caller, pid: Option<u32>, counter: Counter) -> Self {
        Self { caller, next: Rc::default(), pid, counter }
    }

    /// One operation at one concurrency: warm for a fifth of the time, then measured.
    async fn turn(
        &self,
        operation: Operation,
        concurrency: usize,
        time: Duration,
        tally: &mut Tally,
    ) -> Result<()> {
        let backend_before = self.backend_calls().await;
        let (calls_before, cpu_before) = (self.next.get(), self.cpu());
        let begin = Instant::now() + time / 5;
        let end = begin + time;
        self.drive(operation, concurrency, begin, end, u64::MAX, &mut tally.latencies).await?;
        tally.took += begin.elapsed();
        tally.calls += self.next.get() - calls_before;
        if let Some((before, after)) = cpu_before.zip(self.cpu()) {
            *tally.cpu.get_or_insert_default() += after.saturating_sub(before);
        }
        if let Some((before, after)) = backend_before.zip(self.backend_calls().await) {
            tally.add_backend(&before, after);
        }
        Ok(())
    }

    /// Decrypts until as many calls were made as were asked for.
    async fn finish(&self, effort: &Effort) -> Result<()> {
        let last = self.next.get() + effort.calls.saturating_sub(self.calls());
        let concurrency = effort.concurrency.iter().copied().max().unwrap_or(1);
        let now = Instant::now();
        let end = now + Duration::from_secs(3600);
        self.drive(Operation::Decrypt, concurrency, now, end, last, &mut Vec::new()).await
    }

    /// All calls so far.
    fn calls(&self) -> u64 {
        let prepared = match &self.caller {
            Caller::Plugin(plugin) => plugin.prepared(),
            Caller::Direct(_) => 0,
        };
        self.next.get() + prepared
    }

    async fn drive(
        &self,
        operation: Operation,
        concurrency: usize,
        begin: Instant,
        end: Instant,
        last: u64,
        latencies: &mut Vec<u32>,
    ) -> Result<()> {
        let local = LocalSet::new();
        let mut workers = JoinSet::new();
        for _ in 0..concurrency {
            workers.spawn_local_on(self.clone().work(operation, begin, end, last), &local);
        }
        let collect = async {
            while let Some(done) = workers.join_next().await {
                latencies.extend(done??);
            }
            anyhow::Ok(())
        };
        local.run_until(collect).await
    }

    /// Calls one after the other; gives the latencies of those that began in time, and of one
    /// call at least, however slow they are.
    async fn work(
        mut self,
        operation: Operation,
        begin: Instant,
        end: Instant,
        last: u64,
    ) -> Result<Vec<u32>> {
        let mut latencies = Vec::new();
        loop {
            let (start, number) = (Instant::now(), self.next.get());
            if (start >= end && !latencies.is_empty()) || number >= last {
                return Ok(latencies);
            }
            self.next.set(number + 1);
            self.caller.call(operation, number).await?;
            if start >= begin {
                let nanos = start.elapsed().as_nanos();
                latencies.push(u32::try_from(nanos).unwrap_or(u32::MAX));
            }
        }
    }

    fn cpu(&self) -> Option<Duration> {
        cpu_time(self.pid?).ok()
    }

    /// The calls to the backend so far, by operation; `None` if nobody counts them.
    async fn backend_calls(&self) -> Option<BTreeMap<String, f64>> {
        match self.counter {
            Counter::Nobody => None,
            Counter::Plugin(admin) => {
                let answer = HttpClient::plain(admin).get("/metrics").await.ok()?.ok().ok()?;
                let metrics = Metrics::parse(&answer.text()).ok()?;
                let mut counts = BTreeMap::new();
                for sample in metrics.find(BACKEND_CALLS, &[]) {
                    let operation = sample.labels.get("operation").cloned().unwrap_or_default();
                    *counts.entry(operation).or_default() += sample.value;
                }
                (!counts.is_empty()).then_some(counts)
            }
            Counter::Fake(fake) => {
                let calls = Calls::of(fake).await.ok()?;
                Some(calls.0.into_iter().map(|(name, count)| (name, count as f64)).collect())
            }
        }
    }
}

/// In microseconds; `sorted` is not empty.
fn percentile(sorted: &[u32], share: f64) -> f64 {
    let last = sorted.len() - 1;
    let index = (last as f64 * share).ceil() as usize;
    f64::from(sorted[index.min(last)]) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_where_they_should() {
        let sorted: Vec<u32> = (0..=100).map(|n| n * 1000).collect();
        assert_eq!(percentile(&sorted, 0.5), 50.0);
        assert_eq!(percentile(&sorted, 0.99), 99.0);
        assert_eq!(percentile(&sorted, 1.0), 100.0);
        assert_eq!(percentile(&[7000], 0.5), 7.0);
    }
}
