//! The client of one vault for one identity: the SDK's own `KeyClient` over our transport.
//!
//! Keys whose settings and credentials are equal share an account, with its connections and its
//! token. They share nothing else: each has a limit of calls of its own.
//!
//! What of the SDK is in use is its operations: paths, API version, headers. Retries are core's,
//! and the token is ours: the transport puts it on, so that no copy lies in the SDK, and on
//! requests to the vault of the configuration alone. The SDK begins every client with a request that
//! it knows will be refused, to be told by the vault whom to ask for a token and for what. Nobody
//! but the configuration says that here: the transport answers that request by itself, so that it
//! costs no call, and what a vault says of it later is not passed on.
//!
//! Bodies are written and read here as well, into buffers that are wiped: the SDK's own models
//! leave copies of the plaintext behind.

use std::sync::Arc;

use async_trait::async_trait;
use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::error::ErrorKind;
use azure_core::http::headers::{AUTHORIZATION, Headers, WWW_AUTHENTICATE};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{
    AsyncRawResponse, Body, ClientMethodOptions, ClientOptions, Context, RetryOptions, StatusCode,
    Transport,
};
use azure_core::time::OffsetDateTime;
use azure_security_keyvault_keys::models::{
    KeyClientDecryptOptions, KeyClientEncryptOptions, KeyClientGetKeyOptions,
};
use azure_security_keyvault_keys::{KeyClient, KeyClientOptions};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Method;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use sidekey_core::{Error, Files, Kind};
use sidekey_rest::{Answer, Http, Request, json, read};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::account::Account;
use crate::codes;
use crate::config::Config;
use crate::identity::TARGET;
use crate::kek::Kek;

const AGENT: &str = concat!("sidekey-azure/", env!("CARGO_PKG_VERSION"));
/// What the SDK wants to be told; nothing of it is ever used.
const CHALLENGE: &str = r#"Bearer authorization="https://not.used", resource="https://not.used""#;

/// A client of one vault, for one key.
pub(crate) struct Client {
    kms: KeyClient,
    pub(crate) kek: Kek,
    pub(crate) account: Arc<Account>,
}

/// One of the calls, on one object, until a moment.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    pub(crate) action: &'static str,
    pub(crate) object: String,
    pub(crate) deadline: Instant,
}

/// What Key Vault encrypted or decrypted, and with which key.
#[derive(Deserialize)]
struct Operated<'a> {
    kid: &'a str,
    value: &'a str,
    #[serde(default)]
    iv: Option<&'a str>,
    #[serde(default, alias = "authenticationTag")]
    tag: Option<&'a str>,
}

/// What it is to encrypt or decrypt.
#[derive(Default, Serialize)]
struct Operation<'a> {
    alg: &'static str,
    value: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    aad: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iv: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
}

/// A value for Key Vault, or from it.
#[derive(Default)]
pub(crate) struct Operand {
    pub(crate) value: Zeroizing<Vec<u8>>,
    /// Of AES alone.
    pub(crate) aad: Option<Vec<u8>>,
    pub(crate) iv: Option<Vec<u8>>,
    pub(crate) tag: Option<Vec<u8>>,
}

/// What Key Vault tells of a version of a key.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    pub(crate) key: Jwk,
    pub(crate) attributes: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Jwk {
    pub(crate) kid: String,
    pub(crate) kty: String,
    pub(crate) key_ops: Option<Vec<String>>,
    /// The modulus of RSA.
    pub(crate) n: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Attributes {
    pub(crate) enabled: Option<bool>,
}

impl Client {
    /// A client for `config`, on an account in use if there is one, or a new one.
    pub(crate) fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let account = Account::shared(config, files)?;
        let vault = format!("https://{}", account.place.host);
        let kek = account.place.kek(config)?;
        let transport = Sender { http: account.http.separate(), account: account.clone() };
        let client_options = ClientOptions {
            retry: RetryOptions::none(),
            transport: Some(Transport::with_policy(Arc::new(transport))),
            ..ClientOptions::default()
        };
        // Nothing that a vault says of itself decides where the token goes.
        let verify_challenge_resource = Some(false);
        let options = KeyClientOptions {
            client_options,
            verify_challenge_resource,
            ..KeyClientOptions::default()
        };
        let kms =
            KeyClient::new(&vault, Arc::new(Placeholder), Some(options)).map_err(|error| {
                Error::new(Kind::Config, format!("{vault} is no vault")).with_source(error)
            })?;
        Ok(Self { kms, kek, account })
    }

    /// `keys/get`: a version, or the newest one.
    pub(crate) async fn describe(
        &self,
        version: Option<&str>,
        deadline: Instant,
    ) -> Result<Told, Error> {
        let deed = self.deed("keys/get", version, deadline);
        let options = KeyClientGetKeyOptions {
            key_version: version.map(str::to_owned),
            method_options: deed.options(),
        };
        let asked = self.kms.get_key(self.name(), Some(options)).await;
        let answer = asked.map_err(|error| deed.failed(error))?;
        read(answer.body().as_ref(), deed.action)
    }

    /// `keys/encrypt`, by a version or the newest one: what it gave, and the version that did it.
    pub(crate) async fn encrypt(
        &self,
        version: Option<&str>,
        alg: &'static str,
        operand: &Operand,
        deadline: Instant,
    ) -> Result<(Operand, String), Error> {
        let deed = self.deed("keys/encrypt", version, deadline);
        let options = KeyClientEncryptOptions {
            key_version: version.map(str::to_owned),
            method_options: deed.options(),
        };
        let asked = self.kms.encrypt(self.name(), operand.body(alg).into(), Some(options)).await;
        let answer = asked.map_err(|error| deed.failed(error))?;
        self.operated(&deed, version, answer.body().as_ref())
    }

    /// `keys/decrypt`.
    pub(crate) async fn decrypt(
        &self,
        version: &str,
        alg: &'static str,
        operand: &Operand,
        deadline: Instant,
    ) -> Result<Operand, Error> {
        let deed = self.deed("keys/decrypt", Some(version), deadline);
        let options = KeyClientDecryptOptions { method_options: deed.options() };
        let asked =
            self.kms.decrypt(self.name(), version, operand.body(alg).into(), Some(options)).await;
        let answer = asked.map_err(|error| deed.failed(error))?;
        Ok(self.operated(&deed, Some(version), answer.body().as_ref())?.0)
    }

    /// What answered must be what was asked.
    fn operated(
        &self,
        deed: &Deed,
        asked: Option<&str>,
        body: &[u8],
    ) -> Result<(Operand, String), Error> {
        let told: Operated<'_> = read(body, deed.action)?;
        let version = self.kek.answered(told.kid);
        let version = version.filter(|version| asked.is_none_or(|asked| asked == version));
        let version = version.ok_or_else(|| codes::odd(deed, "another key has answered"))?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('='));
        let part = |text: Option<&str>| text.map(decode).transpose();
        let operand = (|| {
            let value = Zeroizing::new(decode(told.value)?);
            Ok(Operand { value, aad: None, iv: part(told.iv)?, tag: part(told.tag)? })
        })();
        let operand = operand
            .map_err(|_: base64::DecodeError| codes::odd(deed, "the answer is no base64"))?;
        Ok((operand, version))
    }

    fn name(&self) -> &str {
        self.kek.name()
    }

    fn deed(&self, action: &'static str, version: Option<&str>, deadline: Instant) -> Deed {
        Deed { action, object: self.kek.url(version), deadline }
    }
}

impl Operand {
    fn body(&self, alg: &'static str) -> Bytes {
        let text = |bytes: &Vec<u8>| Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes));
        let value = text(&self.value);
        let [aad, iv, tag] = [&self.aad, &self.iv, &self.tag].map(|part| part.as_ref().map(text));
        let [aad, iv, tag] = [&aad, &iv, &tag].map(|part| part.as_ref().map(|text| text.as_str()));
        json(&Operation { alg, value: &value, aad, iv, tag })
    }
}

impl Deed {
    fn options(&self) -> ClientMethodOptions<'static> {
        ClientMethodOptions { context: Context::new().with_value(self.clone()) }
    }

    /// Our own error comes back as it was.
    fn failed(&self, error: azure_core::Error) -> Error {
        error.into_downcast().unwrap_or_else(|_| codes::odd(self, "the request could not be made"))
    }
}

/// What sends the SDK's requests.
struct Sender {
    account: Arc<Account>,
    http: Http,
}

// `Context<'_>` would be another signature than the trait's.
#[allow(elided_lifetimes_in_paths)]
#[async_trait]
impl Policy for Sender {
    async fn send(
        &self,
        context: &Context,
        request: &mut azure_core::http::Request,
        _: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        if request.headers().get_optional_str(&AUTHORIZATION).is_none() {
            let mut headers = Headers::new();
            headers.insert(WWW_AUTHENTICATE, CHALLENGE);
            return Ok(AsyncRawResponse::from_bytes(
                StatusCode::Unauthorized,
                headers,
                Bytes::new(),
            ));
        }
        let ours = |error: Error| azure_core::Error::new(ErrorKind::Other, error);
        let bug = || ours(Error::new(Kind::Bug, "a request of the SDK is not ours"));
        let deed = context.value::<Deed>().ok_or_else(bug)?;
        let Body::Bytes(body) = request.body().clone() else { return Err(bug()) };
        let method = if body.is_empty() { Method::GET } else { Method::POST };
        let mut sent = Request::new(method, request.path_and_query());
        sent.body = body;
        let answer = self.ask(deed, sent).await.map_err(ours)?;
        Ok(AsyncRawResponse::from_bytes(StatusCode::Ok, Headers::new(), answer.body))
    }
}

impl Sender {
    /// Asks with our token, at the gateway if there is one.
    async fn ask(&self, deed: &Deed, mut request: Request) -> Result<Answer, Error> {
        let Account { place, lease, .. } = &*self.account;
        self.account.wait(deed).await?;
        request.headers = headers(&request);
        let address = match &place.gateway {
            Some(gateway) => {
                request.path = format!("/{}{}", place.host, request.path);
                request.headers.insert(TARGET, HeaderValue::from_static("KeyVault"));
                gateway
            }
            None => {
                let host = HeaderValue::try_from(&place.host);
                let host = host.map_err(|_| codes::odd(deed, "its host is no name"))?;
                request.headers.insert(header::HOST, host);
                &place.endpoint
            }
        };
        let refuses = |answer: &Answer| answer.status == 401;
        let answer = lease.ask(&self.http, address, request, deed.deadline, refuses).await?;
        self.account.observe(&answer);
        if answer.status == 200 { Ok(answer) } else { Err(codes::refused(deed, &answer)) }
    }
}

fn headers(request: &Request) -> HeaderMap {
    let fixed = |text: &'static str| HeaderValue::from_static(text);
    let mut headers = HeaderMap::new();
    let mut put = |name: HeaderName, value| drop(headers.insert(name, value));
    put(header::ACCEPT, fixed("application/json"));
    put(header::USER_AGENT, fixed(AGENT));
    if !request.body.is_empty() {
        put(header::CONTENT_TYPE, fixed("application/json"));
    }
    headers
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

/// In the place of a token, which the transport puts on.
#[derive(Debug)]
struct Placeholder;

#[async_trait]
impl TokenCredential for Placeholder {
    async fn get_token(
        &self,
        _: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let end =
            OffsetDateTime::now_utc().saturating_add(azure_core::time::Duration::days(36_500));
        Ok(AccessToken::new("", end))
    }
}
