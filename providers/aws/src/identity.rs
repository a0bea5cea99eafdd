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
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use sidekey_core::{Error, Kind, jitter};
use tokio::time::Instant;

use crate::refusal;

/// So long before the end new credentials are fetched, or at half of a shorter life.
const EARLY: Duration = Duration::from_secs(300);
/// Credentials that end sooner than this are as good as ended: a request takes its time.
const TOO_LATE: Duration = Duration::from_secs(5);
/// Between two tries of renewing while the old credentials are still good.
const PAUSE: Duration = Duration::from_secs(10);

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
            None => self.renew().await,
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
        let before = self.access_key_id();
        let _asking = self.0.asking.lock().await;
        let now = SystemTime::now();
        // Whoever waited for another one's answer may use it.
        if self.held().is_some_and(|held| held.is_good(now) && !held.is_stale(now))
            && (before != self.access_key_id() || before.is_none())
        {
            return Ok(());
        }
        match self.0.source.provide_credentials().await {
            Ok(credentials) => {
                let held = Held::new(credentials, SystemTime::now());
                let mut state = self.state();
                (state.held, state.pause) = (Some(held), None);
                Ok(())
            }
            Err(error) => {
                self.state().pause = Some(Instant::now() + jitter(PAUSE));
                Err(refusal::no_credentials(&error))
            }
        }
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

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

#[cfg(test)]
mod tests;
