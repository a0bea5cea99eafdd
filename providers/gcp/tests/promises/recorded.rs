//! What Google's own client and the fake said to each other once (see `tests/fixtures`), so that
//! provider and fake do not share one misreading of the API.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sidekey_e2e::fakes::Exchange;

use crate::support::{Stage, calm};

/// Recorded by `full::machine::gcp_client` with cloud.google.com/go/kms.
const RECORDED: &str = include_str!("../fixtures/google-client.json");

/// The names in a JSON object, and of what kind each value is.
fn shape(text: &str) -> BTreeMap<String, &'static str> {
    let kind = |value: &Value| match value {
        Value::String(text) if text.bytes().all(|b| b.is_ascii_digit()) => "number in text",
        Value::String(_) => "text",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Object(_) => "object",
        _ => "other",
    };
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let fields = value.as_object().cloned().unwrap_or_default();
    fields.iter().map(|(name, value)| (name.clone(), kind(value))).collect()
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
        assert_eq!(ours.method, theirs.method, "{key:?}");
        let mut expected = shape(&theirs.request);
        // It stands in the path.
        expected.remove("name");
        assert_eq!(shape(&ours.request), expected, "{key:?}");
        let (ours, theirs) = (shape(&ours.answer), shape(&theirs.answer));
        let names = |shape: &BTreeMap<String, _>| shape.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(&ours), names(&theirs), "{key:?}");
        compared.insert(key.0);
    }
    assert_eq!(compared.len(), 3, "{compared:?}");
}
