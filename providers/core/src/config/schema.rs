//! The schema of a provider process (decision 6 of the design): settings of the process, and
//! `keys: [{id, type, role, listen, canary, kek, settings, credentials}]`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::{ProbeOptions, RawHealth, RawProbe, endpoint, health, number, probe};
use super::{Problems, ProcessOptions, read};
use crate::key::canary::Canary;
use crate::process::HealthOptions;
use crate::process::app::Configuration;
use crate::provider::backend::{Connector, Typed};
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
    pub(crate) options: ProcessOptions,
    /// Where the probes of replaced plugins are answered.
    pub(crate) health: Vec<HealthOptions>,
    /// How keys are probed.
    pub(crate) probe: ProbeOptions,
    pub(crate) keys: Vec<KeySpec>,
}

/// What a key is for. To a provider it is a hint for probing, and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyRole {
    /// Encrypts new data; exactly one key of a shim has this role.
    Write,
    /// Decrypts old data.
    Read,
}

crate::labels! { pub KeyRole: Write = "write", Read = "read" }

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
#[serde(default)]
struct RawProcess {
    health: Option<Vec<Option<RawHealth>>>,
    probe: Option<RawProbe>,
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

impl Configuration for ProcessConfig {
    fn options(&mut self) -> &mut ProcessOptions {
        &mut self.options
    }

    fn fixed(&self) -> Vec<(&'static str, String)> {
        let ProcessOptions { socket, drain, .. } = &self.options;
        vec![
            ("health", format!("{:?}", self.health)),
            ("socket", format!("{socket:?}")),
            ("drain", format!("{drain:?}")),
        ]
    }
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
    let (mut options, rest) = ProcessOptions::take(document, &mut problems);
    let raw: RawProcess = read(&rest, &mut problems).unwrap_or_default();
    let keys = keys::<P>(&raw, &mut problems);
    let mut probe = probe(raw.probe.unwrap_or_default(), &mut problems);
    options.warnings.extend(probe.raise_coast());
    let health = health(raw.health.unwrap_or_default(), &mut problems);
    problems.into_result(Some(ProcessConfig { options, health, probe, keys }))
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
    let canary = Canary::field(raw.canary.as_ref(), problems);
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
