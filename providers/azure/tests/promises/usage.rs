//! Mistakes, what is said of them, and what is never said.

use serde_json::json;
use sidekey_e2e::wait::BROKEN;

use crate::support::{PLAINTEXT, SECRET, Stage, quick, run};

#[tokio::test]
async fn a_broken_configuration_is_refused_with_every_mistake_at_once() {
    let scratch = sidekey_e2e::Scratch::new("broken").unwrap();
    let file = scratch.path().join("azure.yaml");
    let document = json!({"keys": [
        {
            "id": 1, "type": "azure", "colour": "red", "listen": "/tmp/x.sock",
            "kek": {"vault": "http://vault", "key": "a/b", "version": "a/b"},
            "settings": {
                "endpoint": "http://elsewhere.example", "authority": "nowhere", "format": "text",
                "caFile": "relative/ca.crt", "formerVersions": ["?"], "proxy": "ftp://proxy",
            },
            "credentials": {"clientId": "a b", "clientSecretFile": "secret", "managedIdentity": true},
        },
        {"id": 2, "listen": "/tmp/y.sock", "settings": {"format": "binary", "cloud": "Nowhere"}, "kek": {"vault": "name"}},
    ]});
    std::fs::write(&file, document.to_string()).unwrap();
    let file = file.display().to_string();
    let ran = run(&["check", "--config", &file]);
    assert_eq!(ran.status.code(), Some(64), "{ran:?}");
    let said =
        format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    for path in [
        "keys[0].colour",
        "keys[0].kek.vault",
        "keys[0].kek.key",
        "keys[0].kek.version",
        "keys[0].settings.endpoint",
        "keys[0].settings.authority",
        "keys[0].settings.caFile",
        "keys[0].settings.formerVersions",
        "keys[0].settings.proxy",
        "keys[0].credentials.clientId",
        "keys[0].credentials.clientSecretFile",
        "keys[0].credentials.managedIdentity",
        "keys[1].kek.key",
        "keys[1].settings.format",
        "keys[1].settings.cloud",
        "keys[1].credentials",
    ] {
        assert!(said.contains(path), "nothing of {path} in:\n{said}");
    }
}

#[test]
fn bad_flags_are_bad_usage() {
    let cases: [&[&str]; 6] = [
        &[],
        &["--keyvault-name=vault"],
        &["--keyvault-name=ab", "--key-name=k", "--key-version=1"],
        &["--keyvault-name=vault", "--key-name=k", "--key-version=1", "--listen-addr=/opt/x.sock"],
        &["--keyvault-name=vault", "--key-name=k", "--key-version=1", "--proxy-mode"],
        &["--keyvault-name=vault", "--key-name=k", "--key-version=1", "--format=other"],
    ];
    for words in cases {
        let ran = run(words);
        assert_eq!(ran.status.code(), Some(64), "{words:?}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{words:?}: nothing is said");
    }
    let help = run(&["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(text.contains("--keyvault-name") && text.contains("Examples:"), "{text}");
}

#[tokio::test]
async fn check_tells_a_good_configuration_from_one_that_does_not_connect() {
    let stage = Stage::new("checked").await;
    let file = stage.write("azure.yaml", &stage.document().to_string()).display().to_string();
    let check = async || {
        let file = file.clone();
        let check = move || run(&["check", "--connect", "--config", &file]);
        tokio::task::spawn_blocking(check).await.unwrap()
    };
    let ran = check().await;
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    stage.fake.service().allow(crate::support::CLIENT, &["get", "encrypt"]);
    let ran = check().await;
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("keys/decrypt"), "{ran:?}");
}

#[tokio::test]
async fn no_log_holds_a_secret_at_any_level() {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let stage = Stage::new("logs").await;
    let mut document = quick(&[stage.key(1, &stage.by_secret())]);
    document["log"] = json!({"level": "trace"});
    let served = stage.serve_document(&document).await;
    let sealed = served.round_trip().await;
    let mut altered = sealed.clone();
    altered.ciphertext.truncate(100);
    served.kms.decrypt(&altered).await.unwrap_err();
    stage.fake.service().allow(crate::support::CLIENT, &[]);
    let error = served.kms.decrypt(&sealed).await.unwrap_err();
    let status = served.plugin.status().await.unwrap().to_string();
    let log = served.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
    let plaintext = URL_SAFE_NO_PAD.encode(PLAINTEXT);
    let sealed = URL_SAFE_NO_PAD.encode(&sealed.ciphertext);
    let text = std::str::from_utf8(PLAINTEXT).unwrap();
    for secret in [SECRET, &plaintext, text, &sealed[..40], "eyJ0eXAi"] {
        for place in [&log, &status, error.message()] {
            assert!(!place.contains(secret), "{BROKEN}{secret} in {place}");
        }
    }
}
