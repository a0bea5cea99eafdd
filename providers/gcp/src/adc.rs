//! Application Default Credentials, by which all of Google's own clients know who they are: credential
//! files, the metadata server, and what their tokens are exchanged for.
//!
//! A file names the addresses that it is sent to. What is written there is believed, as Google's own
//! clients do, but nothing leaves in plain text; but for the metadata server, which is near and
//! speaks nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use sidekey_core::{Error, Files, Kind, Secret};
use sidekey_rest::codes::{Code, code};
use sidekey_rest::lease::{Grant, Source};
use sidekey_rest::oauth::{Field, Form, Signer, TokenEndpoint};
use sidekey_rest::{Address, Http, Request, read, secret_header};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::codes::{odd, refused};
use crate::config::{Config, Credentials};
use crate::dropin::gce;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";
const QUOTA_PROJECT: HeaderName = HeaderName::from_static("x-goog-user-project");
/// Begins as the calls of IAM do in the table of codes.
pub(crate) const IMPERSONATE: &str = "iam:generateAccessToken";
const METADATA: &str = "169.254.169.254";
const METADATA_PATH: &str = "/computeMetadata/v1/instance/service-accounts/default/token";
/// Where credentials may be had in plain text: Google's metadata server, and other clouds' at the
/// same address.
const NEAR: [&str; 2] = [METADATA, "metadata.google.internal"];
const NO_MACHINE: &str = "outside of Google Cloud there is no metadata server: set \
                          credentials.file, or GOOGLE_APPLICATION_CREDENTIALS";
/// How long a service account's token is asked for.
const LIFE: u64 = 3600;

/// What Google's token endpoints say beyond OAuth's own codes.
#[rustfmt::skip]
const CODES: &[Code] = &[
    code("", "invalid_target|invalid_request", Kind::Denied, "check audience and subject_token_type in the credential file, and the workload identity pool"),
    code("", "deleted_client|account_disabled", Kind::Denied, "the account was deleted or disabled"),
];

/// Where tokens come from.
pub(crate) struct Login {
    pub(crate) name: String,
    /// What goes with every call: who pays, where a person's credentials say so.
    pub(crate) headers: HeaderMap,
    http: Http,
    first: First,
    /// What the first token is exchanged for.
    then: Option<Exchange>,
}

enum First {
    /// An emulator asks nobody.
    Nobody,
    Token(TokenEndpoint),
    /// The token of another issuer is asked for each time.
    Federated(Subject),
}

/// A token of another issuer, and where it is exchanged.
struct Subject {
    from: Place,
    headers: HeaderMap,
    field: Option<String>,
    endpoint: Place,
    kind: String,
    audience: String,
}

/// A call that gives another token for one.
struct Exchange {
    action: &'static str,
    place: Place,
    body: Bytes,
}

type Place = (Address, String);

/// What gcloud, IAM and its consoles write. Not `Debug`: there are secrets in it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Adc {
    r#type: String,
    client_email: String,
    private_key_id: String,
    #[serde(deserialize_with = "secret")]
    private_key: Secret,
    token_uri: Option<String>,
    client_id: String,
    #[serde(deserialize_with = "secret")]
    client_secret: Secret,
    #[serde(deserialize_with = "secret")]
    refresh_token: Secret,
    quota_project_id: Option<String>,
    audience: String,
    subject_token_type: String,
    token_url: String,
    credential_source: CredentialSource,
    service_account_impersonation_url: Option<String>,
    service_account_impersonation: Impersonation,
    source_credentials: Option<Box<Adc>>,
    delegates: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CredentialSource {
    file: Option<PathBuf>,
    url: Option<String>,
    headers: BTreeMap<String, String>,
    format: Format,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Format {
    subject_token_field_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Impersonation {
    token_lifetime_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exchanged {
    #[serde(deserialize_with = "secret")]
    access_token: Secret,
    expire_time: String,
}

/// The credential file: the one that is named, here or in the environment, or lies where gcloud
/// writes it.
pub(crate) fn file(credentials: &Credentials) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = credentials.file.clone();
    let named = named.or_else(|| set("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from));
    let usual = || {
        let home = set("HOME").map(|home| PathBuf::from(home).join(".config/gcloud"));
        let dir = set("CLOUDSDK_CONFIG").map(PathBuf::from).or(home)?;
        Some(dir.join("application_default_credentials.json")).filter(|path| path.is_file())
    };
    let found = named.or_else(usual).filter(|_| !credentials.anonymous);
    found.and_then(|path| std::path::absolute(path).ok())
}

/// The files that those of the configuration name in turn.
pub(crate) fn named_files(config: &Config, files: &Files) -> Vec<PathBuf> {
    let adc = file(&config.credentials).and_then(|path| adc(&path, files).ok());
    let sources = adc.iter().flat_map(|adc| [Some(adc), adc.source_credentials.as_deref()]);
    sources.flatten().filter_map(|adc| adc.credential_source.path()).collect()
}

impl CredentialSource {
    fn path(&self) -> Option<PathBuf> {
        self.file.as_ref().and_then(|path| std::path::absolute(path).ok())
    }
}

fn adc(path: &Path, files: &Files) -> Result<Adc, Error> {
    serde_json::from_slice(files.secret(path)?.expose()).map_err(|error| {
        let text = format!("{path:?} holds no Google credentials (line {})", error.line());
        bad(&text)
    })
}

impl Login {
    /// What the configuration and its files say.
    pub(crate) fn new(config: &Config, files: &Files, http: &Http) -> Result<Self, Error> {
        let maker = Maker { files, http, plain: config.settings.allow_plaintext };
        if config.credentials.anonymous {
            return Ok(maker.made("nobody", First::Nobody));
        }
        if let Some((url, body)) = gce::exchange(config, files)? {
            let mut login = maker.metadata()?;
            let place = maker.place(&url)?;
            login.then = Some(Exchange { action: "gce:token", place, body });
            return Ok(login);
        }
        match file(&config.credentials) {
            Some(path) => maker.login(&adc(&path, files)?),
            None => maker.metadata(),
        }
    }
}

/// Makes logins of what was read.
struct Maker<'a> {
    files: &'a Files,
    http: &'a Http,
    plain: bool,
}

impl Maker<'_> {
    fn metadata(&self) -> Result<Login, Error> {
        let host = std::env::var("GCE_METADATA_HOST").ok().filter(|host| !host.is_empty());
        let url = format!("http://{}{METADATA_PATH}", host.as_deref().unwrap_or(METADATA));
        let place = Address::of(&uri(&url)?).ok_or_else(|| bad("GCE_METADATA_HOST is no host"))?;
        let form = Form::Get("metadata-flavor", "Google");
        let first = self.token((place, METADATA_PATH.to_owned()), form);
        Ok(self.made("metadata server", first))
    }

    fn login(&self, adc: &Adc) -> Result<Login, Error> {
        let name = adc.r#type.as_str();
        let mut login = match name {
            "service_account" => self.made(name, self.service_account(adc)?),
            "authorized_user" => self.made(name, self.user(adc)?),
            "external_account" => self.made(name, self.federated(adc)?),
            "impersonated_service_account" => {
                let source = adc.source_credentials.as_deref();
                let source = source.filter(|source| source.source_credentials.is_none());
                let source = source.ok_or_else(|| bad("source_credentials is missing"))?;
                let login = self.login(source)?;
                if login.then.is_some() {
                    return Err(bad("source_credentials impersonate somebody themselves"));
                }
                Login { name: name.to_owned(), ..login }
            }
            _ => {
                return Err(bad(&format!("credentials of type {name:?} cannot be used"))
                    .with_hint("service_account, external_account, impersonated_service_account and authorized_user can"));
            }
        };
        if let Some(url) = &adc.service_account_impersonation_url {
            let life = adc.service_account_impersonation.token_lifetime_seconds.unwrap_or(LIFE);
            let body = json!({"scope": [SCOPE], "delegates": adc.delegates, "lifetime": format!("{life}s")});
            let (place, body) = (self.place(url)?, body.to_string().into());
            login.then = Some(Exchange { action: IMPERSONATE, place, body });
        }
        if let Some(project) = &adc.quota_project_id {
            let project = HeaderValue::try_from(project).map_err(|_| bad("quota_project_id"))?;
            login.headers.insert(QUOTA_PROJECT, project);
        }
        Ok(login)
    }

    fn service_account(&self, adc: &Adc) -> Result<First, Error> {
        let uri = adc.token_uri.as_deref().unwrap_or(TOKEN_URI);
        let pem = adc.private_key.as_text().unwrap_or_default();
        let lines = pem.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
        let text = Zeroizing::new(lines.collect::<String>());
        let key = STANDARD.decode(&*text).map(Zeroizing::new);
        let key = key.map_err(|_| bad("private_key is not PEM"))?;
        let claims = json!({"iss": adc.client_email, "aud": uri, "scope": SCOPE});
        let signer = Signer::new(&key, "RS256", json!({"kid": adc.private_key_id}), claims)?;
        Ok(self.token(self.place(uri)?, Form::jwt_bearer(signer)))
    }

    fn user(&self, adc: &Adc) -> Result<First, Error> {
        let form = Form::Post(vec![
            ("grant_type", Field::Text("refresh_token".into())),
            ("client_id", Field::Text(adc.client_id.clone())),
            ("client_secret", Field::Secret(adc.client_secret.clone())),
            ("refresh_token", Field::Secret(adc.refresh_token.clone())),
        ]);
        let uri = adc.token_uri.as_deref().unwrap_or(TOKEN_URI);
        Ok(self.token(self.place(uri)?, form))
    }

    fn federated(&self, adc: &Adc) -> Result<First, Error> {
        let source = &adc.credential_source;
        let (endpoint, field) =
            (self.place(&adc.token_url)?, &source.format.subject_token_field_name);
        let (kind, audience) = (adc.subject_token_type.clone(), adc.audience.clone());
        if let Some(path) = source.path() {
            let subject = subject(self.files.secret(&path)?.expose(), field);
            let subject =
                subject.ok_or_else(|| bad(&format!("{path:?} holds no subject token")))?;
            let form = Form::exchange(subject, &kind, &audience, SCOPE);
            return Ok(self.token(endpoint, form));
        }
        let url = source.url.as_deref().ok_or_else(|| {
            bad("credential_source has neither file nor url")
                .with_hint("programs, AWS's and certificates are no source here: have the token written into a file")
        })?;
        let mut headers = HeaderMap::new();
        for (name, value) in &source.headers {
            let name = HeaderName::try_from(name).map_err(|_| bad("credential_source.headers"))?;
            headers.insert(name, secret_header(value)?);
        }
        let (from, field) = (self.place(url)?, field.clone());
        Ok(First::Federated(Subject { from, headers, field, endpoint, kind, audience }))
    }

    fn token(&self, (address, path): Place, form: Form) -> First {
        First::Token(TokenEndpoint { http: self.http.clone(), address, path, form, codes: CODES })
    }

    fn made(&self, name: &str, first: First) -> Login {
        let (name, http) = (name.to_owned(), self.http.clone());
        Login { name, headers: HeaderMap::new(), http, first, then: None }
    }

    /// Where a URL of a credential file leads.
    fn place(&self, url: &str) -> Result<Place, Error> {
        let uri = uri(url)?;
        let address = Address::of(&uri).ok_or_else(|| bad(&format!("{url:?} is no address")))?;
        let near = uri.host().is_some_and(|host| NEAR.contains(&host));
        if address.is_exposed() && !near && !self.plain {
            return Err(bad(&format!("{url:?} is plain HTTP to another machine")));
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok((address, path.to_owned()))
    }
}

impl Source for Login {
    type Item = HeaderValue;

    async fn fetch(&self, deadline: Instant) -> Result<Grant<HeaderValue>, Error> {
        let grant = match &self.first {
            First::Nobody => Grant { item: HeaderValue::from_static("Bearer none"), life: None },
            First::Token(endpoint) => endpoint.fetch(deadline).await.map_err(|error| {
                let is_machine = matches!(endpoint.form, Form::Get(..));
                if is_machine { error.with_hint(NO_MACHINE) } else { error }
            })?,
            First::Federated(subject) => self.federate(subject, deadline).await?,
        };
        match &self.then {
            Some(exchange) => self.exchange(exchange, &grant.item, deadline).await,
            None => Ok(grant),
        }
    }
}

impl Login {
    async fn federate(
        &self,
        from: &Subject,
        deadline: Instant,
    ) -> Result<Grant<HeaderValue>, Error> {
        let (address, path) = &from.from;
        let mut request = Request::new(Method::GET, path);
        request.headers = from.headers.clone();
        let answer = self.http.ask(address, request, deadline).await?;
        if !answer.status.is_success() {
            return Err(refused("the subject token", &address.to_string(), &answer));
        }
        let subject = subject(&answer.body, &from.field);
        let subject =
            subject.ok_or_else(|| odd("get", &address.to_string(), "it is no subject token"))?;
        let form = Form::exchange(subject, &from.kind, &from.audience, SCOPE);
        let (address, path) = from.endpoint.clone();
        let http = self.http.clone();
        TokenEndpoint { http, address, path, form, codes: CODES }.fetch(deadline).await
    }

    async fn exchange(
        &self,
        exchange: &Exchange,
        token: &HeaderValue,
        deadline: Instant,
    ) -> Result<Grant<HeaderValue>, Error> {
        let Exchange { action, place: (address, path), body } = exchange;
        let mut request = Request::new(Method::POST, path);
        request.headers.insert(AUTHORIZATION, token.clone());
        request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.body = body.clone();
        let answer = self.http.ask(address, request, deadline).await?;
        if !answer.status.is_success() {
            let error = refused(action, path, &answer);
            let is_final = error.kind() == Kind::Denied;
            return Err(if is_final { error.lasting().after_reload() } else { error });
        }
        let exchanged: Exchanged = read(&answer.body, action)?;
        let end = humantime::parse_rfc3339(&exchanged.expire_time);
        let end =
            end.map_err(|_| Error::new(Kind::Unavailable, format!("{action}: no expireTime")))?;
        let access = exchanged.access_token.as_text().unwrap_or_default();
        let item = secret_header(&Zeroizing::new(format!("Bearer {access}")))?;
        Ok(Grant { item, life: Some(self.http.clock().until(end)) })
    }
}

/// A subject token: one word, or a field of JSON.
fn subject(text: &[u8], field: &Option<String>) -> Option<Secret> {
    let token = match field {
        None => text.trim_ascii().to_vec(),
        Some(field) => match serde_json::from_slice::<Value>(text).ok()?.get_mut(field)?.take() {
            Value::String(token) => token.into_bytes(),
            _ => return None,
        },
    };
    let token = Secret::new(token);
    let sound = token.expose().iter().all(u8::is_ascii_graphic) && !token.expose().is_empty();
    sound.then_some(token)
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    Ok(Secret::new(String::deserialize(deserializer)?.into_bytes()))
}

fn uri(url: &str) -> Result<Uri, Error> {
    url.parse().map_err(|_| bad(&format!("{url:?} is no address")))
}

fn bad(what: &str) -> Error {
    Error::new(Kind::Config, format!("the credentials cannot be used: {what}"))
        .with_hint("check the file that credentials name, or GOOGLE_APPLICATION_CREDENTIALS")
}
