//! `credentials` of one key.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sidekey_core::config::Problems;

use sidekey_rest::files::check_absolute;
use sidekey_rest::tls::Pair;

use super::{NO_NAME, bare, check_path, is_name, pair};
use crate::dropin::given::given;

/// Why a wrapped secret-id is not taken.
pub(crate) const NO_WRAPPING: &str = "cannot be used: a wrapping opens once, and each replica and each restart would need one of its own; write the secret-id itself, and name it in secretIdFile";
const ONLY_FLAGS: &str = "is for secrets on the command line: name a file instead";

/// How the provider proves who it is: exactly one of these.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Credentials {
    pub(crate) app_role: Option<AppRole>,
    pub(crate) kubernetes: Option<Jwt>,
    pub(crate) jwt: Option<Jwt>,
    pub(crate) cert: Option<Cert>,
    pub(crate) userpass: Option<Userpass>,
    pub(crate) token: Option<TokenFile>,
    pub(crate) agent: Option<Agent>,
}

/// AppRole.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AppRole {
    pub(crate) mount: Option<String>,
    /// It is no secret, so it may stand here.
    pub(crate) role_id: Option<String>,
    pub(crate) role_id_file: Option<PathBuf>,
    pub(crate) secret_id_file: Option<PathBuf>,
    /// Only to say why not.
    wrapped_secret_id_file: Option<PathBuf>,
    /// The secret-id was given on the command line.
    pub(crate) given: Option<bool>,
}

/// A signed token of another system: a service account's, say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Jwt {
    pub(crate) mount: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
}

/// A TLS certificate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Cert {
    pub(crate) mount: Option<String>,
    pub(crate) role: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

/// A name and a password.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Userpass {
    pub(crate) mount: Option<String>,
    pub(crate) username: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    /// The password was given on the command line.
    pub(crate) given: Option<bool>,
}

/// A token that somebody else keeps.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TokenFile {
    pub(crate) file: Option<PathBuf>,
    /// The token was given on the command line.
    pub(crate) given: Option<bool>,
}

/// A Vault agent or proxy that adds its own token.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Agent {}

impl Cert {
    pub(super) fn pair(&self) -> Option<Pair> {
        pair(self.cert_file.as_ref(), self.key_file.as_ref())
    }
}

impl Credentials {
    pub(super) fn check(&self, problems: &mut Problems) {
        let count = [
            self.app_role.is_some(),
            self.kubernetes.is_some(),
            self.jwt.is_some(),
            self.cert.is_some(),
            self.userpass.is_some(),
            self.token.is_some(),
            self.agent.is_some(),
        ];
        if count.iter().filter(|set| **set).count() != 1 {
            let text =
                "needs exactly one of appRole, kubernetes, jwt, cert, userpass, token, agent";
            problems.add("", text);
        }
        if let Some(role) = &self.app_role {
            problems.within("appRole", |problems| role.check(problems));
        }
        for (name, jwt) in [("kubernetes", &self.kubernetes), ("jwt", &self.jwt)] {
            if let Some(jwt) = jwt {
                problems.within(name, |problems| jwt.check(problems));
            }
        }
        if let Some(cert) = &self.cert {
            problems.within("cert", |problems| {
                check_path("mount", cert.mount.as_deref().map(bare), problems);
                check_required("certFile", cert.cert_file.as_deref(), problems);
                check_absolute(&[("keyFile", cert.key_file.as_deref())], problems);
            });
        }
        if let Some(user) = &self.userpass {
            problems.within("userpass", |problems| user.check(problems));
        }
        if let Some(token) = &self.token {
            problems.within("token", |problems| {
                check_given("file", token.file.as_deref(), token.given, problems);
            });
        }
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        let role = self.app_role.iter();
        let role = role.flat_map(|role| [&role.role_id_file, &role.secret_id_file]);
        let jwt = self.kubernetes.iter().chain(&self.jwt).map(|jwt| &jwt.token_file);
        let user = self.userpass.iter().map(|user| &user.password_file);
        let token = self.token.iter().map(|token| &token.file);
        role.chain(jwt).chain(user).chain(token).flatten().cloned().collect()
    }
}

impl AppRole {
    fn check(&self, problems: &mut Problems) {
        check_path("mount", self.mount.as_deref().map(bare), problems);
        match (&self.role_id, &self.role_id_file) {
            (None, None) => problems.add("roleIdFile", "is required (or roleId)"),
            (Some(_), Some(_)) => problems.add("roleIdFile", "excludes roleId"),
            (Some(id), None) if id.trim().is_empty() => problems.add("roleId", "is empty"),
            _ => {}
        }
        let secret = self.secret_id_file.as_deref();
        let files = [("roleIdFile", self.role_id_file.as_deref()), ("secretIdFile", secret)];
        check_absolute(&files, problems);
        if self.wrapped_secret_id_file.is_some() {
            problems.add("wrappedSecretIdFile", NO_WRAPPING);
        }
        if self.given == Some(true) && given(self.given).is_none() {
            problems.add("given", ONLY_FLAGS);
        }
    }
}

impl Jwt {
    fn check(&self, problems: &mut Problems) {
        check_path("mount", self.mount.as_deref().map(bare), problems);
        if self.role.as_deref().is_none_or(|role| role.trim().is_empty()) {
            problems.add("role", "is required");
        }
        check_required("tokenFile", self.token_file.as_deref(), problems);
    }
}

impl Userpass {
    fn check(&self, problems: &mut Problems) {
        check_path("mount", self.mount.as_deref().map(bare), problems);
        match self.username.as_deref() {
            None => problems.add("username", "is required"),
            Some(name) if !is_name(name) => problems.add("username", NO_NAME),
            Some(_) => {}
        }
        check_given("passwordFile", self.password_file.as_deref(), self.given, problems);
    }
}

fn check_given(field: &str, path: Option<&Path>, said: Option<bool>, problems: &mut Problems) {
    match said {
        Some(true) if given(said).is_some() => {}
        Some(true) => problems.add("given", ONLY_FLAGS),
        _ => check_required(field, path, problems),
    }
}

fn check_required(field: &str, path: Option<&Path>, problems: &mut Problems) {
    if path.is_none() {
        problems.add(field, "is required");
    }
    check_absolute(&[(field, path)], problems);
}
