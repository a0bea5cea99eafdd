//! Promise: the fake OKMS that the tests run against is one to OVHcloud's own client, and what is kept
//! of their conversation is what they say.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sidekey_e2e::Scratch;
use sidekey_e2e::fakes::{Exchange, RECORD};
use sidekey_e2e::golang::OKMS_CLIENT;
use sidekey_e2e::okms::{CLIENT, OkmsBackend};

const KEPT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../providers/okms/tests/fixtures/okms-sdk.json");
const ALL: [&str; 8] =
    ["create", "get", "update", "delete", "activate", "deactivate", "encrypt", "decrypt"];

#[tokio::test(flavor = "multi_thread")]
async fn ovhclouds_own_client_finds_okms_in_the_fake() {
    let client = OKMS_CLIENT.build_async().await.unwrap();
    let scratch = Scratch::new("okms-client").unwrap();
    let backend = OkmsBackend::start(&scratch, "first").await.unwrap();
    let fake = &backend.fake;
    let (url, domain) = (fake.url(), fake.service().domain.clone());
    fake.service().allow(CLIENT, &ALL);
    // Four keys make two pages.
    fake.service().page = 2;
    let (ca, pair) = (fake.ca().to_owned(), backend.certificate.clone());
    let ran = tokio::task::spawn_blocking(move || {
        let files = [&ca, &pair.certificate, &pair.key];
        Command::new(client).args([url, domain]).args(files).output().unwrap()
    });
    let ran = ran.await.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let saw: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let refusals = json!({
        "other context": "400 Argument",
        "no context": "400 Argument",
        "other key": "400 Argument",
        "no ciphertext": "400 Argument",
        "too long": "400 Argument",
        "context too long": "400 Argument",
        "other domain": "404 Not Found",
        "no key": "404 Not Found",
        "get no key": "404 Not Found",
        "other type": "400 Argument",
        "delete while active": "400 Argument",
        "deactivate": "none",
        "encrypt while deactivated": "400 Argument",
        "decrypt while deactivated": "400 Argument",
        "activate": "none",
        "compromise": "none",
        "delete": "none",
        "decrypt when deleted": "404 Not Found",
        "no certificate": "401 Authentication",
    });
    assert_eq!(saw["Refusals"], refusals);
    let labels = json!(["first", "etcd", "other", "third", "first", "former", "etcd", "third"]);
    assert_eq!(saw["Keys"], labels);
    assert_eq!(saw["States"], json!(["deactivated", "active", "compromised"]));
    assert_eq!(saw["Plaintext"], "a key of thirty-two bytes, nearly");
    is_as_kept(&fake.exchanges());
}

/// What was said is what the provider's tests compare with.
fn is_as_kept(said: &[Exchange]) {
    let fixture = Path::new(KEPT);
    if std::env::var_os(RECORD).is_some() {
        let text = serde_json::to_string_pretty(said).unwrap();
        std::fs::write(fixture, text + "\n").unwrap();
    }
    let kept: Vec<Exchange> =
        serde_json::from_str(&std::fs::read_to_string(fixture).unwrap()).unwrap();
    let (said, kept) = (said.iter().map(Exchange::shape), kept.iter().map(Exchange::shape));
    assert!(said.eq(kept), "the client says something else: look, and record it with {RECORD}=1");
}
