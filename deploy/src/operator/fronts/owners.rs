//! Who owns a field of an object, by its `managedFields`.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::DynamicObject;
use serde_json::{Value, json};

/// The owners of an object's fields.
pub(super) struct Owners<'a> {
    entries: &'a [ManagedFieldsEntry],
    /// Who asks.
    manager: &'a str,
}

/// A step down to a field.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    /// The field of this name.
    Field(&'a str),
    /// The item of a list whose `type` is this.
    Item(&'a str),
    /// The item of a list whose `id` is this.
    Number(u64),
}

impl<'a> Owners<'a> {
    pub(super) fn of(object: &'a DynamicObject, manager: &'a str) -> Self {
        Self { entries: object.metadata.managed_fields.as_deref().unwrap_or_default(), manager }
    }

    /// Whether anybody but the one who asks owns the field, or something in it, or all of a list
    /// or object that it is in.
    pub(super) fn others(&self, path: &[Step<'_>]) -> bool {
        let others = self.entries.iter().filter(|entry| !self.is_own(entry));
        others.filter_map(fields).any(|fields| reaches(fields, path))
    }

    /// The types of the conditions that the one who asks owns.
    pub(super) fn own_conditions(&self) -> BTreeSet<String> {
        let own = self.entries.iter().filter(|entry| self.is_own(entry)).filter_map(fields);
        let lists = own.filter_map(|fields| fields["f:status"]["f:conditions"].as_object());
        lists.flat_map(|list| list.keys()).filter_map(|key| item_type(key)).collect()
    }

    /// Whether the one who asks owns something in a field of the status.
    pub(super) fn owns_in_status(&self, field: &str) -> bool {
        let mut own = self.entries.iter().filter(|entry| self.is_own(entry)).filter_map(fields);
        own.any(|fields| !fields["f:status"][format!("f:{field}")].is_null())
    }

    fn is_own(&self, entry: &ManagedFieldsEntry) -> bool {
        entry.manager.as_deref() == Some(self.manager)
    }
}

fn fields(entry: &ManagedFieldsEntry) -> Option<&Value> {
    entry.fields_v1.as_ref().map(|fields| &fields.0)
}

/// Whether a set of fields has something at the end of the path, or ends on the way there: then
/// what it ends at is owned as a whole.
fn reaches(fields: &Value, path: &[Step<'_>]) -> bool {
    let Some((step, rest)) = path.split_first() else { return true };
    let Some(map) = fields.as_object() else { return false };
    if map.is_empty() {
        return true;
    }
    let found = map.iter().find(|(key, _)| match step {
        Step::Field(name) => key.strip_prefix("f:") == Some(name),
        Step::Item(kind) => item_type(key).as_deref() == Some(kind),
        Step::Number(id) => item(key) == Some(json!({"id": id})),
    });
    found.is_some_and(|(_, inner)| reaches(inner, rest))
}

/// What an item of a list is known by.
fn item(key: &str) -> Option<Value> {
    serde_json::from_str(key.strip_prefix("k:")?).ok()
}

/// `X` of `k:{"type":"X"}`.
fn item_type(key: &str) -> Option<String> {
    let keys = item(key)?;
    let kind = keys["type"].as_str()?;
    (keys == json!({"type": kind})).then(|| kind.to_owned())
}
