//! A simulated KMS for the tests of this crate: keys with several materials, aliases, and the
//! faults that no real server can be made to have on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_core::{Call, Error, Files, Provider};
use sidekey_rest::testing::{Fake as Server, Reply};
use tempfile::TempDir;
use tokio::time::{Duration, Instant};

use crate::{Aws, Config};

pub(crate) const A: &str =
    "arn:aws:kms:us-east-1:111122223333:key/aaaaaaaa-12ab-34cd-56ef-1234567890ab";
pub(crate) const B: &str =
    "arn:aws:kms:us-east-1:111122223333:key/bbbbbbbb-12ab-34cd-56ef-1234567890ab";

/// When keys that are pending deletion are deleted.
pub(crate) const DELETION: Duration = Duration::from_secs(1_900_000_000);

/// What the KMS knows, and how it misbehaves.
pub(crate) struct State {
    /// The materials of each key, the current one last.
    pub(crate) keys: BTreeMap<String, Vec<String>>,
    pub(crate) aliases: BTreeMap<String, String>,
    /// Keys in a state of their own.
    pub(crate) states: BTreeMap<String, &'static str>,
    /// Calls that are answered with this code: operation, or operation and key.
    pub(crate) refuse: BTreeMap<String, &'static str>,
    /// An access key whose session is over.
    pub(crate) dead: Option<&'static str>,
    /// Whether DescribeKey tells the material.
    pub(crate) tells: bool,
    /// Whether GetKeyRotationStatus tells of a rotation on demand.
    pub(crate) rotating: bool,
    /// Whether requests must tell the time, as at AWS.
    pub(crate) minds_time: bool,
    /// How many seconds its clock is ahead of ours.
    pub(crate) ahead: i64,
    /// Operation, key and headers of every call.
    pub(crate) calls: Vec<(String, String, http::HeaderMap)>,
}

pub(crate) struct Fake {
    pub(crate) server: Server,
    state: Arc<Mutex<State>>,
    directory: TempDir,
}

pub(crate) fn material(n: u8) -> String {
    format!("{n:02x}").repeat(32)
}

pub(crate) fn call() -> Call<'static> {
    Call { uid: "test", deadline: Instant::now() + Duration::from_secs(10) }
}

impl Fake {
    /// A KMS with two keys and an alias of the first.
    pub(crate) async fn start() -> Self {
        let keys = [(A, 1), (B, 2)].map(|(arn, n)| (arn.to_owned(), vec![material(n)]));
        let state = State {
            keys: keys.into(),
            aliases: [("alias/etcd".to_owned(), A.to_owned())].into(),
            states: BTreeMap::new(),
            refuse: BTreeMap::new(),
            dead: None,
            tells: true,
            rotating: false,
            minds_time: false,
            ahead: 0,
            calls: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let answering = state.clone();
        let server = Server::https(move |seen| {
            let mut state = answering.lock().unwrap();
            let (status, answer) = state.answer(seen.headers.clone(), &seen.body);
            let date = httpdate::fmt_http_date(state.now());
            Reply::json(status, &answer).with("date", date)
        })
        .await;
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("id"), "AKIDEXAMPLE\n").unwrap();
        std::fs::write(directory.path().join("secret"), "hunter2 and a space\n").unwrap();
        server.write_ca(directory.path()).unwrap();
        Self { server, state, directory }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn config(&self, key: &str) -> Config {
        serde_json::from_value(self.document(key)).unwrap()
    }

    pub(crate) fn document(&self, key: &str) -> Value {
        let path = |name: &str| self.directory.path().join(name);
        json!({
            "kek": {"key": key, "region": "us-east-1", "encryptionContext": {"cluster": "test"}},
            "settings": {
                "endpoint": self.server.url(),
                "caBundle": self.server.write_ca(self.directory.path()).unwrap(),
            },
            "credentials": {"accessKeyIdFile": path("id"), "secretAccessKeyFile": path("secret")},
        })
    }

    pub(crate) async fn connect(&self, config: &Config, old: Option<&Aws>) -> Result<Aws, Error> {
        let files = Aws::files(config);
        let files = Files::read(files.iter().map(|path| path.as_path()))?;
        let key = Aws::connect(config, &files, old).await?;
        // What connecting has found out is told once without asking again.
        key.key_id().await?;
        Ok(key)
    }

    pub(crate) async fn key(&self, key: &str) -> Aws {
        self.connect(&self.config(key), None).await.unwrap()
    }

    /// Writes a file that a configuration may name.
    pub(crate) fn write(&self, name: &str, text: &str) -> std::path::PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// How often an operation was asked for.
    pub(crate) fn count(&self, operation: &str) -> usize {
        self.state().calls.iter().filter(|(asked, ..)| asked == operation).count()
    }
}

impl State {
    fn now(&self) -> SystemTime {
        let by = Duration::from_secs(self.ahead.unsigned_abs());
        if self.ahead < 0 { SystemTime::now() - by } else { SystemTime::now() + by }
    }

    /// Five minutes in either direction are taken.
    fn is_off(&self, date: &str) -> bool {
        let (day, time) = (&date[..8], &date[9..15]);
        let text = format!(
            "{}-{}-{}T{}:{}:{}Z",
            &day[..4],
            &day[4..6],
            &day[6..],
            &time[..2],
            &time[2..4],
            &time[4..]
        );
        let told = DateTime::from_str(&text, Format::DateTime).unwrap().secs();
        let now = self.now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        told.abs_diff(now.cast_signed()) > 300
    }

    fn answer(&mut self, headers: http::HeaderMap, body: &[u8]) -> (u16, Value) {
        let target = headers["x-amz-target"].to_str().unwrap();
        let operation = target.strip_prefix("TrentService.").unwrap().to_owned();
        let request: Value = serde_json::from_slice(body).unwrap();
        let named = request["KeyId"].as_str().unwrap_or_default().to_owned();
        let signed = headers["authorization"].to_str().unwrap();
        let dead = self.dead.is_some_and(|dead| signed.contains(&format!("Credential={dead}/")));
        let late = self.minds_time && self.is_off(headers["x-amz-date"].to_str().unwrap());
        self.calls.push((operation.clone(), named.clone(), headers));
        if late {
            return refused("InvalidSignatureException");
        }
        if dead {
            return refused("ExpiredTokenException");
        }
        let key = self.aliases.get(&named).unwrap_or(&named).clone();
        let refusal = self.refuse.get(&operation);
        if let Some(code) = refusal.or_else(|| self.refuse.get(&format!("{operation} {key}"))) {
            return refused(code);
        }
        match operation.as_str() {
            "DescribeKey" => self.describe(&key),
            "Encrypt" => self.encrypt(&key, &request),
            "GetKeyRotationStatus" if self.rotating => {
                (200, json!({"KeyRotationEnabled": false, "OnDemandRotationStartDate": 1.7e9}))
            }
            "GetKeyRotationStatus" => (200, json!({"KeyRotationEnabled": false})),
            "RotateKeyOnDemand" => self.rotate(&key),
            _ => self.decrypt(&key, &request),
        }
    }

    fn rotate(&mut self, key: &str) -> (u16, Value) {
        let Some(materials) = self.keys.get_mut(key) else { return refused("NotFoundException") };
        materials.push(material(0xf0));
        (200, json!({"KeyId": key}))
    }

    fn describe(&self, key: &str) -> (u16, Value) {
        let Some(materials) = self.keys.get(key) else { return refused("NotFoundException") };
        let mut metadata = json!({
            "KeyId": key, "Arn": key, "KeySpec": "SYMMETRIC_DEFAULT",
            "KeyUsage": "ENCRYPT_DECRYPT", "KeyState": self.states.get(key).unwrap_or(&"Enabled"),
        });
        if self.states.get(key) == Some(&"PendingDeletion") {
            metadata["DeletionDate"] = 1.9e9.into();
        }
        if self.tells {
            metadata["CurrentKeyMaterialId"] = materials.last().unwrap().as_str().into();
        }
        (200, json!({"KeyMetadata": metadata}))
    }

    fn encrypt(&self, key: &str, request: &Value) -> (u16, Value) {
        let Some(materials) = self.keys.get(key) else { return refused("NotFoundException") };
        let sealed = json!({
            "key": key, "material": materials.last(), "plaintext": request["Plaintext"],
            "context": request["EncryptionContext"],
        });
        (200, json!({"KeyId": key, "CiphertextBlob": STANDARD.encode(sealed.to_string())}))
    }

    fn decrypt(&self, key: &str, request: &Value) -> (u16, Value) {
        let blob = STANDARD.decode(request["CiphertextBlob"].as_str().unwrap()).unwrap();
        let Ok(sealed) = serde_json::from_slice::<Value>(&blob) else {
            return refused("InvalidCiphertextException");
        };
        if !key.is_empty() && sealed["key"] != key {
            return refused("IncorrectKeyException");
        }
        if sealed["context"] != request["EncryptionContext"] {
            return refused("InvalidCiphertextException");
        }
        let (key, plaintext) = (&sealed["key"], &sealed["plaintext"]);
        let mut answer = json!({"KeyId": key, "Plaintext": plaintext});
        if self.tells {
            answer["KeyMaterialId"] = sealed["material"].clone();
        }
        (200, answer)
    }
}

fn refused(code: &str) -> (u16, Value) {
    (400, json!({"__type": code, "message": "the test says so"}))
}
