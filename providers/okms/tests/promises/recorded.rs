//! What OVHcloud's own client and the fake said to each other once (see `tests/fixtures`), so that
//! provider and fake do not share one misreading of the API.

use std::collections::BTreeSet;

use serde_json::Value;
use sidekey_core::{Provider, Sealed};
use sidekey_e2e::fakes::Exchange;
use sidekey_e2e::fakes::okms::State;

use crate::support::{PLAINTEXT, Stage, call, connect};

/// Recorded by `full::light::okms_client` with okms-sdk-go.
const RECORDED: &str = include_str!("../fixtures/okms-sdk.json");

/// That client writes what it does not say as null.
fn shape(exchange: &Exchange) -> Value {
    let mut shape = exchange.shape();
    if let Some(request) = shape["request"].as_object_mut() {
        request.retain(|_, value| !value.is_null());
    }
    shape
}

#[tokio::test]
async fn requests_and_answers_have_the_form_that_ovhclouds_own_client_has_proven() {
    let recorded: Vec<Exchange> = serde_json::from_str(RECORDED).unwrap();
    let known: Vec<Value> = recorded.iter().map(shape).collect();
    assert!(known.len() > 30, "there is something to compare with");
    let stage = Stage::new("recorded").await;
    stage.fake().service().page = 2;
    stage.fake().service().create("second");
    stage.fake().service().create("third");
    let (client, labelled) = (stage.connect().await, connect(&stage.labelled(1)).await.unwrap());
    let key_id = client.key_id().await.unwrap();
    let sealed = client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    client.decrypt(&sealed, &call()).await.unwrap();
    labelled.key_id().await.unwrap();
    let mut plugin = stage.key(1, &stage.backend.key);
    plugin["settings"]["pluginFormat"] = true.into();
    let plugin = connect(&plugin).await.unwrap();
    let plain = plugin.encrypt(&plugin.key_id().await.unwrap(), PLAINTEXT, &call()).await.unwrap();
    plugin.decrypt(&plain, &call()).await.unwrap();
    let moved = Sealed { key_id: plain.key_id, ..sealed.clone() };
    client.decrypt(&moved, &call()).await.unwrap_err();
    stage.fake().service().set_state(&stage.backend.key, State::Deactivated);
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
    client.decrypt(&sealed, &call()).await.unwrap_err();
    let mut compared = BTreeSet::new();
    for exchange in stage.fake().exchanges() {
        let said = shape(&exchange);
        assert!(known.contains(&said), "OVHcloud's client never said or heard this: {said:#}");
        compared.insert((exchange.operation, exchange.status));
    }
    assert_eq!(compared.len(), 6, "{compared:?}");
}
