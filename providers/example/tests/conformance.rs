//! The real binary on an imitation of the KMS against the whole conformance suite.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::convert::Infallible;
use std::process::Command;
use std::sync::Arc;

use sidekey_conformance::{Hook, Launched, assert_conforms};
use support::Kms;

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_example_conforms_to_kms_v2() {
    let kms = Arc::new(Kms::start().await);
    let endpoint = format!("unix://{}", kms.path("kms.sock").display());
    let config = kms.path("example.yaml");
    std::fs::write(&config, kms.document(&endpoint).to_string()).unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_sidekey-example"));
    serve.arg("--config").arg(&config);
    let launched = Launched::start(serve, endpoint.parse().unwrap()).await.unwrap();

    let rotated = kms.clone();
    let rotate = Hook::new(move || {
        rotated.rotate();
        std::future::ready(Ok::<_, Infallible>(()))
    });
    let plugin = launched
        .plugin()
        .with_rotate(rotate)
        .with_backend_calls(move || std::future::ready(Ok::<_, Infallible>(kms.calls())));
    assert_conforms(&plugin).await;
}
