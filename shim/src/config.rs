//! The shim's configuration: listeners, keys with roles, and how to reach them.

mod layout;
mod parse;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use sidekey_core::app::Configuration;
use sidekey_core::config::{KeyNumber, KeyRole, ProbeOptions, ProcessOptions};
use sidekey_core::{Canary, Endpoint, NO_FINGERPRINT};

pub use layout::{directory, from_encryption_configuration};
pub use parse::parse;

use crate::tls::TlsFiles;

/// Everything the shim needs to run.
#[derive(Clone, Debug)]
pub struct ShimConfig {
    /// What every process has.
    pub options: ProcessOptions,
    /// How key_ids are handled.
    pub mode: Mode,
    /// Where kube-apiserver connects; the first is the main one.
    pub listeners: Vec<ListenerSpec>,
    /// The keys; exactly one writes.
    pub keys: Vec<RoutedKeySpec>,
    /// Where the admin endpoints are served to callers who show a certificate.
    pub admin_tls: Option<AdminTls>,
    /// How the write key is probed, and how long its loss is borne.
    pub probe: ProbeOptions,
    /// The interval between probes, if it was set.
    pub probe_interval: Option<Duration>,
    /// The cache of unwrapped keys; none unless asked for.
    pub cache: Option<CacheOptions>,
    /// The document itself, to be kept as the last good one. It holds no secrets.
    pub document: Arc<Value>,
}

/// How key_ids are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Route by key_id; announce `sidekey/<keyID>-<fingerprint>/…`.
    #[default]
    Route,
    /// One endpoint behind one socket, key_ids untouched: for those who keep the order of
    /// providers in EncryptionConfiguration.
    Forward,
}

/// One socket that kube-apiserver connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// Where.
    pub endpoint: Endpoint,
    /// The key of ciphertext that was written without the shim.
    pub legacy: Option<KeyNumber>,
}

/// One key.
#[derive(Clone, Debug)]
pub struct RoutedKeySpec {
    /// Its number, never reused.
    pub id: KeyNumber,
    /// What it is for.
    pub role: KeyRole,
    /// How to reach it.
    pub upstream: UpstreamSpec,
}

/// Everything about a key but its role: a change of it makes a new client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSpec {
    /// Lower-case hex; [`NO_FINGERPRINT`] if unknown.
    pub fingerprint: String,
    /// Several ways to the same key, in order of preference.
    pub endpoints: Vec<Address>,
    /// What it must be able to read.
    pub canary: Option<Canary>,
    /// For `https` endpoints.
    pub tls: Option<ClientTls>,
    /// The uids that may serve its unix endpoints; our own and root if empty.
    pub server_uids: Vec<u32>,
    /// Somebody else's plugin: it has no coast of its own, and Status may cost it a call.
    pub external: bool,
}

/// A way to a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// In the same pod.
    Unix(Endpoint),
    /// Through a socket proxy.
    Https {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
}

/// How to prove who we are to a proxy, and who it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificates.
    pub files: TlsFiles,
    /// The name in the proxy's certificate, if it is not the host's.
    pub server_name: Option<String>,
}

/// The admin endpoints for callers with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTls {
    /// Where.
    pub listen: std::net::SocketAddr,
    /// Certificates.
    pub files: TlsFiles,
    /// Names that may call.
    pub allow: Vec<String>,
}

/// The cache of unwrapped keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// At most so many.
    pub entries: usize,
    /// No longer than this.
    pub ttl: Duration,
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("https://") else {
            if text.starts_with("http://") {
                return Err("plain http is not spoken: use https through a socket proxy".into());
            }
            return text.parse().map(Self::Unix).map_err(|error| format!("{error}"));
        };
        let bad = || format!("{text:?} is no address: write https://host:port");
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = authority.rsplit_once(':').ok_or_else(bad)?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let sound = !host.is_empty()
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:".contains(&b));
        match port.parse() {
            Ok(port) if sound && port > 0 => Ok(Self::Https { host: host.to_owned(), port }),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(endpoint) => endpoint.fmt(f),
            Self::Https { host, port } if host.contains(':') => {
                write!(f, "https://[{host}]:{port}")
            }
            Self::Https { host, port } => write!(f, "https://{host}:{port}"),
        }
    }
}

sidekey_core::labels! { pub Mode: Route = "route", Forward = "forward" }

impl UpstreamSpec {
    /// Whether a fingerprint is this key's; one that says nothing matches every key.
    pub fn matches(&self, fingerprint: &str) -> bool {
        [self.fingerprint.as_str(), NO_FINGERPRINT].contains(&fingerprint)
            || self.fingerprint == NO_FINGERPRINT
    }
}

impl RoutedKeySpec {
    /// How often it is probed, given the interval that was set. Our own providers answer Status
    /// from memory; what they say of the write key must arrive within four seconds, jitter
    /// included.
    pub fn interval(&self, set: Option<Duration>) -> Duration {
        let longest = match (self.role, self.upstream.external) {
            (KeyRole::Write, false) => Duration::from_millis(3600),
            (KeyRole::Write, true) => Duration::from_secs(30),
            (KeyRole::Read, _) => Duration::from_secs(60),
        };
        match set {
            Some(set) if self.upstream.external => set,
            Some(set) => set.min(longest),
            None => longest,
        }
    }
}

impl Configuration for ShimConfig {
    fn options(&mut self) -> &mut ProcessOptions {
        &mut self.options
    }

    fn fixed(&self) -> Vec<(&'static str, String)> {
        let ProcessOptions { socket, drain, .. } = &self.options;
        let admin_tls = self.admin_tls.as_ref().map(|tls| (tls.listen, &tls.files));
        vec![
            ("adminTls", format!("{admin_tls:?}")),
            ("socket", format!("{socket:?}")),
            ("drain", format!("{drain:?}")),
        ]
    }
}

impl ShimConfig {
    /// How a key is probed.
    pub fn probing(&self, key: &RoutedKeySpec) -> ProbeOptions {
        ProbeOptions { interval: key.interval(self.probe_interval), ..self.probe }
    }

    /// The key that writes; there is one, as checked.
    pub fn writer(&self) -> Option<&RoutedKeySpec> {
        self.keys.iter().find(|key| key.role == KeyRole::Write)
    }

    /// The keys by number.
    pub fn by_id(&self) -> BTreeMap<KeyNumber, &RoutedKeySpec> {
        self.keys.iter().map(|key| (key.id, key)).collect()
    }
}

#[cfg(test)]
mod tests;
