//! The real binary on a fake Key Protect against the whole conformance suite, or on the real one if
//! `SIDEKEY_TEST_IBM` and what a login needs are set; and against the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::convert::Infallible;
use std::process::Command;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sidekey_conformance::{
    CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus, program,
};
use sidekey_core::Endpoint;
use support::{Stage, binary, quick};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_ibmcloud_conforms_to_kms_v2() {
    let stage = Arc::new(Stage::new("conformance").await);
    let outside = outside();
    let mut entry = stage.entry(1, &stage.key);
    if let Some(body) = &outside {
        for field in ["kek", "settings", "credentials"] {
            entry[field] = body[field].clone();
        }
    }
    let config = stage.path("ibmcloud.yaml");
    std::fs::write(&config, quick(&[entry]).to_string()).unwrap();
    let mut serve = Command::new(program(binary().to_str().unwrap()));
    serve.arg("--config").arg(&config);
    let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
    let plugin = launched.plugin();
    // Nobody outside rotates or counts for us.
    let plugin = if outside.is_some() {
        plugin
    } else {
        let rotated = stage.clone();
        let rotate = Hook::new(move || {
            rotated.fake.service().rotate(&rotated.key);
            std::future::ready(Ok::<_, Infallible>(()))
        });
        let calls = move || std::future::ready(Ok::<_, Infallible>(stage.fake.all_calls()));
        plugin.with_rotate(rotate).with_backend_calls(calls)
    };
    assert_conforms(&plugin).await;
}

/// A key of the corpus.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    instance: String,
    key: String,
    /// Ids and material, oldest first.
    versions: Vec<(String, [u8; 32])>,
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_ibmcloud_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let State { instance, key, versions } = key.state();
        let mut stage = Stage::new("corpus").await;
        stage.fake.service().restore(&instance, &key, &versions);
        stage.instance = instance;
        let config = stage.path("ibmcloud.yaml");
        std::fs::write(&config, quick(&[stage.entry(1, &key)]).to_string()).unwrap();
        let mut serve = Command::new(program(binary().to_str().unwrap()));
        serve.arg("--config").arg(&config);
        let endpoint: Endpoint = stage.endpoint(1).parse().unwrap();
        let launched = Launched::start(serve, endpoint.clone()).await.unwrap();
        (vec![("sidekey", endpoint)], (launched, stage))
    };
    assert_reads_corpus("ibmcloud", start).await;
}

/// A key of a real instance, or of another imitation of it.
fn outside() -> Option<Value> {
    let variable = |name: &str| std::env::var(format!("SIDEKEY_TEST_IBM{name}")).ok();
    let address = variable("")?;
    let needed = |name: &str| {
        variable(name).unwrap_or_else(|| panic!("SIDEKEY_TEST_IBM needs SIDEKEY_TEST_IBM{name}"))
    };
    Some(json!({
        "kek": {"instance": needed("_INSTANCE"), "key": needed("_KEY")},
        "settings": {
            "address": address, "tokenUrl": variable("_TOKEN_URL"), "caFile": variable("_CA_FILE"),
        },
        "credentials": {"apiKeyFile": needed("_API_KEY_FILE")},
    }))
}
