//! The command lines of the replaced plugins, and what they mean.

use clap::Parser;
use serde_json::{Value, json};
use sidekey_core::config::Problems;

use super::Flags;
use super::describe::{describe, process};
use crate::Config;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

/// As the runtime reads it: Go's single dash is taken for two.
fn flags(line: &str, environment: &[(&str, &str)]) -> Option<Flags> {
    let words = std::iter::once("sidekey-vault").chain(line.split_whitespace()).map(Into::into);
    let line = Line::try_parse_from(sidekey_core::process::arguments(words));
    let lookup = |name: &str| {
        let found = environment.iter().find(|(of, _)| *of == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    line.unwrap_or_else(|error| panic!("{error}")).flags.with(&lookup, false)
}

fn key(line: &str, environment: &[(&str, &str)]) -> Value {
    describe(&flags(line, environment).unwrap()).unwrap().0
}

/// The key must be what the schema takes.
fn check(key: &Value) {
    let mut body = key.clone();
    for field in ["id", "type", "listen"] {
        body.as_object_mut().unwrap().remove(field);
    }
    let mut problems = Problems::default();
    let config: Config = sidekey_core::config::read(&body, &mut problems).unwrap();
    config.check(&mut problems);
    assert!(problems.is_empty(), "{key}: {problems:?}");
}

#[test]
fn the_sidecar_of_openshift() {
    let line = "-listen-address=unix:///var/run/kmsplugin/kms-1.sock -vault-address=http://127.0.0.1:8200 -vault-key-path=team/transit/keys/kms -approle-role-id=role -approle-secret-id-path=/s/secret-id -tls-ca-file=/s/ca.crt -tls-sni=vault.example -vault-namespace=a/b -vault-auth-namespace=logins -metrics-port=0";
    let key = key(line, &[]);
    let wanted = json!({
        "id": "1",
        "type": "vault",
        "listen": "unix:///var/run/kmsplugin/kms-1.sock",
        "kek": {"namespace": "a/b", "keyPath": "team/transit/keys/kms"},
        "settings": {
            "addresses": ["http://127.0.0.1:8200"],
            "authNamespace": "logins",
            "tls": {"caFile": "/s/ca.crt", "serverName": "vault.example"},
        },
        "credentials": {"appRole": {"roleId": "role", "secretIdFile": "/s/secret-id"}},
    });
    assert_eq!(key, wanted);
    check(&key);
    let flags = flags(line, &[]).unwrap();
    assert_eq!(process(&flags), json!({"health": []}), "ports collide unless they are asked for");
}

#[test]
fn vault_kubernetes_kms() {
    let line = "-auth-method approle -approle-role-id role -approle-secret-id s3cret -vault-address https://one:8200,https://two:8200 -transit-key kms -socket unix:///k.sock -health-port 8090 -force-socket-overwrite -debug=true -disable-v1 -token-refresh-interval 60s -token-renewal 3600";
    let flags = flags(line, &[]).unwrap();
    let (key, given) = describe(&flags).unwrap();
    assert_eq!(key["kek"], json!({"mount": "transit", "key": "kms"}));
    assert_eq!(key["settings"]["addresses"], json!(["https://one:8200", "https://two:8200"]));
    assert_eq!(key["credentials"], json!({"appRole": {"roleId": "role", "given": true}}));
    assert_eq!(given.secret_id.unwrap().expose(), b"s3cret");
    assert!(!key.to_string().contains("s3cret"), "no secret is in what is logged");
    assert_eq!(key["settings"]["associatedData"], false, "what that plugin can read is written");
    let health = json!([{"address": ":8090", "healthz": "/health", "livez": "/live", "metrics": "/metrics"}]);
    assert_eq!(process(&flags), json!({"health": health, "log": {"level": "debug"}}));
}

#[test]
fn what_vault_kubernetes_kms_is_not_told() {
    let flags = flags("-auth-method=token -token=t -vault-address=https://v", &[]).unwrap();
    let (key, given) = describe(&flags).unwrap();
    assert_eq!(key["listen"], "unix:///opt/kms/vaultkms.socket");
    assert_eq!(key["kek"], json!({"mount": "transit", "key": "kms"}));
    assert_eq!(given.token.unwrap().expose(), b"t");
    assert_eq!(process(&flags)["health"][0]["address"], ":8080");
}

#[test]
fn every_auth_method_of_the_command_line() {
    for (line, wanted) in [
        (
            "-auth-method=jwt -jwt-role=r -jwt-token-path=/t",
            json!({"jwt": {"role": "r", "tokenFile": "/t"}}),
        ),
        (
            "-auth-method=kubernetes -jwt-role=r -auth-mount=k8s -jwt-token-path=/t",
            json!({"kubernetes": {"mount": "k8s", "role": "r", "tokenFile": "/t"}}),
        ),
        (
            "-vault-k8s-role=r -jwt-token-path=/t",
            json!({"kubernetes": {"role": "r", "tokenFile": "/t"}}),
        ),
        (
            "-auth-method=cert -cert-role=r -cert-pem=/c",
            json!({"cert": {"role": "r", "certFile": "/c"}}),
        ),
        (
            "-auth-method=cert -cert-file=/c -cert-key=/k -cert-mount=m",
            json!({"cert": {"mount": "m", "certFile": "/c", "keyFile": "/k"}}),
        ),
        (
            "-auth-method=userpass -userpass-username=u -userpass-password-path=/p",
            json!({"userpass": {"username": "u", "passwordFile": "/p"}}),
        ),
        ("-auth-method=token -token-path=/t", json!({"token": {"file": "/t"}})),
    ] {
        let key = key(&format!("{line} -vault-address=https://v -tls-ca-file=/ca"), &[]);
        assert_eq!(key["credentials"], wanted, "{line}");
        check(&key);
    }
}

#[test]
fn variables_stand_for_flags_and_flags_win() {
    let environment = [
        ("VAULT_KMS_AUTH_METHOD", "approle"),
        ("VAULT_KMS_VAULT_ADDR", "https://env:8200"),
        ("VAULT_KMS_APPROLE_ROLE_ID", "env-role"),
        ("VAULT_KMS_TRANSIT_KEY", "env-key"),
        ("VAULT_CACERT", "/env/ca"),
        ("VAULT_ADDR", "https://other"),
    ];
    let key = key("-transit-key flag-key", &environment);
    assert_eq!(key["kek"]["key"], "flag-key");
    assert_eq!(key["settings"]["addresses"], json!(["https://env:8200"]));
    assert_eq!(key["settings"]["tls"]["caFile"], "/env/ca");
    assert_eq!(key["credentials"]["appRole"]["roleId"], "env-role");
    let kube = [
        ("VAULT_KUBE_KMS_VAULT_ADDRESS", "https://kube"),
        ("VAULT_KUBE_KMS_VAULT_KEY_PATH", "transit/keys/k"),
        ("VAULT_KUBE_KMS_APPROLE_ROLE_ID", "r"),
        ("VAULT_KUBE_KMS_APPROLE_SECRET_ID_PATH", "/s"),
        ("VAULT_KUBE_KMS_HEALTH_PORT", "8081"),
        ("VAULT_KUBE_KMS_METRICS_PORT", "9090"),
    ];
    let flags = flags("", &kube).unwrap();
    assert_eq!(describe(&flags).unwrap().0["listen"], "unix:///tmp/vault-kube-kms.socket");
    let probes = json!({"address": ":8081", "livez": "/healthz", "healthz": "/readyz"});
    let metrics = json!({"address": "127.0.0.1:9090", "metrics": "/metrics"});
    assert_eq!(process(&flags), json!({"health": [probes, metrics]}));
}

#[test]
fn variables_of_vaults_own_clients_describe_no_key() {
    let environment = [("VAULT_ADDR", "https://v"), ("VAULT_TOKEN", "t")];
    assert!(flags("", &environment).is_none());
    let lookup = |_: &str| Some("x".to_owned());
    let none = Line::try_parse_from(["sidekey-vault"]).unwrap().flags;
    assert!(none.with(&lookup, true).is_none(), "beside a file none counts");
}

#[test]
fn what_would_be_less_safe_or_leaves_nothing_is_refused() {
    let base = "-vault-address=https://v -auth-method=token -token=t";
    for (line, part) in [
        (format!("{base} -tls-skip-verify"), "always verified"),
        (format!("{base} -tls-skip-verify=true"), "always verified"),
        (format!("{base} -disable-v2=true"), "only KMS v2"),
        (format!("{base} -jwt-token-source=spiffe"), "spiffe-helper"),
        ("-vault-address=https://v -auth-method=magic".to_owned(), "magic"),
        ("-vault-address=https://v".to_owned(), "-auth-method is missing"),
        ("-token=t".to_owned(), "-vault-address is missing"),
        (format!("{base} -socket=unix:///a -listen-address=unix:///b"), "excludes"),
        (
            "-vault-address=https://v -approle-role-id=r -approle-wrapped-secret-id-path=/w".into(),
            "a wrapping opens once",
        ),
    ] {
        let error = describe(&flags(&line, &[]).unwrap()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), sidekey_core::Kind::Invalid);
        assert!(error.report().contains(part), "{line}: {}", error.report());
    }
    assert!(describe(&flags(&format!("{base} -tls-skip-verify=false"), &[]).unwrap()).is_ok());
}

#[test]
fn plain_http_to_another_machine_must_be_allowed() {
    let line = "-vault-address=http://v:8200 -auth-method=token -token-path=/t";
    let problems = |line: &str| {
        let mut body = key(line, &[]);
        for field in ["id", "type", "listen"] {
            body.as_object_mut().unwrap().remove(field);
        }
        let mut problems = Problems::default();
        let config: Config = sidekey_core::config::read(&body, &mut problems).unwrap();
        config.check(&mut problems);
        problems.iter().map(|problem| problem.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(problems(line), ["settings.addresses[0]"]);
    assert_eq!(problems(&format!("{line} -allow-plaintext")), [""; 0]);
}

#[test]
fn levels_of_the_log_are_understood() {
    let levels =
        [("debug", "debug"), ("panic", "error"), ("1", "debug"), ("4", "warn"), ("6", "trace")];
    for (written, level) in levels {
        let flags = flags(&format!("-zap-log-level={written}"), &[]).unwrap();
        assert_eq!(process(&flags)["log"]["level"], level);
    }
}

#[test]
fn flags_without_a_value_are_as_good_as_none() {
    let bare = "-listen-address=unix:///k.sock -vault-address=http://v -vault-key-path=t/keys/k -approle-role-id=r -approle-secret-id-path=/s";
    let line = format!(
        "{bare} -tls-ca-file= -tls-sni= -vault-namespace= -vault-auth-namespace= -transit-key= -health-port= -metrics-port= -zap-log-level="
    );
    assert_eq!(key(&line, &[]), key(bare, &[]));
    assert_eq!(process(&flags(&line, &[]).unwrap()), process(&flags(bare, &[]).unwrap()));
    assert!(flags("-vault-address=", &[]).is_none(), "nothing describes a key");
}
