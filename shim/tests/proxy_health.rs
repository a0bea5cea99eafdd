//! Promises of the proxy to a shim that judges the plugin's health: the age of the plugin's proof
//! is passed on, what never reached the plugin is told from what it answered, and a caller in a
//! hurry costs nobody the connection.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use sidekey_core::kms::PROOF_AGE;
use support::plugin::Plugin;
use support::{SHIM, World, decrypt, dial, eventually, metric, status};
use tokio::sync::Semaphore;
use tonic::{Code, Request};

const UNREACHED: &str = "sidekey-unreached";

#[tokio::test]
async fn the_age_of_the_plugins_proof_is_passed_on() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    let answer = client.status(status()).await.unwrap();
    assert!(answer.metadata().get(PROOF_AGE).is_none());
    *plugin.manners.proof_age.lock().unwrap() = Some(1234);
    let answer = client.status(status()).await.unwrap();
    assert_eq!(answer.metadata().get(PROOF_AGE).unwrap(), "1234");
}

#[tokio::test]
async fn what_never_reached_the_plugin_is_told_from_what_it_answered() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    plugin.manners.fails_with(Some((Code::Unavailable, "the KMS is away")));
    let answered = client.status(status()).await.unwrap_err();
    assert_eq!(answered.code(), Code::Unavailable);
    assert!(answered.metadata().get(UNREACHED).is_none());
    plugin.kill().await;
    let unreached = client.status(status()).await.unwrap_err();
    assert_eq!(unreached.code(), Code::Unavailable);
    assert!(unreached.metadata().get(UNREACHED).is_some());
}

#[tokio::test]
async fn a_caller_in_a_hurry_does_not_cost_others_the_connection() {
    let world = World::new();
    let plugin = Plugin::start(&world.path("kms.sock")).await;
    let proxy = world.proxy().await;
    let mut client = dial(&world.client(&[SHIM]), proxy.address()).await.unwrap();
    client.status(status()).await.unwrap();
    *plugin.manners.gate.lock().unwrap() = Some(Arc::new(Semaphore::new(0)));
    let mut request = Request::new(decrypt(b"x"));
    request.set_timeout(Duration::from_millis(20));
    client.decrypt(request).await.unwrap_err();
    let timeouts = "socket_proxy_socket_errors_total{reason=\"timeout\"}";
    eventually("it is timed out", async || (metric(&proxy, timeouts) == 1).then_some(())).await;
    assert_eq!(metric(&proxy, "socket_proxy_plugin_connected"), 1);
}
