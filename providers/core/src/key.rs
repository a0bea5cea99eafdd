//! One key: what its socket serves.
//!
//! The one invariant: Status and Encrypt speak of the same key_id at every instant, because both
//! read it from the same pointer, and that pointer moves only after the new key_id has been proven
//! by encrypting and decrypting, and never back.
//!
//! Decrypt needs less: a client that is connected. Another KEK cannot decrypt, so a client that has
//! not been proven, or that may not encrypt, does no harm there. Requests that come before that are
//! held within their deadline, so that a restart is felt as latency alone.

pub(crate) mod backoff;
pub(crate) mod canary;
pub(crate) mod health;
pub(crate) mod proof;
pub(crate) mod retry;
pub(crate) mod task;

mod ask;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
pub(crate) use ask::TaskRequest;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::config::{KeyNumber, ProbeOptions};
use crate::key::canary::Canary;
use crate::key::health::{Health, Trouble};
use crate::key::proof::{counted, encrypt_verified, timed_out};
use crate::key::retry::{ATTEMPTS, RetryBudget, Run};
use crate::kms::single_flight::SingleFlight;
use crate::kms::{Kms, RequestError, StatusReport};
use crate::metrics::{BackendCall, KeyMetrics};
use crate::provider::backend::Backend;
use crate::{Call, Endpoint, Error, KeyId, Kind, Sealed, Secret};

/// A key as its socket sees it.
pub(crate) struct Key {
    pub(crate) id: KeyNumber,
    pub(crate) endpoint: Endpoint,
    pub(crate) health: Health,
    pub(crate) metrics: KeyMetrics,
    /// Asks the task for an early probe.
    pub(crate) suspicion: Notify,
    /// Whether that probe should encrypt.
    pub(crate) encrypt_suspected: AtomicBool,
    /// What the key can decrypt: the first thing that it encrypted for a probe under its key_id, or
    /// decrypted for anybody. A new client must be able to, too.
    pub(crate) sample: Mutex<Option<Canary>>,
    active: ArcSwapOption<Active>,
    /// Tells those who wait that `active` or health has changed.
    changed: Notify,
    /// Whether a Decrypt proves the key: not while it cannot encrypt and should.
    decrypt_proves: AtomicBool,
    /// Every key_id ever announced by this process: none of them may come back.
    past: Mutex<HashSet<KeyId>>,
    flights: SingleFlight<Sealed, Decrypted>,
    retries: RetryBudget,
    /// Why changed files or settings are not in use, if they are not.
    refusal: Mutex<Option<Trouble>>,
    requests: mpsc::Sender<TaskRequest>,
}

/// The client in use and what it has proven: one pointer, so that they change together.
pub(crate) struct Active {
    pub(crate) backend: Arc<dyn Backend>,
    /// What Status announces, once it is known.
    pub(crate) key_id: Option<KeyId>,
    /// Whether it has encrypted under that key_id and decrypted again.
    pub(crate) encrypts: bool,
}

/// The answer to a Decrypt, who gave it, and in how many attempts.
#[derive(Clone)]
struct Decrypted {
    answer: Result<Secret, Arc<Error>>,
    by: Arc<Active>,
    attempts: u32,
    /// Whether it had no time for another attempt.
    out_of_time: bool,
}

impl Key {
    pub(crate) fn new(
        id: KeyNumber,
        endpoint: Endpoint,
        options: ProbeOptions,
        metrics: KeyMetrics,
        requests: mpsc::Sender<TaskRequest>,
    ) -> Self {
        Self {
            id,
            endpoint,
            health: Health::new(options),
            metrics,
            suspicion: Notify::new(),
            encrypt_suspected: AtomicBool::new(false),
            sample: Mutex::default(),
            active: ArcSwapOption::empty(),
            changed: Notify::new(),
            decrypt_proves: AtomicBool::new(false),
            past: Mutex::default(),
            flights: SingleFlight::default(),
            retries: RetryBudget::default(),
            refusal: Mutex::default(),
            requests,
        }
    }

    /// The client in use, if there is one.
    pub(crate) fn active(&self) -> Option<Arc<Active>> {
        self.active.load_full()
    }

    /// Whether the key has ever done anything that data may depend on.
    pub(crate) fn has_worked(&self) -> bool {
        let sample = self.sample.lock();
        self.health.was_proven() || sample.is_some()
    }

    /// What Status answers: the announced key_id, or why there is none.
    pub(crate) fn status(&self) -> Result<KeyId, Error> {
        let refused = |kind, text: String| Error::new(kind, format!("key {}: {text}", self.id));
        self.health.verdict().map_err(|trouble| refused(trouble.kind, trouble.text))?;
        let active = self.active.load();
        let key_id = active.as_ref().and_then(|active| active.key_id.clone());
        key_id.ok_or_else(|| refused(Kind::Unavailable, "its version is not known yet".into()))
    }

    async fn decrypt_once(
        self: &Arc<Self>,
        sealed: &Arc<Sealed>,
        call: &Call<'_>,
        attempts: u32,
    ) -> Result<Decrypted, Arc<Error>> {
        let active = self.connected(call.deadline).await.map_err(Arc::new)?;
        let start = |sealed: Arc<Sealed>| {
            let (key, active) = (self.clone(), active.clone());
            let (uid, deadline) = (call.uid.to_owned(), call.deadline);
            async move {
                let attempt = async |deadline| {
                    let call = Call { uid: &uid, deadline };
                    let decrypting = active.backend.decrypt(&sealed, &call);
                    counted(Some(&key.metrics.requests), BackendCall::Decrypt, decrypting).await
                };
                let Run { result, attempts, out_of_time } =
                    key.retries.run(deadline, attempts, attempt).await;
                if let Ok(plaintext) = &result {
                    key.decrypted(&active, &sealed, plaintext);
                }
                Decrypted { answer: result.map_err(Arc::new), by: active, attempts, out_of_time }
            }
        };
        let short = |decrypted: &Decrypted| decrypted.out_of_time;
        let landed = self.flights.join_until(call.deadline, sealed, start, short).await;
        let landed = landed.ok_or_else(|| Arc::new(timed_out()))?;
        if landed.shared {
            self.metrics.shared.inc();
        }
        if let Err(error) = &landed.answer.answer {
            self.suspect(error, false);
        }
        Ok(landed.answer)
    }

    /// Puts a client in place. Its key_id is announced from this instant on, if it has one.
    pub(crate) fn activate(
        &self,
        backend: Arc<dyn Backend>,
        key_id: Option<KeyId>,
        encrypts: bool,
    ) {
        if let Some(key_id) = &key_id {
            self.metrics.announced(key_id);
            let mut past = self.past.lock();
            let old = self.active.load_full().and_then(|old| old.key_id.clone());
            past.extend(old.filter(|old| old != key_id));
            // What only reads has not proven that it encrypts with this one.
            past.extend(encrypts.then(|| key_id.clone()));
        }
        self.metrics.ends(&*backend);
        self.active.store(Some(Arc::new(Active { backend, key_id, encrypts })));
        self.changed.notify_waiters();
    }

    /// Takes a client that has never worked away.
    pub(crate) fn deactivate(&self) {
        self.active.store(None);
    }

    /// Says whether a Decrypt proves the key from now on.
    pub(crate) fn set_decrypt_proves(&self, proves: bool) {
        self.decrypt_proves.store(proves, Ordering::Relaxed);
    }

    /// Whether `key_id` was announced before and has been left behind.
    pub(crate) fn is_past(&self, key_id: &KeyId) -> bool {
        let current = self.active.load();
        current.as_ref().is_none_or(|active| active.key_id.as_ref() != Some(key_id))
            && self.past.lock().contains(key_id)
    }

    /// Records a proof.
    pub(crate) fn proven(&self) {
        if self.health.proven() {
            tracing::info!(key = %self.id, "key is healthy");
        }
        self.metrics.healthy(true);
        self.changed.notify_waiters();
    }

    /// Records a failed probe; returns whether that is news.
    pub(crate) fn failed(&self, error: &Error) -> bool {
        let news = self.health.failed(error);
        self.metrics.failed(error.kind());
        self.metrics.healthy(self.health.verdict().is_ok());
        self.changed.notify_waiters();
        news
    }

    /// Remembers why changed files or settings were refused, or that they no longer are.
    pub(crate) fn refusal(&self, error: Option<&Error>) {
        let trouble = error.map(Trouble::new);
        *self.refusal.lock() = trouble;
    }

    /// Why changed files or settings are not in use, if they are not.
    pub(crate) fn refused(&self) -> Option<Trouble> {
        self.refusal.lock().clone()
    }

    /// Another KEK in the place of ours encrypts just as well.
    fn is_still_ours(&self) -> Result<(), Error> {
        let trouble = self.health.verdict().err().filter(|trouble| trouble.kind == Kind::KeyState);
        trouble.map_or(Ok(()), |trouble| Err(Error::new(trouble.kind, trouble.text)))
    }

    /// The client that has proven to encrypt, the version that is announced for it, and the
    /// attempts that are left: a proof that this request waited for took the others.
    async fn encrypting(&self, deadline: Instant) -> Result<(Arc<Active>, KeyId, u32), Error> {
        let (mut active, mut left) = (self.connected(deadline).await?, ATTEMPTS);
        if !active.encrypts {
            let asking =
                self.retries.run(deadline, ATTEMPTS - 1, |limit| self.prove_encrypt(limit));
            let proven = asking.await;
            // Its own probe may have been quicker.
            active = match self.active().filter(|active| active.encrypts) {
                Some(active) => active,
                None => return Err(proven.result.err().unwrap_or_else(timed_out)),
            };
            left -= proven.attempts;
        }
        match active.key_id.clone() {
            Some(key_id) => Ok((active, key_id, left)),
            None => Err(Error::new(Kind::Bug, format!("key {} has no key_id", self.id))),
        }
    }

    /// The connected client. One that is still to come is waited for, but not what does not pass
    /// by itself.
    async fn connected(&self, deadline: Instant) -> Result<Arc<Active>, Error> {
        // Nearly always: nobody need be told of a change.
        if let Some(active) = self.active.load_full() {
            return Ok(active);
        }
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if let Some(active) = self.active.load_full() {
                return Ok(active);
            }
            let (kind, text) = match self.health.verdict() {
                Err(trouble) => (trouble.kind, trouble.text),
                Ok(()) => (Kind::Unavailable, "it is being connected anew".into()),
            };
            let changed = kind.is_transient() && timeout_at(deadline, changed).await.is_ok();
            if !changed {
                return Err(Error::new(kind, format!("key {} is not served yet: {text}", self.id)));
            }
        }
    }

    /// The KMS encrypted with another version than was announced: the task looks into it at
    /// once and announces it if the old data stays readable; the caller asks again.
    fn moved(&self) -> Error {
        self.encrypt_suspected.store(true, Ordering::Relaxed);
        self.suspicion.notify_one();
        let text = "the KMS encrypted with another version than the announced one";
        Error::new(Kind::Unavailable, text)
            .with_hint("a rotation is being taken over; the caller will ask again")
    }

    /// A failed request makes the next probe come sooner; it does not decide over health.
    fn suspect(&self, error: &Error, encrypt: bool) {
        if error.kind().concerns_health() {
            self.encrypt_suspected.fetch_or(encrypt, Ordering::Relaxed);
            self.suspicion.notify_one();
        }
    }

    /// Somebody's Decrypt has shown that the client works. What it decrypted is the newest sample
    /// of a key that does not encrypt: what was encrypted under older versions may be retired.
    fn decrypted(&self, active: &Active, sealed: &Sealed, plaintext: &Secret) {
        let wanted = self.health.wants_proof();
        if !wanted && active.encrypts {
            return;
        }
        let mut sample = self.sample.lock();
        let now = self.active.load();
        // A client that was taken away meanwhile may have had another KEK.
        if now.as_ref().is_none_or(|now| !Arc::ptr_eq(&now.backend, &active.backend)) {
            return;
        }
        if sample.is_none() || (!active.encrypts && wanted) {
            *sample = Some(Canary::new(sealed.clone(), plaintext));
        }
        drop(sample);
        if wanted && self.decrypt_proves.load(Ordering::Relaxed) {
            self.proven();
        }
    }
}

impl Kms for Arc<Key> {
    async fn status(&self, _: Instant) -> Result<StatusReport, RequestError> {
        let key_id = Key::status(self)?;
        Ok(StatusReport::healthy(&key_id, self.health.proof_age()))
    }

    /// Encrypts under the announced key_id, and answers only what has been decrypted again.
    async fn encrypt(&self, plaintext: Secret, call: &Call<'_>) -> Result<Sealed, RequestError> {
        let (active, announced, attempts) = self.encrypting(call.deadline).await?;
        self.is_still_ours()?;
        let backend = &active.backend;
        let attempt = async |deadline| {
            let call = Call { deadline, ..*call };
            let encrypting = backend.encrypt(&announced, plaintext.expose(), &call);
            let metrics = Some(&self.metrics.requests);
            encrypt_verified(&**backend, encrypting, &plaintext, &call, metrics).await
        };
        let sealed = self.retries.run(call.deadline, attempts, attempt).await.result;
        let sealed = sealed.inspect_err(|error| self.suspect(error, true))?;
        if sealed.key_id != announced {
            return Err(self.moved().into());
        }
        // A probe may have seen meanwhile that it is not.
        self.is_still_ours()?;
        self.proven();
        Ok(sealed)
    }

    /// Decrypts; equal calls at the same time share one answer.
    async fn decrypt(&self, sealed: Sealed, call: &Call<'_>) -> Result<Secret, RequestError> {
        let key_id = sealed.key_id.without_shim_prefix();
        let sealed = Arc::new(Sealed { key_id, ..sealed });
        let mut attempts = ATTEMPTS;
        loop {
            let first = self.decrypt_once(&sealed, call, attempts).await?;
            attempts = attempts.saturating_sub(first.attempts);
            let stale = matches!(&first.answer, Err(error) if error.needs_reload());
            if !stale || attempts == 0 {
                return Ok(first.answer?);
            }
            self.reread(call.deadline).await;
            // It may have been another call that brought the new client about.
            if self.active().is_none_or(|now| Arc::ptr_eq(&now, &first.by)) {
                return Ok(first.answer?);
            }
        }
    }
}
