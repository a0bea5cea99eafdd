//! Reading the keys of a SecretEncryption.

use serde_json::{Map, Value};
use sidekey_core::Canary;
use sidekey_core::config::Problems;
use sidekey_core::config::fields::{number, server_uids};

use super::files::{check_paths, files};
use super::parse::{is_label, socket};
use super::raw::{RawKey, RawSpec};
use super::{EXTERNAL, Key, Role, names};

/// More keys than anybody rotates through.
const MAX_KEYS: usize = 1000;
/// Names of directories and containers that no vendor may have.
const RESERVED: [&str; 4] = ["shim", "proxy", "kube-apiserver", "revisions"];

/// Minters of tokens are named so.
const RESERVED_PREFIX: &str = "token-";

pub(super) fn keys(raw: &RawSpec, problems: &mut Problems) -> Vec<Key> {
    let none = Vec::new();
    let list = match &raw.keys {
        Some(list) => list,
        None if raw.ciphers.is_some() => &none,
        None => {
            problems.add("keys", "is required");
            return Vec::new();
        }
    };
    if list.len() > MAX_KEYS {
        problems.add("keys", &format!("has {} keys, at most {MAX_KEYS}", list.len()));
    }
    let mut keys: Vec<Key> = Vec::new();
    for (index, entry) in list.iter().take(MAX_KEYS).enumerate() {
        let Some(entry) = entry else { continue };
        let path = format!("keys[{index}]");
        let Some(key) = problems.within(&path, |problems| key(entry, problems)) else { continue };
        for (other_index, other) in keys.iter().enumerate() {
            if other.id == key.id {
                let text = format!("{} is the id of keys[{other_index}] too", key.id);
                problems.add(&format!("{path}.id"), &text);
            }
            if other.listen == key.listen && other.id != key.id {
                let text = format!("{} is the socket of keys[{other_index}] too", key.listen);
                problems.add(&format!("{path}.listen"), &text);
            }
            clashes(&path, &key, other, problems);
        }
        keys.push(key);
    }
    check_roles(&keys, raw, problems);
    keys
}

/// Keys of one vendor share a directory.
fn clashes(path: &str, key: &Key, other: &Key, problems: &mut Problems) {
    if key.vendor != other.vendor {
        return;
    }
    for (index, file) in key.files.iter().enumerate() {
        if other.files.iter().any(|there| there.name == file.name && there.source != file.source) {
            let text = format!("{:?} is another file of key {}", file.name, other.id);
            problems.add(&format!("{path}.files[{index}].name"), &text);
        }
    }
}

fn check_roles(keys: &[Key], raw: &RawSpec, problems: &mut Problems) {
    let writers: Vec<String> =
        keys.iter().filter(|key| key.role == Role::Write).map(|key| key.id.to_string()).collect();
    let complete = raw.keys.iter().flatten().flatten().count() == keys.len();
    match writers.len() {
        1 => {}
        0 if keys.is_empty() || !complete => {}
        0 => problems.add("keys", "no key has the role write: exactly one must"),
        _ => {
            let text = format!("keys {} have the role write: exactly one may", writers.join(", "));
            problems.add("keys", &text);
        }
    }
}

fn key(raw: &RawKey, problems: &mut Problems) -> Option<Key> {
    let id = problems.require("id", &raw.id).and_then(|id| number(id, problems));
    let vendor = problems.require("type", &raw.r#type).cloned();
    if let Some(vendor) = &vendor
        && (!is_label(vendor)
            || RESERVED.contains(&vendor.as_str())
            || vendor.starts_with(RESERVED_PREFIX))
    {
        problems.add("type", &format!("{vendor:?} is no provider: write aws, vault, local …"));
    }
    let role = problems.require("role", &raw.role).copied();
    let listen = raw.listen.as_deref().and_then(|text| socket("listen", text, problems));
    if raw.fingerprint.as_deref().is_some_and(|text| !sidekey_core::is_fingerprint(text)) {
        problems.add("fingerprint", "is not 4 to 64 lower-case hex digits");
    }
    let canary = raw.canary.clone().filter(|canary| !canary.is_null());
    if let Some(canary) = &canary {
        problems.within("canary", |problems| Canary::parse(canary, problems));
    }
    let files = files("files", raw.files.as_ref(), problems);
    let part = |part: &Option<Map<String, Value>>| part.clone().map_or(Value::Null, Value::Object);
    let (kek, settings, credentials) =
        (part(&raw.kek), part(&raw.settings), part(&raw.credentials));
    check_paths("settings", &settings, &files, problems);
    check_paths("credentials", &credentials, &files, problems);
    let endpoints = endpoints(raw, problems);
    if vendor.as_deref() == Some(EXTERNAL) {
        check_external(raw, &endpoints, problems);
    }
    let server_uids = server_uids(raw.server_uids.as_deref(), problems);
    if raw.server_uids.is_some() && vendor.as_deref().is_some_and(|vendor| vendor != EXTERNAL) {
        problems.add("serverUids", "is for external plugins: our sidecars run as one user");
    }
    let remote = endpoints.iter().all(|endpoint| endpoint.starts_with("https://"));
    if raw.server_uids.is_some() && !endpoints.is_empty() && remote {
        problems.add("serverUids", "is for unix endpoints: certificates say who serves the others");
    }
    let given_fingerprint = raw.fingerprint.clone();
    let (id, vendor, role) = (id?, vendor?, role?);
    let listen = listen.unwrap_or_else(|| match vendor.as_str() {
        EXTERNAL => names::shared_key_socket(id),
        vendor => names::key_socket(vendor, id),
    });
    Some(Key {
        id,
        vendor,
        role,
        kek,
        settings,
        credentials,
        files,
        canary,
        given_fingerprint,
        listen,
        endpoints,
        server_uids,
    })
}

/// The shim judges addresses that are no sockets.
fn endpoints(raw: &RawKey, problems: &mut Problems) -> Vec<String> {
    let mut endpoints = Vec::new();
    for (index, text) in raw.endpoints.iter().flatten().enumerate() {
        let Some(text) = text else { continue };
        if text.starts_with("https://") {
            endpoints.push(text.clone());
        } else {
            endpoints.extend(socket(&format!("endpoints[{index}]"), text, problems));
        }
    }
    endpoints
}

/// A plugin of others has no file of ours.
fn check_external(raw: &RawKey, endpoints: &[String], problems: &mut Problems) {
    let ours = [
        ("settings", raw.settings.is_some()),
        ("credentials", raw.credentials.is_some()),
        ("files", raw.files.is_some()),
    ];
    for (name, _) in ours.iter().filter(|(_, given)| *given) {
        problems.add(name, "is for providers that Sidekey runs: an external plugin has its own");
    }
    if endpoints.is_empty() && raw.listen.is_none() {
        problems.add("endpoints", "is required: where does the plugin listen?");
    }
}
