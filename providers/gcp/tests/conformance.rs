//! The real binary against the whole conformance suite, on a fake of Cloud KMS or on a service that
//! is given from outside (`SIDEKEY_TEST_GCP`); and against the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::process::Command;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sidekey_conformance::{
    CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus, program,
};
use support::{Stage, binary, quick};

/// The key of a service from outside.
const OUTSIDE: &str = "SIDEKEY_TEST_GCP";
const OUTSIDE_URL: &str = "SIDEKEY_TEST_GCP_URL";
const OUTSIDE_CREDENTIALS: &str = "SIDEKEY_TEST_GCP_CREDENTIALS";

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_gcp_conforms_to_kms_v2() {
    let stage = Arc::new(Stage::new("conformance").await);
    let mut key = stage.key(1, &stage.backend.key);
    let outside = std::env::var(OUTSIDE).ok();
    if let Some(name) = &outside {
        key["kek"]["key"] = name.as_str().into();
        key["settings"] = match std::env::var(OUTSIDE_URL) {
            Ok(url) => json!({"endpoint": url}),
            Err(_) => json!({}),
        };
        key["credentials"] = match std::env::var(OUTSIDE_CREDENTIALS) {
            Ok(file) => json!({"file": file}),
            Err(_) => json!({"anonymous": true}),
        };
    }
    let config = stage.path("gcp.yaml");
    std::fs::write(&config, quick(&[key]).to_string()).unwrap();
    let mut serve = Command::new(program(binary()));
    serve.arg("--config").arg(&config);
    let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
    let plugin = launched.plugin();
    let plugin = if outside.is_none() {
        let rotated = stage.clone();
        let rotate = Hook::new(move || {
            rotated.rotate();
            std::future::ready(Ok::<_, std::convert::Infallible>(()))
        });
        let counted = stage.clone();
        let calls = move || {
            let calls = counted.fake().gateway().requests();
            std::future::ready(Ok::<_, std::convert::Infallible>(calls))
        };
        plugin.with_rotate(rotate).with_backend_calls(calls)
    } else {
        plugin
    };
    assert_conforms(&plugin).await;
}

/// A key of the corpus.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    key: String,
    /// Of its versions, oldest first.
    materials: Vec<[u8; 32]>,
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_gcp_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let State { key, materials } = key.state();
        let stage = Stage::new("corpus").await;
        stage.fake().service().restore_key(&key, &materials);
        let (mut keys, mut plugins) = (Vec::new(), Vec::new());
        let forms = [
            ("sidekey", None),
            ("plugin", Some(json!({}))),
            ("plugin-suffix", Some(json!({"keySuffix": "2"}))),
        ];
        for (id, (form, format)) in (1..).zip(forms) {
            let mut entry = stage.key(id, &key);
            if let Some(format) = format {
                entry["settings"]["pluginFormat"] = format;
            }
            keys.push(entry);
            plugins.push((form, stage.endpoint(id).parse().unwrap()));
        }
        let config = stage.path("gcp.yaml");
        std::fs::write(&config, quick(&keys).to_string()).unwrap();
        let mut serve = Command::new(program(binary()));
        serve.arg("--config").arg(&config);
        let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
        (plugins, (launched, stage))
    };
    assert_reads_corpus("gcp", start).await;
}
