//! `kek`, `settings` and `credentials` of one key.

use std::path::PathBuf;

use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_core::{Error, Files, Kind};
use sidekey_rest::files::check_absolute;
use sidekey_rest::naming::Version;
use sidekey_rest::tls::{self, Pair};
use sidekey_rest::{Address, Trust};
use sidekey_ttlv::{Mode, address};

use crate::Kmip;

/// More servers than a cluster has.
const MAX_SERVERS: usize = 16;
/// Longest name of a key.
const MAX_NAME: usize = 255;

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    pub(crate) kek: Kek,
    settings: Settings,
    credentials: Credentials,
}

/// Which key it is, wherever the servers are.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Kek {
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
}

/// How the servers are reached, and what they can do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Settings {
    addresses: Option<Vec<String>>,
    mode: Option<String>,
    ca_file: Option<PathBuf>,
    server_name: Option<String>,
}

/// Who we are: a certificate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Credentials {
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

impl Config {
    /// Reports every mistake.
    pub(crate) fn check(&self, problems: &mut Problems) {
        let Self { kek, settings, credentials } = self;
        if kek.id.is_some() == kek.name.is_some() {
            problems.add("kek", "needs exactly one of id and name");
        }
        if kek.id.as_deref().is_some_and(|id| !is_word(id)) {
            problems.add("kek.id", "is no unique identifier of letters, digits, - _ and .");
        }
        let is_name = |name: &String| (1..=MAX_NAME).contains(&name.len());
        if kek.name.as_ref().is_some_and(|name| !is_name(name)) {
            problems.add("kek.name", "is empty or too long");
        }
        let servers = problems.require("settings.addresses", &settings.addresses);
        if servers.is_some_and(|all| !(1..=MAX_SERVERS).contains(&all.len())) {
            problems.add("settings.addresses", &format!("must be 1 to {MAX_SERVERS} servers"));
        }
        for text in servers.into_iter().flatten() {
            if let Err(why) = address(text) {
                problems.add("settings.addresses", &why);
            }
        }
        if self.mode().is_none() {
            problems.add("settings.mode", "must be GCM, CTR or CBC");
        }
        if settings.server_name.as_deref().is_some_and(|name| !tls::is_name(name)) {
            problems.add("settings.serverName", "is not the name of a server in TLS");
        }
        problems.require("credentials.certFile", &credentials.cert_file);
        let paths = [
            ("settings.caFile", settings.ca_file.as_deref()),
            ("credentials.certFile", credentials.cert_file.as_deref()),
            ("credentials.keyFile", credentials.key_file.as_deref()),
        ];
        check_absolute(&paths, problems);
    }

    /// Everything that a client is made of.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let pair = self.pair().into_iter().flat_map(|pair| [pair.cert, pair.key]);
        pair.chain(tls::bundle(self.settings.ca_file.as_deref())).collect()
    }

    /// How the servers are trusted, and what we show them.
    pub(crate) fn trust(&self, files: &Files) -> Result<Trust, Error> {
        let bundle = tls::bundle(self.settings.ca_file.as_deref());
        let bundle = bundle.as_deref();
        let unusable = bundle.map_or(sidekey_core::tls::Unusable::Refuse, tls::unusable);
        let pair = self.pair();
        let trust = Trust::new(bundle, unusable, pair.as_ref(), files, "settings.caFile")?;
        match &self.settings.server_name {
            Some(name) => trust.with_name(name),
            None => Ok(trust),
        }
    }

    /// The servers, of one KMS.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, Error> {
        let all = self.settings.addresses.iter().flatten().map(|text| address(text));
        all.collect::<Result<_, _>>().map_err(|text| Error::new(Kind::Config, text))
    }

    /// What new data is wrapped with.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self.settings.mode.as_deref().unwrap_or("GCM") {
            "GCM" => Some(Mode::Gcm),
            "CTR" => Some(Mode::Ctr),
            "CBC" => Some(Mode::Cbc),
            _ => None,
        }
    }

    fn pair(&self) -> Option<Pair> {
        let Credentials { cert_file, key_file } = &self.credentials;
        let cert = cert_file.clone()?;
        Some(Pair { key: key_file.clone().unwrap_or_else(|| cert.clone()), cert })
    }
}

/// Whether a key_id can have it as its version.
fn is_word(uid: &str) -> bool {
    let version = Version { scope: sidekey_rest::naming::scope(&[]), version: uid.to_owned() };
    let key_id = version.key_id(<Kmip as sidekey_core::Provider>::NAME).ok();
    key_id.and_then(|key_id| Version::parse("kmip", key_id.as_str())) == Some(version)
}
