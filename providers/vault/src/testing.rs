//! A simulated Vault for what no real one does on request: it answers what a test tells it to.
//! Real servers are used by the tests beside this crate's sources.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sidekey_core::config::Problems;
use sidekey_core::{Call, Error, Files, Provider};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::{Config, Vault};

/// The second at which the simulated key's first version was made.
pub(crate) const MADE: i64 = 1_700_000_000;

/// A server that is simulated.
pub(crate) struct Simulated {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: String,
    /// Closes the connection after it, without a word.
    closes: bool,
    /// Promises more than it sends, and waits.
    hangs: bool,
    /// Comes only after this time.
    after: Duration,
}

impl Simulated {
    /// Answers every request with what `answer` makes of it.
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, answer) = (seen.clone(), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer) = (log.clone(), answer.clone());
                tokio::spawn(serve(stream, log, answer));
            }
        });
        Self { address, seen }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests whose line holds `part`.
    pub(crate) fn seen(&self, part: &str) -> Vec<Seen> {
        let all = self.seen.lock().unwrap();
        all.iter().filter(|seen| seen.line.contains(part)).cloned().collect()
    }
}

async fn serve(
    stream: TcpStream,
    log: Arc<Mutex<Vec<Seen>>>,
    answer: Arc<dyn Fn(&Seen) -> Reply + Send + Sync>,
) {
    let mut stream = BufReader::new(stream);
    while let Some(seen) = read(&mut stream).await {
        log.lock().unwrap().push(seen.clone());
        let Reply { status, headers, body, closes, hangs, after } = answer(&seen);
        tokio::time::sleep(after).await;
        let length = body.len() + usize::from(hangs);
        let mut text = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("\r\n{body}"));
        if stream.write_all(text.as_bytes()).await.is_err() || closes {
            return;
        }
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let (mut headers, mut length) = (Vec::new(), 0);
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok().filter(|read| *read > 0)?;
        let Some((name, value)) = header.trim().split_once(": ") else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap();
        }
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(Seen { line: line.trim().to_owned(), headers, body })
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is(&self, part: &str) -> bool {
        self.line.contains(part)
    }
}

impl Reply {
    pub(crate) fn new(status: u16, body: &Value) -> Self {
        let (headers, body, after) = (Vec::new(), body.to_string(), Duration::ZERO);
        Self { status, headers, body, closes: false, hangs: false, after }
    }

    pub(crate) fn error(status: u16, text: &str) -> Self {
        Self::new(status, &json!({"errors": [text]}))
    }

    pub(crate) fn with(mut self, header: &'static str, value: &str) -> Self {
        self.headers.push((header, value.to_owned()));
        self
    }

    pub(crate) fn hanging(mut self) -> Self {
        self.hangs = true;
        self
    }

    pub(crate) fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    pub(crate) fn closing(mut self) -> Self {
        self.closes = true;
        self
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
        let index = usize::try_from(version).unwrap() - 1;
        let hidden = seen.body["plaintext"].as_str().unwrap();
        let ciphertext = format!("vault:v{version}:{}/{hidden}", made[index]);
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
