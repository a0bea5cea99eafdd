//! A login that keys share, and the token that it gave.
//!
//! Keys with the same servers and the same credentials share one session: one login, one set of
//! connections. What they are made of is hashed, contents of files included, so that changed
//! credentials make another session, which is tried beside the old one.
//!
//! The token is a [`Lease`]: it is renewed at two thirds of its life, and replaced by a new login
//! where it cannot be renewed, or not for long any more, and where Vault no longer knows it. A
//! refused login is not repeated with the same credential; the last token serves, and is renewed,
//! while it is valid.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use sidekey_core::{Error, Files, Kind, Secret, sha256};
use sidekey_rest::lease::{Grant, Held, Source};
use sidekey_rest::{
    Answer, Http, Lease, Limits, Proxy, Request, Servers, Shared, fingerprint, read, secret_header,
};
use tokio::time::Instant;

use crate::api;
use crate::auth::{Auth, By};
use crate::config::Config;

/// For what nobody waits for.
const BACKGROUND: Duration = Duration::from_secs(10);
/// A login as fresh as this is not repeated as long as Vault knows its token: what is refused is
/// refused for another reason.
const YOUNG: Duration = Duration::from_secs(30);
/// For how long a refused login is not repeated where refusals lock nothing: what was wrong may be
/// mended by then, in Vault or at the issuer of a JWT that Vault could not ask.
const PAUSE: Duration = Duration::from_secs(60);
const NOT_LET_IN: &str = "the credentials may be wrong, or right and not let in: see whether Vault has locked the role or user (sys/locked-users) or takes it from other addresses alone (CIDR), and check the mount of the auth method and its namespace";
/// So long after a login a replica may not have heard of it.
const FRESH: Duration = Duration::from_secs(60);

/// Sessions in use, by the hash of what they are made of.
static SESSIONS: Shared<[u8; 32], Session> = Shared::new();

/// One login.
pub(crate) struct Session {
    lease: Lease<Login>,
    /// The end of our certificate, if we show one.
    certified: Option<SystemTime>,
    /// Held by who has a refused token replaced.
    replacing: tokio::sync::Mutex<()>,
    /// Whether tokens may not look at themselves.
    blind: AtomicBool,
}

/// Where tokens come from.
pub(crate) struct Login {
    servers: Servers,
    auth: Auth,
    namespace: Option<HeaderValue>,
}

/// What a login gave.
pub(crate) struct Token {
    /// As it is sent.
    header: HeaderValue,
    /// The state of the cluster that knows it, where it says so.
    index: Option<HeaderValue>,
    /// Whether its life can be drawn out.
    renewable: bool,
}

/// What Vault says of a token: of a new or renewed one under `auth`, of one that is looked up under
/// `data`.
#[derive(Deserialize)]
struct Told<'a> {
    #[serde(borrow)]
    auth: Option<Granted<'a>>,
    data: Option<Known>,
}

#[derive(Deserialize)]
struct Granted<'a> {
    #[serde(borrow)]
    client_token: Cow<'a, str>,
    #[serde(default)]
    lease_duration: u64,
    #[serde(default)]
    renewable: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Known {
    /// Whole seconds: 0 in the last one, less after it, and 0 where there is no end.
    ttl: i64,
    expire_time: Option<String>,
    renewable: bool,
}

impl Known {
    fn life(&self) -> Option<Duration> {
        let left = Duration::from_secs(self.ttl.try_into().unwrap_or(0));
        (self.ttl != 0 || self.expire_time.is_some()).then_some(left)
    }
}

impl Session {
    /// The session of this configuration, which may be in use already.
    pub(crate) fn shared(config: &Config, files: &Files) -> Result<Arc<Self>, Error> {
        // What makes two keys share one: where they go, who they are, and the very contents of files.
        let (to, space, bundle) = (config.addresses(), config.auth_namespace(), config.bundle());
        let (name, timeouts, pair) = (config.server_name(), config.timeouts(), config.pair());
        let settings = (to, space, bundle, name, timeouts, pair, &config.credentials);
        let made_of = fingerprint(&format!("{settings:?}"), &config.files(), files);
        SESSIONS.get(made_of, || Self::new(config, files))
    }

    fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let (addresses, trust) = (config.addresses(), config.trust(files)?);
        let (connect, request) = config.timeouts();
        let http = Http::new(&trust, Proxy::new(None), Limits { connect, ..Limits::default() });
        let judge = api::judge(addresses.clone(), config.own_bundle().is_some());
        let (auth, space) = (Auth::new(config, files)?, config.auth_namespace());
        let credential = credential(&auth, &space, config, files);
        let servers = Servers::new(http, addresses, request, judge);
        let login = Login { servers, auth, namespace: api::namespace(&space)? };
        Ok(Self {
            lease: Lease::new(login, credential, PAUSE),
            certified: trust.expiry,
            replacing: tokio::sync::Mutex::default(),
            blind: AtomicBool::new(false),
        })
    }

    /// One line for `/status`.
    pub(crate) fn note(&self) -> String {
        let Login { servers, auth, .. } = self.lease.source();
        let address = servers.first().map(|address| address.to_string());
        format!("{} by {}", address.unwrap_or_default(), auth.name)
    }

    /// When the certificate that we show expires, or the token where there is none: a token of a
    /// certificate is renewed as long as that is valid.
    pub(crate) fn expiry(&self) -> Option<SystemTime> {
        self.certified.or_else(|| self.lease.expiry())
    }

    /// Gives the token back at once, for all who share it: the process ends.
    pub(crate) async fn close(&self) {
        self.lease.close().await;
    }

    /// Asks what core does not repeat: once more if our token was refused and has been replaced.
    pub(crate) async fn ask(&self, request: Request, deadline: Instant) -> Result<Answer, Error> {
        match self.attempt(request.clone(), deadline).await {
            Err(error) if error.is_mended() => self.attempt(request, deadline).await,
            done => done,
        }
    }

    /// Asks with our token. If it is refused, it is replaced, and the error says so.
    pub(crate) async fn attempt(
        &self,
        request: Request,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        let Login { servers, auth, .. } = self.lease.source();
        if matches!(auth.by, By::Agent) {
            return servers.ask(request, deadline).await;
        }
        let token = self.lease.get(deadline).await?;
        let answer = servers.ask(signed(request, &token), deadline).await?;
        let refused = answer.status == StatusCode::FORBIDDEN && api::is_vaults(&answer);
        if refused && self.replace(&token, deadline).await? {
            let text = "Vault refused the token, and there is another one now";
            return Err(Error::new(Kind::Unavailable, text).mended());
        }
        Ok(answer)
    }

    /// Whether there is a better token than the one that was refused: the refusal may be for a
    /// reason that no login mends, so it is not tried again and again.
    async fn replace(&self, refused: &Arc<Held<Token>>, deadline: Instant) -> Result<bool, Error> {
        let login = self.lease.source();
        if matches!(login.auth.by, By::Token(_)) {
            return Ok(false);
        }
        let _one = self.replacing.lock().await;
        if self.lease.held().is_some_and(|held| !Arc::ptr_eq(&held, refused)) {
            return Ok(true);
        }
        let young = refused.since.elapsed() < YOUNG;
        if young && (self.blind.load(Ordering::Relaxed) || login.knows(refused, deadline).await?) {
            return Ok(false);
        }
        tracing::info!(method = login.auth.name, "Vault refuses the token: logging in again");
        let token = match self.lease.replace(refused, deadline).await {
            // The token is good, and what it is refused is no matter of a login.
            Err(_) if login.knows(refused, deadline).await.unwrap_or(false) => return Ok(false),
            replaced => replaced?,
        };
        // A policy that does not let a token look at itself would have every one look unknown.
        let known = login.knows(&token, deadline).await.unwrap_or(true);
        self.blind.store(!known, Ordering::Relaxed);
        Ok(true)
    }
}

impl Source for Login {
    type Item = Token;

    async fn fetch(&self, deadline: Instant) -> Result<Grant<Token>, Error> {
        match &self.auth.by {
            By::Login(path, body) => self.log_in(path, body, deadline).await,
            By::Token(token) => self.look_up(token, deadline).await,
            By::Agent => Err(Error::new(Kind::Bug, "an agent has a token of its own")),
        }
    }

    async fn renew(
        &self,
        held: &Held<Token>,
        deadline: Instant,
    ) -> Result<Option<Grant<Token>>, Error> {
        let renewed = match held.item.renewable {
            true => match self.renew_self(held, deadline).await {
                Err(error) if error.kind().is_transient() => return Err(error),
                renewed => renewed.ok(),
            },
            false => None,
        };
        let is_last = renewed.as_ref().is_none_or(|grant| held.is_short(grant.life));
        if is_last && matches!(self.auth.by, By::Token(_)) {
            tracing::warn!(
                "the token cannot be renewed any more: write a new one into its file, a periodic one if possible"
            );
        }
        Ok(renewed)
    }

    /// A token that was given to us is not ours to end. If it cannot be given back it expires by
    /// itself.
    async fn revoke(&self, token: &Token) {
        if matches!(self.auth.by, By::Login(..)) {
            let request = self.about(token, Method::POST, "revoke-self");
            let _ = self.servers.ask(request, Instant::now() + BACKGROUND).await;
        }
    }
}

impl Login {
    async fn log_in(
        &self,
        path: &str,
        body: &Bytes,
        deadline: Instant,
    ) -> Result<Grant<Token>, Error> {
        let (action, method) = ("login", self.auth.name);
        let request = api::request(Method::POST, path, self.namespace.as_ref(), body.clone());
        let answer = self.servers.ask(request, deadline).await?;
        let answer = match answer.status.as_u16() {
            // The credential is wrong: this is what Vault counts before it locks a role or user.
            400 if api::is_vaults(&answer) => {
                let hint = "the credentials are wrong, expired or used up: write new ones";
                let error = api::error(Kind::Denied, hint, &answer, action, path).lasting();
                return Err(if self.auth.can_be_locked() { error.without_retry() } else { error });
            }
            _ => granted(answer, (action, path), NOT_LET_IN)?,
        };
        let told: Told<'_> = read(&answer.body, action)?;
        let granted = told.auth.ok_or_else(|| {
            Error::new(Kind::Denied, format!("login by {method}: Vault gave no token"))
                .with_hint("a login that asks for a second factor cannot be used")
                .lasting()
        })?;
        let grant = grant(secret_header(&granted.client_token)?, &granted, &answer, None);
        tracing::info!(method, life = ?grant.life, renewable = granted.renewable, "logged in to Vault");
        Ok(grant)
    }

    /// What is known of a token that somebody else made.
    async fn look_up(&self, token: &Secret, deadline: Instant) -> Result<Grant<Token>, Error> {
        let action = "lookup-self";
        let header = secret_header(token.as_text().unwrap_or_default())?;
        let mut token = Token { header, index: None, renewable: false };
        let request = self.about(&token, Method::GET, action);
        let hint = "the token has expired or was revoked, or its policies do not let it read auth/token/lookup-self, as `default` does: write a new one into its file";
        let answer = self.servers.ask(request, deadline).await?;
        let answer = granted(answer, (action, "the token"), hint)?;
        let told: Told<'_> = read(&answer.body, action)?;
        let known = told.data.unwrap_or_default();
        token.renewable = known.renewable;
        Ok(Grant { item: token, life: known.life() })
    }

    async fn renew_self(
        &self,
        held: &Held<Token>,
        deadline: Instant,
    ) -> Result<Grant<Token>, Error> {
        let action = "renew-self";
        let request = self.about(&held.item, Method::POST, action);
        let answer = self.servers.ask(request, deadline).await?;
        let answer = granted(answer, (action, "the token"), "")?;
        let told: Told<'_> = read(&answer.body, action)?;
        let granted = told.auth.filter(|granted| granted.lease_duration > 0);
        let granted =
            granted.ok_or_else(|| Error::new(Kind::Denied, "its longest life is over"))?;
        Ok(grant(held.item.header.clone(), &granted, &answer, Some(&held.item)))
    }

    /// Whether Vault still knows the token.
    async fn knows(&self, held: &Held<Token>, deadline: Instant) -> Result<bool, Error> {
        let request = signed(self.about(&held.item, Method::GET, "lookup-self"), held);
        let answer = self.servers.ask(request, deadline).await?;
        Ok(answer.status != StatusCode::FORBIDDEN)
    }

    /// A question about a token, asked with it.
    fn about(&self, token: &Token, method: Method, what: &str) -> Request {
        let body = Bytes::from_static(if method == Method::POST { b"{}" } else { b"" });
        let path = format!("auth/token/{what}");
        let mut request = api::request(method, &path, self.namespace.as_ref(), body);
        request.headers.insert(api::TOKEN, token.header.clone());
        request
    }
}

/// What is granted to a credential, or its refusal. (A mount or namespace that is not there is a
/// mistake of the configuration, and may be mended at once.)
fn granted(answer: Answer, (action, object): (&str, &str), hint: &str) -> Result<Answer, Error> {
    let kind = match answer.status.as_u16() {
        200 => return Ok(answer),
        400 | 401 | 403 if api::is_vaults(&answer) => Kind::Denied,
        404 if api::is_vaults(&answer) => Kind::Config,
        _ => return Err(api::refused(&answer, action, object)),
    };
    Err(api::error(kind, hint, &answer, action, object).lasting())
}

fn grant(
    header: HeaderValue,
    granted: &Granted<'_>,
    answer: &Answer,
    old: Option<&Token>,
) -> Grant<Token> {
    // A login that never ends has none.
    let life = (granted.lease_duration > 0).then(|| Duration::from_secs(granted.lease_duration));
    let index = answer.headers.get(api::INDEX).cloned();
    let index = index.or_else(|| old.and_then(|old| old.index.clone()));
    Grant { item: Token { header, index, renewable: granted.renewable }, life }
}

/// Puts a token on a request. The state of the cluster goes with it only while it is fresh: a
/// cluster that was restored from a snapshot may never come to that state again, and would refuse
/// everything (412) for as long as the token lives.
fn signed(mut request: Request, held: &Held<Token>) -> Request {
    request.headers.insert(api::TOKEN, held.item.header.clone());
    if let Some(index) = held.item.index.as_ref().filter(|_| held.since.elapsed() < FRESH) {
        request.headers.insert(api::INDEX, index.clone());
        let forward = HeaderValue::from_static("forward-active-node");
        request.headers.insert(api::INCONSISTENT, forward);
    }
    request
}

/// Who logs in, by the hash of what Vault would count a refusal for: no other setting makes another
/// one of it. Each cluster counts for itself: one that refuses must not keep a key of another from
/// its token, where that may know the credential too.
fn credential(auth: &Auth, namespace: &str, config: &Config, files: &Files) -> [u8; 32] {
    let mut parts = vec![sha256(namespace.as_bytes())];
    if !auth.is_of_one_cluster {
        let mut servers: Vec<String> = config.addresses().iter().map(ToString::to_string).collect();
        servers.sort();
        parts.push(sha256(servers.join("\n").as_bytes()));
    }
    match &auth.by {
        By::Login(path, body) => parts.extend([sha256(path.as_bytes()), sha256(body)]),
        By::Token(token) => parts.push(sha256(token.expose())),
        By::Agent => {}
    }
    if let (Some(_), Some(pair)) = (&config.credentials.cert, config.pair()) {
        parts.extend(files.secret(&pair.cert).ok().map(|cert| sha256(cert.expose())));
    }
    sha256(&parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_state_of_the_cluster_is_asked_for_while_the_token_is_fresh() {
        /// Gives one token that is known to a state.
        struct One;
        impl Source for One {
            type Item = Token;
            async fn fetch(&self, _: Instant) -> Result<Grant<Token>, Error> {
                let (header, index) =
                    (HeaderValue::from_static("t"), Some(HeaderValue::from_static("state")));
                let item = Token { header, index, renewable: false };
                Ok(Grant { item, life: None })
            }
        }
        let lease = Lease::new(One, [0; 32], Duration::ZERO);
        let held = lease.get(Instant::now() + BACKGROUND).await.unwrap();
        let index = || {
            let request = signed(Request::new(Method::GET, "/"), &held);
            assert!(request.headers.contains_key(api::TOKEN));
            request.headers.get(api::INDEX).cloned()
        };
        assert_eq!(index(), held.item.index);
        tokio::time::advance(FRESH).await;
        assert_eq!(index(), None);
    }
}
