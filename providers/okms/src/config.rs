//! One key of the configuration: `kek`, `settings` and `credentials`.

use std::path::PathBuf;

use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_rest::Address;
use sidekey_rest::tls::Shown;

use crate::dropin::data::{self, uuid};

const NO_UUID: &str = "is no id: write a UUID, 8-4-4-4-12 hex digits";

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    pub(crate) kek: Kek,
    pub(crate) settings: Settings,
    /// Who we are.
    pub(crate) credentials: Shown,
}

/// Which key it is, wherever its KMS can be reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Kek {
    pub(crate) okms_id: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) label: Option<String>,
}

/// How it is reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Settings {
    pub(crate) address: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) also_reads: Vec<String>,
    pub(crate) plugin_format: bool,
}

impl Config {
    /// Every mistake that types cannot express.
    pub(crate) fn check(&self, problems: &mut Problems) {
        let Self { kek: Kek { okms_id, key, label }, settings, credentials } = self;
        if problems.require("kek.okmsId", okms_id).is_some_and(|id| uuid(id).is_none()) {
            problems.add("kek.okmsId", NO_UUID);
        }
        match (key, label) {
            (Some(key), None) if uuid(key).is_none() => problems.add("kek.key", NO_UUID),
            (None, Some(label)) if label.is_empty() => problems.add("kek.label", "is empty"),
            (Some(_), None) | (None, Some(_)) => {}
            _ => problems.add("kek", "needs exactly one of key and label"),
        }
        if let Some(text) = problems.require("settings.address", &settings.address) {
            Address::check("settings.address", text, false, problems);
        }
        data::check(settings, problems);
        credentials.check(settings.ca_file.as_deref(), problems);
    }
}

impl Kek {
    /// The id of the domain.
    pub(crate) fn domain(&self) -> String {
        self.okms_id.as_deref().and_then(uuid).unwrap_or_default()
    }
}
