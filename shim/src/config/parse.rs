//! Reading the shim's configuration, with every mistake in it.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use sidekey_core::certificate::identity;
use sidekey_core::config::fields::{
    RawProbe, address, duration, endpoint, number, plain, server_uids,
};
use sidekey_core::config::{KeyNumber, KeyRole, Problems, ProcessOptions, parse_duration, read};
use sidekey_core::{Canary, NO_FINGERPRINT};

use super::{
    Address, AdminTls, CacheOptions, ClientTls, ListenerSpec, Mode, RoutedKeySpec, ShimConfig,
    UpstreamSpec,
};
use crate::tls::TlsFiles;

/// More keys than anybody rotates through.
const MAX_KEYS: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawShimConfig {
    mode: Option<Mode>,
    listen: Option<String>,
    legacy_key: Option<Value>,
    adopt: Option<Vec<Option<RawAdopt>>>,
    admin_tls: Option<RawAdminTls>,
    probe: Option<RawProbe>,
    coast: Option<String>,
    cache: Option<RawCache>,
    tls: Option<RawClientTls>,
    keys: Option<Vec<Option<RawRoutedKey>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawAdopt {
    listen: Option<String>,
    key: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawAdminTls {
    listen: Option<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    allow: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawCache {
    entries: Option<usize>,
    ttl: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawClientTls {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawRoutedKey {
    id: Option<Value>,
    /// Of the common schema; the shim names no provider and does not look at it.
    r#type: Option<Value>,
    role: Option<KeyRole>,
    endpoints: Option<Vec<String>>,
    fingerprint: Option<String>,
    kek: Option<Value>,
    canary: Option<Value>,
    tls: Option<RawClientTls>,
    external: bool,
    server_uids: Option<Vec<u32>>,
}

/// Checks a whole document; `Err` lists every mistake in it. `default_uids` are the `serverUids` of
/// keys that name none.
pub fn parse(document: &Value, default_uids: &[u32]) -> Result<ShimConfig, Problems> {
    let mut problems = Problems::default();
    let problems = &mut problems;
    let (mut options, rest) = ProcessOptions::take(document, problems);
    let raw: RawShimConfig = read(&rest, problems).unwrap_or_default();
    let mode = raw.mode.unwrap_or_default();
    let keys = keys(&raw, default_uids, problems);
    let listeners = listeners(&raw, &keys, mode, problems);
    check_roles(&keys, mode, problems);
    let mut probe = sidekey_core::config::fields::probe(raw.probe.unwrap_or_default(), problems);
    if let Some(text) = raw.coast.as_deref() {
        probe.coast = duration("coast", Some(text), 60, problems);
    }
    let set = document.pointer("/probe/interval").is_some_and(|value| !value.is_null());
    let probe_interval = set.then_some(probe.interval);
    let writer = keys.iter().find(|key| key.role == KeyRole::Write);
    probe.interval = writer.map_or(probe.interval, |writer| writer.interval(probe_interval));
    options.warnings.extend(probe.raise_coast());
    let config = ShimConfig {
        options,
        mode,
        listeners,
        keys,
        admin_tls: raw.admin_tls.and_then(|raw| admin_tls(raw, problems)),
        probe,
        probe_interval,
        cache: raw.cache.and_then(|raw| cache(&raw, problems)),
        document: document.clone().into(),
    };
    std::mem::take(problems).into_result(Some(config))
}

fn keys(raw: &RawShimConfig, default_uids: &[u32], problems: &mut Problems) -> Vec<RoutedKeySpec> {
    let Some(list) = problems.require("keys", &raw.keys) else { return Vec::new() };
    if list.len() > MAX_KEYS {
        problems.add("keys", &format!("has {} keys, at most {MAX_KEYS}", list.len()));
    }
    let mut keys: Vec<RoutedKeySpec> = Vec::new();
    for (index, entry) in list.iter().take(MAX_KEYS).enumerate() {
        let Some(entry) = entry else { continue };
        let path = format!("keys[{index}]");
        let key = problems.within(&path, |problems| key(entry, raw.tls.as_ref(), problems));
        let Some(mut key) = key else { continue };
        if entry.server_uids.is_none() {
            key.upstream.server_uids = default_uids.to_vec();
        }
        if let Some(other) = keys.iter().position(|other| other.id == key.id) {
            let text = format!("{} is the id of keys[{other}] too", key.id);
            problems.add(&format!("{path}.id"), &text);
        }
        keys.push(key);
    }
    keys
}

fn key(
    raw: &RawRoutedKey,
    tls: Option<&RawClientTls>,
    problems: &mut Problems,
) -> Option<RoutedKeySpec> {
    let id = problems.require("id", &raw.id).and_then(|id| number(id, problems));
    let role = problems.require("role", &raw.role).copied();
    let mut endpoints = Vec::new();
    for (index, text) in
        problems.require("endpoints", &raw.endpoints).into_iter().flatten().enumerate()
    {
        match text.parse::<Address>() {
            Ok(address) => endpoints.push(address),
            Err(error) => problems.add(&format!("endpoints[{index}]"), &error),
        }
    }
    if raw.endpoints.as_ref().is_some_and(Vec::is_empty) {
        problems.add("endpoints", "is empty: give at least one");
    }
    let canary = Canary::field(raw.canary.as_ref(), problems);
    let https = endpoints.iter().any(|endpoint| matches!(endpoint, Address::Https { .. }));
    let tls = https.then(|| client_tls(raw.tls.as_ref(), tls, problems)).flatten();
    let server_uids = server_uids(raw.server_uids.as_deref(), problems);
    // One that cannot be read may have been meant for a unix socket.
    let unix = endpoints.iter().any(|endpoint| matches!(endpoint, Address::Unix(_)));
    if raw.server_uids.is_some() && https && !unix {
        problems.add("serverUids", "is for unix endpoints: certificates say who serves the others");
    }
    let fingerprint = fingerprint(raw, problems);
    let external = raw.external;
    let upstream = UpstreamSpec { fingerprint, endpoints, canary, tls, server_uids, external };
    Some(RoutedKeySpec { id: id?, role: role?, upstream })
}

/// The given one, or that of the `kek` section, or none.
fn fingerprint(raw: &RawRoutedKey, problems: &mut Problems) -> String {
    match &raw.fingerprint {
        Some(text) if sidekey_core::is_fingerprint(text) => text.clone(),
        Some(_) => {
            problems.add("fingerprint", "is not 4 to 64 lower-case hex digits");
            NO_FINGERPRINT.to_owned()
        }
        None => sidekey_core::fingerprint(raw.kek.as_ref().unwrap_or(&Value::Null)),
    }
}

fn client_tls(
    own: Option<&RawClientTls>,
    shared: Option<&RawClientTls>,
    problems: &mut Problems,
) -> Option<ClientTls> {
    let [own, shared] = [own, shared].map(|raw| raw.cloned().unwrap_or_default());
    let (ca, cert, key) = (own.ca.or(shared.ca), own.cert.or(shared.cert), own.key.or(shared.key));
    for (name, value) in [("ca", &ca), ("cert", &cert), ("key", &key)] {
        if value.is_none() {
            problems.add(&format!("tls.{name}"), "is required for an https endpoint");
        }
    }
    let server_name = own.server_name.or(shared.server_name);
    Some(ClientTls { files: TlsFiles { ca: ca?, cert: cert?, key: key? }, server_name })
}

fn listeners(
    raw: &RawShimConfig,
    keys: &[RoutedKeySpec],
    mode: Mode,
    problems: &mut Problems,
) -> Vec<ListenerSpec> {
    let known = |path: &str, value: &Value, problems: &mut Problems| {
        let Ok(id) = plain(value).parse().map(KeyNumber) else {
            problems.add(path, &format!("{value} is no key number"));
            return None;
        };
        if !keys.iter().any(|key| key.id == id) {
            problems.add(path, &format!("key {id} is not in keys"));
        }
        Some(id)
    };
    let mut listeners = Vec::new();
    let legacy = raw.legacy_key.as_ref().and_then(|value| known("legacyKey", value, problems));
    if let Some(text) = problems.require("listen", &raw.listen)
        && let Some(endpoint) = endpoint("listen", text, problems)
    {
        listeners.push(ListenerSpec { endpoint, legacy });
    }
    for (index, adopt) in raw.adopt.iter().flatten().enumerate() {
        let (Some(adopt), path) = (adopt, format!("adopt[{index}]")) else { continue };
        let key = problems.require(&format!("{path}.key"), &adopt.key);
        let legacy = key.and_then(|value| known(&format!("{path}.key"), value, problems));
        let text = problems.require(&format!("{path}.listen"), &adopt.listen);
        let Some(endpoint) =
            text.and_then(|text| endpoint(&format!("{path}.listen"), text, problems))
        else {
            continue;
        };
        if listeners.iter().any(|other| other.endpoint == endpoint) {
            problems.add(&format!("{path}.listen"), &format!("{endpoint} is given twice"));
        }
        listeners.push(ListenerSpec { endpoint, legacy });
    }
    if mode == Mode::Forward && (raw.adopt.is_some() || raw.legacy_key.is_some()) {
        problems.add("mode", "forward has one key for everything: drop legacyKey and adopt");
    }
    listeners
}

fn check_roles(keys: &[RoutedKeySpec], mode: Mode, problems: &mut Problems) {
    let writers = keys.iter().filter(|key| key.role == KeyRole::Write);
    let writers: Vec<String> = writers.map(|key| key.id.to_string()).collect();
    match writers.len() {
        1 => {}
        0 => problems.add("keys", "no key has the role write: exactly one must"),
        _ => problems.add(
            "keys",
            &format!("keys {} have the role write: exactly one may", writers.join(", ")),
        ),
    }
    if mode == Mode::Forward && keys.len() > 1 {
        problems.add("keys", "mode forward takes exactly one key");
    }
}

fn admin_tls(raw: RawAdminTls, problems: &mut Problems) -> Option<AdminTls> {
    problems.within("adminTls", |problems| {
        let listen = problems
            .require("listen", &raw.listen)
            .and_then(|text| address("listen", text, problems));
        for (name, value) in [("ca", &raw.ca), ("cert", &raw.cert), ("key", &raw.key)] {
            problems.require(name, value);
        }
        let given = raw.allow.unwrap_or_default();
        if given.is_empty() {
            problems.add("allow", "is empty: name the callers by a name in their certificate");
        }
        let mut allow = Vec::new();
        for (index, text) in given.iter().enumerate() {
            match identity(text) {
                Some(name) => allow.push(name),
                None => {
                    let text = format!("{text:?} is no DNS name, URI or IP address");
                    problems.add(&format!("allow[{index}]"), &text);
                }
            }
        }
        let files = TlsFiles { ca: raw.ca?, cert: raw.cert?, key: raw.key? };
        Some(AdminTls { listen: listen?, files, allow })
    })
}

fn cache(raw: &RawCache, problems: &mut Problems) -> Option<CacheOptions> {
    problems.within("cache", |problems| {
        let entries = raw.entries.unwrap_or(1000);
        if !(1..=100_000).contains(&entries) {
            problems.add("entries", "is not between 1 and 100000");
        }
        let ttl = problems.require("ttl", &raw.ttl)?;
        let ttl = parse_duration(ttl).map_err(|text| problems.add("ttl", &text)).ok()?;
        Some(CacheOptions { entries, ttl })
    })
}
