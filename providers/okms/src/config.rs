//! One key of the configuration: `kek`, `settings` and `credentials`.

use std::path::PathBuf;

use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_rest::Address;
use sidekey_rest::tls::Shown;

use crate::dropin::data::{self, uuid};

const NO_UUID: &str = "must be an id: a UUID, 8-4-4-4-12 hex digits";

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
    pub(crate) protocol: Protocol,
    pub(crate) okms_id: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) label: Option<String>,
}

/// What a key is of: service keys and KMIP's are not the same.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    #[default]
    Rest,
    Kmip,
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
        let Self { kek, settings, credentials } = self;
        let domain = kek.okms_id.as_deref().and_then(uuid);
        if domain.is_none() && kek.protocol == Protocol::Rest {
            problems.add("kek.okmsId", NO_UUID);
        }
        match (&kek.key, &kek.label) {
            (Some(key), None) if kek.id(key).is_none() => problems.add("kek.key", NO_UUID),
            (None, Some(label)) if label.is_empty() => problems.add("kek.label", "is empty"),
            (Some(_), None) | (None, Some(_)) => {}
            _ => problems.add("kek", "needs exactly one of key and label"),
        }
        if let Err(why) = self.address() {
            problems.add("settings.address", &why);
        }
        data::check(self, problems);
        credentials.check(settings.ca_file.as_deref(), problems);
    }

    /// Where the service is. It knows us by our certificate: TLS always.
    pub(crate) fn address(&self) -> Result<Address, String> {
        let text = self.settings.address.as_deref().unwrap_or_default();
        match (self.kek.protocol, Address::parse(text)) {
            (Protocol::Kmip, _) => sidekey_ttlv::address(text),
            (_, Ok(address)) if !address.is_tls() => Err("must be https".to_owned()),
            (_, parsed) => parsed,
        }
    }
}

impl Kek {
    /// The id of a key, in the one way to write it.
    pub(crate) fn id(&self, text: &str) -> Option<String> {
        match self.protocol {
            Protocol::Rest => uuid(text),
            Protocol::Kmip => (!text.is_empty()).then(|| text.to_owned()),
        }
    }
}
