//! In the place of k8s-kms-plugin: its command line, and its data. The ciphertexts here are constructed
//! by our reading of its source: the plugin itself cannot be built here.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::softhsm::{LIBRARY, PIN};
use tonic::Code;

use crate::support::{PLAINTEXT, Served, Stage, quick};

async fn serve(stage: &Stage, more: &[&str]) -> Served {
    let socket = stage.endpoint(1);
    let mut spec = stage.spec().arg("serve").arg(format!("--p11-lib={LIBRARY}"));
    spec = spec.arg("--p11-label=kms").arg(format!("--p11-pin={PIN}"));
    spec = spec.arg(format!("--socket={}", socket.trim_start_matches("unix://")));
    spec = spec.arg("--admin=127.0.0.1:0");
    let spec = more.iter().fold(spec, |spec, argument| spec.arg(*argument));
    let mut served = stage.start(spec).await;
    served.plugin.wait_ready().await.unwrap();
    served
}

#[tokio::test]
async fn what_is_written_under_its_flags_has_its_form_and_its_pin_is_in_no_log() {
    let stage = Stage::new("flags").await;
    let served = serve(&stage, &["--p11-key-label=etcd"]).await;
    assert_eq!(served.wait_ok().await, "01", "the CKA_ID in hex");
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let text = String::from_utf8(sealed.ciphertext.to_vec()).unwrap();
    let parts: Vec<&str> = text.split('.').collect();
    let part = |index: usize| URL_SAFE_NO_PAD.decode(parts[index]).unwrap();
    assert_eq!(part(0), br#"{"alg":"dir","kid":"etcd","enc":"A256GCM"}"#);
    assert_eq!([part(1).len(), part(2).len(), part(3).len(), part(4).len()], [0, 16, 32, 16]);
    assert!(!stage.said().contains(PIN), "{}", stage.said());
}

#[tokio::test]
async fn its_data_is_read_under_a_configuration_of_our_own_and_nothing_altered_is() {
    let stage = Stage::new("adopted").await;
    let sealed = serve(&stage, &["--p11-key-label=etcd"]).await.kms.round_trip(PLAINTEXT).await;
    let sealed = sealed.unwrap();
    let served = stage.serve(&quick(&[stage.entry(1)])).await;
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    assert!(served.wait_ok().await.starts_with("pkcs11/"));
    let text = String::from_utf8(sealed.ciphertext.to_vec()).unwrap();
    let parts: Vec<&str> = text.split('.').collect();
    let other = URL_SAFE_NO_PAD.encode(br#"{"alg":"dir","kid":"other","enc":"A256GCM"}"#);
    for altered in [
        text.replacen(parts[0], &other, 1),
        format!("{text}."),
        text.replacen("..", ".AA.", 1),
        parts[..4].join("."),
        String::new() + ".",
    ] {
        let sealed = EncryptResponse { ciphertext: altered.clone().into(), ..sealed.clone() };
        let error = served.kms.decrypt(&sealed).await.unwrap_err();
        assert_eq!(error.code(), Code::DataLoss, "{altered}: {error}");
    }
    served.wait_ok().await;
}

#[tokio::test]
async fn an_old_key_is_read_on_the_same_socket() {
    let stage = Stage::new("old").await;
    stage.hsm.make_aes("newer", "02", 32).await.unwrap();
    let sealed = serve(&stage, &["--p11-key-id=01"]).await.kms.round_trip(PLAINTEXT).await.unwrap();
    let rotation = [
        "--p11-key-id=02",
        "rotation",
        "--old-p11-label=kms",
        "--old-p11-key-id=01",
        "--old-algorithm-family=aes-gcm",
    ];
    let pin = format!("--old-p11-pin={PIN}");
    let served = serve(&stage, &[&rotation[..], &[&pin]].concat()).await;
    assert_eq!(served.wait_ok().await, "02");
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    let error = served.kms.decrypt(&EncryptResponse { key_id: "03".into(), ..sealed }).await;
    assert_eq!(error.unwrap_err().code(), Code::FailedPrecondition);
}
