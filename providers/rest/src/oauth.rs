//! Tokens of OAuth's endpoints, in the forms that KMSs ask for, as a [`Source`] for a
//! [`Lease`](crate::Lease).
//!
//! Secrets come from files, and a changed file makes a new client: so a grant holds what it sends.

use std::time::{Duration, SystemTime};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use sidekey_core::{Error, Kind, Secret};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::address::Address;
use crate::body::{form, read};
use crate::codes::{Code, Refusal, code};
use crate::http::{Answer, Http, Request, secret_header};
use crate::lease::{Grant, LeftAlone, Source};

/// How long a signed assertion is good: it is sent at once.
const ASSERTED: u64 = 300;
const BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const JWT_GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS: &str = "urn:ietf:params:oauth:token-type:access_token";

/// What is sent for a token. Not `Debug`: there are secrets in it.
pub enum Form {
    /// Fields of a form.
    Post(Vec<(&'static str, Field)>),
    /// Nothing but a header against browsers: the endpoint knows who asks.
    Get(&'static str, &'static str),
}

/// What a field holds.
pub enum Field {
    /// A name or an address.
    Text(String),
    /// A secret, or the token of another issuer, as of a workload identity.
    Secret(Secret),
    /// A JWT that is signed when it is sent.
    Signed(Signer),
}

/// Signs JWTs with an RSA key.
pub struct Signer {
    key: RsaKeyPair,
    padding: &'static dyn RsaEncoding,
    head: Value,
    claims: Value,
}

/// An endpoint and what is sent there.
pub struct TokenEndpoint {
    /// The client that it is asked with.
    pub http: Http,
    /// Where it is.
    pub address: Address,
    /// Path and query.
    pub path: String,
    /// What is sent.
    pub form: Form,
    /// What its codes mean, before those of OAuth itself.
    pub codes: &'static [Code],
}

/// What OAuth's own codes mean (RFC 6749, 5.2).
const CODES: [Code; 6] = [
    code("", "invalid_client", Kind::Denied, "check the client and its secret or certificate"),
    code(
        "",
        "invalid_grant",
        Kind::Denied,
        "the token or assertion that was sent has expired or is not accepted",
    ),
    code("", "unauthorized_client", Kind::Denied, "let this client use this kind of login"),
    code("", "access_denied", Kind::Denied, "check what this client may do"),
    code("", "invalid_scope", Kind::Config, "check the scope"),
    code("", "temporarily_unavailable", Kind::Unavailable, "the issuer of tokens is overloaded"),
];

#[derive(Deserialize)]
struct Token {
    access_token: String,
    /// Some write it as text.
    #[serde(default)]
    expires_in: Value,
}

#[derive(Default, Deserialize)]
struct Refused {
    #[serde(default)]
    error: Value,
    #[serde(default, alias = "errorMessage")]
    error_description: String,
    #[serde(default, rename = "errorCode")]
    code: Option<String>,
}

impl Signer {
    /// Signs with an RSA key in DER (PKCS#8), by RS256 or PS256. `head` and `claims` are what
    /// vendors ask for beyond the algorithm and the times.
    pub fn new(key: &[u8], algorithm: &str, mut head: Value, claims: Value) -> Result<Self, Error> {
        let key = RsaKeyPair::from_pkcs8(key).map_err(|error| {
            Error::new(Kind::Config, format!("the private key cannot be used: {error}"))
                .with_hint("give an RSA key of at least 2048 bits, as PKCS#8")
        })?;
        let padding: &dyn RsaEncoding = match algorithm {
            "RS256" => &RSA_PKCS1_SHA256,
            "PS256" => &RSA_PSS_SHA256,
            _ => return Err(Error::new(Kind::Bug, format!("JWTs are not signed by {algorithm}"))),
        };
        head["alg"] = algorithm.into();
        head["typ"] = "JWT".into();
        Ok(Self { key, padding, head, claims })
    }

    /// A JWT that is good from `now` on.
    pub fn sign(&self, now: SystemTime) -> Result<Secret, Error> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut claims = self.claims.clone();
        claims["iat"] = now.into();
        claims["nbf"] = now.into();
        claims["exp"] = (now + ASSERTED).into();
        let bug = |_| Error::new(Kind::Bug, "the JWT cannot be signed");
        claims["jti"] = sidekey_core::hex(Secret::random(16)?.expose()).into();
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let mut text = format!("{}.{}", encode(&self.head), encode(&claims));
        let mut signature = vec![0; self.key.public_modulus_len()];
        let random = SystemRandom::new();
        self.key.sign(self.padding, &random, text.as_bytes(), &mut signature).map_err(bug)?;
        text.push('.');
        text.push_str(&URL_SAFE_NO_PAD.encode(&signature));
        Ok(Secret::new(text.into_bytes()))
    }
}

impl Form {
    /// Client credentials with a secret.
    pub fn secret(client: &str, secret: Secret, scope: &str) -> Self {
        Self::client(client, scope, vec![("client_secret", Field::Secret(secret))])
    }

    /// Client credentials with an assertion: from a file, or signed by us (RFC 7521).
    pub fn assertion(client: &str, assertion: Field, scope: &str) -> Self {
        let kind = ("client_assertion_type", text(BEARER));
        Self::client(client, scope, vec![kind, ("client_assertion", assertion)])
    }

    /// A JWT that we sign is the grant itself (RFC 7523); its claims name the scope.
    pub fn jwt_bearer(signer: Signer) -> Self {
        Self::grant(JWT_GRANT, vec![("assertion", Field::Signed(signer))])
    }

    /// A key, under the grant type that the vendor has for it.
    pub fn api_key(grant: &str, key: Secret) -> Self {
        Self::grant(grant, vec![("apikey", Field::Secret(key))])
    }

    /// The token of another issuer is exchanged for one (RFC 8693).
    pub fn exchange(subject: Secret, subject_type: &str, audience: &str, scope: &str) -> Self {
        let fields = vec![
            ("requested_token_type", text(ACCESS)),
            ("subject_token", Field::Secret(subject)),
            ("subject_token_type", text(subject_type)),
            ("audience", text(audience)),
            ("scope", text(scope)),
        ];
        Self::grant(EXCHANGE, fields)
    }

    fn client(client: &str, scope: &str, mut fields: Vec<(&'static str, Field)>) -> Self {
        fields.extend([("client_id", text(client)), ("scope", text(scope))]);
        Self::grant("client_credentials", fields)
    }

    fn grant(grant: &str, mut fields: Vec<(&'static str, Field)>) -> Self {
        fields.insert(0, ("grant_type", text(grant)));
        Self::Post(fields)
    }

    fn body(&self, now: SystemTime) -> Result<Bytes, Error> {
        let Self::Post(fields) = self else { return Ok(Bytes::new()) };
        let value = |field: &Field| {
            let text = match field {
                Field::Text(text) => Some(text.clone()),
                Field::Secret(secret) => secret.as_text().map(str::to_owned),
                Field::Signed(signer) => signer.sign(now)?.as_text().map(str::to_owned),
            };
            let bad = || Error::new(Kind::Config, "a secret is not plain text");
            text.map(Zeroizing::new).ok_or_else(bad)
        };
        let values: Vec<_> =
            fields.iter().map(|(_, field)| value(field)).collect::<Result<_, _>>()?;
        let pairs = fields.iter().zip(&values).map(|((name, _), value)| (*name, value.as_str()));
        Ok(form(&pairs.collect::<Vec<_>>()))
    }
}

fn text(text: &str) -> Field {
    Field::Text(text.to_owned())
}

impl Source for TokenEndpoint {
    /// `Bearer …`, as it is sent.
    type Item = HeaderValue;

    async fn fetch(&self, deadline: Instant) -> Result<Grant<HeaderValue>, Error> {
        self.fetch_with(HeaderMap::new(), deadline).await
    }
}

impl TokenEndpoint {
    /// Gets a token with headers that what stands before the endpoint asks for.
    pub async fn fetch_with(
        &self,
        mut headers: HeaderMap,
        deadline: Instant,
    ) -> Result<Grant<HeaderValue>, Error> {
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let (method, name, value) = match self.form {
            Form::Get(name, value) => (Method::GET, HeaderName::from_static(name), value),
            Form::Post(_) => (Method::POST, CONTENT_TYPE, "application/x-www-form-urlencoded"),
        };
        headers.insert(name, HeaderValue::from_static(value));
        let body = self.form.body(self.http.clock().now())?;
        let request = Request { method, path: self.path.clone(), headers, body, once: false };
        let answer = self.http.ask(&self.address, request, deadline).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refused(&answer));
        }
        let token: Token = read(&answer.body, "the token endpoint")?;
        let access = Zeroizing::new(token.access_token);
        let item = secret_header(&Zeroizing::new(format!("Bearer {}", *access)))?;
        let seconds = token.expires_in.as_u64();
        let seconds = seconds.or_else(|| token.expires_in.as_str()?.parse().ok());
        Ok(Grant { item, life: seconds.map(Duration::from_secs) })
    }

    fn refused(&self, answer: &Answer) -> Error {
        let refused: Refused = serde_json::from_slice(&answer.body).unwrap_or_default();
        // Google's gateways write an object, as its other services do.
        let code = refused.error.as_str().or_else(|| refused.error["status"].as_str());
        let code = code.map(str::to_owned).or(refused.code);
        let object = self.address.to_string();
        let refusal = Refusal {
            action: "the token endpoint",
            object: &object,
            status: answer.status.as_u16(),
            code: code.as_deref(),
            text: &refused.error_description,
        };
        let codes: Vec<Code> = self.codes.iter().chain(&CODES).copied().collect();
        let error = refusal.explain_of("the issuer of tokens", &codes);
        match (error.kind(), answer.retry_after()) {
            (Kind::Denied, _) => error.lasting().after_reload(),
            (_, Some(pause)) => error.with_source(LeftAlone(pause)),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests;
