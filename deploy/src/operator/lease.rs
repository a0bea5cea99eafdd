//! Leader election: one operator acts, others wait.
//!
//! Clocks of machines differ, so nobody looks at the times in the Lease. Who waits measures, by
//! its own clock, how long it has seen the Lease unchanged; who leads gives up well before any
//! other can have waited long enough. It gives up by ending the process: nothing of it can then
//! still be under way.

mod cluster;
#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Error;
pub use cluster::Cluster;

/// Name of the Lease.
pub const NAME: &str = "sidekey-operator";

/// How long a Lease holds, and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Who sees the Lease unchanged for so long may take it.
    pub duration: Duration,
}

/// One who would lead.
#[derive(Debug)]
pub struct Candidate<L> {
    ledger: L,
    identity: String,
    term: Term,
    seen: Option<Seen>,
}

/// Where the Lease is kept.
pub trait Ledger: Send + Sync {
    /// As it is.
    fn read(&self) -> impl Future<Output = Result<Option<Lease>, Error>> + Send;
    /// Makes it, or replaces just the version that it names; none if somebody was faster.
    fn write(&self, lease: &Lease) -> impl Future<Output = Result<Option<Lease>, Error>> + Send;
}

/// The Lease as it last changed, and when that was seen.
#[derive(Debug)]
struct Seen {
    lease: Lease,
    at: Instant,
}

/// What an attempt came to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It is ours.
    Ours,
    /// Somebody else has it.
    Held(String),
    /// Somebody else was faster.
    Overtaken,
}

impl Term {
    /// Who leads and could not renew for so long gives up.
    fn deadline(self) -> Duration {
        self.duration * 2 / 3
    }

    /// Time between two attempts.
    fn retry(self) -> Duration {
        self.duration * 2 / 15
    }
}

impl Default for Term {
    fn default() -> Self {
        Self { duration: Duration::from_secs(15) }
    }
}

impl<L: Ledger> Candidate<L> {
    /// `identity` must be of this process alone: one that comes back under the same name would
    /// take the Lease for its own.
    pub fn new(ledger: L, identity: String, term: Term) -> Self {
        Self { ledger, identity, term, seen: None }
    }

    /// Waits until the Lease is ours.
    pub async fn acquire(&mut self) -> Instant {
        let mut told: Option<String> = None;
        loop {
            let begun = Instant::now();
            match timeout_at(begun + self.term.deadline(), self.attempt()).await {
                Ok(Ok(Outcome::Ours)) => return begun,
                Ok(Ok(Outcome::Held(holder))) if told.as_ref() != Some(&holder) => {
                    tracing::info!(holder, "another operator leads");
                    told = Some(holder);
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = %error.report(), "cannot ask for the lease")
                }
                Err(_) => tracing::warn!("no answer to the question for the lease"),
            }
            sleep(sidekey_core::jitter(self.term.retry())).await;
        }
    }

    /// Holds on to the Lease, which was asked for at `renewed`; ends when it is lost.
    pub async fn keep(&mut self, mut renewed: Instant) -> Error {
        let lost = |why: String| {
            Error::failed("lost the lease").because(why).hint("another operator takes over")
        };
        loop {
            sleep(self.term.retry()).await;
            let (begun, deadline) = (Instant::now(), renewed + self.term.deadline());
            if begun >= deadline {
                return lost("it could not be renewed in time".to_owned());
            }
            match timeout_at(deadline, self.attempt()).await {
                Ok(Ok(Outcome::Ours)) => renewed = begun,
                Ok(Ok(Outcome::Held(holder))) => return lost(format!("{holder} has it")),
                Ok(Ok(Outcome::Overtaken)) => {}
                Ok(Err(error)) => tracing::warn!(error = %error.report(), "cannot renew the lease"),
                Err(_) => return lost("it could not be renewed in time".to_owned()),
            }
        }
    }

    /// Gives the Lease to whoever asks next. Nothing may be under way any more.
    pub async fn release(mut self) -> Result<(), Error> {
        let Some(Seen { mut lease, .. }) = self.seen.take() else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        self.ledger.write(&lease).await.map(drop)
    }

    /// Takes or renews the Lease, if that may be.
    async fn attempt(&mut self) -> Result<Outcome, Error> {
        let mut lease = match self.ledger.read().await? {
            Some(lease) => {
                self.look(&lease);
                if let Some(holder) = self.holder() {
                    return Ok(Outcome::Held(holder));
                }
                lease
            }
            None => Lease::default(),
        };
        let spec = lease.spec.get_or_insert_default();
        self.sign(spec);
        Ok(match self.ledger.write(&lease).await? {
            Some(lease) => {
                self.look(&lease);
                Outcome::Ours
            }
            None => Outcome::Overtaken,
        })
    }

    /// Remembers when the Lease has changed. Its version counts too: whoever writes to it lives.
    fn look(&mut self, lease: &Lease) {
        let same = self.seen.as_ref().is_some_and(|seen| seen.lease == *lease);
        if !same {
            self.seen = Some(Seen { lease: lease.clone(), at: Instant::now() });
        }
    }

    /// Somebody else who may still believe that it leads.
    fn holder(&self) -> Option<String> {
        let seen = self.seen.as_ref()?;
        let spec = seen.lease.spec.as_ref()?;
        let holder = spec.holder_identity.as_ref().filter(|holder| !holder.is_empty())?;
        let seconds = spec.lease_duration_seconds.and_then(|n| u64::try_from(n).ok());
        let promised = seconds.map_or(self.term.duration, Duration::from_secs);
        let may_believe = *holder != self.identity && seen.at.elapsed() < promised;
        may_believe.then(|| holder.clone())
    }

    fn sign(&self, spec: &mut LeaseSpec) {
        let now = MicroTime(Timestamp::now());
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            let taken_before = spec.acquire_time.is_some();
            let transitions = spec.lease_transitions.unwrap_or_default();
            spec.lease_transitions = Some(transitions + i32::from(taken_before));
            spec.acquire_time = Some(now.clone());
            spec.holder_identity = Some(self.identity.clone());
        }
        // In whole seconds, never less than what is kept to.
        let seconds = self.term.duration.as_secs_f64().ceil() as i32;
        spec.lease_duration_seconds = Some(seconds.max(1));
        spec.renew_time = Some(now);
    }
}
