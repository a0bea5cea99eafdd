//! What Status answers, kept in memory.
//!
//! The rule. A key is healthy once a probe has wrapped and unwrapped with it, and stays so while
//! probes succeed. When they fail in a passing way (unreachable, throttled, slow) Status coasts on
//! "ok" for the configured time; when they fail for good (denied, key disabled, wrong key), or
//! the time is up, Status answers with a gRPC **error**. It must be an error: on a mere healthz
//! text kube-apiserver goes on writing data that other replicas may not be able to read
//! (kubernetes#138950), while an error lets its three-minute write window close. Only proofs of
//! the whole way, wrap and unwrap, count; requests that fail only make the next probe come sooner,
//! so that forged data in etcd cannot make a sound key look sick.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::config::ProbeOptions;
use crate::{Error, Kind};

/// The health of one key.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
}

/// What is known of a key, for `/status`.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Whether Status answers ok.
    pub verdict: Result<(), Trouble>,
    /// Since when the key has been as it is: proven, failing, or waiting for its first proof.
    pub since: SystemTime,
    /// The last time that wrap and unwrap succeeded.
    pub last_success: Option<SystemTime>,
    /// The last failure, also if it has been overcome.
    pub last_error: Option<Trouble>,
}

/// A failure, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What kind of failure.
    pub kind: Kind,
    /// The whole chain, with its hint.
    pub text: String,
    /// When.
    pub at: SystemTime,
}

#[derive(Debug)]
struct State {
    options: ProbeOptions,
    proven: Option<(Instant, SystemTime)>,
    failing: Option<(Instant, Trouble)>,
    last_error: Option<Trouble>,
    since: SystemTime,
}

impl Health {
    /// A key of which nothing is known yet.
    pub fn new(options: ProbeOptions) -> Self {
        let since = SystemTime::now();
        let state = State { options, proven: None, failing: None, last_error: None, since };
        Self { state: Mutex::new(state) }
    }

    /// Other times from now on.
    pub fn configure(&self, options: ProbeOptions) {
        self.lock().options = options;
    }

    /// Wrap and unwrap succeeded. Returns whether that ended a failure or was the first proof.
    pub fn proven(&self) -> bool {
        let mut state = self.lock();
        let news = state.failing.take().is_some() || state.proven.is_none();
        let now = SystemTime::now();
        if news {
            state.since = now;
        }
        state.proven = Some((Instant::now(), now));
        news
    }

    /// A probe failed. Returns whether that is news: the first failure, or one of another kind.
    pub fn failed(&self, error: &Error) -> bool {
        let mut state = self.lock();
        let trouble = Trouble::new(error);
        let news = state.failing.as_ref().is_none_or(|(_, old)| old.kind != trouble.kind);
        let began = state.failing.as_ref().map_or_else(Instant::now, |(began, _)| *began);
        if state.failing.is_none() {
            state.since = trouble.at;
        }
        state.last_error = Some(trouble.clone());
        state.failing = Some((began, trouble));
        news
    }

    /// Whether the key has ever been proven.
    pub fn was_proven(&self) -> bool {
        self.lock().proven.is_some()
    }

    /// What Status answers now.
    pub fn verdict(&self) -> Result<(), Trouble> {
        self.lock().verdict()
    }

    /// Everything that is known.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        Snapshot {
            verdict: state.verdict(),
            since: state.since,
            last_success: state.proven.map(|(_, at)| at),
            last_error: state.last_error.clone(),
        }
    }

    /// A panic cannot leave the state half-written: every change is one assignment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trouble {
    /// As of now.
    pub fn new(error: &Error) -> Self {
        Self { kind: error.kind(), text: error.report(), at: SystemTime::now() }
    }
}

impl State {
    fn verdict(&self) -> Result<(), Trouble> {
        let trouble = |kind, text: &str| Trouble { kind, text: text.into(), at: self.since };
        match (&self.proven, &self.failing) {
            (None, None) => {
                Err(trouble(Kind::Unavailable, "waiting for the first probe of the key"))
            }
            (None, Some((_, failure))) => Err(failure.clone()),
            (Some((at, _)), None) if at.elapsed() > self.stale() => {
                let text = format!("no proof of the key for {} s", at.elapsed().as_secs());
                Err(trouble(Kind::Unavailable, &text))
            }
            (Some(_), None) => Ok(()),
            (Some(_), Some((began, failure))) => {
                if failure.kind.is_transient() && began.elapsed() < self.options.coast {
                    Ok(())
                } else {
                    Err(failure.clone())
                }
            }
        }
    }

    /// A proof older than this is none: two probes must have been missed, and the coast be over.
    fn stale(&self) -> Duration {
        self.options.interval * 2 + self.options.timeout * 2 + self.options.coast
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        Health::new(ProbeOptions {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            coast: Duration::from_secs(60),
        })
    }

    fn error(kind: Kind) -> Error {
        Error::new(kind, "no")
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_never_healthy_before_its_first_proof() {
        let health = health();
        assert!(health.verdict().is_err());
        health.failed(&error(Kind::Unavailable));
        assert!(health.verdict().is_err());
        assert!(health.proven());
        assert_eq!(health.verdict(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_passing_failure_coasts_and_then_is_an_error() {
        let health = health();
        health.proven();
        health.failed(&error(Kind::Unavailable));
        tokio::time::advance(Duration::from_secs(59)).await;
        health.failed(&error(Kind::Throttled));
        assert_eq!(health.verdict(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.verdict().map_err(|t| t.kind), Err(Kind::Throttled));
        health.proven();
        assert_eq!(health.verdict(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_failure_is_an_error_at_once() {
        let health = health();
        health.proven();
        health.failed(&error(Kind::KeyState));
        assert_eq!(health.verdict().map_err(|t| t.kind), Err(Kind::KeyState));
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_proof_is_no_proof() {
        let health = health();
        health.proven();
        tokio::time::advance(Duration::from_secs(141)).await;
        assert_eq!(health.verdict().map_err(|t| t.kind), Err(Kind::Unavailable));
    }

    #[tokio::test(start_paused = true)]
    async fn news_are_told_once() {
        let health = health();
        assert!(health.failed(&error(Kind::Denied)));
        assert!(!health.failed(&error(Kind::Denied)));
        assert!(health.failed(&error(Kind::Unavailable)));
        assert!(health.proven());
        assert!(!health.proven());
    }
}
