//! Ways to log in, and what each of them sends.

use std::collections::BTreeMap;

use bytes::Bytes;
use sidekey_core::{Error, Files, Secret};
use sidekey_rest::files::{one_line, password};
use sidekey_rest::json;

use crate::config::{AppRole, Config, Jwt, bare};
use crate::dropin::given::given;

/// A way to log in, with all that it takes.
pub(crate) enum Auth {
    /// AppRole; the role may ask for no secret-id.
    AppRole { mount: String, role_id: Secret, secret_id: Option<Secret> },
    /// A signed token of another system, under the name of its method.
    Jwt { method: &'static str, mount: String, role: String, jwt: Secret },
    /// The certificate that TLS has shown.
    Cert { mount: String, role: Option<String> },
    /// A name and a password.
    Userpass { mount: String, username: String, password: Secret },
    /// A token that somebody else made.
    Token(Secret),
    /// An agent adds its own token.
    Agent,
}

impl Auth {
    /// What the configuration and its files say.
    pub(crate) fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let credentials = config.credentials.clone().unwrap_or_default();
        let mount = |mount: &Option<String>, default: &str| {
            bare(mount.as_deref().unwrap_or(default)).to_owned()
        };
        if let Some(role) = &credentials.app_role {
            let (role_id, secret_id) = (role_id(role, files)?, secret_id(role, files)?);
            return Ok(Self::AppRole { mount: mount(&role.mount, "approle"), role_id, secret_id });
        }
        for (method, jwt) in [("kubernetes", &credentials.kubernetes), ("jwt", &credentials.jwt)] {
            if let Some(Jwt { mount: at, role, token_file }) = jwt {
                let (mount, role) = (mount(at, method), role.clone().unwrap_or_default());
                let jwt = one_line(files, token_file.as_deref())?;
                return Ok(Self::Jwt { method, mount, role, jwt });
            }
        }
        if let Some(cert) = &credentials.cert {
            return Ok(Self::Cert { mount: mount(&cert.mount, "cert"), role: cert.role.clone() });
        }
        if let Some(user) = &credentials.userpass {
            let given = given(user.given).and_then(|given| given.password.clone());
            let password = given.map_or_else(|| password(files, user.password_file.as_deref()), Ok);
            return Ok(Self::Userpass {
                mount: mount(&user.mount, "userpass"),
                username: user.username.clone().unwrap_or_default(),
                password: password?,
            });
        }
        if let Some(token) = &credentials.token {
            let given = given(token.given).and_then(|given| given.token.clone());
            let token = given.map_or_else(|| one_line(files, token.file.as_deref()), Ok);
            return Ok(Self::Token(token?));
        }
        Ok(Self::Agent)
    }

    /// Its name, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::AppRole { .. } => "AppRole",
            Self::Jwt { method, .. } => method,
            Self::Cert { .. } => "certificate",
            Self::Userpass { .. } => "userpass",
            Self::Token(_) => "token",
            Self::Agent => "agent",
        }
    }

    /// Whether Vault locks the role or user, for all who use it, after five wrong credentials with
    /// less than a quarter of an hour between them.
    pub(crate) fn can_be_locked(&self) -> bool {
        matches!(self, Self::AppRole { .. } | Self::Userpass { .. })
    }

    /// The path and the body of a login; none for those who do not log in.
    pub(crate) fn login(&self) -> Option<(String, Bytes)> {
        let mut body = BTreeMap::new();
        let (mount, user) = match self {
            Self::AppRole { mount, role_id, secret_id } => {
                body.insert("role_id", text(role_id));
                body.extend(secret_id.as_ref().map(|secret| ("secret_id", text(secret))));
                (mount, None)
            }
            Self::Jwt { mount, role, jwt, .. } => {
                body.extend([("role", role.as_str()), ("jwt", text(jwt))]);
                (mount, None)
            }
            Self::Cert { mount, role } => {
                body.extend(role.as_deref().map(|role| ("name", role)));
                (mount, None)
            }
            Self::Userpass { mount, username, password } => {
                body.insert("password", text(password));
                (mount, Some(username))
            }
            Self::Token(_) | Self::Agent => return None,
        };
        let user = user.map_or_else(String::new, |user| format!("/{user}"));
        Some((format!("auth/{mount}/login{user}"), json(&body)))
    }
}

fn role_id(role: &AppRole, files: &Files) -> Result<Secret, Error> {
    match &role.role_id {
        Some(id) => Ok(Secret::new(id.trim().as_bytes().to_vec())),
        None => one_line(files, role.role_id_file.as_deref()),
    }
}

fn secret_id(role: &AppRole, files: &Files) -> Result<Option<Secret>, Error> {
    match &role.secret_id_file {
        Some(path) => one_line(files, Some(path)).map(Some),
        None => Ok(given(role.given).and_then(|given| given.secret_id.clone())),
    }
}

/// It was found to be text when it was read.
fn text(secret: &Secret) -> &str {
    std::str::from_utf8(secret.expose()).unwrap_or_default()
}
