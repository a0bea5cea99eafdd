//! Several servers of one cluster, asked as if they were one.
//!
//! The server that answered last is asked first. One that cannot be reached, or that cannot serve
//! for a reason of its own, is passed over for the next, and gets no more than its share of the
//! deadline. Which answers are of that kind, and where a redirect may lead, is for the vendor to
//! say: see [`Verdict`]. What must be sent once goes to one server.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sidekey_core::{Error, Kind};
use tokio::time::{Instant, timeout};

use crate::address::Address;
use crate::http::{Answer, Bounded, Http, Request};

/// A standby sends to the active server, which may just have changed.
const MAX_REDIRECTS: u32 = 2;

/// What an answer means for the order of servers.
pub enum Verdict {
    /// It is the answer, good or bad.
    Final,
    /// It speaks of that server alone: the next one may do better.
    Next(Error),
    /// The same is to be asked there. The vendor has checked that credentials may go there.
    Redirect(Address),
}

/// Judges an answer of the server at an address.
pub type Judge = dyn Fn(&Address, &Request, &Answer) -> Verdict + Send + Sync;

/// The servers of one cluster; cheap to clone.
#[derive(Clone)]
pub struct Servers {
    inner: Arc<Inner>,
    stack: Bounded<(Request, Instant)>,
}

/// Servers that are asked one after the other, within one deadline.
pub struct Turns {
    left: u32,
    patience: Duration,
    deadline: Instant,
    failure: Option<Error>,
}

struct Inner {
    http: Http,
    addresses: Vec<Address>,
    /// Longest wait for one server while there is another to ask.
    request: Duration,
    judge: Box<Judge>,
    /// The one that answered last.
    preferred: AtomicUsize,
    /// Where a standby sent us: asked before all others, until it fails.
    active: Mutex<Option<Address>>,
}

impl Servers {
    /// Servers that have not been asked anything yet. `request` is the longest wait for one of
    /// them while there is another to ask.
    pub fn new(http: Http, addresses: Vec<Address>, request: Duration, judge: Box<Judge>) -> Self {
        let calls = http.transport.limits.calls;
        let (preferred, active) = (AtomicUsize::new(0), Mutex::default());
        let inner = Arc::new(Inner { http, addresses, request, judge, preferred, active });
        let asked = inner.clone();
        // Runs once it is its turn: the wait for that is no server's fault.
        let stack = Bounded::new(calls, move |(request, deadline): (Request, Instant)| {
            let inner = asked.clone();
            async move { inner.ask(&request, deadline).await }
        });
        Self { inner, stack }
    }

    /// Asks one server after the other until one has an answer of its own, good or bad.
    pub async fn ask(&self, request: Request, deadline: Instant) -> Result<Answer, Error> {
        self.stack.run((request, deadline), deadline).await
    }

    /// The server that is asked first.
    pub fn first(&self) -> Option<Address> {
        self.inner.candidates().into_iter().next().map(|(_, address)| address)
    }

    /// The configured servers.
    pub fn addresses(&self) -> &[Address] {
        &self.inner.addresses
    }
}

impl Turns {
    /// Each of so many servers waits for at most `patience`; the last one has all the time that is
    /// left.
    pub fn new(count: usize, patience: Duration, deadline: Instant) -> Self {
        Self { left: u32::try_from(count).unwrap_or(u32::MAX), patience, deadline, failure: None }
    }

    /// The answer of the next server, if it has one.
    pub async fn take<T>(
        &mut self,
        server: &impl fmt::Display,
        asking: impl Future<Output = Result<T, Error>>,
    ) -> Option<T> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.left = self.left.saturating_sub(1);
        let limit = match self.left {
            0 => left,
            // Those that come after it must have their turn within the caller's time.
            others => self.patience.min(left / others.saturating_add(1)),
        };
        let late = |_| Err(Error::new(Kind::Timeout, format!("{server}: no answer in time")));
        let error = match timeout(limit, asking).await.unwrap_or_else(late) {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        if self.left > 0 {
            tracing::debug!(%server, error = %error.report(), "asking the next server");
        }
        self.failure = Some(worse(self.failure.take(), error));
        None
    }

    /// What is to be said if none of them has answered.
    pub fn failure(self) -> Error {
        self.failure.unwrap_or_else(|| Error::new(Kind::Config, "no address is set"))
    }
}

impl Inner {
    async fn ask(&self, request: &Request, deadline: Instant) -> Result<Answer, Error> {
        let mut candidates = self.candidates();
        if request.once {
            candidates.truncate(1);
        }
        let mut turns = Turns::new(candidates.len(), self.request, deadline);
        for (index, address) in candidates {
            if let Some(answer) = turns.take(&address, self.ask_one(&address, request)).await {
                if let Some(index) = index {
                    self.preferred.store(index, Ordering::Relaxed);
                }
                return Ok(answer);
            }
            // Whoever a standby sent us to is as lost as the standby.
            *self.active() = None;
        }
        Err(turns.failure())
    }

    /// Asks one server, and whom it sends us to.
    async fn ask_one(&self, address: &Address, request: &Request) -> Result<Answer, Error> {
        let mut address = address.clone();
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.http.transport.ask(&address, request).await?;
            match (self.judge)(&address, request, &answer) {
                Verdict::Final => return Ok(answer),
                Verdict::Next(error) => return Err(error),
                Verdict::Redirect(to) => {
                    *self.active() = Some(to.clone());
                    address = to;
                }
            }
        }
        let text = format!("{address}: redirects without end");
        Err(Error::new(Kind::Unavailable, text)
            .with_hint("the cluster may be electing its active server"))
    }

    /// All servers in the order in which they are asked, with their places in the configuration.
    fn candidates(&self) -> Vec<(Option<usize>, Address)> {
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.addresses.len());
        let known = (0..count).map(|turn| {
            let index = (first + turn) % count;
            (Some(index), self.addresses[index].clone())
        });
        let active = self.active().clone();
        let others = known.filter(|(_, address)| Some(address) != active.as_ref());
        active.iter().map(|active| (None, active.clone())).chain(others).collect()
    }

    fn active(&self) -> MutexGuard<'_, Option<Address>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of several failures the one that an operator can do most about: not the last of them, which
/// may be a server that is down on purpose.
fn worse(old: Option<Error>, new: Error) -> Error {
    match old {
        Some(old) if !old.kind().is_transient() || new.kind() == Kind::Timeout => old,
        _ => new,
    }
}

#[cfg(test)]
mod tests;
