//! What a foreign object has no field for: `sidekey.dev/settings` on it, as YAML.
//!
//! ```yaml
//! placement: Proxy
//! images: {shim: "registry.example/shim:1"}
//! vendors:
//!   aws: {settings: {endpoint: "https://kms.internal"}}
//! ```
//! Fields are those of a SecretEncryption's spec that no front end makes. `vendors` is for every
//! key of a vendor: `settings` are added, `credentials` and `files` take the place of what the
//! foreign object comes to; `ownData: true` says that our program ran before where a vendor's own
//! writes what nobody else can read.

use kube::ResourceExt;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sidekey_core::config::{Problems, document, read};

use super::{ANNOTATION_SETTINGS, Failure, Fault, Front};
use crate::model::{API_VERSION, FileRef, KIND, Key, SecretEncryption};

/// What may be set.
const FIELDS: [&str; 11] = [
    "controlPlane",
    "resources",
    "stanzas",
    "timeout",
    "placement",
    "images",
    "shim",
    "shimFiles",
    "convergence",
    "autoRotation",
    "tokens",
];
const VENDORS: &str = "vendors";

/// What people want beyond what the foreign object says.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Fields of the spec, as they are written.
    pub(super) spec: Map<String, Value>,
    /// What lands beside the shim's file.
    pub(super) shim_files: Vec<FileRef>,
    vendors: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawVendor {
    settings: Option<Map<String, Value>>,
    credentials: Option<Map<String, Value>>,
    files: Option<Vec<Value>>,
    /// Whether it was our program that ran in the place of the vendor's own before.
    #[serde(rename = "ownData")]
    own_data: Option<bool>,
}

impl Settings {
    /// What the object's annotation says.
    pub(super) fn of(front: &Front<'_>) -> Result<Self, Failure> {
        let Some(text) = front.object.annotations().get(ANNOTATION_SETTINGS) else {
            return Ok(Self::default());
        };
        Self::parse(text).map_err(|problems| {
            Failure::fault(Fault::INVALID, format!("annotation {ANNOTATION_SETTINGS}: {problems}"))
        })
    }

    pub(super) fn parse(text: &str) -> Result<Self, Problems> {
        let Value::Object(mut spec) = document(text)? else {
            return Err(Problems::one("", "is no map of settings"));
        };
        let mut problems = Problems::default();
        let vendors = match spec.remove(VENDORS) {
            None => Map::new(),
            Some(Value::Object(vendors)) => vendors,
            Some(_) => return Err(Problems::one(VENDORS, "is no map of vendors")),
        };
        spec.retain(|name, _| {
            let known = FIELDS.contains(&name.as_str());
            if !known {
                let text = format!("is not one of {} and {VENDORS}", FIELDS.join(", "));
                problems.add(name, &text);
            }
            known
        });
        for (vendor, value) in &vendors {
            let path = format!("{VENDORS}.{vendor}");
            problems.within(&path, |problems| read::<RawVendor>(value, problems).map(drop));
        }
        let shim_files = match probe(&spec) {
            Ok(probe) => probe.spec.shim_files,
            Err(mistakes) => {
                for mistake in mistakes.iter() {
                    problems.add(mistake.path.trim_start_matches("spec."), &mistake.message);
                }
                Vec::new()
            }
        };
        problems.into_result(Some(Self { spec, shim_files, vendors }))
    }

    /// Whether people say how to log in at a vendor.
    pub(super) fn logs_in(&self, vendor: &str) -> bool {
        self.vendors.get(vendor).is_some_and(|said| said["credentials"].is_object())
    }

    /// Whether what a vendor's plugin stored before was stored by ours.
    pub(super) fn is_own_data(&self, vendor: &str) -> bool {
        self.vendors.get(vendor).is_some_and(|said| said["ownData"] == true)
    }

    /// Gives a key what is said for its vendor.
    pub(super) fn complete(&self, key: &mut Key) -> Result<(), Failure> {
        let Some(said) = self.vendors.get(&key.vendor) else { return Ok(()) };
        let said = RawVendor::deserialize(said).unwrap_or_default();
        if let Some(settings) = said.settings {
            merge(&mut key.settings, Value::Object(settings));
        }
        if let Some(credentials) = said.credentials {
            key.credentials = Value::Object(credentials);
            key.files.clear();
        }
        if let Some(files) = said.files {
            let path = format!("{ANNOTATION_SETTINGS}: {VENDORS}.{}", key.vendor);
            let files = Map::from_iter([("shimFiles".to_owned(), files.into())]);
            let files = probe(&files)
                .map_err(|wrong| Failure::fault(Fault::INVALID, format!("{path}: {wrong}")))?;
            key.files = files.spec.shim_files;
        }
        Ok(())
    }
}

/// A document with nothing but these fields, read as strictly as any other.
fn probe(spec: &Map<String, Value>) -> Result<SecretEncryption, Problems> {
    let mut spec = spec.clone();
    // Which images there may be depends on the keys; they are judged with the whole.
    spec.remove("images");
    spec.insert("keys".to_owned(), json!([]));
    let metadata = json!({"name": "settings"});
    let document =
        json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec});
    SecretEncryption::from_document(&document)
}

/// Puts `more` into `value`; what is there already gives way.
pub(super) fn merge(value: &mut Value, more: Value) {
    match (value, more) {
        (Value::Object(map), Value::Object(more)) => {
            for (name, inner) in more {
                merge(map.entry(name).or_insert(Value::Null), inner);
            }
        }
        (value, more) => *value = more,
    }
}
