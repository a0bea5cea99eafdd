//! The time as the servers have it.
//!
//! What a server says of the end of a token is by its own clock. Where ours is off by more than
//! requests and answers take, the difference is learned from the `Date` of its answers.

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
    pub fn skew(&self) -> i64 {
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
