//! Proves a key before anything depends on it: runs the provider's own binary with the given
//! settings, in private, and says whether it may go live.
//!
//! What it finds is told apart: *terminal* problems stay until somebody changes something
//! (credentials, permissions, the wrong KEK), *transient* ones may be gone a moment later (a KMS
//! that is away) and are tried again until the time is up. Nothing is changed at the KMS, and the
//! provider and every copy of a credential are gone afterwards.

mod private;
mod process;
mod talk;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use sidekey_core::{Endpoint, Secret, hex, sha256};

use crate::Error;
use crate::model::{Key, Role};

pub use process::find_binary;
pub use talk::TIMEOUT;

/// Where providers are, and how long to try.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where `sidekey-<type>` is; else `$PATH` and this program's own directory are searched.
    pub bin_dir: Option<PathBuf>,
    /// For one key, retries included.
    pub timeout: Duration,
}

/// A key to be proven.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its number.
    pub id: u64,
    /// Its provider: `sidekey-<vendor>`.
    pub vendor: String,
    /// What it is to be used for.
    pub role: Role,
    /// The key's own sections, for the provider.
    pub kek: Value,
    /// The same.
    pub settings: Value,
    /// The same.
    pub credentials: Value,
    /// What lands beside the provider's file, by name.
    pub files: Vec<(String, Secret)>,
    /// What it must be able to read.
    pub canary: Option<Value>,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyReport {
    /// The key.
    pub id: String,
    /// Its provider, or the socket that was asked.
    #[serde(rename = "type")]
    pub vendor: String,
    /// What it is to be used for.
    pub role: Role,
    /// Whether it may go live.
    pub verdict: Verdict,
    /// What was tried, in order.
    pub steps: Vec<Step>,
    /// The hash of the key_id that it announces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id_hash: Option<String>,
    /// SHA-256 of the configuration and of all files that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// A canary, if the key had none or an older version's: it belongs into the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<Value>,
    /// The end of the provider's log, if it failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What.
    pub check: &'static str,
    /// Whether it went well.
    pub result: Outcome,
    /// What was seen, and what to do.
    pub detail: String,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Well.
    Ok,
    /// Not well, and not needed for this role.
    Warning,
    /// Not well, but it may be in a moment.
    Transient,
    /// Not well, until somebody changes something.
    Terminal,
}

/// Whether a key may go live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It may.
    Ready,
    /// Nobody knows yet: try again.
    Unknown,
    /// It must not.
    Refused,
}

impl Default for Options {
    fn default() -> Self {
        Self { bin_dir: None, timeout: TIMEOUT }
    }
}

impl Subject {
    /// A key of a document, with the content of its files.
    pub fn of(key: &Key, files: Vec<(String, Secret)>) -> Self {
        Self {
            id: key.id.0,
            vendor: key.vendor.clone(),
            role: key.role,
            kek: key.kek.clone(),
            settings: key.settings.clone(),
            credentials: key.credentials.clone(),
            files,
            canary: key.canary.clone(),
        }
    }

    /// SHA-256 over everything that decides how the provider behaves: settings in their canonical
    /// form, and the files. A result counts for this hash and for no other.
    pub fn config_hash(&self) -> String {
        let document = json!({
            "type": self.vendor, "kek": self.kek, "settings": self.settings,
            "credentials": self.credentials, "canary": self.canary,
        });
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by(|a, b| a.0.cmp(&b.0));
        // Each part with its length: no two lists of parts make the same text.
        let mut text = framed(document.to_string().as_bytes());
        for (name, content) in files {
            text.extend(framed(name.as_bytes()));
            text.extend(framed(&sha256(content.expose())));
        }
        format!("sha256:{}", hex(&sha256(&text)))
    }
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut framed = (bytes.len() as u64).to_be_bytes().to_vec();
    framed.extend(bytes);
    framed
}

impl KeyReport {
    fn new(id: String, vendor: String, role: Role) -> Self {
        Self {
            id,
            vendor,
            role,
            verdict: Verdict::Unknown,
            steps: Vec::new(),
            key_id_hash: None,
            config_hash: None,
            canary: None,
            log: Vec::new(),
        }
    }

    fn judge(&mut self) {
        let worst = |step: &Step| match step.result {
            Outcome::Ok | Outcome::Warning => Verdict::Ready,
            Outcome::Transient => Verdict::Unknown,
            Outcome::Terminal => Verdict::Refused,
        };
        self.verdict = self.steps.iter().map(worst).max().unwrap_or(Verdict::Unknown);
    }
}

/// Runs the provider and tries everything. An error means that it could not even be run.
pub async fn prove(subject: &Subject, options: &Options) -> Result<KeyReport, Error> {
    let role = subject.role;
    let mut report = KeyReport::new(subject.id.to_string(), subject.vendor.clone(), role);
    report.config_hash = Some(subject.config_hash());
    let binary = find_binary(&subject.vendor, options.bin_dir.as_deref())?;
    let place = private::Place::make(subject)?;
    if let Some(step) = process::check(&binary, &place).await? {
        let sound = step.result == Outcome::Ok;
        report.steps.push(step);
        if !sound {
            report.judge();
            return Ok(report);
        }
    }
    let deadline = tokio::time::Instant::now() + options.timeout;
    let mut running = process::Running::start(&binary, &place)?;
    let endpoint = Endpoint::Path(place.socket());
    let talking = talk::Talk::new(&endpoint, role, subject.canary.as_ref(), deadline);
    tokio::select! {
        () = talking.run(&mut report) => {}
        ended = running.ended() => report.steps.push(ended),
    }
    report.judge();
    running.end().await;
    if report.verdict != Verdict::Ready {
        report.log = place.log_tail(subject);
    }
    Ok(report)
}

/// Tries everything with a plugin that runs already, of any vendor.
pub async fn prove_socket(
    endpoint: &Endpoint,
    role: Role,
    canary: Option<&Value>,
    timeout: Duration,
) -> KeyReport {
    let mut report = KeyReport::new("-".to_owned(), endpoint.to_string(), role);
    let deadline = tokio::time::Instant::now() + timeout;
    talk::Talk::new(endpoint, role, canary, deadline).run(&mut report).await;
    report.judge();
    report
}
