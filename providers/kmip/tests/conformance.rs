//! The real binary on a KMIP server against the whole conformance suite, or on another one if
//! `SIDEKEY_TEST_KMIP` and what a login needs are set; and against the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::process::Command;
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use serde_json::{Value, json};
use sidekey_conformance::{
    CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus, program,
};
use support::{Stage, binary, by_name, quick};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_kmip_conforms_to_kms_v2() {
    let stage = Arc::new(Stage::new("conformance").await);
    let config = stage.path("kmip.yaml");
    let outside = outside();
    let mut entry = stage.entry(1, by_name());
    if let Some(body) = &outside {
        for field in ["kek", "settings", "credentials"] {
            entry[field] = body[field].clone();
        }
    }
    std::fs::write(&config, quick(&[entry]).to_string()).unwrap();
    let mut serve = Command::new(program(binary()));
    serve.arg("--config").arg(&config);
    let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
    let (rotated, current) = (stage.clone(), Arc::new(Mutex::new(stage.key.clone())));
    let rotate = Hook::new(move || {
        let (stage, current) = (rotated.clone(), current.clone());
        async move {
            let old = current.lock().unwrap().clone();
            stage.server.change(&old, &json!({"Name": "kms-old"})).await?;
            let new = stage.server.create("kms", json!({})).await?;
            *current.lock().unwrap() = new;
            Ok::<_, anyhow::Error>(())
        }
    });
    let calls = move || {
        let stage = stage.clone();
        async move { Ok::<_, anyhow::Error>(stage.server.calls().await?.values().sum()) }
    };
    let plugin = launched.plugin();
    // Nobody outside rotates or counts for us.
    let plugin = match outside {
        Some(_) => plugin,
        None => plugin.with_rotate(rotate).with_backend_calls(calls),
    };
    assert_conforms(&plugin).await;
}

/// A key of the corpus.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    kek: Value,
    /// The newest version of KMIP 1 that the server speaks.
    newest: u8,
    /// Unique identifiers, names, and material in base64, oldest first.
    keys: Vec<(String, String, String)>,
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_kmip_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let State { kek, newest, keys } = key.state();
        let stage = Stage::speaking("corpus", newest).await;
        for (id, name, value) in keys {
            let fields = json!({"Name": name, "Value": value});
            stage.server.import(&id, &fields).await.unwrap();
        }
        let (mut entries, mut plugins) = (Vec::new(), Vec::new());
        // GCM needs the additional authenticated data of KMIP 1.4.
        let modes = [("cbc", "CBC"), ("ctr", "CTR"), ("gcm", "GCM")];
        let modes = &modes[..if newest < 4 { 2 } else { 3 }];
        for (id, (form, mode)) in (1..).zip(modes) {
            let mut entry = stage.entry(id, kek.clone());
            entry["settings"]["mode"] = json!(mode);
            entries.push(entry);
            plugins.push((*form, stage.endpoint(id).parse().unwrap()));
        }
        let config = stage.path("kmip.yaml");
        std::fs::write(&config, quick(&entries).to_string()).unwrap();
        let mut serve = Command::new(program(binary()));
        serve.arg("--config").arg(&config);
        let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
        (plugins, (launched, stage))
    };
    assert_reads_corpus("kmip", start).await;
}

/// A key of another server.
fn outside() -> Option<Value> {
    let variable = |name: &str| std::env::var(format!("SIDEKEY_TEST_KMIP{name}")).ok();
    let address = variable("")?;
    let needed = |name: &str| {
        variable(name).unwrap_or_else(|| panic!("SIDEKEY_TEST_KMIP needs SIDEKEY_TEST_KMIP{name}"))
    };
    Some(json!({
        "kek": {"name": needed("_NAME")},
        "settings": {
            "addresses": [address], "mode": variable("_MODE"), "caFile": variable("_CA_FILE"),
        },
        "credentials": {"certFile": needed("_CERT_FILE"), "keyFile": variable("_KEY_FILE")},
    }))
}
