//! One key of the shim: its endpoints, its health, what it must be able to read, and the key_id
//! that may be announced for it.

mod proof;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use sidekey_core::config::{KeyNumber, KeyRole, LAST_BACKOFF, ProbeOptions};
use sidekey_core::{Backoff, Call, Error, Health, KeyId, Kind, Sealed, Secret, jitter};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::call::{CallFailure, Client};
use crate::config::{Mode, UpstreamSpec};
use crate::memory::{Memory, Written};
use crate::store::Store;
use crate::upstream::Upstream;

/// The first wait after a failed probe; it doubles up to [`LAST_BACKOFF`]. Both delay the return
/// of a write key.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);

/// The longest wait before a failed request brings a probe forward; the interval is shorter.
const MOST_DOUBT: Duration = Duration::from_secs(60);

/// How long a load waits for the other endpoints of a key after the first has proven itself, to
/// see whether one of them has another KEK.
pub(crate) const LOAD_PATIENCE: Duration = Duration::from_secs(1);

/// A key as the router sees it.
pub(crate) struct RoutedKey {
    pub(crate) id: KeyNumber,
    pub(crate) spec: UpstreamSpec,
    pub(crate) upstream: Upstream,
    pub(crate) health: Health,
    /// Brings the next probe forward.
    suspicion: Arc<Notify>,
    mode: Mode,
    duty: Mutex<(KeyRole, ProbeOptions)>,
    announced: ArcSwapOption<Announced>,
    /// Tells those who wait that another key_id is announced.
    moved: Notify,
    /// Key_ids that were announced and left behind: none may come back.
    past: Mutex<HashSet<KeyId>>,
    /// The key_id that the key in whose place this one comes had announced.
    wanted: Option<KeyId>,
    memory: Mutex<Option<Memory>>,
    /// Whether the next Decrypt that succeeds is worth remembering.
    attentive: AtomicBool,
    /// Whether a Decrypt has succeeded of what was not written by this process.
    has_read: AtomicBool,
    /// What this process has written for callers, as long as that matters.
    written: Arc<Written>,
    /// Whether a read key could not read what is remembered.
    doubted: AtomicBool,
    store: Arc<Store>,
    /// A read key's key_id, as it was last reported.
    reported: Mutex<Option<KeyId>>,
    prober: Mutex<Option<AbortHandle>>,
}

/// A proven key_id: the provider's own, and as kube-apiserver sees it.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) inner: KeyId,
    pub(crate) outer: KeyId,
}

/// What a key takes over from the one in whose place it comes.
#[derive(Default)]
pub(crate) struct Inherited {
    pub(crate) memory: Option<Memory>,
    pub(crate) announced: Option<KeyId>,
    pub(crate) past: HashSet<KeyId>,
    pub(crate) written: Arc<Written>,
}

impl RoutedKey {
    pub(crate) fn new(
        id: KeyNumber,
        spec: UpstreamSpec,
        upstream: Upstream,
        mode: Mode,
        duty: (KeyRole, ProbeOptions),
        inherited: Inherited,
        store: Arc<Store>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            spec,
            upstream,
            health: Health::new(duty.1),
            suspicion: Arc::default(),
            mode,
            duty: Mutex::new(duty),
            announced: ArcSwapOption::empty(),
            moved: Notify::new(),
            past: Mutex::new(inherited.past),
            wanted: inherited.announced,
            attentive: AtomicBool::new(inherited.memory.is_none()),
            memory: Mutex::new(inherited.memory),
            has_read: AtomicBool::new(false),
            written: inherited.written,
            doubted: AtomicBool::new(false),
            store,
            reported: Mutex::default(),
            prober: Mutex::default(),
        })
    }

    /// What it leaves to a key that comes in its place.
    pub(crate) fn inheritance(&self) -> Inherited {
        let announced = self.announced().map(|announced| announced.inner.clone());
        let announced = announced.or_else(|| self.wanted.clone());
        let mut past = self.past.lock().clone();
        // The one in use may be announced again.
        past.retain(|key_id| Some(key_id) != announced.as_ref());
        Inherited { memory: self.memory(), announced, past, written: self.written.clone() }
    }

    /// What it has written or read, to be kept on disk.
    pub(crate) fn memory(&self) -> Option<Memory> {
        self.memory.lock().clone()
    }

    /// The key_id that has been proven, if one has.
    pub(crate) fn announced(&self) -> Option<Arc<Announced>> {
        self.announced.load_full()
    }

    /// The key_id for people and metrics: the announced one; of a key that has not written here,
    /// the one under which it would.
    pub(crate) fn shown(&self) -> Option<KeyId> {
        match self.announced() {
            Some(announced) => Some(announced.outer.clone()),
            None => self.reported.lock().as_ref().and_then(|inner| self.outer(inner).ok()),
        }
    }

    /// Whether the last probe succeeded.
    pub(crate) fn is_up(&self) -> bool {
        self.upstream.is_up() && self.health.was_proven()
    }

    /// Whether it has been taken on trust: it has not yet read anything that was written before.
    pub(crate) fn is_unread(&self) -> bool {
        !self.has_read.load(Ordering::Relaxed) && !self.upstream.has_read()
    }

    /// Notes that the key worked so long ago. An answer counts for a few seconds however old the
    /// provider's proof is: the provider's coast decides, not ours, while it can be asked.
    pub(crate) fn note_proof(&self, age: Duration) {
        self.upstream.set_down(false);
        let coast = self.duty.lock().1.coast;
        if self.health.proven_before(age.min(coast.saturating_sub(LAST_BACKOFF))) {
            tracing::info!(key = %self.id, "key is healthy");
        }
    }

    /// Unwraps, on any endpoint.
    pub(crate) async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let attempt =
            async |mut client: Client, limit| client.decrypt(sealed, call.uid, limit).await;
        let result = self.upstream.call(call.deadline, |_| true, attempt).await;
        match &result {
            Ok(_) => self.note_read(sealed),
            Err(failure) if failure.error().kind().concerns_health() => self.suspicion.notify_one(),
            _ => {}
        }
        Ok(result?)
    }

    /// Wraps under the announced key_id, and answers only what can be unwrapped again.
    pub(crate) async fn encrypt(
        &self,
        plaintext: &Secret,
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let (announced, mut sealed) = loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            let announced = self.announced().ok_or_else(|| self.not_proven())?;
            match self.wrap(&announced.inner, plaintext, call).await {
                Ok(sealed) => break (announced, sealed),
                Err(failure) => {
                    self.suspicion.notify_one();
                    // Where all endpoints have left the announced version, the next one is as good.
                    let left = !self.upstream.reports(&announced.inner);
                    if !left || tokio::time::timeout_at(call.deadline, moved).await.is_err() {
                        return Err(failure.into());
                    }
                }
            }
        };
        if !self.has_read.load(Ordering::Relaxed) {
            self.written.note(&sealed);
        }
        sealed.key_id = announced.outer.clone();
        Ok(sealed)
    }

    /// Keeps health up to date until dropped, with these times from now on.
    pub(crate) fn watch(self: &Arc<Self>, role: KeyRole, options: ProbeOptions) {
        let before = std::mem::replace(&mut *self.duty.lock(), (role, options));
        self.health.configure(options);
        let mut prober = self.prober.lock();
        if prober.is_some() {
            if before != (role, options) {
                self.suspicion.notify_one();
            }
            return;
        }
        let (key, suspicion) = (Arc::downgrade(self), self.suspicion.clone());
        let task = tokio::spawn(async move {
            let mut backoff = Backoff::new(FIRST_BACKOFF, LAST_BACKOFF);
            let mut doubts = Backoff::new(FIRST_BACKOFF, MOST_DOUBT);
            loop {
                let Some(strong) = key.upgrade() else { return };
                // Boxed: it takes room for a moment only, and there is one for every key.
                let healthy = Box::pin(strong.probe()).await;
                let interval = strong.duty.lock().1.interval;
                // A key that was removed must be able to go while we wait.
                drop(strong);
                let pause = if healthy {
                    backoff.reset();
                    jitter(interval)
                } else {
                    // The doubts were right.
                    doubts.reset();
                    backoff.delay().min(interval)
                };
                tokio::select! {
                    () = tokio::time::sleep(pause) => doubts.reset(),
                    // A storm of failures must not become a storm of probes: what cannot be read
                    // may have been forged, and a foreign plugin may pay for each Status.
                    () = suspicion.notified() => {
                        tokio::time::sleep(doubts.delay().min(interval)).await;
                    }
                }
            }
        });
        *prober = Some(task.abort_handle());
    }

    fn is_in_use(&self) -> bool {
        self.prober.lock().is_some()
    }

    async fn probe(&self) -> bool {
        let (role, options) = *self.duty.lock();
        let call = Call { uid: "shim-probe", deadline: Instant::now() + options.timeout };
        match self.prove(role, &call, Duration::ZERO).await {
            Ok(Some(age)) => self.note_proof(age),
            // It is up with its first Decrypt, and not before.
            Ok(None) => self.upstream.set_down(false),
            Err(failure) => {
                self.note_failure(&failure);
                return false;
            }
        }
        true
    }

    /// What one of our providers answers is passed on at once, because it has coasted already; a
    /// foreign plugin has no coast of its own, and neither has one that cannot be reached.
    fn note_failure(&self, failure: &CallFailure) {
        self.upstream.set_down(true);
        if failure.error().is_lasting() && self.duty.lock().0 == KeyRole::Read {
            self.doubted.store(true, Ordering::Relaxed);
            self.attentive.store(true, Ordering::Relaxed);
        }
        let news = match failure {
            CallFailure::Answered(error) if !self.spec.external || error.is_lasting() => {
                self.health.failed_for_good(error)
            }
            failure => {
                let text = failure.error().report();
                self.health.failed(&Error::new(Kind::Unavailable, text))
            }
        };
        if news {
            let error = failure.error().report();
            tracing::warn!(key = %self.id, error, "key does not work");
        }
    }

    /// A Decrypt has succeeded. That this process reads what it has written itself proves nothing
    /// of what was written before.
    fn note_read(&self, sealed: &Sealed) {
        let own = !self.has_read.load(Ordering::Relaxed) && self.written.knows(sealed);
        if !own {
            self.has_read.store(true, Ordering::Relaxed);
        }
        if !self.attentive.load(Ordering::Relaxed) {
            return;
        }
        let reported = self.reported.lock().clone();
        let mut memory = self.memory.lock();
        let newer = reported.is_some_and(|reported| reported == sealed.key_id);
        // What it reads for others outweighs what it could not read: that may be retired.
        if memory.is_some() && !newer && !self.doubted.swap(false, Ordering::Relaxed) {
            return;
        }
        self.attentive.store(false, Ordering::Relaxed);
        memory.insert(Memory::read(sealed.clone())).fresh = own;
        drop(memory);
        self.store.remembered.notify_one();
        if self.duty.lock().0 == KeyRole::Read && !self.is_up() {
            self.note_proof(Duration::ZERO);
        }
    }

    /// Wraps under `key_id`, on the endpoints that report it; the answer carries the provider's
    /// own key_id.
    async fn wrap(
        &self,
        key_id: &KeyId,
        plaintext: &Secret,
        call: &Call<'_>,
    ) -> Result<Sealed, CallFailure> {
        let memory = self.plan(KeyRole::Write).memory;
        let attempt = async |client: Client, limit| {
            self.wrap_on(client, key_id, memory.as_ref(), plaintext, call.uid, limit).await
        };
        self.upstream.call(call.deadline, |link| link.reports(key_id), attempt).await
    }

    /// Wraps on one endpoint, once it has proven that it has the KEK, and unwraps again.
    async fn wrap_on(
        &self,
        mut client: Client,
        key_id: &KeyId,
        memory: Option<&Memory>,
        plaintext: &Secret,
        uid: &str,
        limit: Instant,
    ) -> Result<Sealed, CallFailure> {
        let checked = client.check(self.id, memory, Some(key_id), None, limit).await;
        // One with another KEK is no endpoint of this key: ask the next.
        checked.map_err(|failure| match failure {
            CallFailure::Answered(error) if error.is_lasting() => CallFailure::Unanswered(error),
            failure => failure,
        })?;
        let sealed = client.encrypt(plaintext, uid, limit).await?;
        if sealed.key_id != *key_id {
            client.link.known().reported = Some(sealed.key_id);
            let text =
                format!("key {} wrapped with another key_id than the announced one", self.id);
            let error = Error::new(Kind::Unavailable, text)
                .with_hint("a rotation is being taken over; the caller will ask again");
            return Err(CallFailure::Unanswered(error));
        }
        let back = client.decrypt(&sealed, uid, limit).await?;
        if back != *plaintext {
            let text = format!("key {} unwrapped something else than what it had wrapped", self.id);
            let error = Error::new(Kind::Bug, text);
            return Err(CallFailure::Answered(
                error.with_hint("nothing was stored; look at the provider"),
            ));
        }
        Ok(sealed)
    }

    /// A key_id of the provider's as kube-apiserver sees it.
    fn outer(&self, inner: &KeyId) -> Result<KeyId, Error> {
        if self.mode == Mode::Forward {
            return Ok(inner.clone());
        }
        let whole = format!("sidekey/{}-{}/{inner}", self.id, self.spec.fingerprint);
        KeyId::new(&whole).map_err(|error| {
            let text = format!("the key_id of key {} is too long to be routed", self.id);
            Error::new(Kind::Config, text).with_source(error)
        })
    }

    fn not_proven(&self) -> Error {
        let why = self.health.verdict().err().map(|trouble| format!(": {}", trouble.text));
        let why = why.unwrap_or_default();
        Error::new(Kind::Unavailable, format!("write key {} has not been proven yet{why}", self.id))
    }
}

impl Drop for RoutedKey {
    fn drop(&mut self) {
        if let Some(prober) = self.prober.get_mut().take() {
            prober.abort();
        }
    }
}
