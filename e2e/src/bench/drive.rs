//! The load: many calls in flight on one connection, as kube-apiserver sends them.

use std::cell::Cell as Shared;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::rand;
use bytes::Bytes;
use sidekey_core::Endpoint;
use sidekey_core::client::{Connection, connect};
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, EncryptResponse, StatusRequest};
use tokio::task::{JoinSet, LocalSet};

use super::figures::Cell;
use super::memory::cpu_time;
use crate::http::HttpClient;
use crate::metrics::Metrics;

/// What kube-apiserver encrypts: a data encryption key, or the seed of many.
const PLAINTEXT: usize = 32;

/// kube-apiserver's own time limit for a call.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Counter of calls to the backend, which our providers have.
const BACKEND_CALLS: &str = "kms_backend_calls_total";

/// Where two targets are measured, each gets its time in so many turns: whatever else the
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
    pub endpoint: Endpoint,
    /// For its CPU time.
    pub pid: Option<u32>,
    /// For its count of backend calls.
    pub admin: Option<SocketAddr>,
}

/// The measured calls, and how many were made in all.
#[derive(Debug)]
pub struct LoadFigures {
    /// One for each operation and concurrency.
    pub cells: Vec<Cell>,
    /// Warming up and preparation included.
    pub calls: u64,
}

/// Drives the targets, in turns, with every operation at every concurrency. A call that fails
/// or answers wrongly ends the measurement: figures of a broken plugin mean nothing.
pub async fn measure_load<const N: usize>(
    targets: [&Target; N],
    effort: &Effort,
) -> Result<[LoadFigures; N]> {
    let mut loads = Vec::new();
    for target in targets {
        loads.push(Load::prepare(target, effort.pool).await?);
    }
    let mut cells: [Vec<Cell>; N] = std::array::from_fn(|_| Vec::new());
    let turns = if N > 1 { TURNS } else { 1 };
    for operation in [Operation::Decrypt, Operation::Encrypt, Operation::Status] {
        for concurrency in &effort.concurrency {
            let what = || format!("{} at concurrency {concurrency}", operation.name());
            let mut tallies: [Tally; N] = std::array::from_fn(|_| Tally::default());
            for _ in 0..turns {
                for (load, tally) in loads.iter().zip(&mut tallies) {
                    let turn = load.turn(operation, *concurrency, effort.time / turns, tally);
                    turn.await.with_context(what)?;
                }
            }
            for (tally, cells) in tallies.into_iter().zip(&mut cells) {
                cells.push(tally.cell(operation, *concurrency).with_context(what)?);
            }
        }
    }
    let mut cells = cells.into_iter();
    let mut figures = Vec::new();
    for load in &loads {
        load.finish(effort).await.context("the rest of the calls")?;
        let cells = cells.next().unwrap_or_default();
        figures.push(LoadFigures { cells, calls: load.calls() });
    }
    figures.try_into().ok().context("one set of figures for each target")
}

#[derive(Clone, Copy, Debug)]
enum Operation {
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

/// A wrapped key and what it unwraps to.
#[derive(Debug)]
struct Wrapped {
    answer: EncryptResponse,
    plaintext: Bytes,
}

/// What was counted of one operation at one concurrency so far.
#[derive(Debug, Default)]
struct Tally {
    latencies: Vec<u32>,
    took: Duration,
    /// Warming up included, as in what follows.
    calls: u64,
    cpu: Option<Duration>,
    backend: Option<f64>,
}

impl Tally {
    fn cell(mut self, operation: Operation, concurrency: usize) -> Result<Cell> {
        let latencies = &mut self.latencies;
        latencies.sort_unstable();
        ensure!(!latencies.is_empty(), "no call was answered in {:?}", self.took);
        Ok(Cell {
            operation: operation.name(),
            concurrency,
            calls: latencies.len() as u64,
            rate: latencies.len() as f64 / self.took.as_secs_f64(),
            p50_us: percentile(latencies, 0.50),
            p99_us: percentile(latencies, 0.99),
            max_us: percentile(latencies, 1.0),
            server_cpu_us: self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / self.calls as f64),
            backend_calls: self.backend.map(|calls| calls / self.calls as f64),
        })
    }
}

#[derive(Clone)]
struct Load {
    client: KeyManagementServiceClient<Connection>,
    pool: Rc<[Wrapped]>,
    /// Number of the next call.
    next: Rc<Shared<u64>>,
    pid: Option<u32>,
    admin: Option<SocketAddr>,
}

impl Load {
    async fn prepare(target: &Target, size: usize) -> Result<Self> {
        let client = connect(&target.endpoint).await?;
        let pool = pool(client.clone(), size).await?.into();
        Ok(Self { client, pool, next: Rc::default(), pid: target.pid, admin: target.admin })
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
            *tally.backend.get_or_insert_default() += after - before;
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

    /// All calls so far: each entry of the pool was encrypted and decrypted once.
    fn calls(&self) -> u64 {
        self.next.get() + 2 * self.pool.len() as u64
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

    /// Calls one after the other; gives the latencies of those that began in time.
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
            if start >= end || number >= last {
                return Ok(latencies);
            }
            self.next.set(number + 1);
            self.call(operation, number).await?;
            if start >= begin {
                let nanos = start.elapsed().as_nanos();
                latencies.push(u32::try_from(nanos).unwrap_or(u32::MAX));
            }
        }
    }

    async fn call(&mut self, operation: Operation, number: u64) -> Result<()> {
        match operation {
            Operation::Status => {
                let status = self.client.status(timed(StatusRequest {})).await?.into_inner();
                ensure!(status.healthz == "ok", "Status says {:?}", status.healthz);
            }
            Operation::Encrypt => {
                let plaintext = random()?;
                self.client.encrypt(timed(EncryptRequest { plaintext, uid: uid(number) })).await?;
            }
            Operation::Decrypt => {
                let index = usize::try_from(number).unwrap_or_default() % self.pool.len();
                let wrapped = &self.pool[index];
                let request = decrypt_request(&wrapped.answer, uid(number));
                let answer = self.client.decrypt(timed(request)).await?.into_inner();
                ensure!(answer.plaintext == wrapped.plaintext, "a wrong plaintext was answered");
            }
        }
        Ok(())
    }

    fn cpu(&self) -> Option<Duration> {
        cpu_time(self.pid?).ok()
    }

    /// What the plugin counts itself; `None` if it does not.
    async fn backend_calls(&self) -> Option<f64> {
        let answer = HttpClient::plain(self.admin?).get("/metrics").await.ok()?.ok().ok()?;
        let metrics = Metrics::parse(&answer.text()).ok()?;
        metrics.find(BACKEND_CALLS, &[]).next()?;
        Some(metrics.sum(BACKEND_CALLS, &[]))
    }
}

/// Wraps `size` different keys and unwraps each once, to be sure of them.
async fn pool(
    mut client: KeyManagementServiceClient<Connection>,
    size: usize,
) -> Result<Vec<Wrapped>> {
    let mut pool = Vec::with_capacity(size);
    for number in 0..size as u64 {
        let plaintext = random()?;
        let request = EncryptRequest { plaintext: plaintext.clone(), uid: uid(number) };
        let answer = client.encrypt(timed(request)).await.context("Encrypt")?.into_inner();
        let request = decrypt_request(&answer, uid(number));
        let back = client.decrypt(timed(request)).await.context("Decrypt")?.into_inner();
        ensure!(back.plaintext == plaintext, "Decrypt did not give back what Encrypt was given");
        pool.push(Wrapped { answer, plaintext });
    }
    Ok(pool)
}

fn decrypt_request(answer: &EncryptResponse, uid: String) -> DecryptRequest {
    let EncryptResponse { ciphertext, key_id, annotations } = answer.clone();
    DecryptRequest { ciphertext, uid, key_id, annotations }
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(TIMEOUT);
    request
}

fn random() -> Result<Bytes> {
    let mut bytes = [0; PLAINTEXT];
    rand::fill(&mut bytes).ok().context("no randomness")?;
    Ok(Bytes::copy_from_slice(&bytes))
}

/// As long as the UUIDs that kube-apiserver sends.
fn uid(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
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
