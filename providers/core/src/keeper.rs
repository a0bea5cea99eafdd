//! The keeper of a key: connects it, proves it, probes it, and takes over changed files and
//! settings on a standby client while the client in use goes on serving.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::backend::{Backend, Connector};
use crate::canary::Canary;
use crate::config::{KeySpec, ProbeOptions};
use crate::files::{Files, Subscription, Watcher};
use crate::key::{Key, same, within};
use crate::metrics::Outcome;
use crate::{Call, Error, KeyId, Kind, Sealed, Secret, jitter};

/// First wait after a failure; it doubles up to the probe interval.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// Requests that fail bring a probe forward, but not more often than this.
const SUSPICION_PAUSE: Duration = Duration::from_secs(2);

/// What the supervisor may ask of a keeper.
pub(crate) struct Reconfigure {
    pub(crate) spec: KeySpec,
    pub(crate) options: ProbeOptions,
}

/// Runs one key.
pub(crate) struct Keeper {
    key: Arc<Key>,
    spec: KeySpec,
    options: ProbeOptions,
    subscription: Subscription,
    rereads: mpsc::Receiver<oneshot::Sender<()>>,
    orders: mpsc::UnboundedReceiver<Reconfigure>,
    /// The files that the client in use was made of.
    loaded: Option<Files>,
    /// Wrapped by the client in use: a standby client must be able to unwrap it.
    sample: Option<(Sealed, Secret)>,
    /// Settings or files that have not been taken over yet.
    pending: Option<Pending>,
    backoff: Duration,
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
    key_id: KeyId,
    sample: (Sealed, Secret),
}

/// Why the keeper woke up.
enum Wake {
    Due,
    Suspicion,
    Files(Result<Files, Error>),
    Reread(oneshot::Sender<()>),
    Order(Reconfigure),
    End,
}

impl Keeper {
    pub(crate) fn new(
        key: Arc<Key>,
        spec: KeySpec,
        options: ProbeOptions,
        watcher: &Watcher,
        rereads: mpsc::Receiver<oneshot::Sender<()>>,
        orders: mpsc::UnboundedReceiver<Reconfigure>,
    ) -> Self {
        let subscription = watcher.subscribe(spec.connector.files().clone());
        let backoff = FIRST_BACKOFF;
        let (loaded, sample, pending) = (None, None, None);
        Self { key, spec, options, subscription, rereads, orders, loaded, sample, pending, backoff }
    }

    /// Serves until the supervisor lets go of the other end of `orders`.
    pub(crate) async fn run(mut self) {
        let mut due = Instant::now();
        let mut last_probe: Option<Instant> = None;
        loop {
            match self.wake(due, last_probe).await {
                Wake::End => return,
                Wake::Due | Wake::Suspicion => {
                    last_probe = Some(Instant::now());
                    due = Instant::now() + self.work().await;
                }
                Wake::Files(files) => match self.complete(files) {
                    Ok(files) => {
                        let files = Some(files);
                        self.pending = Some(Pending { spec: self.take_pending_spec(), files });
                        due = Instant::now() + self.work().await;
                    }
                    Err(error) => self.unreadable(&error),
                },
                Wake::Reread(done) => {
                    if self.reread().await.is_err() {
                        due = due.min(Instant::now() + jitter(self.backoff));
                    }
                    // Nobody may be waiting any more; that is fine.
                    let _ = done.send(());
                }
                Wake::Order(mut order) => {
                    while let Ok(newer) = self.orders.try_recv() {
                        order = newer;
                    }
                    self.order(order);
                    due = Instant::now() + self.work().await;
                }
            }
        }
    }

    async fn wake(&mut self, due: Instant, last_probe: Option<Instant>) -> Wake {
        let calm = last_probe.map_or_else(Instant::now, |at| at + SUSPICION_PAUSE);
        let key = self.key.clone();
        let suspicion = async {
            // Calm first: a suspicion that was taken must not be lost to another branch.
            tokio::time::sleep_until(calm).await;
            key.suspicion.notified().await;
        };
        tokio::select! {
            biased;
            order = self.orders.recv() => order.map_or(Wake::End, Wake::Order),
            done = self.rereads.recv() => done.map_or(Wake::End, Wake::Reread),
            files = self.subscription.changed() => Wake::Files(files),
            () = tokio::time::sleep_until(due) => Wake::Due,
            () = suspicion => Wake::Suspicion,
        }
    }

    /// Does what is due, and says when to come back.
    async fn work(&mut self) -> Duration {
        let done = match self.key.active() {
            Some(active) if self.pending.is_none() => self.probe(&active.backend).await.is_ok(),
            active => {
                let taken = self.take_over().await.is_ok();
                // While the standby client is refused, the one in use is probed all the same.
                if let (false, Some(active)) = (taken, active) {
                    let _ = self.probe(&active.backend).await;
                }
                taken
            }
        };
        if done {
            self.backoff = FIRST_BACKOFF;
            return jitter(self.options.interval);
        }
        let pause = self.backoff;
        self.backoff = (self.backoff * 2).min(self.options.interval);
        jitter(pause)
    }

    /// Tries pending files and settings, or the first ones, on a standby client.
    async fn take_over(&mut self) -> Result<(), ()> {
        let first = self.key.active().is_none();
        let result = self.try_standby().await;
        match result {
            Ok((proven, spec, files)) => {
                self.adopt(proven, spec, files, first);
                Ok(())
            }
            Err(error) => {
                if first {
                    self.failed(&error);
                } else {
                    tracing::warn!(key = %self.key.id, kind = %error.kind(), error = %error.report(),
                        "new files or settings refused, the last good ones stay in use");
                }
                self.key.metrics.reload(Outcome::Failure);
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

    /// Connects a standby client and has it pass every test.
    async fn prove(&self, spec: &KeySpec, files: &Files) -> Result<Proven, Error> {
        let active = self.key.active();
        let previous = active.as_ref().map(|active| &*active.backend);
        let backend = spec.connector.connect(files, previous).await?;
        self.same_kek(&backend, spec.canary.as_ref()).await?;
        let (key_id, sample) = self.round_trip(&backend).await?;
        Ok(Proven { backend, key_id, sample })
    }

    /// Whether `backend` can read what was wrapped before: the canary, and the sample that the
    /// client in use wrapped last.
    async fn same_kek(
        &self,
        backend: &Arc<dyn Backend>,
        canary: Option<&Canary>,
    ) -> Result<(), Error> {
        let call = self.call();
        if let Some(canary) = canary {
            let plaintext = self.key.unwrap(backend, &canary.sealed, &call).await;
            canary.verify(&plaintext.map_err(canary_failed)?)?;
        }
        let Some((sealed, plaintext)) = &self.sample else { return Ok(()) };
        match self.key.unwrap(backend, sealed, &call).await {
            Ok(back) if back == *plaintext => Ok(()),
            Err(error) if error.kind().is_transient() => Err(error),
            Err(error) => Err(another_key().with_source(error)),
            Ok(_) => Err(another_key()),
        }
    }

    fn adopt(&mut self, proven: Proven, spec: Option<KeySpec>, files: Files, first: bool) {
        if let Some(spec) = spec {
            self.spec = spec;
        }
        let key = self.key.id;
        let key_id_hash = proven.key_id.hash();
        self.key.activate(proven.backend, proven.key_id);
        self.key.proven();
        self.key.refusal(None);
        self.sample = Some(proven.sample);
        self.loaded = Some(files);
        self.key.metrics.reload(Outcome::Success);
        if first {
            tracing::info!(%key, key_id_hash, canary = self.spec.canary.is_some(), "key is served");
        } else {
            tracing::info!(%key, key_id_hash, "new files or settings are in use");
        }
    }

    /// Proves the client in use again, and follows the KMS when it has rotated.
    async fn probe(&mut self, backend: &Arc<dyn Backend>) -> Result<(), ()> {
        let deadline = Instant::now() + self.options.timeout;
        let announced = self.key.active().map(|active| active.key_id.clone());
        let work = async {
            let (key_id, sample) = self.round_trip(backend).await?;
            let moved = announced.as_ref() != Some(&key_id);
            if moved {
                // A key that was deleted and made anew looks like a rotation, but reads nothing.
                self.same_kek(backend, self.spec.canary.as_ref()).await?;
            }
            Ok((key_id, sample, moved))
        };
        match within(deadline, work).await {
            Ok((key_id, sample, moved)) => {
                if moved {
                    let key_id_hash = key_id.hash();
                    tracing::info!(key = %self.key.id, key_id_hash, "the KMS has rotated the key");
                    self.key.activate(backend.clone(), key_id);
                }
                self.key.metrics.expiry(backend.expiry());
                self.sample = Some(sample);
                self.key.proven();
                Ok(())
            }
            Err(error) => {
                self.failed(&error);
                Err(())
            }
        }
    }

    /// Wraps and unwraps 32 random bytes under the version that the KMS names now.
    async fn round_trip(
        &self,
        backend: &Arc<dyn Backend>,
    ) -> Result<(KeyId, (Sealed, Secret)), Error> {
        let call = self.call();
        let began = Instant::now();
        let named = backend.key_id().await;
        self.key.metrics.called(crate::metrics::Operation::KeyId, began.elapsed());
        let named = named?;
        let target = match self.key.active() {
            Some(active) if self.key.is_past(&named) => {
                tracing::warn!(key = %self.key.id, "the KMS names an older version again; keeping the announced one");
                active.key_id.clone()
            }
            _ => named,
        };
        let plaintext = Secret::random(32)?;
        let mut sealed = self.key.wrap(backend, &target, plaintext.expose(), &call).await?;
        crate::limits::check_sealed(&sealed)?;
        let (back, key_id) = self.key.verify(backend, &sealed, &call).await?;
        same(plaintext.expose(), &back)?;
        sealed.key_id = key_id;
        if sealed.key_id != target && self.key.is_past(&sealed.key_id) {
            let text = "the KMS wraps with a version older than the announced one";
            return Err(Error::new(Kind::Unavailable, text).with_hint("check its replicas"));
        }
        Ok((sealed.key_id.clone(), (sealed, plaintext)))
    }

    /// Reads the files again for a caller who needs what may be in them. What has been refused is
    /// not tried once more for that: callers choose how often they come.
    async fn reread(&mut self) -> Result<(), ()> {
        let Ok(files) = self.read() else { return Ok(()) };
        let pending = self.pending.as_ref().and_then(|pending| pending.files.as_ref());
        if self.loaded.iter().chain(pending).any(|known| known.digest() == files.digest()) {
            return Ok(());
        }
        self.pending = Some(Pending { spec: self.take_pending_spec(), files: Some(files) });
        self.take_over().await
    }

    fn order(&mut self, order: Reconfigure) {
        self.options = order.options;
        self.key.health.configure(order.options);
        self.subscription.replace(order.spec.connector.files().clone());
        if self.key.active().is_none() {
            self.spec = order.spec;
            self.pending = None;
            return;
        }
        // Files that are not there yet are tried again with the settings: kubelet brings them at
        // different moments.
        let read = self.subscription.read();
        let files = self.complete_for(&order.spec.connector.clone(), read).ok();
        self.pending = Some(Pending { spec: Some(order.spec), files });
    }

    /// Reads the files, and those that they name.
    fn read(&mut self) -> Result<Files, Error> {
        let read = self.subscription.read();
        self.complete(read)
    }

    /// Adds the files that the content of others names, in the configuration to come if there is
    /// one.
    fn complete(&mut self, read: Result<Files, Error>) -> Result<Files, Error> {
        let spec = self.pending.as_ref().and_then(|pending| pending.spec.as_ref());
        let connector = spec.unwrap_or(&self.spec).connector.clone();
        self.complete_for(&connector, read)
    }

    fn complete_for(
        &mut self,
        connector: &Arc<dyn Connector>,
        mut read: Result<Files, Error>,
    ) -> Result<Files, Error> {
        // A file that names another one, which names a third, is more than anybody has.
        for _ in 0..2 {
            let wanted = match &read {
                Ok(files) => connector.all_files(files),
                // A file that is named no more must not keep the others from being read.
                Err(_) => match Files::read(connector.files().iter().map(|path| path.as_path())) {
                    Ok(files) => connector.all_files(&files),
                    Err(_) => break,
                },
            };
            if wanted == *self.subscription.paths() {
                break;
            }
            self.subscription.replace(wanted);
            read = self.subscription.read();
        }
        read
    }

    fn take_pending_spec(&mut self) -> Option<KeySpec> {
        self.pending.take().and_then(|pending| pending.spec)
    }

    /// Files that cannot be read now, a token half-written, say: what is in use stays in use.
    fn unreadable(&self, error: &Error) {
        if self.key.active().is_none() {
            return self.failed(error);
        }
        tracing::warn!(key = %self.key.id, error = %error.report(), "changed files cannot be read, the last good ones stay in use");
        self.key.metrics.reload(Outcome::Failure);
        self.key.refusal(Some(error));
    }

    fn failed(&self, error: &Error) {
        self.key.metrics.failed(error.kind());
        if self.key.health.failed(error) {
            let (key, kind, error) = (self.key.id, error.kind(), error.report());
            // What does not pass by itself is for the operator to mend.
            if kind.is_transient() {
                tracing::warn!(%key, %kind, %error, "probe of the key failed");
            } else {
                tracing::error!(%key, %kind, %error, "probe of the key failed");
            }
        }
        self.key.metrics.healthy(self.key.health.verdict().is_ok());
    }

    fn call(&self) -> Call<'static> {
        Call { uid: "probe", deadline: Instant::now() + self.options.timeout }
    }
}

fn another_key() -> Error {
    Error::new(Kind::KeyState, "this is another key than the one in use: it cannot read its data")
        .with_hint(
            "bring the old KEK back, or give the other one a new key id; nothing was changed",
        )
}

fn canary_failed(error: Error) -> Error {
    if error.kind().is_transient() {
        return error;
    }
    Error::new(Kind::KeyState, "the canary cannot be decrypted")
        .with_source(error)
        .with_hint("this is not the KEK that the canary was made with: check the kek settings")
}
