//! When the vendor is asked for a new version of the write key: `spec.autoRotation`.
//!
//! What counts is the time since the key_id last moved, whoever moved it: a version that somebody
//! else has asked for, a vendor's own schedule and a new key put the next asking off too. So
//! `status` is written when a version comes and when the vendor refuses, and at no other time.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sidekey_core::time;

use crate::model::{AutoRotation, parse_period};

/// After a failure that may pass.
const PAUSE: Duration = Duration::from_secs(10 * 60);
/// After one that stays until somebody changes something, which may be done at the vendor, where
/// nobody sees it from here.
const LONG_PAUSE: Duration = Duration::from_secs(24 * 3600);
/// Longer reasons are cut.
const REASON: usize = 1000;

/// The version that new data is written with: `status.autoRotation`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// The hash of its key_id, as every shim announces it.
    pub key_id_hash: String,
    /// Since when it is known to be so.
    pub since: String,
    /// That the vendor was asked for the next one, and why it has not made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

/// Why there is no new version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// When the vendor was asked.
    pub time: String,
    /// Whether it stays so until somebody changes something.
    pub terminal: bool,
    /// Why.
    pub reason: String,
}

impl Version {
    /// The version that is announced now; one that is known keeps its time, and what was said of
    /// it.
    pub fn seen(known: Option<&Self>, key_id_hash: &str, now: SystemTime) -> Self {
        let readable = |known: &&Self| humantime::parse_rfc3339(&known.since).is_ok();
        match known.filter(|known| known.key_id_hash == key_id_hash).filter(readable) {
            Some(known) => known.clone(),
            None => Self { key_id_hash: key_id_hash.to_owned(), since: time(now), refused: None },
        }
    }

    /// The vendor was asked, and has not made a new one.
    #[must_use]
    pub fn refused(&self, terminal: bool, reason: &str, now: SystemTime) -> Self {
        let reason = reason.chars().take(REASON).collect();
        Self { refused: Some(Refusal { time: time(now), terminal, reason }), ..self.clone() }
    }

    /// How long until the vendor is to be asked; nothing if it is time. `None` where the schedule
    /// cannot be read.
    pub fn due(&self, schedule: &AutoRotation, now: SystemTime) -> Option<Duration> {
        let due = due(&schedule.every, Some(&self.since), now)?;
        let again = self.refused.as_ref().map(|refused| {
            let pause = if refused.terminal { LONG_PAUSE } else { PAUSE };
            left(pause, Some(&refused.time), now)
        });
        Some(due.max(again.unwrap_or_default()))
    }
}

/// How long until the vendor is to be asked, if it last made a version at `last`; nothing if it is
/// time. Where that is not known, it counts from now on. `None` where `every` cannot be read.
pub fn due(every: &str, last: Option<&str>, now: SystemTime) -> Option<Duration> {
    Some(left(parse_period(every).ok()?, last, now))
}

/// What is left of `whole`, begun at `since`; a time that is yet to come counts as now.
fn left(whole: Duration, since: Option<&str>, now: SystemTime) -> Duration {
    let since = since.and_then(|text| humantime::parse_rfc3339(text).ok());
    let passed = since.and_then(|since| now.duration_since(since).ok());
    whole.saturating_sub(passed.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn at(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).unwrap()
    }

    fn monthly() -> AutoRotation {
        AutoRotation { every: "30d".into() }
    }

    #[test]
    fn it_is_due_so_long_after_the_last_version() {
        let last = Some("2026-01-01T00:00:00Z");
        assert_eq!(due("30d", last, at("2026-01-01T00:00:00Z")), Some(DAY * 30));
        assert_eq!(due("720h", last, at("2026-01-21T00:00:00Z")), Some(DAY * 10));
        assert_eq!(due("30d", last, at("2026-01-31T00:00:00Z")), Some(Duration::ZERO));
        assert_eq!(due("30d", last, at("2027-01-01T00:00:00Z")), Some(Duration::ZERO));
    }

    #[test]
    fn nobody_asks_in_haste_for_a_key_whose_age_is_not_known() {
        let now = at("2026-01-01T00:00:00Z");
        for last in [None, Some("yesterday"), Some("2030-01-01T00:00:00Z")] {
            assert_eq!(due("30d", last, now), Some(DAY * 30), "{last:?}");
        }
        assert_eq!(due("soon", None, now), None);
    }

    #[test]
    fn a_version_keeps_its_time_until_another_one_comes() {
        let (first, later) = (at("2026-01-01T00:00:00Z"), at("2026-02-01T00:00:00Z"));
        let one = Version::seen(None, "sha256:1", first);
        assert_eq!(Version::seen(Some(&one), "sha256:1", later), one, "nothing to write");
        let refused = one.refused(true, "denied", later);
        assert_eq!(Version::seen(Some(&refused), "sha256:1", later), refused);
        let two = Version::seen(Some(&refused), "sha256:2", later);
        assert_eq!((two.since.as_str(), &two.refused), ("2026-02-01T00:00:00Z", &None));
        let broken = Version { since: "?".into(), ..one };
        assert_eq!(Version::seen(Some(&broken), "sha256:1", later).since, two.since);
    }

    #[test]
    fn who_was_refused_asks_again_later_and_not_sooner_than_due() {
        let (begun, now) = (at("2026-01-01T00:00:00Z"), at("2026-03-01T00:00:00Z"));
        let version = Version::seen(None, "sha256:1", begun);
        assert_eq!(version.due(&monthly(), now), Some(Duration::ZERO));
        assert_eq!(version.refused(false, "busy", now).due(&monthly(), now), Some(PAUSE));
        let denied = version.refused(true, "denied", now);
        assert_eq!(denied.due(&monthly(), now), Some(LONG_PAUSE));
        assert_eq!(denied.due(&monthly(), now + LONG_PAUSE), Some(Duration::ZERO));
        let early = version.refused(false, "busy", begun);
        assert_eq!(early.due(&monthly(), begun), Some(DAY * 30));
    }

    #[test]
    fn a_long_reason_is_cut() {
        let version = Version::seen(None, "sha256:1", at("2026-01-01T00:00:00Z"));
        let refused = version.refused(false, &"ä".repeat(5000), at("2026-01-01T00:00:00Z"));
        assert_eq!(refused.refused.unwrap().reason.chars().count(), REASON);
    }
}
