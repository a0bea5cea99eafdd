//! A login that keys share, and the token that it gave.
//!
//! Keys with the same servers and the same credentials share one session: one login, one set of
//! connections. What they are made of is hashed, contents of files included, so that changed
//! credentials make another session, which is tried beside the old one.
//!
//! The token is renewed at two thirds of its life by one task that sleeps in between. Where it
//! cannot be renewed, or not for long any more, and where Vault no longer knows it, the session
//! logs in again; callers who need a new token at the same time share one login.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use sidekey_core::{Error, Files, Kind, Secret, jitter, sha256};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use crate::answer;
use crate::auth::Auth;
use crate::client::{Client, Limits, Trust};
use crate::config::Config;
use crate::server::{Answer, Request};
use crate::tls;

/// For what nobody waits for.
const BACKGROUND: Duration = Duration::from_secs(10);
/// A login as fresh as this is not repeated as long as Vault knows its token: what is refused is
/// refused for another reason.
const YOUNG: Duration = Duration::from_secs(30);
/// Calls that use a token which is given back have this long to end.
const GRACE: Duration = Duration::from_secs(10);
/// The longest wait after a renewal that failed.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// The shortest, whatever the life of a token.
const MIN_BACKOFF: Duration = Duration::from_secs(1);

/// Sessions in use, by the hash of what they are made of.
static SESSIONS: Mutex<Vec<([u8; 32], Weak<Session>)>> = Mutex::new(Vec::new());

/// One login.
pub(crate) struct Session {
    client: Arc<Client>,
    auth: Auth,
    namespace: Option<HeaderValue>,
    token: Mutex<Option<Arc<Token>>>,
    /// Held by who logs in.
    login: tokio::sync::Mutex<()>,
    renewal: Mutex<Option<AbortHandle>>,
}

/// What a login gave.
#[derive(Debug)]
pub(crate) struct Token {
    header: HeaderValue,
    /// The state of the cluster that knows it, where it says so.
    index: Option<HeaderValue>,
    renewable: bool,
    given: Instant,
    /// None: it does not expire.
    life: Option<Duration>,
    /// The life that it had at first.
    whole: Option<Duration>,
    expires: Option<SystemTime>,
    /// When to renew it: spread, so that a fleet does not come in step.
    due: Option<Instant>,
}

#[derive(Deserialize)]
struct Login<'a> {
    #[serde(borrow)]
    auth: Option<Granted<'a>>,
}

#[derive(Deserialize)]
struct Granted<'a> {
    client_token: &'a str,
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
        let session = Arc::new(Self::new(config, files)?);
        list.push((digest, Arc::downgrade(&session)));
        Ok(session)
    }

    fn new(config: &Config, files: &Files) -> Result<Self, Error> {
        let addresses = config.addresses();
        let encrypted = addresses.iter().any(|address| address.is_tls());
        let bundle = config.bundle().filter(|_| encrypted);
        let tls = bundle.map(|bundle| tls::client(&bundle, config.pair().as_ref(), files));
        let trust = Trust {
            tls: tls.transpose()?,
            name: config.server_name().map(str::to_owned),
            is_own: config.own_bundle().is_some(),
        };
        for address in addresses.iter().filter(|address| address.is_exposed()) {
            tracing::warn!(%address, "tokens and keys go to this server in plain text: use https");
        }
        let (connect, request) = config.timeouts();
        let client = Client::new(&addresses, trust, Limits { connect, request })?;
        Ok(Self {
            client: Arc::new(client),
            auth: Auth::new(config, files)?,
            namespace: namespace(&config.auth_namespace())?,
            token: Mutex::default(),
            login: tokio::sync::Mutex::default(),
            renewal: Mutex::default(),
        })
    }

    /// One line for `/status`.
    pub(crate) fn note(&self) -> String {
        let address = self.client.address().map(|address| address.to_string());
        format!("{} by {}", address.unwrap_or_default(), self.auth.name())
    }

    /// When the token expires.
    pub(crate) fn expiry(&self) -> Option<SystemTime> {
        held(&self.token).as_ref()?.expires
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
        let _one = self.lock(deadline).await?;
        match self.current() {
            Some(token) => Ok(token),
            None => self.log_in(deadline).await,
        }
    }

    /// A better token than the one that was refused, if there can be one: the refusal may be for
    /// a reason that no login mends, so it is not tried again and again.
    async fn replaced(
        self: &Arc<Self>,
        refused: &Arc<Token>,
        deadline: Instant,
    ) -> Result<Option<Arc<Token>>, Error> {
        let _one = self.lock(deadline).await?;
        match self.current() {
            Some(token) if !Arc::ptr_eq(&token, refused) => return Ok(Some(token)),
            _ => {}
        }
        if matches!(self.auth, Auth::Token(_)) {
            return Ok(None);
        }
        if refused.given.elapsed() < YOUNG && self.is_known(refused, deadline).await? {
            return Ok(None);
        }
        tracing::info!(method = self.auth.name(), "Vault refuses the token: logging in again");
        let token = self.log_in(deadline).await?;
        self.revoke(refused);
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

    async fn lock(&self, deadline: Instant) -> Result<tokio::sync::MutexGuard<'_, ()>, Error> {
        timeout_at(deadline, self.login.lock())
            .await
            .map_err(|_| Error::new(Kind::Timeout, "another call is still logging in to Vault"))
    }

    /// Must be called with the lock held.
    async fn log_in(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Token>, Error> {
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
        let answer = self.client.ask(&Request { path, body, ..envelope }, deadline).await?;
        match answer.status.as_u16() {
            200 => {}
            400..=404 => {
                return Err(answer::error(Kind::Denied, &answer, &of).with_hint(
                    "check the credentials, the mount of the auth method and its namespace",
                ));
            }
            _ => return Err(answer::refused(&answer, &of)),
        }
        let granted: Login<'_> = answer::read(&answer, &of)?;
        let granted = granted.auth.ok_or_else(|| {
            Error::new(Kind::Denied, format!("{of}: Vault gave no token"))
                .with_hint("a login that asks for a second factor cannot be used")
        })?;
        let mut token = Token::new(header(granted.client_token)?, granted.lease_duration);
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
                return Err(answer::error(Kind::Denied, &answer, of).with_hint(
                    "the token has expired or was revoked: write a new one into its file",
                ));
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
        Request { method, path, body, namespace, token: None, index: None }
    }

    /// Has the token renewed in time, for as long as the session is in use.
    fn keep_alive(self: &Arc<Self>, token: &Token) {
        let Some(due) = token.due else { return };
        let task = tokio::spawn(keep_alive(Arc::downgrade(self), due));
        if let Some(old) = held(&self.renewal).replace(task.abort_handle()) {
            old.abort();
        }
    }

    /// Renews the token, or logs in again where that is better; says when to come back.
    async fn renew(self: &Arc<Self>) -> Option<Instant> {
        let deadline = Instant::now() + BACKGROUND;
        let result = self.try_renew(deadline).await;
        let token = held(&self.token).clone()?;
        match result {
            Ok(()) => token.due,
            Err(error) => {
                let left = token.left().unwrap_or_default();
                tracing::warn!(method = self.auth.name(), kind = %error.kind(), error = %error.report(),
                    ?left, "the token cannot be renewed");
                let pause = (left / 4).clamp(MIN_BACKOFF, MAX_BACKOFF);
                Some(Instant::now() + jitter(pause))
            }
        }
    }

    async fn try_renew(self: &Arc<Self>, deadline: Instant) -> Result<(), Error> {
        let _one = self.lock(deadline).await?;
        let Some(token) = held(&self.token).clone() else { return Ok(()) };
        if token.due.is_none_or(|due| due > Instant::now()) {
            return Ok(());
        }
        let renewed = match token.renewable && !token.is_over() {
            true => self.renew_token(&token, deadline).await,
            false => Ok(None),
        };
        let by_login = !matches!(self.auth, Auth::Token(_) | Auth::Agent);
        match renewed {
            Ok(Some(renewed)) if !renewed.is_nearly_over() || !by_login => {
                tracing::debug!(life = ?renewed.life, "token renewed");
                *held(&self.token) = Some(Arc::new(renewed));
                Ok(())
            }
            Err(error) if error.kind().is_transient() || !by_login => Err(error),
            _ if by_login => self.log_in_again(&token, deadline).await,
            _ => Err(Error::new(Kind::Denied, "the token is not renewable").with_hint(
                "write a new one into its file before it expires, or use a periodic one",
            )),
        }
    }

    /// Replaces a token that lives, and gives it back.
    async fn log_in_again(&self, old: &Arc<Token>, deadline: Instant) -> Result<(), Error> {
        let token = self.login(deadline).await?;
        tracing::info!(method = self.auth.name(), life = ?token.life, "logged in to Vault again");
        *held(&self.token) = Some(Arc::new(token));
        self.revoke(old);
        Ok(())
    }

    async fn renew_token(&self, token: &Token, deadline: Instant) -> Result<Option<Token>, Error> {
        let of = "renewal of the token";
        let body = Bytes::from_static(b"{}");
        let mut request = self.envelope(Method::POST, "auth/token/renew-self", body);
        token.sign(&mut request);
        let answer = self.client.ask(&request, deadline).await?;
        if !answer.status.is_success() {
            return Err(match answer.status.as_u16() {
                400 | 403 => answer::error(Kind::Denied, &answer, of),
                _ => answer::refused(&answer, of),
            });
        }
        let granted: Login<'_> = answer::read(&answer, of)?;
        Ok(granted.auth.map(|granted| {
            let mut renewed = Token::new(token.header.clone(), granted.lease_duration);
            renewed.renewable = granted.renewable;
            renewed.whole = token.whole;
            renewed.index = answer.index.clone().or_else(|| token.index.clone());
            renewed
        }))
    }

    /// Gives a token of ours back that is no longer needed. Calls that still use it have a moment
    /// to end; if it cannot be given back it expires by itself.
    fn revoke(&self, token: &Arc<Token>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let body = Bytes::from_static(b"{}");
        let mut request = self.envelope(Method::POST, "auth/token/revoke-self", body);
        token.sign(&mut request);
        let client = self.client.clone();
        runtime.spawn(async move {
            tokio::time::sleep(GRACE).await;
            let _ = client.ask(&request, Instant::now() + BACKGROUND).await;
        });
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

async fn keep_alive(session: Weak<Session>, mut due: Instant) {
    loop {
        tokio::time::sleep_until(due).await;
        let Some(session) = session.upgrade() else { return };
        match session.renew().await {
            Some(next) => due = next,
            None => return,
        }
    }
}

impl Token {
    fn new(header: HeaderValue, seconds: u64) -> Self {
        // Nothing that counts lives longer than a century.
        let life = (seconds > 0).then(|| Duration::from_secs(seconds.min(100 * 365 * 86_400)));
        Self {
            header,
            index: None,
            renewable: false,
            given: Instant::now(),
            life,
            whole: life,
            expires: life.map(|life| SystemTime::now() + life),
            due: life.map(|life| Instant::now() + jitter(life * 2 / 3)),
        }
    }

    fn sign(&self, request: &mut Request) {
        request.token = Some(self.header.clone());
        request.index = self.index.clone();
    }

    fn left(&self) -> Option<Duration> {
        self.life.map(|life| life.saturating_sub(self.given.elapsed()))
    }

    fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Renewed, but cut short: its longest life comes to an end.
    fn is_nearly_over(&self) -> bool {
        match (self.life, self.whole) {
            (Some(life), Some(whole)) => life < whole / 2,
            _ => false,
        }
    }
}

/// A token as it is sent: wiped when the last copy is gone, and never shown.
pub(crate) fn header(token: &str) -> Result<HeaderValue, Error> {
    let bytes = Bytes::from_owner(Zeroizing::new(token.as_bytes().to_vec()));
    let mut header = HeaderValue::from_maybe_shared(bytes)
        .map_err(|_| Error::new(Kind::Config, "the token holds characters that no token has"))?;
    header.set_sensitive(true);
    Ok(header)
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
