//! Logins that Vault refused are not repeated in haste.
//!
//! Vault locks a role or user for a quarter of an hour after five refused logins, and forgets the
//! refusals only when there has been none for a quarter of an hour. A wrong secret-id that is tried
//! again and again would lock out the right one, which may be in use at this very moment or be
//! written into the file a minute later. So the same credentials wait after each refusal, and before
//! the fifth until the others are forgotten; other credentials are tried at once. Refusals that lock
//! nothing wait too, but not long: each call would be a login otherwise.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sidekey_core::{Error, Kind, sha256};
use tokio::time::Instant;

/// The waits after the first, the second … refusal: when the fifth comes, Vault has forgotten the
/// others.
const WAITS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(60),
    Duration::from_secs(16 * 60),
];
/// The longest of them where nothing can be locked.
const HARMLESS: usize = 1;
/// More than the credentials of a process.
const MAX: usize = 64;

/// What was refused.
static REFUSED: Mutex<Vec<Refusal>> = Mutex::new(Vec::new());

/// Credentials, by the hash of what is sent and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt([u8; 32]);

struct Refusal {
    attempt: Attempt,
    count: usize,
    next: Instant,
    text: String,
}

impl Attempt {
    /// The login that is about to be sent, if it is still too early to send it again the error
    /// that it met. What is not in its body, a certificate or a cluster, is in `session`.
    pub(crate) fn new(session: &[u8; 32], path: &str, body: &[u8]) -> Result<Self, Error> {
        let attempt = Self(sha256(&[*session, sha256(path.as_bytes()), sha256(body)].concat()));
        let list = refused();
        let early = list
            .iter()
            .find(|refusal| refusal.attempt == attempt)
            .filter(|refusal| refusal.next > Instant::now());
        match early {
            None => Ok(attempt),
            Some(Refusal { next, text, .. }) => {
                let left = next.saturating_duration_since(Instant::now()).as_secs() + 1;
                Err(Error::new(Kind::Denied, text.clone()).with_hint(format!(
                    "tried again in {left} s, so that Vault does not lock it; other credentials are tried at once"
                )).lasting())
            }
        }
    }

    /// Vault said no, and `locks` the role when it has said so too often.
    pub(crate) fn was_refused(self, error: &Error, locks: bool) {
        let mut list = refused();
        let count = match list.iter().position(|refusal| refusal.attempt == self) {
            Some(index) => list.remove(index).count,
            None => 0,
        };
        if list.len() >= MAX {
            list.remove(0);
        }
        let longest = if locks { WAITS.len() - 1 } else { HARMLESS };
        let next = Instant::now() + WAITS[count.min(longest)];
        list.push(Refusal { attempt: self, count: count + 1, next, text: error.to_string() });
    }

    /// Vault said yes.
    pub(crate) fn was_accepted(self) {
        refused().retain(|refusal| refusal.attempt != self);
    }
}

fn refused() -> MutexGuard<'static, Vec<Refusal>> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_wait_longer_each_time_and_others_do_not() {
        let attempt = || Attempt::new(&[0; 32], "auth/lockout-test/login", b"wrong");
        let error = Error::new(Kind::Denied, "login: Vault answered 400");
        for wait in WAITS.iter().chain(&WAITS[3..]) {
            attempt().unwrap().was_refused(&error, true);
            let early = attempt().unwrap_err();
            assert_eq!((early.kind(), early.to_string()), (Kind::Denied, error.to_string()));
            assert!(Attempt::new(&[0; 32], "auth/lockout-test/login", b"right").is_ok());
            assert!(Attempt::new(&[1; 32], "auth/lockout-test/login", b"wrong").is_ok());
            tokio::time::advance(*wait - Duration::from_millis(1)).await;
            assert!(attempt().is_err());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        attempt().unwrap().was_accepted();
        attempt().unwrap().was_refused(&error, true);
        tokio::time::advance(WAITS[0]).await;
        assert!(attempt().is_ok(), "a success begins anew");
    }
    #[tokio::test(start_paused = true)]
    async fn no_five_refusals_come_before_vault_forgets_them() {
        // What Vault does: a refusal is counted on unless none came for a quarter of an hour.
        let (began, mut last, mut count) = (Instant::now(), Instant::now(), 0);
        let error = Error::new(Kind::Denied, "login: Vault answered 400");
        while began.elapsed() < Duration::from_secs(4 * 3600) {
            if let Ok(attempt) = Attempt::new(&[0; 32], "auth/lockout-count/login", b"wrong") {
                attempt.was_refused(&error, true);
                count = if last.elapsed() > Duration::from_secs(900) { 1 } else { count + 1 };
                last = Instant::now();
                assert!(count < 5, "locked after {:?}", began.elapsed());
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_that_lock_nothing_wait_for_seconds_only() {
        let attempt = || Attempt::new(&[0; 32], "auth/lockout-harmless/login", b"expired");
        let error = Error::new(Kind::Denied, "login: Vault answered 403");
        for _ in 0..9 {
            attempt().unwrap().was_refused(&error, false);
            assert!(attempt().is_err());
            tokio::time::advance(WAITS[HARMLESS]).await;
        }
    }
}
