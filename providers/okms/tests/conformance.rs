//! The real binary against the whole conformance suite: on a fake OKMS, or on a real one if
//! `SIDEKEY_TEST_OKMS` and what a login needs are set; on a KMIP server; and against the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::convert::Infallible;
use std::process::Command;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use sidekey_conformance::{
    CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus, program,
};
use sidekey_e2e::Scratch;
use sidekey_e2e::kmip::KmipServer;
use support::{LABEL, Stage, binary, quick};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_okms_conforms_to_kms_v2() {
    let stage = Arc::new(Stage::new("conformance").await);
    let outside = outside();
    let mut key = stage.labelled(1);
    if let Some(body) = &outside {
        for field in ["kek", "settings", "credentials"] {
            key[field] = body[field].clone();
        }
    }
    let config = stage.path("okms.yaml");
    std::fs::write(&config, quick(&[key]).to_string()).unwrap();
    let mut serve = Command::new(program(binary()));
    serve.arg("--config").arg(&config);
    let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
    let plugin = launched.plugin();
    // Nobody outside rotates or counts for us.
    let plugin = if outside.is_some() {
        plugin
    } else {
        let (rotated, current) = (stage.clone(), Mutex::new(stage.backend.key.clone()));
        let rotate = Hook::new(move || {
            let mut service = rotated.fake().service();
            let new = service.create("next");
            let old = std::mem::replace(&mut *current.lock().unwrap(), new.clone());
            service.repoint(LABEL, &old, &new);
            std::future::ready(Ok::<_, Infallible>(()))
        });
        let calls = move || std::future::ready(Ok::<_, Infallible>(stage.fake().all_calls()));
        plugin.with_rotate(rotate).with_backend_calls(calls)
    };
    assert_conforms(&plugin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_okms_conforms_to_kms_v2_by_kmip() {
    let scratch = Scratch::new("conformance-kmip").unwrap();
    let server = Arc::new(KmipServer::start(&scratch, "kmip").await.unwrap());
    let current = Arc::new(Mutex::new(server.create(LABEL, json!({})).await.unwrap()));
    let endpoint = format!("unix://{}", scratch.path().join("kms.sock").display());
    let (at, of) = (server.address().to_string(), server.identities());
    let key = json!({
        "id": 1, "type": "okms", "listen": endpoint,
        "kek": {"protocol": "kmip", "label": LABEL},
        "settings": {"address": at, "caFile": of.ca()},
        "credentials": {"certFile": of.client().certificate, "keyFile": of.client().key},
    });
    let config = scratch.path().join("okms.yaml");
    std::fs::write(&config, quick(&[key]).to_string()).unwrap();
    let mut serve = Command::new(program(binary()));
    serve.arg("--config").arg(&config);
    let launched = Launched::start(serve, endpoint.parse().unwrap()).await.unwrap();
    let rotated = server.clone();
    let rotate = Hook::new(move || {
        let (server, current) = (rotated.clone(), current.clone());
        async move {
            let new = server.create("next", json!({})).await?;
            let old = std::mem::replace(&mut *current.lock().unwrap(), new.clone());
            server.change(&old, &json!({"Name": "former"})).await?;
            server.change(&new, &json!({"Name": LABEL})).await
        }
    });
    let calls = move || {
        let server = server.clone();
        async move { server.calls().await.map(|calls| calls.values().sum()) }
    };
    let plugin = launched.plugin().with_rotate(rotate).with_backend_calls(calls);
    assert_conforms(&plugin).await;
}

/// A key of the corpus.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    kek: Value,
    /// By KMIP: the newest version of KMIP 1 that the server speaks.
    newest: Option<u8>,
    /// Ids, labels, and material in base64, oldest first.
    keys: Vec<(String, String, String)>,
}

impl State {
    /// Puts the keys into their KMS, and gives a key of the configuration.
    async fn restore(&self, stage: &Stage) -> (Value, Option<KmipServer>) {
        match self.newest {
            None => (self.restore_rest(stage), None),
            Some(newest) => {
                let server = KmipServer::speaking(&stage.scratch, "kmip", newest).await.unwrap();
                (self.restore_kmip(&server).await, Some(server))
            }
        }
    }

    fn restore_rest(&self, stage: &Stage) -> Value {
        let mut service = stage.fake().service();
        self.kek["okmsId"].as_str().unwrap().clone_into(&mut service.domain);
        for (id, label, material) in &self.keys {
            let material = STANDARD.decode(material).unwrap();
            service.restore(id, label, material[..].try_into().unwrap());
        }
        drop(service);
        stage.backend.document(0, &self.kek, "")
    }

    async fn restore_kmip(&self, server: &KmipServer) -> Value {
        for (id, label, material) in &self.keys {
            server.import(id, &json!({"Name": label, "Value": material})).await.unwrap();
        }
        let (identities, address) = (server.identities(), server.address().to_string());
        let shown = identities.client();
        json!({
            "type": "okms", "kek": self.kek,
            "settings": {"address": address, "caFile": identities.ca()},
            "credentials": {"certFile": shown.certificate, "keyFile": shown.key},
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_okms_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let state: State = key.state();
        let stage = Stage::new("corpus").await;
        let (key, server) = state.restore(&stage).await;
        let (mut keys, mut plugins) = (Vec::new(), Vec::new());
        // Ours needs the additional authenticated data of KMIP 1.4.
        let forms = ["plugin", "sidekey"];
        let forms = &forms[..if state.newest.is_some_and(|newest| newest < 4) { 1 } else { 2 }];
        for (id, form) in (1..).zip(forms) {
            let mut key = key.clone();
            key["id"] = json!(id);
            key["listen"] = json!(stage.endpoint(id));
            key["settings"]["pluginFormat"] = json!(*form == "plugin");
            key["settings"]["alsoReads"] = json!(["*"]);
            keys.push(key);
            plugins.push((*form, stage.endpoint(id).parse().unwrap()));
        }
        let config = stage.path("okms.yaml");
        std::fs::write(&config, quick(&keys).to_string()).unwrap();
        let mut serve = Command::new(program(binary()));
        serve.arg("--config").arg(&config);
        let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
        (plugins, (launched, stage, server))
    };
    assert_reads_corpus("okms", start).await;
}

/// A key of a real domain, or of another imitation of one.
fn outside() -> Option<Value> {
    let variable = |name: &str| std::env::var(format!("SIDEKEY_TEST_OKMS{name}")).ok();
    let address = variable("")?;
    let needed = |name: &str| {
        variable(name).unwrap_or_else(|| panic!("SIDEKEY_TEST_OKMS needs SIDEKEY_TEST_OKMS{name}"))
    };
    Some(json!({
        "kek": {"okmsId": needed("_ID"), "key": needed("_KEY")},
        "settings": {"address": address, "caFile": variable("_CA_FILE")},
        "credentials": {"certFile": needed("_CERT_FILE"), "keyFile": needed("_KEY_FILE")},
    }))
}
