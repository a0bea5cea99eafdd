//! What a pass has to say: conditions, events and the rest of `status`.

use std::time::{Duration, SystemTime};

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::super::api;
use super::super::context::Context;
use super::super::status::{Condition, Status};
use crate::Error;
use crate::cluster::refused;
use crate::model::names;

/// Longer messages are cut: lists of replicas have no end.
const MESSAGE: usize = 4000;
/// What an Event may say at most.
const NOTE: usize = 1000;
/// To write a status while somebody edits the object.
const ATTEMPTS: u32 = 3;

/// The conditions, by their types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// What is wanted is in place.
    Configured,
    /// Every replica can read and write.
    Healthy,
    /// The key that writes can be used.
    KeyAccessible,
    /// A rotation is under way.
    Rotating,
    /// Something does not work as it should.
    Degraded,
    /// Everything stored is under the key that writes.
    UpToDate,
    /// HyperShift's own question.
    ValidAws,
}

/// What a pass has found.
pub(super) struct Report {
    before: Status,
    /// What is to be written.
    pub(super) now: Status,
    events: Vec<Event>,
    generation: i64,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Nothing has changed.
    Nothing,
    /// It is the status of the object, if that is there.
    Status,
    /// Another status was written since the pass began.
    Overtaken,
}

impl Subject {
    fn label(self) -> &'static str {
        match self {
            Self::Configured => "SecretEncryptionConfigured",
            Self::Healthy => "SecretEncryptionHealthy",
            Self::KeyAccessible => "KMSKeyAccessible",
            Self::Rotating => "KMSKeyRotationInProgress",
            Self::Degraded => "KMSPluginDegraded",
            Self::UpToDate => "EtcdDataEncryptionUpToDate",
            Self::ValidAws => "ValidAWSKMSConfig",
        }
    }

    /// Whether `True` is what people want to see.
    fn good(self) -> Option<bool> {
        match self {
            Self::Rotating => None,
            Self::Degraded => Some(false),
            _ => Some(true),
        }
    }
}

impl Report {
    pub(super) fn of(object: &DynamicObject) -> Self {
        let before = Status::of(object);
        let generation = object.metadata.generation.unwrap_or_default();
        Self { now: before.clone(), before, events: Vec::new(), generation }
    }

    /// Whether the spec has changed since the last pass that was written down.
    pub(super) fn edited(&self) -> bool {
        self.before.observed_generation != self.generation
    }

    /// Whether what is published has changed and nobody was told yet.
    pub(super) fn untold(&self) -> bool {
        let (now, before) = (&self.now, &self.before);
        let told = (before.revision, before.isolated_sockets, &before.keys);
        (now.revision, now.isolated_sockets, &now.keys) != told
    }

    /// What everything stored was under, as far as was written down.
    pub(super) fn encrypted_under_before(&self) -> Option<&str> {
        self.before.encrypted_under.as_deref()
    }

    /// Sets a condition; `None` for unknown. Its time is that of the last change of its status.
    pub(super) fn set(
        &mut self,
        subject: Subject,
        state: Option<bool>,
        reason: &str,
        message: impl Into<String>,
    ) {
        let status = match state {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let message = cut(message.into(), MESSAGE);
        let known = self.before.conditions.iter().find(|one| one.kind == subject.label());
        let same = known.filter(|one| one.status == status);
        let at = same.map(|one| one.last_transition_time.clone());
        let turned = known.is_none_or(|one| one.status != status || one.reason != reason);
        let bad = state.is_some() && subject.good().is_some_and(|good| state != Some(good));
        if turned && bad {
            self.event(true, reason, message.clone());
        }
        let condition = Condition {
            kind: subject.label().to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: at.unwrap_or_else(now),
            observed_generation: self.generation,
        };
        self.now.conditions.retain(|one| one.kind != subject.label());
        self.now.conditions.push(condition);
        self.now.conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    }

    /// Takes a condition out: it does not concern this control plane.
    pub(super) fn unset(&mut self, subject: Subject) {
        self.now.conditions.retain(|one| one.kind != subject.label());
    }

    /// The reason that a condition has by now.
    pub(super) fn said(&self, subject: Subject) -> Option<&str> {
        let known = self.now.conditions.iter().find(|one| one.kind == subject.label());
        known.map(|one| one.reason.as_str())
    }

    /// For how long a condition has had this reason, as far as was written down.
    pub(super) fn since(&self, subject: Subject, reason: &str) -> Option<Duration> {
        let known = self.before.conditions.iter().find(|one| one.kind == subject.label());
        let known = known.filter(|one| one.reason == reason)?;
        age(&known.last_transition_time)
    }

    /// Tells people that something has happened.
    pub(super) fn event(&mut self, warning: bool, reason: &str, note: String) {
        self.events.push(Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(cut(note, NOTE)),
            action: "Reconcile".to_owned(),
            secondary: None,
        });
    }

    /// Writes what has changed, unless the status is not the one any more that the pass began with:
    /// a pass may begin before the operator has heard of what it wrote itself.
    pub(super) async fn write(
        mut self,
        ctx: &Context,
        object: &DynamicObject,
    ) -> Result<Written, Error> {
        self.now.observed_generation = self.generation;
        if self.now == self.before {
            return Ok(Written::Nothing);
        }
        let (name, namespace) = (&object.metadata.name, &object.metadata.namespace);
        let (name, namespace) =
            (name.as_deref().unwrap_or_default(), namespace.as_deref().unwrap_or_default());
        // Not applied: what somebody else has written, as a backup does that brings a status back,
        // would be his and stay.
        let status = replacing(object.data.get("status"), json!(self.now));
        let mut patch =
            json!({"metadata": {"resourceVersion": object.resource_version()}, "status": status});
        let api = api::encryptions(&ctx.client, namespace);
        let manager = Some(names::FIELD_MANAGER.to_owned());
        let parameters = PatchParams { field_manager: manager, ..PatchParams::default() };
        let failed =
            |error| refused(format!("cannot write the status of {namespace}/{name}"), error);
        for attempt in 1.. {
            match api.patch_status(name, &parameters, &Patch::Merge(&patch)).await {
                Ok(_) => break,
                // It was deleted meanwhile.
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Written::Status),
                Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => {
                    let Some(now) = api.get_opt(name).await.map_err(failed)? else {
                        return Ok(Written::Status);
                    };
                    if now.data.get("status") != object.data.get("status") {
                        return Ok(Written::Overtaken);
                    }
                    // Somebody has edited the rest of it.
                    patch["metadata"]["resourceVersion"] = json!(now.resource_version());
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let reference = object.object_ref(&api::secret_encryption());
        for event in &self.events {
            if let Err(error) = ctx.recorder.publish(event, &reference).await {
                tracing::warn!(%error, namespace, name, "cannot write an event");
            }
        }
        Ok(Written::Status)
    }
}

/// The merge patch that makes `after` of `before`: what is not in it any more is taken out.
fn replacing(before: Option<&Value>, after: Value) -> Value {
    match (before, after) {
        (Some(Value::Object(before)), Value::Object(mut after)) => {
            for (name, old) in before {
                let new = after.remove(name).map_or(Value::Null, |new| replacing(Some(old), new));
                after.insert(name.clone(), new);
            }
            Value::Object(after)
        }
        (_, after) => after,
    }
}

/// RFC 3339 in UTC, to the second.
pub(super) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// How long ago that was.
pub(super) fn age(time: &str) -> Option<Duration> {
    let then = humantime::parse_rfc3339_weak(time).ok()?;
    Some(SystemTime::now().duration_since(then).unwrap_or_default())
}

/// So many characters, and a sign that there were more.
pub(super) fn cut(text: String, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::roll::fake::Fake;

    #[test]
    fn nothing_that_somebody_else_has_written_into_a_status_stays() {
        let before = json!({
            "moved": {"since": "x"}, "replicas": [{"name": "of a backup"}], "revision": 2,
            "activeKey": {"id": 1, "note": "strange"},
        });
        let after = json!({
            "replicas": [{"name": "a"}, {"name": "b"}], "revision": 2, "activeKey": {"id": 1},
            "rotation": {"stage": "Preflight"},
        });
        let patch = replacing(Some(&before), after.clone());
        let expected = json!({
            "moved": null, "replicas": [{"name": "a"}, {"name": "b"}], "revision": 2,
            "activeKey": {"id": 1, "note": null}, "rotation": {"stage": "Preflight"},
        });
        assert_eq!(patch, expected);
        assert_eq!(replacing(None, after.clone()), after);
        assert_eq!(replacing(Some(&json!(null)), after.clone()), after);
    }

    const OBJECT: &str = "/apis/sidekey.dev/v1alpha1/namespaces/clusters-a/secretencryptions/a";

    /// Writes a revision over this status, where the API server has `now` and refuses the first try.
    async fn written(now: Value) -> (Result<Written, Error>, Vec<String>) {
        let object = json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "a", "namespace": "clusters-a", "resourceVersion": "1"},
            "spec": {}, "status": {"revision": 1},
        });
        let fake = Fake::default();
        let mut live = object.clone();
        live["status"] = now;
        fake.put(OBJECT, live);
        fake.lock().refusals = [409].into();
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let mut report = Report::of(&object);
        report.now.revision = Some(2);
        let outcome = report.write(&fake.context(), &object).await;
        (outcome, fake.written())
    }

    #[tokio::test]
    async fn a_status_of_before_is_never_written_over_a_newer_one() {
        let (outcome, tried) = written(json!({"revision": 1, "encryptedUnder": "sha256:2"})).await;
        assert_eq!(outcome.unwrap(), Written::Overtaken);
        assert_eq!(tried, [format!("PATCH {OBJECT}/status")]);
        // Where only the spec was edited meanwhile, what the pass has found is not lost.
        let (outcome, tried) = written(json!({"revision": 1})).await;
        assert_eq!(outcome.unwrap(), Written::Status);
        assert_eq!(tried.len(), 2, "{tried:?}");
    }
}
