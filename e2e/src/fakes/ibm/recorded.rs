//! What IBM's own client and the fake have said to each other: kept, so that tests without that
//! client can compare.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fakes::{Exchange, fields};

/// The conversation that is kept.
const KEPT: &str = include_str!("go-client.json");
/// Headers that every client has its own of.
const OWN: [&str; 6] =
    ["accept-encoding", "connection", "content-length", "content-type", "host", "user-agent"];

/// A conversation: calls in their order, and the headers of the last call of each operation.
#[derive(Debug, Deserialize, Serialize)]
pub struct Conversation {
    /// Each call and its answer.
    pub exchanges: Vec<Exchange>,
    /// Names and values, by operation.
    pub headers: BTreeMap<String, BTreeMap<String, String>>,
}

impl Conversation {
    /// The one of IBM's own client that is kept.
    #[allow(clippy::expect_used)]
    pub fn kept() -> Self {
        serde_json::from_str(KEPT).expect("the conversation that is kept can be read")
    }

    /// What a client and `fake` have said so far, without secrets.
    pub fn of(fake: &crate::fakes::Fake<super::KeyProtect>) -> Self {
        let mut exchanges = fake.exchanges();
        for exchange in exchanges.iter_mut().filter(|exchange| exchange.operation == "token") {
            let form = fields(&exchange.request);
            let secret = |name: &str| ["apikey", "cr_token"].contains(&name);
            let fields = form.iter().map(|(name, value)| match secret(name) {
                true => format!("{name}=SECRET"),
                false => format!("{name}={value}"),
            });
            exchange.request = fields.collect::<Vec<_>>().join("&");
            let mut answer: Value = serde_json::from_str(&exchange.answer).unwrap_or_default();
            if answer["access_token"].is_string() {
                answer["access_token"] = "SECRET".into();
            }
            exchange.answer = answer.to_string();
        }
        let names: Vec<String> = exchanges.iter().map(|said| said.operation.clone()).collect();
        let service = fake.service();
        let headers = names.into_iter().map(|name| {
            let mut headers = service.headers(&name);
            headers.retain(|name, _| !OWN.contains(&name.as_str()));
            (name, headers)
        });
        let headers = headers.collect();
        Self { exchanges, headers }
    }

    /// What each call and its answer are made of: names and types in the place of values.
    pub fn shapes(&self) -> Vec<Value> {
        self.exchanges.iter().map(Exchange::shape).collect()
    }
}
