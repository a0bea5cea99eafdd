//! Credentials that change, end and are refused while the plugin runs.

use std::time::Duration;

use serde_json::json;
use sidekey_e2e::fakes::gcp::{DECRYPT, ENCRYPT, LOOK, MACHINE, Tokens};
use sidekey_e2e::gcp::ACCOUNT;
use tonic::Code;

use crate::support::{PLAINTEXT, Pulse, Stage, failed, quick};

const ALL: [&str; 3] = [ENCRYPT, DECRYPT, LOOK];
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn new_credentials_are_taken_over_without_a_failed_request_and_bad_ones_change_nothing() {
    let stage = Stage::new("swapped").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    let (file, second) = (&stage.backend.credentials, "second@example.iam.gserviceaccount.com");
    stage.write(file, "half of a fi");
    served.logs("holds no Google credentials", 1).await;
    let account = stage.fake().service().tokens.service_account(second, &stage.fake().url());
    stage.write(file, &account.to_string());
    // It may log in, but not decrypt.
    served.logs("roles/cloudkms.cryptoKeyEncrypterDecrypter", 1).await;
    stage.fake().service().allow(second, &ALL);
    served.logs("new files or settings are in use", 1).await;
    pulse.stop().await;
    // The first account is not needed any more.
    stage.fake().service().allow(ACCOUNT, &[]);
    served.reads(&sealed).await;
    assert_eq!(served.round_trip().await.key_id, sealed.key_id);
}

#[tokio::test]
async fn a_federated_token_is_followed_when_its_file_changes() {
    let stage = Stage::new("federated").await;
    let (token, principal) = Tokens::subject_token("kms", HOUR);
    let path = stage.path("token");
    stage.write(&path, &token);
    let file = {
        let mut service = stage.fake().service();
        service.allow(&principal, &ALL);
        service.tokens.external(&json!({"file": path}), None, &stage.fake().url())
    };
    stage.write(&stage.backend.credentials, &file.to_string());
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    assert_eq!(stage.fake().calls("exchange"), 1);
    let pulse = Pulse::start(&served.kms, &sealed);
    // An empty one changes nothing; a good one is exchanged.
    stage.write(&path, "");
    served.logs("is empty", 1).await;
    stage.write(&path, &Tokens::subject_token("kms", HOUR).0);
    served.logs("new files or settings are in use", 1).await;
    pulse.stop().await;
    assert_eq!(stage.fake().calls("exchange"), 2);
}

#[tokio::test]
async fn tokens_are_renewed_before_they_end() {
    let stage = Stage::new("renewed").await;
    stage.fake().service().tokens.life = Duration::from_secs(30);
    let served = stage.serve().await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    let fake = stage.fake();
    let renewed = sidekey_e2e::eventually("tokens", sidekey_e2e::wait::PATIENCE, async || {
        let tokens = fake.calls("token");
        anyhow::ensure!(tokens >= 2, "{tokens} tokens");
        Ok(())
    });
    renewed.await.unwrap();
    pulse.stop().await;
}

#[tokio::test]
async fn the_metadata_server_is_found_where_nothing_is_configured() {
    let stage = Stage::new("metadata").await;
    stage.fake().service().allow(MACHINE, &ALL);
    let host = stage.fake().plain().to_string();
    let mut key = stage.key(1, &stage.backend.key);
    key["credentials"] = json!({});
    let served = stage.serve_document(&quick(&[key]), &[("GCE_METADATA_HOST", &host)]).await;
    served.round_trip().await;
    assert_eq!(stage.fake().calls("metadata"), 1);
}

#[tokio::test]
async fn the_file_that_googles_variable_names_is_taken_and_watched() {
    let stage = Stage::new("variable").await;
    let mut key = stage.key(1, &stage.backend.key);
    key["credentials"] = json!({});
    let file = stage.backend.credentials.display().to_string();
    let env = [("GOOGLE_APPLICATION_CREDENTIALS", file.as_str())];
    let mut served = stage.serve_document(&quick(&[key]), &env).await;
    served.round_trip().await;
    let account = stage.fake().service().tokens.user(ACCOUNT, &stage.fake().url());
    stage.write(&stage.backend.credentials, &account.to_string());
    served.logs("new files or settings are in use", 1).await;
    served.round_trip().await;
}

#[tokio::test]
async fn the_file_that_gcloud_writes_is_found_and_watched() {
    let stage = Stage::new("gcloud").await;
    let mut key = stage.key(1, &stage.backend.key);
    key["credentials"] = json!({});
    let dir = stage.path(".config/gcloud");
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("application_default_credentials.json");
    std::fs::copy(&stage.backend.credentials, &file).unwrap();
    // The binary's HOME is the directory of the test.
    let mut served = stage.serve_document(&quick(&[key]), &[]).await;
    served.round_trip().await;
    let account = stage.fake().service().tokens.user(ACCOUNT, &stage.fake().url());
    stage.write(&file, &account.to_string());
    served.logs("new files or settings are in use", 1).await;
    served.round_trip().await;
    assert_eq!(stage.fake().calls("metadata"), 0);
}

#[tokio::test]
async fn without_a_bundle_in_the_settings_the_one_of_the_environment_is_trusted() {
    let stage = Stage::new("bundle").await;
    let mut key = stage.key(1, &stage.backend.key);
    key["settings"].as_object_mut().unwrap().remove("caFile");
    let ca = stage.fake().ca().display().to_string();
    let served = stage.serve_document(&quick(&[key]), &[("SSL_CERT_FILE", &ca)]).await;
    served.round_trip().await;
}

#[tokio::test]
async fn a_right_that_was_taken_away_is_told_and_what_it_takes() {
    let stage = Stage::new("rights").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    stage.fake().service().allow(ACCOUNT, &[ENCRYPT, LOOK]);
    let words = [DECRYPT, "roles/cloudkms.cryptoKeyEncrypterDecrypter"];
    failed(served.kms.decrypt(&sealed).await, Code::PermissionDenied, &words);
    served.wait_bad(Code::PermissionDenied, DECRYPT).await;
    stage.fake().service().allow(ACCOUNT, &ALL);
    served.wait_ok().await;
    assert_eq!(&served.kms.decrypt(&sealed).await.unwrap()[..], PLAINTEXT);
}
