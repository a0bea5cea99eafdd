//! KMS v2 on Example KMS, which does not exist: the smallest provider that keeps every promise.
//!
//! It is for those who write a provider, and is never shipped: `providers/README.md` shows it piece
//! by piece. It refuses to make a key, and to guess whose a ciphertext is.
//!
//! The one invariant: **a key_id names the key that the KMS itself says it has used.** A key that
//! was deleted and made anew under the same name is another one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clap::Args;
use http::Method;
use http::header::{AUTHORIZATION, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidekey_core::config::Problems;
use sidekey_core::tls::Unusable;
use sidekey_core::{
    Answer, Call, CommandLine, Error, Files, KeyId, Kind, NoCommand, Output, Provider, Sealed,
    Secret,
};
use sidekey_rest::codes::{Code, Refusal};
use sidekey_rest::files::{check_absolute, one_line};
use sidekey_rest::naming::{Version, scope};
use sidekey_rest::{Address, Http, Limits, Proxy, Request, Trust, json, read, secret_header};
use tokio::time::Instant;
use zeroize::Zeroizing;

/// For what no caller waits for: the runtime has a limit of its own for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    kek: Kek,
    settings: Settings,
    credentials: Credentials,
}

/// Which key it is, wherever its KMS can be reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Kek {
    key: Option<String>,
}

/// How the KMS is reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Settings {
    address: Option<String>,
    ca_file: Option<PathBuf>,
    allow_plaintext: bool,
}

/// Who we are.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Credentials {
    token_file: Option<PathBuf>,
}

/// One key of Example KMS.
pub struct Example {
    http: Http,
    address: Address,
    token: HeaderValue,
    /// What we ask for.
    key: String,
    /// Which key that was when we connected.
    scope: String,
}

impl Provider for Example {
    const NAME: &'static str = "example";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        let Config { kek, settings, credentials } = config;
        let word = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if let Some(key) = problems.require("kek.key", &kek.key)
            && (key.is_empty() || !key.bytes().all(word))
        {
            problems.add("kek.key", "is no name of a key: write letters, digits and -");
        }
        if let Some(text) = problems.require("settings.address", &settings.address) {
            match Address::parse(text) {
                Err(why) => problems.add("settings.address", &why),
                Ok(address) => {
                    let allowed = settings.allow_plaintext;
                    address.check_exposed("settings.address", allowed, problems);
                }
            }
        }
        problems.require("credentials.tokenFile", &credentials.token_file);
        let paths = [
            ("settings.caFile", settings.ca_file.as_deref()),
            ("credentials.tokenFile", credentials.token_file.as_deref()),
        ];
        check_absolute(&paths, problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        let files = [&config.settings.ca_file, &config.credentials.token_file];
        files.into_iter().flatten().cloned().collect()
    }

    async fn connect(config: &Config, files: &Files, _: Option<&Self>) -> Result<Self, Error> {
        let Config { kek, settings, credentials } = config;
        let missing = |field: &str| Error::new(Kind::Config, format!("{field} is not set"));
        let key = kek.key.clone().ok_or_else(|| missing("kek.key"))?;
        let address = settings.address.as_deref().and_then(|text| Address::parse(text).ok());
        let address = address.ok_or_else(|| missing("settings.address"))?;
        let bundle = settings.ca_file.as_deref();
        let trust = Trust::new(bundle, Unusable::Refuse, None, files, "settings.caFile")?;
        let http = Http::new(&trust, Proxy::new(None), Limits::default());
        let token = one_line(files, credentials.token_file.as_deref())?;
        let token = format!("Bearer {}", token.as_text().unwrap_or_default());
        let token = secret_header(&Zeroizing::new(token))?;
        let mut client = Self { http, address, token, key, scope: String::new() };
        client.scope = scope(&[&client.look().await?.key]);
        Ok(client)
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        let Found { key, version } = self.look().await?;
        self.name(&key, version)
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let version = self.version(key_id)?;
        self.wrap(Some(&version), plaintext, call).await
    }

    async fn encrypt_current(
        &self,
        _: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        self.wrap(None, plaintext, call).await
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let version = self.version(&sealed.key_id)?;
        let ciphertext = STANDARD.encode(&sealed.ciphertext);
        let body = Unwrap { version: &version, ciphertext: &ciphertext, context: &self.scope };
        let body = self.post("decrypt", json(&body), call.deadline).await?;
        let Unwrapped { plaintext } = read(&body, "decrypt")?;
        let plaintext = STANDARD.decode(plaintext).map_err(|_| odd("decrypt: no base64"))?;
        Ok(Secret::new(plaintext))
    }
}

impl Example {
    /// The key_id of what the KMS has used, if that is still our key.
    fn name(&self, key: &str, version: String) -> Result<KeyId, Error> {
        if scope(&[key]) != self.scope {
            let text = format!("{}: the KMS has another key of that name now", self.key);
            let hint = "restore the key, or give this one a new key id";
            return Err(Error::new(Kind::KeyState, text).with_hint(hint));
        }
        Version { scope: self.scope.clone(), version }.key_id(Self::NAME)
    }

    /// The version that a key_id names; the key_id comes from etcd and may be forged.
    fn version(&self, key_id: &KeyId) -> Result<String, Error> {
        let named = Version::parse(Self::NAME, key_id.as_str());
        let own = named.filter(|named| named.scope == self.scope);
        let other = || Error::new(Kind::KeyState, format!("{key_id} is of another key"));
        own.map(|named| named.version).ok_or_else(other)
    }

    /// What the KMS has under the name of our key.
    async fn look(&self) -> Result<Found, Error> {
        let request = Request::new(Method::GET, format!("/v1/keys/{}", self.key));
        let body = self.ask("describe", request, Instant::now() + PATIENCE).await?;
        read(&body, "describe")
    }

    async fn wrap(
        &self,
        version: Option<&str>,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let plaintext = Zeroizing::new(STANDARD.encode(plaintext));
        let body = Wrap { version, plaintext: &plaintext, context: &self.scope };
        let body = self.post("encrypt", json(&body), call.deadline).await?;
        let Wrapped { key, version, ciphertext } = read(&body, "encrypt")?;
        let key_id = self.name(&key, version)?;
        let ciphertext = STANDARD.decode(ciphertext).map_err(|_| odd("encrypt: no base64"))?;
        Ok(Sealed { key_id, ciphertext: ciphertext.into(), annotations: BTreeMap::new() })
    }

    async fn post(&self, action: &str, body: Bytes, deadline: Instant) -> Result<Bytes, Error> {
        let mut request = Request::new(Method::POST, format!("/v1/keys/{}/{action}", self.key));
        request.body = body;
        self.ask(action, request, deadline).await
    }

    /// The body of a good answer.
    async fn ask(
        &self,
        action: &str,
        mut request: Request,
        deadline: Instant,
    ) -> Result<Bytes, Error> {
        request.headers.insert(AUTHORIZATION, self.token.clone());
        let answer = self.http.ask(&self.address, request, deadline).await?;
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        let said: Refused = serde_json::from_slice(&answer.body).unwrap_or_default();
        let refusal = Refusal {
            action,
            object: &self.key,
            status: answer.status.as_u16(),
            code: said.code.as_deref(),
            text: &said.message,
        };
        Err(refusal.explain_of("Example KMS", &CODES))
    }
}

/// What the codes of Example KMS mean; what is not here is judged by its HTTP status.
const CODES: [Code; 3] = [
    Code {
        action: "decrypt",
        code: "BadCiphertext",
        kind: Kind::Corrupt,
        hint: "it was altered, or another key wrapped it",
    },
    Code {
        action: "",
        code: "NoSuchKey|NoSuchVersion|KeyDisabled",
        kind: Kind::KeyState,
        hint: "see what has become of the key at the KMS; it is never made by this provider",
    },
    Code { action: "", code: "BadToken", kind: Kind::Denied, hint: "check credentials.tokenFile" },
];

/// What the KMS has under the name of our key.
#[derive(Deserialize)]
struct Found {
    key: String,
    version: String,
}

#[derive(Serialize)]
struct Wrap<'a> {
    version: Option<&'a str>,
    plaintext: &'a str,
    context: &'a str,
}

#[derive(Deserialize)]
struct Wrapped {
    key: String,
    version: String,
    ciphertext: String,
}

#[derive(Serialize)]
struct Unwrap<'a> {
    version: &'a str,
    ciphertext: &'a str,
    context: &'a str,
}

/// Borrowed from the answer, which is wiped.
#[derive(Deserialize)]
struct Unwrapped<'a> {
    plaintext: &'a str,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refused {
    code: Option<String>,
    message: String,
}

/// An answer that makes no sense may pass: a proxy may have given it.
fn odd(what: &str) -> Error {
    Error::new(Kind::Unavailable, what)
        .with_hint("see whether it is the KMS that answers, or a proxy in its place")
}

/// This provider takes the place of no other plugin, so that no flags describe its keys.
#[derive(Debug, Args)]
pub struct Flags {}

impl CommandLine for Example {
    const ABOUT: &'static str = "KMS v2 provider for Example KMS, which does not exist";
    const EXAMPLES: &'static str = "Examples:
  sidekey-example --config example.yaml
  sidekey-example check --config example.yaml

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = NoCommand;

    fn keys(_: &Flags) -> Result<Option<Value>, Error> {
        Ok(None)
    }

    fn output(command: &NoCommand) -> Output {
        match *command {}
    }

    fn execute(command: NoCommand) -> Result<Answer, Error> {
        match command {}
    }
}
