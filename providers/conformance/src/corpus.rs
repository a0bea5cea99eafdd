//! What was stored once is read for ever: data of every form that a provider reads, kept with the
//! keys that open it.
//!
//! `corpus/<provider>/<key>/key.json` says what its KMS must hold, in a form of that provider's tests;
//! every other file of that folder is what was stored under that key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidekey_core::{Endpoint, split_shim_prefix};

use crate::launch::answers_again;
use crate::random;
use crate::session::{Session, Wrapped};

/// Where all of it lies.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
/// What the KMS must hold.
const KEY: &str = "key.json";
/// Set to add what the plugins under test write, where there is nothing of that name yet.
const RECORD: &str = "SIDEKEY_RECORD_CORPUS";
/// A shim may have been put in front meanwhile, or been taken away.
const SHIM_PREFIX: &str = "sidekey/9-0a1b2c3d/";
/// Nothing takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A key of the corpus.
#[derive(Debug)]
pub struct CorpusKey {
    folder: PathBuf,
    state: Value,
    entries: BTreeMap<String, Entry>,
}

/// What was stored once.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The form, for people.
    format: String,
    /// The program and its version; or whose form it is, if we made it by our reading of that.
    written_by: String,
    plaintext: Base64,
    key_id: String,
    ciphertext: Base64,
    annotations: BTreeMap<String, Base64>,
}

/// Bytes that stand in JSON as base64.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base64(Bytes);

/// Why the corpus cannot be used.
#[derive(Debug, thiserror::Error)]
enum CorpusError {
    #[error("{0} cannot be read")]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{0} is not as providers/conformance/README.md says")]
    Parse(PathBuf, #[source] serde_json::Error),
    #[error("{0} {1}")]
    Wrong(PathBuf, &'static str),
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes.into()))
    }
}

impl Serialize for Base64 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl CorpusKey {
    /// The name of its folder.
    pub fn name(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// What `key.json` says.
    ///
    /// # Panics
    /// If it does not have this form.
    #[track_caller]
    pub fn state<T: DeserializeOwned>(&self) -> T {
        let state = T::deserialize(&self.state);
        state.unwrap_or_else(|error| panic!("{}: {error}", self.folder.join(KEY).display()))
    }

    fn load(folder: PathBuf) -> Result<Self, CorpusError> {
        let mut files = list(&folder)?;
        let key = folder.join(KEY);
        files.retain(|file| *file != key);
        let state = parse(&key)?;
        let mut entries = BTreeMap::new();
        for file in files {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            entries.insert(name.to_owned(), parse(&file)?);
        }
        Ok(Self { folder, state, entries })
    }

    /// What is wrong with reading all of it from one plugin.
    async fn unread(&self, form: &str, endpoint: &Endpoint) -> Vec<String> {
        let plugin = format!("{}, read by the plugin that writes {form:?}", self.folder.display());
        let session = match answers_again(endpoint, true, PATIENCE).await {
            Ok(()) => Session::open(endpoint, PATIENCE).await.map_err(|fault| fault.to_string()),
            Err(why) => Err(why),
        };
        let session = match session {
            Ok(session) => session,
            Err(why) => return vec![format!("{plugin}: {why}")],
        };
        let mut wrong = Vec::new();
        for (name, entry) in &self.entries {
            for wrapped in entry.forms() {
                let why = match session.decrypt(&wrapped).await {
                    Ok(plaintext) if plaintext == entry.plaintext.0 => continue,
                    Ok(_) => "something else came back".to_owned(),
                    Err(fault) => fault.to_string(),
                };
                let Entry { format, written_by, .. } = entry;
                let key_id = &wrapped.key_id;
                wrong.push(format!(
                    "{plugin}: {name} ({format}; {written_by}) under key_id {key_id}: {why}"
                ));
            }
        }
        wrong
    }
}

impl Entry {
    /// As it was stored, and as a shim would have it.
    fn forms(&self) -> Vec<Wrapped> {
        let annotations = self.annotations.iter();
        let stored = Wrapped {
            ciphertext: self.ciphertext.0.clone(),
            key_id: self.key_id.clone(),
            annotations: annotations.map(|(name, value)| (name.clone(), value.0.clone())).collect(),
        };
        let behind_shim = match split_shim_prefix(&self.key_id) {
            (None, inner) => Some(stored.with_key_id(format!("{SHIM_PREFIX}{inner}"))),
            (Some(_), _) => None,
        };
        std::iter::once(stored).chain(behind_shim).collect()
    }
}

/// Adds what the plugin writes now, unless there is an entry of that name.
async fn record(key: &CorpusKey, provider: &str, form: &str, endpoint: &Endpoint) {
    let version = env!("CARGO_PKG_VERSION");
    let file = key.folder.join(format!("{form}-{version}.json"));
    if file.exists() {
        return;
    }
    let plaintext = random::bytes(32);
    let wrapped = async { Session::open(endpoint, PATIENCE).await?.encrypt(&plaintext).await };
    let Wrapped { ciphertext, key_id, annotations } =
        wrapped.await.unwrap_or_else(|fault| panic!("{}: {fault}", file.display()));
    let annotations = annotations.into_iter().map(|(name, value)| (name, Base64(value)));
    let entry = Entry {
        format: form.to_owned(),
        written_by: format!("sidekey-{provider} {version}"),
        plaintext: Base64(plaintext.into()),
        key_id,
        ciphertext: Base64(ciphertext),
        annotations: annotations.collect(),
    };
    let text = serde_json::to_string_pretty(&entry).unwrap_or_default();
    let written = std::fs::write(&file, text + "\n");
    written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// For tests: panics unless every entry of a provider's corpus is read, by every plugin that `start`
/// gives for its key; each of them is called by the form that it writes. What stands beside them
/// lives until they have been asked.
///
/// A key_id that was stored without a shim's prefix is read with one too.
pub async fn assert_reads_corpus<T>(
    provider: &str,
    start: impl AsyncFn(&CorpusKey) -> (Vec<(&'static str, Endpoint)>, T),
) {
    let keys = load(&Path::new(CORPUS).join(provider));
    let keys = keys.unwrap_or_else(|error| panic!("{}", crate::session::chain(&error)));
    let mut wrong = Vec::new();
    for key in keys {
        let (plugins, _alive) = start(&key).await;
        assert!(!plugins.is_empty(), "nobody reads {}", key.folder.display());
        for (form, endpoint) in &plugins {
            wrong.extend(key.unread(form, endpoint).await);
            if std::env::var_os(RECORD).is_some() {
                record(&key, provider, form, endpoint).await;
            }
        }
    }
    assert!(wrong.is_empty(), "what was stored once is not read:\n  {}", wrong.join("\n  "));
}

/// All keys of a provider. There is one, and an entry under each, unless some are to be recorded.
fn load(folder: &Path) -> Result<Vec<CorpusKey>, CorpusError> {
    let folders = list(folder)?.into_iter().filter(|path| path.is_dir());
    let keys = folders.map(CorpusKey::load).collect::<Result<Vec<_>, _>>()?;
    let empty = keys.iter().find(|key| key.entries.is_empty());
    match empty.filter(|_| std::env::var_os(RECORD).is_none()) {
        _ if keys.is_empty() => Err(CorpusError::Wrong(folder.to_owned(), "has no keys")),
        Some(key) => Err(CorpusError::Wrong(key.folder.clone(), "has no entries")),
        None => Ok(keys),
    }
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, CorpusError> {
    let failed = |error| CorpusError::Read(folder.to_owned(), error);
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

fn parse<T: DeserializeOwned>(file: &Path) -> Result<T, CorpusError> {
    let text = std::fs::read(file).map_err(|error| CorpusError::Read(file.to_owned(), error))?;
    serde_json::from_slice(&text).map_err(|error| CorpusError::Parse(file.to_owned(), error))
}
