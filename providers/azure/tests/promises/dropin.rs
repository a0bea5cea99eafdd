//! In the place of Azure/kubernetes-kms and of OpenShift's fork: their flags, files and data. What
//! they stored once is in the corpus of `providers/conformance`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::fakes::azure::TENANT;
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::ports::Port;

use crate::support::{CLIENT, KEY, PLAINTEXT, SECRET, Served, Stage, VAULT, quick};

/// The flags of HyperShift, and what a test has to add.
async fn hypershift(stage: &Stage, socket: &str, [health, metrics]: [&Port; 2]) -> Served {
    let content = json!({"tenantId": TENANT, "aadClientId": CLIENT, "aadClientSecret": SECRET});
    let file = stage.write("azure.json", &content.to_string());
    let proxy = stage.fake.plain();
    let listen = stage.path(socket);
    // The test's client looks there.
    std::os::unix::fs::symlink(&listen, stage.path("kms-1.sock")).unwrap();
    let flags = [
        format!("--keyvault-name={}", VAULT.split('.').next().unwrap()),
        format!("--key-name={KEY}"),
        format!("--key-version={}", stage.version),
        format!("--listen-addr=unix://{}", listen.display()),
        format!("--healthz-port={}", health.number()),
        format!("--metrics-addr={}", metrics.number()),
        "--healthz-path=/healthz".to_owned(),
        format!("--config-file-path={}", file.display()),
        "-v=1".to_owned(),
        "--proxy-mode".to_owned(),
        format!("--proxy-address={}", proxy.ip()),
        format!("--proxy-port={}", proxy.port()),
        "--admin=127.0.0.1:0".to_owned(),
        "--probe-interval=300ms".to_owned(),
    ];
    stage.launch(&flags, &[]).await
}

fn annotations(sealed: &EncryptResponse) -> Vec<(String, String)> {
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    let mut list: Vec<_> =
        sealed.annotations.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    list.sort();
    list
}

fn theirs() -> Vec<(String, String)> {
    [("algorithm.azure.akv.io", "RSA-OAEP-256"), ("version.azure.akv.io", "1")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

/// As the replaced plugins name a version.
fn hashed(version: &str) -> String {
    let url = format!("https://{VAULT}/keys/{KEY}/{version}");
    sidekey_core::hex(&sidekey_core::sha256(url.as_bytes()))
}

#[tokio::test]
async fn under_their_flags_data_is_written_as_the_plugin_in_whose_place_it_is_reads_it() {
    for (socket, size) in [("azurekms.socket", 342), ("azurekmsactive.socket", 256)] {
        let stage = Stage::new("flags").await;
        let (health, metrics) = (Port::free().unwrap(), Port::free().unwrap());
        let mut served = hypershift(&stage, socket, [&health, &metrics]).await;
        assert_eq!(served.wait_ok().await, hashed(&stage.version), "{}", served.log());
        let sealed = served.round_trip().await;
        assert_eq!((sealed.ciphertext.len(), annotations(&sealed)), (size, theirs()));
        let is_text =
            sealed.ciphertext.iter().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(b));
        assert_eq!(is_text, size == 342);
        if is_text {
            assert_eq!(URL_SAFE_NO_PAD.decode(&sealed.ciphertext).unwrap().len(), 256);
        }
        assert!(served.log().contains("in plain text"), "the proxy mode is warned of");
        for (port, path) in [(&health, "/healthz"), (&metrics, "/metrics")] {
            HttpClient::plain(port.address()).get(path).await.unwrap().ok().unwrap();
        }
    }
}

#[tokio::test]
async fn what_one_way_of_starting_wrote_every_other_one_reads() {
    let stage = Stage::new("between").await;
    let mut written = Vec::new();
    for format in ["text", "binary", "sidekey"] {
        let mut key = stage.key(1, &stage.by_secret());
        key["kek"]["version"] = json!(stage.version);
        key["settings"]["format"] = json!(format);
        let mut served = stage.serve_document(&quick(&[key])).await;
        written.push(served.round_trip().await);
        for sealed in &written {
            served.reads(sealed).await;
        }
        served.plugin.process().kill().unwrap();
    }
    let ours = written.pop().unwrap();
    let marked = ours.annotations.get("version.azure.akv.io").map(|value| &value[..]);
    assert_eq!(marked, Some(&b"sidekey/1"[..]), "their programs refuse it by name");
    assert_ne!(ours.key_id, written[0].key_id);
    // A configuration of our own without a version, on a key that has moved on.
    let first = stage.version.clone();
    stage.rotate();
    let mut key = stage.key(1, &stage.by_secret());
    key["settings"]["formerVersions"] = json!([first]);
    let served = stage.serve_document(&quick(&[key])).await;
    for sealed in [&written[0], &written[1], &ours] {
        assert_eq!(&served.kms.decrypt(sealed).await.unwrap()[..], PLAINTEXT);
    }
}
