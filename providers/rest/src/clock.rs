//! The time as the servers have it.
//!
//! What a server says of the end of a token is by its own clock. Where ours is off by more than
//! requests and answers take, the difference is learned from the `Date` of its answers.
//!
//! Clients of an SDK sign with the time, and learn it by themselves, each from the refusal of a call
//! of its own, whatever others know: [`Learner`] makes that call once more.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use http::HeaderValue;

/// So much is no accident, and less harms nobody.
const TOLERANCE: i64 = 60;

/// Our clock, set right where servers have told that it is wrong.
#[derive(Debug, Default)]
pub struct Clock {
    /// Seconds that ours is behind.
    skew: AtomicI64,
}

/// One client of an SDK, and what it knows of the time.
#[derive(Debug)]
pub struct Learner {
    clock: Arc<Clock>,
    /// How many seconds our clock was behind when the client learned it.
    learned: AtomicI64,
}

impl Learner {
    /// A client that knows no time but ours.
    pub fn new(clock: Arc<Clock>) -> Self {
        Self { clock, learned: AtomicI64::new(0) }
    }

    /// Makes a call of the client, and again if it failed for what may be the time, and the client
    /// has just learned another one.
    pub async fn call<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        send: impl Fn() -> F,
        may_be_time: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        match self.attempt(send(), may_be_time).await {
            (_, true) => send().await,
            (first, false) => first,
        }
    }

    /// Makes a call of the client. Says whether it failed for what may be the time, and the client
    /// has just learned another one: then it is worth repeating at once.
    pub async fn attempt<T, E>(
        &self,
        sending: impl Future<Output = Result<T, E>>,
        may_be_time: impl Fn(&E) -> bool,
    ) -> (Result<T, E>, bool) {
        let known = [self.clock.skew(), self.learned.load(Ordering::Relaxed)];
        let result = sending.await;
        if !result.as_ref().is_err_and(may_be_time) {
            return (result, false);
        }
        let now = self.clock.skew();
        self.learned.store(now, Ordering::Relaxed);
        // Others may have learned while this call was under way: then it was sent too early.
        (result, known.iter().any(|known| (now - known).abs() > TOLERANCE))
    }
}

impl Clock {
    /// Takes note of the `Date` of an answer that was just read.
    pub fn observe(&self, date: Option<&HeaderValue>) {
        let date = date.and_then(|date| date.to_str().ok());
        let Some(theirs) = date.and_then(|date| httpdate::parse_http_date(date).ok()) else {
            return;
        };
        let behind = seconds(theirs) - seconds(SystemTime::now());
        let behind = if behind.abs() > TOLERANCE { behind } else { 0 };
        if (self.skew.swap(behind, Ordering::Relaxed) - behind).abs() > TOLERANCE {
            tracing::warn!(
                seconds = behind,
                hint = "set this machine's clock, if it is off",
                "this machine's clock and that of the KMS differ: lifetimes are counted by the latter"
            );
        }
    }

    /// The time by the servers' clock.
    pub fn now(&self) -> SystemTime {
        let (now, skew) = (SystemTime::now(), self.skew());
        let by = Duration::from_secs(skew.unsigned_abs());
        let corrected = if skew < 0 { now.checked_sub(by) } else { now.checked_add(by) };
        corrected.unwrap_or(now)
    }

    /// How many seconds our clock is behind; 0 where it is about right or nothing is known.
    fn skew(&self) -> i64 {
        self.skew.load(Ordering::Relaxed)
    }

    /// What is left until `end`, which a server has named.
    pub fn until(&self, end: SystemTime) -> Duration {
        end.duration_since(self.now()).unwrap_or_default()
    }
}

fn seconds(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX / 2),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN / 2, |s| -s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(clock: &Clock, shift: i64) {
        let by = Duration::from_secs(shift.unsigned_abs());
        let now = SystemTime::now();
        let theirs = if shift < 0 { now - by } else { now + by };
        let date = HeaderValue::try_from(httpdate::fmt_http_date(theirs)).unwrap();
        clock.observe(Some(&date));
    }

    #[tokio::test]
    async fn a_call_that_was_refused_for_the_time_is_made_once_more_by_each_client() {
        const HOUR: i64 = 3600;
        let clock = Arc::new(Clock::default());
        let sent = AtomicI64::new(0);
        // The server's answer tells its time; a client that does not know it is refused.
        let call = async |client: &Learner, told: i64| {
            sent.store(0, Ordering::Relaxed);
            let knows = client.learned.load(Ordering::Relaxed);
            let send = async || {
                observe(&clock, told);
                let turn = sent.fetch_add(1, Ordering::Relaxed);
                if turn > 0 || (knows - told).abs() <= 300 { Ok(()) } else { Err("signature") }
            };
            let result = client.call(send, |error| *error == "signature").await;
            (result, sent.load(Ordering::Relaxed))
        };
        let (first, second) = (Learner::new(clock.clone()), Learner::new(clock.clone()));
        for shift in [HOUR, -HOUR, 7 * HOUR, 0] {
            for client in [&first, &second] {
                assert_eq!(call(client, shift).await, (Ok(()), 2), "{shift}");
                assert_eq!(call(client, shift).await, (Ok(()), 1), "{shift}");
            }
        }
        let count = |error: &'static str| {
            let (first, sent) = (&first, &sent);
            async move {
                sent.store(0, Ordering::Relaxed);
                let send = async || {
                    sent.fetch_add(1, Ordering::Relaxed);
                    Err::<(), _>(error)
                };
                let _ = first.call(send, |error| *error == "signature").await;
                sent.load(Ordering::Relaxed)
            }
        };
        assert_eq!(
            count("signature").await,
            1,
            "the time is known: it is wrong for another reason"
        );
        observe(&clock, HOUR);
        assert_eq!(count("denied").await, 1, "that is not about the time");
        assert_eq!(count("signature").await, 2);
    }

    #[test]
    fn a_clock_that_is_hours_off_is_set_right_and_a_small_difference_is_left_alone() {
        let clock = Clock::default();
        let ahead = |clock: &Clock| seconds(clock.now()) - seconds(SystemTime::now());
        for shift in [7 * 3600, -7 * 3600] {
            observe(&clock, shift);
            assert!((ahead(&clock) - shift).abs() <= 2, "{shift}");
        }
        observe(&clock, 30);
        assert!(ahead(&clock).abs() <= 2);
        observe(&clock, 7200);
        clock.observe(Some(&HeaderValue::from_static("yesterday")));
        clock.observe(None);
        assert!((ahead(&clock) - 7200).abs() <= 2, "nonsense changes nothing");
        let hour = Duration::from_secs(3600);
        let left = clock.until(SystemTime::now() + 3 * hour);
        assert!(left <= hour && left > hour - Duration::from_secs(5), "{left:?}");
    }
}
