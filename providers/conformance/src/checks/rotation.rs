//! A rotation of the key behind one socket: key_id moves, and nothing is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use sidekey_core::proto::v2::StatusResponse;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::encrypt::cut;
use super::restart::keep;
use crate::check::{Check, Need};
use crate::random;
use crate::session::{Fault, Session, Wrapped};
use crate::trial::{POLL, SEED, Stop, Trial, broken, unwraps};

/// How often key_id is looked at after a rotation.
const LOOKS: usize = 20;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "rotation.key-id-moves",
        promise: "When the KMS rotates the key, the key_id in Status changes",
        why: "key_id is the only sign by which kube-apiserver learns of a rotation; without it \
              the old key stays in use for ever.",
        needs: &[Need::Rotate],
        judge: |trial| Box::pin(key_id_moves(trial)),
    },
    Check {
        id: "rotation.encrypt",
        promise: "Encrypt uses the new key_id once Status has announced it",
        why: "kube-apiserver calls Encrypt as soon as key_id has changed and discards an answer \
              with another one: the rotation never ends.",
        needs: &[Need::Rotate],
        judge: |trial| Box::pin(encrypt(trial)),
    },
    Check {
        id: "rotation.old-decrypts",
        promise: "What was encrypted before the rotation still decrypts",
        why: "All data in etcd is under the old key until a storage migration has rewritten it.",
        needs: &[Need::Rotate],
        judge: |trial| Box::pin(old_decrypts(trial)),
    },
    Check {
        id: "rotation.seamless",
        promise: "No Status and no Decrypt fails while the key is rotated",
        why: "Rotation is routine; it must not turn health checks red or fail reads.",
        needs: &[Need::Rotate],
        judge: |trial| Box::pin(seamless(trial)),
    },
    Check {
        id: "rotation.restart",
        promise: "After rotation and kill -9 old and new ciphertexts decrypt",
        why: "A rotation that only the running process knows of loses data with the next restart.",
        needs: &[Need::Rotate, Need::Restart],
        judge: |trial| Box::pin(restart(trial)),
    },
    Check {
        id: "rotation.never-back",
        promise: "An old key_id never comes back, nor is it used for a newer key",
        why: "kube-apiserver tells stale objects by key_id alone: a key_id that returns makes old \
              data look migrated, and the key it needs is thrown away.",
        needs: &[Need::Rotate],
        judge: |trial| Box::pin(never_back(trial)),
    },
];

/// What was seen before, during and after the rotation.
#[derive(Clone)]
pub(crate) struct Rotated {
    before: StatusResponse,
    after: StatusResponse,
    /// Wrapped before, and not touched since.
    kept: Vec<(Vec<u8>, Wrapped)>,
    /// The connection that wrapped them, and the restarts up to then.
    session: (Session, u32),
    /// Calls that failed while the key was rotated.
    failures: Vec<String>,
    calls: usize,
}

/// Rotates the key, once for all checks of this group.
async fn rotated(trial: &Trial) -> Result<&Rotated, Stop> {
    let missing = |stop: &Stop| match stop {
        Stop::Broken(how) | Stop::NotRun(how) => {
            Stop::NotRun(format!("there was no rotation to judge: {how}"))
        }
    };
    trial.rotated.get_or_init(|| observe(trial)).await.as_ref().map_err(missing)
}

async fn observe(trial: &Trial) -> Result<Rotated, Stop> {
    let session = trial.connect().await?;
    let before = session.status().await?;
    let kept = keep(&session).await?;
    let (stop, stopped) = watch::channel(());
    let (plaintext, known) = (random::bytes(SEED), session.clone());
    let wrapped = known.encrypt(&plaintext).await?;
    unwraps(&known, &wrapped, &plaintext).await?;
    let reader = tokio::spawn(read_on(known, plaintext, wrapped, stopped));
    let moved = rotate(trial, &before.key_id).await;
    drop(stop);
    let (mut failures, calls) = reader.await.map_err(|error| broken(error.to_string()))?;
    let (after, seen) = moved?;
    failures.extend(seen);
    let session = (session, trial.restarts());
    Ok(Rotated { before, after, kept, session, failures, calls })
}

/// Makes the KMS rotate and waits until Status announces another key_id than `old`.
/// Gives that Status, and what went wrong on the way.
async fn rotate(trial: &Trial, old: &str) -> Result<(StatusResponse, Vec<String>), Stop> {
    let Some(hook) = &trial.plugin.rotate else {
        return Err(Stop::NotRun(format!("needs {}", Need::Rotate)));
    };
    hook.call().await.map_err(|error| broken(format!("the rotate hook failed: {error}")))?;
    let limit = trial.options.rotation_deadline;
    let end = Instant::now() + limit;
    let session = trial.connect().await?;
    let mut failures = Vec::new();
    loop {
        match session.status().await {
            Ok(status) if status.key_id != old => return Ok((status, failures)),
            Ok(_) => {}
            Err(fault) => failures.push(fault.to_string()),
        }
        if Instant::now() >= end {
            return Err(broken(format!("key_id is {} still, after {limit:?}", cut(old))));
        }
        sleep(POLL).await;
    }
}

/// What kube-apiserver does meanwhile: Status, and reads of a key that it has read before.
/// Goes on until it is told to stop; the failures and the number of calls.
async fn read_on(
    session: Session,
    plaintext: Vec<u8>,
    wrapped: Wrapped,
    mut stopped: watch::Receiver<()>,
) -> (Vec<String>, usize) {
    let (mut failures, mut calls) = (Vec::new(), 0);
    // The last turn is after the end, so that there is one with the new key.
    let mut last = false;
    while !last && failures.len() < LOOKS {
        last = stopped.has_changed().is_err();
        let status = session.status().await.map(drop);
        let read = unwraps(&session, &wrapped, &plaintext).await;
        failures.extend(status.err().map(|fault: Fault| fault.to_string()));
        if let Err(Stop::Broken(how)) = read {
            failures.push(how);
        }
        calls += 2;
        let _ = tokio::time::timeout(Duration::from_millis(5), stopped.changed()).await;
    }
    (failures, calls)
}

/// The connection that wrapped the old plaintexts, or a new one if a restart has ended it.
async fn session(trial: &Trial, rotated: &Rotated) -> Result<Session, Fault> {
    match &rotated.session {
        (session, restarts) if *restarts == trial.restarts() => Ok(session.clone()),
        _ => trial.connect().await,
    }
}

async fn key_id_moves(trial: &Trial) -> Result<String, Stop> {
    match trial.rotated.get_or_init(|| observe(trial)).await {
        Ok(rotated) => {
            let (old, new) = (cut(&rotated.before.key_id), cut(&rotated.after.key_id));
            Ok(format!("from {old} to {new}"))
        }
        Err(stop) => Err(stop.clone()),
    }
}

async fn encrypt(trial: &Trial) -> Result<String, Stop> {
    let rotated = rotated(trial).await?;
    let session = session(trial, rotated).await?;
    for _ in 0..LOOKS {
        let used = session.encrypt(&random::bytes(SEED)).await?.key_id;
        if used == rotated.before.key_id {
            return Err(broken(format!("Encrypt still uses {}", cut(&used))));
        }
    }
    Ok(format!("{LOOKS} calls"))
}

async fn old_decrypts(trial: &Trial) -> Result<String, Stop> {
    let rotated = rotated(trial).await?;
    let session = session(trial, rotated).await?;
    for (plaintext, wrapped) in &rotated.kept {
        unwraps(&session, wrapped, plaintext).await?;
    }
    Ok(format!("{} ciphertexts", rotated.kept.len()))
}

async fn seamless(trial: &Trial) -> Result<String, Stop> {
    let rotated = rotated(trial).await?;
    match rotated.failures.first() {
        None => Ok(format!("{} calls", rotated.calls)),
        Some(first) => {
            let (failed, calls) = (rotated.failures.len(), rotated.calls);
            Err(broken(format!("{failed} of about {calls} calls failed, the first: {first}")))
        }
    }
}

async fn restart(trial: &Trial) -> Result<String, Stop> {
    let rotated = rotated(trial).await?;
    let session = session(trial, rotated).await?;
    let mut kept = keep(&session).await?;
    for (plaintext, wrapped) in &rotated.kept {
        if unwraps(&session, wrapped, plaintext).await.is_err() {
            let reason = "the old ciphertexts did not decrypt before the restart either";
            return Err(Stop::NotRun(reason.to_owned()));
        }
        kept.push((plaintext.clone(), wrapped.clone()));
    }
    trial.restart(rotated.after.healthz == "ok").await.map_err(broken)?;
    let session = trial.connect().await?;
    let key_id = session.status().await?.key_id;
    if key_id == rotated.before.key_id {
        return Err(broken(format!("after the restart key_id is the old {} again", cut(&key_id))));
    }
    for (plaintext, wrapped) in &kept {
        unwraps(&session, wrapped, plaintext).await?;
    }
    Ok(format!("{} ciphertexts", kept.len()))
}

async fn never_back(trial: &Trial) -> Result<String, Stop> {
    let rotated = rotated(trial).await?;
    let mut old = BTreeSet::from([rotated.before.key_id.clone()]);
    looks(trial, &old).await?;
    let now = trial.connect().await?.status().await?.key_id;
    old.insert(rotated.after.key_id.clone());
    old.insert(now.clone());
    rotate(trial, &now).await?;
    looks(trial, &old).await?;
    Ok("over two rotations".to_owned())
}

/// Fails if Status or Encrypt speaks of one of the `old` key_ids.
async fn looks(trial: &Trial, old: &BTreeSet<String>) -> Result<(), Stop> {
    let sessions = [trial.connect().await?, trial.connect().await?];
    for look in 0..LOOKS {
        let session = &sessions[look % 2];
        let key_id = session.status().await?.key_id;
        if old.contains(&key_id) {
            return Err(broken(format!("the old key_id {} has come back", cut(&key_id))));
        }
    }
    Ok(())
}
