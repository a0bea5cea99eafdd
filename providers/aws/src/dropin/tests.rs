use clap::{Args, Command, FromArgMatches};
use sidekey_core::config;

use super::*;

const A: &str = "arn:aws:kms:us-east-1:111122223333:key/aaaaaaaa-12ab-34cd-56ef-1234567890ab";

fn flags(arguments: &[&str]) -> Flags {
    let command = Flags::augment_args(Command::new("sidekey-aws").no_binary_name(true));
    Flags::from_arg_matches(&command.try_get_matches_from(arguments).unwrap()).unwrap()
}

fn document(arguments: &[&str]) -> Result<Value, Kind> {
    let flags = flags(arguments);
    let keys = Aws::keys(&flags).map_err(|error| error.kind())?;
    let mut document = Aws::process(&flags);
    document["keys"] = keys.unwrap_or_default();
    assert!(config::parse::<Aws>(&document).is_ok(), "{document}");
    Ok(document)
}

#[test]
fn hypershifts_arguments_are_taken() {
    let key = format!("--key={A}");
    let listen = "--listen=/var/run/awskmsactive.sock";
    let document = document(&[&key, "--region=us-east-1", listen, "--health-port=:8080"]).unwrap();
    assert_eq!(document["keys"][0]["kek"], json!({"key": A, "region": "us-east-1"}));
    assert_eq!(document["keys"][0]["listen"], "/var/run/awskmsactive.sock");
    let health = json!([{
        "address": ":8080", "healthz": "/healthz", "livez": "/livez", "metrics": "/metrics",
    }]);
    assert_eq!(document["health"], health);
}

#[test]
fn only_in_the_pod_of_hypershift_does_it_wait_for_kube_apiserver() {
    for (listen, linger) in [
        ("--listen=/var/run/awskmsactive.sock", json!("125s")),
        ("--listen=unix:///var/run/awskmsbackup.sock", json!("125s")),
        ("--listen=/var/run/kmsplugin/socket.sock", Value::Null),
        ("--listen=/awskmsactive.sock/kms.sock", Value::Null),
    ] {
        assert_eq!(document(&["--key=alias/a", listen]).unwrap()["linger"], linger, "{listen}");
    }
    assert_eq!(document(&["--key=alias/a"]).unwrap()["linger"], Value::Null);
}

#[test]
fn lists_of_keys_and_sockets_belong_together_in_their_order() {
    let repeated = ["--key=alias/a", "--listen=/a", "--key=alias/b", "--listen=/b"];
    let commas = ["--key=alias/a,alias/b", "--listen=/a,/b"];
    for arguments in [&repeated[..], &commas[..]] {
        let document = document(arguments).unwrap();
        let keys = document["keys"].as_array().unwrap();
        let keys: Vec<_> = keys.iter().map(|key| (&key["id"], &key["kek"]["key"])).collect();
        assert_eq!(keys, [(&json!("1"), &json!("alias/a")), (&json!("2"), &json!("alias/b"))]);
    }
    for uneven in [&["--key=a,b", "--listen=/a"][..], &["--key=a,b"], &["--listen=/a"]] {
        assert_eq!(document(uneven), Err(Kind::Invalid), "{uneven:?}");
    }
}

#[test]
fn contexts_are_one_for_each_key_and_never_guessed() {
    let context = |arguments: &[&str], index: usize| {
        document(arguments).unwrap()["keys"][index]["kek"]["encryptionContext"].clone()
    };
    let one = ["--key=a", "--encryption-context=a=b,c=d,e=f=g"];
    assert_eq!(context(&one, 0), json!({"a": "b", "c": "d", "e": "f=g"}));
    let two = ["--key=a,b", "--listen=/a,/b", "--encryption-context=a=b"];
    assert_eq!(context(&two, 0), json!({"a": "b"}));
    assert_eq!(context(&two, 1), Value::Null);
    // Quotes that stand in a pod's arguments reach us; the replaced plugin takes them off too.
    for quoted in
        [r#"--encryption-context="a=b","c=d,e""#, r#"--encryption-context=["a=b","c=d,e"]"#]
    {
        assert_eq!(context(&["--key=a", quoted], 0), json!({"a": "b", "c": "d,e"}), "{quoted}");
    }
    for bad in ["a", "\"a=b", "a=\"b\"", "\"a=b\"c"] {
        let flag = format!("--encryption-context={bad}");
        assert_eq!(document(&["--key=a", &flag]), Err(Kind::Invalid), "{bad}");
    }
    // The versions of the replaced plugin differ in what this means.
    let twice = ["--key=a", "--encryption-context=a=b", "--encryption-context=c=d"];
    assert_eq!(document(&twice), Err(Kind::Invalid));
}

#[test]
fn every_flag_of_the_replaced_plugin_is_taken() {
    let document = document(&[
        "--key=alias/etcd",
        "--kms-endpoint=https://kms.example.com",
        "--source-arn=arn:aws:eks:us-east-1:111122223333:cluster/prod",
        "--retry-token-capacity=50",
        "--healthz-path=/h",
        "--livez-path=/l",
        "--health-kms-version=v2",
        "--qps-limit=0",
        "--burst-limit=0",
        "--allow-plaintext",
        "--debug",
    ])
    .unwrap();
    let settings = json!({
        "endpoint": "https://kms.example.com",
        "sourceArn": "arn:aws:eks:us-east-1:111122223333:cluster/prod",
        "retryTokens": 50,
        "allowPlaintext": true,
    });
    assert_eq!(document["keys"][0]["settings"], settings);
    assert_eq!(document["keys"][0]["listen"], LISTEN);
    assert_eq!(document["health"][0]["healthz"], "/h");
    assert_eq!(document["health"][0]["optional"], true, "nobody asked for the port");
    assert_eq!(document["log"]["level"], "debug");
    let alone = |arguments: &[&str]| Aws::keys(&flags(arguments)).map_err(|error| error.kind());
    assert_eq!(alone(&["--debug", "--qps-limit=5"]), Ok(None), "beside a file");
    for name in ["--allow-plaintext", "--region=a", "--retry-token-capacity=1"] {
        assert_eq!(alone(&[name]), Err(Kind::Invalid), "{name}");
    }
    for name in ["--retry-token-capacity=x", "--qps-limit=-1", "--burst-limit=1.5"] {
        assert_eq!(alone(&["--key=a", name]), Err(Kind::Invalid), "{name}");
    }
}

#[test]
fn the_deprecated_limits_make_a_budget_of_retries_where_no_other_is_given() {
    let tokens = |arguments: &[&str]| {
        let all = [&["--key=a"], arguments].concat();
        document(&all).unwrap()["keys"][0]["settings"]["retryTokens"].clone()
    };
    assert_eq!(tokens(&["--qps-limit=4", "--burst-limit=2"]), 30);
    assert_eq!(tokens(&["--qps-limit=4", "--retry-token-capacity=7"]), 7);
    assert_eq!(tokens(&["--burst-limit=2"]), Value::Null);
}
