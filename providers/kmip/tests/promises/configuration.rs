//! Mistakes of a configuration.

use serde_json::{Value, json};
use sidekey_core::config::{Problem, parse};
use sidekey_kmip::Kmip;

fn paths(keys: &Value) -> Vec<String> {
    let problems = parse::<Kmip>(&json!({"keys": keys})).err();
    let path = |problem: &Problem| problem.path.clone();
    problems.map(|problems| problems.iter().map(path).collect()).unwrap_or_default()
}

#[test]
fn every_mistake_of_a_configuration_is_reported_at_once() {
    let keys = json!([
        {
            "id": 1, "colour": "red", "kek": {"id": "a/b", "name": ""},
            "settings": {
                "addresses": ["https://kms", "kms:x"], "mode": "ECB", "caFile": "ca.pem",
                "serverName": "no name",
            },
            "credentials": {"certFile": "crt", "keyFile": "key"},
        },
        {"id": 2, "settings": {"addresses": []}},
        {"id": 3, "kek": {"name": "k".repeat(256)}, "credentials": {"certFile": "/c"}},
    ]);
    let paths = paths(&keys);
    let expected = [
        "keys[0].colour",
        "keys[0].kek",
        "keys[0].kek.id",
        "keys[0].kek.name",
        "keys[0].settings.addresses",
        "keys[0].settings.addresses",
        "keys[0].settings.mode",
        "keys[0].settings.caFile",
        "keys[0].settings.serverName",
        "keys[0].credentials.certFile",
        "keys[0].credentials.keyFile",
        "keys[1].kek",
        "keys[1].settings.addresses",
        "keys[1].credentials.certFile",
        "keys[2].kek.name",
        "keys[2].settings.addresses",
    ];
    for path in expected {
        assert!(paths.iter().any(|known| known == path), "nothing of {path} in {paths:?}");
    }
    assert_eq!(paths.len(), expected.len(), "{paths:?}");
}

#[test]
fn a_sound_configuration_has_no_mistakes() {
    let keys = json!([
        {
            "id": 1, "kek": {"name": "etcd of cluster 7"},
            "settings": {"addresses": ["kms.example", "10.0.0.7:1234", "[::1]:5696"]},
            "credentials": {"certFile": "/etc/kmip/client.pem"},
        },
        {
            "id": 2, "kek": {"id": "KEY-8d1b_1e.0c"},
            "settings": {
                "addresses": ["kms.example"], "mode": "CBC", "caFile": "/etc/kmip/ca.crt",
                "serverName": "kmip.internal",
            },
            "credentials": {"certFile": "/etc/kmip/tls.crt", "keyFile": "/etc/kmip/tls.key"},
        },
    ]);
    assert_eq!(paths(&keys), Vec::<String>::new());
}
