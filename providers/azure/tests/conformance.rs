//! The real binary against the whole conformance suite, on a fake of Azure: no Key Vault runs here.
//! The same runs against a real vault where `SIDEKEY_TEST_AZURE` names one.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::convert::Infallible;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use sidekey_conformance::{Hook, Launched, assert_conforms, program};
use sidekey_e2e::Scratch;
use sidekey_e2e::fakes::azure::KeyKind;
use support::{HSM, Stage, VAULT, binary};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_azure_conforms_to_kms_v2_with_an_rsa_key() {
    conforms(Stage::with("conformance", VAULT, KeyKind::Rsa(2048)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_azure_conforms_to_kms_v2_with_an_aes_key_of_a_managed_hsm() {
    conforms(Stage::with("conformance-hsm", HSM, KeyKind::Aes).await).await;
}

async fn conforms(stage: Stage) {
    let (path, endpoint) = (stage.path("azure.yaml"), stage.endpoint(1));
    let launched = serve(&path, &stage.document(), &endpoint).await;
    let stage = Arc::new(stage);
    let rotated = stage.clone();
    let rotate = Hook::new(move || {
        rotated.rotate();
        std::future::ready(Ok::<_, Infallible>(()))
    });
    let calls = move || {
        let called = ["get", "encrypt", "decrypt"].map(|name| stage.fake.calls(name));
        std::future::ready(Ok::<u64, Infallible>(called.iter().sum()))
    };
    assert_conforms(&launched.plugin().with_rotate(rotate).with_backend_calls(calls)).await;
}

async fn serve(config: &Path, document: &Value, endpoint: &str) -> Launched {
    std::fs::write(config, document.to_string()).unwrap();
    let mut serve = Command::new(program(binary()));
    serve.arg("--config").arg(config);
    Launched::start(serve, endpoint.parse().unwrap()).await.unwrap()
}

/// `SIDEKEY_TEST_AZURE` is the URL of a key, `https://vault/keys/name`; the others say who logs in.
#[tokio::test(flavor = "multi_thread")]
async fn sidekey_azure_conforms_to_kms_v2_on_a_vault_that_is_given() {
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(url) = variable("SIDEKEY_TEST_AZURE") {
        conforms_at(&url, &variable).await;
    }
}

async fn conforms_at(url: &str, variable: &dyn Fn(&str) -> Option<String>) {
    let (vault, key) = url.split_once("/keys/").expect("https://vault/keys/name");
    let scratch = Scratch::new("azure").unwrap();
    let endpoint = format!("unix://{}", scratch.path().join("kms.sock").display());
    let credentials = json!({
        "tenantId": variable("SIDEKEY_TEST_AZURE_TENANT"),
        "clientId": variable("SIDEKEY_TEST_AZURE_CLIENT"),
        "clientSecretFile": variable("SIDEKEY_TEST_AZURE_SECRET_FILE"),
    });
    let document = json!({
        "admin": "127.0.0.1:0", "probe": {"interval": "300ms", "timeout": "2s", "coast": "9s"},
        "keys": [{
            "id": 1, "type": "azure", "listen": endpoint,
            "kek": {"vault": vault, "key": key}, "credentials": credentials,
        }],
    });
    let launched = serve(&scratch.path().join("azure.yaml"), &document, &endpoint).await;
    assert_conforms(&launched.plugin()).await;
}
