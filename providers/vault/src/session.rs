//! A login that keys share, and the token that it gave.
//!
//! Keys with the same servers and the same credentials share one session: one login, one set of
//! connections. What they are made of is hashed, contents of files included, so that changed
//! credentials make another session, which is tried beside the old one.
//!
//! The token is renewed at two thirds of its life by one task that sleeps in between. Where it
//! cannot be renewed, or not for long any more, and where Vault no longer knows it, the session
//! logs in again; callers who need a new token at the same time share one login, which goes on when
//! they have no more time: a wrapping that was opened for nobody would be lost.

mod renewal;

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use sidekey_core::{Error, Files, Kind, Secret, sha256};
use tokio::sync::OwnedMutexGuard;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::answer;
use crate::auth::Auth;
use crate::client::{Client, Limits, Trust};
use crate::config::Config;
use crate::lockout::Attempt;
use crate::server::{Answer, Request};
use crate::tls;
use crate::token::{Token, header};

/// For what nobody waits for.
const BACKGROUND: Duration = Duration::from_secs(10);
/// A login as fresh as this is not repeated as long as Vault knows its token: what is refused is
/// refused for another reason.
const YOUNG: Duration = Duration::from_secs(30);
/// Calls that use a token which is given back have this long to end.
const GRACE: Duration = Duration::from_secs(10);

/// Sessions in use, by the hash of what they are made of.
static SESSIONS: Mutex<Vec<([u8; 32], Weak<Session>)>> = Mutex::new(Vec::new());

/// One login.
pub(crate) struct Session {
    /// The hash of what it is made of.
    digest: [u8; 32],
    client: Arc<Client>,
    auth: Auth,
    namespace: Option<HeaderValue>,
    /// The end of our certificate, if we show one.
    certified: Option<SystemTime>,
    token: Mutex<Option<Arc<Token>>>,
    /// Held by who logs in.
    login: Arc<tokio::sync::Mutex<()>>,
    renewal: Mutex<Option<AbortHandle>>,
    /// Whether tokens may not look at themselves.
    blind: AtomicBool,
}

#[derive(Deserialize)]
struct Login<'a> {
    #[serde(borrow)]
    auth: Option<Granted<'a>>,
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

#[derive(Deserialize)]
struct Known {
    data: KnownToken,
}

#[derive(Deserialize)]
struct KnownToken {
    #[serde(default)]
    ttl: u64,
    #[serde(default)]
    renewable: bool,
}

impl Session {
    /// The session of this configuration, which may be in use already.
    pub(crate) fn shared(config: &Config, files: &Files) -> Result<Arc<Self>, Error> {
        let digest = fingerprint(config, files);
        let mut list = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(_, session)| session.strong_count() > 0);
        let known = list.iter().find(|(of, _)| *of == digest);
        if let Some(session) = known.and_then(|(_, session)| session.upgrade()) {
            return Ok(session);
        }
        let session = Arc::new(Self::new(digest, config, files)?);
        list.push((digest, Arc::downgrade(&session)));
        Ok(session)
    }

    fn new(digest: [u8; 32], config: &Config, files: &Files) -> Result<Self, Error> {
        let addresses = config.addresses();
        let encrypted = addresses.iter().any(|address| address.is_tls());
        let bundle = config.bundle().filter(|_| encrypted);
        let pair = config.pair().filter(|_| encrypted);
        let tls = bundle.map(|bundle| tls::client(&bundle, pair.as_ref(), files)).transpose()?;
        let (tls, certified) = tls.map_or((None, None), |(tls, expiry)| (Some(tls), expiry));
        let trust = Trust {
            tls,
            name: config.server_name().map(str::to_owned),
            is_own: config.own_bundle().is_some(),
        };
        for address in addresses.iter().filter(|address| address.is_exposed()) {
            tracing::warn!(%address, "tokens and keys go to this server in plain text: use https");
        }
        let (connect, request) = config.timeouts();
        let client = Client::new(&addresses, trust, Limits { connect, request })?;
        Ok(Self {
            digest,
            client: Arc::new(client),
            auth: Auth::new(config, files)?,
            namespace: namespace(&config.auth_namespace())?,
            certified,
            token: Mutex::default(),
            login: Arc::default(),
            renewal: Mutex::default(),
            blind: AtomicBool::new(false),
        })
    }

    /// One line for `/status`.
    pub(crate) fn note(&self) -> String {
        let address = self.client.address().map(|address| address.to_string());
        format!("{} by {}", address.unwrap_or_default(), self.auth.name())
    }

    /// When the certificate that we show expires, or the token where there is none: a token of a
    /// certificate is renewed as long as that is valid.
    pub(crate) fn expiry(&self) -> Option<SystemTime> {
        self.certified.or_else(|| held(&self.token).as_ref()?.expires)
    }

    /// Asks with our token. If it is refused, it is replaced and the question is asked once more.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        mut request: Request,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        if matches!(self.auth, Auth::Agent) {
            return self.client.ask(&request, deadline).await;
        }
        let token = self.token(deadline).await?;
        token.sign(&mut request);
        let answer = self.client.ask(&request, deadline).await?;
        if answer.status != StatusCode::FORBIDDEN {
            return Ok(answer);
        }
        let Some(token) = self.replaced(&token, deadline).await? else { return Ok(answer) };
        token.sign(&mut request);
        self.client.ask(&request, deadline).await
    }

    /// The token in use; the first one, and one that has expired, are asked for here.
    async fn token(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Token>, Error> {
        if let Some(token) = self.current() {
            return Ok(token);
        }
        let one = self.lock(deadline).await?;
        match self.current() {
            Some(token) => Ok(token),
            None => self.log_in(one, deadline).await,
        }
    }

    /// A better token than the one that was refused, if there can be one: the refusal may be for
    /// a reason that no login mends, so it is not tried again and again.
    async fn replaced(
        self: &Arc<Self>,
        refused: &Arc<Token>,
        deadline: Instant,
    ) -> Result<Option<Arc<Token>>, Error> {
        let one = self.lock(deadline).await?;
        match self.current() {
            Some(token) if !Arc::ptr_eq(&token, refused) => return Ok(Some(token)),
            _ => {}
        }
        if matches!(self.auth, Auth::Token(_)) {
            return Ok(None);
        }
        let young = refused.given.elapsed() < YOUNG;
        if young && (self.blind.load(Ordering::Relaxed) || self.is_known(refused, deadline).await?)
        {
            return Ok(None);
        }
        tracing::info!(method = self.auth.name(), "Vault refuses the token: logging in again");
        let token = self.log_in(one, deadline).await?;
        self.revoke(refused);
        // A policy that does not let a token look at itself would have every one look unknown.
        let known = self.is_known(&token, deadline).await.unwrap_or(true);
        self.blind.store(!known, Ordering::Relaxed);
        Ok(Some(token))
    }

    /// Whether Vault still knows the token.
    async fn is_known(&self, token: &Token, deadline: Instant) -> Result<bool, Error> {
        let mut request = self.envelope(Method::GET, "auth/token/lookup-self", Bytes::new());
        token.sign(&mut request);
        let answer = self.client.ask(&request, deadline).await?;
        Ok(answer.status != StatusCode::FORBIDDEN)
    }

    fn current(&self) -> Option<Arc<Token>> {
        held(&self.token).clone().filter(|token| !token.is_over())
    }

    async fn lock(&self, deadline: Instant) -> Result<OwnedMutexGuard<()>, Error> {
        timeout_at(deadline, self.login.clone().lock_owned())
            .await
            .map_err(|_| Error::new(Kind::Timeout, "another call is still logging in to Vault"))
    }

    /// Logs in, for the caller and for those who come after it if it goes away.
    async fn log_in(
        self: &Arc<Self>,
        one: OwnedMutexGuard<()>,
        deadline: Instant,
    ) -> Result<Arc<Token>, Error> {
        let (session, end) = (self.clone(), deadline.max(Instant::now() + BACKGROUND));
        let work = tokio::spawn(async move {
            let _one = one;
            session.log_in_now(end).await
        });
        match timeout_at(deadline, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Error::new(Kind::Bug, "the login to Vault was broken off")),
            Err(_) => Err(Error::new(Kind::Timeout, "the login to Vault takes too long")),
        }
    }

    /// Must be called with the lock held.
    async fn log_in_now(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Token>, Error> {
        let token = match &self.auth {
            Auth::Token(token) => self.look_up(token, deadline).await?,
            _ => self.login(deadline).await?,
        };
        let life = token.life;
        let token = Arc::new(token);
        *held(&self.token) = Some(token.clone());
        tracing::info!(
            method = self.auth.name(),
            ?life,
            renewable = token.renewable,
            "logged in to Vault"
        );
        self.keep_alive(&token);
        Ok(token)
    }

    async fn login(&self, deadline: Instant) -> Result<Token, Error> {
        let of = format!("login by {}", self.auth.name());
        let envelope = self.envelope(Method::POST, "", Bytes::new());
        let login = self.auth.login(&self.client, &envelope, deadline).await?;
        let (path, body) = login.ok_or_else(|| Error::new(Kind::Bug, "nothing to log in with"))?;
        let attempt = Attempt::new(&self.digest, &path, &body)?;
        let answer = self.client.ask(&Request { path, body, ..envelope }, deadline).await?;
        match answer.status.as_u16() {
            200 => attempt.was_accepted(),
            status @ 400..=404 => {
                let error = answer::error(Kind::Denied, &answer, &of).with_hint(
                    "check the credentials, the mount of the auth method and its namespace",
                );
                // Wrong credentials are a 400; a mount that is not there, say, locks nothing.
                attempt.was_refused(&error, status == 400 && self.auth.can_be_locked());
                return Err(error.lasting());
            }
            _ => return Err(answer::refused(&answer, &of)),
        }
        let granted: Login<'_> = answer::read(&answer, &of)?;
        let granted = granted.auth.ok_or_else(|| {
            Error::new(Kind::Denied, format!("{of}: Vault gave no token"))
                .with_hint("a login that asks for a second factor cannot be used")
        })?;
        let mut token = Token::new(header(&granted.client_token)?, granted.lease_duration);
        token.renewable = granted.renewable;
        token.index = answer.index.clone();
        Ok(token)
    }

    async fn look_up(&self, token: &Secret, deadline: Instant) -> Result<Token, Error> {
        let of = "token lookup";
        let text = token.as_text().unwrap_or_default();
        let mut request = self.envelope(Method::GET, "auth/token/lookup-self", Bytes::new());
        request.token = Some(header(text)?);
        let answer = self.client.ask(&request, deadline).await?;
        match answer.status.as_u16() {
            200 => {}
            403 => {
                return Err(answer::error(Kind::Denied, &answer, of)
                    .with_hint(
                        "the token has expired or was revoked: write a new one into its file",
                    )
                    .lasting());
            }
            _ => return Err(answer::refused(&answer, of)),
        }
        let known: Known = answer::read(&answer, of)?;
        let mut token = Token::new(header(text)?, known.data.ttl);
        token.renewable = known.data.renewable;
        Ok(token)
    }

    fn envelope(&self, method: Method, path: &str, body: Bytes) -> Request {
        let (namespace, path) = (self.namespace.clone(), path.to_owned());
        Request { method, path, body, namespace, token: None, index: None, once: false }
    }

    /// Gives the token back at once, for all who share it: the process ends.
    pub(crate) async fn give_back(&self) {
        let is_ours = !matches!(self.auth, Auth::Token(_) | Auth::Agent);
        let token = held(&self.token).take().filter(|token| is_ours && !token.is_over());
        if let Some(token) = token {
            let request = self.revocation(&token);
            // If it cannot be given back it expires by itself.
            let _ = self.client.ask(&request, Instant::now() + BACKGROUND).await;
        }
    }

    /// Gives a token of ours back that is no longer needed. Calls that still use it have a moment
    /// to end; if it cannot be given back it expires by itself.
    fn revoke(&self, token: &Arc<Token>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let request = self.revocation(token);
        let client = self.client.clone();
        runtime.spawn(async move {
            tokio::time::sleep(GRACE).await;
            let _ = client.ask(&request, Instant::now() + BACKGROUND).await;
        });
    }

    fn revocation(&self, token: &Token) -> Request {
        let body = Bytes::from_static(b"{}");
        let mut request = self.envelope(Method::POST, "auth/token/revoke-self", body);
        token.sign(&mut request);
        request
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(task) = held(&self.renewal).take() {
            task.abort();
        }
        // A token that was given to us is not ours to end.
        if matches!(self.auth, Auth::Token(_) | Auth::Agent) {
            return;
        }
        if let Some(token) = self.current() {
            self.revoke(&token);
        }
    }
}

/// A namespace as it is sent; none for the root.
pub(crate) fn namespace(path: &str) -> Result<Option<HeaderValue>, Error> {
    if path.is_empty() {
        return Ok(None);
    }
    let header = HeaderValue::try_from(path);
    header.map(Some).map_err(|_| Error::new(Kind::Config, "the namespace is no plain text"))
}

/// What makes two keys share a session: where they go, who they are, and the very contents of
/// the files.
fn fingerprint(config: &Config, files: &Files) -> [u8; 32] {
    let mut text = format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}\n",
        config.addresses(),
        config.auth_namespace(),
        config.bundle(),
        config.server_name(),
        config.timeouts(),
        config.credentials,
    );
    text.push_str(&format!("{:?}\n", config.pair()));
    for path in config.files() {
        let content = files.secret(&path).map(|secret| sha256(secret.expose()));
        text.push_str(&format!("{path:?} {:?}\n", content.ok()));
    }
    sha256(text.as_bytes())
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
