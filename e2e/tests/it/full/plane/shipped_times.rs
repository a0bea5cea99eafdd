//! Promise: with the times that are shipped, the loss of a plugin is felt a minute after the last
//! proof that the key works.

use std::time::{Duration, Instant};

use anyhow::ensure;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{LocalPlugin, Scratch, Shim};
use tonic::Code;

use crate::plane::shim_faults::first_error;

#[tokio::test]
async fn a_coast_with_the_shipped_times_lasts_a_minute() {
    let scratch = Scratch::new("shipped").unwrap();
    let mut plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let config = ShimConfig::new(1).write(1, plugin.endpoint());
    let mut shim = Shim::start(&scratch, "shim", &config).await.unwrap();
    let client = KmsClient::connect(&shim.endpoint()).await.unwrap();
    let key_id = client.status().await.unwrap().key_id;

    // A proof, of which the shim hears with its next probe.
    client.round_trip(b"now").await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    plugin.process().kill().unwrap();
    let killed = Instant::now();
    let error = first_error(&client, &key_id).await.unwrap();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let coasted = killed.elapsed();
    // The proof may be the provider's own, half a minute before.
    assert!(coasted >= Duration::from_secs(20), "only {coasted:?}");
    assert!(coasted < Duration::from_secs(65), "as long as {coasted:?}");
    let status = shim.status().await.unwrap();
    assert!(status["healthy"] == false && status["reason"].is_string(), "{status}");

    plugin.restart().await.unwrap();
    let returned = Instant::now();
    let healed = shim.process().wait_until("Status heals", PATIENCE, async || {
        ensure!(client.status().await?.key_id == key_id);
        Ok(())
    });
    healed.await.unwrap();
    println!("error {coasted:?} after the loss, well {:?} after the return", returned.elapsed());
    client.round_trip(b"afterwards").await.unwrap();
}
