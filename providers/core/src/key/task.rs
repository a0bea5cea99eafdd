//! The task behind a key: connects it, proves it, probes it, and takes over changed files and
//! settings on a standby client while the client in use goes on serving.
//!
//! A probe costs little (decision 11 of the design). A key that writes decrypts its sample at each
//! interval, unless somebody's Decrypt has shown just now that it works; every ten intervals, but
//! at least every five minutes, it encrypts, without naming a version, so that the answer tells of
//! a rotation; every 120, but at least hourly, the KMS is asked what it knows of the key. A key
//! that reads decrypts its canary every ten intervals, and encrypts only when somebody asks for it.
//! After a failure it is tried again soon, and then every five seconds.

mod pending;
mod probe;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::{KeyRole, KeySpec, LAST_BACKOFF, ProbeOptions};
use crate::files::{Files, Subscription, Watcher};
use crate::key::canary::Canary;
use crate::key::health::Trouble;
use crate::key::proof::within;
use crate::key::{Active, Key, TaskRequest};
use crate::provider::backend::Backend;
use crate::{Backoff, Call, Error, KeyId, jitter};

/// First wait after a failure; it doubles up to [`LAST_BACKOFF`] or the probe interval.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// Requests that fail bring a probe forward, but not more often than this.
const SUSPICION_PAUSE: Duration = Duration::from_secs(2);

/// What the supervisor may ask of a task.
pub(crate) struct Reconfigure {
    pub(crate) spec: KeySpec,
    pub(crate) options: ProbeOptions,
}

/// Runs one key.
pub(crate) struct KeyTask {
    key: Arc<Key>,
    spec: KeySpec,
    options: ProbeOptions,
    subscription: Subscription,
    requests: mpsc::Receiver<TaskRequest>,
    orders: mpsc::UnboundedReceiver<Reconfigure>,
    /// The files that the client in use was made of.
    loaded: Option<Files>,
    /// Settings or files that have not been taken over yet.
    pending: Option<Pending>,
    backoff: Backoff,
    /// When what is pending is tried again, and how long to wait after that.
    standby: (Instant, Backoff),
    /// Between two probes that failed requests bring forward.
    suspicion_pause: Duration,
    /// Whether somebody has asked a read key to encrypt.
    asked_to_encrypt: bool,
    /// Why it could not when it was last asked to, and when.
    encrypt_refused: Option<(Instant, Trouble)>,
    /// When the key last encrypted, and when the KMS last told what it knows of it.
    encrypted: Option<Instant>,
    described: Option<Instant>,
    /// When a key that writes last read its sample: whatever else it does proves no KEK.
    sampled: Option<Instant>,
}

/// Something to try on a standby client.
struct Pending {
    spec: Option<KeySpec>,
    /// None as long as they cannot be read: the settings wait for them.
    files: Option<Files>,
}

/// A client that has passed every test.
struct Proven {
    backend: Arc<dyn Backend>,
    key_id: Option<KeyId>,
    /// What it encrypted, if it does.
    sample: Option<Canary>,
}

/// Why the task woke up.
enum Wake {
    Due,
    Suspicion,
    Files(Result<Files, Error>),
    Request(TaskRequest),
    Order(Reconfigure),
    End,
}

impl KeyTask {
    pub(crate) fn new(
        key: Arc<Key>,
        spec: KeySpec,
        options: ProbeOptions,
        watcher: &Watcher,
        requests: mpsc::Receiver<TaskRequest>,
        orders: mpsc::UnboundedReceiver<Reconfigure>,
    ) -> Self {
        let subscription = watcher.subscribe(spec.connector.files().clone());
        let task = Self {
            key,
            spec,
            options,
            subscription,
            requests,
            orders,
            loaded: None,
            pending: None,
            backoff: Backoff::new(FIRST_BACKOFF, options.interval.min(LAST_BACKOFF)),
            standby: (Instant::now(), Backoff::new(FIRST_BACKOFF, options.interval)),
            suspicion_pause: SUSPICION_PAUSE,
            asked_to_encrypt: false,
            encrypt_refused: None,
            encrypted: None,
            described: None,
            sampled: None,
        };
        task.key.health.configure(task.times());
        task
    }

    /// Serves until the supervisor lets go of the other end of `orders`.
    pub(crate) async fn run(mut self) {
        let mut due = Instant::now();
        let mut last_probe: Option<Instant> = None;
        loop {
            match self.wake(due, last_probe).await {
                Wake::End => return,
                Wake::Due => {
                    last_probe = Some(Instant::now());
                    self.suspicion_pause = SUSPICION_PAUSE;
                    due = Instant::now() + self.work(false).await;
                }
                Wake::Suspicion => {
                    last_probe = Some(Instant::now());
                    due = Instant::now() + self.work(true).await;
                    // Forged data makes requests fail and nothing else: it must not be paid for.
                    self.suspicion_pause = match self.key.health.is_failing() {
                        true => SUSPICION_PAUSE,
                        false => (self.suspicion_pause * 2).min(self.options.interval),
                    };
                }
                Wake::Files(files) => match self.complete(files) {
                    Ok(files) => {
                        self.pend_files(files);
                        due = Instant::now() + self.work(false).await;
                    }
                    Err(error) => self.unreadable(&error),
                },
                Wake::Request(TaskRequest::Reread(done)) => {
                    if self.reread().await.is_err() {
                        due = due.min(Instant::now() + FIRST_BACKOFF);
                    }
                    // Nobody may be waiting any more; that is fine.
                    let _ = done.send(());
                }
                // Whoever has gone away meanwhile needs no answer.
                Wake::Request(TaskRequest::Encrypts(done)) if done.is_closed() => {}
                Wake::Request(TaskRequest::Encrypts(done)) => {
                    let result = self.encrypts_on_request().await;
                    due = due.min(Instant::now() + jitter(self.times().interval));
                    let _ = done.send(result);
                }
                Wake::Order(mut order) => {
                    while let Ok(newer) = self.orders.try_recv() {
                        order = newer;
                    }
                    self.order(order);
                    due = Instant::now() + self.work(false).await;
                }
            }
        }
    }

    async fn wake(&mut self, due: Instant, last_probe: Option<Instant>) -> Wake {
        let calm = last_probe.map_or_else(Instant::now, |at| at + self.suspicion_pause);
        let key = self.key.clone();
        let suspicion = async {
            // Calm first: a suspicion that was taken must not be lost to another branch.
            tokio::time::sleep_until(calm).await;
            key.suspicion.notified().await;
        };
        tokio::select! {
            biased;
            order = self.orders.recv() => order.map_or(Wake::End, Wake::Order),
            request = self.requests.recv() => request.map_or(Wake::End, Wake::Request),
            files = self.subscription.changed() => Wake::Files(files),
            () = tokio::time::sleep_until(due) => Wake::Due,
            () = suspicion => Wake::Suspicion,
        }
    }

    /// Does what is due, or is `suspected` to be, and says when to come back.
    async fn work(&mut self, suspected: bool) -> Duration {
        let active = match self.key.active() {
            Some(active) => Some(active),
            None => self.first().await,
        };
        let waits = self.pending.is_none() || Instant::now() < self.standby.0;
        let done = match active {
            None => false,
            Some(_) if !waits && self.take_over().await.is_ok() => true,
            // While a standby client is refused, the one in use is probed all the same.
            Some(active) => self.probe(&active, suspected).await.is_ok(),
        };
        let pause = if done {
            self.backoff.reset();
            // The last proof may be somebody's Decrypt, and older than this moment.
            let age = self.key.health.proof_age().unwrap_or_default();
            jitter(self.times().interval).saturating_sub(age)
        } else {
            self.backoff.delay()
        };
        match self.pending {
            Some(_) => pause.min(self.standby.0.saturating_duration_since(Instant::now())),
            None => pause,
        }
    }

    /// Connects the first client. It serves Decrypts from then on, and all else once it has been
    /// probed.
    async fn first(&mut self) -> Option<Arc<Active>> {
        // It is made of what is there now.
        self.pending = None;
        let connecting = async {
            let files = self.read()?;
            let deadline = Instant::now() + self.options.timeout;
            let backend = within(deadline, self.spec.connector.connect(&files, None)).await?;
            Ok((backend, files))
        };
        match connecting.await {
            Ok((backend, files)) => {
                self.key.activate(backend, None, false);
                self.loaded = Some(files);
                self.key.metrics.reloads.count(true);
                self.key.refusal(None);
                self.key.active()
            }
            Err(error) => {
                self.failed(&error);
                self.key.metrics.reloads.count(false);
                self.key.refusal(Some(&error));
                None
            }
        }
    }

    /// Tries pending files and settings on a standby client.
    async fn take_over(&mut self) -> Result<(), ()> {
        match self.try_standby().await {
            Ok((proven, spec, files)) => {
                self.adopt(proven, spec, files);
                Ok(())
            }
            Err(error) => {
                self.standby.0 = Instant::now() + self.standby.1.delay();
                let (key, kind, text) = (self.key.id, error.kind(), error.report());
                if self.key.refused().is_none_or(|before| before.text != text) {
                    tracing::warn!(%key, %kind, error = text,
                        "new files or settings refused, the last good ones stay in use");
                }
                self.key.metrics.reloads.count(false);
                self.key.refusal(Some(&error));
                Err(())
            }
        }
    }

    async fn try_standby(&mut self) -> Result<(Proven, Option<KeySpec>, Files), Error> {
        let files = match self.pending.as_ref().and_then(|pending| pending.files.clone()) {
            Some(files) => files,
            None => self.read()?,
        };
        let spec = self.pending.as_ref().and_then(|pending| pending.spec.as_ref());
        let deadline = Instant::now() + self.options.timeout;
        let proven = within(deadline, self.prove(spec.unwrap_or(&self.spec), &files)).await?;
        let spec = self.pending.take().and_then(|pending| pending.spec);
        Ok((proven, spec, files))
    }

    /// Connects a standby client and has it pass every test: it must encrypt if the client in use
    /// does, and read what was encrypted before. That comes last: a KEK that is exchanged meanwhile
    /// is one that cannot.
    async fn prove(&self, spec: &KeySpec, files: &Files) -> Result<Proven, Error> {
        let active = self.key.active();
        let previous = active.as_ref().map(|active| &*active.backend);
        let backend = spec.connector.connect(files, previous).await?;
        // A key that was made a read key may have lost its right to encrypt, and needs none.
        let reads = spec.role == Some(KeyRole::Read);
        let must = !reads && active.as_ref().is_some_and(|active| active.encrypts);
        let mut encrypted = None;
        if !reads || self.asked_to_encrypt {
            match self.round_trip(&backend, true).await {
                Err(error) if must || error.kind().is_transient() => return Err(error),
                // If not, it never did, and what it can do is better than nothing.
                result => encrypted = result.ok(),
            }
        }
        self.same_kek(&backend, spec.canary.as_ref()).await?;
        if let Some((key_id, sample)) = encrypted {
            return Ok(Proven { backend, key_id: Some(key_id), sample: Some(sample) });
        }
        let known = active.as_ref().and_then(|active| active.key_id.clone());
        let tested = spec.canary.is_some() || self.sample().is_some();
        let key_id = match self.describe(&backend).await {
            Ok(named) if known.is_some() && self.key.is_past(&named) => known,
            Ok(named) => Some(named),
            // Without anything that it could read, nothing else shows that it works.
            Err(error) if !tested => return Err(error),
            Err(_) => known,
        };
        Ok(Proven { backend, key_id, sample: None })
    }

    fn adopt(&mut self, proven: Proven, spec: Option<KeySpec>, files: Files) {
        if let Some(spec) = spec {
            self.asked_to_encrypt = false;
            self.spec = spec;
            self.key.health.configure(self.times());
        }
        let key = self.key.id;
        let key_id_hash = proven.key_id.as_ref().map(KeyId::hash);
        let now = Some(Instant::now());
        let encrypts = proven.sample.is_some();
        self.described = now.filter(|_| proven.key_id.is_some());
        if let Some(sample) = proven.sample {
            self.encrypted = now;
            // The one before was read with this very client, which may write in another form now.
            *self.key.sample.lock() = Some(sample);
        }
        self.key.activate(proven.backend, proven.key_id, encrypts);
        if encrypts || self.spec.role == Some(KeyRole::Read) {
            self.key.set_decrypt_proves(true);
            self.key.proven();
        } else {
            self.key.set_decrypt_proves(false);
        }
        self.key.refusal(None);
        self.loaded = Some(files);
        self.key.metrics.reloads.count(true);
        tracing::info!(%key, key_id_hash, "new files or settings are in use");
    }

    /// Whether the key is to encrypt: one that reads only does so when it is asked to.
    fn should_encrypt(&self) -> bool {
        self.spec.role != Some(KeyRole::Read) || self.asked_to_encrypt
    }

    /// How the key is probed, as what it is.
    fn times(&self) -> ProbeOptions {
        match self.should_encrypt() {
            true => self.options,
            false => self.options.of_reader(),
        }
    }

    /// Whether something that last happened at `last` is to happen again.
    fn is_due(&self, last: Option<Instant>, often: (u32, Duration)) -> bool {
        // A probe comes a little early or late: the next one would be too late.
        let early = self.times().interval / 2;
        last.is_none_or(|last| last.elapsed() + early >= self.options.every(often))
    }

    fn sample(&self) -> Option<Canary> {
        self.key.sample.lock().clone()
    }

    /// The first one under a key_id is kept: whatever has become of the KEK since, it must read it.
    fn keep_sample(&self, sample: Canary) {
        let mut kept = self.key.sample.lock();
        kept.take_if(|kept| kept.sealed.key_id != sample.sealed.key_id);
        kept.get_or_insert(sample);
    }

    /// Files that cannot be read now, a token half-written, say: what is in use stays in use.
    fn unreadable(&self, error: &Error) {
        if self.key.active().is_none() {
            return self.failed(error);
        }
        tracing::warn!(key = %self.key.id, error = %error.report(), "changed files cannot be read, the last good ones stay in use");
        self.key.metrics.reloads.count(false);
        self.key.refusal(Some(error));
    }

    fn failed(&self, error: &Error) {
        if self.key.failed(error) {
            let (key, kind, error) = (self.key.id, error.kind(), error.report());
            // What does not pass by itself is for the operator to mend.
            if kind.is_transient() {
                tracing::warn!(%key, %kind, %error, "probe of the key failed");
            } else {
                tracing::error!(%key, %kind, %error, "probe of the key failed");
            }
        }
    }

    fn call(&self) -> Call<'static> {
        Call { uid: "probe", deadline: Instant::now() + self.options.timeout }
    }
}
