//! `kek`, `settings` and `credentials` of one key.

mod credentials;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use sidekey_core::config::Problems;
use sidekey_core::config::fields::{duration, text};
use sidekey_core::tls::Unusable;
use sidekey_core::{Error, Files};
use sidekey_rest::files::check_absolute;
use sidekey_rest::tls::{self, Pair};
use sidekey_rest::{Address, Trust};

pub(crate) use credentials::{Credentials, NO_WRAPPING};

/// More servers than a cluster has, and more names than a key has ever had.
const MAX_LIST: usize = 16;
/// Longest name of a mount, key, role or namespace.
const MAX_NAME: usize = 512;

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    #[serde(deserialize_with = "or_default")]
    kek: RawKek,
    #[serde(deserialize_with = "or_default")]
    settings: Settings,
    #[serde(deserialize_with = "or_default")]
    pub(crate) credentials: Credentials,
}

/// Which key it is, wherever its cluster can be reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawKek {
    namespace: Option<String>,
    mount: Option<String>,
    key: Option<String>,
    key_path: Option<String>,
}

/// How the cluster is reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Settings {
    address: Option<String>,
    addresses: Option<Vec<String>>,
    auth_namespace: Option<String>,
    #[serde(deserialize_with = "or_default")]
    tls: Tls,
    #[serde(deserialize_with = "text")]
    connect_timeout: Option<String>,
    #[serde(deserialize_with = "text")]
    request_timeout: Option<String>,
    /// Whether plain HTTP may leave this machine.
    allow_plaintext: Option<bool>,
    /// Whether what is written is bound to its key_id, which vault-kubernetes-kms cannot read.
    associated_data: Option<bool>,
    /// Whether data of vault-kubernetes-kms is read.
    legacy_data: Option<bool>,
    /// What the key was called before its mount or namespace was renamed, or before it was
    /// restored under another name: data names its key, and must not be lost by that.
    former_keks: Option<Vec<RawKek>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Tls {
    ca_file: Option<PathBuf>,
    server_name: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

/// Which key, in the one way to write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kek {
    /// Without slashes at its ends; empty for the root.
    pub(crate) namespace: String,
    pub(crate) mount: String,
    pub(crate) key: String,
}

impl Config {
    /// Reports every mistake.
    pub(crate) fn check(&self, problems: &mut Problems) {
        problems.within("kek", |problems| self.kek.check(problems));
        problems.within("settings", |problems| self.settings.check(problems));
        problems.within("credentials", |problems| self.credentials.check(problems));
        let shown = self.credentials.cert.is_some() || self.settings.tls.pair().is_some();
        if shown && !self.is_tls() {
            problems.add("settings.addresses", "must be https where a certificate is shown");
        }
    }

    /// Everything that a client is made of.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files = self.credentials.files();
        if self.is_tls() {
            files.extend(self.bundle());
            files.extend(self.pair().into_iter().flat_map(|pair| [pair.cert, pair.key]));
        }
        files
    }

    /// The key, if the configuration is sound.
    pub(crate) fn kek(&self) -> Option<Kek> {
        self.kek.kek()
    }

    /// What the key was called before.
    pub(crate) fn former_keks(&self) -> Vec<Kek> {
        self.settings.former_keks.iter().flatten().filter_map(RawKek::kek).collect()
    }

    /// The servers, as far as they can be read.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.settings.texts().filter_map(|text| Address::parse(text).ok()).collect()
    }

    /// Whether any of them is reached by TLS.
    fn is_tls(&self) -> bool {
        self.addresses().iter().any(Address::is_tls)
    }

    /// The namespace to log in to.
    pub(crate) fn auth_namespace(&self) -> String {
        let own = self.settings.auth_namespace.as_deref();
        bare(own.or(self.kek.namespace.as_deref()).unwrap_or_default()).to_owned()
    }

    /// Whether what is written is bound to its key_id.
    pub(crate) fn binds(&self) -> bool {
        self.settings.associated_data.unwrap_or(true)
    }

    /// Whether data of vault-kubernetes-kms is read.
    pub(crate) fn reads_legacy(&self) -> bool {
        self.settings.legacy_data.unwrap_or(true)
    }

    /// How the servers are trusted, and what they are shown.
    pub(crate) fn trust(&self, files: &Files) -> Result<Trust, Error> {
        let (bundle, pair) = match self.is_tls() {
            true => (self.bundle(), self.pair()),
            false => (None, None),
        };
        let unusable = bundle.as_deref().map_or(Unusable::Refuse, tls::unusable);
        let setting = "settings.tls.caFile";
        let trust = Trust::new(bundle.as_deref(), unusable, pair.as_ref(), files, setting)?;
        match self.server_name() {
            Some(name) => trust.with_name(name),
            None => Ok(trust),
        }
    }

    /// The CA bundle to trust; none for the public CAs that are built in.
    pub(crate) fn bundle(&self) -> Option<PathBuf> {
        tls::bundle(self.settings.tls.ca_file.as_deref())
    }

    /// The CA bundle that was chosen for these servers.
    pub(crate) fn own_bundle(&self) -> Option<PathBuf> {
        self.settings.tls.ca_file.clone()
    }

    /// The name that every server's certificate is for.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.settings.tls.server_name.as_deref()
    }

    /// The certificate to show.
    pub(crate) fn pair(&self) -> Option<Pair> {
        let cert = self.credentials.cert.as_ref();
        cert.and_then(credentials::Cert::pair).or_else(|| self.settings.tls.pair())
    }

    /// Times for a connection and for an answer, while there is another server to ask.
    pub(crate) fn timeouts(&self) -> (Duration, Duration) {
        self.settings.timeouts(&mut Problems::default())
    }
}

impl RawKek {
    fn check(&self, problems: &mut Problems) {
        check_path("namespace", &self.namespace, problems);
        match (&self.key_path, &self.key) {
            (Some(_), key) if key.is_some() || self.mount.is_some() => {
                problems.add("keyPath", "excludes key and mount");
            }
            (Some(path), _) => {
                if split(path).is_none_or(|(mount, key)| !is_path(mount) || !is_name(key)) {
                    problems.add("keyPath", "is not of the form <mount>/keys/<key>");
                }
            }
            (None, Some(key)) => check_name("key", key, problems),
            (None, None) => problems.add("key", "is required (or keyPath)"),
        }
        check_path("mount", &self.mount, problems);
    }

    fn kek(&self) -> Option<Kek> {
        let (mount, key) = match &self.key_path {
            Some(path) => split(path)?,
            None => (self.mount.as_deref().unwrap_or("transit"), self.key.as_deref()?),
        };
        let namespace = bare(self.namespace.as_deref().unwrap_or_default()).to_owned();
        Some(Kek { namespace, mount: bare(mount).to_owned(), key: key.to_owned() })
    }
}

impl Settings {
    fn check(&self, problems: &mut Problems) {
        if self.address.is_some() && self.addresses.is_some() {
            problems.add("address", "excludes addresses");
        }
        if self.texts().next().is_none() {
            problems.add("address", "is required (or addresses)");
        }
        check_count("addresses", self.texts().count(), problems);
        for (index, text) in self.texts().enumerate() {
            let path = match self.address {
                Some(_) => "address".to_owned(),
                None => format!("addresses[{index}]"),
            };
            Address::check(&path, text, self.allow_plaintext == Some(true), problems);
        }
        check_path("authNamespace", &self.auth_namespace, problems);
        let former = self.former_keks.as_deref().unwrap_or_default();
        check_count("formerKeks", former.len(), problems);
        for (index, kek) in former.iter().enumerate() {
            problems.within(&format!("formerKeks[{index}]"), |problems| kek.check(problems));
        }
        if (self.associated_data, self.legacy_data) == (Some(false), Some(false)) {
            problems.add(
                "legacyData",
                "must be true where associatedData is false: what is written could not be read",
            );
        }
        problems.within("tls", |problems| self.tls.check(problems));
        self.timeouts(problems);
    }

    fn timeouts(&self, problems: &mut Problems) -> (Duration, Duration) {
        (
            duration("connectTimeout", self.connect_timeout.as_deref(), 1, problems),
            duration("requestTimeout", self.request_timeout.as_deref(), 2, problems),
        )
    }

    fn texts(&self) -> impl Iterator<Item = &String> {
        self.address.iter().chain(self.addresses.iter().flatten())
    }
}

impl Tls {
    fn pair(&self) -> Option<Pair> {
        pair(self.cert_file.as_ref(), self.key_file.as_ref())
    }

    fn check(&self, problems: &mut Problems) {
        let files = [
            ("caFile", self.ca_file.as_deref()),
            ("certFile", self.cert_file.as_deref()),
            ("keyFile", self.key_file.as_deref()),
        ];
        check_absolute(&files, problems);
        if self.key_file.is_some() && self.cert_file.is_none() {
            problems.add("certFile", "is required with keyFile");
        }
        let named = self.server_name.as_deref();
        if named.is_some_and(|name| !tls::is_name(name)) {
            problems.add("serverName", "is no DNS name and no IP address");
        }
    }
}

/// The key may stand in the file of its certificate, as kubelet writes it.
fn pair(cert: Option<&PathBuf>, key: Option<&PathBuf>) -> Option<Pair> {
    let cert = cert?.clone();
    Some(Pair { key: key.unwrap_or(&cert).clone(), cert })
}

/// What is written without a value is as good as not written.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn check_count(field: &str, count: usize, problems: &mut Problems) {
    if count > MAX_LIST {
        problems.add(field, &format!("has {count} entries, at most {MAX_LIST}"));
    }
}

fn check_name(field: &str, name: &str, problems: &mut Problems) {
    if !is_name(name) {
        problems.add(field, "may hold letters, digits, - _ and . only");
    }
}

fn check_path(field: &str, path: &Option<String>, problems: &mut Problems) {
    let path = path.as_deref().map(bare).filter(|path| !path.is_empty());
    if path.is_some_and(|path| !is_path(path)) {
        problems.add(field, "may hold letters, digits, - _ . and / only");
    }
}

/// What Vault takes for a name: nothing in it needs escaping in a path.
fn is_name(name: &str) -> bool {
    let sound = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name.bytes().all(sound)
        && !name.starts_with('.')
        && !name.ends_with('.')
}

fn is_path(path: &str) -> bool {
    path.len() <= MAX_NAME && bare(path).split('/').all(is_name)
}

/// `<mount>/keys/<key>`, as OpenShift and vault-kube-kms write it.
fn split(path: &str) -> Option<(&str, &str)> {
    bare(path).rsplit_once("/keys/")
}

/// Without the slashes at its ends, which mean nothing to Vault.
pub(crate) fn bare(path: &str) -> &str {
    path.trim_matches('/')
}

#[cfg(test)]
mod tests;
