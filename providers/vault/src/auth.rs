//! Ways to log in, and what each of them sends.

use std::collections::BTreeMap;

use bytes::Bytes;
use sidekey_core::{Error, Files, Secret};
use sidekey_rest::files::{one_line, password};
use sidekey_rest::json;

use crate::config::{Config, Credentials, bare};
use crate::dropin::given::given;

/// A way to log in, with all that it takes.
pub(crate) struct Auth {
    /// Its name, for people.
    pub(crate) name: &'static str,
    pub(crate) by: By,
    /// Whether no two clusters know it: a secret-id is random, and its cluster may be named by
    /// different addresses. A password or the name of a role may be the same elsewhere.
    pub(crate) is_of_one_cluster: bool,
}

/// What proves who we are.
pub(crate) enum By {
    /// The path and the body of a login.
    Login(String, Bytes),
    /// A token that somebody else made.
    Token(Secret),
    /// An agent adds its own token.
    Agent,
}

impl Auth {
    /// What the configuration and its files say.
    pub(crate) fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let Credentials { app_role, kubernetes, jwt, cert, userpass, token, .. } =
            &config.credentials;
        if let Some(role) = app_role {
            let role_id = match &role.role_id {
                Some(id) => Secret::new(id.trim().as_bytes().to_vec()),
                None => one_line(files, role.role_id_file.as_deref())?,
            };
            let secret_id = match &role.secret_id_file {
                Some(path) => Some(one_line(files, Some(path))?),
                None => given(role.given).and_then(|given| given.secret_id.clone()),
            };
            let fields =
                [("role_id", Some(text(&role_id))), ("secret_id", secret_id.as_ref().map(text))];
            let login = login("AppRole", (&role.mount, "approle"), "", &fields);
            return Ok(Self { is_of_one_cluster: secret_id.is_some(), ..login });
        }
        for (method, jwt) in [("kubernetes", kubernetes), ("jwt", jwt)] {
            if let Some(jwt) = jwt {
                let token = one_line(files, jwt.token_file.as_deref())?;
                let fields = [("role", jwt.role.as_deref()), ("jwt", Some(text(&token)))];
                return Ok(login(method, (&jwt.mount, method), "", &fields));
            }
        }
        if let Some(cert) = cert {
            let fields = [("name", cert.role.as_deref())];
            return Ok(login("certificate", (&cert.mount, "cert"), "", &fields));
        }
        if let Some(user) = userpass {
            let given = given(user.given).and_then(|given| given.password.clone());
            let password =
                given.map_or_else(|| password(files, user.password_file.as_deref()), Ok)?;
            let name = format!("/{}", user.username.as_deref().unwrap_or_default());
            let fields = [("password", Some(text(&password)))];
            return Ok(login("userpass", (&user.mount, "userpass"), &name, &fields));
        }
        if let Some(token) = token {
            let given = given(token.given).and_then(|given| given.token.clone());
            let token = given.map_or_else(|| one_line(files, token.file.as_deref()), Ok)?;
            return Ok(Self::new_by("token", By::Token(token)));
        }
        Ok(Self::new_by("agent", By::Agent))
    }

    fn new_by(name: &'static str, by: By) -> Self {
        Self { name, by, is_of_one_cluster: false }
    }

    /// Whether Vault locks the role or user, for all who use it, after five wrong credentials with
    /// less than a quarter of an hour between them.
    pub(crate) fn can_be_locked(&self) -> bool {
        matches!(self.name, "AppRole" | "userpass")
    }
}

/// A login at a mount of its method, with these fields as far as there is something in them.
fn login(
    name: &'static str,
    (mount, default): (&Option<String>, &str),
    user: &str,
    fields: &[(&str, Option<&str>)],
) -> Auth {
    let body: BTreeMap<_, _> =
        fields.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
    let path = format!("auth/{}/login{user}", bare(mount.as_deref().unwrap_or(default)));
    Auth::new_by(name, By::Login(path, json(&body)))
}

/// It was found to be text when it was read.
fn text(secret: &Secret) -> &str {
    std::str::from_utf8(secret.expose()).unwrap_or_default()
}
