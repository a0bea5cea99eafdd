//! Keeps a token fresh, or waits for one.

use std::path::Path;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep, timeout};

use super::{Failure, Order, Written};
use crate::Error;

/// Of a token's life, in hundredths: then the next one is got.
const RENEWED_AT: u32 = 80;

/// What happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// A token is in the file.
    Written(&'a Written),
    /// It is not, and this is tried again.
    Failed {
        /// Why.
        error: &'a Error,
        /// In so long.
        again: Duration,
    },
}

/// How often something is done.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// After the first failure; then ever longer.
    pub first: Duration,
    /// At the longest.
    pub longest: Duration,
    /// Between two looks at the files.
    pub look: Duration,
    /// For one try.
    pub attempt: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(250),
            longest: Duration::from_secs(5),
            look: Duration::from_secs(10),
            attempt: Duration::from_secs(30),
        }
    }
}

impl Pace {
    fn after(&self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(16));
        sidekey_core::jitter(doubled.min(self.longest))
    }
}

/// Keeps the file fresh until it is dropped.
pub async fn keep(order: &Order, pace: Pace, mut tell: impl FnMut(Event<'_>)) {
    let mut failures = 0;
    loop {
        let seen = content(order);
        match attempt(order, pace).await {
            Ok(written) => {
                failures = 0;
                tell(Event::Written(&written));
                until_due(order, pace, &written, &seen).await;
            }
            Err(Failure { error, lasting }) => {
                let again = if lasting { pace.longest } else { pace.after(failures) };
                failures = failures.saturating_add(1);
                tell(Event::Failed { error: &error, again });
                sleep(again).await;
            }
        }
    }
}

/// Writes one token, and tries for so long.
pub async fn once(
    order: &Order,
    pace: Pace,
    wait: Duration,
    mut tell: impl FnMut(Event<'_>),
) -> Result<Written, Error> {
    let end = Instant::now() + wait;
    let mut failures = 0;
    loop {
        let Failure { error, lasting } = match attempt(order, pace).await {
            Ok(written) => return Ok(written),
            Err(failure) => failure,
        };
        let again = pace.after(failures);
        if lasting || Instant::now() + again >= end {
            return Err(error);
        }
        failures = failures.saturating_add(1);
        tell(Event::Failed { error: &error, again });
        sleep(again).await;
    }
}

async fn attempt(order: &Order, pace: Pace) -> Result<Written, Failure> {
    let late = || {
        let text = format!("no token of service account {} came in time", order.account);
        Failure::from(Error::failed(text).hint("is the API server up?"))
    };
    timeout(pace.attempt, order.write()).await.unwrap_or_else(|_| Err(late()))
}

/// Until most of the token's life is over, or somebody has changed a file: another kubeconfig may
/// be that of another API server, and a token that is gone is missed.
async fn until_due(order: &Order, pace: Pace, written: &Written, seen: &Option<Vec<u8>>) {
    let wait = due(written.life, pace);
    // A machine that slept has a clock that went on, and another that did not.
    let (due, date) = (Instant::now() + wait, SystemTime::now() + wait);
    while Instant::now() < due && SystemTime::now() < date {
        sleep(pace.look.min(due.saturating_duration_since(Instant::now()))).await;
        let now = content(order);
        if (now.is_some() && now != *seen) || !exists(&order.file) {
            return;
        }
    }
}

/// How long a token of this life is kept. A clock that is wrong can make it seem at its end: it is
/// not asked for the next one without end.
pub(super) fn due(life: Duration, pace: Pace) -> Duration {
    let wait = sidekey_core::jitter(life * RENEWED_AT / 100).min(life * 9 / 10);
    wait.max(pace.longest)
}

/// What makes a kubeconfig another one, by its content: kubelet swaps links.
fn content(order: &Order) -> Option<Vec<u8>> {
    let text = std::fs::read(order.access.kubeconfig.as_deref()?).ok()?;
    Some(sidekey_core::sha256(&text).to_vec())
}

fn exists(file: &Path) -> bool {
    file.try_exists().unwrap_or(true)
}
