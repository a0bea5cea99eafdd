//! A login that is kept alive: renewed before it expires, and replaced when it must be.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use sidekey_e2e::eventually;
use sidekey_e2e::wait::PATIENCE;

use crate::support::{Pulse, Stage, shared};

/// Short, so that a test sees the end of it; long enough for a busy machine, and for a server
/// that counts the life of some tokens in whole seconds.
const LIFE: &str = "6s";

/// What a server has refused of a plugin that is always in time.
const NONE: [String; 0] = [];

#[tokio::test]
async fn a_token_is_renewed_before_it_expires() {
    let role = json!({"token_ttl": LIFE, "token_max_ttl": "1h"});
    let stage = Stage::on(shared().await, "renewal", &role).await.unwrap();
    let served = stage.serve().await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    let expiry = async || served.metric("kms_credentials_expiry_timestamp_seconds", &[]).await;
    let first = expiry().await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((first - now).abs() < 10.0, "the token lives {LIFE}, the metric says {}", first - now);
    // More than another life of the first token.
    eventually("the token has been renewed again and again", PATIENCE, async || {
        let now = expiry().await;
        anyhow::ensure!(now >= first + 7.0, "it expires at {now}, at first at {first}");
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
    let role = json!({"token_ttl": LIFE, "token_max_ttl": "9s"});
    let stage = Stage::on(shared().await, "maximum", &role).await.unwrap();
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
async fn a_token_that_cannot_be_renewed_is_replaced_in_time() {
    // A batch token cannot be renewed at all.
    let role = json!({"token_ttl": LIFE, "token_type": "batch"});
    let stage = Stage::on(shared().await, "batch", &role).await.unwrap();
    let served = stage.serve().await;
    let sealed = served.round_trip().await;
    let pulse = Pulse::start(&served.kms, &sealed);
    eventually("it has logged in anew, twice", PATIENCE, async || {
        anyhow::ensure!(stage.logins().await >= 3);
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
