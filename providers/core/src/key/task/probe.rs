//! Probes: what a client must do to be believed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{FIRST_BACKOFF, KeyTask};
use crate::config::ENCRYPT_EVERY;
use crate::key::Active;
use crate::key::canary::Canary;
use crate::key::health::Trouble;
use crate::key::proof::{self, again_if_mended, counted, encrypt_verified, within};
use crate::metrics::BackendCall;
use crate::provider::backend::Backend;
use crate::{Error, KeyId, Kind, Secret};

/// How often the KMS is asked what it knows of a key: in intervals, and at the least.
const DESCRIBE_EVERY: (u32, Duration) = (120, Duration::from_secs(3600));

impl KeyTask {
    /// Proves the client in use again, and follows the KMS when it has rotated.
    pub(super) async fn probe(&mut self, active: &Arc<Active>, suspected: bool) -> Result<(), ()> {
        let encrypt = self.should_encrypt()
            && (!active.encrypts
                || self.key.encrypt_suspected.swap(false, Ordering::Relaxed)
                || self.is_due(self.encrypted, ENCRYPT_EVERY));
        // Somebody's Decrypt may have shown just now that the key works.
        let fresh = |age: Duration| age < self.times().interval / 2;
        let describe = !active.encrypts
            && (active.key_id.is_none() || self.is_due(self.described, DESCRIBE_EVERY));
        let unread = self.should_encrypt() && self.is_due(self.sampled, ENCRYPT_EVERY);
        let needed = encrypt || suspected || describe || unread || self.key.health.is_failing();
        if !needed && self.key.health.proof_age().is_some_and(fresh) {
            return Ok(());
        }
        let deadline = Instant::now() + self.options.timeout;
        let result = match encrypt {
            true => within(deadline, self.probe_encrypt(active, suspected || unread)).await,
            false => within(deadline, self.probe_decrypt(active)).await,
        };
        // While it cannot encrypt and should, or its newest version is out of use, a Decrypt of
        // something older is no proof.
        self.key.set_decrypt_proves(match &result {
            Ok(()) => true,
            Err(error) => !encrypt && error.kind() != Kind::KeyState,
        });
        self.key.metrics.ends(&*active.backend);
        match result {
            Ok(()) => {
                if !encrypt {
                    self.sampled = Some(Instant::now());
                }
                self.key.proven();
                Ok(())
            }
            Err(error) => {
                if encrypt {
                    self.encrypted = None;
                }
                // No request proves a key that has become another one: only the sample does.
                self.sampled = self.sampled.filter(|_| error.kind() != Kind::KeyState);
                self.failed(&error);
                Err(())
            }
        }
    }

    /// Encrypts and decrypts; a new version is announced once the old data is found readable.
    async fn probe_encrypt(&mut self, active: &Arc<Active>, doubted: bool) -> Result<(), Error> {
        let backend = &active.backend;
        let describe = active.key_id.is_none() || self.is_due(self.described, DESCRIBE_EVERY);
        let (key_id, sample) = self.round_trip(backend, describe).await?;
        let now = Some(Instant::now());
        let moved = active.key_id.as_ref() != Some(&key_id);
        // The first time the canary says whether this is the key that was configured. A key that was
        // deleted and made anew looks like a rotation, or just like the old one, but reads nothing.
        if moved || doubted || !active.encrypts || self.key.health.is_failing() {
            self.same_kek(backend, self.spec.canary.as_ref()).await?;
            self.sampled = now;
            // What was just read, by whomever it was written, need not be sound for ever.
            *self.key.sample.lock() = None;
        }
        if moved || !active.encrypts {
            let (key, key_id_hash) = (self.key.id, key_id.hash());
            match active.encrypts {
                true => tracing::info!(%key, key_id_hash, "the KMS has rotated the key"),
                false => {
                    let canary = self.spec.canary.is_some();
                    tracing::info!(%key, key_id_hash, canary, "key is served");
                }
            }
            self.key.activate(backend.clone(), Some(key_id), true);
        }
        self.keep_sample(sample);
        self.encrypted = now;
        if describe {
            self.described = now;
        }
        Ok(())
    }

    /// Decrypts what the key has encrypted before. A key with nothing to decrypt is asked what it
    /// is.
    async fn probe_decrypt(&mut self, active: &Arc<Active>) -> Result<(), Error> {
        let backend = &active.backend;
        let canary = self.spec.canary.clone().filter(|_| !self.should_encrypt());
        let known = canary.or_else(|| self.sample());
        if let Some(known) = &known {
            // What does not authenticate was encrypted by another key: this one knows its own.
            self.reads(backend, known).await.map_err(|error| match error.kind() {
                Kind::Corrupt | Kind::Invalid => another_key().with_source(error),
                _ => error,
            })?;
        }
        if !active.encrypts && (known.is_none() || self.is_due(self.described, DESCRIBE_EVERY)) {
            let named = self.describe(backend).await;
            if !matches!(&named, Err(error) if error.kind().is_transient()) {
                self.described = Some(Instant::now());
            }
            // Who can decrypt need not be allowed to ask.
            let named = if known.is_some() { named.ok() } else { Some(named?) };
            // A replica that lags behind names an older version again.
            let named = named.filter(|named| !self.key.is_past(named));
            if active.key_id.is_none() {
                let key_id_hash = named.as_ref().map(KeyId::hash);
                tracing::info!(key = %self.key.id, key_id_hash, canary = known.is_some(),
                    "key is served for reading");
            }
            if named.is_some() && named != active.key_id {
                self.key.activate(backend.clone(), named, false);
            }
        }
        Ok(())
    }

    /// A request needs to encrypt with a key that has not proven that it can.
    pub(super) async fn encrypts_on_request(&mut self) -> Result<(), Error> {
        let Some(active) = self.key.active() else {
            return Err(Error::new(Kind::Unavailable, "the key is not connected"));
        };
        if active.encrypts {
            return Ok(());
        }
        // Callers choose how often they come.
        if let Some((at, trouble)) = &self.encrypt_refused
            && at.elapsed() < FIRST_BACKOFF
        {
            return Err(Error::new(trouble.kind, trouble.text.clone()));
        }
        let deadline = Instant::now() + self.options.timeout;
        if let Err(error) = within(deadline, self.probe_encrypt(&active, false)).await {
            self.encrypt_refused = Some((Instant::now(), Trouble::new(&error)));
            return Err(error);
        }
        self.asked_to_encrypt = true;
        self.key.health.configure(self.times());
        self.key.set_decrypt_proves(true);
        self.key.proven();
        Ok(())
    }

    /// What the KMS says that the version is.
    pub(super) async fn describe(&self, backend: &Arc<dyn Backend>) -> Result<KeyId, Error> {
        counted(Some(&self.key.metrics.probes), BackendCall::KeyId, backend.key_id()).await
    }

    /// Encrypts and decrypts 32 random bytes under the version that the KMS takes now.
    pub(super) async fn round_trip(
        &self,
        backend: &Arc<dyn Backend>,
        describe: bool,
    ) -> Result<(KeyId, Canary), Error> {
        let call = self.call();
        let announced = self.key.active().and_then(|active| active.key_id.clone());
        let target = match (describe, announced) {
            (false, Some(announced)) => announced,
            (_, announced) => match (self.describe(backend).await?, announced) {
                (named, Some(announced)) if self.key.is_past(&named) => {
                    tracing::warn!(key = %self.key.id, "the KMS names an older version again; keeping the announced one");
                    announced
                }
                (named, _) => named,
            },
        };
        let plaintext = Secret::random(32)?;
        let metrics = Some(&self.key.metrics.probes);
        let encrypt = || {
            let encrypting = backend.encrypt_current(&target, plaintext.expose(), &call);
            encrypt_verified(&**backend, encrypting, &plaintext, &call, metrics)
        };
        let sealed = again_if_mended(encrypt).await?;
        let key_id = sealed.key_id.clone();
        if key_id != target && self.key.is_past(&key_id) {
            let text = "the KMS encrypts with a version older than the announced one";
            return Err(Error::new(Kind::Unavailable, text).with_hint("check its replicas"));
        }
        Ok((key_id, Canary::new(sealed, &plaintext)))
    }

    /// Whether `backend` can read what was encrypted before: the canary, and the sample.
    pub(super) async fn same_kek(
        &self,
        backend: &Arc<dyn Backend>,
        canary: Option<&Canary>,
    ) -> Result<(), Error> {
        if let Some(canary) = canary {
            match self.reads(backend, canary).await {
                Err(error) if is_of_another_key(&error) && self.has_read(canary) => {
                    tracing::warn!(key = %self.key.id, error = error.report(),
                        "the canary cannot be decrypted any more, though the key has read it: its version may be retired; publish a new one");
                }
                read => read.map_err(canary_failed)?,
            }
        }
        let Some(sample) = self.sample() else { return Ok(()) };
        self.reads(backend, &sample).await.map_err(|error| match is_of_another_key(&error) {
            true => another_key().with_source(error),
            false => error,
        })
    }

    /// Whether the sample stands for this canary: a key encrypts only after it has read its canary,
    /// and its sample is what it encrypted.
    fn has_read(&self, canary: &Canary) -> bool {
        let encrypts = self.key.active().is_some_and(|active| active.encrypts);
        encrypts && self.spec.canary.as_ref() == Some(canary) && self.sample().is_some()
    }

    async fn reads(&self, backend: &Arc<dyn Backend>, canary: &Canary) -> Result<(), Error> {
        proof::reads(&**backend, canary, &self.call(), Some(&self.key.metrics.probes)).await
    }
}

fn another_key() -> Error {
    Error::new(Kind::KeyState, "this is another key than the one in use: it cannot read its data")
        .with_hint(
            "bring the old KEK back, or give the other one a new key id; nothing was changed",
        )
}

fn is_of_another_key(error: &Error) -> bool {
    matches!(error.kind(), Kind::KeyState | Kind::Corrupt | Kind::Invalid)
}

fn canary_failed(error: Error) -> Error {
    if !is_of_another_key(&error) {
        return error;
    }
    Error::new(Kind::KeyState, "the canary cannot be decrypted")
        .with_source(error)
        .with_hint("this is not the KEK that the canary was made with: check the kek settings")
}
