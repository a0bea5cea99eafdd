//! How long Status stays ok while the KMS is away, counted from the provider's own last proof.
//!
//! A busy machine makes everything late, so no moment of a test's own clock is compared with one of
//! theirs. What is judged follows from clocks that tell Status what to answer and wait for nobody.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::time::Instant;

use crate::kms::KmsClient;
use crate::wait::{PATIENCE, eventually};

/// While the provider can be asked, what it answered last holds for so long.
const HELD: Duration = Duration::from_secs(5);

/// A shim and the provider behind it that lose their KMS.
#[derive(Debug)]
pub struct Coast<'a> {
    /// A client of the shim.
    pub shim: &'a KmsClient,
    /// A client of the provider.
    pub provider: &'a KmsClient,
    /// The coast of both.
    pub lasts: Duration,
    /// How often the shim asks the provider, and how long an answer may take.
    pub probe: (Duration, Duration),
}

impl Coast<'_> {
    /// Asks for Status until it is an error, and tells it. Before, it must name `key_id`, and it
    /// must end neither before the coast does, but for what the shim has not heard yet, nor five
    /// seconds later: two coasts that add up would.
    pub async fn ends(&self, key_id: &str) -> Result<tonic::Status> {
        let (interval, timeout) = self.probe;
        let least = self.lasts.saturating_sub(interval + timeout);
        // An answer may have been under way for the whole timeout.
        let most = self.lasts + HELD + timeout;
        let mut proven = None;
        eventually("Status becomes an error", PATIENCE, async || {
            proven = self.proof().await.or(proven);
            let (earliest, latest) = proven.context("the provider has told no proof yet")?;
            let asked = Instant::now();
            match self.shim.status().await {
                Ok(status) if status.key_id != key_id || status.healthz != "ok" => {
                    Ok(Err(anyhow!("Status is no error, and says {status:?}")))
                }
                Ok(_) if asked.duration_since(latest) > most => {
                    let after = asked.duration_since(latest);
                    Ok(Err(anyhow!("Status was ok {after:?} after the last proof")))
                }
                Ok(_) => bail!("it is ok"),
                Err(error) if earliest.elapsed() < least => {
                    let after = earliest.elapsed();
                    Ok(Err(anyhow!("Status failed {after:?} after the last proof: {error}")))
                }
                Err(error) => Ok(Ok(error)),
            }
        })
        .await?
    }

    /// Between which moments the provider's last proof was, if it says so.
    async fn proof(&self) -> Option<(Instant, Instant)> {
        let before = Instant::now();
        let age = self.provider.proof_age().await.ok()??;
        Some((before.checked_sub(age)?, Instant::now().checked_sub(age)?))
    }
}
