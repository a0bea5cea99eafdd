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

pub use fields::{LogFormat, LogOptions, ProbeOptions};
pub use problems::{Problem, Problems};
pub(crate) use schema::KeySpec;
pub use schema::{KeyNumber, ProcessConfig, parse};
pub use text::{parse_duration, parse_mode};

/// Parses YAML (or JSON, which is YAML) into a plain tree.
pub fn document(text: &str) -> Result<Value, Problems> {
    if text.trim().is_empty() {
        return Err(Problems::one("", "the document is empty"));
    }
    serde_saphyr::from_str::<Value>(text)
        .map_err(|error| Problems::one("", &format!("this is not YAML: {}", first_line(&error))))
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
        problems.add(&path, &first_line(&error));
        if path.is_empty() || !take_out(&mut rest, &path) {
            return None;
        }
    }
}

/// Replaces what may be a secret: under `credentials` only paths are shown.
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
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| (k.clone(), if k == "credentials" { hide(v) } else { redacted(v) }))
            .collect(),
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
