//! `kek`, `settings` and `credentials` of one key.

use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use http::header::HeaderValue;
use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_core::{Error, Files, Kind, Secret};
use sidekey_rest::codes::{Code, code};
use sidekey_rest::files::{check_absolute, one_line};
use sidekey_rest::oauth::{Field, Form, TokenEndpoint};
use sidekey_rest::{Address, Http, Trust, tls};

use crate::dropin::given::given;
use crate::dropin::older::OlderKek;
use crate::root_key::RootKey;
use crate::session::Session;

/// Longest name of a key ring, profile or correlation.
const MAX_NAME: usize = 255;
/// Where IAM gives out tokens; `/oidc/token` is its older form.
const TOKEN_URL: &str = "https://iam.cloud.ibm.com/identity/token";
const API_KEY_GRANT: &str = "urn:ibm:params:oauth:grant-type:apikey";
const COMPUTE_GRANT: &str = "urn:ibm:params:oauth:grant-type:cr-token";

/// What IAM's codes mean; what is not here is judged by its HTTP status.
#[rustfmt::skip]
const CODES: [Code; 2] = [
    code("", "BXNIM0415E", Kind::Denied, "the API key was deleted or belongs to another cloud: write a new one into its file"),
    code("", "BXNIM0106E|BXNIM0308E|BXNIM0407E|BXNIM0408E|BXNIM05*", Kind::Denied, "see whether the trusted profile trusts this token's issuer, namespace and service account"),
];

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    kek: Kek,
    settings: Settings,
    credentials: Credentials,
}

/// Which root key it is, wherever its instance can be reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Kek {
    pub(crate) instance: Option<String>,
    pub(crate) key: Option<String>,
}

/// How the instance is reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Settings {
    pub(crate) address: Option<String>,
    key_ring: Option<String>,
    correlation_id: Option<String>,
    token_url: Option<String>,
    ca_file: Option<PathBuf>,
    pub(crate) allow_plaintext: bool,
    older_keks: Vec<OlderKek>,
}

/// Who we are: a service ID by its API key, or a trusted profile by a token of this cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Credentials {
    api_key_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    profile_id: Option<String>,
    profile_name: Option<String>,
    /// The API key was given in the environment.
    given: bool,
}

impl Config {
    /// Reports every mistake.
    pub(crate) fn check(&self, problems: &mut Problems) {
        problems.within("kek", |problems| self.kek.check(problems));
        problems.within("settings", |problems| self.settings.check(problems));
        problems.within("credentials", |problems| self.credentials.check(problems));
    }

    /// Everything that a client is made of.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let Credentials { api_key_file, token_file, .. } = &self.credentials;
        let files = [api_key_file, token_file].into_iter().flatten().cloned();
        files.chain(tls::bundle(self.settings.ca_file.as_deref())).collect()
    }

    /// The key that encrypts.
    pub(crate) fn key(&self, session: &Arc<Session>) -> Result<RootKey, Error> {
        let Settings { address, key_ring, correlation_id, .. } = &self.settings;
        let (ring, correlation) = (key_ring.as_deref(), correlation_id.as_deref());
        RootKey::new(session, address.as_ref(), &self.kek, ring, correlation)
    }

    /// The keys that are read on its socket.
    pub(crate) fn older(&self, session: &Arc<Session>) -> Result<Vec<RootKey>, Error> {
        self.settings.older_keks.iter().map(|kek| kek.key(session, &self.settings)).collect()
    }

    /// What makes a login another one, but for what is in files.
    pub(crate) fn login(&self) -> String {
        format!("{:?}\n{:?}", self.settings.token_url, self.credentials)
    }

    /// What is sent to IAM as proof of who we are.
    pub(crate) fn secret(&self, files: &Files) -> Result<Secret, Error> {
        let Credentials { api_key_file, token_file, given: said, .. } = &self.credentials;
        match given().filter(|_| *said) {
            Some(secret) => Ok(Secret::new(secret.expose().to_vec())),
            None => one_line(files, api_key_file.as_deref().or(token_file.as_deref())),
        }
    }

    pub(crate) fn token_endpoint(
        &self,
        http: &Http,
        secret: Secret,
    ) -> Result<TokenEndpoint, Error> {
        let named = |field, name: &Option<String>| Some((field, Field::Text(name.clone()?)));
        let Credentials { profile_id, profile_name, .. } = &self.credentials;
        let profile = named("profile_id", profile_id);
        let form = match profile.or_else(|| named("profile_name", profile_name)) {
            None => Form::api_key(API_KEY_GRANT, secret),
            Some(profile) => Form::Post(vec![
                ("grant_type", Field::Text(COMPUTE_GRANT.to_owned())),
                ("cr_token", Field::Secret(secret)),
                profile,
            ]),
        };
        let bad = || Error::new(Kind::Config, "settings.tokenUrl cannot be used");
        let (address, path) = self.settings.token_url().ok_or_else(bad)?;
        // One that hangs must not take the turns of those who have a token.
        Ok(TokenEndpoint { http: http.separate(), address, path, form, codes: &CODES })
    }

    /// How servers are trusted.
    pub(crate) fn trust(&self, files: &Files) -> Result<Trust, Error> {
        Trust::of_settings(self.settings.ca_file.as_deref(), files, "settings.caFile")
    }
}

impl Kek {
    /// A name or an alias is no id: it can be turned to another key, and what the first one wrote
    /// would be lost in silence.
    pub(crate) fn check(&self, problems: &mut Problems) {
        for (field, value) in [("instance", &self.instance), ("key", &self.key)] {
            let is_id = |text: &str| {
                let hex = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
                hex && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
            };
            if problems.require(field, value).is_some_and(|text| !is_id(text)) {
                let text = "is no id: write 8-4-4-4-12 hex digits; names and aliases can be turned to another key";
                problems.add(field, text);
            }
        }
    }
}

impl Settings {
    fn check(&self, problems: &mut Problems) {
        if let Some(text) = problems.require("address", &self.address) {
            Address::check("address", text, self.allow_plaintext, problems);
        }
        match self.token_url() {
            Some((address, _)) => {
                address.check_exposed("tokenUrl", self.allow_plaintext, problems);
            }
            None => problems.add("tokenUrl", "is no URL of IAM: write https://host/identity/token"),
        }
        check_name("keyRing", self.key_ring.as_deref(), problems);
        check_name("correlationId", self.correlation_id.as_deref(), problems);
        check_absolute(&[("caFile", self.ca_file.as_deref())], problems);
        OlderKek::check_all(&self.older_keks, self, problems);
    }

    /// Where tokens are had, and the path there.
    fn token_url(&self) -> Option<(Address, String)> {
        let uri: Uri = self.token_url.as_deref().unwrap_or(TOKEN_URL).parse().ok()?;
        let path = if uri.path() == "/" { "/identity/token" } else { uri.path() };
        uri.query().is_none().then_some((Address::of(&uri)?, path.to_owned()))
    }
}

impl Credentials {
    fn check(&self, problems: &mut Problems) {
        let ways = [self.api_key_file.is_some(), self.token_file.is_some(), self.given];
        if ways.into_iter().filter(|way| *way).count() != 1 {
            problems.add("", "needs exactly one of apiKeyFile and tokenFile");
        }
        if self.given && given().is_none() {
            problems.add("given", "is for a key in the environment: name a file instead");
        }
        let profiles = [&self.profile_id, &self.profile_name].into_iter().flatten().count();
        match (&self.token_file, profiles) {
            (Some(_), 1) | (None, 0) => {}
            (Some(_), _) => problems.add("profileId", "or profileName, one of them, must say which trusted profile IAM is to give a token of: it cannot be found out"),
            (None, _) => problems.add("profileId", "and profileName belong to tokenFile"),
        }
        check_name("profileId", self.profile_id.as_deref(), problems);
        check_name("profileName", self.profile_name.as_deref(), problems);
        let (key, token) = (self.api_key_file.as_deref(), self.token_file.as_deref());
        check_absolute(&[("apiKeyFile", key), ("tokenFile", token)], problems);
    }
}

pub(crate) fn check_name(field: &str, value: Option<&str>, problems: &mut Problems) {
    let sound = |text: &str| {
        !text.is_empty() && text.len() <= MAX_NAME && HeaderValue::from_str(text).is_ok()
    };
    if value.is_some_and(|text| !sound(text)) {
        problems.add(field, "is empty, too long or not plain text");
    }
}
