//! What was put in, as it is noted in the pod's annotation.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pods::Object;
use super::text::{Draft, Node, Origin};

/// The annotation.
pub(super) const ANNOTATION: &str = "sidekey.dev/injected";

/// Whose names, sockets and mounts the sidecars have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Profile {
    /// Our own: the shim, one sidecar for each vendor, one socket for each key.
    #[default]
    Sidekey,
    /// OpenShift's: one native sidecar for each key.
    OpenShift,
    /// HyperShift's: an active and a backup container.
    HyperShift,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sidekey => "sidekey",
            Self::OpenShift => "openshift",
            Self::HyperShift => "hypershift",
        })
    }
}

/// What was put into one pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Record {
    pub(super) profile: Profile,
    /// Hash of what was put in, whatever the pod made of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) form: String,
    /// The container that has the mounts and flags.
    pub(super) container: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) init_containers: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) containers: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) volumes: Vec<String>,
    /// The paths of the container's mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) mounts: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) flags: Vec<Flag>,
    /// Fields that were not there, or had nothing behind their colon but this.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) fields: BTreeMap<String, Option<String>>,
}

/// A flag that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Flag {
    pub(super) name: String,
    /// The text that was written.
    pub(super) set: String,
    /// The text that it took the place of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) was: Option<String>,
    /// The same as it was written, if that is something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) raw: Option<String>,
}

impl Record {
    pub(super) fn new(profile: Profile, container: &str, form: String) -> Self {
        Self {
            profile,
            form,
            container: container.to_owned(),
            init_containers: Vec::new(),
            containers: Vec::new(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            flags: Vec::new(),
            fields: BTreeMap::new(),
        }
    }

    /// What the object's pod says was put in, if anything was.
    pub(super) fn read(draft: &Draft, object: &Object) -> Result<Option<Self>, String> {
        let annotations = draft.at(&object.annotations());
        let Some(node) = annotations.and_then(|annotations| annotations.get(ANNOTATION)) else {
            return Ok(None);
        };
        let text = node.text().unwrap_or_default();
        let read = serde_json::from_str(text);
        read.map(Some).map_err(|error| {
            format!("the annotation {ANNOTATION} does not say what was put in: {error}")
        })
    }

    /// Notes how a field came to be.
    pub(super) fn field(&mut self, name: &str, origin: Origin) {
        match origin {
            Origin::There => {}
            Origin::Absent => drop(self.fields.insert(name.to_owned(), None)),
            Origin::Null(raw) => drop(self.fields.insert(name.to_owned(), Some(raw))),
        }
    }

    /// Writes itself into the object's pod.
    pub(super) fn write(mut self, draft: &mut Draft, object: &Object) -> Result<(), String> {
        let metadata = object.pod.key("metadata");
        let annotations = object.annotations();
        for (path, parent, name) in
            [(&metadata, &object.pod, "metadata"), (&annotations, &metadata, "annotations")]
        {
            match draft.at(path) {
                Some(node) if node.is_null() => {
                    let raw = draft.replace_null(parent, name)?;
                    self.fields.insert(name.to_owned(), Some(raw));
                }
                Some(_) => {}
                None => {
                    self.fields.insert(name.to_owned(), None);
                    // With its content, because a map without is written in another way.
                    return self.insert_with(draft, object, parent, name);
                }
            }
        }
        draft.insert(&annotations, ANNOTATION, &self.to_value()?)
    }

    fn insert_with(
        mut self,
        draft: &mut Draft,
        object: &Object,
        parent: &super::text::Path,
        name: &str,
    ) -> Result<(), String> {
        let metadata_is_new = name == "metadata";
        if metadata_is_new {
            self.fields.insert("annotations".to_owned(), None);
        }
        let annotations = serde_json::json!({ANNOTATION: self.to_value()?});
        let value = if metadata_is_new {
            serde_json::json!({"annotations": annotations})
        } else {
            annotations
        };
        debug_assert!(draft.at(&object.annotations()).is_none());
        draft.insert(parent, name, &value)
    }

    fn to_value(&self) -> Result<Value, String> {
        serde_json::to_string(self).map(Value::String).map_err(|error| error.to_string())
    }

    /// Takes itself out of the object's pod.
    pub(super) fn erase(&self, draft: &mut Draft, object: &Object) -> Result<(), String> {
        draft.remove(&object.annotations(), ANNOTATION)?;
        let metadata = object.pod.key("metadata");
        for (parent, name) in [(&metadata, "annotations"), (&object.pod, "metadata")] {
            let empty = |node: &Node| node.entries().is_empty();
            if !draft.at(&parent.key(name)).is_some_and(empty) {
                return Ok(());
            }
            match self.fields.get(name) {
                Some(None) => draft.remove(parent, name)?,
                Some(Some(raw)) => draft.restore(parent, name, raw)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }
}
