//! What shims and providers say of themselves on `/status`, as far as it is of use here. Fields
//! that are not known are skipped: a fleet may be of several versions.

use serde::{Deserialize, Serialize};

/// A shim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "camelCase"))]
pub struct ShimStatus {
    /// Its version.
    pub version: String,
    /// Since when it runs.
    pub started: String,
    /// `route` or `forward`.
    pub mode: String,
    /// The revision in use.
    pub revision: Option<String>,
    /// Where it is from, and why a newer one is not in use.
    pub config: Loaded,
    /// Whether its Status is ok.
    pub healthy: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The number of the key that writes.
    pub write_key: String,
    /// The hash of the key_id that it announces.
    pub key_id_hash: Option<String>,
    /// Every key.
    pub keys: Vec<KeyStatus>,
}

/// A key of a shim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "camelCase"))]
pub struct KeyStatus {
    /// Its number.
    pub id: String,
    /// `write` or `read`.
    pub role: String,
    /// Short hash of its KEK.
    pub fingerprint: String,
    /// Whether it has read its canary: it has one.
    pub canary: bool,
    /// Whether it can be used now.
    pub healthy: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Since when.
    pub since: String,
    /// The hash of the key_id under which it wraps.
    pub key_id_hash: Option<String>,
    /// When it was last used with success.
    pub last_success: Option<String>,
    /// What went wrong last.
    pub last_error: Option<Trouble>,
}

/// The configuration in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "camelCase"))]
pub struct Loaded {
    /// Its file.
    pub source: String,
    /// Its revision.
    pub revision: Option<String>,
    /// When it was loaded.
    pub loaded: String,
    /// Why a newer one is not in use.
    pub refused: Option<Refusal>,
}

/// Why something newer is not in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Refusal {
    /// When it was tried last.
    pub at: String,
    /// Why.
    pub error: String,
}

/// A failure, and when it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Trouble {
    /// When.
    pub at: String,
    /// What.
    pub error: String,
    /// Its kind, where a provider tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A provider process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "camelCase"))]
pub struct ProviderStatus {
    /// Its name.
    pub provider: String,
    /// Its version.
    pub version: String,
    /// Since when it runs.
    pub started: String,
    /// The configuration in use.
    pub config: Loaded,
    /// Every key.
    pub keys: Vec<ProviderKey>,
}

/// A key of a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all(serialize = "camelCase"))]
pub struct ProviderKey {
    /// Its number.
    pub id: String,
    /// Its socket.
    pub endpoint: String,
    /// Whether its Status is ok.
    pub healthy: bool,
    /// Why not.
    pub reason: Option<String>,
    /// The hash of the key_id that it announces.
    pub key_id_hash: Option<String>,
    /// When it was last used with success.
    pub last_success: Option<String>,
    /// What went wrong last.
    pub last_error: Option<Trouble>,
    /// Why changed files or settings are not in use.
    pub refused: Option<Trouble>,
    /// When its credentials expire.
    pub credentials_expire: Option<String>,
}
