//! One key: what its socket serves.
//!
//! The one invariant: Status and Encrypt speak of the same key_id at every instant, because both
//! read it from the same pointer, and that pointer moves only after the new key_id has been proven
//! by wrapping and unwrapping, and never back.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::backend::Backend;
use crate::config::{KeyNumber, ProbeOptions};
use crate::flights::Flights;
use crate::health::{Health, Trouble};
use crate::metrics::{KeyMetrics, Operation};
use crate::{Call, Endpoint, Error, KeyId, Kind, Pulse, Sealed, Secret, jitter, limits};

/// Tries of one call, the first included.
const ATTEMPTS: u32 = 3;
/// The wait before the second try; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// A key as its socket sees it.
pub(crate) struct Key {
    pub(crate) id: KeyNumber,
    pub(crate) endpoint: Endpoint,
    pub(crate) health: Health,
    pub(crate) metrics: KeyMetrics,
    /// Asks the keeper for an early probe.
    pub(crate) suspicion: Notify,
    /// For the deadlines of requests.
    pub(crate) pulse: Pulse,
    active: ArcSwapOption<Active>,
    /// Every key_id ever announced by this process: none of them may come back.
    past: Mutex<HashSet<KeyId>>,
    flights: Flights<Sealed, Unwrapped>,
    /// Why changed files or settings are not in use, if they are not.
    refusal: Mutex<Option<Trouble>>,
    rereads: mpsc::Sender<oneshot::Sender<()>>,
}

/// The client in use and the version it wraps with: one pointer, so that they change together.
pub(crate) struct Active {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) key_id: KeyId,
}

/// The answer to a Decrypt, and who gave it.
#[derive(Clone)]
struct Unwrapped {
    answer: Result<Arc<Secret>, Arc<Error>>,
    by: Arc<Active>,
}

impl Key {
    pub(crate) fn new(
        id: KeyNumber,
        endpoint: Endpoint,
        options: ProbeOptions,
        metrics: KeyMetrics,
        rereads: mpsc::Sender<oneshot::Sender<()>>,
    ) -> Self {
        Self {
            id,
            endpoint,
            health: Health::new(options),
            metrics,
            suspicion: Notify::new(),
            pulse: Pulse::default(),
            active: ArcSwapOption::empty(),
            past: Mutex::default(),
            flights: Flights::default(),
            refusal: Mutex::default(),
            rereads,
        }
    }

    /// The client in use, if one has been proven.
    pub(crate) fn active(&self) -> Option<Arc<Active>> {
        self.active.load_full()
    }

    /// What Status answers: the announced key_id, or why there is none.
    pub(crate) fn status(&self) -> Result<KeyId, Error> {
        let refused = |kind, text: String| Error::new(kind, format!("key {}: {text}", self.id));
        self.health.verdict().map_err(|trouble| refused(trouble.kind, trouble.text))?;
        let active = self.active.load();
        let active = active.as_ref();
        active
            .map(|active| active.key_id.clone())
            .ok_or_else(|| refused(Kind::Unavailable, "is not connected".into()))
    }

    /// Wraps under the announced key_id, and answers only what has been unwrapped again.
    pub(crate) async fn encrypt(
        self: &Arc<Self>,
        plaintext: Bytes,
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let active = self.ready()?;
        let work = async {
            let mut sealed = self
                .retry(call, || self.wrap(&active.backend, &active.key_id, &plaintext, call))
                .await?;
            limits::check_sealed(&sealed)?;
            let (back, key_id) =
                self.retry(call, || self.verify(&active.backend, &sealed, call)).await?;
            same(&plaintext, &back)?;
            sealed.key_id = key_id;
            Ok(sealed)
        };
        let sealed = within(call.deadline, work).await.inspect_err(|error| self.suspect(error))?;
        if sealed.key_id != active.key_id {
            return Err(self.moved());
        }
        self.proven();
        Ok(sealed)
    }

    /// Unwraps; equal calls at the same time share one answer.
    pub(crate) async fn decrypt(
        self: &Arc<Self>,
        sealed: Sealed,
        call: &Call<'_>,
    ) -> Result<Arc<Secret>, Arc<Error>> {
        let sealed = Arc::new(sealed);
        let first = self.decrypt_once(&sealed, call).await?;
        if first.answer.as_ref().is_err_and(|error| error.needs_reload()) {
            self.reread(call.deadline).await;
            // It may have been another call that brought the new client about.
            if self.active().is_some_and(|now| !Arc::ptr_eq(&now, &first.by)) {
                return self.decrypt_once(&sealed, call).await?.answer;
            }
        }
        first.answer
    }

    async fn decrypt_once(
        self: &Arc<Self>,
        sealed: &Arc<Sealed>,
        call: &Call<'_>,
    ) -> Result<Unwrapped, Arc<Error>> {
        loop {
            let active = self.ready().map_err(Arc::new)?;
            let (key, uid, deadline) = (self.clone(), call.uid.to_owned(), call.deadline);
            let flight = self.flights.join(sealed, move |sealed| async move {
                let call = Call { uid: &uid, deadline };
                let work = key.retry(&call, || key.unwrap(&active.backend, &sealed, &call));
                let answer = within(deadline, work).await.map(Arc::new).map_err(Arc::new);
                Unwrapped { answer, by: active.clone() }
            });
            let landed =
                timeout_at(call.deadline, flight).await.map_err(|_| Arc::new(timed_out()))?;
            if landed.shared {
                self.metrics.shared();
            }
            match &landed.answer.answer {
                // The one we joined had less time than we have.
                Err(error)
                    if landed.shared
                        && error.kind() == Kind::Timeout
                        && Instant::now() < call.deadline => {}
                outcome => {
                    if let Err(error) = outcome {
                        self.suspect(error);
                    }
                    return Ok(landed.answer);
                }
            }
        }
    }

    /// Puts a proven client in place; its key_id is announced from this instant on.
    pub(crate) fn activate(&self, backend: Arc<dyn Backend>, key_id: KeyId) {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).insert(key_id.clone());
        self.metrics.announced(&key_id);
        self.metrics.expiry(backend.expiry());
        self.active.store(Some(Arc::new(Active { backend, key_id })));
    }

    /// Whether `key_id` was announced before and has been left behind.
    pub(crate) fn is_past(&self, key_id: &KeyId) -> bool {
        let current = self.active.load();
        current.as_ref().is_none_or(|active| active.key_id != *key_id)
            && self.past.lock().unwrap_or_else(PoisonError::into_inner).contains(key_id)
    }

    /// One call to wrap, counted.
    pub(crate) async fn wrap(
        &self,
        backend: &Arc<dyn Backend>,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let began = Instant::now();
        let result = backend.encrypt(key_id, plaintext, call).await;
        self.metrics.called(Operation::Encrypt, began.elapsed());
        result
    }

    /// One call to unwrap, counted.
    pub(crate) async fn unwrap(
        &self,
        backend: &Arc<dyn Backend>,
        sealed: &Sealed,
        call: &Call<'_>,
    ) -> Result<Secret, Error> {
        let began = Instant::now();
        let result = backend.decrypt(sealed, call).await;
        self.metrics.called(Operation::Decrypt, began.elapsed());
        result
    }

    /// One call to unwrap what was just wrapped, counted.
    pub(crate) async fn verify(
        &self,
        backend: &Arc<dyn Backend>,
        sealed: &Sealed,
        call: &Call<'_>,
    ) -> Result<(Secret, KeyId), Error> {
        let began = Instant::now();
        let result = backend.verify(sealed, call).await;
        self.metrics.called(Operation::Decrypt, began.elapsed());
        result
    }

    /// Records a proof of the whole way.
    pub(crate) fn proven(&self) {
        if self.health.proven() {
            tracing::info!(key = %self.id, "key is healthy");
        }
        self.metrics.healthy(true);
    }

    /// Remembers why changed files or settings were refused, or that they no longer are.
    pub(crate) fn refusal(&self, error: Option<&Error>) {
        let trouble = error.map(Trouble::new);
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Why changed files or settings are not in use, if they are not.
    pub(crate) fn refused(&self) -> Option<Trouble> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ready(&self) -> Result<Arc<Active>, Error> {
        if let Some(active) = self.active.load_full() {
            return Ok(active);
        }
        let (kind, text) = match self.health.verdict() {
            Err(trouble) => (trouble.kind, trouble.text),
            Ok(()) => (Kind::Unavailable, "is not connected".into()),
        };
        Err(Error::new(kind, format!("key {} is not served yet: {text}", self.id)))
    }

    /// The KMS wrapped with another version than was announced: the keeper looks into it at once
    /// and announces it if the old data stays readable; the caller asks again.
    fn moved(&self) -> Error {
        self.suspicion.notify_one();
        Error::new(Kind::Unavailable, "the KMS wrapped with another version than the announced one")
            .with_hint("a rotation is being taken over; the caller will ask again")
    }

    /// A failed request makes the next probe come sooner; it does not decide over health.
    fn suspect(&self, error: &Error) {
        if error.kind().concerns_health() {
            self.suspicion.notify_one();
        }
    }

    /// Has the keeper read the key's files at once, and waits until it has.
    async fn reread(&self, deadline: Instant) {
        let (done, answer) = oneshot::channel();
        let asking = async {
            if self.rereads.send(done).await.is_ok() {
                // The keeper is gone when the key is: there is nothing to wait for then.
                let _ = answer.await;
            }
        };
        // Who has no time left is answered with what is known.
        let _ = timeout_at(deadline, asking).await;
    }

    async fn retry<T, F: Future<Output = Result<T, Error>>>(
        &self,
        call: &Call<'_>,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..ATTEMPTS {
            match attempt().await {
                Err(error) if error.kind().is_transient() && !error.is_final() => {
                    let wake = Instant::now() + jitter(pause);
                    if wake + FIRST_PAUSE > call.deadline {
                        return Err(error);
                    }
                    tracing::debug!(key = %self.id, uid = call.uid, error = %error.report(), "trying again");
                    tokio::time::sleep_until(wake).await;
                    pause *= 2;
                }
                other => return other,
            }
        }
        attempt().await
    }
}

/// The round trip must give back what went in.
pub(crate) fn same(plaintext: &[u8], back: &Secret) -> Result<(), Error> {
    match aws_lc_rs::constant_time::verify_slices_are_equal(plaintext, back.expose()) {
        Ok(()) => Ok(()),
        Err(_) => {
            Err(Error::new(Kind::Bug, "the KMS unwrapped something else than what it had wrapped")
                .with_hint("nothing was stored; report this to the KMS vendor"))
        }
    }
}

/// Runs `work` until the caller gives up.
pub(crate) async fn within<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout_at(deadline, work).await.unwrap_or_else(|_| Err(timed_out()))
}

fn timed_out() -> Error {
    Error::new(Kind::Timeout, "the KMS did not answer in time")
        .with_hint("check that it can be reached, or give the provider a longer timeout")
}
