//! Who we are to Microsoft Entra ID, and the token that we have for it.
//!
//! A [`Lease`] renews the token in the background, for all keys of the same identity at once. The
//! files of the credentials are read by the runtime: a changed one makes another identity, and the
//! former serves until that one has proven itself.

use std::path::Path;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde_json::json;
use sidekey_core::certificate::Certificate;
use sidekey_core::{Error, Files, Kind, Secret, sha256};
use sidekey_rest::codes::{Code, code};
use sidekey_rest::files::one_line;
use sidekey_rest::lease::{Grant, Lease, Source};
use sidekey_rest::oauth::{Field, Form, Signer, TokenEndpoint};
use sidekey_rest::{Http, form};
use tokio::time::Instant;

use crate::account::PAUSE;
use crate::cloud::Base;
use crate::config::{Config, Place};
use crate::dropin::azure_json::AzureJson;
use crate::dropin::identity_file;

/// What a proxy in the place of vault and authority is told.
pub(crate) const TARGET: HeaderName = HeaderName::from_static("x-azure-proxy-target");

/// What is sent to log in. Not `Debug`: there are secrets in it.
pub(crate) enum Login {
    Secret(Secret),
    /// The token of another issuer, which Entra ID trusts for this client.
    Token(Secret),
    /// A certificate with its chain, leaf first, and its key: all of them in DER.
    Certificate {
        chain: Vec<Vec<u8>>,
        key: Secret,
    },
    /// The machine knows who we are.
    Managed,
}

/// Who logs in, and how.
pub(crate) struct Identity {
    pub(crate) tenant: String,
    pub(crate) client: Option<String>,
    /// Who issues tokens for it, if not the cloud.
    pub(crate) authority: Option<String>,
    pub(crate) login: Login,
}

/// A token endpoint, perhaps behind a gateway.
pub(crate) struct Entra {
    endpoint: TokenEndpoint,
    headers: HeaderMap,
}

#[rustfmt::skip]
const CODES: &[Code] = &[
    code("", "invalid_resource", Kind::Config, "check the cloud: the tenant knows no such service"),
    code("", "invalid_request", Kind::Denied, "check tenant, client and credential; of a managed identity, that it is assigned to this machine"),
    code("", "unauthorized_client|invalid_client", Kind::Denied, "check tenant, client and credential; of a federated token, the subject and issuer that the client trusts"),
];

impl Source for Entra {
    type Item = HeaderValue;

    async fn fetch(&self, deadline: Instant) -> Result<Grant<HeaderValue>, Error> {
        self.endpoint.fetch_with(self.headers.clone(), deadline).await
    }
}

impl Login {
    /// The end of the certificate, if there is one.
    pub(crate) fn certified(&self) -> Option<SystemTime> {
        let Self::Certificate { chain, .. } = self else { return None };
        Some(Certificate::parse(chain.first()?).ok()?.not_after)
    }
}

impl Identity {
    /// The one that the configuration names.
    pub(crate) fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let credentials = &config.credentials;
        if let Some(path) = &credentials.azure_json_file {
            return AzureJson::read(path, files)?.identity(files);
        }
        if let Some(path) = &credentials.identity_file {
            return identity_file::read(path, files);
        }
        let login = if let Some(path) = &credentials.certificate_file {
            let (chain, key) = pem(files.secret(path)?.expose(), path)?;
            Login::Certificate { chain, key }
        } else if let Some(path) = &credentials.federated_token_file {
            Login::Token(one_line(files, Some(path))?)
        } else if credentials.managed_identity {
            Login::Managed
        } else {
            Login::Secret(one_line(files, credentials.client_secret_file.as_deref())?)
        };
        let tenant = credentials.tenant_id.clone().unwrap_or_default();
        Ok(Self { tenant, client: credentials.client_id.clone(), authority: None, login })
    }

    /// Its token.
    pub(crate) fn lease(self, place: &Place, http: Http) -> Result<Lease<Entra>, Error> {
        let credential = self.credential();
        let resource = &place.resource;
        if let Login::Managed = self.login {
            let mut query = vec![("api-version", "2018-02-01"), ("resource", resource.as_str())];
            query.extend(self.client.as_deref().map(|client| ("client_id", client)));
            let query = form(&query);
            let path =
                format!("/metadata/identity/oauth2/token?{}", String::from_utf8_lossy(&query));
            let (address, form) = (place.metadata.clone(), Form::Get("metadata", "true"));
            let endpoint = TokenEndpoint { http, address, path, form, codes: CODES };
            return Ok(Lease::new(
                Entra { endpoint, headers: HeaderMap::new() },
                credential,
                PAUSE,
            ));
        }
        let base = match &self.authority {
            None => place.authority.clone(),
            Some(url) => {
                Base::parse(url).filter(|base| !base.address.is_exposed()).ok_or_else(|| {
                    Error::new(
                        Kind::Config,
                        format!("authentication_endpoint {url:?} is no https URL"),
                    )
                })?
            }
        };
        let path = format!("{}/{}/oauth2/v2.0/token", base.path, self.tenant);
        let form =
            self.form(&format!("{}{path}", base.address), &format!("{resource}/.default"))?;
        let mut headers = HeaderMap::new();
        let address = match &place.gateway {
            None => base.address,
            Some(gateway) => {
                headers.insert(TARGET, HeaderValue::from_static("AzureActiveDirectory"));
                gateway.clone()
            }
        };
        let endpoint = TokenEndpoint { http, address, path, form, codes: CODES };
        Ok(Lease::new(Entra { endpoint, headers }, credential, PAUSE))
    }

    fn form(self, audience: &str, scope: &str) -> Result<Form, Error> {
        let missing = || Error::new(Kind::Config, "the credentials name no client");
        let client = self.client.ok_or_else(missing)?;
        Ok(match self.login {
            Login::Secret(secret) => Form::secret(&client, secret, scope),
            Login::Token(token) => Form::assertion(&client, Field::Secret(token), scope),
            Login::Certificate { chain, key } => {
                let leaf = chain.first().map(Vec::as_slice).unwrap_or_default();
                let head = json!({
                    "x5t#S256": URL_SAFE_NO_PAD.encode(sha256(leaf)),
                    "x5c": chain.iter().map(|one| STANDARD.encode(one)).collect::<Vec<_>>(),
                });
                let claims = json!({"iss": client, "sub": client, "aud": audience});
                let signer = Signer::new(key.expose(), "PS256", head, claims)?;
                Form::assertion(&client, Field::Signed(signer), scope)
            }
            Login::Managed => return Err(missing()),
        })
    }

    /// The hash of role and secret.
    fn credential(&self) -> [u8; 32] {
        let secret = match &self.login {
            Login::Secret(secret) | Login::Token(secret) => secret.expose(),
            Login::Certificate { key, .. } => key.expose(),
            Login::Managed => b"",
        };
        let client = self.client.as_deref().unwrap_or_default();
        let who = sha256(format!("{} {client}", self.tenant).as_bytes());
        sha256(&[&who[..], &sha256(secret)[..]].concat())
    }
}

/// A certificate, those between it and its CA, and its key, in one text.
pub(crate) fn pem(text: &[u8], path: &Path) -> Result<(Vec<Vec<u8>>, Secret), Error> {
    let bad = |what: &str| {
        let text = format!("file {path:?} {what}");
        Error::new(Kind::Config, text).with_hint("write the certificate and its RSA key into it, as PEM, the key as PKCS#8 (BEGIN PRIVATE KEY)")
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let chain = chain.map_err(|_| bad("is not PEM"))?;
    let chain: Vec<_> = chain.into_iter().map(|one| one.to_vec()).collect();
    let key = PrivatePkcs8KeyDer::from_pem_slice(text).map_err(|_| bad("holds no private key"))?;
    let key = Secret::new(key.secret_pkcs8_der().to_vec());
    if chain.is_empty() { Err(bad("holds no certificate")) } else { Ok((chain, key)) }
}
