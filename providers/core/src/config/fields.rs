//! Fields that every Sidekey process has in its configuration, read in one way.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::schema::KeyNumber;
use super::{Problems, parse_duration, parse_mode};
use crate::Endpoint;
use crate::process::HealthOptions;
use crate::socket::SocketOptions;

/// The longest wait after a failed probe.
pub const LAST_BACKOFF: Duration = Duration::from_secs(5);

/// Format and level of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// For people or for machines.
    pub format: LogFormat,
    /// What is worth a line.
    pub level: tracing::Level,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One readable line.
    Text,
    /// One JSON object a line.
    Json,
}

crate::labels! { pub LogFormat: Text = "text", Json = "json" }

/// How a key's health is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Between two probes of a healthy key; jittered by a tenth.
    pub interval: Duration,
    /// How long one probe may take.
    pub timeout: Duration,
    /// How long Status stays ok after the last proof while the KMS fails in a passing way.
    pub coast: Duration,
}

/// How often a key that writes encrypts for a probe, and one that reads is probed at all: in
/// intervals, and at the least.
pub(crate) const ENCRYPT_EVERY: (u32, Duration) = (10, Duration::from_secs(300));

impl ProbeOptions {
    /// The times of a key that only reads: it is probed less often, and so its proofs are older.
    pub(crate) fn of_reader(mut self) -> Self {
        self.interval = self.every(ENCRYPT_EVERY);
        // What is raised is as documented, and nobody has set it.
        let _ = self.raise_coast();
        self
    }

    /// So many intervals, but at the least so often.
    pub(crate) fn every(&self, (intervals, least): (u32, Duration)) -> Duration {
        self.interval.saturating_mul(intervals).min(least)
    }

    /// Makes the coast long enough for a probe that is late, one that fails, and one after it:
    /// a shorter one would turn Status bad without any failure. Returns what to tell the operator.
    pub fn raise_coast(&mut self) -> Option<String> {
        let least = self.interval * 11 / 10 + self.timeout + LAST_BACKOFF;
        if self.coast >= least {
            return None;
        }
        let given = std::mem::replace(&mut self.coast, least);
        Some(format!(
            "a coast of {given:?} is too short for probes every {:?} that may take {:?}: {least:?} is in use",
            self.interval, self.timeout
        ))
    }
}

/// `log`, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RawLog {
    format: Option<LogFormat>,
    level: Option<String>,
}

/// One of `health`, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RawHealth {
    address: Option<String>,
    healthz: Option<String>,
    livez: Option<String>,
    metrics: Option<String>,
    optional: bool,
}

/// `socket`, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RawSocket {
    #[serde(deserialize_with = "text")]
    mode: Option<String>,
    group: Option<u32>,
    allowed_uids: Option<Vec<u32>>,
}

/// `probe`, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RawProbe {
    #[serde(deserialize_with = "text")]
    interval: Option<String>,
    #[serde(deserialize_with = "text")]
    timeout: Option<String>,
    #[serde(deserialize_with = "text")]
    coast: Option<String>,
}

/// Reads `serverUids`: a list that names nobody would accept no server.
pub fn server_uids(given: Option<&[u32]>, problems: &mut Problems) -> Vec<u32> {
    if given.is_some_and(<[u32]>::is_empty) {
        problems.add("serverUids", "is empty: name the uids, or leave it out for our own and root");
    }
    given.unwrap_or_default().to_vec()
}

/// Reads a key number: `1` and `"1"` are the same.
pub fn number(value: &Value, problems: &mut Problems) -> Option<KeyNumber> {
    let text = plain(value);
    let digits = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    if number.is_none() {
        problems.add("id", &format!("{text:?} is no key number: write 1, 2, 3 …"));
    }
    number.map(KeyNumber)
}

/// Text, whatever YAML made of it: it makes numbers of what people mean as text.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Takes a number for text, so that what reads the text can say what is wrong with it: `30` lacks
/// a unit, and `0660` lost its leading zero.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    match value {
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(other) => Option::<String>::deserialize(other).map_err(serde::de::Error::custom),
        None => Ok(None),
    }
}

/// Reads `ip:port`.
pub fn address(path: &str, text: &str, problems: &mut Problems) -> Option<SocketAddr> {
    // Go programs take `:8080` for all addresses, and so do the probes written for them: those of
    // IPv6 too where there is any.
    let all = if Path::new("/proc/net/if_inet6").exists() { "[::]" } else { "0.0.0.0" };
    let full = if text.starts_with(':') { format!("{all}{text}") } else { text.to_owned() };
    let parsed = full.parse().ok();
    if parsed.is_none() {
        problems.add(path, &format!("{text:?} is no address: write ip:port, as in 127.0.0.1:8093"));
    }
    parsed
}

/// Reads `health`.
pub fn health(raw: Vec<Option<RawHealth>>, problems: &mut Problems) -> Vec<HealthOptions> {
    let read = |(index, raw): (usize, RawHealth)| {
        problems.within(&format!("health[{index}]"), |problems| {
            let RawHealth { address: at, healthz, livez, metrics, optional } = raw;
            for (field, path) in [("healthz", &healthz), ("livez", &livez), ("metrics", &metrics)] {
                if path.as_deref().is_some_and(|path| !path.starts_with('/')) {
                    problems.add(field, "is no path: it begins with /");
                }
            }
            let at = problems.require("address", &at)?;
            let address = address("address", at, problems)?;
            Some(HealthOptions { address, healthz, livez, metrics, optional })
        })
    };
    let written = raw.into_iter().enumerate();
    written.filter_map(|(index, raw)| Some((index, raw?))).filter_map(read).collect()
}

/// Reads a unix socket.
pub fn endpoint(path: &str, text: &str, problems: &mut Problems) -> Option<Endpoint> {
    text.parse().map_err(|error| problems.add(path, &format!("{error}"))).ok()
}

/// Reads `log`.
pub fn log(raw: RawLog, problems: &mut Problems) -> LogOptions {
    let level = raw.level.as_deref().map(str::parse);
    if let Some(Err(_)) = level {
        problems.add("log.level", "is not one of error, warn, info, debug, trace");
    }
    LogOptions {
        format: raw.format.unwrap_or(LogFormat::Text),
        level: level.and_then(Result::ok).unwrap_or(tracing::Level::INFO),
    }
}

/// Reads `socket`.
pub fn socket(raw: RawSocket, problems: &mut Problems) -> SocketOptions {
    let mode = raw.mode.as_deref().map_or(Ok(0o660), parse_mode);
    if let Err(text) = &mode {
        problems.add("socket.mode", text);
    }
    SocketOptions {
        mode: mode.unwrap_or(0o660),
        group: raw.group,
        allowed_uids: raw.allowed_uids.unwrap_or_default(),
    }
}

/// Reads `probe`.
pub fn probe(raw: RawProbe, problems: &mut Problems) -> ProbeOptions {
    problems.within("probe", |problems| ProbeOptions {
        interval: duration("interval", raw.interval.as_deref(), 30, problems),
        timeout: duration("timeout", raw.timeout.as_deref(), 10, problems),
        coast: duration("coast", raw.coast.as_deref(), 60, problems),
    })
}

/// Reads a duration longer than zero; `seconds` is the default.
pub fn duration(path: &str, text: Option<&str>, seconds: u64, problems: &mut Problems) -> Duration {
    let duration = any_duration(path, text, seconds, problems);
    if duration.is_zero() {
        problems.add(path, "must be longer than zero");
    }
    duration
}

/// Reads a duration, which may be zero; `seconds` is the default.
pub(super) fn any_duration(
    path: &str,
    text: Option<&str>,
    seconds: u64,
    problems: &mut Problems,
) -> Duration {
    let default = Duration::from_secs(seconds);
    text.map_or(Ok(default), parse_duration).unwrap_or_else(|error| {
        problems.add(path, &error);
        default
    })
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: tracing::Level::INFO }
    }
}
