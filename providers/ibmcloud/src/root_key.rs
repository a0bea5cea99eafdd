//! One root key: what is asked of Key Protect, and what its answers mean.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidekey_core::{Call, Error, KeyId, Kind, Provider, Secret, hex};
use sidekey_rest::codes::{Code, Refusal, code};
use sidekey_rest::naming::{Version, scope};
use sidekey_rest::{Address, Answer, Http, Request, json, read};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::IbmCloud;
use crate::config::Kek;
use crate::session::Session;

const JSON: &str = "application/json";
const CORRELATION: HeaderName = HeaderName::from_static("correlation-id");
/// States of a key; the others let it be used.
const SUSPENDED: u64 = 2;
const DESTROYED: u64 = 5;
/// What says that the token itself could not be used.
const BAD_TOKEN: &str = "BEARER_SUB_EXTRACTION_ERR";

/// What Key Protect's codes mean; what is not here is judged by its HTTP status.
#[rustfmt::skip]
const CODES: [Code; 6] = [
    code("actions/unwrap", "UNPROCESSABLE_CIPHERTEXT_ERR|BAD_BODY_ERR|INVALID_FIELD_ERR", Kind::Corrupt, "it was altered, or another key wrapped it"),
    code("", "KEY_NOT_FOUND_ERR|KEY_DELETED_ERR|INCOMPLETE_METADATA_ERR", Kind::KeyState, "restore the key while Key Protect still can (30 days), and never make another one in its place; check kek.instance, kek.key and settings.keyRing"),
    code("actions/wrap", "KEY_ACTION_INVALID_STATE_ERR|KEY_INVALID_STATE_ERR|KEY_EXPIRED_ERR", Kind::KeyState, "enable the key; if its expiration date has passed it can only decrypt: give the control plane a new key"),
    code("", "KEY_ACTION_INVALID_STATE_ERR|KEY_INVALID_STATE_ERR|KEY_EXPIRED_ERR", Kind::KeyState, "enable the key at Key Protect, or restore it if it was deleted"),
    code("", "KEY_ROOT_REQ_ERR|KEY_ROOT_REQ_REG_ERR", Kind::Config, "kek.key must be a root key: a standard key cannot wrap"),
    code("", "UNAUTHORIZED_ERR|BEARER_SUB_EXTRACTION_ERR|FORBIDDEN_ERR", Kind::Denied, "give the service ID or trusted profile the role Reader on this key, and check kek.instance"),
];

/// One root key and the way to it.
pub(crate) struct RootKey {
    session: Arc<Session>,
    /// The connections of all keys, with a limit of its own: one that hangs slows no other.
    http: Http,
    pub(crate) address: Address,
    pub(crate) id: String,
    /// What the key_ids of its versions begin with.
    pub(crate) scope: String,
    headers: HeaderMap,
}

/// One of the two.
#[derive(Serialize)]
struct Action<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    plaintext: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ciphertext: Option<&'a str>,
    aad: [&'a str; 1],
}

/// Borrowed from the answer, which is wiped. What else it holds is of no use here.
#[derive(Deserialize)]
struct Unwrapped<'a> {
    plaintext: &'a str,
}

impl RootKey {
    /// Instance and key are told apart in lower case, as Key Protect writes them.
    pub(crate) fn new(
        session: &Arc<Session>,
        address: Option<&String>,
        kek: &Kek,
        key_ring: Option<&str>,
        correlation: Option<&str>,
    ) -> Result<Self, Error> {
        let bad = |what: &str| Error::new(Kind::Config, format!("{what} cannot be used"));
        let address = address.and_then(|text| Address::parse(text).ok());
        let address = address.ok_or_else(|| bad("settings.address"))?;
        let lower = |id: &Option<String>| id.as_deref().map(str::to_ascii_lowercase);
        let ids = lower(&kek.instance).zip(lower(&kek.key));
        let (instance, id) = ids.ok_or_else(|| bad("kek"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (ACCEPT, Some(JSON)),
            (CONTENT_TYPE, Some(JSON)),
            (HeaderName::from_static("bluemix-instance"), Some(&*instance)),
            (HeaderName::from_static("x-kms-key-ring"), key_ring),
            (CORRELATION, correlation),
        ] {
            if let Some(value) = value.map(HeaderValue::from_str) {
                headers.insert(name, value.map_err(|_| bad("what is to be sent as a header"))?);
            }
        }
        let (session, http) = (session.clone(), session.http.separate());
        Ok(Self { session, http, address, scope: scope(&[&instance, &id]), id, headers })
    }

    /// The version that Key Protect wraps with now.
    pub(crate) async fn current(&self, deadline: Instant) -> Result<KeyId, Error> {
        // Nobody's call but ours.
        let uid = hex(Secret::random(16)?.expose());
        let call = Call { uid: &uid, deadline };
        let body = self.ask("metadata", Bytes::new(), &call).await?;
        let described: Value = read(&body, "metadata")?;
        let key = &described["resources"][0];
        let refused = |kind, what: &str, hint: &str| {
            Err(Error::new(kind, format!("root key {} {what}", self.id)).with_hint(hint))
        };
        match (key["extractable"].as_bool(), key["state"].as_u64()) {
            (Some(true), _) => {
                refused(Kind::Config, "is a standard key", "kek.key must be a root key")
            }
            (_, Some(SUSPENDED)) => refused(Kind::KeyState, "is suspended", "enable it"),
            (_, Some(DESTROYED)) => {
                refused(Kind::KeyState, "was deleted", "restore it while that can be done: 30 days")
            }
            _ => self.key_id(&key["keyVersion"]["id"]),
        }
    }

    /// Wraps, bound to a key_id, and says under which one that should have been: the version is
    /// chosen by Key Protect.
    pub(crate) async fn wrap(
        &self,
        bound: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<(String, KeyId), Error> {
        let text = Zeroizing::new(STANDARD.encode(plaintext));
        let body = Action { plaintext: Some(&text), ciphertext: None, aad: [bound.as_str()] };
        let body = self.ask("actions/wrap", json(&body), call).await?;
        let answer: Value = read(&body, "wrap")?;
        let ciphertext = answer["ciphertext"].as_str().ok_or_else(|| odd("no ciphertext"))?;
        Ok((ciphertext.to_owned(), self.key_id(&answer["keyVersion"]["id"])?))
    }

    pub(crate) async fn unwrap(
        &self,
        key_id: &KeyId,
        ciphertext: &[u8],
        call: &Call<'_>,
    ) -> Result<Secret, Error> {
        let foreign = |_| Error::new(Kind::Corrupt, "the ciphertext is not of Key Protect's form");
        let text = std::str::from_utf8(ciphertext).map_err(foreign)?;
        let body = Action { plaintext: None, ciphertext: Some(text), aad: [key_id.as_str()] };
        let body = self.ask("actions/unwrap", json(&body), call).await?;
        let Unwrapped { plaintext } = read(&body, "unwrap")?;
        STANDARD.decode(plaintext).map(Secret::new).map_err(|_| odd("unwrap: no base64"))
    }

    /// The body of a good answer.
    async fn ask(&self, action: &str, body: Bytes, call: &Call<'_>) -> Result<Bytes, Error> {
        let method = if body.is_empty() { Method::GET } else { Method::POST };
        let path = format!("/api/v2/keys/{}/{action}", self.id);
        let headers = self.headers.clone();
        let mut request = Request { method, path, headers, body, once: false };
        // Where none is configured: both sides' logs then tell of one request.
        if let Ok(uid) = HeaderValue::from_str(call.uid) {
            request.headers.entry(CORRELATION).or_insert(uid);
        }
        let (lease, http) = (&self.session.lease, &self.http);
        let answer = lease.ask(http, &self.address, request, call.deadline, refuses_token).await?;
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        let said = refused(&answer);
        let reason = &said["reasons"][0];
        let text = reason["message"].as_str().or_else(|| said["errorMsg"].as_str());
        let (object, status) = (self.id.as_str(), answer.status.as_u16());
        // In its own form it is its own also without a reason.
        let code = reason["code"].as_str().or_else(|| text.map(|_| "no code"));
        let refusal = Refusal { action, object, status, code, text: text.unwrap_or_default() };
        Err(refusal.explain_of("Key Protect", &CODES))
    }

    /// What cannot be read back must not be written.
    fn key_id(&self, version: &Value) -> Result<KeyId, Error> {
        let version = version.as_str().unwrap_or_default().to_owned();
        let used = Version { scope: self.scope.clone(), version };
        let key_id = used.key_id(IbmCloud::NAME).ok();
        let sound = key_id.filter(|key_id| {
            Version::parse(IbmCloud::NAME, key_id.as_str()).as_ref() == Some(&used)
        });
        sound.ok_or_else(|| odd("the answer names no version of a key"))
    }
}

/// Whether an answer says that the token was not good enough; the rights may be missing as well.
fn refuses_token(answer: &Answer) -> bool {
    answer.status.as_u16() == 401
        || (answer.status.is_client_error() && refused(answer)["reasons"][0]["code"] == BAD_TOKEN)
}

/// What Key Protect says of a refusal.
fn refused(answer: &Answer) -> Value {
    let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    said["resources"][0].clone()
}

/// An answer that makes no sense may pass: a proxy may have given it.
fn odd(what: &str) -> Error {
    Error::new(Kind::Unavailable, what)
        .with_hint("see whether it is Key Protect that answers, or a proxy in its place")
}
