//! A simulated Vault for what no real one does on request: it answers what a test tells it to.
//! Real servers are used by the tests beside this crate's sources.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sidekey_core::config::Problems;
use sidekey_core::{Call, Error, Files, KeyId, Provider, Sealed};
use sidekey_rest::testing::{self, Fake};
use tokio::time::Instant;

use crate::{Config, Vault};

/// The second at which the simulated key's first version was made.
pub(crate) const MADE: i64 = 1_700_000_000;

/// A server that is simulated.
pub(crate) struct Simulated(pub(crate) Fake);

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: String,
    headers: http::HeaderMap,
    pub(crate) body: Value,
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) struct Reply(testing::Reply);

impl Simulated {
    /// Answers every request with what `answer` makes of it.
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self(Fake::http(move |seen| answer(&Seen::of(seen)).0).await)
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    /// The requests whose line holds `part`.
    pub(crate) fn seen(&self, part: &str) -> Vec<Seen> {
        self.0.seen().iter().map(Seen::of).filter(|seen| seen.is(part)).collect()
    }
}

impl Seen {
    fn of(seen: &testing::Seen) -> Self {
        let line = format!("{} {} HTTP/1.1", seen.method, seen.path);
        let body = serde_json::from_slice(&seen.body).unwrap_or_default();
        Self { line, headers: seen.headers.clone(), body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn is(&self, part: &str) -> bool {
        self.line.contains(part)
    }
}

impl Reply {
    pub(crate) fn new(status: u16, body: &Value) -> Self {
        Self(testing::Reply::json(status, body))
    }

    pub(crate) fn error(status: u16, text: &str) -> Self {
        Self::new(status, &json!({"errors": [text]}))
    }

    pub(crate) fn with(self, header: &'static str, value: &str) -> Self {
        Self(self.0.with(header, value))
    }

    /// Never comes.
    pub(crate) fn hanging(self) -> Self {
        self.after(Duration::from_secs(600))
    }

    pub(crate) fn after(mut self, after: Duration) -> Self {
        self.0.delay = after;
        self
    }

    /// Closes the connection after it.
    pub(crate) fn closing(self) -> Self {
        self.with("connection", "close")
    }
}

/// What a server with one key, made at `made`, answers: everything goes well. Its ciphertexts
/// show what they were made of.
pub(crate) fn sound(seen: &Seen, token: &str, made: &[i64]) -> Reply {
    let latest = made.len();
    if seen.is("/login") {
        let auth = json!({"client_token": token, "lease_duration": 3600, "renewable": true});
        return Reply::new(200, &json!({"auth": auth}));
    }
    if seen.is("/keys/") {
        let keys: serde_json::Map<String, Value> =
            made.iter().enumerate().map(|(i, made)| ((i + 1).to_string(), json!(made))).collect();
        let data = json!({"type": "aes256-gcm96", "latest_version": latest,
            "min_decryption_version": 1, "min_encryption_version": 0, "keys": keys});
        return Reply::new(200, &json!({"data": data}));
    }
    if seen.is("/encrypt/") {
        let version = seen.body["key_version"].as_u64().unwrap_or(latest as u64);
        let Some(made) = made.get(usize::try_from(version).unwrap() - 1) else {
            return Reply::error(400, "requested version for encryption is higher than the latest");
        };
        let hidden = seen.body["plaintext"].as_str().unwrap();
        let ciphertext = format!("vault:v{version}:{made}/{hidden}");
        return Reply::new(
            200,
            &json!({"data": {"ciphertext": ciphertext, "key_version": version}}),
        );
    }
    if seen.is("/decrypt/") {
        let one = |item: &Value| {
            let text = item["ciphertext"].as_str().unwrap();
            let (version, rest) = text["vault:v".len()..].split_once(':').unwrap();
            let (by, hidden) = rest.split_once('/').unwrap();
            let made = made.get(version.parse::<usize>().unwrap() - 1);
            match made.is_some_and(|made| made.to_string() == by) {
                true => json!({"plaintext": hidden}),
                false => json!({"plaintext": "", "error": "cipher: message authentication failed"}),
            }
        };
        let failed = |result: &Value| result["error"].is_string();
        return match seen.body["batch_input"].as_array() {
            Some(items) => {
                let results: Vec<Value> = items.iter().map(one).collect();
                let status = if results.iter().any(failed) { 400 } else { 200 };
                Reply::new(status, &json!({"data": {"batch_results": results}}))
            }
            None => match one(&seen.body) {
                bad if failed(&bad) => Reply::error(400, "cipher: message authentication failed"),
                good => Reply::new(200, &json!({"data": good})),
            },
        };
    }
    if seen.is("/renew-self") {
        let auth = json!({"client_token": token, "lease_duration": 3600, "renewable": true});
        return Reply::new(200, &json!({"auth": auth}));
    }
    Reply::new(200, &json!({"data": {"ttl": 0, "renewable": false}}))
}

/// A sound configuration that logs in by AppRole with `secret`, which also keeps tests apart:
/// equal ones would share a session.
pub(crate) fn document(urls: &[String], secret: &Path) -> Value {
    json!({
        "kek": {"key": "kms"},
        "settings": {"addresses": urls},
        "credentials": {"appRole": {"roleId": "role", "secretIdFile": secret}},
    })
}

/// Reads and checks a configuration.
pub(crate) fn config(document: &Value) -> Config {
    let mut problems = Problems::default();
    let config: Config = sidekey_core::config::read(document, &mut problems).unwrap();
    config.check(&mut problems);
    assert!(problems.is_empty(), "{problems:?}");
    config
}

/// Connects as the runtime does.
pub(crate) async fn connect(config: &Config) -> Result<Vault, Error> {
    let paths = config.files();
    let files = Files::read(paths.iter().map(|path| path.as_path())).unwrap();
    Vault::connect(config, &files, None).await
}

/// A call with time enough.
pub(crate) fn call() -> Call<'static> {
    Call { uid: "test", deadline: Instant::now() + Duration::from_secs(20) }
}

/// Encrypts in attempts, as core makes them where something was mended.
pub(crate) async fn encrypt(vault: &Vault, key_id: &KeyId) -> Result<Sealed, Error> {
    for _ in 1..3 {
        match vault.encrypt(key_id, b"plain", &call()).await {
            Err(error) if error.is_mended() => {}
            done => return done,
        }
    }
    vault.encrypt(key_id, b"plain", &call()).await
}
