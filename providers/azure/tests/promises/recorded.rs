//! What Microsoft's own client, azkeys with azidentity, has said to the fake and heard from it: the
//! provider says the same, and the fake answers it the same. `cargo verify --all` records it anew.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sidekey_e2e::fakes::Exchange;
use sidekey_e2e::fakes::azure::KeyKind;

use crate::support::{HSM, Stage, VAULT, calm};

/// Whether everything that `shape` sends was sent in `other`, and both were answered the same.
fn is_part_of(shape: &Value, other: &Value) -> bool {
    let sent = |shape: &Value| shape["request"].as_object().cloned().unwrap_or_default();
    let (mut fewer, mut more) = (shape.clone(), other.clone());
    let (ours, theirs) = (sent(shape), sent(other));
    for shape in [&mut fewer, &mut more] {
        shape["request"].take();
    }
    fewer == more && ours.iter().all(|(name, value)| theirs.get(name) == Some(value))
}

#[tokio::test]
async fn the_provider_asks_as_microsofts_client_does_and_is_answered_as_it_was() {
    let kept = include_str!("../fixtures/azkeys.json");
    let kept: Vec<Exchange> = serde_json::from_str(kept).unwrap();
    let kept: Vec<Value> = kept.iter().map(Exchange::shape).collect();
    for (host, kind) in [(VAULT, KeyKind::Rsa(2048)), (HSM, KeyKind::Aes)] {
        let stage = Stage::with("recorded", host, kind).await;
        let served = stage.serve_document(&calm(&[stage.key(1, &stage.by_secret())])).await;
        let mut sealed = served.round_trip().await;
        let mut altered = sealed.ciphertext.to_vec();
        altered[20] ^= 1;
        sealed.ciphertext = altered.into();
        served.kms.decrypt(&sealed).await.unwrap_err();
        let operations: BTreeSet<_> =
            stage.fake.exchanges().into_iter().map(|exchange| exchange.operation).collect();
        let expected = ["decrypt", "encrypt", "get", "token"].map(str::to_owned);
        assert_eq!(operations, BTreeSet::from(expected), "{}", json!(operations));
        for exchange in stage.fake.exchanges() {
            let shape = exchange.shape();
            // Microsoft's client sends more to the login endpoint, about itself.
            let found = match exchange.operation.as_str() {
                "token" => kept.iter().any(|other| is_part_of(&shape, other)),
                _ => kept.contains(&shape),
            };
            assert!(found, "{shape:#} is none of {kept:#?}");
        }
    }
}
