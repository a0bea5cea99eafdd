//! Promise: one operator looks after many HostedClusters in little memory; where nothing is to be done
//! it writes nothing but its lease, and asks the API server for little. Shims and kubelets are
//! simulated; see `sidekey_e2e::operator::simulated`. Here there are a hundred, and in `full` a
//! thousand.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::operator::simulated::Fleet;
use sidekey_e2e::wait::PATIENCE;
use tokio::time::Instant;

/// Resident memory for each control plane, and for the work on some of them at once, in KiB: what
/// comes on top of an operator that has nothing to look after.
const EACH: u64 = 55;
const WORK: u64 = 10 * 1024;
/// Until all of them are settled, on two cores that etcd, kube-apiserver and the controllers share.
const SETTLED: Duration = Duration::from_secs(900);
/// What the API server writes by itself, whatever happens: its own objects and leases.
const SERVERS_OWN: [&str; 4] =
    ["leases", "apiservices", "flowschemas", "prioritylevelconfigurations"];
/// Requests for a look where nothing has changed, whoever else asks included.
const LOOK: f64 = 5.0;
/// Requests for a whole look, and how often everybody has one at most: by the clock, so that more
/// of them come along where polls take longer.
const WHOLE_LOOK: f64 = 30.0;
const WHOLE_EVERY: Duration = Duration::from_secs(300);
/// Polls to let end what was under way, and again to count over.
const ROUNDS: u64 = 2;

/// The simulated shims must not wait for each other, as real ones do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_hosted_clusters_are_looked_after_in_little_memory_and_without_writes() {
    let [idle, busy] = looked_after("op-fleet", 100, 20, "8s").await;
    // How much that is all together depends on the build, and is for `full` to tell.
    let most = idle + WORK + EACH * 100;
    assert!(busy <= most, "{busy} KiB, at most {most}");
}

/// So many control planes. `enabled` of them are encrypted here, from clear: all together that takes
/// about 1.5 s of one core for each. The others come from a backup, encrypted. Each is looked at
/// every `poll`. Gives the operator's memory before and after, in KiB.
pub(crate) async fn looked_after(
    name: &str,
    clusters: usize,
    enabled: usize,
    poll: &str,
) -> [u64; 2] {
    let poll = format!("--poll={poll}");
    let mut fleet = Fleet::start(name, &[&poll, "--concurrency=8"]).await.unwrap();
    it_is_ready(&mut fleet).await.unwrap();
    let idle = fleet.memory().unwrap();
    println!("idle: {idle} KiB");

    fleet.add(enabled).await.unwrap();
    fleet.wait_settled(enabled, SETTLED).await.unwrap();
    let asked = fleet.asked().await.unwrap();
    println!("requests to enable each of {enabled}: {:.0}", asked / count(enabled));
    fleet.restore(enabled..clusters).await.unwrap();
    fleet.wait_settled(clusters, SETTLED).await.unwrap();
    let more = fleet.asked().await.unwrap() - asked;
    println!("requests to take each of the others over: {:.0}", more / count(clusters - enabled));
    let busy = fleet.memory().unwrap();
    println!("just after all {clusters} have settled: {busy} KiB");
    nothing_is_written_and_little_read(&mut fleet, clusters).await.unwrap();
    let steady = fleet.memory().unwrap();
    println!("with {clusters} to look after: {steady} KiB");
    [idle, busy.max(steady)]
}

async fn it_is_ready(fleet: &mut Fleet) -> Result<()> {
    let probes = HttpClient::plain(fleet.probes());
    let ready = async || Ok(probes.get("/readyz").await?.ok()?);
    fleet.operator.wait_until("it is ready", PATIENCE, ready).await?;
    Ok(())
}

/// Every shim is asked twice, and meanwhile nothing but leases is written.
async fn nothing_is_written_and_little_read(fleet: &mut Fleet, clusters: usize) -> Result<()> {
    let polls = ROUNDS * u64::try_from(clusters)?;
    // What was under way is over by then.
    fleet.wait_asked(polls).await?;
    let mut seen = Window::watch(fleet, polls).await?;
    if !seen.written().1.is_empty() {
        // On a busy machine something was still under way: what goes on in steady state is seen
        // again.
        println!("also written at first, and looked for once more: {:?}", seen.written().1);
        seen = Window::watch(fleet, polls).await?;
    }
    for (what, more) in &seen.changed {
        println!("in steady state: {more} times {what}");
    }
    let (own, others) = seen.written();
    ensure!(own.keys().any(|what| what.contains("leases")), "not even a lease was written");
    ensure!(others.is_empty(), "also written: {others:?}");
    let reads = seen.changed.iter().filter(|(what, _)| !is_write(what));
    let read: f64 = reads.map(|(_, more)| more).sum();
    let polls = seen.polls;
    let whole = count(clusters) * seen.time.as_secs_f64() / WHOLE_EVERY.as_secs_f64();
    println!("{:.2} requests for each control plane and poll", read / polls);
    let most = polls * LOOK + whole * WHOLE_LOOK;
    ensure!(read <= most, "{read} requests, at most {most}, while shims were asked {polls} times");
    Ok(())
}

/// What kube-apiserver has counted while shims were asked.
struct Window {
    changed: BTreeMap<String, f64>,
    polls: f64,
    time: Duration,
}

impl Window {
    async fn watch(fleet: &mut Fleet, polls: u64) -> Result<Self> {
        let (before, begun, since) = (fleet.requests().await?, fleet.shims_asked(), Instant::now());
        fleet.wait_asked(polls).await?;
        let (after, ended, time) = (fleet.requests().await?, fleet.shims_asked(), since.elapsed());
        let polls = u32::try_from(ended - begun).map(f64::from)?;
        Ok(Self { changed: difference(&before, &after), polls, time })
    }

    /// What was written: the API server's own, and everything else.
    fn written(&self) -> (BTreeMap<&str, f64>, BTreeMap<&str, f64>) {
        let changed = self.changed.iter().map(|(what, more)| (what.as_str(), *more));
        let written = changed.filter(|(what, _)| is_write(what));
        written.partition(|(what, _)| SERVERS_OWN.iter().any(|resource| what.contains(resource)))
    }
}

fn is_write(what: &str) -> bool {
    ["GET", "LIST", "WATCH"].iter().all(|verb| !what.starts_with(verb))
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
