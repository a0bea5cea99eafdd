//! A login that is kept alive: renewed before it expires, and replaced when it must be.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde_json::{Value, json};
use sidekey_e2e::eventually;
use sidekey_e2e::wait::PATIENCE;

use crate::support::{Pulse, Stage, shared};

/// Long beside what a renewal takes on the busiest machine, which has a quarter of it at least:
/// it begins at two thirds, give or take.
const LIFE: Duration = Duration::from_secs(24);

/// What a server has refused of a plugin that is always in time.
const NONE: [String; 0] = [];

fn life() -> String {
    format!("{}s", LIFE.as_secs())
}

#[tokio::test]
async fn a_token_is_renewed_before_it_expires() {
    let role = json!({"token_ttl": life(), "token_max_ttl": "1h"});
    let stage = Stage::on(shared().await, "renewal", &role).await.unwrap();
    let served = stage.serve().await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    let expiry = async || served.metric("kms_credentials_expiry_timestamp_seconds", &[]).await;
    let first = expiry().await;
    let left = first - SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!(left <= LIFE.as_secs_f64() + 1.0, "the token lives {LIFE:?}, the metric says {left}");
    let token = eventually("the server has renewed it", PATIENCE, async || {
        let tokens = stage.tokens().await?;
        let renewed = tokens.into_iter().find(|token| token["last_renewal"].is_string());
        renewed.context("no token was renewed")
    })
    .await
    .unwrap();
    assert!(token["ttl"].as_u64() > Some(0), "it was renewed while it lived: {token}");
    eventually("the metric follows", PATIENCE, async || {
        let now = expiry().await;
        anyhow::ensure!(now > first, "it expires at {now}, at first at {first}");
        Ok(())
    })
    .await
    .unwrap();
    pulse.stop().await;
    assert_eq!(stage.refusals().await, NONE, "a token was used after its end");
    assert_eq!(stage.logins().await, 1, "renewed, not replaced");
}

#[tokio::test]
async fn a_token_at_its_maximum_is_replaced_by_a_new_login() {
    // It can be renewed, but not for longer than it lives anyway.
    let role = json!({"token_ttl": life(), "token_max_ttl": life()});
    is_replaced_in_time("maximum", &role).await;
}

#[tokio::test]
async fn a_token_that_cannot_be_renewed_is_replaced_in_time() {
    // A batch token cannot be renewed at all.
    let role = json!({"token_ttl": life(), "token_type": "batch"});
    is_replaced_in_time("batch", &role).await;
}

/// No call fails, and none is made with a token after its end.
async fn is_replaced_in_time(name: &str, role: &Value) {
    let stage = Stage::on(shared().await, name, role).await.unwrap();
    let served = stage.serve().await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    eventually("it has logged in anew", PATIENCE, async || {
        let logins = stage.logins().await;
        anyhow::ensure!(logins >= 2, "{logins} logins");
        Ok(())
    })
    .await
    .unwrap();
    pulse.stop().await;
    assert_eq!(stage.refusals().await, NONE, "a token was used after its end");
}

#[tokio::test]
async fn a_plugin_that_ends_gives_its_token_back() {
    let stage = Stage::new("goodbye").await;
    let mut served = stage.serve().await;
    served.round_trip().await;
    let ended = served.plugin.process().terminate(Duration::from_secs(20)).await.unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(stage.logins().await, 1);
    assert_eq!(stage.bao.revoke_logins("goodbye").await.unwrap(), 0, "its token is still good");
}
