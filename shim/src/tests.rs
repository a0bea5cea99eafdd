//! Promises of the parsers, whatever they are given: none panics, each says all mistakes at once
//! and a bounded number of them, and what was written is read as it was.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use serde_json::{Value, json};
use sidekey_core::config::{KeyNumber, Problems};
use sidekey_core::{Canary, KeyId, Sealed, Secret};

use crate::config::{Address, from_encryption_configuration, parse};
use crate::lastgood::LastGood;
use crate::memory::Memory;
use crate::proxy;

/// As many mistakes as are ever listed.
const MOST: usize = 100;

/// Any JSON, of what may stand in a configuration.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 2.0)),
        ".{0,20}".prop_map(Value::from),
        "(unix|https|http|tcp)?(:/{0,3})?[a-z@.\\[:/-]{0,12}(:[0-9]{0,6})?".prop_map(Value::from),
        "[0-9]{0,21}(ns|ms|s|m|h|d)?".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let name = "(id|role|key|keys|listen|endpoints|canary|tls|kms|[a-z]{0,3})";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The places of a document, as JSON pointers.
fn places(document: &Value, prefix: &str, found: &mut Vec<String>) {
    found.push(prefix.to_owned());
    let children: Vec<(String, &Value)> = match document {
        Value::Array(list) => list.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), value)).collect(),
        _ => Vec::new(),
    };
    for (name, child) in children {
        places(child, &format!("{prefix}/{name}"), found);
    }
}

/// A sound document with a few of its places replaced by anything.
fn damaged(sound: Value) -> impl Strategy<Value = Value> {
    prop::collection::vec((any::<Index>(), anything()), 0..4).prop_map(move |changes| {
        let mut document = sound.clone();
        for (index, value) in changes {
            let mut found = Vec::new();
            places(&document, "", &mut found);
            *document.pointer_mut(&found[index.index(found.len())]).unwrap() = value;
        }
        document
    })
}

/// A field of a document by its JSON pointer, what is wrong there, and the path of the mistake.
type Mistake = (&'static str, Value, &'static str);

fn with(mut document: Value, mistakes: &[Mistake]) -> Value {
    for (place, value, _) in mistakes {
        match document.pointer_mut(place) {
            Some(field) => *field = value.clone(),
            None => {
                let (parent, name) = place.rsplit_once('/').unwrap();
                document.pointer_mut(parent).unwrap()[name] = value.clone();
            }
        }
    }
    document
}

/// All of these mistakes are told, and none where there is none.
fn tells_all<T>(result: &Result<T, Problems>, mistakes: &[Mistake]) -> Result<(), TestCaseError> {
    let wanted: BTreeSet<&str> = mistakes.iter().map(|(_, _, path)| *path).collect();
    let none = Problems::default();
    let problems = result.as_ref().err().unwrap_or(&none);
    let found: BTreeSet<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
    prop_assert_eq!(found, wanted, "{}", problems);
    Ok(())
}

fn is_bounded<T>(result: &Result<T, Problems>) -> Result<(), TestCaseError> {
    if let Err(problems) = result {
        let (count, text) = (problems.iter().count(), problems.to_string());
        prop_assert!((1..=MOST).contains(&count) && text.len() < MOST * 4096, "{count}: {text}");
    }
    Ok(())
}

fn shim() -> Value {
    json!({
        "revision": 3, "listen": "/run/kms.sock", "admin": "127.0.0.1:8093", "legacyKey": 1,
        "adopt": [{"listen": "/run/old.sock", "key": 1}],
        "adminTls": {"listen": "127.0.0.1:8094", "ca": "/c", "cert": "/c", "key": "/k", "allow": ["a.example"]},
        "probe": {"interval": "3s", "timeout": "2s"}, "coast": "60s",
        "cache": {"entries": 10, "ttl": "10s"},
        "tls": {"ca": "/c", "cert": "/c", "key": "/k", "serverName": "proxy.example"},
        "keys": [
            {"id": 2, "role": "write", "endpoints": ["/run/2.sock"], "fingerprint": "abcd", "serverUids": [7],
             "canary": Canary::new(sealed("v/1", b"wrapped"), &Secret::new(vec![7; 32])).document()},
            {"id": 1, "role": "read", "endpoints": ["https://proxy:8443"], "kek": {"a": 1}, "external": true},
        ],
    })
}

fn shim_mistakes() -> Vec<Mistake> {
    vec![
        ("/listen", "tcp://x".into(), "listen"),
        ("/admin", "x".into(), "admin"),
        ("/adopt/0/listen", 7.into(), "adopt[0].listen"),
        ("/adminTls/listen", "nowhere".into(), "adminTls.listen"),
        ("/adminTls/allow", json!([]), "adminTls.allow"),
        ("/probe/timeout", "soon".into(), "probe.timeout"),
        ("/coast", "5".into(), "coast"),
        ("/cache/entries", 0.into(), "cache.entries"),
        ("/cache/ttl", Value::Null, "cache.ttl"),
        ("/colour", "red".into(), "colour"),
        ("/keys/0/endpoints/0", "http://plain:1".into(), "keys[0].endpoints[0]"),
        ("/keys/0/fingerprint", "XYZ".into(), "keys[0].fingerprint"),
        ("/keys/0/canary/sha256", "short".into(), "keys[0].canary.sha256"),
        ("/keys/0/canary/keyId", "".into(), "keys[0].canary.keyId"),
        ("/keys/0/more", 1.into(), "keys[0].more"),
        ("/keys/1/endpoints", json!([]), "keys[1].endpoints"),
    ]
}

fn socket_proxy() -> Value {
    json!({
        "listen": "0.0.0.0:8443", "plugin": "/run/kms.sock", "serverUids": [7],
        "tls": {"ca": "/c", "cert": "/c", "key": "/k"},
        "clients": [
            {"san": "shim.example", "allow": ["status", "encrypt", "decrypt"]},
            {"san": "spiffe://example/shim", "allow": ["status"]},
        ],
    })
}

fn proxy_mistakes() -> Vec<Mistake> {
    vec![
        ("/listen", "nowhere".into(), "listen"),
        ("/plugin", "relative.sock".into(), "plugin"),
        ("/serverUids", json!([]), "serverUids"),
        ("/tls/ca", "ca.crt".into(), "tls.ca"),
        ("/tls/key", Value::Null, "tls.key"),
        ("/clients/0/san", "*.example".into(), "clients[0].san"),
        ("/clients/0/allow/1", "sign".into(), "clients[0].allow[1]"),
        ("/clients/1/allow", json!([]), "clients[1].allow"),
        ("/colour", "red".into(), "colour"),
    ]
}

fn encryption_configuration() -> Value {
    let kms = |id: u64| json!({"kms": {"name": format!("{id}_secrets"), "endpoint": format!("unix:///run/kms-{id}.sock")}});
    let providers = json!([kms(2), kms(1), {"identity": {}}]);
    json!({
        "kind": "EncryptionConfiguration",
        "resources": [{"providers": providers}, {"providers": providers}],
    })
}

fn sealed(key_id: &str, ciphertext: &[u8]) -> Sealed {
    let annotations = [("a.example".to_owned(), Bytes::from_static(b"x"))].into();
    let ciphertext = Bytes::copy_from_slice(ciphertext);
    Sealed { key_id: KeyId::new(key_id).unwrap(), ciphertext, annotations }
}

proptest! {
    #[test]
    fn any_shim_configuration_is_read_or_refused_with_a_bounded_list(document in damaged(shim())) {
        let result = parse(&document, &[]);
        is_bounded(&result)?;
        if let Ok(config) = result {
            prop_assert!(config.writer().is_some() && !config.listeners.is_empty());
        }
    }

    #[test]
    fn any_set_of_mistakes_in_a_shim_configuration_is_told_at_once(
        mistakes in subsequence(shim_mistakes(), 0..=shim_mistakes().len())
    ) {
        tells_all(&parse(&with(shim(), &mistakes), &[]), &mistakes)?;
    }

    #[test]
    fn any_proxy_configuration_is_read_or_refused_with_a_bounded_list(document in damaged(socket_proxy())) {
        is_bounded(&proxy::ProxyConfig::parse(&document))?;
    }

    #[test]
    fn any_set_of_mistakes_in_a_proxy_configuration_is_told_at_once(
        mistakes in subsequence(proxy_mistakes(), 0..=proxy_mistakes().len())
    ) {
        tells_all(&proxy::ProxyConfig::parse(&with(socket_proxy(), &mistakes)), &mistakes)?;
    }

    #[test]
    fn any_encryption_configuration_is_read_or_refused(document in damaged(encryption_configuration())) {
        let result = from_encryption_configuration(document);
        is_bounded(&result)?;
        if let Ok(mut made) = result && made.is_object() {
            made["listen"] = "/run/kms.sock".into();
            is_bounded(&parse(&made, &[]))?;
        }
    }

    #[test]
    fn no_address_panics_and_one_that_is_read_is_written_as_it_was(text in "(https://|unix:///|/|@)?\\PC{0,30}(:[0-9]{0,6})?") {
        if let Ok(address) = text.parse::<Address>() {
            prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
        }
    }

    #[test]
    fn no_document_panics_as_a_memory_and_a_sound_one_is_read_as_it_was_written(
        document in anything(), key_id in "[a-z0-9/]{1,40}",
        ciphertext in prop::collection::vec(any::<u8>(), 1..200), on_trust in any::<bool>(),
    ) {
        let _ = Memory::parse(document);
        let sealed = sealed(&key_id, &ciphertext);
        let canary = Canary::new(sealed.clone(), &Secret::new(ciphertext));
        for memory in [Memory::read(sealed), Memory::written(&canary, Some(&canary), on_trust)] {
            // What was written on trust is older data to the next process.
            let mut kept = memory.clone();
            kept.fresh = false;
            prop_assert_eq!(Memory::parse(memory.document()), Some(kept));
        }
    }

    #[test]
    fn any_damaged_memory_is_read_or_none(
        document in damaged(Memory::read(sealed("v/1", b"wrapped")).document())
    ) {
        if let Some(memory) = Memory::parse(document) {
            prop_assert_eq!(Memory::parse(memory.document()), Some(memory));
        }
    }
}

proptest! {
    // Each writes files.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_last_good_configuration_is_loaded_as_it_was_stored_and_never_with_another_byte(
        document in anything(), past in prop::collection::btree_set(any::<u64>(), 0..4),
        numbers in prop::collection::btree_set(any::<u64>(), 0..3),
        at in any::<Index>(), byte in any::<u8>(), cut in any::<Index>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("last-good");
        let memory = Memory::read(sealed("v/1", b"wrapped"));
        let memory = numbers.into_iter().map(|id| (KeyNumber(id), memory.clone())).collect();
        let good = LastGood::new(&document, past, &memory);
        good.store(&path).unwrap();
        let loaded = LastGood::load(&path);
        prop_assert_eq!(loaded.as_ref(), Some(&good));
        prop_assert_eq!(&good.memory(), &memory);

        let sound = std::fs::read(&path).unwrap();
        let mut bytes = sound.clone();
        bytes[at.index(sound.len())] = byte;
        std::fs::write(&path, &bytes).unwrap();
        // White space may change, or the name of a checksum over nothing, and no content.
        if let Some(loaded) = LastGood::load(&path) {
            prop_assert_eq!(&loaded.document, &good.document);
            prop_assert_eq!(&loaded.past_writers, &good.past_writers);
            prop_assert_eq!(&loaded.memory(), &memory);
        }
        std::fs::write(&path, &sound[..cut.index(sound.len())]).unwrap();
        prop_assert_eq!(LastGood::load(&path), None);
    }

    #[test]
    fn any_file_in_the_place_of_the_last_good_configuration_is_none(
        bytes in prop::collection::vec(any::<u8>(), 0..400), document in anything(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("last-good");
        for content in [bytes, document.to_string().into_bytes()] {
            std::fs::write(&path, content).unwrap();
            prop_assert_eq!(LastGood::load(&path), None);
        }
    }
}
