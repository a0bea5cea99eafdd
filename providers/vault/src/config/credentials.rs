//! `credentials` of one key.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sidekey_core::config::Problems;

use sidekey_rest::files::check_absolute;
use sidekey_rest::tls::Pair;

use super::{check_name, check_path, pair};
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

    fn check(&self, problems: &mut Problems) {
        check_path("mount", &self.mount, problems);
        check_required("certFile", self.cert_file.as_deref(), problems);
        check_absolute(&[("keyFile", self.key_file.as_deref())], problems);
    }
}

impl Credentials {
    pub(super) fn check(&self, problems: &mut Problems) {
        let ways = way("appRole", &self.app_role, problems, AppRole::check)
            + way("kubernetes", &self.kubernetes, problems, Jwt::check)
            + way("jwt", &self.jwt, problems, Jwt::check)
            + way("cert", &self.cert, problems, Cert::check)
            + way("userpass", &self.userpass, problems, Userpass::check)
            + way("token", &self.token, problems, TokenFile::check)
            + usize::from(self.agent.is_some());
        if ways != 1 {
            let text =
                "needs exactly one of appRole, kubernetes, jwt, cert, userpass, token, agent";
            problems.add("", text);
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
        check_path("mount", &self.mount, problems);
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
        check_path("mount", &self.mount, problems);
        if self.role.as_deref().is_none_or(|role| role.trim().is_empty()) {
            problems.add("role", "is required");
        }
        check_required("tokenFile", self.token_file.as_deref(), problems);
    }
}

impl Userpass {
    fn check(&self, problems: &mut Problems) {
        check_path("mount", &self.mount, problems);
        if let Some(name) = problems.require("username", &self.username) {
            check_name("username", name, problems);
        }
        check_given("passwordFile", self.password_file.as_deref(), self.given, problems);
    }
}

impl TokenFile {
    fn check(&self, problems: &mut Problems) {
        check_given("file", self.file.as_deref(), self.given, problems);
    }
}

/// Checks a way that is there; how many that makes.
fn way<T>(
    name: &str,
    way: &Option<T>,
    problems: &mut Problems,
    check: fn(&T, &mut Problems),
) -> usize {
    if let Some(way) = way {
        problems.within(name, |problems| check(way, problems));
    }
    usize::from(way.is_some())
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
