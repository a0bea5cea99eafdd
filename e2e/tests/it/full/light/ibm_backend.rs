//! Promise: the fake Key Protect that the tests run against is one to IBM's own client, and what
//! is kept of their conversation is what they say.

use std::process::Command;

use serde_json::{Value, json};
use sidekey_e2e::Scratch;
use sidekey_e2e::fakes::ibm::{Conversation, KeyProtect};
use sidekey_e2e::fakes::{Fake, RECORD};
use sidekey_e2e::golang::KEYPROTECT_CLIENT;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/fakes/ibm/go-client.json");
const ALL: [&str; 8] =
    ["create", "metadata", "wrap", "unwrap", "rotate", "disable", "enable", "delete"];

#[tokio::test(flavor = "multi_thread")]
async fn ibms_own_client_finds_key_protect_in_the_fake() {
    let client = KEYPROTECT_CLIENT.build_async().await.unwrap();
    let scratch = Scratch::new("keyprotect").unwrap();
    let mut service = KeyProtect::default();
    let (instance, api_key) = (service.instance(), service.api_key(&ALL));
    let fake = Fake::start(&scratch, "kms", service).await.unwrap();
    let file = scratch.path().join("api-key");
    std::fs::write(&file, api_key).unwrap();
    let (url, ca) = (fake.url(), fake.ca().to_owned());
    let ran = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(client);
        let token = format!("{url}/identity/token");
        command.args([url, token, instance]).arg(file).env("SSL_CERT_FILE", ca);
        command.output().unwrap()
    });
    let ran = ran.await.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let saw: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let refusals = json!({
        "other aad": "422 UNPROCESSABLE_CIPHERTEXT_ERR",
        "no ciphertext": "422 UNPROCESSABLE_CIPHERTEXT_ERR",
        "a second rotation": "409 KEY_ROTATION_NOT_PERMITTED",
        "disable": "none",
        "wrap while suspended": "409 KEY_ACTION_INVALID_STATE_ERR",
        "unwrap while suspended": "409 KEY_ACTION_INVALID_STATE_ERR",
        "enable": "none",
        "delete": "none",
        "unwrap when deleted": "410 KEY_DELETED_ERR",
        "metadata when deleted": "none",
        "metadata of no key": "404 KEY_NOT_FOUND_ERR",
        "wrap with a standard key": "400 KEY_ROOT_REQ_ERR",
    });
    assert_eq!(saw["Refusals"], refusals);
    assert_eq!((&saw["Rewrapped"], &saw["OldVersion"]), (&json!(true), &saw["Key"]));
    assert_ne!(saw["NewVersion"], saw["OldVersion"]);

    let said = Conversation::of(&fake);
    if std::env::var_os(RECORD).is_some() {
        std::fs::write(KEPT, serde_json::to_string_pretty(&said).unwrap() + "\n").unwrap();
        return;
    }
    let kept = Conversation::kept();
    assert_eq!(said.shapes(), kept.shapes(), "run it with {RECORD}=1 if that is meant to be");
}
