use clap::{Args, Command, FromArgMatches};
use sidekey_core::config;

use super::*;

const KEY: [&str; 3] = ["--keyvault-name=vault", "--key-name=etcd", "--key-version=abcd"];

fn flags(arguments: &[&str]) -> Flags {
    let command = Flags::augment_args(Command::new("sidekey-azure").no_binary_name(true));
    let arguments = KEY.iter().chain(arguments);
    Flags::from_arg_matches(&command.try_get_matches_from(arguments).unwrap()).unwrap()
}

fn document(arguments: &[&str]) -> Result<Value, Kind> {
    let flags = flags(arguments);
    let keys = Azure::keys(&flags).map_err(|error| error.kind())?;
    let mut document = Azure::process(&flags);
    document["keys"] = keys.unwrap_or_default();
    let parsed = config::parse::<Azure>(&document).map(drop);
    assert!(parsed.is_ok(), "{document}: {parsed:?}");
    Ok(document)
}

#[test]
fn the_flags_of_upstream_make_its_format_and_its_ports() {
    let document = document(&[]).unwrap();
    let key = &document["keys"][0];
    assert_eq!(
        key["kek"],
        json!({"vault": "vault", "managedHsm": false, "key": "etcd", "version": "abcd"})
    );
    assert_eq!((&key["listen"], &key["settings"]), (&json!(LISTEN), &json!({"format": "text"})));
    assert_eq!(key["credentials"], json!({"azureJsonFile": "/etc/kubernetes/azure.json"}));
    assert_eq!(
        document["health"],
        json!([
            {"address": ":8787", "healthz": "/healthz", "optional": true},
            {"address": ":8095", "metrics": "/metrics", "optional": true},
        ])
    );
    assert_eq!(document["linger"], Value::Null);
}

#[test]
fn hypershifts_arguments_make_the_forks_format() {
    let document = document(&[
        "--listen-addr=unix:///opt/azurekmsactive.socket",
        "--healthz-port=8787",
        "--metrics-addr=8095",
        "--healthz-path=/healthz",
        "--config-file-path=/etc/kubernetes/azure.json",
        "--v=1",
        "--managed-hsm",
    ])
    .unwrap();
    let key = &document["keys"][0];
    assert_eq!(key["listen"], "unix:///opt/azurekmsactive.socket");
    assert_eq!(
        (&key["settings"]["format"], &key["kek"]["managedHsm"]),
        (&json!("binary"), &json!(true))
    );
    assert_eq!(document["linger"], LINGER);
    assert_eq!(
        document["health"][0],
        json!({"address": ":8787", "healthz": "/healthz", "optional": false})
    );
}

#[test]
fn the_format_can_be_chosen_and_values_are_trimmed_as_the_replaced_plugins_do() {
    let active = "--listen-addr=UNIX:///opt/azurekmsbackup.socket";
    let document = document(&[active, "--format=text", "--key-name= \"etcd \" "]).unwrap();
    assert_eq!(document["keys"][0]["settings"]["format"], "text");
    assert_eq!(document["keys"][0]["kek"]["key"], "etcd");
    assert_eq!(document["keys"][0]["listen"], "unix:///opt/azurekmsbackup.socket");
}

#[test]
fn the_proxy_mode_leads_everything_to_the_proxy() {
    let document = document(&["--proxy-mode=true", "--proxy-address=10.0.0.1"]).unwrap();
    let settings =
        json!({"format": "text", "gateway": "http://10.0.0.1:7788", "allowPlaintext": true});
    assert_eq!(document["keys"][0]["settings"], settings);
    assert_eq!(Azure::keys(&flags(&["--proxy-mode"])).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn azure_json_names_its_files_in_the_order_in_which_they_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("azure.json");
    let named = |content: Value| {
        std::fs::write(&path, content.to_string()).unwrap();
        let files = Files::read([path.as_path()]).unwrap();
        AzureJson::read(&path, &files).unwrap().named_files()
    };
    let identity = json!({"aadMSIDataPlaneIdentityPath": "/mnt/certs/identity"});
    assert_eq!(named(identity.clone()), [PathBuf::from("/mnt/certs/identity")]);
    let mut both = identity;
    both["aadClientCertPath"] = json!("/certs/client.p12");
    assert_eq!(named(both.clone()).len(), 1, "without a password it is none");
    both["aadClientCertPassword"] = json!("x");
    assert_eq!(named(both.clone()), [PathBuf::from("/certs/client.p12")]);
    both["aadClientId"] = json!("me");
    both["aadClientSecret"] = json!("x");
    assert_eq!(named(both.clone()), Vec::<PathBuf>::new());
    both["useManagedIdentityExtension"] = json!(true);
    assert_eq!(named(both), Vec::<PathBuf>::new());
    std::fs::write(&path, "tenantId: [1]").unwrap();
    let files = Files::read([path.as_path()]).unwrap();
    let error = AzureJson::read(&path, &files).unwrap_err();
    assert!(error.kind() == Kind::Config && !error.report().contains("[1]"), "{}", error.report());
}
