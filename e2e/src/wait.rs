//! Waiting for something to become true, instead of sleeping and hoping.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Result, anyhow};
pub use sidekey_verify::{BROKEN, CRASHED};
use tokio::time::Instant;

/// A limit for what takes seconds on an idle machine: generous, because tests
/// share two cores with others.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A limit for what hangs on kube-apiserver's own clocks: its polls of Status
/// (a minute), its cached health (20 s) and gRPC's reconnects (up to 2 min).
pub const LONG_PATIENCE: Duration = Duration::from_secs(300);

/// Polls `probe` until it answers `Ok`; past `limit` the error names what was
/// awaited and why the last attempt was not good enough.
pub async fn eventually<T>(
    what: impl Display,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let mut pace = Pace::new(limit);
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(reason) => pace.next(&what, reason).await?,
        }
    }
}

/// The rhythm of a wait: quick at first, slower later, over at the limit.
pub(crate) struct Pace {
    limit: Duration,
    deadline: Instant,
    step: Duration,
}

impl Pace {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, deadline: Instant::now() + limit, step: Duration::from_millis(20) }
    }

    /// Lets some time pass, or fails when the limit is reached.
    pub(crate) async fn next(&mut self, what: &impl Display, reason: anyhow::Error) -> Result<()> {
        if Instant::now() >= self.deadline {
            let seconds = self.limit.as_secs_f32();
            return Err(anyhow!("waited {seconds} s in vain: {what}; last seen: {reason:#}"));
        }
        tokio::time::sleep(self.step).await;
        self.step = (self.step * 3 / 2).min(Duration::from_millis(500));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use anyhow::bail;

    use super::*;

    #[tokio::test]
    async fn a_wait_ends_with_the_first_good_answer() {
        let mut tries = 0;
        let seen = eventually("three tries", PATIENCE, async || {
            tries += 1;
            if tries < 3 {
                bail!("only {tries}");
            }
            Ok(tries)
        });
        assert_eq!(seen.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_wait_in_vain_names_what_and_why() {
        let limit = Duration::from_millis(60);
        let error = eventually("the moon is blue", limit, async || {
            bail!("it is grey");
            #[expect(unreachable_code, reason = "gives the closure its type")]
            Ok(())
        })
        .await
        .unwrap_err()
        .to_string();
        assert!(error.contains("the moon is blue") && error.contains("it is grey"), "{error}");
    }
}
