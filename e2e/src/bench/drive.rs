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

/// How much to do.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Calls in flight, one measurement for each.
    pub concurrency: Vec<usize>,
    /// Ciphertexts to decrypt, all different.
    pub pool: usize,
    /// Measured time of each operation at each concurrency.
    pub time: Duration,
}

/// What is known of the process that is driven.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
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

/// Drives the plugin at `endpoint` with every operation at every concurrency. A call that
/// fails or answers wrongly ends the measurement: figures of a broken plugin mean nothing.
pub async fn measure_load(
    endpoint: &Endpoint,
    effort: &Effort,
    observed: Observed,
) -> Result<LoadFigures> {
    let client = connect(endpoint).await?;
    let load = Load {
        pool: pool(client.clone(), effort.pool).await?.into(),
        client,
        next: Rc::default(),
        observed,
    };
    let mut cells = Vec::new();
    for operation in [Operation::Decrypt, Operation::Encrypt, Operation::Status] {
        for concurrency in &effort.concurrency {
            let what = || format!("{} at concurrency {concurrency}", operation.name());
            let cell = load.cell(operation, *concurrency, effort.time).await;
            cells.push(cell.with_context(what)?);
        }
    }
    // Each entry of the pool was encrypted and decrypted once.
    Ok(LoadFigures { cells, calls: load.next.get() + 2 * effort.pool as u64 })
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

#[derive(Clone)]
struct Load {
    client: KeyManagementServiceClient<Connection>,
    pool: Rc<[Wrapped]>,
    /// Number of the next call.
    next: Rc<Shared<u64>>,
    observed: Observed,
}

impl Load {
    /// One operation at one concurrency: warm for a fifth of the time, then measured.
    async fn cell(&self, operation: Operation, concurrency: usize, time: Duration) -> Result<Cell> {
        let backend_before = self.backend_calls().await;
        let (calls_before, cpu_before) = (self.next.get(), self.cpu());
        let begin = Instant::now() + time / 5;
        let end = begin + time;
        let local = LocalSet::new();
        let mut workers = JoinSet::new();
        for _ in 0..concurrency {
            workers.spawn_local_on(self.clone().work(operation, begin, end), &local);
        }
        let mut latencies = Vec::new();
        let collect = async {
            while let Some(done) = workers.join_next().await {
                latencies.extend(done??);
            }
            anyhow::Ok(())
        };
        local.run_until(collect).await?;
        let took = begin.elapsed();
        let calls = (self.next.get() - calls_before) as f64;
        let cpu = cpu_before.zip(self.cpu()).map(|(before, after)| after.saturating_sub(before));
        let backend = backend_before.zip(self.backend_calls().await);
        latencies.sort_unstable();
        ensure!(!latencies.is_empty(), "no call was answered in {time:?}");
        Ok(Cell {
            operation: operation.name(),
            concurrency,
            calls: latencies.len() as u64,
            rate: latencies.len() as f64 / took.as_secs_f64(),
            p50_us: percentile(&latencies, 0.50),
            p99_us: percentile(&latencies, 0.99),
            max_us: percentile(&latencies, 1.0),
            server_cpu_us: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / calls),
            backend_calls: backend.map(|(before, after)| (after - before) / calls),
        })
    }

    /// Calls one after the other; gives the latencies of those that began in time.
    async fn work(
        mut self,
        operation: Operation,
        begin: Instant,
        end: Instant,
    ) -> Result<Vec<u32>> {
        let mut latencies = Vec::with_capacity(64 * 1024);
        loop {
            let start = Instant::now();
            if start >= end {
                return Ok(latencies);
            }
            let number = self.next.get();
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
        cpu_time(self.observed.pid?).ok()
    }

    /// What the plugin counts itself; `None` if it does not.
    async fn backend_calls(&self) -> Option<f64> {
        let answer =
            HttpClient::plain(self.observed.admin?).get("/metrics").await.ok()?.ok().ok()?;
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
