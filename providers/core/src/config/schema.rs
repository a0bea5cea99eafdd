//! The schema of a provider process (decision 6 of the design): settings of the process, and
//! `keys: [{id, type, role, listen, canary, kek, settings, credentials}]`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::{
    LogOptions, ProbeOptions, RawHealth, RawLog, RawProbe, RawSocket, address, duration, endpoint,
    health, linger, log, number, plain, probe, socket, text,
};
use super::{Problems, read};
use crate::backend::{Connector, Typed};
use crate::canary::Canary;
use crate::process::{AdminOptions, HealthOptions};
use crate::socket::SocketOptions;
use crate::{Endpoint, Provider};

/// Where a key listens unless told otherwise.
const SOCKET_DIRECTORY: &str = "/var/run/kmsplugin";
/// More keys than anybody rotates through; a guard against a runaway generator.
const MAX_KEYS: usize = 1000;

/// The sequence number of a key in its control plane: 1, 2, 3 …, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct KeyNumber(pub u64);

/// Everything a provider process needs to run.
pub struct ProcessConfig {
    /// The revision of the head that this was read from, if it carries one.
    pub revision: Option<String>,
    /// Where the admin endpoints are served.
    pub admin: AdminOptions,
    /// Where the probes of replaced plugins are answered.
    pub health: Vec<HealthOptions>,
    /// How to log.
    pub log: LogOptions,
    /// How sockets are made and who may open them.
    pub socket: SocketOptions,
    /// How keys are probed.
    pub probe: ProbeOptions,
    /// How long open requests may take after the order to stop.
    pub drain: Duration,
    /// How long clients may stay connected after SIGTERM, while all is served; zero for not at all.
    pub linger: Duration,
    /// How often files are compared, beside the kernel's notifications.
    pub file_poll: Duration,
    pub(crate) keys: Vec<KeySpec>,
    /// The document itself, redacted, for the log.
    pub(crate) shown: Value,
    /// What is in use though the document says otherwise, and why.
    pub(crate) warnings: Vec<String>,
}

/// What a key is for, as far as it is known: a hint for probing, and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyRole {
    /// Encrypts new data.
    Write,
    /// Decrypts old data.
    Read,
}

/// One key as configured.
pub(crate) struct KeySpec {
    pub(crate) id: KeyNumber,
    pub(crate) endpoint: Endpoint,
    pub(crate) role: Option<KeyRole>,
    pub(crate) canary: Option<Canary>,
    /// What makes the KEK: it must not change under the same id.
    pub(crate) kek: Value,
    /// All of it, to see whether anything changed.
    pub(crate) whole: Value,
    pub(crate) connector: Arc<dyn Connector>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawProcess {
    revision: Option<Value>,
    admin: Option<String>,
    admin_socket: Option<String>,
    health: Option<Vec<Option<RawHealth>>>,
    log: Option<RawLog>,
    socket: Option<RawSocket>,
    probe: Option<RawProbe>,
    #[serde(deserialize_with = "text")]
    drain: Option<String>,
    #[serde(deserialize_with = "text")]
    linger: Option<String>,
    #[serde(deserialize_with = "text")]
    file_poll: Option<String>,
    keys: Option<Vec<Option<BTreeMap<String, Value>>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawKey {
    id: Option<Value>,
    r#type: Option<String>,
    role: Option<KeyRole>,
    listen: Option<String>,
    canary: Option<Value>,
}

impl ProcessConfig {
    /// Looks for the files that keys are made of; a key without them cannot start.
    pub fn check_files(&self) -> Problems {
        let mut problems = Problems::default();
        for (index, spec) in self.keys.iter().enumerate() {
            let paths = spec.connector.files().iter().map(|path| path.as_path());
            if let Err(error) = crate::files::Files::read(paths) {
                problems.add(&format!("keys[{index}]"), &error.report());
            }
        }
        problems
    }
}

/// Checks a whole document; `Err` lists every mistake in it.
pub fn parse<P: Provider>(document: &Value) -> Result<ProcessConfig, Problems> {
    let mut problems = Problems::default();
    let raw: RawProcess = read(document, &mut problems).unwrap_or_default();
    let keys = keys::<P>(&raw, &mut problems);
    let mut probe = probe(raw.probe.unwrap_or_default(), &mut problems);
    let warnings = probe.raise_coast().into_iter().collect();
    let config = ProcessConfig {
        revision: raw.revision.as_ref().map(plain),
        admin: AdminOptions {
            address: raw.admin.as_deref().and_then(|text| address("admin", text, &mut problems)),
            socket: raw
                .admin_socket
                .as_deref()
                .and_then(|text| endpoint("adminSocket", text, &mut problems)),
        },
        health: health(raw.health.unwrap_or_default(), &mut problems),
        log: log(raw.log.unwrap_or_default(), &mut problems),
        socket: socket(raw.socket.unwrap_or_default(), &mut problems),
        probe,
        drain: duration("drain", raw.drain.as_deref(), 10, &mut problems),
        linger: linger(raw.linger.as_deref(), &mut problems),
        file_poll: duration("filePoll", raw.file_poll.as_deref(), 10, &mut problems),
        keys,
        shown: super::redacted(document),
        warnings,
    };
    problems.into_result(Some(config))
}

fn keys<P: Provider>(raw: &RawProcess, problems: &mut Problems) -> Vec<KeySpec> {
    let Some(list) = problems.require("keys", &raw.keys) else { return Vec::new() };
    match list.len() {
        0 => problems.add("keys", "is empty: give at least one key"),
        n if n > MAX_KEYS => problems.add("keys", &format!("has {n} keys, at most {MAX_KEYS}")),
        _ => {}
    }
    let mut specs: Vec<KeySpec> = Vec::new();
    for (index, fields) in list.iter().take(MAX_KEYS).enumerate() {
        let Some(fields) = fields else { continue };
        let spec =
            problems.within(&format!("keys[{index}]"), |problems| key::<P>(fields, problems));
        let Some(spec) = spec else { continue };
        for (other_index, other) in specs.iter().enumerate() {
            if other.id == spec.id {
                let text = format!("{} is the id of keys[{other_index}] too", spec.id);
                problems.add(&format!("keys[{index}].id"), &text);
            }
            if other.endpoint == spec.endpoint {
                let text = format!("{} is the socket of keys[{other_index}] too", spec.endpoint);
                problems.add(&format!("keys[{index}].listen"), &text);
            }
        }
        specs.push(spec);
    }
    specs
}

fn key<P: Provider>(fields: &BTreeMap<String, Value>, problems: &mut Problems) -> Option<KeySpec> {
    const BODY: [&str; 3] = ["kek", "settings", "credentials"];
    let pick = |body: bool| -> Value {
        let fields = fields.iter().filter(|(name, value)| {
            BODY.contains(&name.as_str()) == body && !(body && value.is_null())
        });
        fields.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let raw: RawKey = read(&pick(false), problems).unwrap_or_default();
    let id = problems.require("id", &raw.id).and_then(|id| number(id, problems));
    if let Some(name) = raw.r#type.as_deref().filter(|name| *name != P::NAME) {
        problems.add("type", &format!("{name:?} is not served by this binary, only {:?}", P::NAME));
    }
    let listen = match (&raw.listen, id) {
        (Some(text), _) => endpoint("listen", text, problems),
        (None, Some(id)) => {
            Some(Endpoint::Path(format!("{SOCKET_DIRECTORY}/kms-{id}.sock").into()))
        }
        (None, None) => None,
    };
    let canary = match &raw.canary {
        None | Some(Value::Null) => None,
        Some(value) => problems.within("canary", |problems| Canary::parse(value, problems)),
    };
    let body = pick(true);
    let config: P::Config = read(&body, problems)?;
    P::check(&config, problems);
    Some(KeySpec {
        id: id?,
        endpoint: listen?,
        role: raw.role,
        canary,
        kek: body.get("kek").cloned().unwrap_or_default(),
        whole: fields.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        connector: Arc::new(Typed::<P>::new(config)),
    })
}

impl fmt::Display for KeyNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
