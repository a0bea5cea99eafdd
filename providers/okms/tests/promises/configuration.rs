//! Mistakes of a configuration and of flags.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use sidekey_core::config::{Problem, parse};
use sidekey_e2e::okms::CLIENT;
use sidekey_e2e::pki::Authority;
use sidekey_okms::Okms;

use crate::support::{Stage, binary, quick};

const ID: &str = "70001308-5674-43fe-93dd-6270ecac0710";

fn paths(keys: &Value) -> Vec<String> {
    let problems = parse::<Okms>(&json!({"keys": keys})).err();
    let path = |problem: &Problem| problem.path.clone();
    problems.map(|problems| problems.iter().map(path).collect()).unwrap_or_default()
}

/// Runs the binary to its end.
async fn run(args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env_remove("RUST_BACKTRACE").args(args).stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

#[test]
fn every_mistake_of_a_configuration_is_reported_at_once() {
    let good = json!({"certFile": "/cert", "keyFile": "/key"});
    let keys = json!([
        {
            "id": 1, "colour": "red",
            "kek": {"okmsId": "eu-west-rbx", "key": "etcd"},
            "settings": {
                "address": "http://okms.example", "caFile": "ca.pem", "alsoReads": ["*", ID, "all"],
            },
            "credentials": {"certFile": "cert.pem"},
        },
        {"id": 2, "kek": {"key": ID, "label": "etcd"}, "credentials": good},
        {
            "id": 3, "kek": {"okmsId": ID, "label": ""}, "settings": {"address": "https://okms"},
            "credentials": good,
        },
        {"id": 4, "settings": {"address": "https://okms/api"}},
    ]);
    let paths = paths(&keys);
    for path in [
        "keys[0].colour",
        "keys[0].kek.okmsId",
        "keys[0].kek.key",
        "keys[0].settings.address",
        "keys[0].settings.caFile",
        "keys[0].settings.alsoReads[2]",
        "keys[0].credentials.certFile",
        "keys[0].credentials.keyFile",
        "keys[1].kek",
        "keys[1].kek.okmsId",
        "keys[1].settings.address",
        "keys[2].kek.label",
        "keys[3].kek",
        "keys[3].kek.okmsId",
        "keys[3].settings.address",
        "keys[3].credentials.certFile",
        "keys[3].credentials.keyFile",
    ] {
        assert!(paths.iter().any(|known| known == path), "nothing of {path} in {paths:?}");
    }
    assert_eq!(paths.len(), 17, "{paths:?}");
}

#[test]
fn a_sound_configuration_has_no_mistakes() {
    for kek in [json!({"okmsId": ID, "key": ID}), json!({"okmsId": ID, "label": "my key"})] {
        let keys = json!([{
            "id": 1, "kek": kek, "settings": {"address": "https://eu-west-rbx.okms.ovh.net"},
            "credentials": {"certFile": "/cert", "keyFile": "/key"},
        }]);
        assert_eq!(paths(&keys), Vec::<String>::new());
    }
}

#[tokio::test]
async fn bad_flags_and_configurations_are_bad_usage() {
    let scratch = sidekey_e2e::Scratch::new("broken").unwrap();
    let file = scratch.path().join("okms.yaml");
    std::fs::write(&file, json!({"keys": [{"id": 1, "colour": "red"}]}).to_string()).unwrap();
    let file = file.display().to_string();
    let cases: [&[&str]; 6] = [
        &[],
        &["--protocol=rest"],
        &["--protocol=grpc"],
        &["--encryption-key-id=x"],
        &["--no-such-flag"],
        &["check", "--config", &file],
    ];
    for words in cases {
        let ran = run(words).await;
        assert_eq!(ran.status.code(), Some(64), "{words:?}: {ran:?}");
        assert!(ran.stderr.len() + ran.stdout.len() > 0, "{words:?}: nothing is said");
    }
    let help = run(&["--help"]).await;
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(text.contains("--serv-addr") && text.contains("Examples:"), "{text}");
}

#[tokio::test]
async fn check_tells_a_good_configuration_from_one_that_does_not_connect() {
    let stage = Stage::new("checked").await;
    let path = stage.path("okms.yaml");
    let file = path.display().to_string();
    let words = ["check", "--connect", "--config", &file];
    let document = quick(&[stage.key(1, &stage.backend.key)]);
    std::fs::write(&path, document.to_string()).unwrap();
    let ran = run(&words).await;
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    stage.fake().service().allow(CLIENT, &["get", "encrypt"]);
    let ran = run(&words).await;
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("okms:apikms:serviceKey"), "{ran:?}");
    let other = stage.path("other.crt");
    std::fs::write(&other, Authority::new("another CA").unwrap().pem()).unwrap();
    let mut document = document;
    document["keys"][0]["settings"]["caFile"] = json!(other);
    std::fs::write(&path, document.to_string()).unwrap();
    let ran = run(&words).await;
    assert!(String::from_utf8_lossy(&ran.stderr).contains("settings.caFile"), "{ran:?}");
}
