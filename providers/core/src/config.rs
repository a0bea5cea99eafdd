//! Configuration: one YAML schema for every provider, every mistake reported at once.
//!
//! Flags are turned into the same document, so that there is one set of rules. A document is
//! read field by field into plain types; a field that cannot be read is reported and taken out,
//! and reading goes on, until all mistakes have been found.

pub mod fields;
mod options;
mod problems;
mod schema;
mod text;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use fields::ENCRYPT_EVERY;
pub use fields::{LAST_BACKOFF, LogFormat, LogOptions, ProbeOptions};
pub use options::ProcessOptions;
pub use problems::{Problem, Problems, mistakes};
pub(crate) use schema::KeySpec;
pub use schema::{KeyNumber, KeyRole, ProcessConfig, parse};
pub use text::{parse_duration, parse_mode};

use crate::files::Files;

/// Longest document: more than the most keys with all their settings and canaries need.
const MAX_DOCUMENT: usize = 1024 * 1024;
/// As many nodes as a document of that length can have use for; aliases multiply them.
const MAX_NODES: usize = 64 * 1024;

/// Parses YAML (or JSON, which is YAML) into a plain tree. What it may cost is bounded: it is
/// parsed on the thread that serves the keys.
pub fn document(text: &str) -> Result<Value, Problems> {
    if text.trim().is_empty() {
        return Err(Problems::one("", "the document is empty"));
    }
    if text.len() > MAX_DOCUMENT {
        return Err(Problems::one("", "the document is larger than 1 MiB"));
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: MAX_NODES,
            max_events: MAX_NODES * 4,
            max_recorded_anchor_events: MAX_NODES,
            max_total_scalar_bytes: MAX_DOCUMENT * 2,
        },
    };
    serde_saphyr::from_str_with_options::<Value>(text, options).map_err(|error| {
        let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
        let text = first_line(&text);
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        Problems::one("", &format!("cannot be read as YAML: {text}"))
    })
}

/// Reads a configuration file as a plain tree.
pub fn read_file(path: &Path) -> Result<Value, Problems> {
    let files = Files::read([path]).map_err(|error| Problems::one("", &error.report()))?;
    parse_file(path, &files)
}

/// Reads the configuration file `path` of a snapshot as a plain tree.
pub(crate) fn parse_file(path: &Path, files: &Files) -> Result<Value, Problems> {
    let one = |text: &str| Problems::one("", text);
    let secret = files.secret(path).map_err(|error| one(&error.report()))?;
    let text = std::str::from_utf8(secret.expose()).map_err(|_| one("is not UTF-8 text"))?;
    document(text)
}

/// Lays a value over a document, if there is one: flags win.
pub fn overlay(document: &mut Value, path: &[&str], value: Option<impl Into<Value>>) {
    let (Some(value), true) = (value, document.is_object()) else { return };
    let mut node = document;
    for part in path {
        if !node.is_object() {
            *node = Value::Object(serde_json::Map::new());
        }
        node = &mut node[*part];
    }
    *node = value.into();
}

/// Reads `value` as a `T`, reporting unknown fields and every field of the wrong form.
///
/// Fields of `T` should be optional, so that one that had to be taken out does not hide others;
/// that a field is required is for the caller to say.
pub fn read<T: DeserializeOwned>(value: &Value, problems: &mut Problems) -> Option<T> {
    let mut rest = value.clone();
    loop {
        let mut unknown = Vec::new();
        let mut track = serde_path_to_error::Track::new();
        let result: Result<T, _> = {
            let tracked = serde_path_to_error::Deserializer::new(rest.clone(), &mut track);
            serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string()))
        };
        let error = match result {
            Ok(parsed) => {
                for path in unknown {
                    problems.add(&clean(&path), "unknown field");
                }
                return Some(parsed);
            }
            Err(error) => error,
        };
        let path = clean(&track.path().to_string());
        let list = empty_element(&rest, &path);
        // What was taken out has been told; it is in the way where elements may not be empty.
        if list.is_none() || empty_element(value, &path).is_some() {
            problems.add(&path, &unquoted(&path, &first_line(&error)));
        }
        let gone = list.unwrap_or(&path);
        if gone.is_empty() || problems.is_full() || !take_out(&mut rest, gone) {
            return None;
        }
    }
}

/// The parser quotes what it found. Under `credentials` that may be a secret, written where its
/// path should be.
fn unquoted(path: &str, message: &str) -> String {
    if !path.split(['.', '[']).any(|part| part == "credentials") {
        return message.to_owned();
    }
    let expected = message.rsplit_once("expected ").map_or("", |(_, expected)| expected);
    format!("has the wrong form{}{expected}", if expected.is_empty() { "" } else { ", expected " })
}

/// Replaces what may be a secret: under `credentials` only paths are shown, of a canary only its
/// hash and key_id.
pub fn redacted(value: &Value) -> Value {
    fn hide(value: &Value) -> Value {
        match value {
            Value::String(text) if text.starts_with('/') => value.clone(),
            Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), hide(v))).collect(),
            Value::Array(items) => items.iter().map(hide).collect(),
            Value::Null => Value::Null,
            _ => Value::String("(redacted)".into()),
        }
    }
    let shown = |name: &str, value: &Value| match name {
        "credentials" | "ciphertext" | "annotations" => hide(value),
        _ => redacted(value),
    };
    match value {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), shown(k, v))).collect(),
        Value::Array(items) => items.iter().map(redacted).collect(),
        other => other.clone(),
    }
}

/// Paths as `keys[0].kek.arn`; the crates below write `?` for optional layers, `.` alone for the
/// root, and one of them `.0` for an index.
fn clean(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for part in path.split('.').filter(|part| !part.is_empty() && *part != "?") {
        if part.bytes().all(|b| b.is_ascii_digit()) {
            text.push_str(&format!("[{part}]"));
            continue;
        }
        if !part.starts_with('[') && !text.is_empty() {
            text.push('.');
        }
        text.push_str(part);
    }
    text
}

/// The list that `path` is an element of, if that element is empty.
fn empty_element<'a>(root: &Value, path: &'a str) -> Option<&'a str> {
    let (list, _) = path.strip_suffix(']')?.rsplit_once('[')?;
    root.pointer(&pointer(path))?.is_null().then_some(list)
}

/// `path` as a JSON pointer.
fn pointer(path: &str) -> String {
    let parts = path.replace(']', "");
    let parts = parts.split(['.', '[']);
    parts.map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1"))).collect()
}

/// Removes the node at `path`, so that the next reading gets past it.
fn take_out(root: &mut Value, path: &str) -> bool {
    let pointer = pointer(path);
    let Some((parent, last)) = pointer.rsplit_once('/') else { return false };
    match root.pointer_mut(parent) {
        Some(Value::Object(map)) => {
            map.remove(&last.replace("~1", "/").replace("~0", "~")).is_some()
        }
        // Null, not removed: the indices of the others must stay true.
        Some(Value::Array(items)) => {
            let item = last.parse::<usize>().ok().and_then(|index| items.get_mut(index));
            item.is_some_and(|item| !std::mem::take(item).is_null())
        }
        _ => false,
    }
}

fn first_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests;
