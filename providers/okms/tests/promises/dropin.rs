//! In the place of okms-k8s-encryption-provider: its flags, its variables, its data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::fakes::{Asked, Service};
use sidekey_e2e::okms::CLIENT;
use tonic::Code;

use crate::support::{LABEL, PLAINTEXT, Served, Stage, quick};

/// Asks the fake as that plugin asks OKMS: without a context.
fn ask(stage: &Stage, key: &str, verb: &'static str, sent: Value) -> Value {
    let mut service = stage.fake().service();
    let asked = Asked {
        method: Method::POST,
        path: format!("/api/{}/v1/servicekey/{key}/{verb}", service.domain),
        query: String::new(),
        headers: HeaderMap::new(),
        body: sent.to_string().into(),
        client: Some(CLIENT.to_owned()),
    };
    serde_json::from_str(&service.answer(verb, &asked).body).unwrap()
}

/// What that plugin stores; its key_id is as it was typed, or as OKMS writes it.
fn written_by_the_plugin(stage: &Stage, key: &str, key_id: String) -> EncryptResponse {
    let sent = json!({"context": null, "plaintext": STANDARD.encode(PLAINTEXT)});
    let answer = ask(stage, key, "encrypt", sent);
    let ciphertext = answer["ciphertext"].as_str().unwrap().as_bytes().to_vec().into();
    EncryptResponse { ciphertext, key_id, ..EncryptResponse::default() }
}

/// What that plugin makes of what is stored: it takes the key from the key_id.
fn read_by_the_plugin(stage: &Stage, sealed: &EncryptResponse) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(&sealed.ciphertext).unwrap();
    let sent = json!({"context": null, "ciphertext": text});
    let answer = ask(stage, &sealed.key_id.to_lowercase(), "decrypt", sent);
    STANDARD.decode(answer["plaintext"].as_str()?).ok()
}

/// Serves with that plugin's flags, of which some may stand in the environment.
async fn serve(stage: &Stage, key: &[&str], env: &[(&str, &str)]) -> Served {
    let mut flags = vec![
        "-protocol".to_owned(),
        "rest".to_owned(),
        format!("-okms-id={}", stage.fake().service().domain),
        format!("--client-cert={}", stage.backend.certificate.certificate.display()),
        format!("--client-key={}", stage.backend.certificate.key.display()),
        format!("--sock={}", stage.path("kms-1.sock").display()),
        "--timeout=10s".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
        "--probe-interval=300ms".to_owned(),
    ];
    flags.extend(key.iter().map(|&flag| flag.to_owned()));
    let (url, ca) = (format!("{}/", stage.fake().url()), stage.fake().ca().display().to_string());
    let address = [("OKMS_SERV_ADDR", url.as_str()), ("OKMS_CA_CERT", ca.as_str())];
    stage.serve_flags(&flags, &[&address, env].concat()).await
}

#[tokio::test]
async fn its_flags_variables_and_data_are_taken_and_the_way_back_stays_open() {
    let stage = Stage::new("dropin").await;
    let typed = stage.backend.key.to_uppercase();
    let other = stage.fake().service().create("former");
    let own = written_by_the_plugin(&stage, &stage.backend.key, typed.clone());
    let bare = stage.backend.key.replace('-', "");
    let bare = written_by_the_plugin(&stage, &stage.backend.key, bare);
    let former = written_by_the_plugin(&stage, &other, other.clone());
    // A socket that a killed plugin has left is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(stage.path("kms-1.sock")).unwrap());
    let served = serve(&stage, &[], &[("OKMS_KEY_ID", &typed)]).await;
    for sealed in [&own, &bare, &former] {
        served.kms.reads(sealed, PLAINTEXT).await.unwrap();
    }
    let ours = served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_eq!((&ours.key_id, ours.annotations.len()), (&typed, 0));
    assert_eq!(read_by_the_plugin(&stage, &ours).as_deref(), Some(&PLAINTEXT[..]));
    // What panics there, or asks for the nil UUID, is refused here.
    for (key_id, ciphertext) in [("", &b"x"[..]), ("etcd", b"x"), (&*typed, b"x")] {
        let ciphertext = ciphertext.to_vec().into();
        let odd = EncryptResponse { ciphertext, key_id: key_id.into(), ..Default::default() };
        served.kms.decrypt(&odd).await.unwrap_err();
    }
    drop(served);
    // A configuration of our own reads it all where it says so, and closes the way with its first write.
    let mut key = stage.key(1, &stage.backend.key);
    let served = stage.serve_document(&quick(&[key.clone()])).await;
    for sealed in [&own, &bare, &ours] {
        served.kms.reads(sealed, PLAINTEXT).await.unwrap();
    }
    let error = served.kms.decrypt(&former).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(error.message().contains("settings.alsoReads"), "{error}");
    let bound = served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_eq!(read_by_the_plugin(&stage, &bound), None);
    drop(served);
    key["settings"]["alsoReads"] = json!([other.to_uppercase()]);
    let served = stage.serve_document(&quick(&[key])).await;
    served.kms.reads(&former, PLAINTEXT).await.unwrap();
    drop(served);
    let served = serve(&stage, &["--encryption-key-id", &typed], &[]).await;
    served.kms.reads(&bound, PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_label_is_announced_as_that_plugin_announces_it_and_followed() {
    let stage = Stage::new("dropin-label").await;
    let label = format!("--encryption-key-label={LABEL}");
    let served = serve(&stage, &[&label, "--debug"], &[]).await;
    let old = served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_eq!(old.key_id, stage.backend.key, "as OKMS writes it");
    let new = stage.repoint();
    assert_eq!(served.wait_moved(&old.key_id).await, new);
    served.kms.reads(&old, PLAINTEXT).await.unwrap();
    let fresh = served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_eq!(fresh.key_id, new);
    assert_eq!(read_by_the_plugin(&stage, &fresh).as_deref(), Some(&PLAINTEXT[..]));
    // That plugin prints requests and answers there, plaintexts too.
    let log = stage.log();
    assert!(log.contains("DEBUG"), "{log}");
    let secrets = [STANDARD.encode(PLAINTEXT), String::from_utf8(PLAINTEXT.to_vec()).unwrap()];
    for secret in secrets {
        assert!(!log.contains(&secret), "{secret} in {log}");
    }
}
