use clap::{Args, Command, FromArgMatches};
use sidekey_core::config;

use super::*;

const KEY: &str = "projects/p/locations/global/keyRings/r/cryptoKeys/k";

fn document(arguments: &[&str]) -> Result<Value, Kind> {
    let command = Flags::augment_args(Command::new("sidekey-gcp").no_binary_name(true));
    let matches = command.try_get_matches_from(arguments).unwrap();
    let flags = Flags::from_arg_matches(&matches).unwrap();
    let keys = Gcp::keys(&flags).map_err(|error| error.kind())?;
    let mut document = Gcp::process(&flags);
    document["keys"] = keys.unwrap_or_default();
    Ok(document)
}

#[test]
fn the_key_alone_means_the_plugins_defaults() {
    let document = document(&["--key-uri", KEY]).unwrap();
    assert!(config::parse::<Gcp>(&document).is_ok(), "{document}");
    let key = &document["keys"][0];
    assert_eq!((&key["kek"]["key"], &key["listen"]), (&json!(KEY), &json!(LISTEN)));
    let settings = json!({"alsoReads": [EVERY_KEY], "pluginFormat": {}});
    assert_eq!(key["settings"], settings);
    let health = json!([
        {"address": "127.0.0.1:8081", "healthz": "/healthz", "optional": true},
        {"address": "127.0.0.1:8082", "metrics": "/metrics", "optional": true},
    ]);
    assert_eq!(document["health"], health);
}

#[test]
fn every_flag_of_the_plugin_is_taken() {
    let document = document(&[
        "--key-uri",
        KEY,
        "--key-suffix=2",
        "--kms=v2",
        "--path-to-unix-socket=@kms",
        "--gce-config=/etc/gce.conf",
        "--healthz-port=1",
        "--healthz-path=health",
        "--healthz-timeout=3s",
        "--metrics-port=2",
        "--metrics-path=/m",
        "--integration-test=false",
        "--fake-kms-port=8085",
        "--logtostderr",
        "--alsologtostderr=true",
        "--stderrthreshold=2",
        "--v=5",
        "--vmodule=a=1",
        "--log_dir=/tmp",
        "--log_backtrace_at=a.go:1",
    ]);
    let document = document.unwrap();
    assert!(config::parse::<Gcp>(&document).is_ok(), "{document}");
    let key = &document["keys"][0];
    assert_eq!(key["listen"], "@kms");
    assert_eq!(key["settings"]["pluginFormat"], json!({"keySuffix": "2"}));
    assert_eq!(key["credentials"], json!({"gceConfig": "/etc/gce.conf"}));
    assert_eq!(document["health"][0]["healthz"], "/health");
    assert_eq!(document["health"][1]["metrics"], "/m");
}

#[test]
fn the_integration_test_asks_an_emulator_here_and_nobody_who_we_are() {
    let flags = ["--key-uri", KEY, "--integration-test", "--fake-kms-port=99"];
    let document = document(&flags).unwrap();
    assert!(config::parse::<Gcp>(&document).is_ok(), "{document}");
    let key = &document["keys"][0];
    assert_eq!(key["settings"]["endpoint"], "http://localhost:99");
    assert_eq!(key["credentials"], json!({"anonymous": true}));
}

#[test]
fn what_cannot_be_is_refused() {
    for flags in [&["--key-suffix=2"][..], &["--key-uri", KEY, "--kms=v1"]] {
        assert_eq!(document(flags), Err(Kind::Invalid), "{flags:?}");
    }
    assert_eq!(document(&["--logtostderr"]).unwrap()["keys"], Value::Null, "that names no key");
}
