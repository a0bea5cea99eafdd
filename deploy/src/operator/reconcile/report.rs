//! What a pass has to say: conditions, events and the rest of `status`.

use std::time::{Duration, SystemTime};

use kube::Resource;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
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
        (now.revision, &now.keys) != (before.revision, &before.keys)
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

    /// Writes what has changed; gives whether anything has.
    pub(super) async fn write(
        mut self,
        ctx: &Context,
        object: &DynamicObject,
    ) -> Result<bool, Error> {
        self.now.observed_generation = self.generation;
        if self.now == self.before {
            return Ok(false);
        }
        let (name, namespace) = (&object.metadata.name, &object.metadata.namespace);
        let (name, namespace) =
            (name.as_deref().unwrap_or_default(), namespace.as_deref().unwrap_or_default());
        // Not applied: what somebody else has written, as a backup does that brings a status back,
        // would be his and stay.
        let status = replacing(object.data.get("status"), json!(self.now));
        let patch = json!({"status": status});
        let api = api::encryptions(&ctx.client, namespace);
        let manager = Some(names::FIELD_MANAGER.to_owned());
        let parameters = PatchParams { field_manager: manager, ..PatchParams::default() };
        match api.patch_status(name, &parameters, &Patch::Merge(&patch)).await {
            Ok(_) => {}
            // It was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(true),
            Err(error) => {
                let what = format!("cannot write the status of {namespace}/{name}");
                return Err(refused(what, error));
            }
        }
        let reference = object.object_ref(&api::secret_encryption());
        for event in &self.events {
            if let Err(error) = ctx.recorder.publish(event, &reference).await {
                tracing::warn!(%error, namespace, name, "cannot write an event");
            }
        }
        Ok(true)
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
}
