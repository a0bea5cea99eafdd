//! OKMS by REST: what is asked of it, what it answers, and what its refusals mean.
//!
//! Its codes are numbers that say in which of its parts something went wrong. The category among
//! their digits is what counts here, as `NotFound/17125377`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde_json::Value;
use sidekey_core::{Error, Kind, Sealed, Secret};
use sidekey_rest::codes::{Code, Refusal, code};
use sidekey_rest::{Address, Http, Limits, Proxy, Request, Trust, form, json, read};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::Target;
use crate::dropin::data::uuid;

/// More pages of a hundred keys than any domain has.
const MAX_PAGES: usize = 100;
/// Categories of codes, by their numbers.
#[rustfmt::skip]
const CATEGORIES: [&str; 9] = ["Unspecified", "Internal", "Argument", "Authentication", "Authorization", "NotFound", "Database", "Unavailable", "Argument"];
/// What is not here is judged by its HTTP status.
#[rustfmt::skip]
const CODES: &[Code] = &[
    code("", "TooManyRequests*", Kind::Throttled, "OKMS is asked too often: spread the load, or have OVHcloud raise the limit"),
    code("", "Authentication*", Kind::Denied, "OKMS does not know this certificate any more: make another access certificate and write it into credentials.certFile and keyFile"),
    code("", "Authorization*", Kind::Denied, "grant the certificate's user okms:apikms:serviceKey/get, /encrypt and /decrypt on this key; a label takes /get on all keys of the domain"),
    code("", "NotFound*", Kind::KeyState, "there is no such key in that domain: check kek.okmsId and kek.key; it is never made by this provider"),
    code("decrypt", "Argument*", Kind::Corrupt, "it was altered, or another key wrapped it"),
    code("", "Argument*", Kind::Config, "check kek: it must name a symmetric key with the operations encrypt and decrypt"),
];

/// A domain of OKMS, and the way to it.
pub(crate) struct Rest {
    http: Http,
    address: Address,
    /// Where its keys are.
    path: String,
}

/// What an encryption or a decryption answers.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answered {
    ciphertext: String,
    plaintext: String,
}

/// A refusal in OKMS's own form.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refused {
    error_code: Option<usize>,
    errors: Vec<String>,
    request_id: Option<String>,
}

impl Rest {
    pub(crate) fn new(address: Address, trust: &Trust, domain: &str) -> Self {
        let http = Http::new(trust, Proxy::new(None), Limits::default());
        Self { http, address, path: format!("/api/{domain}/v1/servicekey") }
    }

    /// Whether a key can be used.
    pub(crate) async fn look(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        let body = self.ask(["get", id, &format!("/{id}")], Bytes::new(), deadline).await?;
        let key: Value = read(&body, "get")?;
        if id_of(&key).as_deref() != Some(id) {
            return Err(odd("get", id, "the answer is about another key"));
        }
        let may =
            |what: &str| key["operations"].as_array().is_some_and(|all| all.contains(&what.into()));
        let (kind, why, hint) = match state(&key) {
            "active" if key["type"] == "oct" && may("encrypt") && may("decrypt") => return Ok(()),
            "active" => (
                Kind::Config,
                "not symmetric, or not for encrypt and decrypt",
                "name a key of type oct with these operations",
            ),
            state => (Kind::KeyState, state, "activate it; the data of a destroyed key is lost"),
        };
        Err(Error::new(kind, format!("service key {id} is {why}")).with_hint(hint))
    }

    /// The ids of the active keys that have a label.
    pub(crate) async fn find(&self, label: &str, deadline: Instant) -> Result<Vec<String>, Error> {
        let (mut found, mut query) = (Vec::new(), form(&[("state", "active")]));
        for _ in 0..MAX_PAGES {
            let path = format!("?{}", String::from_utf8_lossy(&query));
            let body = self.ask(["list", label, &path], Bytes::new(), deadline).await?;
            let page: Value = read(&body, "list")?;
            let keys = page["objects_list"].as_array();
            let keys = keys.ok_or_else(|| odd("list", label, "the answer is no list of keys"))?;
            let named = |key: &&Value| key["name"] == label && state(key) == "active";
            found.extend(keys.iter().filter(named).filter_map(id_of));
            let more = page["is_truncated"] == true;
            let next = page["continuation_token"].as_str().filter(|_| more);
            let Some(next) = next else { break };
            query = form(&[("continuation-token", next), ("state", "active")]);
        }
        Ok(found)
    }

    pub(crate) async fn encrypt(&self, to: &Target, plaintext: &[u8]) -> Result<Sealed, Error> {
        let text = Zeroizing::new(STANDARD.encode(plaintext));
        let ciphertext = self.post("encrypt", to, ("plaintext", &text)).await?.ciphertext;
        if ciphertext.is_empty() {
            return Err(odd("encrypt", &to.id, "there is no ciphertext"));
        }
        let (key_id, annotations) = (to.key_id.clone(), BTreeMap::new());
        Ok(Sealed { key_id, ciphertext: ciphertext.into(), annotations })
    }

    pub(crate) async fn decrypt(&self, to: &Target, sealed: &Sealed) -> Result<Secret, Error> {
        let foreign = |_| Error::new(Kind::Corrupt, "the ciphertext is no text, as OKMS writes it");
        let text = std::str::from_utf8(&sealed.ciphertext).map_err(foreign)?;
        let text = Zeroizing::new(self.post("decrypt", to, ("ciphertext", text)).await?.plaintext);
        match STANDARD.decode(text.as_bytes()) {
            Ok(plaintext) if !plaintext.is_empty() => Ok(Secret::new(plaintext)),
            _ => Err(odd("decrypt", &to.id, "there is no plaintext in base64")),
        }
    }

    /// OKMS refuses in one way what is wrong with the data, and with the key: that itself tells.
    async fn post(&self, action: &str, to: &Target, sent: (&str, &str)) -> Result<Answered, Error> {
        let mut body = BTreeMap::from([sent, ("context", &to.bound)]);
        body.retain(|_, value| !value.is_empty());
        let path = format!("/{}/{action}", to.id);
        match self.ask([action, &to.id, &path], json(&body), to.deadline).await {
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Config) => {
                let of_key = self.look(&to.id, to.deadline).await.err();
                let tells = |told: &Error| matches!(told.kind(), Kind::KeyState | Kind::Config);
                Err(of_key.filter(tells).unwrap_or(error))
            }
            body => read(&body?, action),
        }
    }

    /// The body of a good answer to an action on an object, which is asked for at a path.
    async fn ask(&self, about: [&str; 3], body: Bytes, deadline: Instant) -> Result<Bytes, Error> {
        let [action, object, path] = about;
        let method = if body.is_empty() { Method::GET } else { Method::POST };
        let mut request = Request { body, ..Request::new(method, format!("{}{path}", self.path)) };
        request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = self.http.ask(&self.address, request, deadline).await?;
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        let mut said: Refused = serde_json::from_slice(&answer.body).unwrap_or_default();
        said.errors.extend(said.request_id.map(|id| format!("request {id}")));
        let status = answer.status.as_u16();
        let code = said.error_code.map(|number| match CATEGORIES.get(number >> 12 & 15) {
            _ if status == 429 => format!("TooManyRequests/{number}"),
            category => format!("{}/{number}", category.unwrap_or(&CATEGORIES[0])),
        });
        let text = said.errors.join("; ");
        let refusal = Refusal { action, object, status, code: code.as_deref(), text: &text };
        Err(refusal.explain_of("OKMS", CODES))
    }
}

/// The state of a key as OKMS describes it; what it lists may be described without.
fn state(key: &Value) -> &str {
    key["attributes"]["state"].as_str().unwrap_or("active")
}

fn id_of(key: &Value) -> Option<String> {
    key["id"].as_str().and_then(uuid)
}

/// An answer that makes no sense may pass: a proxy may have given it.
fn odd(action: &str, object: &str, what: &str) -> Error {
    Error::new(Kind::Unavailable, format!("{action} on {object}: {what}"))
        .with_hint("see whether it is OKMS that answers, or a proxy in its place")
}
