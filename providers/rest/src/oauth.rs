//! Tokens of OAuth's endpoints, in the forms that KMSs ask for, as a [`Source`] for a
//! [`Lease`](crate::Lease).
//!
//! Secrets come from files, and a changed file makes a new client: so a grant holds what it sends.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sidekey_core::{Error, Kind, Secret};
use tokio::time::Instant;

use crate::address::Address;
use crate::body::{form, read};
use crate::codes::{Code, Refusal};
use crate::http::{Http, Request, secret_header};
use crate::lease::{Grant, Held, Source};

/// How long a signed assertion is good: it is sent at once.
const ASSERTED: u64 = 300;
const BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS: &str = "urn:ietf:params:oauth:token-type:access_token";

/// What is sent for a token. Not `Debug`: there are secrets in it.
pub enum Form {
    /// Client credentials with a secret.
    Secret {
        /// The client.
        client: String,
        /// Its secret.
        secret: Secret,
        /// What for.
        scope: String,
    },
    /// Client credentials with an assertion from a file, as of a workload identity.
    Assertion {
        /// The client.
        client: String,
        /// The token of another issuer.
        assertion: Secret,
        /// What for.
        scope: String,
    },
    /// Client credentials with an assertion that we sign ourselves.
    Signed {
        /// The client.
        client: String,
        /// What signs it.
        signer: Signer,
        /// What for.
        scope: String,
    },
    /// A JWT that we sign is the grant itself (RFC 7523).
    JwtBearer {
        /// What signs it; its claims name the scope.
        signer: Signer,
    },
    /// A key that is exchanged under the grant type that the vendor has for it.
    ApiKey {
        /// `urn:ibm:params:oauth:grant-type:apikey`, say.
        grant: &'static str,
        /// The key.
        key: Secret,
    },
    /// The token of another issuer is exchanged for one (RFC 8693).
    Exchange {
        /// That token.
        subject: Secret,
        /// Its type.
        subject_type: String,
        /// For whom.
        audience: String,
        /// What for.
        scope: String,
    },
    /// A metadata endpoint that knows who asks: nothing is sent but a header against browsers.
    Metadata {
        /// `Metadata-Flavor: Google`, `Metadata: true`.
        header: (&'static str, &'static str),
    },
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
    denied("invalid_client", "check the client and its secret or certificate"),
    denied("invalid_grant", "the token or assertion that was sent has expired or is not accepted"),
    denied("unauthorized_client", "let this client use this kind of login"),
    denied("access_denied", "check what this client may do"),
    Code { action: "", code: "invalid_scope", kind: Kind::Config, hint: "check the scope" },
    Code {
        action: "",
        code: "temporarily_unavailable",
        kind: Kind::Unavailable,
        hint: "the issuer of tokens is overloaded",
    },
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

const fn denied(code: &'static str, hint: &'static str) -> Code {
    Code { action: "", code, kind: Kind::Denied, hint }
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
    fn body(&self, now: SystemTime) -> Result<Bytes, Error> {
        let text = |secret: &Secret| {
            let text = secret.as_text().map(str::to_owned).map(zeroize::Zeroizing::new);
            text.ok_or_else(|| Error::new(Kind::Config, "a secret is not plain text"))
        };
        let client = ("grant_type", "client_credentials");
        let asserted = |client_id: &str, assertion: &str, scope: &str| {
            form(&[
                client,
                ("client_id", client_id),
                ("client_assertion_type", BEARER),
                ("client_assertion", assertion),
                ("scope", scope),
            ])
        };
        Ok(match self {
            Self::Secret { client: id, secret, scope } => {
                let secret = text(secret)?;
                form(&[client, ("client_id", id), ("client_secret", &secret), ("scope", scope)])
            }
            Self::Assertion { client, assertion, scope } => {
                asserted(client, &text(assertion)?, scope)
            }
            Self::Signed { client, signer, scope } => {
                asserted(client, &text(&signer.sign(now)?)?, scope)
            }
            Self::JwtBearer { signer } => {
                let assertion = text(&signer.sign(now)?)?;
                let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
                form(&[("grant_type", grant), ("assertion", &assertion)])
            }
            Self::ApiKey { grant, key } => form(&[("grant_type", grant), ("apikey", &text(key)?)]),
            Self::Exchange { subject, subject_type, audience, scope } => form(&[
                ("grant_type", EXCHANGE),
                ("requested_token_type", ACCESS),
                ("subject_token", &text(subject)?),
                ("subject_token_type", subject_type),
                ("audience", audience),
                ("scope", scope),
            ]),
            Self::Metadata { .. } => Bytes::new(),
        })
    }
}

impl Source for TokenEndpoint {
    /// `Bearer …`, as it is sent.
    type Item = HeaderValue;

    async fn fetch(
        &self,
        _: Option<Arc<Held<HeaderValue>>>,
        deadline: Instant,
    ) -> Result<Grant<HeaderValue>, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let method = match self.form {
            Form::Metadata { header: (name, value) } => {
                headers.insert(name, HeaderValue::from_static(value));
                Method::GET
            }
            _ => {
                let form = HeaderValue::from_static("application/x-www-form-urlencoded");
                headers.insert(CONTENT_TYPE, form);
                Method::POST
            }
        };
        let body = self.form.body(self.http.clock().now())?;
        let request = Request { method, path: self.path.clone(), headers, body, once: false };
        let answer = self.http.ask(&self.address, request, deadline).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refused(answer.status.as_u16(), &answer.body));
        }
        let token: Token = read(&answer.body, "the token endpoint")?;
        let access = zeroize::Zeroizing::new(token.access_token);
        let item = secret_header(&zeroize::Zeroizing::new(format!("Bearer {}", *access)))?;
        let seconds = token.expires_in.as_u64();
        let seconds = seconds.or_else(|| token.expires_in.as_str()?.parse().ok());
        Ok(Grant { item, life: seconds.map(Duration::from_secs) })
    }
}

impl TokenEndpoint {
    fn refused(&self, status: u16, body: &[u8]) -> Error {
        let refused: Refused = serde_json::from_slice(body).unwrap_or_default();
        let code = refused.error.as_str().map(str::to_owned).or(refused.code);
        let object = self.address.to_string();
        let refusal = Refusal {
            action: "the token endpoint",
            object: &object,
            status,
            code: code.as_deref(),
            text: &refused.error_description,
        };
        let codes: Vec<Code> = self.codes.iter().chain(&CODES).copied().collect();
        let error = refusal.explain(&codes);
        if error.kind() == Kind::Denied { error.lasting().after_reload() } else { error }
    }
}

/// Claims of an assertion for a token endpoint.
pub fn claims(issuer: &str, subject: &str, audience: &str) -> Value {
    json!({"iss": issuer, "sub": subject, "aud": audience})
}

#[cfg(test)]
mod tests;
