//! Values as text, in the style of the text around them.

use serde_json::{Map, Value};

/// What comes first in an object; the rest in the order of the alphabet.
const FIRST: [&str; 16] = [
    "name",
    "restartPolicy",
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "env",
    "ports",
    "securityContext",
    "exec",
    "httpGet",
    "startupProbe",
    "livenessProbe",
    "resources",
    "terminationMessagePolicy",
    "volumeMounts",
];

/// Longer lines are broken up.
const WIDTH: usize = 100;

/// Words that some reader of YAML takes for something else than text.
const WORDS: [&str; 14] = [
    "true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf", "e", "infinity",
    "none",
];

/// An object's entries in the order in which they are written.
fn ordered(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    let rank = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
    entries.sort_by_key(|(key, _)| rank(key));
    entries
}

/// A scalar of YAML, in quotes unless it is text for every reader without them.
pub(super) fn scalar(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'/');
    let flag = text.starts_with("--") && text.len() > 2;
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:=@-".contains(&byte);
    let word = WORDS.contains(&text.to_ascii_lowercase().as_str());
    let plain = (first || flag) && text.bytes().all(inner) && !text.ends_with(':') && !word;
    if plain {
        text.clone()
    } else if text.contains('"') && !text.chars().any(char::is_control) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        value.to_string()
    }
}

/// In one line of YAML.
pub(super) fn flow(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| format!("{}: {}", name(key), flow(value));
            format!("{{{}}}", ordered(map).into_iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        _ => scalar(value),
    }
}

/// An item of a list that is written in lines, with its dash in this column.
pub(super) fn item(value: &Value, column: usize) -> Vec<String> {
    let mut lines = node(value, column + 2, 0);
    let first = lines.first().map(|line| line.trim_start().to_owned()).unwrap_or_default();
    let dash = format!("{:column$}- {first}", "");
    match lines.first_mut() {
        Some(line) => *line = dash,
        None => lines.push(dash),
    }
    lines
}

/// An entry of a map that is written in lines; lists below it are so much further right.
pub(super) fn entry(key: &str, value: &Value, column: usize, offset: usize) -> Vec<String> {
    let head = format!("{:column$}{}:", "", name(key));
    match value {
        Value::Array(items) if !items.is_empty() => {
            let items = items.iter().flat_map(|value| item(value, column + offset));
            [head].into_iter().chain(items).collect()
        }
        Value::Object(map) if !map.is_empty() => {
            [head].into_iter().chain(node(value, column + 2, 0)).collect()
        }
        _ => vec![format!("{head} {}", flow(value))],
    }
}

/// A value in lines. `depth`: how far below what was asked for.
fn node(value: &Value, column: usize, depth: usize) -> Vec<String> {
    match value {
        Value::Object(map) if !short(value, column, depth) => ordered(map)
            .into_iter()
            .flat_map(|(key, value)| {
                let lines = node(value, column + 2, depth + 1);
                let head = format!("{:column$}{}:", "", name(key));
                beneath(head, value, lines, column, depth + 1)
            })
            .collect(),
        Value::Array(items) if !short(value, column, depth) => {
            items.iter().flat_map(|value| list_item(value, column, depth + 1)).collect()
        }
        _ => vec![format!("{:column$}{}", "", flow(value))],
    }
}

fn list_item(value: &Value, column: usize, depth: usize) -> Vec<String> {
    let mut lines = node(value, column + 2, depth);
    if let Some(first) = lines.first_mut() {
        *first = format!("{:column$}- {}", "", first.trim_start());
    }
    lines
}

fn beneath(
    head: String,
    value: &Value,
    lines: Vec<String>,
    column: usize,
    depth: usize,
) -> Vec<String> {
    match value {
        Value::Array(items) if !short(value, column + 2, depth) => {
            let items = items.iter().flat_map(|value| list_item(value, column, depth + 1));
            [head].into_iter().chain(items).collect()
        }
        Value::Object(_) if !short(value, column + 2, depth) => {
            [head].into_iter().chain(lines).collect()
        }
        _ => vec![format!("{head} {}", flow(value))],
    }
}

/// Whether it reads well in one line.
fn short(value: &Value, column: usize, depth: usize) -> bool {
    let leaf = |value: &Value| !value.is_array() && !value.is_object();
    let fits = || column + flow(value).len() <= WIDTH;
    match value {
        Value::Object(map) if map.is_empty() => true,
        Value::Array(items) if items.is_empty() => true,
        Value::Object(map) => fits() && (depth > 1 || (map.len() < 4 && map.values().all(leaf))),
        Value::Array(_) => depth > 1 && fits(),
        _ => true,
    }
}

/// JSON; in lines that begin with `prefix` and are indented by `unit`, if there is one.
pub(super) fn json(value: &Value, prefix: &str, unit: Option<&str>) -> String {
    let Some(unit) = unit else { return compact(value) };
    let inner = format!("{prefix}{unit}");
    let lines = |open: char, parts: Vec<String>, close: char| {
        format!("{open}\n{inner}{}\n{prefix}{close}", parts.join(&format!(",\n{inner}")))
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            lines('[', items.iter().map(|item| json(item, &inner, Some(unit))).collect(), ']')
        }
        Value::Object(map) if !map.is_empty() => {
            let entry = |(key, value): (&String, &Value)| {
                format!("{}: {}", quoted(key), json(value, &inner, Some(unit)))
            };
            lines('{', ordered(map).into_iter().map(entry).collect(), '}')
        }
        _ => value.to_string(),
    }
}

fn compact(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(compact).collect::<Vec<_>>().join(","))
        }
        Value::Object(map) => {
            let entry =
                |(key, value): (&String, &Value)| format!("{}:{}", quoted(key), compact(value));
            format!("{{{}}}", ordered(map).into_iter().map(entry).collect::<Vec<_>>().join(","))
        }
        _ => value.to_string(),
    }
}

/// A key of JSON.
pub(super) fn quoted(key: &str) -> String {
    Value::String(key.to_owned()).to_string()
}

/// A key of YAML.
pub(super) fn name(key: &str) -> String {
    scalar(&Value::String(key.to_owned()))
}
