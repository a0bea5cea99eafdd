//! The real binary on a real OpenBao against the whole conformance suite.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::process::Command;

use sidekey_conformance::{Hook, Launched, assert_conforms, program};
use support::{Stage, binary, shared};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_vault_conforms_to_kms_v2() {
    let stage = Stage::new("conformance").await;
    let config = stage.path("vault.yaml");
    std::fs::write(&config, stage.document().to_string()).unwrap();
    let mut serve = Command::new(program(binary()));
    serve.arg("--config").arg(&config);
    let endpoint = stage.endpoint(1).parse().unwrap();
    let launched = Launched::start(serve, endpoint).await.unwrap();

    let (audit, engine) = (shared().await.audit(), format!("{}/", stage.name));
    let key = stage.key.clone();
    let rotate = Hook::new(move || {
        let key = key.clone();
        async move { key.rotate().await.map(drop) }
    });
    let plugin = launched
        .plugin()
        .with_rotate(rotate)
        .with_backend_calls(move || std::future::ready(calls(&audit, &engine)));
    assert_conforms(&plugin).await;
}

/// The calls that the server itself has counted.
fn calls(audit: &sidekey_e2e::openbao::Audit, engine: &str) -> Result<u64, anyhow::Error> {
    Ok(u64::try_from(audit.count_below(engine)?)?)
}
