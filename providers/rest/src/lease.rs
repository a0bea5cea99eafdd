//! What expires and must be had anew: a token, a session, credentials.
//!
//! A lease is renewed in the background at two thirds of its life, give or take a tenth, so that no
//! request waits and a fleet does not come in step: the item in use where the source can draw out
//! its life, else a new one. Whoever needs it at the same time shares one call, which goes on when
//! they have no more time. While renewing fails, the last good one serves as long as it is valid. A
//! source that fails is asked again after a pause that grows, and no sooner than it wants
//! ([`LeftAlone`]), also where nothing is held: a storm of requests is no storm of logins.
//!
//! What the source refuses ([`Kind::Denied`]) is not sent again by this process for the pause that
//! the vendor sets, or for [`LOCKOUT`] where such refusals lock an account
//! ([`Error::without_retry`]): three replicas with one wrong secret are three refusals. The refusal
//! is remembered by the credential, not by the lease, so that a changed setting does not begin
//! anew; other credentials are tried at once. An item that still works is renewed all the same.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use sidekey_core::{Backoff, Error, Kind, jitter};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Longer than any KMS counts refusals before it locks an account.
pub const LOCKOUT: Duration = Duration::from_secs(16 * 60);
/// Longest wait for the source: one that takes a request and says nothing must not be waited for
/// when the next call would be answered.
const ASK: Duration = Duration::from_secs(15);
/// An item that ends sooner than this is as good as ended: a request takes its time.
const TOO_LATE: Duration = Duration::from_secs(5);
/// Calls that use an item which is given back have this long to end.
const GRACE: Duration = Duration::from_secs(10);
/// What was given is tried at least this long: our clock may be wrong, and a source that gives what
/// has ended must not be asked without a pause.
const SHORTEST: Duration = Duration::from_secs(1);
/// Nothing that counts lives longer than a century.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Pauses after failures that may pass.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// Between two attempts to renew.
const RENEW: Duration = Duration::from_secs(10);
/// More than the credentials of a process. None of them is forgotten before its time: while there
/// are so many, no other one is tried.
const MAX_REFUSED: usize = 1024;

static REFUSED: Mutex<Refusals> = Mutex::new(Refusals(Vec::new()));

/// What was refused, by whose credential, and until when that holds.
struct Refusals(Vec<([u8; 32], Instant, Error)>);

/// Where items come from.
pub trait Source: Send + Sync + 'static {
    /// What is leased.
    type Item: Send + Sync + 'static;

    /// Gets a new item by the credential. [`Kind::Denied`] is a refusal of that.
    fn fetch(
        &self,
        deadline: Instant,
    ) -> impl Future<Output = Result<Grant<Self::Item>, Error>> + Send;

    /// Draws out the life of an item that works; nothing where that cannot be done. It needs no
    /// credential but the item, so no refusal of another one keeps it from being asked.
    fn renew(
        &self,
        _held: &Held<Self::Item>,
        _deadline: Instant,
    ) -> impl Future<Output = Result<Option<Grant<Self::Item>>, Error>> + Send {
        async { Ok(None) }
    }

    /// Gives an item back that nobody uses any more; nothing may depend on it.
    fn revoke(&self, _item: &Self::Item) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// What a source gave.
pub struct Grant<T> {
    /// The item.
    pub item: T,
    /// How long it is good from now; `None` for ever.
    pub life: Option<Duration>,
}

/// As the cause of an error: for how long the source wants to be left alone.
#[derive(Debug)]
pub struct LeftAlone(pub Duration);

/// An item in use.
pub struct Held<T> {
    /// The item.
    pub item: T,
    /// When it was had.
    pub since: Instant,
    /// Its whole life; `None` for ever.
    pub life: Option<Duration>,
    /// The life that it had before it was ever renewed.
    whole: Option<Duration>,
    due: Option<Instant>,
    expires: Option<SystemTime>,
}

/// A lease of one source; cheap to clone. The item is given back when the last clone goes.
pub struct Lease<S: Source>(Arc<Inner<S>>);

struct Inner<S: Source> {
    source: Arc<S>,
    /// Who asks: the hash of role and secret alone.
    credential: [u8; 32],
    /// For how long a refused credential is not sent again.
    pause: Duration,
    /// Who waits for its end sees each change, so that none is missed.
    held: watch::Sender<Option<Arc<Held<S::Item>>>>,
    state: Mutex<State>,
    /// Held by the one who asks the source.
    asking: tokio::sync::Mutex<()>,
    renews: Once,
}

struct State {
    backoff: Backoff,
    /// The last failure, and until when it stands for the next one too.
    failure: Option<(Instant, Error)>,
}

impl<S: Source> Lease<S> {
    /// Nothing has been asked for yet. `credential` is the hash of role and secret; `pause` is for
    /// how long it is not sent again after a refusal.
    pub fn new(source: S, credential: [u8; 32], pause: Duration) -> Self {
        Self(Arc::new(Inner {
            source: Arc::new(source),
            credential,
            pause,
            held: watch::Sender::new(None),
            state: Mutex::new(State { backoff: PAUSES, failure: None }),
            asking: tokio::sync::Mutex::default(),
            renews: Once::new(),
        }))
    }

    /// An item that is good; waits only where there is none.
    pub async fn get(&self, deadline: Instant) -> Result<Arc<Held<S::Item>>, Error> {
        match self.0.good() {
            Some(held) => Ok(held),
            None => self.fetched(None, deadline).await,
        }
    }

    /// The KMS may not take `used` any more: another one. If there is none, `used` stays: see
    /// [`discard`](Self::discard), and [`Held::since`] to tell a refusal that a new one does not
    /// mend.
    pub async fn replace(
        &self,
        used: &Arc<Held<S::Item>>,
        deadline: Instant,
    ) -> Result<Arc<Held<S::Item>>, Error> {
        match self.0.good().filter(|held| !Arc::ptr_eq(held, used)) {
            Some(held) => Ok(held),
            None => self.fetched(Some(used.clone()), deadline).await,
        }
    }

    /// The KMS has said that `used` is dead: nobody gets it any more, also where there is no other.
    pub fn discard(&self, used: &Arc<Held<S::Item>>) {
        self.0.held.send_if_modified(|held| held.take_if(|held| Arc::ptr_eq(held, used)).is_some());
    }

    /// The item in use, good or not.
    pub fn held(&self) -> Option<Arc<Held<S::Item>>> {
        self.0.held()
    }

    /// When the item in use ends, for people.
    pub fn expiry(&self) -> Option<SystemTime> {
        self.held()?.expires
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.0.source
    }

    /// Gives the item back at once, for all who share it: the process ends. What is being asked for
    /// is waited for, or nobody would give it back.
    pub async fn close(&self) {
        let _one = self.0.asking.lock().await;
        if let Some(held) = self.0.held.send_replace(None) {
            self.0.source.revoke(&held.item).await;
        }
    }

    /// In a task of its own: who asks may have less time than the answer takes, and the next one
    /// must not begin anew.
    async fn fetched(
        &self,
        refused: Option<Arc<Held<S::Item>>>,
        deadline: Instant,
    ) -> Result<Arc<Held<S::Item>>, Error> {
        let inner = self.0.clone();
        let work = tokio::spawn(async move { inner.fetch(refused).await });
        match timeout_at(deadline, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => {
                let what = "the renewal of the credentials was broken off";
                Err(Error::new(Kind::Unavailable, what).with_source(error))
            }
            Err(_) => Err(Error::new(Kind::Timeout, "the credentials were not renewed in time")
                .with_hint("check the network to what issues them")),
        }
    }
}

impl<S: Source> Inner<S> {
    /// Asks the source, unless somebody else just has. `refused` is an item that must not be used
    /// any more.
    async fn fetch(
        self: &Arc<Self>,
        refused: Option<Arc<Held<S::Item>>>,
    ) -> Result<Arc<Held<S::Item>>, Error> {
        let _one = self.asking.lock().await;
        let is_refused = |held: &Arc<Held<S::Item>>| {
            refused.as_ref().is_some_and(|refused| Arc::ptr_eq(refused, held))
        };
        if let Some(held) = self.good().filter(|held| !is_refused(held)) {
            return Ok(held);
        }
        self.ask().await
    }

    /// Must be called with the lock held.
    async fn ask(self: &Arc<Self>) -> Result<Arc<Held<S::Item>>, Error> {
        if let Some(error) = self.paused() {
            return Err(error);
        }
        let deadline = Instant::now() + ASK;
        let grant = match in_time(deadline, self.source.fetch(deadline)).await {
            Ok(grant) => grant,
            Err(error) => {
                self.failed(&error);
                return Err(error);
            }
        };
        *self.state() = State { backoff: PAUSES, failure: None };
        refusals().forget(&self.credential);
        let old = self.held();
        let held = self.keep(Held::new(grant, None));
        if let Some(old) = old {
            self.give_back(old);
        }
        Ok(held)
    }

    fn keep(self: &Arc<Self>, held: Held<S::Item>) -> Arc<Held<S::Item>> {
        let held = Arc::new(held);
        self.held.send_replace(Some(held.clone()));
        self.renews.call_once(|| {
            tokio::spawn(keep_alive(Arc::downgrade(self), self.held.subscribe()));
        });
        held
    }

    /// Once those who use it have ended.
    fn give_back(&self, held: Arc<Held<S::Item>>) {
        if let (true, Ok(runtime)) = (held.is_good(), tokio::runtime::Handle::try_current()) {
            let source = self.source.clone();
            runtime.spawn(async move {
                tokio::time::sleep(GRACE).await;
                source.revoke(&held.item).await;
            });
        }
    }

    fn failed(&self, error: &Error) {
        if error.kind() == Kind::Denied {
            let pause = if error.is_final() { LOCKOUT } else { self.pause };
            refusals().keep(self.credential, pause, error);
        }
        let cause = std::error::Error::source(error);
        let asked = cause.and_then(|cause| cause.downcast_ref::<LeftAlone>()).map(|left| left.0);
        let mut state = self.state();
        let until = Instant::now() + state.backoff.delay().max(asked.unwrap_or_default());
        state.failure = Some((until, copy(error)));
    }

    /// Why the source is not asked now.
    fn paused(&self) -> Option<Error> {
        if let Some(error) = refusals().of(&self.credential) {
            return Some(error);
        }
        let now = Instant::now();
        let state = self.state();
        let failure = state.failure.as_ref().filter(|(until, _)| *until > now);
        failure.map(|(_, error)| copy(error))
    }

    fn held(&self) -> Option<Arc<Held<S::Item>>> {
        self.held.borrow().clone()
    }

    fn good(&self) -> Option<Arc<Held<S::Item>>> {
        self.held().filter(|held| held.is_good())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews what is due.
    async fn renew(self: &Arc<Self>) -> Result<(), Error> {
        let _one = self.asking.lock().await;
        let is_due = |held: &Arc<Held<_>>| held.due.is_some_and(|due| due <= Instant::now());
        let Some(held) = self.held().filter(is_due) else { return Ok(()) };
        if held.is_good() {
            let deadline = Instant::now() + ASK;
            let renewed = in_time(deadline, self.source.renew(&held, deadline)).await?;
            if let Some(grant) = renewed {
                let is_short = held.is_short(grant.life);
                self.keep(Held::new(grant, held.whole));
                if !is_short {
                    return Ok(());
                }
            }
        }
        self.ask().await.map(drop)
    }
}

impl Refusals {
    /// Those whose time is over go only where room is needed: each clock may stand elsewhere in tests
    /// that pause it.
    fn keep(&mut self, credential: [u8; 32], pause: Duration, error: &Error) {
        let now = Instant::now();
        self.forget(&credential);
        if self.0.len() >= MAX_REFUSED {
            self.0.retain(|(_, until, _)| *until > now);
        }
        self.0.push((credential, now + pause, copy(error)));
    }

    /// It was taken, or is refused anew.
    fn forget(&mut self, credential: &[u8; 32]) {
        self.0.retain(|(other, ..)| other != credential);
    }

    /// Why a credential is not sent now.
    fn of(&self, credential: &[u8; 32]) -> Option<Error> {
        let now = Instant::now();
        let valid = || self.0.iter().filter(|(_, until, _)| *until > now);
        let Some((_, until, error)) = valid().find(|(other, ..)| other == credential) else {
            let full = valid().count() >= MAX_REFUSED;
            let text = "too many credentials were refused to try another";
            let hint = "mend those that the log names, or wait for the end of a pause";
            return full.then(|| Error::new(Kind::Unavailable, text).with_hint(hint));
        };
        let left = until.saturating_duration_since(now).as_secs() + 1;
        let hint = error.hint().map_or_else(String::new, |hint| format!("{hint}; "));
        let why = if error.is_final() { ", so that nothing is locked" } else { "" };
        let when = format!("tried again in {left} s{why}; other credentials are tried at once");
        Some(copy(error).with_hint(hint + &when))
    }
}

/// Waits for what is due, as long as the lease lives.
async fn keep_alive<S: Source>(
    lease: Weak<Inner<S>>,
    mut held: watch::Receiver<Option<Arc<Held<S::Item>>>>,
) {
    // Renewing failed: not before then.
    let mut pause = Instant::now();
    loop {
        let due = held.borrow_and_update().as_ref().and_then(|held| held.due);
        let changed = match due {
            Some(due) => timeout_at(due.max(pause), held.changed()).await.ok(),
            None => Some(held.changed().await),
        };
        match changed {
            Some(Ok(())) => continue,
            Some(Err(_)) => return,
            None => {}
        }
        let Some(lease) = lease.upgrade() else { return };
        if let Err(error) = lease.renew().await {
            tracing::warn!(error = %error.report(), "credentials could not be renewed");
            pause = Instant::now() + jitter(RENEW);
        }
    }
}

async fn in_time<T>(
    deadline: Instant,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let late = |_| Err(Error::new(Kind::Timeout, "credentials could not be had in time"));
    timeout_at(deadline, asked).await.unwrap_or_else(late)
}

impl<T> Held<T> {
    /// `whole` is the first life of what was renewed.
    fn new(grant: Grant<T>, whole: Option<Duration>) -> Self {
        let (item, life) = (grant.item, grant.life.map(|life| life.clamp(SHORTEST, LONGEST)));
        let since = Instant::now();
        let due = life.map(|life| since + jitter(life * 2 / 3));
        let expires = life.map(|life| SystemTime::now() + life);
        Self { item, since, life, whole: whole.or(life), due, expires }
    }

    /// Whether a renewal that draws it out by `life` was cut short: its longest life comes to an
    /// end.
    pub fn is_short(&self, life: Option<Duration>) -> bool {
        life.zip(self.whole).is_some_and(|(life, whole)| life < whole / 2)
    }

    /// What is left of its life.
    pub fn left(&self) -> Option<Duration> {
        self.life.map(|life| life.saturating_sub(self.since.elapsed()))
    }

    fn is_good(&self) -> bool {
        let spare = self.life.map_or(TOO_LATE, |life| TOO_LATE.min(life / 10));
        self.left().is_none_or(|left| left > spare)
    }
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it wants to be left alone for {} s", self.0.as_secs())
    }
}

impl std::error::Error for LeftAlone {}

impl<S: Source> Drop for Inner<S> {
    fn drop(&mut self) {
        if let Some(held) = self.held.send_replace(None) {
            self.give_back(held);
        }
    }
}

impl<S: Source> Clone for Lease<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Source> fmt::Debug for Lease<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease")
    }
}

fn refusals() -> MutexGuard<'static, Refusals> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for another one who waited.
fn copy(error: &Error) -> Error {
    let mut same = Error::new(error.kind(), error.to_string());
    same = if error.needs_reload() { same.after_reload() } else { same };
    same = if error.is_lasting() { same.lasting() } else { same };
    same = if error.is_final() { same.without_retry() } else { same };
    match error.hint() {
        Some(hint) => same.with_hint(hint),
        None => same,
    }
}

#[cfg(test)]
mod tests;
