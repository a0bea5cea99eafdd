//! Configurations, and builds that cannot load a library.

use std::process::Command;

use serde_json::json;

use crate::support::{Stage, quick};

#[tokio::test]
async fn every_mistake_is_reported_at_once() {
    let stage = Stage::new("mistakes").await;
    let mut entry = stage.entry(1);
    entry["kek"] = json!({"keyId": "0g", "algorithm": "AES-CBC"});
    entry["settings"] = json!({"maxSessions": 0, "hangLimit": "1s", "more": 1});
    entry["credentials"] = json!({"pinFile": "pin"});
    let config = stage.path("wrong.yaml");
    std::fs::write(&config, quick(&[entry]).to_string()).unwrap();
    let ran = stage.command().args(["check", "--config"]).arg(config).output().unwrap();
    assert_eq!(ran.status.code(), Some(64));
    let said = String::from_utf8_lossy(&ran.stderr) + String::from_utf8_lossy(&ran.stdout);
    for path in [
        "kek.tokenLabel",
        "kek.keyId",
        "kek.algorithm",
        "settings.library",
        "settings.maxSessions",
        "settings.hangLimit",
        "settings.more",
        "credentials.pinFile",
    ] {
        assert!(said.contains(path), "{path} is not in:\n{said}");
    }
}

#[test]
fn a_static_build_refuses_to_start_and_says_why() {
    // The one that cargo builds with this test, unless it was told otherwise.
    let program = env!("CARGO_BIN_EXE_sidekey-pkcs11");
    let arguments = ["--p11-lib=/l.so", "--p11-key-id=01", "--p11-slot=1", "--socket=/nowhere/s"];
    let ran = Command::new(program).arg("serve").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("static program cannot load a PKCS#11 library"), "{said}");
}
