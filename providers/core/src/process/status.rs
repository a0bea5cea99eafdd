//! What `/status` shows.

use std::time::SystemTime;

use serde::Serialize;

use crate::KeyId;
use crate::key::Key;
use crate::key::health::{Snapshot, Trouble};
use crate::process::app::ConfigStatus;

/// The whole process.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessStatus {
    pub(crate) provider: &'static str,
    pub(crate) version: &'static str,
    pub(crate) started: String,
    pub(crate) config: ConfigStatus,
    pub(crate) connections: serde_json::Value,
    pub(crate) keys: Vec<KeyStatus>,
}

/// One key.
#[derive(Debug, Serialize)]
pub(crate) struct KeyStatus {
    id: String,
    endpoint: String,
    healthy: bool,
    /// Why Status answers with an error.
    reason: Option<String>,
    since: String,
    /// Since when the KMS fails while Status is still ok.
    coasting_since: Option<String>,
    /// Whether it has proven that it can.
    encrypts: bool,
    key_id: Option<String>,
    key_id_hash: Option<String>,
    last_success: Option<String>,
    last_error: Option<ErrorStatus>,
    /// Why changed files or settings are not in use.
    refused: Option<ErrorStatus>,
    credentials_expire: Option<String>,
    note: Option<String>,
}

/// What went wrong last.
#[derive(Debug, Serialize)]
pub struct ErrorStatus {
    /// When.
    pub at: String,
    /// Of what kind it is.
    pub kind: &'static str,
    /// What and why.
    pub error: String,
}

impl KeyStatus {
    pub(crate) fn of(key: &Key) -> Self {
        let Snapshot { since, coasting, last_success, last_error, .. } = key.health.snapshot();
        let status = key.status();
        let active = key.active();
        let active = active.as_ref();
        let key_id = active.and_then(|active| active.key_id.as_ref());
        Self {
            id: key.id.to_string(),
            endpoint: key.endpoint.to_string(),
            healthy: status.is_ok(),
            reason: status.err().map(|error| error.report()),
            since: time(since),
            coasting_since: coasting.map(time),
            encrypts: active.is_some_and(|active| active.encrypts),
            key_id: key_id.map(ToString::to_string),
            key_id_hash: key_id.map(KeyId::hash),
            last_success: last_success.map(time),
            last_error: last_error.map(ErrorStatus::from),
            refused: key.refused().map(ErrorStatus::from),
            credentials_expire: active.and_then(|active| active.backend.expiry()).map(time),
            note: active.and_then(|active| active.backend.note()),
        }
    }
}

impl From<Trouble> for ErrorStatus {
    fn from(trouble: Trouble) -> Self {
        Self { at: time(trouble.at), kind: trouble.kind.label(), error: trouble.text }
    }
}

/// RFC 3339 in UTC.
pub fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}
