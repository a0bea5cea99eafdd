//! `status` of a SecretEncryption: what people and other operators read.
//!
//! It changes only when something has happened: no times of checks, so that a healthy control plane
//! costs no write.

use kube::api::DynamicObject;
use serde::{Deserialize, Serialize};

use crate::model::Token;
use crate::operator::schedule::Version;
use crate::rotate::{Past, Stage, Turn};

/// What is so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The generation of the spec that this speaks of.
    pub observed_generation: i64,
    /// The revision that is published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// What is published leads to sockets of providers in directories of their own: pods may be made
    /// so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub isolated_sockets: bool,
    /// Where it stands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What new data is written with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_key: Option<Turn>,
    /// What it is to be written with, while a rotation is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_key: Option<Turn>,
    /// The rotation under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// Rotations, the newest first, at most five.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Past>,
    /// Every key that is loaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyState>,
    /// Tokens that are minted beside providers. One of which the spec knows nothing any more stays as
    /// long as keys that need it do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Token>,
    /// Keys that nothing stored needs any more; backups may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<Retired>,
    /// Every replica: what it has loaded, and how it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaState>,
    /// What each replica says of each key; failures too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health_reports: Vec<HealthReport>,
    /// The hash of the key_id that everything stored is under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_under: Option<String>,
    /// The resources that this is said of; where there are none, all that are published.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub encrypted_resources: Vec<String>,
    /// A key_id that has moved at the vendor, and since when it is seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// The version of the write key that the next one is counted from, where a schedule asks for
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_rotation: Option<Version>,
}

/// A condition, as Kubernetes has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, and what to do.
    pub message: String,
    /// When its status last changed.
    pub last_transition_time: String,
    /// The generation that it speaks of.
    #[serde(default)]
    pub observed_generation: i64,
}

/// The rotation under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// How far it is.
    pub stage: Stage,
    /// When it began.
    pub started_time: String,
    /// What is done, in words: `412 of 3000 objects rewritten`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Whom it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<String>,
}

/// A key that is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyState {
    /// Its number.
    pub id: u64,
    /// Its provider.
    #[serde(rename = "type")]
    pub vendor: String,
    /// `write` or `read`.
    pub role: String,
    /// Of its KEK.
    pub fingerprint: String,
    /// It is not in the spec any more, and stays until etcd was counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retained: bool,
}

/// A key that nothing stored needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retired {
    /// Its number, or the name of a cipher.
    pub id: String,
    /// Its provider.
    #[serde(rename = "type")]
    pub vendor: String,
    /// Of its KEK.
    pub fingerprint: String,
    /// Backups from before then need it.
    pub retired_time: String,
    /// What the administrator may do, and when.
    pub advice: String,
    /// Of a name: the spec has left it out since. One that names it again brings it back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaState {
    /// Its pod.
    pub name: String,
    /// The revision that it has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Whether its write key works.
    pub healthy: bool,
    /// The hash of the key_id that it announces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id_hash: Option<String>,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a replica says of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthReport {
    /// The replica's pod.
    pub node_name: String,
    /// The key's number.
    #[serde(rename = "keyID")]
    pub key_id: String,
    /// `Healthy`, `Unhealthy` or `Error`.
    pub status: String,
    /// The hash of its key_id, if it is known.
    #[serde(rename = "remoteKeyID", default, skip_serializing_if = "Option::is_none")]
    pub remote_key_id: Option<String>,
    /// What is wrong, at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A key_id that has moved at the vendor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    /// Its hash.
    pub key_id_hash: String,
    /// Since when every replica has announced it.
    pub since: String,
}

impl Status {
    /// What the object says; nothing where it says nothing that can be read.
    pub fn of(object: &DynamicObject) -> Self {
        object
            .data
            .get("status")
            .and_then(|status| Self::deserialize(status).ok())
            .unwrap_or_default()
    }
}
