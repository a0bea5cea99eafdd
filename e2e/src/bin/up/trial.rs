//! A round trip through the socket, as kube-apiserver would make it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use sidekey_core::Endpoint;
use sidekey_core::client::connect;
use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest, StatusRequest};

/// A round trip that went well.
#[derive(Debug)]
pub(crate) struct Trial {
    /// What Status announced and Encrypt used.
    pub(crate) key_id: String,
    /// For all three calls and the connection.
    pub(crate) took: Duration,
}

/// Status, Encrypt and Decrypt, each answer checked.
pub(crate) async fn round_trip(endpoint: &Endpoint) -> Result<Trial> {
    let begin = Instant::now();
    let mut client = connect(endpoint).await?;
    let status = client.status(StatusRequest {}).await.context("Status failed")?.into_inner();
    ensure!(status.healthz == "ok", "Status says {:?} instead of \"ok\"", status.healthz);
    let plaintext = Bytes::from_static(b"thirty-two bytes for round trips");
    let request = EncryptRequest { plaintext: plaintext.clone(), uid: "cargo-up".to_owned() };
    let sealed = client.encrypt(request).await.context("Encrypt failed")?.into_inner();
    ensure!(
        sealed.key_id == status.key_id,
        "Encrypt used key_id {:?}, but Status announced {:?}",
        sealed.key_id,
        status.key_id
    );
    let request = DecryptRequest {
        ciphertext: sealed.ciphertext,
        uid: "cargo-up".to_owned(),
        key_id: sealed.key_id,
        annotations: sealed.annotations,
    };
    let opened = client.decrypt(request).await.context("Decrypt failed")?.into_inner();
    ensure!(opened.plaintext == plaintext, "Decrypt did not give back what Encrypt was given");
    Ok(Trial { key_id: status.key_id, took: begin.elapsed() })
}
