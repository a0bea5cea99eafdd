//! What is rendered, as objects of a cluster.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sidekey_core::Secret;

use super::{Part, Rendered};
use crate::model::names;

/// When a revision was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created(pub String);

impl Created {
    /// Now.
    pub fn now() -> Self {
        Self(humantime::format_rfc3339_seconds(SystemTime::now()).to_string())
    }
}

/// A Secret as it is written into a manifest.
pub fn manifest(metadata: Value, files: &BTreeMap<String, Secret>, immutable: bool) -> Value {
    let data: Map<String, Value> = files
        .iter()
        .map(|(name, content)| (name.clone(), STANDARD.encode(content.expose()).into()))
        .collect();
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "data": data,
    });
    if immutable {
        object["immutable"] = true.into();
    }
    object
}

impl Rendered {
    /// The head that a part's pods mount.
    pub fn head(&self, part: &Part) -> Value {
        manifest(self.metadata(&part.name.secret()), &part.files, false)
    }

    /// Every file of every part, and what the revision says of itself.
    pub fn history(&self, created: &Created) -> BTreeMap<String, Secret> {
        let mut files = BTreeMap::new();
        for part in &self.parts {
            for (name, content) in &part.files {
                files.insert(format!("{}_{name}", part.name), content.clone());
            }
        }
        let summary = format!("{:#}\n", self.summary(&created.0));
        files.insert(names::REVISION_FILE.to_owned(), Secret::new(summary.into_bytes()));
        files
    }

    /// The revision: immutable, and the source of the heads.
    pub fn revision_object(&self, created: &Created) -> Value {
        let metadata = self.metadata(&names::revision_secret(self.revision));
        manifest(metadata, &self.history(created), true)
    }

    /// All objects, in the order in which they are to be applied.
    pub fn objects(&self, created: &Created) -> Vec<Value> {
        let mut objects = vec![self.revision_object(created)];
        objects.extend(self.parts.iter().map(|part| self.head(part)));
        objects
    }

    fn metadata(&self, name: &str) -> Value {
        let (managed, by) = names::MANAGED_BY;
        let mut metadata = json!({
            "name": name,
            "labels": {managed: by, names::LABEL_ENCRYPTION: self.name},
            "annotations": {names::ANNOTATION_REVISION: self.revision.to_string()},
        });
        if let Some(namespace) = &self.namespace {
            metadata["namespace"] = namespace.as_str().into();
        }
        metadata
    }
}
