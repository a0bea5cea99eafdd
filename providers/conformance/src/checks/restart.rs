//! Kill -9 and a new start: what was true before must be true after.

use sidekey_core::proto::v2::StatusResponse;

use super::encrypt::cut;
use crate::check::{Check, Need};
use crate::random;
use crate::session::{Session, Wrapped};
use crate::trial::{SEED, Stop, Trial, broken, unwraps};

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "restart.comes-back",
        promise: "After kill -9 the plugin listens on the same socket again",
        why: "Kill -9 leaves the socket file behind; a plugin that stumbles over it stays down \
              until somebody deletes the file by hand.",
        needs: &[Need::Restart],
        judge: |trial| Box::pin(comes_back(trial)),
    },
    Check {
        id: "restart.decrypt",
        promise: "What was encrypted before the restart still decrypts",
        why: "Everything in etcd was encrypted before some restart.",
        needs: &[Need::Restart],
        judge: |trial| Box::pin(decrypt(trial)),
    },
    Check {
        id: "restart.key-id",
        promise: "The key_id is the same after the restart if nobody rotated",
        why: "A new key_id makes every stored object stale and starts a storage migration.",
        needs: &[Need::Restart],
        judge: |trial| Box::pin(key_id(trial)),
    },
    Check {
        id: "restart.version",
        promise: "The version is the same after the restart",
        why: "kube-apiserver outlives the plugin and takes another version for an error until it \
              is restarted itself.",
        needs: &[Need::Restart],
        judge: |trial| Box::pin(version(trial)),
    },
];

/// What was seen before and after the restart.
#[derive(Debug)]
pub(crate) struct Restarted {
    before: StatusResponse,
    after: StatusResponse,
    kept: Vec<(Vec<u8>, Wrapped)>,
}

/// Wraps a few new plaintexts.
pub(crate) async fn keep(session: &Session) -> Result<Vec<(Vec<u8>, Wrapped)>, Stop> {
    let mut kept = Vec::new();
    for _ in 0..3 {
        let plaintext = random::bytes(SEED);
        let wrapped = session.encrypt(&plaintext).await?;
        kept.push((plaintext, wrapped));
    }
    Ok(kept)
}

/// Restarts the plugin, once for all checks of this group.
async fn restarted(trial: &Trial) -> &Result<Restarted, String> {
    trial
        .restarted
        .get_or_init(|| async {
            let told = |stop| match stop {
                Stop::Broken(how) | Stop::NotRun(how) => how,
            };
            let session = trial.connect().await.map_err(|fault| told(fault.into()))?;
            let before = session.status().await.map_err(|fault| told(fault.into()))?;
            let kept = keep(&session).await.map_err(told)?;
            trial.restart(before.healthz == "ok").await?;
            let session = trial.connect().await.map_err(|fault| told(fault.into()))?;
            let after = session.status().await.map_err(|fault| told(fault.into()))?;
            Ok(Restarted { before, after, kept })
        })
        .await
}

/// The restart, for checks that cannot judge anything if the plugin did not come back.
async fn successful(trial: &Trial) -> Result<&Restarted, Stop> {
    let missing = |how: &String| Stop::NotRun(format!("there was no restart to judge: {how}"));
    restarted(trial).await.as_ref().map_err(missing)
}

async fn comes_back(trial: &Trial) -> Result<String, Stop> {
    match restarted(trial).await {
        Ok(_) => Ok(String::new()),
        Err(how) => Err(broken(how.clone())),
    }
}

async fn decrypt(trial: &Trial) -> Result<String, Stop> {
    let restarted = successful(trial).await?;
    let session = trial.connect().await?;
    for (plaintext, wrapped) in &restarted.kept {
        unwraps(&session, wrapped, plaintext).await?;
    }
    Ok(format!("{} ciphertexts", restarted.kept.len()))
}

async fn key_id(trial: &Trial) -> Result<String, Stop> {
    let Restarted { before, after, .. } = successful(trial).await?;
    if before.key_id == after.key_id {
        return Ok(String::new());
    }
    let (before, after) = (cut(&before.key_id), cut(&after.key_id));
    Err(broken(format!("key_id was {before} and is {after} now")))
}

async fn version(trial: &Trial) -> Result<String, Stop> {
    let Restarted { before, after, .. } = successful(trial).await?;
    if before.version == after.version {
        return Ok(String::new());
    }
    let (before, after) = (&before.version, &after.version);
    Err(broken(format!("version was {before:?} and is {after:?} now")))
}
