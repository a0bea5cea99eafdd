//! What Google's own client and the fake said to each other once (see `tests/fixtures`), so that
//! provider and fake do not share one misreading of the API.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sidekey_e2e::fakes::Exchange;

use crate::support::{Stage, calm};

/// Recorded by `full::machine::gcp_client` with cloud.google.com/go/kms.
const RECORDED: &str = include_str!("../fixtures/google-client.json");

/// Leaves the names of the fields alone.
fn names(answer: &mut Value) {
    answer.as_object_mut().unwrap().values_mut().for_each(|value| drop(value.take()));
}

/// The path without what is a matter of taste.
fn path(exchange: &Exchange) -> &str {
    exchange.path.split('?').next().unwrap_or_default()
}

/// The first good one of each operation and path.
fn good(exchanges: Vec<Exchange>) -> BTreeMap<(String, String), Exchange> {
    let mut found = BTreeMap::new();
    for exchange in exchanges.into_iter().filter(|exchange| exchange.status == 200) {
        let key = (exchange.operation.clone(), path(&exchange).to_owned());
        found.entry(key).or_insert(exchange);
    }
    found
}

#[tokio::test]
async fn our_requests_and_the_fakes_answers_have_the_form_that_googles_client_has_and_takes() {
    let recorded = good(serde_json::from_str(RECORDED).unwrap());
    let stage = Stage::new("recorded").await;
    let document = calm(&[stage.key(1, &stage.backend.key)]);
    let served = stage.serve_document(&document, &[]).await;
    served.round_trip().await;
    let mut compared = BTreeSet::new();
    for (key, ours) in good(stage.fake().exchanges()) {
        if !["describe", "encrypt", "decrypt"].contains(&ours.operation.as_str()) {
            continue;
        }
        let theirs = recorded.get(&key).unwrap_or_else(|| panic!("{key:?} was never recorded"));
        let (mut ours, mut theirs) = (ours.shape(), theirs.shape());
        // It stands in the path.
        theirs["request"].as_object_mut().unwrap().remove("name");
        for shape in [&mut ours, &mut theirs] {
            // That client asks for enumerations as numbers.
            shape["query"].take();
            names(&mut shape["answer"]);
        }
        assert_eq!(ours, theirs, "{key:?}");
        compared.insert(key.0);
    }
    assert_eq!(compared.len(), 3, "{compared:?}");
}
