//! Mistakes, what is said of them, and what is never said.

use serde_json::json;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::wait::BROKEN;
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, failed, run};

fn args(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test]
async fn a_broken_configuration_is_refused_with_every_mistake_at_once() {
    let scratch = sidekey_e2e::Scratch::new("broken").unwrap();
    let file = scratch.path().join("vault.yaml");
    let document = json!({"keys": [
        {
            "id": 1, "type": "vault", "colour": "red",
            "kek": {"mount": "transit", "keyPath": "somewhere/kms"},
            "settings": {
                "address": "ftp://vault", "requestTimeout": "soon",
                "tls": {"caFile": "relative/ca.crt", "serverName": "not a name"},
                "formerKeks": [{"mount": "old"}],
            },
            "credentials": {"appRole": {"secretId": "s"}, "token": {}},
        },
        {"id": 2, "settings": {}},
    ]});
    std::fs::write(&file, document.to_string()).unwrap();
    let file = file.display().to_string();
    for words in [args(&["--config", &file]), args(&["check", "--config", &file])] {
        let ran = run(&words);
        assert_eq!(ran.status.code(), Some(64), "{ran:?}");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr)
        );
        for path in [
            "keys[0].colour",
            "keys[0].kek.keyPath",
            "keys[0].settings.address",
            "keys[0].settings.requestTimeout",
            "keys[0].settings.tls.caFile",
            "keys[0].settings.tls.serverName",
            "keys[0].settings.formerKeks[0].key",
            "keys[0].credentials.appRole.secretId",
            "keys[0].credentials.appRole.roleId",
            "keys[0].credentials.token.file",
            "keys[1].kek.key",
            "keys[1].settings.address",
            "keys[1].credentials",
        ] {
            assert!(said.contains(path), "nothing of {path} in:\n{said}");
        }
    }
}

#[test]
fn bad_flags_are_bad_usage() {
    let cases: [&[&str]; 6] = [
        &[],
        &["-vault-address=https://vault:8200"],
        &["-listen-address=unix:///x.sock", "-approle-role-id=r", "-approle-secret-id-path=/s"],
        &["-vault-address=https://v", "-auth-method=magic"],
        &["-vault-address=https://v", "-token=t", "-tls-skip-verify"],
        &["-no-such-flag"],
    ];
    for words in cases {
        let ran = run(&args(words));
        assert_eq!(ran.status.code(), Some(64), "{words:?}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{words:?}: nothing is said");
    }
    let help = run(&args(&["--help"]));
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(text.contains("-vault-key-path") && text.contains("Examples:"), "{text}");
}

#[tokio::test]
async fn check_tells_a_good_configuration_from_one_that_does_not_connect() {
    let stage = Stage::new("checked").await;
    let file = stage.path("vault.yaml").display().to_string();
    std::fs::write(&file, stage.document().to_string()).unwrap();
    let words = args(&["check", "--connect", "--config", &file]);
    let ran = tokio::task::spawn_blocking({
        let words = words.clone();
        move || run(&words)
    });
    let ran = ran.await.unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    stage.allow(&["read", "encrypt"]).await.unwrap();
    let ran = tokio::task::spawn_blocking(move || run(&words)).await.unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("decrypt"), "{ran:?}");
}

#[tokio::test]
async fn check_names_the_setting_for_a_certificate_that_is_not_trusted() {
    let stage = Stage::new("distrust").await;
    let file = stage.path("vault.yaml").display().to_string();
    stage.write("other.crt", &Authority::new("another CA").unwrap().pem());
    let mut document = stage.document();
    document["keys"][0]["settings"]["tls"]["caFile"] = json!(stage.path("other.crt"));
    std::fs::write(&file, document.to_string()).unwrap();
    let words = args(&["check", "--connect", "--config", &file, "-o", "json"]);
    let ran = tokio::task::spawn_blocking(move || run(&words)).await.unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let said: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(said["kind"], "unavailable", "it may pass: {said}");
    assert!(said["error"].as_str().unwrap().contains("set settings.tls.caFile"), "{said}");
}

#[tokio::test]
async fn no_secret_is_ever_logged_or_shown() {
    let stage = Stage::new("quiet").await;
    let secret_id = std::fs::read_to_string(stage.path("secret-id")).unwrap();
    let mut document = stage.document();
    document["log"] = json!({"level": "trace"});
    let mut served = stage.serve_document(&document).await;
    let sealed = served.round_trip().await;
    // Everything that is worth a line: failures of all kinds, a new login, new files.
    let mut forged = sealed.clone();
    forged.ciphertext = b"vault:v1:AAAA".to_vec().into();
    assert!(served.kms.decrypt(&forged).await.is_err());
    stage.allow(&["read", "encrypt"]).await.unwrap();
    failed(served.kms.decrypt(&sealed).await, Code::PermissionDenied, &[]);
    stage.allow(&["read", "encrypt", "decrypt"]).await.unwrap();
    stage.bao.revoke_logins("quiet").await.unwrap();
    served.reads(&sealed).await;
    let second = stage.role.secret_id().await.unwrap();
    stage.write("secret-id", &second);
    served.logs("new files or settings are in use").await;

    let log = std::fs::read_to_string(served.plugin.log_path()).unwrap();
    let shown = [
        log,
        served.plugin.status().await.unwrap().to_string(),
        served.plugin.admin().get("/metrics").await.unwrap().text(),
    ];
    let ciphertext = String::from_utf8(sealed.ciphertext.to_vec()).unwrap();
    let base64 = ciphertext.rsplit(':').next().unwrap();
    let plaintext = std::str::from_utf8(PLAINTEXT).unwrap();
    for text in shown {
        for secret in [secret_id.trim(), &second, base64, plaintext] {
            assert!(!text.contains(secret), "{BROKEN}{secret:?} in:\n{text}");
        }
        // OpenBao's tokens begin with s. and have 24 letters and digits behind it.
        let tokens = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
        let token = tokens.into_iter().find(|word| {
            word.strip_prefix("s.").is_some_and(|rest| rest.len() >= 24 && !rest.contains('.'))
        });
        assert_eq!(token, None, "{BROKEN}a token in:\n{text}");
    }
}
