//! The one retry loop: a request that fails in a passing way is repeated by the key, and by nobody
//! else on its way.
//!
//! At most three attempts, spread over the caller's time: the second comes soon, for a connection
//! that broke; the third after half of the time, so that a KMS which answers 503 for a second fails
//! no Decrypt that has three. An attempt gets a share of the time that is left, so that a KMS which
//! says nothing leaves some for the next one. What stood in the way and has been mended meanwhile (a
//! new login was made) is repeated at once, and counts like any attempt. All callers of a key share
//! a budget, so that a KMS which fails for everybody is not asked three times as often as one that
//! works.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::key::proof::within;
use crate::{Error, jitter};

/// Attempts for one request, the first included.
pub(crate) const ATTEMPTS: u32 = 3;
/// Retries that may be made at once: those of 64 callers.
const BUDGET: f64 = 128.0;
/// Retries that come back in a second.
const REFILL: f64 = 16.0;
/// When the second and the third attempt begin, as parts of the caller's time and at the latest.
const STARTS: [(f32, Duration); 2] =
    [(0.1, Duration::from_millis(500)), (0.5, Duration::from_secs(5))];
/// An attempt gets this part of the time that is left, the last one all of it.
const SHARE: f32 = 0.6;
/// An attempt with less time than this is not worth making.
pub(crate) const LEAST: Duration = Duration::from_millis(20);

/// The retries that the callers of one key have left.
#[derive(Debug)]
pub(crate) struct RetryBudget(Mutex<(f64, Option<Instant>)>);

/// What came of a request.
pub(crate) struct Run<T> {
    pub(crate) result: Result<T, Error>,
    /// How many attempts were made.
    pub(crate) attempts: u32,
    /// Whether there was no time for another one.
    pub(crate) out_of_time: bool,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self(Mutex::new((BUDGET, None)))
    }
}

impl RetryBudget {
    fn take(&self) -> bool {
        let mut state = self.0.lock();
        let (left, last) = *state;
        let now = Instant::now();
        let refill = last.map_or(0.0, |last| (now - last).as_secs_f64() * REFILL);
        let left = (left + refill).min(BUDGET);
        let taken = left >= 1.0;
        *state = (if taken { left - 1.0 } else { left }, Some(now));
        taken
    }

    /// Makes up to `attempts` attempts until one succeeds or fails for good, each until the time
    /// that it is given; none takes longer than `deadline`. Where some were made before, only the
    /// later ones are left.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Error>>>(
        &self,
        deadline: Instant,
        attempts: u32,
        mut attempt: impl FnMut(Instant) -> F,
    ) -> Run<T> {
        let began = Instant::now();
        let time = deadline.saturating_duration_since(began);
        let mut made = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let share = if made + 1 < attempts { left.mul_f32(SHARE) } else { left };
            let limit = Instant::now() + share;
            let result = within(limit, attempt(limit)).await;
            made += 1;
            let ended = |result, out_of_time| Run { result, attempts: made, out_of_time };
            let Err(error) = &result else { return ended(result, false) };
            let mended = error.is_mended();
            if error.is_final() || !(mended || error.kind().is_transient()) {
                return ended(result, false);
            }
            let start = STARTS.get((made + ATTEMPTS - attempts) as usize - 1);
            let wake = match start {
                Some((part, latest)) if !mended => began + jitter(time.mul_f32(*part).min(*latest)),
                _ => began,
            };
            if wake.max(Instant::now()) + LEAST > deadline {
                return ended(result, true);
            }
            if made >= attempts || !(mended || self.take()) {
                return ended(result, false);
            }
            tracing::debug!(error = %error.report(), attempt = made, "trying again");
            tokio::time::sleep_until(wake).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;

    use super::*;
    use crate::Kind;

    const SECOND: Duration = Duration::from_secs(1);

    /// Fails until `heals`, as a KMS does; counts.
    async fn ask(heals: Instant, calls: &AtomicU32, kind: Kind) -> Result<(), Error> {
        calls.fetch_add(1, Ordering::SeqCst);
        match Instant::now() < heals {
            true => Err(Error::new(kind, "503")),
            false => Ok(()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_of_503_fails_none_of_64_callers_who_have_less_than_three() {
        let (budget, calls) = (RetryBudget::default(), AtomicU32::new(0));
        let (now, heals) = (Instant::now(), Instant::now() + SECOND);
        let deadline = now + Duration::from_millis(2700);
        let callers = (0..64)
            .map(|_| budget.run(deadline, ATTEMPTS, |_| ask(heals, &calls, Kind::Unavailable)));
        for run in join_all(callers).await {
            assert!(run.result.is_ok());
        }
        assert_eq!(calls.load(Ordering::SeqCst), 64 * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_takes_more_than_three_attempts_nor_its_callers_time() {
        let (budget, calls) = (RetryBudget::default(), AtomicU32::new(0));
        let deadline = Instant::now() + 3 * SECOND;
        let never = Instant::now() + 100 * SECOND;
        let asking = |_| ask(never, &calls, Kind::Throttled);
        let run = budget.run(deadline, ATTEMPTS, asking).await;
        assert_eq!(run.result.map_err(|error| error.kind()), Err(Kind::Throttled));
        assert_eq!((run.attempts, calls.load(Ordering::SeqCst)), (3, 3));
        assert!(Instant::now() < deadline);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kms_that_says_nothing_to_the_first_attempt_is_asked_again_in_time() {
        let (budget, calls) = (RetryBudget::default(), AtomicU32::new(0));
        for silent in 1..ATTEMPTS {
            calls.store(0, Ordering::SeqCst);
            let asking = async |limit: Instant| {
                assert!(limit <= Instant::now() + 3 * SECOND);
                if calls.fetch_add(1, Ordering::SeqCst) < silent {
                    std::future::pending::<()>().await;
                }
                Ok(())
            };
            let deadline = Instant::now() + 3 * SECOND;
            let run = budget.run(deadline, ATTEMPTS, asking).await;
            assert!(run.result.is_ok());
            assert_eq!((run.attempts, calls.load(Ordering::SeqCst)), (silent + 1, silent + 1));
        }
        let deadline = Instant::now() + 3 * SECOND;
        let run = budget.run(deadline, ATTEMPTS, |_| std::future::pending()).await;
        let result: Result<(), Error> = run.result;
        assert_eq!(result.map_err(|error| error.kind()), Err(Kind::Timeout));
        assert_eq!((run.attempts, run.out_of_time, Instant::now()), (3, true, deadline));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_mended_meanwhile_is_repeated_at_once_and_counts() {
        let (budget, calls) = (RetryBudget::default(), AtomicU32::new(0));
        let mended = async |_| {
            calls.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(Error::new(Kind::Denied, "the token has expired").mended())
        };
        let began = Instant::now();
        let run = budget.run(began + 3 * SECOND, ATTEMPTS, mended).await;
        assert_eq!(run.result.map_err(|error| error.kind()), Err(Kind::Denied));
        assert_eq!((calls.load(Ordering::SeqCst), began.elapsed()), (3, Duration::ZERO));
        let run = budget.run(began + 3 * SECOND, 1, mended).await;
        assert_eq!((run.attempts, calls.load(Ordering::SeqCst)), (1, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_pass_is_not_repeated() {
        let (budget, calls) = (RetryBudget::default(), AtomicU32::new(0));
        let never = Instant::now() + 100 * SECOND;
        for kind in [Kind::Denied, Kind::KeyState, Kind::Corrupt, Kind::Invalid, Kind::Bug] {
            calls.store(0, Ordering::SeqCst);
            let asking = |_| ask(never, &calls, kind);
            budget.run(Instant::now() + SECOND, ATTEMPTS, asking).await.result.unwrap_err();
            assert_eq!(calls.load(Ordering::SeqCst), 1, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_lasting_outage_callers_together_repeat_little() {
        let (budget, calls) = (RetryBudget::default(), AtomicU32::new(0));
        let never = Instant::now() + 1000 * SECOND;
        for _ in 0..10 {
            let deadline = Instant::now() + 3 * SECOND;
            let callers = (0..100)
                .map(|_| budget.run(deadline, ATTEMPTS, |_| ask(never, &calls, Kind::Unavailable)));
            join_all(callers).await;
        }
        let retries = calls.load(Ordering::SeqCst) - 1000;
        assert!((128..600).contains(&retries), "{retries} retries");
    }
}
