//! The real binary on a token of SoftHSM against the whole conformance suite.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sidekey_conformance::{Hook, Launched, assert_conforms};
use support::{LABEL, Stage, quick};

#[tokio::test(flavor = "multi_thread")]
async fn sidekey_pkcs11_conforms_to_kms_v2() {
    let stage = Arc::new(Stage::new("conformance").await);
    let mut document = quick(&[stage.entry(1)]);
    document["admin"] = "127.0.0.1:0".into();
    let config = stage.path("pkcs11.yaml");
    std::fs::write(&config, document.to_string()).unwrap();
    let mut serve = stage.command();
    serve.arg("--config").arg(&config);
    let launched = Launched::start(serve, stage.endpoint(1).parse().unwrap()).await.unwrap();

    let versions = Arc::new(AtomicUsize::new(1));
    let rotate = Hook::new(move || {
        let (stage, version) = (stage.clone(), versions.fetch_add(1, Ordering::Relaxed) + 1);
        async move { stage.hsm.make_aes(LABEL, &format!("{version:02}"), 32).await }
    });
    let counted = launched.clone();
    let calls = move || std::future::ready(backend_calls(&counted.log()));
    assert_conforms(&launched.plugin().with_rotate(rotate).with_backend_calls(calls)).await;
}

/// The calls that the provider itself counts: a library has no door to count them at.
fn backend_calls(log: &str) -> Result<u64, std::io::Error> {
    let (_, rest) = log.rsplit_once("admin listening address=").expect("an admin address");
    let mut stream = TcpStream::connect(rest.split_whitespace().next().unwrap_or_default())?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics)?;
    let calls = metrics.lines().filter(|line| line.starts_with("kms_backend_calls_total{"));
    Ok(calls.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}
