//! The real binary on a real OpenBao against the whole conformance suite and the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::process::Command;

use serde::Deserialize;
use serde_json::json;
use sidekey_conformance::{
    CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus, program,
};
use support::{Stage, binary, quick, shared};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_vault_conforms_to_kms_v2() {
    let stage = Stage::new("conformance").await;
    let config = stage.path("vault.yaml");
    std::fs::write(&config, stage.document().to_string()).unwrap();
    let mut serve = Command::new(program(binary()));
    serve.arg("--config").arg(&config);
    let endpoint = stage.endpoint(1).parse().unwrap();
    let launched = Launched::start(serve, endpoint).await.unwrap();

    let (audit, engine) = (shared().await.audit(), format!("{}/", stage.name));
    let key = stage.key.clone();
    let rotate = Hook::new(move || {
        let key = key.clone();
        async move { key.rotate().await.map(drop) }
    });
    let plugin = launched
        .plugin()
        .with_rotate(rotate)
        .with_backend_calls(move || std::future::ready(calls(&audit, &engine)));
    assert_conforms(&plugin).await;
}

/// A key of the corpus.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    mount: String,
    /// What `transit/backup` gave.
    backup: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_vault_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let State { mount, backup } = key.state();
        let stage = Stage::new(&mount).await;
        let order = json!({"backup": backup, "force": true});
        stage.bao.write(&stage.key.path("restore"), &order).await.unwrap();
        let (mut keys, mut plugins) = (Vec::new(), Vec::new());
        for (id, (form, binds)) in (1..).zip([("bound", true), ("unbound", false)]) {
            let mut entry = stage.app_role_key(id, &stage.key);
            entry["settings"]["associatedData"] = json!(binds);
            keys.push(entry);
            plugins.push((form, stage.endpoint(id).parse().unwrap()));
        }
        let config = stage.path("vault.yaml");
        std::fs::write(&config, quick(&keys).to_string()).unwrap();
        let mut serve = Command::new(program(binary()));
        serve.arg("--config").arg(&config);
        let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
        (plugins, (launched, stage))
    };
    assert_reads_corpus("vault", start).await;
}

/// The calls that the server itself has counted.
fn calls(audit: &sidekey_e2e::openbao::Audit, engine: &str) -> Result<u64, anyhow::Error> {
    Ok(u64::try_from(audit.count_below(engine)?)?)
}
