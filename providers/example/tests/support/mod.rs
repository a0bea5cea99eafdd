//! An imitation of Example KMS: real AES-GCM, versions and refusals behind the kit's scripted server.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use serde_json::{Value, json};
use sidekey_core::{Error, Files, Provider, Secret};
use sidekey_example::{Config, Example};
use sidekey_rest::testing::{Fake, Reply, Seen};

/// Long, and of letters and digits, as tokens are.
pub(crate) const TOKEN: &str = "exAMPLE0123456789exAMPLE0123456789exAMPLE0123456789";

/// A running KMS with one key, and the files of a provider in front of it.
pub(crate) struct Kms {
    pub(crate) server: Fake,
    key: Arc<Mutex<Key>>,
    dir: tempfile::TempDir,
    ca: PathBuf,
}

/// One key: what it is told from others by, its versions, and the token of who may use it.
struct Key {
    id: String,
    versions: Vec<RandomizedNonceKey>,
    token: String,
    /// What every call is refused with.
    refusal: Option<(u16, &'static str)>,
}

impl Key {
    fn new() -> Self {
        let random = Secret::random(8).unwrap();
        let (id, token) = (sidekey_core::hex(random.expose()), TOKEN.to_owned());
        let mut key = Self { id, versions: Vec::new(), token, refusal: None };
        key.rotate();
        key
    }

    fn rotate(&mut self) {
        let material = Secret::random(32).unwrap();
        self.versions.push(RandomizedNonceKey::new(&AES_256_GCM, material.expose()).unwrap());
    }

    fn answer(&self, seen: &Seen) -> Result<Value, (u16, &'static str)> {
        let sent = seen.headers.get("authorization").and_then(|value| value.to_str().ok());
        if sent != Some(&format!("Bearer {}", self.token)) {
            return Err((403, "BadToken"));
        }
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
        let newest = self.versions.len().to_string();
        let version = body["version"].as_str().unwrap_or(&newest).to_owned();
        let known = (1..=self.versions.len()).find(|number| number.to_string() == version);
        let key = &self.versions[known.ok_or((404, "NoSuchVersion"))? - 1];
        let context = || Aad::from(body["context"].as_str().unwrap_or_default().as_bytes());
        match seen.path.as_str() {
            "/v1/keys/kms" => Ok(json!({"key": self.id, "version": version})),
            "/v1/keys/kms/encrypt" => {
                let mut data = bytes(&body["plaintext"]);
                let nonce = key.seal_in_place_append_tag(context(), &mut data).unwrap();
                let ciphertext = text(&[nonce.as_ref().as_slice(), &data].concat());
                Ok(json!({"key": self.id, "version": version, "ciphertext": ciphertext}))
            }
            "/v1/keys/kms/decrypt" => {
                let refused = (400, "BadCiphertext");
                let data = bytes(&body["ciphertext"]);
                let (nonce, data) = data.split_at_checked(NONCE_LEN).ok_or(refused)?;
                let nonce = Nonce::try_assume_unique_for_key(nonce).unwrap();
                let mut data = data.to_vec();
                let opened = key.open_in_place(nonce, context(), &mut data).map_err(|_| refused)?;
                Ok(json!({"plaintext": text(opened)}))
            }
            _ => Err((404, "NoSuchKey")),
        }
    }
}

impl Kms {
    pub(crate) async fn start() -> Self {
        let key = Arc::new(Mutex::new(Key::new()));
        let served = key.clone();
        let server = Fake::https(move |seen| match served.lock().unwrap().answer(seen) {
            Ok(value) => Reply::json(200, &value),
            Err((status, code)) => Reply::json(status, &json!({"code": code, "message": "no"})),
        })
        .await;
        let dir = tempfile::tempdir().unwrap();
        let ca = server.write_ca(dir.path()).unwrap();
        std::fs::write(dir.path().join("token"), format!("{TOKEN}\n")).unwrap();
        Self { server, key, dir, ca }
    }

    /// A file of the provider.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A configuration, with probes that are soon.
    pub(crate) fn document(&self, endpoint: &str) -> Value {
        let mut key = self.config();
        key["id"] = 1.into();
        key["listen"] = endpoint.into();
        json!({"keys": [key], "probe": {"interval": "500ms", "timeout": "2s", "coast": "8s"}})
    }

    fn config(&self) -> Value {
        json!({
            "kek": {"key": "kms"},
            "settings": {"address": self.server.url(), "caFile": self.ca},
            "credentials": {"tokenFile": self.path("token")},
        })
    }

    /// A client in this process.
    pub(crate) async fn connect(&self) -> Result<Example, Error> {
        let config: Config = serde_json::from_value(self.config()).unwrap();
        let paths = Example::files(&config);
        let files = Files::read(paths.iter().map(PathBuf::as_path)).unwrap();
        Example::connect(&config, &files, None).await
    }

    /// From now on the newest version is another one.
    pub(crate) fn rotate(&self) {
        self.key.lock().unwrap().rotate();
    }

    /// From now on it takes another token, and no other.
    pub(crate) fn takes(&self, token: &str) {
        self.key.lock().unwrap().token = token.to_owned();
    }

    /// From now on every call is refused so, or none.
    pub(crate) fn refuses(&self, refusal: Option<(u16, &'static str)>) {
        self.key.lock().unwrap().refusal = refusal;
    }

    /// The key is deleted, and one of the same name is made.
    pub(crate) fn make_anew(&self) {
        *self.key.lock().unwrap() = Key::new();
    }

    /// How often it was asked.
    pub(crate) fn calls(&self) -> u64 {
        u64::try_from(self.server.seen().len()).unwrap()
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    use base64::Engine;
    let text = value.as_str().unwrap_or_default();
    base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
