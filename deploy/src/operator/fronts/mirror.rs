//! What is so, on the foreign object: in its status, where nobody else owns the field.
//!
//! Applied without force, and only if it differs. Who else owns a field is read from the object's
//! `managedFields`; whatever another manager owns is his to fill.

use std::time::SystemTime;

use kube::ResourceExt;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::super::reason;
use super::ledger::Ledger;
use super::owners::{Owners, Step};
use super::{Fault, Front};
use crate::Error;
use crate::cluster::refused;
use crate::operator::status::{Condition, Status};
use crate::rotate::{Past, Stage, Turn};

/// Whether the SecretEncryption says what the foreign object wants.
const CONFIGURED: &str = "SecretEncryptionConfigured";
/// Whether everything stored is under the key that writes.
const UP_TO_DATE: &str = "EtcdDataEncryptionUpToDate";
/// Whether the KMS answers.
const ACCESSIBLE: &str = "KMSKeyAccessible";
/// As many rotations as HyperShift shows.
const HISTORY: usize = 5;
/// As much as a condition may say.
const LONGEST: usize = 32_000;

/// Applies what differs.
pub(super) async fn mirror(
    front: &Front<'_>,
    encryption: Option<&DynamicObject>,
    fault: Option<&Fault>,
) -> Result<(), Error> {
    let mut fresh = None;
    if front.object.metadata.managed_fields.as_ref().is_none_or(Vec::is_empty) {
        // Whoever keeps objects to watch them may have left that out.
        fresh = read(front).await?;
    }
    let object = fresh.as_ref().unwrap_or(front.object);
    let owners = Owners::of(object, front.manager);
    let status = encryption.map(Status::of).unwrap_or_default();
    let mut conditions = conditions(front, encryption, &status, fault);
    conditions.retain(|condition| {
        let item = [Step::Field("status"), Step::Field("conditions"), Step::Item(&condition.kind)];
        !owners.others(&item)
    });
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let there = &object.data["status"];
    for condition in &mut conditions {
        settle(condition, &there["conditions"], &now);
    }
    let mut body = json!({});
    if !conditions.is_empty() {
        body["conditions"] = json!(conditions);
    }
    let field = [Step::Field("status"), Step::Field("secretEncryption")];
    if front.resource.kind == "HostedCluster" && !owners.others(&field) {
        let shown = secret_encryption(&status, &Ledger::of(encryption));
        if shown.as_object().is_some_and(|shown| !shown.is_empty()) {
            body["secretEncryption"] = shown;
        }
    }
    if is_there(&owners, there, &body) {
        return Ok(());
    }
    write(front, body).await
}

async fn read(front: &Front<'_>) -> Result<Option<DynamicObject>, Error> {
    let found = api(front).get_opt(&front.name).await;
    found.map_err(|error| refused(format!("cannot read {}", front.title()), error))
}

fn api(front: &Front<'_>) -> Api<DynamicObject> {
    let client = front.ctx.client.clone();
    match front.object.namespace() {
        Some(namespace) => Api::namespaced_with(client, &namespace, &front.resource),
        None => Api::all_with(client, &front.resource),
    }
}

async fn write(front: &Front<'_>, status: Value) -> Result<(), Error> {
    let mut metadata = json!({"name": front.name});
    if let Some(namespace) = front.object.namespace() {
        metadata["namespace"] = namespace.into();
    }
    let body = json!({
        "apiVersion": front.resource.api_version,
        "kind": front.resource.kind,
        "metadata": metadata,
        "status": status,
    });
    let parameters = PatchParams::apply(front.manager);
    match api(front).patch_status(&front.name, &parameters, &Patch::Apply(&body)).await {
        Ok(_) => Ok(()),
        // Somebody took a field since it was read: the next pass leaves it to him.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            tracing::info!(object = front.title(), "another manager owns a field of the status");
            Ok(())
        }
        Err(error) => Err(refused(format!("cannot write the status of {}", front.title()), error)),
    }
}

/// Whether the status has all of it, and nothing else of ours.
fn is_there(owners: &Owners<'_>, there: &Value, body: &Value) -> bool {
    let none = Vec::new();
    let wanted = body["conditions"].as_array().unwrap_or(&none);
    let found = there["conditions"].as_array().unwrap_or(&none);
    let kinds = wanted.iter().filter_map(|one| one["type"].as_str().map(str::to_owned));
    let shown = match &body["secretEncryption"] {
        Value::Null => !owners.owns_in_status("secretEncryption"),
        wanted => there["secretEncryption"] == *wanted,
    };
    shown
        && wanted.iter().all(|wanted| found.contains(wanted))
        && owners.own_conditions() == kinds.collect()
}

/// The conditions of the SecretEncryption, and what HyperShift's people look for.
fn conditions(
    front: &Front<'_>,
    encryption: Option<&DynamicObject>,
    status: &Status,
    fault: Option<&Fault>,
) -> Vec<Condition> {
    let mut conditions = status.conditions.clone();
    if front.resource.kind == "HostedCluster" && encryption.is_some() {
        derive(&mut conditions, front, status);
    }
    if let Some(fault) = fault {
        conditions.retain(|condition| condition.kind != CONFIGURED);
        conditions.push(condition(CONFIGURED, "False", fault.reason, &fault.message));
    }
    let generation = encryption.and_then(|encryption| encryption.metadata.generation);
    let seen = fault.is_some() || generation == Some(status.observed_generation);
    let own = front.object.metadata.generation.unwrap_or_default();
    for condition in &mut conditions {
        // Its generations are not those of the foreign object.
        condition.observed_generation = if seen { own } else { 0 };
        condition.message.truncate(condition.message.floor_char_boundary(LONGEST));
    }
    conditions
}

/// What the core says in its own words, in HyperShift's.
fn derive(conditions: &mut Vec<Condition>, front: &Front<'_>, status: &Status) {
    let has = |conditions: &[Condition], kind: &str| conditions.iter().any(|c| c.kind == kind);
    if !has(conditions, UP_TO_DATE)
        && let Some((state, reason)) = up_to_date(status)
    {
        conditions.push(condition(UP_TO_DATE, state, reason, ""));
    }
    // HyperShift's admission policy refuses every edit of the key while this is False; but until a
    // new key is promoted an edit is the way to take a wrong one back.
    let stage = status.rotation.as_ref().map(|rotation| rotation.stage);
    if stage.is_some_and(|stage| !stage.is_promoted()) {
        let waits = |condition: &&mut Condition| {
            condition.kind == UP_TO_DATE && condition.status == "False"
        };
        conditions.iter_mut().filter(waits).for_each(|c| c.status = "Unknown".to_owned());
    }
    let provider = front.object.data["spec"]["secretEncryption"]["kms"]["provider"].as_str();
    let (kind, failed) = match provider {
        Some("AWS") => ("ValidAWSKMSConfig", "AWSError"),
        Some("Azure") => ("ValidAzureKMSConfig", "AzureError"),
        _ => return,
    };
    let answers = conditions.iter().find(|condition| condition.kind == ACCESSIBLE).cloned();
    if let Some(answers) = answers.filter(|_| !has(conditions, kind)) {
        let reason = match answers.status.as_str() {
            "True" => "AsExpected",
            "False" => failed,
            _ => "StatusUnknown",
        };
        conditions.push(Condition { kind: kind.to_owned(), reason: reason.to_owned(), ..answers });
    }
}

fn up_to_date(status: &Status) -> Option<(&'static str, &'static str)> {
    let Some(rotation) = &status.rotation else {
        return status.encrypted_under.as_ref().map(|_| ("True", "ReEncryptionCompleted"));
    };
    Some(match rotation.stage {
        Stage::Preflight | Stage::ReadOnlyDeploy => ("False", reason::READ_ONLY),
        Stage::WritePromote => ("False", reason::PROMOTION),
        Stage::Migrating => ("False", reason::RE_ENCRYPTION),
        Stage::Completed => ("True", "ReEncryptionCompleted"),
        Stage::Interrupted => return None,
    })
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: String::new(),
        observed_generation: 0,
    }
}

/// The time since when it is so, and what it last spoke of.
fn settle(condition: &mut Condition, there: &Value, now: &str) {
    let mut list = there.as_array().into_iter().flatten();
    let before = list.find(|other| other["type"] == condition.kind.as_str());
    let known = before.filter(|before| before["status"] == condition.status.as_str());
    let since = known.and_then(|before| before["lastTransitionTime"].as_str());
    if let Some(since) = since {
        condition.last_transition_time = since.to_owned();
    } else if condition.last_transition_time.is_empty() {
        condition.last_transition_time = now.to_owned();
    }
    if condition.observed_generation == 0 {
        let spoke = before.and_then(|before| before["observedGeneration"].as_i64());
        condition.observed_generation = spoke.unwrap_or_default();
    }
}

/// `status.secretEncryption` in HyperShift's form. What it has no word for is left out.
fn secret_encryption(status: &Status, ledger: &Ledger) -> Value {
    let mut shown = json!({});
    if let Some(active) = status.active_key.as_ref().and_then(|turn| ledger.shown(turn)) {
        shown["activeKey"] = active;
    }
    // While a key is only being proven, nothing is under way for HyperShift.
    let rotation = status.rotation.as_ref();
    let rotation = rotation.filter(|r| r.stage != Stage::Preflight && !r.stage.is_over());
    let target = status.target_key.as_ref().filter(|_| rotation.is_some());
    if let Some(target) = target.and_then(|turn| ledger.shown(turn)) {
        shown["targetKey"] = target;
    }
    let entry = |from: &Turn, to: &Turn, state: Stage, started: &str| {
        let (from, to) = (ledger.reference(from)?, ledger.reference(to)?);
        let state = state.label();
        Some(json!({"from": from, "to": to, "state": state, "startedTime": started}))
    };
    let mut history = Vec::new();
    if let (Some(rotation), Some(from), Some(to)) = (rotation, &status.active_key, target) {
        history.extend(entry(from, to, rotation.stage, &rotation.started_time));
    }
    for Past { from, to, state, started_time, completion_time } in &status.history {
        let Some(mut past) = entry(from, to, *state, started_time) else { continue };
        past["completionTime"] = completion_time.as_str().into();
        history.push(past);
    }
    history.truncate(HISTORY);
    if !history.is_empty() {
        shown["history"] = history.into();
    }
    shown
}
