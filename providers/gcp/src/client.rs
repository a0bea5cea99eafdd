//! The three calls of Cloud KMS, and the token that they are made with.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use sidekey_core::{Error, Files, Kind, Secret};
use sidekey_rest::{Address, Answer, Http, Lease, Limits, Proxy, Request, Shared, Trust};
use sidekey_rest::{crc32c, fingerprint, json, read, tls};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::adc::{Login, named_files};
use crate::codes::{odd, refused};
use crate::config::Config;

/// For how long a refused login is not repeated: what is wrong may be mended at Google.
const PAUSE: Duration = Duration::from_secs(60);

/// Accounts in use, by the hash of what they are made of.
static ACCOUNTS: Shared<[u8; 32], Account> = Shared::new();

/// Keys with the same endpoint and the same credentials share one: its connections and its token.
pub(crate) struct Account {
    http: Http,
    pub(crate) address: Address,
    pub(crate) lease: Lease<Login>,
}

/// What one key asks with.
pub(crate) struct Client {
    /// The connections of the account, with a limit of its own: a key that hangs slows no other.
    http: Http,
    pub(crate) account: Arc<Account>,
}

/// Borrowed from the answer, which is wiped. Numbers of 64 bits are texts.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Answered<'a> {
    name: String,
    #[serde(borrow, alias = "plaintext")]
    ciphertext: Cow<'a, str>,
    #[serde(alias = "plaintextCrc32c")]
    ciphertext_crc32c: String,
    verified_plaintext_crc32c: bool,
    verified_additional_authenticated_data_crc32c: bool,
}

impl Account {
    /// The account of this configuration, which may be in use already.
    fn shared(config: &Config, files: &Files) -> Result<Arc<Self>, Error> {
        let set = config.settings.ca_file.as_deref();
        let bundle = tls::bundle(set);
        let mut paths = [config.files(), named_files(config, files)].concat();
        paths.retain(|path| Some(path) != bundle.as_ref());
        let credential = fingerprint(&format!("{:?}", config.credentials), &paths, files);
        let address = config.endpoint().map_err(|why| Error::new(Kind::Config, why))?;
        let to = format!("{credential:?}{address}{}", config.settings.allow_plaintext);
        ACCOUNTS.get(fingerprint(&to, bundle.as_slice(), files), || {
            let trust = Trust::of_settings(set, files, "settings.caFile")?;
            let http = Http::new(&trust, Proxy::new(None), Limits::default());
            // What is asked for a token has turns of its own.
            let login = Login::new(config, files, &http.separate())?;
            Ok(Self { http, address, lease: Lease::new(login, credential, PAUSE) })
        })
    }
}

impl Client {
    pub(crate) fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let account = Account::shared(config, files)?;
        Ok(Self { http: account.http.separate(), account })
    }

    /// What there is under the name of a key.
    pub(crate) async fn look(&self, key: &str, deadline: Instant) -> Result<Value, Error> {
        read(&self.ask("describe", key, Bytes::new(), deadline).await?, "describe")
    }

    /// Encrypts with a key, or with one version of it; tells the name of the version that was used.
    pub(crate) async fn encrypt(
        &self,
        name: &str,
        aad: Option<&str>,
        plaintext: &[u8],
        deadline: Instant,
    ) -> Result<(String, Vec<u8>), Error> {
        let body = body(["plaintext", "plaintextCrc32c"], plaintext, aad);
        let answer = self.ask("encrypt", name, body, deadline).await?;
        let answered: Answered<'_> = read(&answer, "encrypt")?;
        let bound = answered.verified_additional_authenticated_data_crc32c || aad.is_none();
        if !answered.verified_plaintext_crc32c || !bound {
            return Err(odd("encrypt", name, "what was sent has not arrived as it was"));
        }
        Ok((answered.name.clone(), answered.data("encrypt", name)?))
    }

    /// Decrypts what any version of a key has encrypted.
    pub(crate) async fn decrypt(
        &self,
        key: &str,
        aad: Option<&str>,
        ciphertext: &[u8],
        deadline: Instant,
    ) -> Result<Secret, Error> {
        let body = body(["ciphertext", "ciphertextCrc32c"], ciphertext, aad);
        let answer = self.ask("decrypt", key, body, deadline).await?;
        read::<Answered<'_>>(&answer, "decrypt")?.data("decrypt", key).map(Secret::new)
    }

    /// The body of a good answer.
    async fn ask(
        &self,
        action: &str,
        name: &str,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, Error> {
        let mut request = Request::new(Method::GET, format!("/v1/{name}"));
        if !body.is_empty() {
            request.path.push_str(&format!(":{action}"));
            request = Request { method: Method::POST, body, ..request };
            request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let Account { address, lease, .. } = &*self.account;
        request.headers.extend(lease.source().headers.clone());
        let refuses = |answer: &Answer| answer.status == StatusCode::UNAUTHORIZED;
        let answer = lease.ask(&self.http, address, request, deadline, refuses).await?;
        if answer.status.is_success() {
            Ok(answer.body)
        } else {
            Err(refused(action, name, &answer))
        }
    }
}

impl Answered<'_> {
    /// The bytes of an answer, if they have arrived as they were sent.
    fn data(&self, action: &str, object: &str) -> Result<Vec<u8>, Error> {
        let data = STANDARD.decode(self.ciphertext.as_bytes()).map(Zeroizing::new);
        let mut data = data.map_err(|_| odd(action, object, "the answer is not base64"))?;
        if crc32c(&data).to_string() != self.ciphertext_crc32c {
            return Err(odd(action, object, "the answer's CRC32C is not that of its data"));
        }
        Ok(std::mem::take(&mut *data))
    }
}

/// What is sent, with its sum and what it is bound to.
fn body([name, sum]: [&str; 2], data: &[u8], aad: Option<&str>) -> Bytes {
    let text = Zeroizing::new(STANDARD.encode(data));
    let check = crc32c(data).to_string();
    let bound = aad.map(|aad| [STANDARD.encode(aad), crc32c(aad.as_bytes()).to_string()]);
    let mut fields = BTreeMap::from([(name, text.as_str()), (sum, &check)]);
    let names = ["additionalAuthenticatedData", "additionalAuthenticatedDataCrc32c"];
    fields.extend(names.into_iter().zip(bound.iter().flatten().map(String::as_str)));
    json(&fields)
}
