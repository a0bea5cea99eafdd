//! Writes the SecretEncryption: only what the foreign object says, and only if that is not there.

use std::time::SystemTime;

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};

use super::ledger::{ANNOTATION_LEDGER, Ledger};
use super::owners::{Owners, Step};
use super::settings::{Settings, merge};
use super::sources::Copies;
use super::{
    ANNOTATION_APPLIED, ANNOTATION_HANDED_BACK, ANNOTATION_LAST, ANNOTATION_SOURCE, Failure, Fault,
    Front,
};
use crate::Error;
use crate::cluster::refused;
use crate::model::resources::covers;
use crate::model::{API_VERSION, KIND, Key, Role, SecretEncryption, names};
use crate::operator::api;
use crate::operator::status::Status;

/// What of a key comes from a front end.
const KEY_FIELDS: [&str; 9] =
    ["id", "type", "role", "kek", "settings", "credentials", "files", "fingerprint", "listen"];

/// What a foreign object comes to.
#[derive(Debug)]
pub(super) struct Draft {
    /// Its keys, ciphers, names, resources and writer.
    pub(super) encryption: SecretEncryption,
    /// Keys that stay as they stand in the SecretEncryption, to read.
    pub(super) kept: Vec<Key>,
    /// Of `controlPlane`, what is not as the defaults have it.
    pub(super) plane: Map<String, Value>,
    /// What its keys are called there.
    pub(super) ledger: Ledger,
    /// What people want beyond that.
    pub(super) settings: Settings,
    /// The highest number that was ever given.
    pub(super) last: u64,
}

impl Front<'_> {
    /// A SecretEncryption of this name that is made from something else is not touched.
    pub(super) fn check_ours(&self, existing: Option<&DynamicObject>) -> Result<(), Failure> {
        let Some(existing) = existing.filter(|existing| !self.is_ours(existing)) else {
            return Ok(());
        };
        let title = self.title();
        let text = format!(
            "SecretEncryption {}/{} is there and not made from {title}: to hand it over, put the \
             annotation {ANNOTATION_SOURCE}: {title} on it",
            self.namespace,
            existing.name_any(),
        );
        Err(Failure::fault(Fault::NOT_OURS, text))
    }

    /// Gives the keys what people want for their vendors, and copies what they refer to.
    pub(super) async fn dress(
        &self,
        keys: &mut [Key],
        settings: &mut Settings,
        copies: &mut Copies<'_>,
    ) -> Result<(), Failure> {
        for key in keys.iter_mut() {
            settings.complete(key)?;
        }
        copies.follow(keys, &mut settings.shim_files).await
    }

    /// Applies what differs; gives the SecretEncryption as it is then.
    pub(super) async fn put(
        &self,
        draft: Draft,
        existing: Option<&DynamicObject>,
    ) -> Result<DynamicObject, Failure> {
        let mut body = self.body(&draft, existing);
        if let Err(problems) = SecretEncryption::from_document(&body) {
            return Err(Failure::fault(Fault::INVALID, problems.to_string()));
        }
        let digest = sidekey_core::hex(&sidekey_core::sha256(body.to_string().as_bytes()));
        body["metadata"]["annotations"][ANNOTATION_APPLIED] = digest.into();
        if let Some(existing) = existing.filter(|existing| is_applied(existing, &body)) {
            return Ok(existing.clone());
        }
        let api = api::encryptions(&self.ctx.client, &self.namespace);
        let parameters = PatchParams::apply(self.manager).force();
        let applied = api.patch(&self.name, &parameters, &Patch::Apply(&body)).await;
        let what = || format!("cannot apply SecretEncryption {}/{}", self.namespace, self.name);
        let applied = applied.map_err(|error| self.write_failed(what(), error))?;
        match existing {
            None => {
                let text = format!("it is made from {} from now on", self.title());
                self.tell(&applied, EventType::Normal, "HandedOver", text).await;
                Ok(applied)
            }
            Some(existing) if existing.annotations().contains_key(ANNOTATION_HANDED_BACK) => {
                Ok(self.note_handed_back(None).await?)
            }
            Some(_) => Ok(applied),
        }
    }

    /// Says once that nobody updates the SecretEncryption any more.
    pub(super) async fn hand_back(&self, existing: &DynamicObject) -> Result<(), Error> {
        if !self.is_ours(existing) || existing.annotations().contains_key(ANNOTATION_HANDED_BACK) {
            return Ok(());
        }
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let noted = self.note_handed_back(Some(&now)).await?;
        let text = format!(
            "{} was handed back: nobody updates this SecretEncryption any more, and its keys stay \
             as they are",
            self.title()
        );
        self.tell(&noted, EventType::Warning, "HandedBack", text).await;
        Ok(())
    }

    /// Not applied: that would give up everything else that was.
    async fn note_handed_back(&self, since: Option<&str>) -> Result<DynamicObject, Error> {
        let patch = json!({"metadata": {"annotations": {ANNOTATION_HANDED_BACK: since}}});
        let manager = Some(self.manager.to_owned());
        let parameters = PatchParams { field_manager: manager, ..PatchParams::default() };
        let api = api::encryptions(&self.ctx.client, &self.namespace);
        let noted = api.patch(&self.name, &parameters, &Patch::Merge(&patch)).await;
        let what = || format!("cannot annotate SecretEncryption {}/{}", self.namespace, self.name);
        noted.map_err(|error| refused(what(), error))
    }

    async fn tell(&self, on: &DynamicObject, type_: EventType, reason: &str, note: String) {
        let (reason, action) = (reason.to_owned(), "Translate".to_owned());
        let event = Event { type_, reason, note: Some(note), action, secondary: None };
        let reference = on.object_ref(&api::secret_encryption());
        if let Err(error) = self.ctx.recorder.publish(&event, &reference).await {
            tracing::warn!(%error, "cannot write an event");
        }
    }

    /// What is applied.
    fn body(&self, draft: &Draft, existing: Option<&DynamicObject>) -> Value {
        let none = Value::Null;
        let before = existing.map_or(&none, |existing| &existing.data["spec"]);
        let mut spec = draft.settings.spec.clone();
        let mut plane = Value::Object(draft.plane.clone());
        if let Some(said) = spec.remove("controlPlane") {
            merge(&mut plane, said);
        }
        if plane.as_object().is_some_and(|plane| !plane.is_empty()) {
            spec.insert("controlPlane".to_owned(), plane);
        }
        if !draft.settings.shim_files.is_empty() {
            spec.insert("shimFiles".to_owned(), json!(draft.settings.shim_files));
        }
        let wanted = &draft.encryption.spec;
        spec.insert("resources".to_owned(), resources(draft, before).into());
        spec.insert("write".to_owned(), json!(wanted.write));
        let retired = existing.map(|existing| Status::of(existing).retired).unwrap_or_default();
        let is_retired = |name: &str| retired.iter().any(|retired| retired.id == name);
        for (field, mut list) in
            [("adopt", json!(wanted.adopt)), ("ciphers", json!(wanted.ciphers))]
        {
            keep(&mut list, &before[field], is_retired);
            if list.as_array().is_some_and(|list| !list.is_empty()) {
                spec.insert(field.to_owned(), list);
            }
        }
        let tokens = tokens(draft, before);
        spec.remove("tokens");
        if !tokens.is_empty() {
            spec.insert("tokens".to_owned(), tokens.into());
        }
        let adopted = spec.get("adopt").cloned().unwrap_or_default();
        let mut stay: Vec<u64> = items(&adopted).filter_map(|item| item["key"].as_u64()).collect();
        stay.extend(existing.iter().flat_map(|existing| self.touched(existing)));
        spec.insert("keys".to_owned(), keys(draft, &stay, before).into());
        let (managed, by) = names::MANAGED_BY;
        json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {managed: by},
                "annotations": self.annotations(draft),
            },
            "spec": spec,
        })
    }

    fn annotations(&self, draft: &Draft) -> Value {
        let mut annotations =
            json!({ANNOTATION_SOURCE: self.title(), ANNOTATION_LAST: draft.last.to_string()});
        if let Some(ledger) = draft.ledger.annotation() {
            annotations[ANNOTATION_LEDGER] = ledger.into();
        }
        annotations
    }

    /// Keys that others have added something to. Left out, only our part of them would go, and
    /// the rest is no key: they stay, to read.
    fn touched(&self, existing: &DynamicObject) -> Vec<u64> {
        let owners = Owners::of(existing, self.manager);
        let ids = items(&existing.data["spec"]["keys"]).filter_map(|key| key["id"].as_u64());
        ids.filter(|id| {
            owners.others(&[Step::Field("spec"), Step::Field("keys"), Step::Number(*id)])
        })
        .collect()
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// What stays in a list of named things until nothing stored needs it.
fn keep(list: &mut Value, before: &Value, is_retired: impl Fn(&str) -> bool) {
    let Some(list) = list.as_array_mut() else { return };
    for item in items(before) {
        let Some(name) = item["name"].as_str() else { continue };
        if !is_retired(name) && list.iter().all(|other| other["name"] != item["name"]) {
            list.push(item.clone());
        }
    }
    // In one order, wherever they came from: another one would be applied anew.
    list.sort_by(|one, other| one["name"].as_str().cmp(&other["name"].as_str()));
}

/// Never fewer than there are: what is stored of a resource that left could not be read.
fn resources(draft: &Draft, before: &Value) -> Vec<Value> {
    let texts = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let said = draft.settings.spec.get("resources").map(texts);
    let mut all =
        said.unwrap_or_else(|| draft.encryption.spec.resources.iter().map(|r| json!(r)).collect());
    let stanzas = draft.settings.spec.get("stanzas").cloned().unwrap_or_default();
    let elsewhere: Vec<Value> =
        items(&stanzas).flat_map(|stanza| texts(&stanza["resources"])).collect();
    for name in texts(&before["resources"]) {
        let text = name.as_str().unwrap_or_default();
        let has = |other: &Value| other.as_str().is_some_and(|one| covers(one, text));
        if !all.iter().any(has) && !elsewhere.contains(&name) {
            // One list has either the wildcard or what is in it.
            all.retain(|other| other.as_str().is_none_or(|one| !covers(text, one)));
            all.push(name);
        }
    }
    all
}

/// What people say, if they say anything. Else what the foreign object comes to, and what there is:
/// keys of a vendor are read with long after it has left the foreign object.
fn tokens(draft: &Draft, before: &Value) -> Vec<Value> {
    let mut tokens: Vec<Value> = match draft.settings.spec.get("tokens") {
        Some(said) => return items(said).cloned().collect(),
        None => draft.encryption.spec.tokens.iter().map(|token| json!(token)).collect(),
    };
    for token in items(&before["tokens"]) {
        if tokens.iter().all(|other| other["type"] != token["type"]) {
            tokens.push(token.clone());
        }
    }
    tokens.sort_by(|one, other| one["type"].as_str().cmp(&other["type"].as_str()));
    tokens
}

/// The keys that the foreign object names, and those that stay.
fn keys(draft: &Draft, stay: &[u64], before: &Value) -> Vec<Value> {
    let own = &draft.encryption.spec.keys;
    let mut keys: Vec<Value> = own.iter().map(fields_of).collect();
    for key in &draft.kept {
        let mut key = key.clone();
        key.role = Role::Read;
        // How to log in is said for a vendor, not for a key.
        if let Some(same) = own.iter().find(|other| other.vendor == key.vendor) {
            (key.credentials, key.files) = (same.credentials.clone(), same.files.clone());
        }
        push(&mut keys, fields_of(&key));
    }
    for id in stay {
        let found = items(&before["keys"]).find(|key| key["id"] == *id);
        let Some(key) = found else { continue };
        let mut key = key.clone();
        key["role"] = "read".into();
        let same = keys.iter().find(|other| other["type"] == key["type"]).cloned();
        if let (Some(same), Some(key)) = (same, key.as_object_mut()) {
            for field in ["credentials", "files"] {
                match &same[field] {
                    Value::Null => key.remove(field),
                    value => key.insert(field.to_owned(), value.clone()),
                };
            }
        }
        if let Some(key) = key.as_object_mut() {
            key.retain(|field, _| KEY_FIELDS.contains(&field.as_str()));
        }
        push(&mut keys, key);
    }
    // Somebody must be the writer behind the shim, also while a cipher writes.
    if keys.iter().all(|key| key["role"] != "write")
        && let Some(newest) = keys.iter_mut().max_by_key(|key| key["id"].as_u64())
    {
        newest["role"] = "write".into();
    }
    keys.sort_by_key(|key| key["id"].as_u64());
    keys
}

fn push(keys: &mut Vec<Value>, key: Value) {
    if keys.iter().all(|other| other["id"] != key["id"]) {
        keys.push(key);
    }
}

/// What a front end says of a key. Where its provider listens is said only of plugins of others.
fn fields_of(key: &Key) -> Value {
    let mut value = serde_json::to_value(key).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.retain(|field, _| KEY_FIELDS.contains(&field.as_str()));
        if !key.is_external() {
            map.remove("listen");
        }
    }
    value
}

/// Whether all of this was applied and is still there.
fn is_applied(existing: &DynamicObject, body: &Value) -> bool {
    let annotations = json!(existing.annotations());
    !existing.annotations().contains_key(ANNOTATION_HANDED_BACK)
        && holds(&annotations, &body["metadata"]["annotations"])
        && holds(&existing.data["spec"], &body["spec"])
}

/// Whether a value has everything of another one; items of lists go by their number, name or type.
fn holds(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (Value::Object(map), Value::Object(wanted)) => wanted
            .iter()
            .all(|(name, wanted)| map.get(name).is_some_and(|value| holds(value, wanted))),
        (Value::Array(list), Value::Array(wanted)) if wanted.iter().all(is_item) => {
            wanted.iter().all(|wanted| {
                let same = |item: &&Value| of_item(item) == of_item(wanted);
                list.iter().find(same).is_some_and(|item| holds(item, wanted))
            })
        }
        (value, wanted) => value == wanted,
    }
}

fn is_item(value: &Value) -> bool {
    value.is_object() && of_item(value).is_some()
}

/// What tells an item of a list from others: a key's number, a name, or a token's type.
fn of_item(value: &Value) -> Option<&Value> {
    ["id", "name", "type"].into_iter().map(|field| &value[field]).find(|value| !value.is_null())
}
