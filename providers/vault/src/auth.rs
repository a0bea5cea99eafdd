//! Ways to log in, and what each of them sends.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use sidekey_core::{Error, Files, Kind, Secret, sha256};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::answer;
use crate::client::Client;
use crate::config::{AppRole, Config, Jwt, bare};
use crate::given;
use crate::server::{Answer, Request};

/// Secret-ids that were taken out of their wrapping: it opens only once, and more than one client
/// may be made of it in the life of a process.
static UNWRAPPED: Mutex<Vec<([u8; 32], Secret)>> = Mutex::new(Vec::new());
/// More than the keys of a process have.
const MAX_UNWRAPPED: usize = 64;

/// A way to log in, with all that it takes.
pub(crate) enum Auth {
    /// AppRole.
    AppRole { mount: String, role_id: Secret, secret_id: SecretId },
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

/// The second half of an AppRole.
pub(crate) enum SecretId {
    /// The role asks for none.
    None,
    /// As it is.
    Plain(Secret),
    /// In a wrapping that opens once.
    Wrapped(Secret),
}

#[derive(Serialize)]
struct AppRoleLogin<'a> {
    role_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_id: Option<&'a str>,
}

#[derive(Serialize)]
struct JwtLogin<'a> {
    role: &'a str,
    jwt: &'a str,
}

#[derive(Serialize)]
struct CertLogin<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

#[derive(Serialize)]
struct UserpassLogin<'a> {
    password: &'a str,
}

#[derive(Serialize)]
struct Lookup<'a> {
    token: &'a str,
}

#[derive(Deserialize)]
struct Data<T> {
    data: T,
}

#[derive(Deserialize)]
struct Wrapping {
    creation_path: String,
}

#[derive(Deserialize)]
struct Unwrapped<'a> {
    #[serde(borrow)]
    secret_id: Cow<'a, str>,
}

impl Auth {
    /// What the configuration and its files say.
    pub(crate) fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let credentials = config.credentials.clone().unwrap_or_default();
        let mount = |mount: &Option<String>, default: &str| {
            bare(mount.as_deref().unwrap_or(default)).to_owned()
        };
        if let Some(role) = &credentials.app_role {
            let mount = mount(&role.mount, "approle");
            return Ok(Self::AppRole {
                mount,
                role_id: role_id(role, files)?,
                secret_id: SecretId::of(role, files)?,
            });
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
            let given = given::given().and_then(|given| given.password.clone());
            let password = match given.filter(|_| user.given == Some(true)) {
                Some(password) => password,
                None => password(files, user.password_file.as_deref())?,
            };
            let username = user.username.clone().unwrap_or_default();
            return Ok(Self::Userpass {
                mount: mount(&user.mount, "userpass"),
                username,
                password,
            });
        }
        if let Some(token) = &credentials.token {
            let given = given::given().and_then(|given| given.token.clone());
            return Ok(Self::Token(match given.filter(|_| token.given == Some(true)) {
                Some(token) => token,
                None => one_line(files, token.file.as_deref())?,
            }));
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

    /// Whether Vault locks it after a few refused logins.
    pub(crate) fn can_be_locked(&self) -> bool {
        matches!(self, Self::AppRole { .. } | Self::Userpass { .. })
    }

    /// The path and the body of a login; none for those who do not log in. The secret-id is taken
    /// out of its wrapping if need be, with requests that `envelope` is the model of.
    pub(crate) async fn login(
        &self,
        client: &Client,
        envelope: &Request,
        deadline: Instant,
    ) -> Result<Option<(String, Bytes)>, Error> {
        Ok(Some(match self {
            Self::AppRole { mount, role_id, secret_id } => {
                let secret_id = secret_id.open(mount, client, envelope, deadline).await?;
                let body = AppRoleLogin {
                    role_id: words(role_id)?,
                    secret_id: secret_id.as_ref().map(words).transpose()?,
                };
                (format!("auth/{mount}/login"), json(&body))
            }
            Self::Jwt { mount, role, jwt, .. } => {
                (format!("auth/{mount}/login"), json(&JwtLogin { role, jwt: words(jwt)? }))
            }
            Self::Cert { mount, role } => {
                (format!("auth/{mount}/login"), json(&CertLogin { name: role.as_deref() }))
            }
            Self::Userpass { mount, username, password } => (
                format!("auth/{mount}/login/{username}"),
                json(&UserpassLogin { password: words(password)? }),
            ),
            Self::Token(_) | Self::Agent => return Ok(None),
        }))
    }
}

impl SecretId {
    fn of(role: &AppRole, files: &Files) -> Result<Self, Error> {
        let given = given::given().and_then(|given| given.secret_id.clone());
        Ok(match (&role.secret_id_file, &role.wrapped_secret_id_file) {
            (Some(path), _) => Self::Plain(one_line(files, Some(path))?),
            (None, Some(path)) => Self::Wrapped(one_line(files, Some(path))?),
            (None, None) => match given.filter(|_| role.given == Some(true)) {
                Some(given) => Self::Plain(given),
                None => Self::None,
            },
        })
    }

    async fn open(
        &self,
        mount: &str,
        client: &Client,
        envelope: &Request,
        deadline: Instant,
    ) -> Result<Option<Secret>, Error> {
        let wrapping = match self {
            Self::None => return Ok(None),
            Self::Plain(secret) => return Ok(Some(secret.clone())),
            Self::Wrapped(token) => token,
        };
        let digest = sha256(wrapping.expose());
        let known = |list: &[([u8; 32], Secret)]| {
            list.iter().find(|(of, _)| *of == digest).map(|(_, secret)| secret.clone())
        };
        if let Some(secret) = known(&unwrapped()) {
            return Ok(Some(secret));
        }
        let asking = Envelope { client, model: envelope, deadline };
        asking.check(wrapping, mount).await?;
        let secret = asking.open(wrapping).await?;
        let mut list = unwrapped();
        if list.len() >= MAX_UNWRAPPED {
            list.remove(0);
        }
        list.push((digest, secret.clone()));
        Ok(Some(secret))
    }
}

/// Requests about a wrapping.
struct Envelope<'a> {
    client: &'a Client,
    model: &'a Request,
    deadline: Instant,
}

impl Envelope<'_> {
    /// A wrapping that was not made by our auth method may have been exchanged: what is in it
    /// was not meant for us, and who made it may have opened the right one.
    async fn check(&self, wrapping: &Secret, mount: &str) -> Result<(), Error> {
        let of = "the wrapped secret-id";
        let body = json(&Lookup { token: words(wrapping)? });
        let answer = self.post("sys/wrapping/lookup", body, None).await?;
        if !answer.status.is_success() {
            return Err(used(&answer, of));
        }
        let found: Data<Wrapping> = answer::read(&answer, of)?;
        let path = found.data.creation_path;
        let role = bare(&path).strip_prefix(&format!("auth/{mount}/role/"));
        let made = role.and_then(|rest| {
            rest.strip_suffix("/secret-id").or_else(|| rest.strip_suffix("/custom-secret-id"))
        });
        match made {
            Some(role) if !role.is_empty() && !role.contains('/') => Ok(()),
            _ => Err(Error::new(
                Kind::Denied,
                format!("{of} was made by {path:?}, not by auth/{mount}"),
            )
            .with_hint("somebody may have exchanged it: revoke the secret-ids of the role")),
        }
    }

    async fn open(&self, wrapping: &Secret) -> Result<Secret, Error> {
        let of = "the wrapped secret-id";
        let token = crate::token::header(words(wrapping)?)?;
        let answer = self.post("sys/wrapping/unwrap", Bytes::new(), Some(token)).await?;
        if !answer.status.is_success() {
            return Err(used(&answer, of));
        }
        let found: Data<Unwrapped<'_>> = answer::read(&answer, of)?;
        Ok(Secret::new(found.data.secret_id.into_owned().into_bytes()))
    }

    async fn post(
        &self,
        path: &str,
        body: Bytes,
        token: Option<http::HeaderValue>,
    ) -> Result<Answer, Error> {
        let (method, path) = (Method::POST, path.to_owned());
        let request = Request { method, path, body, token, ..self.model.clone() };
        self.client.ask(&request, self.deadline).await
    }
}

fn used(answer: &Answer, of: &str) -> Error {
    let kind = match answer.status.as_u16() {
        400 | 403 | 404 => Kind::Denied,
        _ => return answer::refused(answer, of),
    };
    answer::error(kind, answer, of).with_hint(
        "it has expired or was opened before, by a former run of this provider or by a stranger: write a new one",
    )
}

fn unwrapped() -> std::sync::MutexGuard<'static, Vec<([u8; 32], Secret)>> {
    UNWRAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn role_id(role: &AppRole, files: &Files) -> Result<Secret, Error> {
    match &role.role_id {
        Some(id) => Ok(Secret::new(id.trim().as_bytes().to_vec())),
        None => one_line(files, role.role_id_file.as_deref()),
    }
}

/// The content of a file that holds one word and perhaps a line end. What is half-written, or
/// something else altogether, is not sent to anybody.
fn one_line(files: &Files, path: Option<&Path>) -> Result<Secret, Error> {
    let path = path.ok_or_else(|| Error::new(Kind::Config, "a file is not configured"))?;
    let text = files.secret(path)?.as_text();
    let sound = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    let text = text.filter(sound).ok_or_else(|| {
        Error::new(Kind::Config, format!("file {path:?} does not hold one line of plain text"))
            .with_hint("write the secret into it and nothing else")
    })?;
    Ok(Secret::new(text.as_bytes().to_vec()))
}

/// The content of a file that holds a password: anything but what no keyboard has.
fn password(files: &Files, path: Option<&Path>) -> Result<Secret, Error> {
    let path = path.ok_or_else(|| Error::new(Kind::Config, "a file is not configured"))?;
    let text = std::str::from_utf8(files.secret(path)?.expose()).ok();
    let text = text.map(|text| text.trim_end_matches(['\r', '\n']));
    let sound = |text: &&str| !text.is_empty() && !text.chars().any(char::is_control);
    let text = text.filter(sound).ok_or_else(|| {
        Error::new(Kind::Config, format!("file {path:?} does not hold one line of text"))
            .with_hint("write the password into it and nothing else")
    })?;
    Ok(Secret::new(text.as_bytes().to_vec()))
}

fn words(secret: &Secret) -> Result<&str, Error> {
    std::str::from_utf8(secret.expose())
        .map_err(|_| Error::new(Kind::Config, "a secret is not plain text"))
}

/// A body that is wiped when it has been sent. It is measured first: a buffer that grows leaves
/// copies behind, and one that is large enough for everything is too large for most.
pub(crate) fn json(value: &impl Serialize) -> Bytes {
    let mut length = Length(0);
    // Plain structures of text cannot fail, and a server refuses an empty body.
    let _ = serde_json::to_writer(&mut length, value);
    let mut out = Zeroizing::new(Vec::with_capacity(length.0));
    let _ = serde_json::to_writer(&mut *out, value);
    Bytes::from_owner(out)
}

/// Counts what is written.
struct Length(usize);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
