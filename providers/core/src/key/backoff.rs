//! The one wait after a failure.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Waits that double up to a limit. Each is drawn evenly from the upper half of what it may be, so
/// that a fleet that failed together does not come back together.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// From `first` up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The next wait; those after it are longer.
    pub fn delay(&mut self) -> Duration {
        let limit = self.next.min(self.longest);
        self.next = (limit * 2).min(self.longest);
        between(limit / 2, limit)
    }

    /// No wait is longer from now on.
    pub fn limit(&mut self, longest: Duration) {
        self.longest = longest;
    }

    /// It works again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// `duration` give or take a tenth, so that a fleet does not call in step.
pub fn jitter(duration: Duration) -> Duration {
    between(duration * 9 / 10, duration * 11 / 10)
}

fn between(least: Duration, most: Duration) -> Duration {
    // The hasher's keys are random: enough for spreading, and no further dependency.
    let part = RandomState::new().build_hasher().finish() % 10_001;
    least + (most - least) * u32::try_from(part).unwrap_or_default() / 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_begin_anew_after_a_success() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 5 * second);
        for limit in [1, 2, 4, 5, 5] {
            let (wait, limit) = (backoff.delay(), limit * second);
            assert!((limit / 2..=limit).contains(&wait), "{wait:?} of {limit:?}");
        }
        backoff.limit(second / 2);
        assert!(backoff.delay() <= second / 2);
        backoff.limit(5 * second);
        backoff.reset();
        assert!(backoff.delay() <= second);
    }

    #[test]
    fn a_fleet_that_fails_together_is_spread_over_half_of_the_wait() {
        let wait = || Backoff::new(Duration::from_secs(10), Duration::from_secs(10)).delay();
        let waits: Vec<_> = (0..1000).map(|_| wait()).collect();
        let later = waits.iter().filter(|wait| wait.as_millis() > 7500).count();
        assert!((300..700).contains(&later), "{later} of 1000 are in the later half");
    }
}
