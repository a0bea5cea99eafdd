//! Promise: one operator looks after a thousand HostedClusters in little memory; where nothing is to
//! be done it writes nothing but its lease, and asks the API server for little. Shims and kubelets
//! are simulated; see `sidekey_e2e::operator::simulated`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::operator::simulated::Fleet;
use sidekey_e2e::wait::PATIENCE;

/// How many.
const CLUSTERS: usize = 1000;
/// Those that are encrypted here, from clear: all together that takes about 1.5 s of one core for
/// each. The others come from a backup, encrypted.
const ENABLED: usize = 50;
/// Resident memory with nothing to look after, and with all of them, in KiB.
const IDLE: u64 = 25 * 1024;
const BUSY: u64 = 80 * 1024;
/// Until all of them are settled, on two cores that etcd, kube-apiserver and the controllers share.
const SETTLED: Duration = Duration::from_secs(900);
/// What is written though nothing happens: the leases of the operator and of kube-apiserver.
const LEASES: &str = "leases";
/// Requests for each control plane and poll, in the mean, whoever else asks included; and whole looks,
/// which come by the clock and so count for more where polls take longer.
const REQUESTS: f64 = 6.0;
/// Polls to let end what was under way, and again to count over.
const ROUNDS: u64 = 2;

#[tokio::test]
async fn a_thousand_hosted_clusters_are_looked_after_in_little_memory_and_without_writes() {
    let mut fleet = Fleet::start("op-fleet", &["--poll=20s", "--concurrency=8"]).await.unwrap();
    it_is_ready(&mut fleet).await.unwrap();
    let idle = fleet.memory().unwrap();
    println!("idle: {idle} KiB");
    assert!(idle <= IDLE, "{idle} KiB, at most {IDLE}");

    fleet.add(ENABLED).await.unwrap();
    fleet.wait_settled(ENABLED, SETTLED).await.unwrap();
    let asked = fleet.asked().await.unwrap();
    println!("requests to enable each of {ENABLED}: {:.0}", asked / count(ENABLED));
    fleet.restore(ENABLED..CLUSTERS).await.unwrap();
    fleet.wait_settled(CLUSTERS, SETTLED).await.unwrap();
    let more = fleet.asked().await.unwrap() - asked;
    println!("requests to take each of the others over: {:.0}", more / count(CLUSTERS - ENABLED));
    let busy = fleet.memory().unwrap();
    println!("just after all {CLUSTERS} have settled: {busy} KiB");
    nothing_is_written_and_little_read(&mut fleet).await.unwrap();
    let steady = fleet.memory().unwrap();
    println!("with {CLUSTERS} to look after: {steady} KiB");
    assert!(busy.max(steady) <= BUSY, "{busy} and {steady} KiB, at most {BUSY}");
}

async fn it_is_ready(fleet: &mut Fleet) -> Result<()> {
    let probes = HttpClient::plain(fleet.probes());
    let ready = async || Ok(probes.get("/readyz").await?.ok()?);
    fleet.operator.wait_until("it is ready", PATIENCE, ready).await?;
    Ok(())
}

/// Every shim is asked twice, and meanwhile nothing but leases is written, by whomever.
async fn nothing_is_written_and_little_read(fleet: &mut Fleet) -> Result<()> {
    let polls = ROUNDS * u64::try_from(CLUSTERS)?;
    // What was under way is over by then.
    fleet.wait_asked(polls).await?;
    let (before, begun) = (fleet.requests().await?, fleet.shims_asked());
    fleet.wait_asked(polls).await?;
    let (after, ended) = (fleet.requests().await?, fleet.shims_asked());
    let changed = difference(&before, &after);
    for (what, more) in &changed {
        println!("in steady state: {more} times {what}");
    }
    let is_write = |what: &str| ["GET", "LIST", "WATCH"].iter().all(|verb| !what.starts_with(verb));
    let written = changed.iter().filter(|(what, _)| is_write(what));
    let (leases, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        written.partition(|(what, _)| what.contains(LEASES));
    ensure!(!leases.is_empty(), "not even a lease was written");
    ensure!(others.is_empty(), "also written: {others:?}");
    let read: f64 = changed.iter().filter(|(what, _)| !is_write(what)).map(|(_, more)| more).sum();
    let polls = u32::try_from(ended - begun).map(f64::from)?;
    println!("{:.2} requests for each control plane and poll", read / polls);
    ensure!(read <= polls * REQUESTS, "{read} requests while shims were asked {polls} times");
    Ok(())
}

fn difference(
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    let grown = after
        .iter()
        .map(|(name, count)| (name.clone(), count - before.get(name).copied().unwrap_or_default()));
    grown.filter(|(_, more)| *more > 0.0).collect()
}

fn count(clusters: usize) -> f64 {
    u32::try_from(clusters).map(f64::from).context("too many").unwrap()
}
