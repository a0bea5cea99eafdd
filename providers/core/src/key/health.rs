//! What Status answers, kept in memory.
//!
//! The rule. A key is healthy once it has been proven, and stays so for the coast after its last
//! proof: a failure that may pass (unreachable, throttled, slow) changes nothing until then, and
//! without a new proof Status answers with a gRPC **error** from then on, whether anybody has
//! noticed a failure or not. A failure that does not pass (key disabled, wrong key) is an error at
//! once; a refused permission when it is refused again five seconds later or more, because
//! permissions take a moment to spread. It must be an error: on a mere healthz text kube-apiserver
//! goes on writing data that other replicas may not be able to read (kubernetes#138950), while an
//! error lets its three-minute write window close. Requests that fail only make the next probe
//! come sooner, so that forged data in etcd cannot make a sound key look sick.
//!
//! The coast counts from the last proof and not from the first failure, so that it is the same
//! whoever looks: a shim that asks a provider takes over the age of its proof
//! ([`PROOF_AGE`](crate::kms::PROOF_AGE)), and the two do not add up.

use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::ProbeOptions;
use crate::{Error, Kind};

/// A permission that is still refused after this time is not on its way.
const DENIED_AGAIN: Duration = Duration::from_secs(5);

/// The health of one key.
#[derive(Debug)]
pub struct Health {
    state: Mutex<HealthState>,
}

/// What is known of a key, for `/status`.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Whether Status answers ok.
    pub verdict: Result<(), Trouble>,
    /// Since when the key has been as it is: proven, failing, or waiting for its first proof.
    pub since: SystemTime,
    /// Since when it fails while Status is still ok, if it does.
    pub coasting: Option<SystemTime>,
    /// The last proof.
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
struct HealthState {
    coast: Duration,
    proven: Option<(Instant, SystemTime)>,
    failing: Option<Failing>,
    last_error: Option<Trouble>,
    since: SystemTime,
}

#[derive(Debug)]
struct Failing {
    trouble: Trouble,
    /// When a permission was refused for the first time.
    denied: Option<Instant>,
    /// Waiting does not mend it.
    lasting: bool,
}

impl Health {
    /// A key of which nothing is known yet.
    pub fn new(options: ProbeOptions) -> Self {
        let (coast, since) = (options.coast, SystemTime::now());
        let state = HealthState { coast, proven: None, failing: None, last_error: None, since };
        Self { state: Mutex::new(state) }
    }

    /// Other times from now on.
    pub fn configure(&self, options: ProbeOptions) {
        self.state.lock().coast = options.coast;
    }

    /// The key works. Returns whether that ended a failure or was the first proof.
    pub fn proven(&self) -> bool {
        self.proven_before(Duration::ZERO)
    }

    /// The key worked so long ago, as somebody else has found. Returns whether that ended a
    /// failure or was the first proof.
    pub fn proven_before(&self, age: Duration) -> bool {
        let mut state = self.state.lock();
        let (now, clock) = (Instant::now(), SystemTime::now());
        let at = now.checked_sub(age).unwrap_or(now);
        let news = state.failing.take().is_some() || state.proven.is_none();
        if news {
            state.since = clock;
        }
        if state.proven.is_none_or(|(before, _)| before < at) {
            state.proven = Some((at, clock.checked_sub(age).unwrap_or(clock)));
        }
        news
    }

    /// The key does not work. Returns whether that is news: the first failure, or one of another
    /// kind.
    pub fn failed(&self, error: &Error) -> bool {
        self.state.lock().failed(error, false)
    }

    /// The key does not work, and whoever says so has waited long enough already.
    pub fn failed_for_good(&self, error: &Error) -> bool {
        self.state.lock().failed(error, true)
    }

    /// Whether the key has ever been proven.
    pub fn was_proven(&self) -> bool {
        self.state.lock().proven.is_some()
    }

    /// Whether the last probe failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.state.lock().failing.is_some()
    }

    /// Whether a proof would change anything worth the trouble: it fails, or the last proof is
    /// not of this very second.
    pub(crate) fn wants_proof(&self) -> bool {
        let state = self.state.lock();
        let old = state.proven.is_none_or(|(at, _)| at.elapsed() >= Duration::from_secs(1));
        old || state.failing.is_some()
    }

    /// How old the last proof is.
    pub fn proof_age(&self) -> Option<Duration> {
        self.state.lock().proven.map(|(at, _)| at.elapsed())
    }

    /// What Status answers now.
    pub fn verdict(&self) -> Result<(), Trouble> {
        self.state.lock().verdict()
    }

    /// Everything that is known.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let verdict = state.verdict();
        let coasting = state.failing.is_some() && verdict.is_ok();
        Snapshot {
            verdict,
            since: state.since,
            coasting: coasting.then_some(state.since),
            last_success: state.proven.map(|(_, at)| at),
            last_error: state.last_error.clone(),
        }
    }
}

impl Trouble {
    /// As of now.
    pub fn new(error: &Error) -> Self {
        Self { kind: error.kind(), text: error.report(), at: SystemTime::now() }
    }
}

impl HealthState {
    fn failed(&mut self, error: &Error, for_good: bool) -> bool {
        let trouble = Trouble::new(error);
        let before = self.failing.as_ref();
        let news = before.is_none_or(|before| before.trouble.kind != trouble.kind);
        let denied = (trouble.kind == Kind::Denied)
            .then(|| before.and_then(|before| before.denied).unwrap_or_else(Instant::now));
        let lasting = match denied {
            Some(first) => error.is_lasting() || first.elapsed() >= DENIED_AGAIN,
            None => !trouble.kind.is_transient(),
        };
        if before.is_none() {
            self.since = trouble.at;
        }
        self.last_error = Some(trouble.clone());
        self.failing = Some(Failing { trouble, denied, lasting: lasting || for_good });
        news
    }

    fn verdict(&self) -> Result<(), Trouble> {
        let trouble = |text: String| Trouble { kind: Kind::Unavailable, text, at: self.since };
        match (&self.proven, &self.failing) {
            (None, None) => Err(trouble("waiting for the first probe of the key".into())),
            (None, Some(failing)) => Err(failing.trouble.clone()),
            (Some(_), Some(failing)) if failing.lasting => Err(failing.trouble.clone()),
            (Some((at, _)), _) if at.elapsed() < self.coast => Ok(()),
            (Some(_), Some(failing)) => Err(failing.trouble.clone()),
            (Some((at, _)), None) => {
                Err(trouble(format!("no proof of the key for {} s", at.elapsed().as_secs())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn health() -> Health {
        Health::new(ProbeOptions {
            interval: 30 * SECOND,
            timeout: 10 * SECOND,
            coast: 60 * SECOND,
        })
    }

    fn error(kind: Kind) -> Error {
        Error::new(kind, "no")
    }

    fn kind(health: &Health) -> Result<(), Kind> {
        health.verdict().map_err(|trouble| trouble.kind)
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
    async fn a_passing_failure_coasts_from_the_last_proof_and_then_is_an_error() {
        let health = health();
        health.proven();
        tokio::time::advance(30 * SECOND).await;
        health.failed(&error(Kind::Unavailable));
        tokio::time::advance(29 * SECOND).await;
        health.failed(&error(Kind::Throttled));
        assert_eq!(kind(&health), Ok(()));
        assert!(health.snapshot().coasting.is_some());
        tokio::time::advance(SECOND).await;
        assert_eq!(kind(&health), Err(Kind::Throttled));
        assert!(health.snapshot().coasting.is_none());
        health.proven();
        assert_eq!(kind(&health), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lasting_failure_is_an_error_at_once() {
        let health = health();
        health.proven();
        health.failed(&error(Kind::KeyState));
        assert_eq!(kind(&health), Err(Kind::KeyState));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_permission_is_an_error_when_it_is_refused_again_later() {
        let health = health();
        health.proven();
        health.failed(&error(Kind::Denied));
        tokio::time::advance(4 * SECOND).await;
        health.failed(&error(Kind::Denied));
        assert_eq!(kind(&health), Ok(()));
        tokio::time::advance(SECOND).await;
        assert_eq!(kind(&health), Ok(()), "time alone does not refuse");
        health.failed(&error(Kind::Denied));
        assert_eq!(kind(&health), Err(Kind::Denied));
        health.proven();
        health.failed(&error(Kind::Denied));
        assert_eq!(kind(&health), Ok(()), "a proof in between begins anew");
        health.failed(&error(Kind::Denied).lasting());
        assert_eq!(kind(&health), Err(Kind::Denied), "a login is not tried again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_has_waited_for_is_an_error_at_once() {
        let health = health();
        health.proven();
        health.failed_for_good(&error(Kind::Unavailable));
        assert_eq!(kind(&health), Err(Kind::Unavailable));
        assert!(health.proven());
        assert_eq!(kind(&health), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_proof_is_no_proof() {
        let health = health();
        health.proven();
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(kind(&health), Err(Kind::Unavailable));
    }

    #[tokio::test(start_paused = true)]
    async fn a_proof_of_another_has_its_age_and_never_takes_time_away() {
        let health = health();
        tokio::time::advance(100 * SECOND).await;
        assert!(health.proven_before(50 * SECOND));
        assert_eq!(health.proof_age(), Some(50 * SECOND));
        health.proven_before(20 * SECOND);
        health.proven_before(40 * SECOND);
        assert_eq!(health.proof_age(), Some(20 * SECOND));
        tokio::time::advance(39 * SECOND).await;
        assert_eq!(kind(&health), Ok(()));
        tokio::time::advance(SECOND).await;
        assert_eq!(kind(&health), Err(Kind::Unavailable));
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
