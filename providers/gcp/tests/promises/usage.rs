//! Mistakes, what is said of them, and what is never said.

use std::process::{Command, Output, Stdio};

use serde_json::json;
use sidekey_e2e::fakes::gcp::{DECRYPT, ENCRYPT, LOOK};
use sidekey_e2e::gcp::ACCOUNT;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::wait::BROKEN;
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, binary, failed};

/// Runs the binary to its end.
async fn run(args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env_remove("RUST_BACKTRACE").args(args).stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

#[tokio::test]
async fn bad_flags_and_configurations_are_bad_usage() {
    let scratch = sidekey_e2e::Scratch::new("broken").unwrap();
    let file = scratch.path().join("gcp.yaml");
    std::fs::write(&file, json!({"keys": [{"id": 1, "colour": "red"}]}).to_string()).unwrap();
    let file = file.display().to_string();
    let cases: [&[&str]; 6] = [
        &[],
        &["--key-suffix=2"],
        &["--key-uri=k"],
        &["--key-uri=projects/p/locations/l/keyRings/r/cryptoKeys/k", "--kms=v1"],
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
    assert!(text.contains("--key-uri") && text.contains("Examples:"), "{text}");
}

#[tokio::test]
async fn check_tells_a_good_configuration_from_one_that_does_not_connect() {
    let stage = Stage::new("checked").await;
    let path = stage.path("gcp.yaml");
    let file = path.display().to_string();
    let words = ["check", "--connect", "--config", &file];
    std::fs::write(&path, stage.document().to_string()).unwrap();
    let ran = run(&words).await;
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    stage.fake().service().allow(ACCOUNT, &[ENCRYPT, LOOK]);
    let ran = run(&words).await;
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains(DECRYPT), "{ran:?}");
    let other = stage.path("other.crt");
    stage.write(&other, &Authority::new("another CA").unwrap().pem());
    let mut document = stage.document();
    document["keys"][0]["settings"]["caFile"] = json!(other);
    std::fs::write(&path, document.to_string()).unwrap();
    let ran = run(&words).await;
    assert!(String::from_utf8_lossy(&ran.stderr).contains("settings.caFile"), "{ran:?}");
}

#[tokio::test]
async fn no_secret_is_ever_logged_or_shown() {
    let stage = Stage::new("quiet").await;
    let account = std::fs::read_to_string(&stage.backend.credentials).unwrap();
    let account: serde_json::Value = serde_json::from_str(&account).unwrap();
    let mut document = stage.document();
    document["log"] = json!({"level": "trace"});
    let mut served = stage.serve_document(&document, &[]).await;
    let sealed = served.round_trip().await;
    // Everything that is worth a line: failures of all kinds, a refused token, new files.
    let mut forged = sealed.clone();
    forged.ciphertext = vec![0; 40].into();
    failed(served.kms.decrypt(&forged).await, Code::DataLoss, &[]);
    stage.fake().service().allow(ACCOUNT, &[ENCRYPT, LOOK]);
    failed(served.kms.decrypt(&sealed).await, Code::PermissionDenied, &[]);
    stage.fake().service().allow(ACCOUNT, &[ENCRYPT, DECRYPT, LOOK]);
    let user = stage.fake().service().tokens.user(ACCOUNT, &stage.fake().url());
    stage.write(&stage.backend.credentials, &user.to_string());
    served.logs("new files or settings are in use", 1).await;
    served.reads(&sealed).await;
    let shown = [
        std::fs::read_to_string(served.plugin.log_path()).unwrap(),
        served.plugin.status().await.unwrap().to_string(),
        served.plugin.admin().get("/metrics").await.unwrap().text(),
    ];
    let exchanges = stage.fake().exchanges();
    let sent = exchanges.iter().find(|exchange| exchange.operation == "decrypt").unwrap();
    let sent: serde_json::Value = serde_json::from_str(&sent.request).unwrap();
    let key = account["private_key"].as_str().unwrap().lines().nth(1).unwrap();
    let secrets = [
        key,
        user["refresh_token"].as_str().unwrap(),
        user["client_secret"].as_str().unwrap(),
        sent["ciphertext"].as_str().unwrap(),
        std::str::from_utf8(PLAINTEXT).unwrap(),
        "ya29.",
        "eyJ",
    ];
    for text in shown {
        for secret in secrets {
            assert!(!text.contains(secret), "{BROKEN}{secret:?} in:\n{text}");
        }
    }
}
