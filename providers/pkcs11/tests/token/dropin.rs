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
async fn altered_data_of_a_short_key_is_told_as_that() {
    let stage = Stage::new("short").await;
    stage.hsm.make_aes("short", "10", 16).await.unwrap();
    let served = serve(&stage, &["--p11-key-label=short"]).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    let mut text = sealed.ciphertext.to_vec();
    let place = text.len() - 10;
    text[place] = if text[place] == b'A' { b'B' } else { b'A' };
    let altered = EncryptResponse { ciphertext: text.into(), ..sealed };
    let error = served.kms.decrypt(&altered).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
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

/// A ciphertext of `aes-cbc`, with the MAC of all of it or, as early releases had it, of nothing.
/// Both are made by the token.
async fn aes_cbc(stage: &Stage, is_early: bool) -> EncryptResponse {
    let file = |name: &str| stage.path(name).to_str().unwrap().to_owned();
    let (data, made) = (file("data"), file("made"));
    let iv: Vec<u8> = (0..16).collect();
    std::fs::write(&data, PLAINTEXT).unwrap();
    let cbc = ["--encrypt", "--mechanism", "AES-CBC", "--iv", "000102030405060708090a0b0c0d0e0f"];
    let files = ["--input-file", &data, "--output-file", &made];
    stage.hsm.keys(&[&cbc[..], &["--id", "01"], &files].concat()).await.unwrap();
    // A block of zeros too many.
    let sealed = [&*std::fs::read(&made).unwrap(), &[0; 16]].concat();
    let length = URL_SAFE_NO_PAD.encode(32_u64.to_be_bytes());
    let header = format!(
        r#"{{"alg":"A256CBC","kid":"01","typ":"JWT","cty":"JWT","_thales_aad":"{length}","enc":"A256CBC"}}"#
    );
    let header = URL_SAFE_NO_PAD.encode(header);
    let count = (header.len() as u64).to_be_bytes();
    let all = [header.as_bytes(), &iv, &sealed, &count].concat();
    std::fs::write(&data, if is_early { Vec::new() } else { all }).unwrap();
    std::fs::remove_file(&made).unwrap();
    let sign = ["--sign", "--mechanism", "SHA256-HMAC", "--id", "77"];
    stage.hsm.keys(&[&sign[..], &files].concat()).await.unwrap();
    let tag = std::fs::read(&made).unwrap();
    let [iv, sealed, tag] = [iv, sealed, tag].map(|part| URL_SAFE_NO_PAD.encode(part));
    let text = format!("{header}..{iv}.{sealed}.{tag}");
    EncryptResponse {
        ciphertext: text.into(),
        key_id: "01".to_owned(),
        annotations: Default::default(),
    }
}

#[tokio::test]
async fn aes_cbc_is_read_and_what_nothing_authenticates_only_where_that_is_asked_for() {
    let stage = Stage::new("cbc").await;
    let mac = ["--keygen", "--key-type", "GENERIC:32", "--label", "mac", "--id", "77"];
    stage.hsm.keys(&mac).await.unwrap();
    let (sound, early) = (aes_cbc(&stage, false).await, aes_cbc(&stage, true).await);
    let mut entry = stage.entry(1);
    entry["settings"]["hmacId"] = "77".into();
    let served = stage.serve(&quick(&[entry.clone()])).await;
    served.kms.reads(&sound, PLAINTEXT).await.unwrap();
    let refused = served.kms.decrypt(&early).await.unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss, "{refused}");
    assert!(refused.message().contains("readWithoutIntegrity"), "{refused}");
    let mut altered = sound.clone();
    let mut bytes = altered.ciphertext.to_vec();
    // In the part that is encrypted.
    let place = bytes.len() - 70;
    bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
    altered.ciphertext = bytes.into();
    assert_eq!(served.kms.decrypt(&altered).await.unwrap_err().code(), Code::DataLoss);
    drop(served);
    entry["settings"]["readWithoutIntegrity"] = true.into();
    let served = stage.serve(&quick(&[entry])).await;
    served.kms.reads(&early, PLAINTEXT).await.unwrap();
    served.kms.reads(&sound, PLAINTEXT).await.unwrap();
    assert_eq!(served.kms.decrypt(&altered).await.unwrap_err().code(), Code::DataLoss);
    assert!(stage.said().contains("data without integrity was decrypted"), "{}", stage.said());
}
