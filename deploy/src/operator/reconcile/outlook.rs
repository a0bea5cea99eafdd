//! What every replica says, and what that means.

use std::time::Duration;

use super::super::status::{HealthReport, KeyState, ReplicaState};
use super::draft::{Draft, Retained};
use super::report::{Report, Subject, cut};
use crate::fleet::{Observation, ShimReport};
use crate::model::{Key, KeyNumber, SecretEncryption, Token};
use sidekey_core::sha256;

/// As long as OpenShift lets a report say what is wrong.
const DETAIL: usize = 1024;

/// Shims that have read the published file and refuse it, and why.
pub(super) fn refusals(seen: &Observation, revision: u64) -> Vec<String> {
    let revision = revision.to_string();
    let mut all = Vec::new();
    for shim in &seen.shims {
        let Some(status) = &shim.status else { continue };
        let behind = status.revision.as_ref() != Some(&revision);
        if let Some(refusal) = status.config.refused.as_ref().filter(|_| behind) {
            all.push(format!("shim {}: {}", shim.name, refusal.error));
        }
    }
    all
}

/// Writes into the report how the replicas and their keys are.
pub(super) fn tell(seen: &Observation, draft: &Draft, report: &mut Report) {
    (report.now.replicas, report.now.health_reports) = said(&seen.shims);
    let wrong: Vec<String> = seen.shims.iter().flat_map(wrong).collect();
    if wrong.is_empty() {
        report.set(Subject::Healthy, Some(true), "AsExpected", "every replica reads and writes");
        report.set(Subject::Degraded, Some(false), "AsExpected", "");
    } else {
        let text = wrong.join("; ");
        report.set(Subject::Healthy, Some(false), "ReplicaUnhealthy", text.clone());
        report.set(Subject::Degraded, Some(true), "ReplicaUnhealthy", text);
    }
    accessible(seen, &draft.document, report);
}

/// What the shims say of themselves and of their keys, each in one order.
fn said(shims: &[ShimReport]) -> (Vec<ReplicaState>, Vec<HealthReport>) {
    let mut replicas: Vec<ReplicaState> = shims.iter().map(replica).collect();
    replicas.sort_by(|a, b| a.name.cmp(&b.name));
    let mut keys: Vec<HealthReport> = shims.iter().flat_map(reports).collect();
    keys.sort_by(|a, b| (&a.node_name, &a.key_id).cmp(&(&b.node_name, &b.key_id)));
    (replicas, keys)
}

/// A digest of all that a pass would conclude something from.
pub(super) fn answers(shims: &[ShimReport]) -> [u8; 32] {
    let mut wrong: Vec<String> = shims.iter().flat_map(wrong).collect();
    wrong.sort_unstable();
    let roles = shims
        .iter()
        .filter_map(|shim| shim.status.as_ref())
        .flat_map(|status| status.keys.iter().map(|key| (&key.id, &key.role, &key.fingerprint)));
    let mut roles: Vec<_> = roles.collect();
    roles.sort_unstable();
    // The keys are texts: it is always JSON.
    sha256(&serde_json::to_vec(&(said(shims), wrong, roles)).unwrap_or_default())
}

/// What is wrong with one replica. That it has not come along yet is not.
pub(super) fn wrong(shim: &ShimReport) -> Vec<String> {
    let name = &shim.name;
    let Some(status) = &shim.status else {
        let why = shim.error.as_deref().unwrap_or("did not answer");
        return vec![format!("shim {name}: {why}")];
    };
    let mut all = Vec::new();
    if !status.healthy {
        let reason = status.reason.as_deref().unwrap_or("unknown reason");
        all.push(format!("shim {name} is not healthy: {reason}"));
    }
    if let Some(refusal) = &status.config.refused {
        all.push(format!("shim {name} refuses a newer configuration: {}", refusal.error));
    }
    for key in status.keys.iter().filter(|key| !key.healthy) {
        let reason = key.reason.as_deref().unwrap_or("not proven yet");
        all.push(format!("shim {name}: {} key {} cannot be used: {reason}", key.role, key.id));
    }
    all
}

/// Whether the key that writes can be used, on every replica.
fn accessible(seen: &Observation, document: &SecretEncryption, report: &mut Report) {
    let Some(writer) = document.writer() else {
        report.unset(Subject::KeyAccessible);
        report.unset(Subject::ValidAws);
        return;
    };
    let id = writer.id.to_string();
    let states: Vec<_> =
        seen.shims.iter().filter_map(|shim| Some((shim, state(shim, &id)?))).collect();
    let bad: Vec<String> = states
        .iter()
        .filter(|(_, key)| !key.healthy)
        .map(|(shim, key)| {
            let reason = key.reason.as_deref().unwrap_or("not proven yet");
            format!("{}: {reason}", shim.name)
        })
        .collect();
    let (state, reason, text) = match (states.is_empty(), bad.is_empty()) {
        (true, _) => (None, "NotAsked", "no replica could be asked".to_owned()),
        (_, true) => (Some(true), "AsExpected", format!("key {id} wraps and unwraps")),
        _ => (Some(false), "KeyUnusable", format!("key {id}: {}", bad.join("; "))),
    };
    report.set(Subject::KeyAccessible, state, reason, text.clone());
    if writer.vendor == "aws" {
        let reason = if reason == "KeyUnusable" { "AWSErrorReason" } else { reason };
        report.set(Subject::ValidAws, state, reason, text);
    } else {
        report.unset(Subject::ValidAws);
    }
}

fn state<'a>(shim: &'a ShimReport, id: &str) -> Option<&'a crate::fleet::KeyStatus> {
    shim.status.as_ref()?.keys.iter().find(|key| key.id == id)
}

fn replica(shim: &ShimReport) -> ReplicaState {
    let status = shim.status.as_ref();
    let refused = status.and_then(|status| status.config.refused.as_ref());
    let reason = match status {
        None => shim.error.clone(),
        Some(status) if !status.healthy => status.reason.clone(),
        Some(_) => refused.map(|refusal| refusal.error.clone()),
    };
    ReplicaState {
        name: shim.name.clone(),
        revision: status.and_then(|status| status.revision.clone()),
        healthy: status.is_some_and(|status| status.healthy),
        key_id_hash: status.and_then(|status| status.key_id_hash.clone()),
        reason: reason.map(detail),
    }
}

fn reports(shim: &ShimReport) -> Vec<HealthReport> {
    let Some(status) = &shim.status else { return Vec::new() };
    let each = status.keys.iter().map(|key| HealthReport {
        node_name: shim.name.clone(),
        key_id: key.id.clone(),
        status: if key.healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
        remote_key_id: key.key_id_hash.clone(),
        detail: key.reason.clone().filter(|_| !key.healthy).map(detail),
    });
    each.collect()
}

/// Every key that is loaded, as `status.keys` has it.
pub(super) fn keys(draft: &Draft) -> Vec<KeyState> {
    let retained = |id: KeyNumber| {
        draft.retained.iter().any(|one| matches!(one, Retained::Key(key) if key.id == id))
    };
    let mut keys: Vec<KeyState> =
        draft.document.spec.keys.iter().map(|key| loaded(key, retained(key.id))).collect();
    keys.sort_by_key(|key| key.id);
    keys
}

/// One key that is loaded.
pub(super) fn loaded(key: &Key, retained: bool) -> KeyState {
    KeyState {
        id: key.id.0,
        vendor: key.vendor.clone(),
        role: key.role.to_string(),
        fingerprint: key.fingerprint(),
        retained,
    }
}

fn detail(text: String) -> String {
    cut(text, DETAIL - 1)
}

/// The tokens that are minted for keys that are loaded.
pub(super) fn tokens(draft: &Draft) -> Vec<Token> {
    let vendors = draft.document.vendors();
    let all = draft.document.spec.tokens.iter();
    all.filter(|token| vendors.contains(&token.vendor.as_str())).cloned().collect()
}

/// Between two looks at something that has just begun.
const SOON: Duration = Duration::from_secs(2);
/// Between two looks at something that takes its time.
const LATER: Duration = Duration::from_secs(5);

/// Between two looks at something that is under way for so long: a look costs some twenty
/// requests, and what takes minutes is not done sooner by being looked at every other second.
pub(super) fn pace(under_way: Option<Duration>) -> Duration {
    (under_way.unwrap_or_default() / 10).clamp(SOON, LATER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_looked_at_less_often_and_ends_hardly_later() {
        assert_eq!(pace(None), SOON);
        for seconds in [0, 5, 20, 40, 90, 100, 600, 100_000] {
            let begun = Duration::from_secs(seconds);
            let pause = pace(Some(begun));
            assert!(pause >= SOON && pause <= LATER);
            assert!(pause <= SOON.max(begun / 10), "{seconds} s: {pause:?}");
        }
    }
}
