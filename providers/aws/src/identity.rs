//! Who we are: credentials that are renewed before they expire, and kept while renewing fails.
//!
//! The SDK's own cache waits for new credentials within a request, and gives up the old ones when
//! there are none. This one renews in the background while the old ones are still good for
//! minutes, so that no request waits, and an STS that is away, or a token file that is empty for
//! a moment, costs nothing as long as the session lasts.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use sidekey_core::{Error, Kind, jitter};
use tokio::time::{Instant, timeout};

use crate::refusal;

/// So long before the end new credentials are fetched, or at half of a shorter life.
const EARLY: Duration = Duration::from_secs(300);
/// Credentials that end sooner than this are as good as ended: a request takes its time.
const TOO_LATE: Duration = Duration::from_secs(5);
/// Between two tries of renewing while the old credentials are still good.
const PAUSE: Duration = Duration::from_secs(10);
/// Longest wait for the source, with all of its own tries: an STS that takes the request and says
/// nothing must not be waited for when the next one would answer.
const ASK: Duration = Duration::from_secs(15);

/// Credentials of one source; cheap to clone.
#[derive(Clone)]
pub(crate) struct Identity(Arc<Inner>);

struct Inner {
    source: SharedCredentialsProvider,
    state: Mutex<State>,
    /// Held by the one who asks the source.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    /// Not before this instant is a failed renewal tried again.
    pause: Option<Instant>,
    /// How often the source has failed, and how the last time: all who waited for that get it.
    failures: u64,
    failure: Option<Error>,
}

#[derive(Clone)]
struct Held {
    credentials: Credentials,
    /// From when on new ones are wanted.
    stale: Option<SystemTime>,
}

impl Identity {
    /// Nothing has been asked for yet.
    pub(crate) fn new(source: SharedCredentialsProvider) -> Self {
        let (state, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(Inner { source, state, asking }))
    }

    /// Makes sure that there are credentials; waits only where there are none that are good.
    async fn ready(&self) -> Result<(), Error> {
        let now = SystemTime::now();
        match self.held().filter(|held| held.is_good(now)) {
            None => {
                // In a task of its own: who asks may have less time than the answer takes, and
                // the next one must not begin anew.
                let identity = self.clone();
                let renewal = tokio::spawn(async move { identity.renew().await });
                renewal.await.unwrap_or_else(|error| {
                    let what = "the renewal of the credentials was broken off";
                    Err(Error::new(Kind::Unavailable, what).with_source(error))
                })
            }
            Some(held) => {
                if held.is_stale(now) && self.may_try() {
                    let identity = self.clone();
                    tokio::spawn(async move {
                        if let Err(error) = identity.renew().await {
                            let error = error.report();
                            tracing::warn!(
                                error,
                                "credentials could not be renewed, the old ones are still good"
                            );
                        }
                    });
                }
                Ok(())
            }
        }
    }

    /// AWS does not take the credentials in use any more, whatever their expiry says.
    pub(crate) async fn refused(&self, used: Option<&str>) -> Result<(), Error> {
        {
            let mut state = self.state();
            let held = state.held.as_ref().map(|held| held.credentials.access_key_id());
            if held == used {
                state.held = None;
            }
        }
        self.ready().await
    }

    /// Credentials that are good.
    pub(crate) async fn credentials(&self) -> Result<Credentials, Error> {
        self.ready().await?;
        let held = self.held().map(|held| held.credentials);
        held.ok_or_else(|| Error::new(Kind::Unavailable, "there are no credentials any more"))
    }

    /// The access key in use, which is no secret.
    fn access_key_id(&self) -> Option<String> {
        self.held().map(|held| held.credentials.access_key_id().to_owned())
    }

    /// When the credentials in use end, if they do.
    pub(crate) fn expiry(&self) -> Option<SystemTime> {
        self.held()?.credentials.expiry()
    }

    async fn renew(&self) -> Result<(), Error> {
        let (before, failures) = (self.access_key_id(), self.state().failures);
        let _asking = self.0.asking.lock().await;
        let now = SystemTime::now();
        // Whoever waited for another one's answer may use it.
        if self.held().is_some_and(|held| held.is_good(now) && !held.is_stale(now))
            && (before != self.access_key_id() || before.is_none())
        {
            return Ok(());
        }
        if let Some(error) = self.failed_since(failures) {
            return Err(error);
        }
        let asked = timeout(ASK, self.0.source.provide_credentials()).await;
        let error = match asked.map(|answer| answer.and_then(sound)) {
            Ok(Ok(credentials)) => {
                let held = Held::new(credentials, SystemTime::now());
                let mut state = self.state();
                (state.held, state.pause) = (Some(held), None);
                return Ok(());
            }
            Ok(Err(error)) => refusal::no_credentials(&error),
            Err(_) => refusal::no_credentials(&CredentialsError::provider_timed_out(ASK)),
        };
        let mut state = self.state();
        state.pause = Some(Instant::now() + jitter(PAUSE));
        state.failures += 1;
        state.failure = Some(copy(&error));
        Err(error)
    }

    /// How the source has failed while we waited for our turn: it is not asked once more for each
    /// of those who wait.
    fn failed_since(&self, failures: u64) -> Option<Error> {
        let state = self.state();
        state.failure.as_ref().filter(|_| state.failures != failures).map(copy)
    }

    fn may_try(&self) -> bool {
        let mut state = self.state();
        let may = state.pause.is_none_or(|pause| pause <= Instant::now());
        if may {
            // One try at a time.
            state.pause = Some(Instant::now() + PAUSE);
        }
        may
    }

    fn held(&self) -> Option<Held> {
        self.state().held.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn new(credentials: Credentials, now: SystemTime) -> Self {
        let stale = credentials.expiry().map(|end| {
            let life = end.duration_since(now).unwrap_or_default();
            now + life.saturating_sub(jitter(EARLY.min(life / 2)))
        });
        Self { credentials, stale }
    }

    fn is_good(&self, now: SystemTime) -> bool {
        self.credentials.expiry().is_none_or(|end| now + TOO_LATE < end)
    }

    fn is_stale(&self, now: SystemTime) -> bool {
        self.stale.is_some_and(|stale| stale <= now)
    }
}

/// They are written into heads of requests, where a second line would be another header.
fn sound(credentials: Credentials) -> Result<Credentials, CredentialsError> {
    let texts = [Some(credentials.access_key_id()), credentials.session_token()];
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if texts.into_iter().flatten().all(is_word) {
        return Ok(credentials);
    }
    let what = "access key id or session token is empty, or more than one word";
    Err(CredentialsError::invalid_configuration(what))
}

/// The same for another one who waited.
fn copy(error: &Error) -> Error {
    let same = Error::new(error.kind(), error.to_string());
    let same = if error.needs_reload() { same.after_reload() } else { same };
    match error.hint() {
        Some(hint) => same.with_hint(hint),
        None => same,
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

#[cfg(test)]
mod tests;
