//! The real binary against the whole conformance suite, on a fake of Azure, or on a real vault if
//! `SIDEKEY_TEST_AZURE` and what a login needs are set; and against the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::convert::Infallible;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sidekey_conformance::{
    CorpusKey, Hook, Launched, Plugin, assert_conforms, assert_reads_corpus, program,
};
use sidekey_e2e::fakes::azure::KeyKind;
use support::{HSM, KEY, Stage, VAULT, binary, quick};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_azure_conforms_to_kms_v2_with_an_rsa_key() {
    let stage = Stage::with("conformance", VAULT, KeyKind::Rsa(2048)).await;
    let (config, endpoint) = (stage.path("azure.yaml"), stage.endpoint(1));
    let plugin = match outside(&endpoint) {
        // Nobody outside rotates or counts for us.
        Some(document) => launched(&config, &document, &endpoint).await.plugin(),
        None => plugin(stage).await,
    };
    assert_conforms(&plugin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_azure_conforms_to_kms_v2_with_an_aes_key_of_a_managed_hsm() {
    let plugin = plugin(Stage::with("conformance-hsm", HSM, KeyKind::Aes).await).await;
    assert_conforms(&plugin).await;
}

/// A key of the corpus.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: String,
    material: Material,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Material {
    /// The fake's own RSA key of so many bits.
    Rsa(usize),
    /// The AES key of a Managed HSM.
    Aes([u8; 32]),
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_azure_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let State { version, material } = key.state();
        let (host, kind, forms) = match material {
            Material::Rsa(bits) => (VAULT, KeyKind::Rsa(bits), &["sidekey", "text", "binary"][..]),
            Material::Aes(key) => (HSM, KeyKind::KnownAes(key), &["sidekey"][..]),
        };
        let stage = Stage::with(key.name(), host, kind).await;
        stage.fake.service().restore(KEY, &version, kind).unwrap();
        let (mut keys, mut plugins) = (Vec::new(), Vec::new());
        for (id, form) in (1..).zip(forms) {
            let mut key = stage.key(id, &stage.by_secret());
            key["kek"]["version"] = json!(version);
            key["settings"]["format"] = json!(form);
            keys.push(key);
            plugins.push((*form, stage.endpoint(id).parse().unwrap()));
        }
        let (config, document) = (stage.path("azure.yaml"), quick(&keys));
        let launched = launched(&config, &document, &stage.endpoint(1)).await;
        (plugins, (launched, stage))
    };
    assert_reads_corpus("azure", start).await;
}

/// A key of a real vault, by its URL, `https://VAULT/keys/NAME`.
fn outside(endpoint: &str) -> Option<Value> {
    let variable = |name: &str| std::env::var(format!("SIDEKEY_TEST_AZURE{name}")).ok();
    let url = variable("")?;
    let (vault, key) = url.split_once("/keys/").expect("https://VAULT/keys/NAME");
    Some(quick(&[json!({
        "id": 1, "type": "azure", "listen": endpoint,
        "kek": {"vault": vault, "key": key},
        "credentials": {
            "tenantId": variable("_TENANT"), "clientId": variable("_CLIENT"),
            "clientSecretFile": variable("_SECRET_FILE"),
        },
    })]))
}

/// The program that is judged, with a configuration: the release build where that is asked for.
async fn launched(config: &Path, document: &Value, endpoint: &str) -> Launched {
    std::fs::write(config, document.to_string()).unwrap();
    let mut serve = Command::new(program(binary()));
    serve.arg("--config").arg(config);
    Launched::start(serve, endpoint.parse().unwrap()).await.unwrap()
}

/// The stage lives as long as the hooks do.
async fn plugin(stage: Stage) -> Plugin {
    let launched = launched(&stage.path("azure.yaml"), &stage.document(), &stage.endpoint(1)).await;
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
    launched.plugin().with_rotate(rotate).with_backend_calls(calls)
}
