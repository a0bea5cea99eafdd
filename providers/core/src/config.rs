//! Configuration: one YAML schema for every provider, every mistake reported at once.
//!
//! Flags are turned into the same document, so that there is one set of rules. A document is
//! read field by field into plain types; a field that cannot be read is reported and taken out,
//! and reading goes on, until all mistakes have been found.

pub mod fields;
mod problems;
mod schema;
mod text;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use fields::ENCRYPT_EVERY;
pub use fields::{LAST_BACKOFF, LogFormat, LogOptions, ProbeOptions};
pub use problems::{Problem, Problems};
pub use schema::{KeyNumber, ProcessConfig, parse};
pub(crate) use schema::{KeyRole, KeySpec};
pub use text::{parse_duration, parse_mode};

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
        problems.add(&path, &unquoted(&path, &first_line(&error)));
        if path.is_empty() || problems.is_full() || !take_out(&mut rest, &path) {
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

/// Removes the node at `path`, so that the next reading gets past it.
fn take_out(root: &mut Value, path: &str) -> bool {
    let pointer: String = path
        .replace(']', "")
        .split(['.', '['])
        .map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1")))
        .collect();
    let Some((parent, last)) = pointer.rsplit_once('/') else { return false };
    match root.pointer_mut(parent) {
        Some(Value::Object(map)) => {
            map.remove(&last.replace("~1", "/").replace("~0", "~")).is_some()
        }
        Some(Value::Array(items)) => match last.parse::<usize>() {
            // Null, not removed: the indices of the others must stay true.
            Ok(index) if items.get(index).is_some_and(|item| !item.is_null()) => {
                items[index] = Value::Null;
                true
            }
            _ => false,
        },
        _ => false,
    }
}

fn first_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests;
