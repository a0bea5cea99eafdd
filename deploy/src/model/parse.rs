//! Reading a SecretEncryption, with every mistake in it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use sidekey_core::Endpoint;
use sidekey_core::config::fields::plain;
use sidekey_core::config::{Problems, parse_duration, read};

use super::files::{check_paths, files, source};
use super::keys::keys;
use super::period::parse_period;
use super::plane::control_plane;
use super::raw::{Raw, RawAutoRotation, RawCipher, RawSpec};
use super::tokens::tokens;
use super::{
    API_VERSION, Adoption, AutoRotation, Cipher, DEFAULT_RESOURCES, KIND, Key, KeyNumber,
    SecretEncryption, Spec, Stanza, Writer, names, resources as resource_names,
};

/// What the shim's file holds by itself.
const SHIM_OWN: [&str; 6] = ["keys", "listen", "revision", "legacyKey", "adopt", "mode"];

pub(super) fn parse(document: &Value) -> Result<SecretEncryption, Problems> {
    let mut problems = Problems::default();
    let problems = &mut problems;
    let raw: Raw = read(document, problems).unwrap_or_default();
    for (path, found, wanted) in
        [("apiVersion", &raw.api_version, API_VERSION), ("kind", &raw.kind, KIND)]
    {
        if let Some(found) = problems.require(path, found).filter(|found| *found != wanted) {
            problems.add(path, &format!("{found:?} is not {wanted}"));
        }
    }
    let metadata = raw.metadata.unwrap_or_default();
    let name = problems.require("metadata.name", &metadata.name).cloned().unwrap_or_default();
    if metadata.name.is_some() && !is_label(&name) {
        problems.add("metadata.name", "is no name: 1 to 63 of a-z, 0-9 and -");
    }
    if metadata.namespace.as_deref().is_some_and(|namespace| !is_label(namespace)) {
        problems.add("metadata.namespace", "is no name of a namespace");
    }
    let spec = problems.require("spec", &raw.spec);
    let spec = spec.map(|raw| problems.within("spec", |problems| read_spec(raw, problems)));
    let namespace = metadata.namespace;
    let found = spec.map(|spec| SecretEncryption { name, namespace, spec });
    std::mem::take(problems).into_result(found)
}

fn read_spec(raw: &RawSpec, problems: &mut Problems) -> Spec {
    let plane = raw.control_plane.as_ref();
    let plane = problems.within("controlPlane", |problems| control_plane(plane, problems));
    let keys = keys(raw, problems);
    let ciphers = ciphers(raw, problems);
    let (resources, stanzas) = stanzas(raw, problems);
    let spec = Spec {
        control_plane: plane,
        resources,
        stanzas,
        unread: Vec::new(),
        sockets_apart: false,
        timeout: duration("timeout", raw.timeout.as_deref(), "5s", problems),
        placement: raw.placement.unwrap_or_default(),
        images: images(raw, &keys, problems),
        shim: shim(raw, problems),
        shim_files: files("shimFiles", raw.shim_files.as_ref(), problems),
        legacy_key: raw
            .legacy_key
            .as_ref()
            .and_then(|value| known("legacyKey", value, &keys, problems)),
        adopt: adoptions(raw, &keys, problems),
        write: writer(raw, &keys, &ciphers, problems),
        convergence: duration("convergence", raw.convergence.as_deref(), "5m", problems),
        auto_rotation: raw.auto_rotation.as_ref().and_then(|raw| auto_rotation(raw, problems)),
        tokens: tokens(raw, problems),
        ciphers,
        keys,
    };
    let shim = Value::Object(spec.shim.clone());
    check_paths("shim", &shim, &spec.shim_files, problems);
    spec
}

fn duration(path: &str, text: Option<&str>, default: &str, problems: &mut Problems) -> String {
    let text = text.unwrap_or(default);
    match parse_duration(text) {
        Ok(duration) if duration.is_zero() => problems.add(path, "must be longer than zero"),
        Ok(_) => {}
        Err(error) => problems.add(path, &error),
    }
    text.to_owned()
}

fn auto_rotation(raw: &RawAutoRotation, problems: &mut Problems) -> Option<AutoRotation> {
    let every = problems.within("autoRotation", |problems| {
        let every = problems.require("every", &raw.every)?;
        match parse_period(every) {
            Ok(period) if period.is_zero() => problems.add("every", "must be longer than zero"),
            Ok(_) => {}
            Err(error) => problems.add("every", &error),
        }
        Some(every.clone())
    })?;
    Some(AutoRotation { every })
}

fn stanzas(raw: &RawSpec, problems: &mut Problems) -> (Vec<String>, Vec<Stanza>) {
    let mut seen = Vec::new();
    let default = DEFAULT_RESOURCES.map(|name| Some(name.to_owned())).to_vec();
    let given = raw.resources.as_ref().unwrap_or(&default);
    let first = resources("resources", given, &mut seen, problems);
    let mut stanzas: Vec<Stanza> = Vec::new();
    for (index, stanza) in raw.stanzas.iter().flatten().enumerate() {
        let Some(stanza) = stanza else { continue };
        problems.within(&format!("stanzas[{index}]"), |problems| {
            let name = problems.require("name", &stanza.name).cloned().unwrap_or_default();
            if stanza.name.is_some() && !is_label(&name) {
                problems.add("name", "is no name: 1 to 63 of a-z, 0-9 and -");
            }
            if stanzas.iter().any(|other| other.name == name) {
                problems.add("name", &format!("{name:?} is the name of another stanza too"));
            }
            let given = problems.require("resources", &stanza.resources);
            let given = given.map(Vec::as_slice).unwrap_or_default();
            let resources = resources("resources", given, &mut seen, problems);
            stanzas.push(Stanza { name, resources });
        });
    }
    (first, stanzas)
}

/// Reads a list of resources; `seen` are those of the lists before it, and then of this one too.
fn resources(
    path: &str,
    given: &[Option<String>],
    seen: &mut Vec<String>,
    problems: &mut Problems,
) -> Vec<String> {
    if given.is_empty() {
        problems.add(path, "is empty: name at least one");
    }
    let mut list: Vec<String> = Vec::new();
    for (index, name) in given.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(name) = name else { continue };
        // One name in two lists would be read by both, and written by the first alone.
        let twice = seen.iter().any(|other| resource_names::same(other, name));
        let twice = twice.then(|| format!("{name:?} is listed twice"));
        let wrong = resource_names::problem(name)
            .or(twice)
            .or_else(|| resource_names::clash(name, &list, seen));
        if let Some(wrong) = wrong {
            problems.add(&path, &wrong);
        }
        list.push(name.clone());
    }
    seen.extend(list.iter().cloned());
    list
}

fn images(raw: &RawSpec, keys: &[Key], problems: &mut Problems) -> BTreeMap<String, String> {
    let images = raw.images.clone().unwrap_or_default();
    for (name, image) in &images {
        let path = format!("images.{name}");
        let known = ["shim", "proxy", "sidekey"].contains(&name.as_str())
            || keys.iter().any(|key| key.vendor == *name);
        if !known {
            problems.add(&path, "is neither shim, proxy, sidekey nor the type of a key");
        }
        if image.trim().is_empty() || image.contains(char::is_whitespace) {
            problems.add(&path, "is no image");
        }
    }
    images
}

fn shim(raw: &RawSpec, problems: &mut Problems) -> Map<String, Value> {
    let shim = raw.shim.clone().unwrap_or_default();
    for name in SHIM_OWN.iter().filter(|name| shim.contains_key(**name)) {
        problems.add(&format!("shim.{name}"), "comes from the rest of the document");
    }
    shim
}

fn known(path: &str, value: &Value, keys: &[Key], problems: &mut Problems) -> Option<KeyNumber> {
    let id = plain(value).parse().ok().map(KeyNumber);
    match id {
        None => problems.add(path, &format!("{value} is no key number")),
        Some(id) if !keys.iter().any(|key| key.id == id) => {
            problems.add(path, &format!("key {id} is not in keys"));
        }
        Some(_) => {}
    }
    id
}

fn adoptions(raw: &RawSpec, keys: &[Key], problems: &mut Problems) -> Vec<Adoption> {
    let mut adoptions: Vec<Adoption> = Vec::new();
    let several = raw.stanzas.as_ref().is_some_and(|stanzas| !stanzas.is_empty());
    if several && raw.adopt.as_ref().is_some_and(|adopt| !adopt.is_empty()) {
        problems.add(
            "adopt",
            "cannot go with stanzas: kube-apiserver takes the name of a KMS provider once in its \
             whole file. Leave all in resources until the old names are retired, then \
             take adopt out and make stanzas",
        );
    }
    let stanzas = raw.stanzas.iter().flatten().flatten().filter_map(|stanza| stanza.name.as_ref());
    let mut taken: BTreeSet<String> = stanzas.map(|name| names::stanza_name(name)).collect();
    taken.insert(names::PROVIDER_NAME.to_owned());
    for (index, adoption) in raw.adopt.iter().flatten().enumerate() {
        let Some(adoption) = adoption else { continue };
        problems.within(&format!("adopt[{index}]"), |problems| {
            let name = problems.require("name", &adoption.name).cloned().unwrap_or_default();
            if name.contains(':') || (adoption.name.is_some() && name.is_empty()) {
                problems.add("name", "is no name of a KMS provider: it has no colon");
            }
            if !taken.insert(name.clone()) {
                problems.add("name", &format!("{name:?} is the name of another provider too"));
            }
            let key = problems.require("key", &adoption.key);
            let key = key.and_then(|value| known("key", value, keys, problems));
            let listen = adoption.listen.as_deref();
            let listen = listen.and_then(|text| socket("listen", text, problems));
            if adoption.listen.is_none()
                && raw.legacy_key.as_ref().map(plain) != key.map(|k| k.to_string())
            {
                problems.add("listen", "is required where the key is not that of legacyKey");
            }
            if let Some(key) = key {
                adoptions.push(Adoption { name, listen, key });
            }
        });
    }
    adoptions
}

fn ciphers(raw: &RawSpec, problems: &mut Problems) -> Vec<Cipher> {
    let mut ciphers: Vec<Cipher> = Vec::new();
    for (index, cipher) in raw.ciphers.iter().flatten().enumerate() {
        let Some(cipher) = cipher else { continue };
        problems.within(&format!("ciphers[{index}]"), |problems| {
            let name = problems.require("name", &cipher.name).cloned().unwrap_or_default();
            if name.contains(':') || ["keys", "identity"].contains(&name.as_str()) {
                problems.add(
                    "name",
                    "is no name of a key: it has no colon, nor is it keys or identity",
                );
            }
            if ciphers.iter().any(|other| other.name == name) {
                problems.add("name", &format!("{name:?} is the name of another cipher too"));
            }
            let kind = problems.require("type", &cipher.r#type).copied();
            let RawCipher { secret, config_map, file, .. } = cipher;
            let source = source(secret, config_map, file, problems);
            if let (Some(kind), Some(source)) = (kind, source) {
                ciphers.push(Cipher { name, kind, source });
            }
        });
    }
    ciphers
}

fn writer(raw: &RawSpec, keys: &[Key], ciphers: &[Cipher], problems: &mut Problems) -> Writer {
    let default = if keys.is_empty() { "identity" } else { "keys" };
    match raw.write.as_deref().unwrap_or(default) {
        "identity" => Writer::Identity,
        "keys" => {
            if keys.is_empty() {
                problems.add("write", "keys cannot write: there are none");
            }
            Writer::Keys
        }
        name => {
            if !ciphers.iter().any(|cipher| cipher.name == name) {
                problems
                    .add("write", &format!("{name:?} is not keys, identity or a cipher's name"));
            }
            Writer::Cipher(name.to_owned())
        }
    }
}

/// Reads a socket, and writes it in the one way that kube-apiserver understands.
pub(super) fn socket(path: &str, text: &str, problems: &mut Problems) -> Option<String> {
    match text.parse::<Endpoint>() {
        Ok(endpoint) => Some(endpoint.to_string()),
        Err(error) => {
            problems.add(path, &error.to_string());
            None
        }
    }
}

/// A DNS label: what Kubernetes takes for the value of a label and for a part of a name.
pub(crate) fn is_label(text: &str) -> bool {
    let sound = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| sound(b) || b == b'-')
        && text.bytes().next().is_some_and(sound)
        && text.bytes().last().is_some_and(sound)
}
