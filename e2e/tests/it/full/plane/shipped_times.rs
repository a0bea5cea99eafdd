//! Promise: with the times that are shipped, the loss of a plugin, or of the KMS behind it, is felt
//! a minute after the last proof that the key works.
//!
//! The KMS is moto; a gateway in front of it cuts it off.

use std::time::{Duration, Instant};

use anyhow::ensure;
use sidekey_e2e::aws::{AwsPlugin, Moto};
use sidekey_e2e::coast::Coast;
use sidekey_e2e::gateway::{Fault, Gateway};
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

#[tokio::test]
async fn a_lost_kms_is_felt_a_minute_after_the_last_proof_of_its_provider() {
    let scratch = Scratch::new("shipped").unwrap();
    let moto = Moto::start(scratch.path()).await.unwrap();
    let key = moto.owner().create_key().await.unwrap();
    let gateway = Gateway::start(moto.address()).await.unwrap();
    let url = format!("http://{}", gateway.address());
    let plugin = AwsPlugin::start(&scratch, "plugin", &key, &url).await.unwrap();
    let config = ShimConfig::new(1).write(1, plugin.endpoint("kms"));
    let mut shim = Shim::start(&scratch, "shim", &config).await.unwrap();
    let client = KmsClient::connect(&shim.endpoint()).await.unwrap();
    let provider = KmsClient::connect(&plugin.endpoint("kms")).await.unwrap();
    let sealed = client.round_trip(b"before").await.unwrap();

    gateway.inject(Fault::Cut);
    // The shim asks every 3.6 s, and waits ten seconds at most.
    let probe = (Duration::from_secs(4), Duration::from_secs(10));
    let lasts = Duration::from_secs(60);
    let coast = Coast { shim: &client, provider: &provider, lasts, probe };
    let error = coast.ends(&sealed.key_id).await.unwrap();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let status = plugin.status().await.unwrap();
    assert_eq!(status["keys"][0]["healthy"], false, "{status}");

    gateway.heal();
    let healed = shim.process().wait_until("Status heals", PATIENCE, async || {
        ensure!(client.status().await?.key_id == sealed.key_id);
        Ok(())
    });
    healed.await.unwrap();
    assert_eq!(client.decrypt(&sealed).await.unwrap(), "before");
}
