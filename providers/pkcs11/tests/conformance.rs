//! The real binary on a token of SoftHSM against the whole conformance suite and the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;
use sidekey_conformance::{CorpusKey, Hook, Launched, assert_conforms, assert_reads_corpus};
use sidekey_e2e::softhsm::SoftHsm;
use support::{LABEL, Stage, quick};

/// Of the second key.
const HMAC_ID: &str = "77";

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_pkcs11_conforms_to_kms_v2() {
    let stage = Arc::new(Stage::new("conformance").await);
    let mut document = quick(&[stage.entry(1)]);
    document["admin"] = "127.0.0.1:0".into();
    let config = stage.path("pkcs11.yaml");
    std::fs::write(&config, document.to_string()).unwrap();
    let mut serve = stage.command();
    serve.arg("--config").arg(&config);
    let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();

    let versions = Arc::new(AtomicUsize::new(1));
    let rotate = Hook::new(move || {
        let (stage, version) = (stage.clone(), versions.fetch_add(1, Ordering::Relaxed) + 1);
        async move { stage.hsm.make_aes(LABEL, &format!("{version:02}"), 32).await }
    });
    let counted = launched.clone();
    let calls = move || std::future::ready(backend_calls(&counted.log()));
    assert_conforms(&launched.plugin().with_rotate(rotate).with_backend_calls(calls)).await;
}

/// A key of the corpus.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// By CKA_ID, oldest first.
    keys: Vec<(String, Material)>,
    /// The second key of k8s-kms-plugin's `aes-cbc`, in base64.
    hmac: Option<String>,
}

/// In base64.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Material {
    Aes(String),
    /// In PKCS#8.
    Rsa(String),
}

impl State {
    /// Puts the keys into the token, and gives the forms that are written with the newest.
    async fn restore(&self, hsm: &SoftHsm) -> &'static [&'static str] {
        hsm.delete_aes("01").await.unwrap();
        let (mut forms, mut wrapping) = (&["sidekey"][..], None);
        for (id, material) in &self.keys {
            match material {
                Material::Aes(material) => {
                    let material = STANDARD.decode(material).unwrap();
                    hsm.import_aes(LABEL, id, &material).await.unwrap();
                    // Ours is written with keys of 32 bytes alone.
                    let is_short = material.len() < 32;
                    forms = if is_short { &["keysealer"] } else { &["keysealer", "sidekey"] };
                    wrapping = Some((id.as_str(), material));
                }
                Material::Rsa(material) => hsm.import_rsa(LABEL, id, material).await.unwrap(),
            }
        }
        if let Some(hmac) = &self.hmac {
            let (id, material) = wrapping.expect("an AES key");
            let hmac = STANDARD.decode(hmac).unwrap();
            hsm.import_hmac(HMAC_ID, &hmac, (id, &material)).await.unwrap();
        }
        forms
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_pkcs11_reads_what_was_stored_once() {
    let start = async |key: &CorpusKey| {
        let state: State = key.state();
        let stage = Stage::new("corpus").await;
        let forms = state.restore(&stage.hsm).await;
        let (mut entries, mut plugins) = (Vec::new(), Vec::new());
        for (id, form) in (1..).zip(forms) {
            let mut entry = stage.entry(id);
            entry["settings"]["format"] = json!(form);
            if let (_, Material::Rsa(_)) = &state.keys[0] {
                entry["kek"]["algorithm"] = json!("RSA-OAEP");
            }
            if state.hmac.is_some() {
                entry["settings"]["hmacId"] = json!(HMAC_ID);
                entry["settings"]["readWithoutIntegrity"] = json!(true);
            }
            entries.push(entry);
            plugins.push((*form, stage.endpoint(id).parse().unwrap()));
        }
        let config = stage.path("pkcs11.yaml");
        std::fs::write(&config, quick(&entries).to_string()).unwrap();
        let mut serve = stage.command();
        serve.arg("--config").arg(&config);
        let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();
        (plugins, (launched, stage))
    };
    assert_reads_corpus("pkcs11", start).await;
}

/// The calls that the provider itself counts: a library has no door to count them at.
fn backend_calls(log: &str) -> Result<u64, std::io::Error> {
    let (_, rest) = log.rsplit_once("admin listening address=").expect("an admin address");
    let mut stream = TcpStream::connect(rest.split_whitespace().next().unwrap_or_default())?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics)?;
    let calls = metrics.lines().filter(|line| line.starts_with("kms_backend_calls_total{"));
    Ok(calls.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}
