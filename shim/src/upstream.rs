//! All endpoints of one key. A call goes to the first that answers in its share of the caller's
//! time; where none can be reached it is tried again as long as the caller waits, so that a
//! provider's restart is felt as latency.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sidekey_core::{Backoff, Error, KeyId, Kind};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::call::{CallFailure, Client};
use crate::link::Link;
use crate::probe::{Found, Plan};

/// An attempt with less time than this is not worth making.
const LEAST: Duration = Duration::from_millis(20);
/// The waits before endpoints that could not be reached are tried again.
const RECONNECT: Backoff = Backoff::new(LEAST, Duration::from_millis(500));
/// A key whose probes have failed for this long does not merely restart.
const RESTART: Duration = Duration::from_secs(5);

/// A key as others provide it.
pub(crate) struct Upstream {
    links: Vec<Arc<Link>>,
    /// Since when probes fail.
    down: Mutex<Option<Instant>>,
}

/// What the endpoints of a key have answered to one probe.
#[derive(Default)]
pub(crate) struct Round {
    /// The key_ids under which they write.
    pub(crate) good: Vec<KeyId>,
    /// Whether a read key reads though its Status is this error.
    pub(crate) fair: Option<(bool, Arc<Error>)>,
    failures: Vec<Arc<CallFailure>>,
}

impl Upstream {
    pub(crate) fn new(links: Vec<Arc<Link>>) -> Self {
        Self { links, down: Mutex::default() }
    }

    /// What probes have found.
    pub(crate) fn set_down(&self, down: bool) {
        let mut since = self.down.lock();
        *since = down.then(|| since.unwrap_or_else(Instant::now));
    }

    /// Whether probes succeed.
    pub(crate) fn is_up(&self) -> bool {
        self.down.lock().is_none()
    }

    /// Whether any endpoint has read something that was written before.
    pub(crate) fn has_read(&self) -> bool {
        self.links.iter().any(|link| link.known().has_read)
    }

    /// Whether any endpoint said that it writes under this key_id.
    pub(crate) fn reports(&self, key_id: &KeyId) -> bool {
        self.links.iter().any(|link| link.reports(key_id))
    }

    /// The age of the newest proof among the endpoints that write under `key_id`.
    pub(crate) fn proof_age(&self, key_id: &KeyId) -> Duration {
        let writing = self.links.iter().filter(|link| link.reports(key_id));
        let newest = writing.filter_map(|link| link.known().proof).max();
        newest.map(|proof| proof.elapsed()).unwrap_or_default()
    }

    /// Probes all endpoints side by side, until one is good and, if a key_id is `wanted`, reports
    /// that one; those that have not answered by then do so in the background. The others are
    /// waited for by so much `patience` more: one with another KEK spoils the round.
    pub(crate) async fn probe(
        &self,
        plan: &Plan,
        wanted: Option<&KeyId>,
        patience: Duration,
    ) -> Result<Round, CallFailure> {
        let mut waiting = JoinSet::new();
        for (index, link) in self.links.iter().enumerate() {
            let mut told = link.probe(plan);
            waiting.spawn(async move {
                let found = told.wait_for(Option::is_some).await;
                (index, found.ok().and_then(|found| found.clone()))
            });
        }
        let mut limit = Instant::now() + plan.timeout;
        let (mut round, mut silent) = (Round::default(), vec![true; self.links.len()]);
        let mut decided = false;
        while let Ok(Some(Ok((index, found)))) =
            tokio::time::timeout_at(limit, waiting.join_next()).await
        {
            silent[index] = false;
            round.add(found);
            if !decided && self.decides(&round, wanted, &silent) {
                decided = true;
                limit = limit.min(Instant::now() + patience);
            }
        }
        round.result(!patience.is_zero())
    }

    /// Calls the endpoints that are `usable`, each for its share of the time that is left, until
    /// one answers. Those that fail come last until a probe of them has succeeded.
    pub(crate) async fn call<T, F>(
        &self,
        deadline: Instant,
        usable: impl Fn(&Link) -> bool,
        attempt: impl Fn(Client, Instant) -> F,
    ) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<T, CallFailure>>,
    {
        let restarts = self.down.lock().is_none_or(|since| since.elapsed() < RESTART);
        let mut backoff = RECONNECT;
        let mut failures = Vec::new();
        loop {
            let mut links: Vec<&Arc<Link>> =
                self.links.iter().filter(|link| usable(link)).collect();
            if links.is_empty() {
                if failures.is_empty() {
                    let text = "no endpoint of the key reports the announced key_id";
                    failures.push(Error::new(Kind::Unavailable, text));
                }
                return Err(joined(failures));
            }
            links.sort_by_key(|link| link.is_failing());
            failures.clear();
            for (index, link) in links.iter().enumerate() {
                let now = Instant::now();
                let shares = u32::try_from(links.len() - index).unwrap_or(u32::MAX);
                let limit = now + deadline.saturating_duration_since(now) / shares;
                let answer = match link.client(limit).await {
                    Ok(client) => {
                        attempt(Client { deadline: Some(deadline), ..client }, limit).await
                    }
                    Err(failure) => Err(failure),
                };
                match answer {
                    Err(CallFailure::Unanswered(error)) => failures.push(error),
                    answer => return answer,
                }
            }
            let hung = failures.iter().all(|error| error.kind() == Kind::Timeout);
            let wake = Instant::now() + backoff.delay();
            if !restarts || hung || wake + LEAST > deadline {
                return Err(joined(failures));
            }
            tokio::time::sleep_until(wake).await;
        }
    }

    /// Whether the answers so far are enough: the wanted key_id is among them, or others are and
    /// nobody is left who may still report it.
    fn decides(&self, round: &Round, wanted: Option<&KeyId>, silent: &[bool]) -> bool {
        let Some(wanted) = wanted else {
            return !round.good.is_empty() || matches!(round.fair, Some((true, _)));
        };
        let links = self.links.iter().zip(silent);
        let mut hopes =
            links.filter(|(link, silent)| **silent && link.reports(wanted) && !link.is_failing());
        round.good.contains(wanted) || (!round.good.is_empty() && hopes.next().is_none())
    }
}

impl Round {
    fn add(&mut self, found: Option<Found>) {
        match found {
            Some(Found::Good(key_id)) => self.good.push(key_id),
            Some(Found::Failed(failure)) => self.failures.push(failure),
            Some(Found::Fair(reads, error)) if reads || self.fair.is_none() => {
                self.fair = Some((reads, error));
            }
            Some(Found::Fair(..)) | None => {}
        }
    }

    /// One that is good outweighs all failures, but another KEK if that is asked for; and what
    /// was answered outweighs that others could not be reached.
    fn result(self, spoiled_by_another_kek: bool) -> Result<Self, CallFailure> {
        let answered = self.failures.iter().filter_map(|failure| match &**failure {
            CallFailure::Answered(error) => Some(error),
            CallFailure::Unanswered(_) => None,
        });
        let worst = answered.max_by_key(|error| error.is_lasting());
        let served = !self.good.is_empty() || self.fair.is_some();
        match worst {
            Some(error) if !served || (spoiled_by_another_kek && error.is_lasting()) => {
                let copy = Error::new(error.kind(), error.report());
                Err(CallFailure::Answered(if error.is_lasting() { copy.lasting() } else { copy }))
            }
            _ if served => Ok(self),
            _ => {
                let copies = self.failures.iter().map(|failure| {
                    let error = failure.error();
                    Error::new(error.kind(), error.report())
                });
                Err(joined(copies.collect()))
            }
        }
    }
}

/// One failure of several endpoints.
fn joined(mut failures: Vec<Error>) -> CallFailure {
    let error = match failures.len() {
        0 => Error::new(Kind::Timeout, "no endpoint of the key answered in time"),
        1 => failures.remove(0),
        _ => {
            let hung = failures.iter().find(|error| error.kind() == Kind::Timeout);
            let kind = hung.unwrap_or(&failures[0]).kind();
            let texts: Vec<String> = failures.iter().map(Error::report).collect();
            Error::new(kind, texts.join("; "))
        }
    };
    CallFailure::Unanswered(error)
}
