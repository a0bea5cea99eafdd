//! The environment of the replaced plugin, and what it means.

use clap::Parser;
use serde_json::{Value, json};
use sidekey_core::config::Problems;
use sidekey_core::{Error, Provider};

use super::{Flags, describe, process};
use crate::{Config, IbmCloud};

const INSTANCE: &str = "3c1a7a58-9c2d-4f60-8a3e-2f7cfa0c6a10";
const KEY: &str = "02fd6835-6001-4482-a892-13bd2085f75d";
const OTHER: &str = "4fb7ea38-7a4e-4e4c-9a0f-0d6e3f1f1f10";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

fn flags(environment: &[(&str, &str)]) -> Option<Flags> {
    let none = Line::try_parse_from(["sidekey-ibmcloud"]).unwrap().flags;
    let lookup = |name: &str| {
        let found = environment.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    none.with(&lookup, false)
}

fn described(environment: &[(&str, &str)]) -> Result<Value, Error> {
    describe(&flags(environment).unwrap()).map(|(document, _)| document)
}

fn listed(key: &str, pods: bool) -> Value {
    json!({
        "crkID": key, "instanceID": INSTANCE, "correlationID": OTHER,
        "url": "https://us-south.kms.cloud.ibm.com/", "serviceToService": pods,
    })
}

#[test]
fn the_highest_version_writes_and_the_others_are_read() {
    let data =
        json!({"2": listed(KEY, false), "10": listed(OTHER, false), "9": listed(KEY, false)});
    let data = data.to_string();
    let document =
        described(&[("KP_DATA_JSON", &data), ("API_KEY", "k"), ("REGION", "us-south")]).unwrap();
    let address = "https://us-south.kms.cloud.ibm.com";
    let older =
        json!({"instance": INSTANCE, "key": KEY, "address": address, "correlationId": OTHER});
    let expected = json!({
        "id": "1", "type": "ibmcloud", "listen": "/tmp/keyprotectprovider.sock",
        "kek": {"instance": INSTANCE, "key": OTHER},
        "settings": {
            "address": address, "correlationId": OTHER, "olderKeks": [older.clone(), older],
        },
        "credentials": {"given": true},
    });
    assert_eq!(document, expected);
    assert!(!document.to_string().contains("\"k\""), "the API key is kept apart");
}

#[test]
fn what_is_described_is_sound() {
    let data = json!({"0": listed(KEY, true)}).to_string();
    let document = described(&[("KP_DATA_JSON", &data), ("IAM_PROFILE_NAME", "planes")]).unwrap();
    let credentials = json!({
        "tokenFile": "/etc/pod-identity-token/pod-identity-token", "profileName": "planes",
    });
    assert_eq!(document["credentials"], credentials);
    let config: Config = serde_json::from_value(document).unwrap();
    let mut problems = Problems::default();
    IbmCloud::check(&config, &mut problems);
    let problems: Vec<_> = problems.iter().collect();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn health_log_and_end_are_as_hypershift_wants_them() {
    let data = json!({"1": listed(KEY, false)}).to_string();
    let set =
        [("KP_DATA_JSON", data.as_str()), ("HEALTHZ_PORT", ":8081"), ("LOG_LEVEL", "WARNING")];
    let health = json!([{
        "address": ":8081", "healthz": "/healthz", "livez": "/healthz/liveness",
    }]);
    let expected = json!({"linger": "125s", "health": health, "log": {"level": "warn"}});
    assert_eq!(process(&flags(&set).unwrap()), expected);
    let quiet = [("KP_DATA_JSON", data.as_str()), ("LOG_LEVEL", "5")];
    assert_eq!(process(&flags(&quiet).unwrap()), json!({"linger": "125s"}));
}

#[test]
fn other_programs_variables_describe_no_key() {
    let set = [("API_KEY", "k"), ("REGION", "us-south"), ("LOG_LEVEL", "info")];
    assert!(flags(&set).is_none());
}

#[test]
fn what_is_wrong_is_told_and_quotes_no_key() {
    let one = json!({"1": listed(KEY, false)}).to_string();
    let pods = json!({"1": listed(KEY, true)}).to_string();
    let mixed = json!({"1": listed(KEY, true), "2": listed(KEY, false)}).to_string();
    let odd = json!({"one": listed(KEY, false)}).to_string();
    let twice = json!({"1": listed(KEY, false), "01": listed(OTHER, false)}).to_string();
    for (data, part) in [
        ("{", "cannot be read"),
        ("{}", "names no key"),
        ("[]", "cannot be read"),
        (&odd, "no version of a key"),
        (&twice, "\"01\" is no version of a key"),
        (&mixed, "not the same for all"),
        (&one, "API_KEY is missing"),
        (&pods, "trusted profile"),
    ] {
        let text = described(&[("KP_DATA_JSON", data)]).unwrap_err().report();
        assert!(text.contains(part), "{data}: {text}");
    }
}
