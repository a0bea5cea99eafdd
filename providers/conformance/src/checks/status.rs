//! Status: health, version and the key_id that everything hangs on.

use std::time::Duration;

use tokio::time::Instant;

use crate::check::{Check, Need};
use crate::trial::{Stop, Trial, broken, each};

/// Longest key_id that kube-apiserver accepts, in bytes.
pub(crate) const KEY_ID_MAX: usize = 1024;

/// How often the constancy of Status is looked at.
const LOOKS: usize = 40;

/// How many Status calls are under way at once when their cost is measured.
const BURST: usize = 128;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "status.answers",
        promise: "The socket accepts connections and Status answers",
        why: "A gRPC error from Status closes kube-apiserver's write window after three minutes; \
              without a Status it does not become ready.",
        needs: &[],
        judge: |trial| Box::pin(answers(trial)),
    },
    Check {
        id: "status.version",
        promise: "Status reports version v2 (or v2beta1)",
        why: "kube-apiserver takes any other version for a failed health check. v2beta1 is \
              accepted, but is the name of a version that no longer exists.",
        needs: &[],
        judge: |trial| Box::pin(version(trial)),
    },
    Check {
        id: "status.version-constant",
        promise: "The version never changes from call to call",
        why: "kube-apiserver keeps the first version it sees and reports each other one as an \
              error until it is restarted.",
        needs: &[],
        judge: |trial| Box::pin(version_constant(trial)),
    },
    Check {
        id: "status.healthz",
        promise: "A healthy plugin reports healthz as exactly \"ok\"",
        why: "kube-apiserver compares with \"ok\" byte by byte; all else makes its readyz fail.",
        needs: &[],
        judge: |trial| Box::pin(healthz(trial)),
    },
    Check {
        id: "status.key-id",
        promise: "Status reports a key_id of 1 to 1024 bytes",
        why: "kube-apiserver refuses an empty or longer key_id, both in Status and in every \
              object that it reads from etcd.",
        needs: &[],
        judge: |trial| Box::pin(key_id(trial)),
    },
    Check {
        id: "status.key-id-stable",
        promise: "The key_id holds still while nobody rotates the key",
        why: "Each change makes kube-apiserver wrap a new key and marks every stored object as \
              stale; a key_id that flaps starts storage migrations without end.",
        needs: &[],
        judge: |trial| Box::pin(key_id_stable(trial)),
    },
    Check {
        id: "status.latency",
        promise: "128 concurrent Status calls are quick: p99 within the bound",
        why: "kube-apiserver's readyz asks one provider after the other, each up to its timeout: \
              a slow Status makes the whole API server look dead.",
        needs: &[],
        judge: |trial| Box::pin(latency(trial)),
    },
    Check {
        id: "status.backend-calls",
        promise: "Status is answered from memory, without a backend call",
        why: "Every health probe of every API server calls Status; if each costs a KMS call, \
              probes alone bring bills, throttling and outages.",
        needs: &[Need::BackendCalls],
        judge: |trial| Box::pin(backend_calls(trial)),
    },
];

async fn answers(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    session.status().await?;
    Ok(String::new())
}

async fn version(trial: &Trial) -> Result<String, Stop> {
    let status = trial.connect().await?.status().await?;
    match status.version.as_str() {
        "v2" => Ok("v2".to_owned()),
        "v2beta1" => Ok("v2beta1: accepted, but v2 is the name to use".to_owned()),
        other => Err(broken(format!("version is {other:?}, which is neither v2 nor v2beta1"))),
    }
}

async fn version_constant(trial: &Trial) -> Result<String, Stop> {
    let (first, second) = (trial.connect().await?, trial.connect().await?);
    let version = first.status().await?.version;
    for look in 0..LOOKS {
        let session = if look % 4 == 3 { &second } else { &first };
        let now = session.status().await?.version;
        if now != version {
            return Err(broken(format!("version was {version:?} and then {now:?}")));
        }
    }
    Ok(format!("the same in {LOOKS} calls"))
}

async fn healthz(trial: &Trial) -> Result<String, Stop> {
    let status = trial.connect().await?.status().await?;
    if status.healthz == "ok" {
        return Ok(String::new());
    }
    Err(broken(format!("healthz is {:?} instead of \"ok\"", status.healthz)))
}

async fn key_id(trial: &Trial) -> Result<String, Stop> {
    let status = trial.connect().await?.status().await?;
    match status.key_id.len() {
        len @ 1..=KEY_ID_MAX => Ok(format!("{len} bytes")),
        len => Err(broken(format!("key_id has {len} bytes"))),
    }
}

/// One change is taken for a rotation that happened to fall into the run.
async fn key_id_stable(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    let mut seen = vec![session.status().await?.key_id];
    for _ in 0..LOOKS {
        let now = session.status().await?.key_id;
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    match seen.len() {
        1 => Ok(format!("the same in {LOOKS} calls")),
        2 => Ok("moved once, as by a rotation".to_owned()),
        changes => Err(broken(format!("key_id changed {} times in {LOOKS} calls", changes - 1))),
    }
}

async fn latency(trial: &Trial) -> Result<String, Stop> {
    let session = trial.connect().await?;
    let begin = Instant::now();
    let calls = each(0..BURST, BURST, |_| {
        let session = session.clone();
        async move { session.status().await.map(|_| begin.elapsed()) }
    });
    let mut times = calls.await.into_iter().collect::<Result<Vec<Duration>, _>>()?;
    times.sort();
    let (p50, p99) = (times[BURST / 2], times[BURST - 1 - BURST / 100]);
    let bound = trial.options.status_bound;
    if p99 <= bound {
        return Ok(format!("p50 {p50:.1?}, p99 {p99:.1?}"));
    }
    Err(broken(format!("p50 {p50:.1?}, p99 {p99:.1?}: more than {bound:?}")))
}

/// A background probe may fall into the measurement: a few calls are not Status calls.
async fn backend_calls(trial: &Trial) -> Result<String, Stop> {
    let Some(hook) = &trial.plugin.backend_calls else {
        return Err(Stop::NotRun(format!("needs {}", Need::BackendCalls)));
    };
    let count = || async {
        let failed = |error| broken(format!("backend calls cannot be counted: {error}"));
        hook.call().await.map_err(failed)
    };
    let session = trial.connect().await?;
    session.status().await?;
    let before = count().await?;
    for _ in 0..LOOKS {
        session.status().await?;
    }
    let calls = count().await?.saturating_sub(before);
    if calls <= LOOKS as u64 / 10 {
        return Ok(format!("{calls} backend calls during {LOOKS} Status calls"));
    }
    Err(broken(format!("{LOOKS} Status calls made {calls} backend calls")))
}
