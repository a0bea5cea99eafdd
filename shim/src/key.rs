//! One key of the shim: its way upstream, its health, and the key_id that may be announced for it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use sidekey_core::config::{KeyNumber, ProbeOptions};
use sidekey_core::{Call, Error, Health, KeyId, Kind, Sealed, Secret, jitter};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::config::{Mode, UpstreamSpec};
use crate::upstream::Upstream;

/// The first and the longest wait after a failed probe. It stays short, because it delays the
/// return of a write key, and because plugins answer Status from memory.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const LAST_BACKOFF: Duration = Duration::from_secs(5);

/// A key as the router sees it.
pub(crate) struct Key {
    pub(crate) id: KeyNumber,
    pub(crate) spec: UpstreamSpec,
    pub(crate) upstream: Upstream,
    pub(crate) health: Health,
    /// Brings the next probe forward.
    pub(crate) suspicion: Arc<Notify>,
    mode: Mode,
    announced: ArcSwapOption<Announced>,
    /// Key_ids that were announced and left behind: none may come back.
    past: Mutex<HashSet<KeyId>>,
    /// Wrapped under the announced key_id: proof that a new one is the same KEK's.
    sample: Mutex<Option<(Sealed, Secret)>>,
    /// The provider's key_id at which the key was found to be the configured one.
    verified: Mutex<Option<KeyId>>,
    prober: Mutex<Option<AbortHandle>>,
}

/// A proven key_id: the provider's own, and as kube-apiserver sees it.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) inner: KeyId,
    pub(crate) outer: KeyId,
}

impl Key {
    pub(crate) fn new(
        id: KeyNumber,
        spec: UpstreamSpec,
        upstream: Upstream,
        mode: Mode,
        options: ProbeOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            spec,
            upstream,
            health: Health::new(options),
            suspicion: Arc::default(),
            mode,
            announced: ArcSwapOption::empty(),
            past: Mutex::default(),
            sample: Mutex::default(),
            verified: Mutex::default(),
            prober: Mutex::default(),
        })
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
            None => lock(&self.verified).as_ref().and_then(|inner| self.outer(inner).ok()),
        }
    }

    /// Whether the last probe succeeded.
    pub(crate) fn is_up(&self) -> bool {
        self.upstream.is_up() && self.health.was_proven()
    }

    /// Proves that this is the key that was configured: it can read its canary.
    pub(crate) async fn check_canary(&self, call: &Call<'_>) -> Result<(), Error> {
        let Some(canary) = &self.spec.canary else { return Ok(()) };
        let plaintext = self.upstream.decrypt(&canary.sealed, call).await.map_err(|error| {
            let text = format!("key {} cannot read its canary", self.id);
            match error.kind() {
                kind if kind.is_transient() => error,
                Kind::KeyState | Kind::Corrupt | Kind::Invalid => Error::new(Kind::KeyState, text)
                    .with_source(error)
                    .with_hint("another KEK than the configured one is behind this endpoint"),
                kind => Error::new(kind, text).with_source(error),
            }
        })?;
        canary.verify(&secret(&plaintext))
    }

    /// What a key must do before it may write: answer Status, wrap and unwrap, read its canary
    /// and what it wrapped before. Then its key_id is announced.
    pub(crate) async fn prove_writer(&self, call: &Call<'_>) -> Result<(), Error> {
        let before = self.announced();
        let wanted = before.as_ref().map(|announced| &announced.inner);
        let key_id = self.upstream.status(wanted, call).await?;
        if before.as_ref().is_some_and(|announced| announced.inner == key_id) {
            return Ok(());
        }
        if lock(&self.past).contains(&key_id) {
            let text = format!("key {} has gone back to an older key_id", self.id);
            return Err(
                Error::new(Kind::Unavailable, text).with_hint("check the provider's replicas")
            );
        }
        self.check_canary(call).await?;
        self.check_sample(call).await?;
        let sample = self.round_trip(&key_id, call).await?;
        self.announce(key_id, sample)
    }

    /// What a key must do to read: answer Status, and read its canary whenever its key_id is
    /// another one than before. A provider may complain because it cannot write: where there is a
    /// canary, that alone decides.
    pub(crate) async fn prove_reader(&self, call: &Call<'_>) -> Result<(), Error> {
        let key_id = match self.upstream.status(None, call).await {
            Ok(key_id) => key_id,
            Err(_) if self.spec.canary.is_some() => return self.check_canary(call).await,
            Err(error) => return Err(error),
        };
        if lock(&self.verified).as_ref() == Some(&key_id) {
            return Ok(());
        }
        self.check_canary(call).await?;
        self.check_sample(call).await?;
        *lock(&self.verified) = Some(key_id);
        Ok(())
    }

    /// Unwraps.
    pub(crate) async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Bytes, Error> {
        let result = self.upstream.decrypt(sealed, call).await;
        if let Err(error) = &result
            && error.kind().concerns_health()
        {
            self.suspicion.notify_one();
        }
        result
    }

    /// Wraps under the announced key_id, and answers only what can be unwrapped again.
    pub(crate) async fn encrypt(
        &self,
        plaintext: &Bytes,
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let announced = self.announced().ok_or_else(|| self.not_proven())?;
        let result = self.wrap(&announced.inner, plaintext, call).await;
        let mut sealed = result.inspect_err(|_| self.suspicion.notify_one())?;
        sealed.key_id = announced.outer.clone();
        Ok(sealed)
    }

    /// Keeps health up to date until dropped. `writes` says whether the key has the write role now.
    pub(crate) fn watch(
        self: &Arc<Self>,
        options: ProbeOptions,
        writes: impl Fn(KeyNumber) -> bool + Send + 'static,
    ) {
        let (key, suspicion) = (Arc::downgrade(self), self.suspicion.clone());
        let task = tokio::spawn(async move {
            let mut backoff = FIRST_BACKOFF;
            loop {
                let Some(strong) = key.upgrade() else { return };
                let healthy = strong.probe(options, writes(strong.id)).await;
                // A key that was removed must be able to go while we wait.
                drop(strong);
                let pause = if healthy { options.interval } else { backoff.min(options.interval) };
                backoff = if healthy { FIRST_BACKOFF } else { (backoff * 2).min(LAST_BACKOFF) };
                tokio::select! {
                    () = tokio::time::sleep(jitter(pause)) => {}
                    // A storm of failures must not become a storm of probes.
                    () = suspicion.notified() => tokio::time::sleep(FIRST_BACKOFF).await,
                }
            }
        });
        if let Some(old) = lock(&self.prober).replace(task.abort_handle()) {
            old.abort();
        }
    }

    async fn probe(&self, options: ProbeOptions, writes: bool) -> bool {
        let call = Call { uid: "shim-probe", deadline: Instant::now() + options.timeout };
        let result =
            if writes { self.prove_writer(&call).await } else { self.prove_reader(&call).await };
        match result {
            Ok(()) => {
                self.upstream.set_down(false);
                if self.health.proven() {
                    tracing::info!(key = %self.id, "key is healthy");
                }
                true
            }
            Err(error) => {
                self.upstream.set_down(true);
                // Every loss coasts: the provider may be restarting, and an error here makes
                // kube-apiserver unready.
                let error = Error::new(Kind::Unavailable, error.report());
                if self.health.failed(&error) {
                    tracing::warn!(key = %self.id, error = %error.report(), "key cannot be reached");
                }
                false
            }
        }
    }

    async fn check_sample(&self, call: &Call<'_>) -> Result<(), Error> {
        let Some((sealed, plaintext)) = lock(&self.sample).clone() else { return Ok(()) };
        let another = || {
            let text = format!(
                "key {} cannot read what it wrapped before: it is another key now",
                self.id
            );
            Error::new(Kind::KeyState, text)
                .with_hint("bring the old KEK back, or give the other one a new id")
        };
        match self.upstream.decrypt(&sealed, call).await {
            Ok(back) if secret(&back) == plaintext => Ok(()),
            Err(error) if error.kind().is_transient() => Err(error),
            Err(error) => Err(another().with_source(error)),
            Ok(_) => Err(another()),
        }
    }

    async fn round_trip(&self, key_id: &KeyId, call: &Call<'_>) -> Result<(Sealed, Secret), Error> {
        let plaintext = Secret::random(32)?;
        let bytes = Bytes::copy_from_slice(plaintext.expose());
        Ok((self.wrap(key_id, &bytes, call).await?, plaintext))
    }

    /// Wraps under `key_id` and unwraps again; the answer carries the provider's own key_id.
    async fn wrap(
        &self,
        key_id: &KeyId,
        plaintext: &Bytes,
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let sealed = self.upstream.encrypt(plaintext, call).await?;
        if sealed.key_id != *key_id {
            let text =
                format!("key {} wrapped with another key_id than the announced one", self.id);
            return Err(Error::new(Kind::Unavailable, text)
                .with_hint("a rotation is being taken over; the caller will ask again"));
        }
        let back = self.upstream.decrypt(&sealed, call).await?;
        if secret(&back) != secret(plaintext) {
            let text = format!("key {} unwrapped something else than what it had wrapped", self.id);
            return Err(
                Error::new(Kind::Bug, text).with_hint("nothing was stored; look at the provider")
            );
        }
        Ok(sealed)
    }

    fn announce(&self, inner: KeyId, sample: (Sealed, Secret)) -> Result<(), Error> {
        let outer = self.outer(&inner)?;
        lock(&self.past).insert(inner.clone());
        *lock(&self.sample) = Some(sample);
        tracing::info!(key = %self.id, key_id_hash = outer.hash(), "key_id is proven");
        self.announced.store(Some(Arc::new(Announced { inner, outer })));
        Ok(())
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
        let why = self
            .health
            .verdict()
            .err()
            .map_or_else(String::new, |trouble| format!(": {}", trouble.text));
        Error::new(Kind::Unavailable, format!("write key {} has not been proven yet{why}", self.id))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if let Ok(Some(prober)) = self.prober.get_mut().map(Option::take) {
            prober.abort();
        }
    }
}

fn secret(bytes: &[u8]) -> Secret {
    Secret::new(bytes.to_vec())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
