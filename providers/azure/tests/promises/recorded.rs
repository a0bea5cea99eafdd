//! What Microsoft's own client, azkeys with azidentity, has said to the fake and heard from it: the
//! provider says the same, and the fake answers it the same. `cargo verify --all` records it anew.

use std::collections::BTreeSet;

use serde_json::json;
use sidekey_e2e::fakes::Exchange;
use sidekey_e2e::fakes::azure::KeyKind;

use crate::support::{HSM, Stage, VAULT, calm};

/// The names between the first pair of brackets: those that were sent.
fn sent(shape: &str) -> BTreeSet<&str> {
    let inside = shape.split(['[', ']']).nth(1).unwrap();
    inside.split(' ').filter(|name| !name.is_empty()).collect()
}

#[tokio::test]
async fn the_provider_asks_as_microsofts_client_does_and_is_answered_as_it_was() {
    let kept = include_str!("../fixtures/azkeys.json");
    let kept: Vec<Exchange> = serde_json::from_str(kept).unwrap();
    let kept: Vec<String> = kept.iter().map(Exchange::shape).collect();
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
            if exchange.operation != "token" {
                assert!(kept.contains(&shape), "{shape} is none of {kept:#?}");
                continue;
            }
            // Microsoft's client sends more to the login endpoint, about itself.
            let like = |other: &&String| {
                other.starts_with("token ") && sent(other).is_superset(&sent(&shape))
            };
            let found = kept.iter().find(like);
            let answered = |shape: &str| shape.rsplit_once("] ").unwrap().1.to_owned();
            let found = found.unwrap_or_else(|| panic!("{shape} is none of {kept:#?}"));
            assert_eq!(answered(found), answered(&shape));
        }
    }
}
