//! The flags and variables of the replaced plugin, and what they mean.

use clap::Parser;
use serde_json::{Value, json};
use sidekey_core::{Error, config};

use super::{Flags, describe};
use crate::Okms;

const DOMAIN: &str = "113d1c44-2b1d-239c-a929-c11bd1847057";
const KEY: &str = "70001308-5674-43FE-93dd-6270ecac0710";
const ADDRESS: &str = "https://eu-west-rbx.okms.ovh.net/";

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

/// What flags and an environment describe.
fn described(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Value, Error> {
    let line = [&["sidekey-okms"], arguments].concat();
    let flags = Line::try_parse_from(line).unwrap().flags;
    let variable = |name: &str| {
        let found = environment.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    describe(&flags.with(&variable, false).unwrap())
}

#[test]
fn flags_and_variables_describe_the_same_key_and_flags_win() {
    let by_flags = described(
        &[
            "--protocol=rest",
            "--serv-addr",
            ADDRESS,
            "--okms-id",
            DOMAIN,
            "--encryption-key-id",
            KEY,
            "--client-cert=/etc/okms/cert.pem",
            "--client-key=/etc/okms/key.pem",
            "--ca=/etc/okms/ca.pem",
            "--sock=/var/run/kmsplugin/socket.sock",
            "--timeout=10s",
            "--debug",
        ],
        &[("OKMS_ID", "another"), ("OKMS_SOCK", "/another.sock")],
    );
    let by_variables = described(
        &[],
        &[
            ("OKMS_PROTOCOL", "rest"),
            ("OKMS_SERV_ADDR", ADDRESS),
            ("OKMS_ID", DOMAIN),
            ("OKMS_KEY_ID", KEY),
            ("OKMS_CLIENT_CERT", "/etc/okms/cert.pem"),
            ("OKMS_CLIENT_KEY", "/etc/okms/key.pem"),
            ("OKMS_CA_CERT", "/etc/okms/ca.pem"),
            ("OKMS_SOCK", "/var/run/kmsplugin/socket.sock"),
            ("OKMS_TIMEOUT", "10s"),
        ],
    );
    let expected = json!({
        "id": "1", "type": "okms", "listen": "/var/run/kmsplugin/socket.sock",
        "kek": {"protocol": "rest", "okmsId": DOMAIN, "key": KEY},
        "settings": {
            "address": "https://eu-west-rbx.okms.ovh.net", "caFile": "/etc/okms/ca.pem",
            "alsoReads": ["*"], "pluginFormat": true,
        },
        "credentials": {"certFile": "/etc/okms/cert.pem", "keyFile": "/etc/okms/key.pem"},
    });
    assert_eq!(by_flags.unwrap(), expected);
    assert_eq!(by_variables.unwrap(), expected);
    assert!(config::parse::<Okms>(&json!({"keys": [expected]})).is_ok());
}

#[test]
fn the_defaults_are_the_plugins_and_paths_may_be_relative() {
    let key = described(
        &["--protocol=rest", "--serv-addr", ADDRESS, "--encryption-key-label=etcd"],
        &[("OKMS_ID", DOMAIN), ("OKMS_CLIENT_CERT", "cert.pem"), ("OKMS_CLIENT_KEY", "/key.pem")],
    )
    .unwrap();
    assert_eq!(key["listen"], "/var/run/okms_etcd_plugin.sock");
    assert_eq!(key["kek"], json!({"protocol": "rest", "okmsId": DOMAIN, "label": "etcd"}));
    let cert = key["credentials"]["certFile"].as_str().unwrap();
    assert!(cert.starts_with('/') && cert.ends_with("/cert.pem"), "{cert}");
}

#[test]
fn kmip_needs_no_domain_and_takes_any_id() {
    let key = described(
        &["--protocol=kmip", "--serv-addr=eu-west-rbx.okms.ovh.net:5696", "--encryption-key-id=7"],
        // That plugin does not look at it either.
        &[("OKMS_ID", "any"), ("OKMS_CLIENT_CERT", "/cert"), ("OKMS_CLIENT_KEY", "/key")],
    )
    .unwrap();
    assert_eq!(key["kek"], json!({"protocol": "kmip", "key": "7"}));
    assert_eq!(key["settings"]["address"], "eu-west-rbx.okms.ovh.net:5696");
    assert!(config::parse::<Okms>(&json!({"keys": [key]})).is_ok());
}

#[test]
fn what_is_missing_or_wrong_is_told_at_once() {
    let all = ["--serv-addr=https://x", "--client-cert=/c", "--client-key=/k", "--okms-id=x"];
    let rest = |more: &[&'static str]| [&["--protocol=rest"], more].concat();
    for (arguments, parts) in [
        (vec!["--okms-id=x"], vec!["--protocol", "OKMS_PROTOCOL"]),
        (vec!["--protocol=grpc"], vec!["--protocol"]),
        (rest(&[]), vec!["--serv-addr", "--client-cert", "--client-key", "--okms-id", "OKMS_ID"]),
        (rest(&all), vec!["--encryption-key-id or --encryption-key-label"]),
        (
            rest(&[&all[..], &["--encryption-key-id=a", "--encryption-key-label=b"]].concat()),
            vec!["exclude each other"],
        ),
    ] {
        let text = described(&arguments, &[]).unwrap_err().report();
        for part in parts {
            assert!(text.contains(part), "{arguments:?}: {text}");
        }
    }
}
