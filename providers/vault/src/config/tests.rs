//! Every mistake is found, with its path.

use serde_json::{Value, json};
use sidekey_core::config::Problems;

use super::Config;

fn mistakes(document: &Value) -> Vec<String> {
    let mut problems = Problems::default();
    if let Some(config) = sidekey_core::config::read::<Config>(document, &mut problems) {
        config.check(&mut problems);
    }
    problems.iter().map(|problem| problem.path.clone()).collect()
}

fn sound() -> Value {
    json!({
        "kek": {"namespace": "a/b", "mount": "transit", "key": "kms"},
        "settings": {
            "addresses": ["https://one:8200", "unix:///agent.sock"],
            "authNamespace": "c",
            "tls": {"caFile": "/ca", "serverName": "vault.example"},
            "connectTimeout": "500ms",
            "requestTimeout": "1s",
            "legacyData": false,
        },
        "credentials": {"appRole": {"roleIdFile": "/r", "secretIdFile": "/s"}},
    })
}

#[test]
fn a_sound_configuration_names_its_files() {
    assert_eq!(mistakes(&sound()), [""; 0]);
    let config: Config = serde_json::from_value(sound()).unwrap();
    let files: Vec<_> = config.files().iter().map(|path| path.display().to_string()).collect();
    assert_eq!(files, ["/r", "/s", "/ca"]);
}

#[test]
fn nothing_at_all_is_three_mistakes() {
    assert_eq!(mistakes(&json!({})), ["kek.key", "settings.address", "credentials"]);
}

#[test]
fn each_mistake_has_its_path() {
    for (pointer, value, path) in [
        ("/kek/key", json!("a/b"), "kek.key"),
        ("/kek/key", json!("../x"), "kek.key"),
        ("/kek/key", json!("a b"), "kek.key"),
        ("/kek/key", json!(""), "kek.key"),
        ("/kek/mount", json!("a//b"), "kek.mount"),
        ("/kek/mount", json!("a/../b"), "kek.mount"),
        ("/kek/namespace", json!("a?b"), "kek.namespace"),
        ("/kek/keyPath", json!("transit/keys/kms"), "kek.keyPath"),
        ("/settings/addresses", json!([]), "settings.address"),
        ("/settings/addresses", json!(["https://a", "b"]), "settings.addresses[1]"),
        ("/settings/address", json!("https://a"), "settings.address"),
        ("/settings/tls/caFile", json!("ca"), "settings.tls.caFile"),
        ("/settings/tls/serverName", json!("a b"), "settings.tls.serverName"),
        ("/settings/tls/keyFile", json!("/k"), "settings.tls.certFile"),
        ("/settings/connectTimeout", json!("0s"), "settings.connectTimeout"),
        ("/settings/requestTimeout", json!(5), "settings.requestTimeout"),
        ("/settings/addresses", json!(["http://a:8200"]), "settings.addresses[0]"),
        ("/settings/associatedData", json!(false), "settings.legacyData"),
        ("/settings/skipVerify", json!(true), "settings.skipVerify"),
        ("/credentials/token", json!({"file": "/t"}), "credentials"),
        ("/credentials/appRole/roleId", json!("r"), "credentials.appRole.roleIdFile"),
        ("/credentials/appRole/secretIdFile", json!("s"), "credentials.appRole.secretIdFile"),
        (
            "/credentials/appRole/wrappedSecretIdFile",
            json!("/w"),
            "credentials.appRole.wrappedSecretIdFile",
        ),
        ("/credentials/appRole/secretId", json!("s"), "credentials.appRole.secretId"),
    ] {
        let mut document = sound();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[name] = value.clone();
        assert!(
            mistakes(&document).contains(&path.to_owned()),
            "{pointer} {value}: {:?}",
            mistakes(&document)
        );
    }
}

#[test]
fn a_wrapped_secret_id_is_refused_with_the_reason() {
    let mut document = sound();
    let role = json!({"roleIdFile": "/r", "wrappedSecretIdFile": "/w"});
    document["credentials"]["appRole"] = role;
    let mut problems = Problems::default();
    let config = sidekey_core::config::read::<Config>(&document, &mut problems).unwrap();
    config.check(&mut problems);
    let problems: Vec<_> = problems.iter().collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].path, "credentials.appRole.wrappedSecretIdFile");
    let said = format!("{problems:?}");
    assert!(said.contains("each replica and each restart"), "{said}");
    assert!(!config.files().iter().any(|file| file.ends_with("w")));
}

#[test]
fn every_method_says_what_it_lacks() {
    for (method, value, path) in [
        ("jwt", json!({"tokenFile": "/t"}), "credentials.jwt.role"),
        ("jwt", json!({"role": "r"}), "credentials.jwt.tokenFile"),
        ("kubernetes", json!({}), "credentials.kubernetes.role"),
        ("cert", json!({}), "credentials.cert.certFile"),
        ("userpass", json!({"passwordFile": "/p"}), "credentials.userpass.username"),
        (
            "userpass",
            json!({"username": "a/b", "passwordFile": "/p"}),
            "credentials.userpass.username",
        ),
        ("userpass", json!({"username": "u"}), "credentials.userpass.passwordFile"),
        ("token", json!({}), "credentials.token.file"),
        ("token", json!({"file": "t"}), "credentials.token.file"),
        ("appRole", json!({}), "credentials.appRole.roleIdFile"),
    ] {
        let mut document = sound();
        document["credentials"] = json!({method: value});
        assert!(
            mistakes(&document).contains(&path.to_owned()),
            "{method}: {:?}",
            mistakes(&document)
        );
    }
    let mut plain = sound();
    plain["settings"]["addresses"] = json!(["http://a"]);
    plain["settings"]["allowPlaintext"] = true.into();
    plain["credentials"] = json!({"cert": {"certFile": "/c"}});
    assert_eq!(mistakes(&plain), ["settings.addresses"], "a certificate needs TLS");
}

#[test]
fn a_key_can_be_named_in_two_ways() {
    let kek = |kek: Value| serde_json::from_value::<Config>(json!({"kek": kek})).unwrap().kek();
    let one = kek(json!({"namespace": "/a/", "mount": "b/transit/", "key": "kms"}));
    assert_eq!(one, kek(json!({"namespace": "a", "keyPath": "b/transit/keys/kms"})));
    assert_eq!(kek(json!({"key": "kms"})), kek(json!({"keyPath": "transit/keys/kms"})));
    let mut document = sound();
    for path in ["kms", "transit/kms", "transit/keys/", "/keys/kms", "transit/keys/a/b"] {
        document["kek"] = json!({"keyPath": path});
        assert_eq!(mistakes(&document), ["kek.keyPath"], "{path}");
    }
}
