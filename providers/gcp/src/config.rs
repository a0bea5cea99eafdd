//! One key of the configuration: `kek`, `settings` and `credentials`.

use std::path::PathBuf;

use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_rest::files::check_absolute;
use sidekey_rest::{Address, tls};

use crate::adc;
use crate::dropin::data::{self, PluginFormat};
use crate::name::{FORM, Named};

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    pub(crate) kek: Kek,
    pub(crate) settings: Settings,
    pub(crate) credentials: Credentials,
}

/// Which KEK it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Kek {
    pub(crate) key: Option<String>,
}

/// How it is reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Settings {
    pub(crate) endpoint: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) allow_plaintext: bool,
    pub(crate) also_reads: Vec<String>,
    pub(crate) plugin_format: Option<PluginFormat>,
}

/// Who we are; without any of it, what Google's own clients look for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Credentials {
    pub(crate) file: Option<PathBuf>,
    pub(crate) gce_config: Option<PathBuf>,
    /// For an emulator on this machine.
    pub(crate) anonymous: bool,
}

impl Settings {
    fn address(&self) -> &str {
        self.endpoint.as_deref().unwrap_or("https://cloudkms.googleapis.com")
    }
}

impl Config {
    /// Every mistake that types cannot express.
    pub(crate) fn check(&self, problems: &mut Problems) {
        let Self { kek, settings, credentials } = self;
        if let Some(key) = problems.require("kek.key", &kek.key)
            && !Named::parse(key).is_some_and(|named| named.is_key(false))
        {
            problems.add("kek.key", FORM);
        }
        data::check(self, problems);
        let allowed = settings.allow_plaintext;
        Address::check("settings.endpoint", settings.address(), allowed, problems);
        let paths = [
            ("settings.caFile", settings.ca_file.as_deref()),
            ("credentials.file", credentials.file.as_deref()),
            ("credentials.gceConfig", credentials.gce_config.as_deref()),
        ];
        check_absolute(&paths, problems);
    }

    /// Where Cloud KMS is asked.
    pub(crate) fn endpoint(&self) -> Result<Address, String> {
        Address::parse(self.settings.address())
    }

    /// The files that a client is made of, but for those that they name in turn.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let bundle = tls::bundle(self.settings.ca_file.as_deref());
        [bundle, self.credentials.gce_config.clone(), adc::file(&self.credentials)]
            .into_iter()
            .flatten()
            .collect()
    }
}
