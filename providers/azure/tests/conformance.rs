//! The real binary against the whole conformance suite, on a fake of Azure: no Key Vault runs here.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::convert::Infallible;
use std::sync::Arc;

use sidekey_conformance::{Hook, Plugin, assert_conforms};
use sidekey_e2e::fakes::azure::KeyKind;
use support::{HSM, Stage, VAULT, launched};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_azure_conforms_to_kms_v2_with_an_rsa_key() {
    let plugin = plugin(Stage::with("conformance", VAULT, KeyKind::Rsa(2048)).await).await;
    assert_conforms(&plugin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_azure_conforms_to_kms_v2_with_an_aes_key_of_a_managed_hsm() {
    let plugin = plugin(Stage::with("conformance-hsm", HSM, KeyKind::Aes).await).await;
    assert_conforms(&plugin).await;
}

/// The stage lives as long as the hooks do.
async fn plugin(stage: Stage) -> Plugin {
    let launched = launched(&stage.path("azure.yaml"), &stage.document(), &stage.endpoint(1)).await;
    let stage = Arc::new(stage);
    let rotated = stage.clone();
    let rotate = Hook::new(move || {
        rotated.rotate();
        std::future::ready(Ok::<_, Infallible>(()))
    });
    let calls = move || {
        let called = ["get", "encrypt", "decrypt"].map(|name| stage.fake.calls(name));
        std::future::ready(Ok::<u64, Infallible>(called.iter().sum()))
    };
    launched.plugin().with_rotate(rotate).with_backend_calls(calls)
}
