//! In the place of k8s-cloudkms-plugin: its flags, its ports, its data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::fakes::gcp::{DECRYPT, ENCRYPT, MACHINE};
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::ports::Port;

use crate::support::{PLAINTEXT, Served, Stage, quick};

/// Asks the fake, which asks nobody who he is, as that plugin asks Cloud KMS.
async fn ask(stage: &Stage, name: &str, verb: &str, field: &str, data: &[u8]) -> Value {
    let http = HttpClient::plain(stage.fake().plain());
    let body = json!({field: STANDARD.encode(data)});
    http.post(&format!("/v1/{name}:{verb}"), &body).await.unwrap().json().unwrap()
}

/// What that plugin stores.
async fn written_by_the_plugin(stage: &Stage, key: &str, suffix: &str) -> EncryptResponse {
    let answer = ask(stage, key, "encrypt", "plaintext", PLAINTEXT).await;
    let ciphertext = STANDARD.decode(answer["ciphertext"].as_str().unwrap()).unwrap();
    let key_id = format!("{}{suffix}", answer["name"].as_str().unwrap());
    EncryptResponse { ciphertext: ciphertext.into(), key_id, ..EncryptResponse::default() }
}

/// What that plugin makes of what is stored: it takes the key from the key_id, and looks at nothing
/// else.
async fn read_by_the_plugin(stage: &Stage, sealed: &EncryptResponse) -> Option<Vec<u8>> {
    let key = sealed.key_id.split("/cryptoKeyVersions/").next().unwrap();
    let key = key.starts_with("projects/").then(|| key.split(':').next().unwrap())?;
    let answer = ask(stage, key, "decrypt", "ciphertext", &sealed.ciphertext).await;
    STANDARD.decode(answer["plaintext"].as_str()?).ok()
}

/// Serves with that plugin's flags, before an emulator as it knows one.
async fn serve(stage: &Stage, more: &[String]) -> Served {
    let mut flags = vec![
        format!("--key-uri={}", stage.backend.key),
        format!("--path-to-unix-socket={}", stage.path("kms-1.sock").display()),
        "--integration-test".to_owned(),
        format!("--fake-kms-port={}", stage.fake().plain().port()),
        "--logtostderr".to_owned(),
        "--v=5".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
        "--probe-interval=500ms".to_owned(),
    ];
    flags.extend_from_slice(more);
    stage.serve_flags(&flags, &[]).await
}

#[tokio::test]
async fn its_flags_ports_and_data_are_taken_and_the_way_back_stays_open() {
    let stage = Stage::new("dropin").await;
    stage.fake().service().emulates = true;
    let other = stage.fake().service().create_key("former");
    let (health, metrics) = (Port::free().unwrap(), Port::free().unwrap());
    let old = written_by_the_plugin(&stage, &stage.backend.key, "").await;
    let suffixed = written_by_the_plugin(&stage, &stage.backend.key, ":1").await;
    let former = written_by_the_plugin(&stage, &other, "").await;
    let more = [
        format!("--healthz-port={}", health.number()),
        format!("--metrics-port={}", metrics.number()),
        "--key-suffix=2".to_owned(),
    ];
    let served = serve(&stage, &more).await;
    for sealed in [&old, &suffixed, &former] {
        served.reads(sealed).await;
    }
    let ours = served.round_trip().await;
    assert_eq!(ours.key_id, format!("{}/cryptoKeyVersions/1:2", stage.backend.key));
    assert!(ours.annotations.is_empty(), "{:?}", ours.annotations);
    assert_eq!(read_by_the_plugin(&stage, &ours).await.as_deref(), Some(&PLAINTEXT[..]));
    for (port, path) in [(&health, "/healthz"), (&metrics, "/metrics")] {
        HttpClient::plain(port.address()).get(path).await.unwrap().ok().unwrap();
    }
    drop(served);
    // A configuration of our own reads it all, and closes the way with its first write.
    let served = stage.serve().await;
    for sealed in [&old, &suffixed, &ours] {
        served.reads(sealed).await;
    }
    let bound = served.round_trip().await;
    assert_eq!(read_by_the_plugin(&stage, &bound).await, None);
    drop(served);
    serve(&stage, &more).await.reads(&bound).await;
}

#[tokio::test]
async fn a_rotation_is_announced_in_its_form_and_without_a_right_to_look() {
    let stage = Stage::new("dropin-rotation").await;
    stage.fake().service().allow(sidekey_e2e::gcp::ACCOUNT, &[ENCRYPT, DECRYPT]);
    let mut key = stage.key(1, &stage.backend.key);
    key["settings"]["pluginFormat"] = json!({});
    let mut served = stage.serve_document(&quick(&[key]), &[]).await;
    let old = served.round_trip().await;
    assert_eq!(old.key_id, format!("{}/cryptoKeyVersions/1", stage.backend.key));
    stage.rotate();
    let moved = served.wait_moved(&old.key_id).await;
    assert_eq!(moved, format!("{}/cryptoKeyVersions/2", stage.backend.key));
    served.reads(&old).await;
}

#[tokio::test]
async fn the_cloud_providers_configuration_leads_to_a_token() {
    let stage = Stage::new("gce").await;
    stage.fake().service().allow("cluster", &[ENCRYPT, DECRYPT]);
    let text = format!(
        "[global]\ntoken-url = {}/authenticate\ntoken-body = \"{{\\\"name\\\": \\\"cluster\\\"}}\"\n",
        stage.fake().url()
    );
    let file = stage.path("gce.conf");
    stage.write(&file, &text);
    let mut key = stage.key(1, &stage.backend.key);
    key["credentials"] = json!({"gceConfig": file});
    let host = stage.fake().plain().to_string();
    let env = [("GCE_METADATA_HOST", host.as_str())];
    let mut served = stage.serve_document(&quick(&[key]), &env).await;
    served.round_trip().await;
    assert_eq!((stage.fake().calls("metadata"), stage.fake().calls("gce")), (1, 1));
    // Without an address in it the machine's own token is taken.
    stage.fake().service().allow(MACHINE, &[ENCRYPT, DECRYPT]);
    stage.write(&file, "[global]\nproject-id = example\n");
    served.logs("new files or settings are in use", 1).await;
    served.round_trip().await;
    assert_eq!(stage.fake().calls("gce"), 1);
}
