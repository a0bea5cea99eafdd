//! KMS v2 on the transit engine of HashiCorp Vault and OpenBao, community and enterprise.
//!
//! It is for those whose KEK lives in Vault: it wraps and unwraps there, follows the key when Vault
//! rotates it, and keeps its own login alive. It refuses to make a key, to use a key that cannot
//! bind associated data, to guess whose a ciphertext is, and to verify less of a server than
//! everything.
//!
//! The one invariant: **what it announces is what Vault has**. A key_id names one version of one key
//! by the moment at which Vault made it; every Encrypt asks for just that version, and
//! its verification unwraps, in the same call, a witness that was wrapped when the key was loaded.
//! A key that was deleted and made anew between two calls fails that, so nothing is ever stored
//! under the name of a key that is gone.
//!
//! # What is written
//! Ciphertexts are bound to their key_id by associated data. Where `associatedData` is off, which is
//! what the flags of vault-kubernetes-kms mean, nothing binds them: they are in the form of that
//! plugin, which can read them, and an annotation says so. What either setting wrote is read under
//! both; nothing is tried.
//!
//! # Why not vaultrs
//! vaultrs 0.8 was looked into and is not used: its `Client::http()` returns reqwest's own type, so
//! that no other transport can be put under it. With it there is one address, no fail-over inside
//! the caller's time, no say in where a redirect carries the token, trust that is one for the process,
//! and no `batch_input`, which the witness needs. The calls are those of Vault's API, over
//! [`sidekey_rest`].
//!
//! # How it hangs together
//! ```text
//! Vault (one key) ── transit (calls) ── session (token, shared) ── sidekey_rest (servers, leases)
//!       └── lineage (key_id)                ├── auth (logins)
//!                                           └── api (codes, redirects)
//! ```

mod api;
mod auth;
mod config;
mod dropin;
mod lineage;
mod refusal;
mod rotate;
mod session;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transit;

use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use sidekey_core::config::Problems;
use sidekey_core::{Call, Deletion, Error, Files, KeyId, Kind, Provider, Sealed, Secret};
use tokio::time::Instant;

pub use config::Config;

use config::Kek;
use dropin::data::{annotations, is_bound};
use lineage::{Lineage, Named, version_of};
use session::Session;
use transit::{Bound, Transit};

/// For what no caller waits for: the runtime has a limit of its own for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Callers choose which versions they name: the key is not looked at for them more often.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// One key of a transit engine.
pub struct Vault {
    session: Arc<Session>,
    transit: Transit,
    lineage: Mutex<Arc<Lineage>>,
    /// Wrapped by this very key: who cannot unwrap it is another one. None until something was:
    /// a key that may not encrypt has none.
    witness: Mutex<Option<Witness>>,
    /// Looks at the key; held by who looks.
    looks: tokio::sync::Mutex<Looks>,
    /// Whether what is written is bound to its key_id.
    binds: bool,
    legacy: bool,
    /// What the key was called before.
    former: Vec<Kek>,
}

/// When the key was looked at.
struct Looks {
    /// When the last look began, whatever came of it.
    last: Instant,
    /// When the last one began that Vault answered: one that was broken off tells nothing.
    answered: Instant,
}

/// A ciphertext that proves the key.
#[derive(Clone)]
struct Witness {
    ciphertext: Bytes,
    /// What it is bound to, if it is.
    key_id: Option<KeyId>,
    version: u32,
}

impl Provider for Vault {
    const NAME: &'static str = "vault";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        config.check(problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.files()
    }

    async fn connect(
        config: &Config,
        files: &Files,
        previous: Option<&Self>,
    ) -> Result<Self, Error> {
        let kek = config.kek().ok_or_else(|| Error::new(Kind::Config, "no key is set"))?;
        let previous = previous.filter(|previous| *previous.transit.kek() == kek);
        let session = Session::shared(config, files)?;
        let transit = Transit::new(&kek)?;
        let began = Instant::now();
        let deadline = began + PATIENCE;
        let answer = session.ask(transit.look(), deadline).await?;
        let lineage = transit.seen(&answer)?;
        let witness = match previous {
            Some(previous) => {
                previous.check_lineage(&lineage)?;
                held(&previous.witness).clone()
            }
            None => None,
        };
        Ok(Self {
            session,
            transit,
            lineage: Mutex::new(Arc::new(lineage)),
            witness: Mutex::new(witness),
            looks: tokio::sync::Mutex::new(Looks { last: began, answered: began }),
            binds: config.binds(),
            legacy: config.reads_legacy(),
            former: config.former_keks(),
        })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        let mut looks = self.looks.lock().await;
        self.look_now(&mut looks, Instant::now() + PATIENCE).await?;
        self.lineage().key_id()
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        match self.encrypt_under(key_id, true, plaintext, call).await? {
            (sealed, Ordering::Equal) => Ok(sealed),
            _ => {
                let text = format!("Vault used another version than that of {key_id} to encrypt");
                Err(Error::new(Kind::Unavailable, text)
                    .with_hint("see whether it is Vault that answers; nothing was stored"))
            }
        }
    }

    /// Names no version. If Vault has a newer one, what it wrapped is bound to the wrong key_id:
    /// it is thrown away, and wrapped once more under the right one.
    async fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        match self.encrypt_under(known, false, plaintext, call).await? {
            (sealed, Ordering::Equal) => Ok(sealed),
            // A replica lags behind, or an old backup was restored: what is announced stays.
            (_, Ordering::Less) => self.encrypt(known, plaintext, call).await,
            (_, Ordering::Greater) => {
                let newer = self.look(call.deadline).await?.key_id()?;
                self.encrypt(&newer, plaintext, call).await
            }
        }
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let (bound, version) = self.bound(sealed, call.deadline).await?;
        let answer = self.session.attempt(self.transit.decrypt(&bound), call.deadline).await?;
        if !answer.status.is_success() {
            return Err(self.why_not_decrypted(&answer, version, call.deadline).await);
        }
        self.transit.decrypted(&answer)
    }

    /// Unwraps it together with the witness, in one call: if that fails, the key is another one.
    async fn verify(&self, sealed: &Sealed, call: &Call<'_>) -> Result<(Secret, KeyId), Error> {
        let (bound, version) = self.bound(sealed, call.deadline).await?;
        let Some(witness) = held(&self.witness).clone() else {
            let plaintext = self.decrypt(sealed, call).await?;
            // Nothing proves yet that the key is still the one that was looked at: look again.
            self.look(call.deadline).await?;
            self.keep_witness(sealed, version);
            return Ok((plaintext, sealed.key_id.clone()));
        };
        let request = self.transit.decrypt_both(&bound, &witness.bound());
        let answer = self.session.attempt(request, call.deadline).await?;
        // A batch of which a part failed is answered with 400 and with what did not.
        let both = match answer.status.as_u16() {
            200 | 400 => self.transit.decrypted_both(&answer).ok(),
            _ => None,
        };
        let Some((Some(plaintext), proven)) = both else {
            return Err(self.why_not_decrypted(&answer, version, call.deadline).await);
        };
        // Old versions may have been shut off; what is there must be the same key all the same.
        if !proven && self.look(call.deadline).await?.min_decryption <= witness.version {
            return Err(self.replaced());
        }
        self.keep_witness(sealed, version);
        Ok((plaintext, sealed.key_id.clone()))
    }

    async fn close(&self) {
        self.session.close().await;
    }

    fn expiry(&self) -> Option<SystemTime> {
        self.session.expiry()
    }

    fn deletion(&self) -> Deletion {
        Deletion { at: None, allowed: Some(self.lineage().deletion_allowed) }
    }

    fn note(&self) -> Option<String> {
        let (version, key) = (self.lineage().latest, self.transit.kek().shown());
        Some(format!("version {version} of {key} at {}", self.session.note()))
    }
}

impl Vault {
    fn lineage(&self) -> Arc<Lineage> {
        held(&self.lineage).clone()
    }

    fn keep_witness(&self, sealed: &Sealed, version: u32) {
        let ciphertext = sealed.ciphertext.clone();
        let key_id = is_bound(sealed).then(|| sealed.key_id.clone());
        *held(&self.witness) = Some(Witness { ciphertext, key_id, version });
    }

    /// Wraps under `key_id`, and says how the version that Vault used compares with its own; only
    /// if `pinned` is Vault told which one to use.
    async fn encrypt_under(
        &self,
        key_id: &KeyId,
        pinned: bool,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<(Sealed, Ordering), Error> {
        let Some(Named::Own(version)) = Named::read(key_id) else {
            return Err(Error::new(Kind::Bug, format!("{key_id} is no key_id of this provider")));
        };
        let (bound, pinned) = (self.binds.then_some(key_id), pinned.then_some(version));
        let request = self.transit.encrypt(bound, pinned, plaintext);
        let answer = self.session.attempt(request, call.deadline).await?;
        if !answer.status.is_success() {
            return Err(self.why_not_encrypted(&answer, version, call.deadline).await);
        }
        let (ciphertext, used) = self.transit.encrypted(&answer)?;
        let annotations = annotations(self.binds);
        let sealed = Sealed { key_id: key_id.clone(), ciphertext, annotations };
        Ok((sealed, used.cmp(&version)))
    }

    /// Looks at the key, and says what Vault says. It must be the key that was there before.
    async fn look(&self, deadline: Instant) -> Result<Arc<Lineage>, Error> {
        let answer = self.session.ask(self.transit.look(), deadline).await?;
        let new = Arc::new(self.transit.seen(&answer)?);
        self.check_lineage(&new)?;
        let mut current = held(&self.lineage);
        // A replica that lags behind knows less than we do.
        if new.latest >= current.latest {
            *current = new.clone();
        }
        Ok(new)
    }

    /// What is known of the key; looked at anew for a version that is not known. Whoever asks for
    /// one gets a look that began after it asked, and everybody who asks at once the same.
    async fn lineage_with(&self, version: u32, deadline: Instant) -> Result<Arc<Lineage>, Error> {
        let asked = Instant::now();
        if self.lineage().knows(version) {
            return Ok(self.lineage());
        }
        let mut looks = self.looks.lock().await;
        if !self.lineage().knows(version) && looks.answered <= asked {
            tokio::time::sleep_until(looks.last + LOOK_PAUSE).await;
            self.look_now(&mut looks, deadline).await?;
        }
        Ok(self.lineage())
    }

    async fn look_now(&self, looks: &mut Looks, deadline: Instant) -> Result<(), Error> {
        let began = Instant::now();
        looks.last = began;
        self.look(deadline).await?;
        looks.answered = began;
        Ok(())
    }

    fn check_lineage(&self, new: &Lineage) -> Result<(), Error> {
        if new.continues(&self.lineage()) {
            return Ok(());
        }
        Err(self.replaced())
    }

    fn replaced(&self) -> Error {
        let text = format!("key {} was deleted and made anew", self.transit.kek().shown());
        Error::new(Kind::KeyState, text).with_hint(
            "it cannot read the data of the old one: restore that from a backup, or give this one a new key id",
        )
    }

    /// What to ask Vault for, and the version that it names: nothing that does not fit is sent.
    async fn bound<'a>(
        &self,
        sealed: &'a Sealed,
        deadline: Instant,
    ) -> Result<(Bound<'a>, u32), Error> {
        let foreign =
            || Error::new(Kind::Corrupt, "the ciphertext was not made by a transit engine");
        let version = version_of(&sealed.ciphertext).ok_or_else(foreign)?;
        let ciphertext = std::str::from_utf8(&sealed.ciphertext).map_err(|_| foreign())?;
        let own = self.is_ours(sealed, version, deadline).await?;
        let bound = own && is_bound(sealed);
        Ok((Bound::new(ciphertext, bound.then_some(&sealed.key_id)), version))
    }

    /// Whether the data is ours, and not of vault-kubernetes-kms. Nothing is tried: a key_id that
    /// does not fit the key or the ciphertext is refused.
    async fn is_ours(
        &self,
        sealed: &Sealed,
        version: u32,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let key_id = &sealed.key_id;
        let unknown = |why: &str| Error::new(Kind::KeyState, format!("{key_id}: {why}"));
        let named = Named::read(key_id)
            .ok_or_else(|| unknown("is not a key_id of sidekey-vault or vault-kubernetes-kms"))?;
        if named == Named::Own(version) {
            let lineage = self.lineage_with(version, deadline).await?;
            if lineage.is_own(key_id, version, &self.former) {
                return match self.legacy || is_bound(sealed) {
                    true => Ok(true),
                    false => Err(unknown("data without associated data is not read")
                        .with_hint("set settings.legacyData: true")),
                };
            }
            self.usable(&lineage, version)?;
            return Err(unknown("belongs to another key, or to a former one of this name")
                .with_hint("if the key, its mount or its namespace was renamed, name the old one in settings.formerKeks; else restore the key that wrote it, as a key of its own"));
        }
        let Named::Legacy(number) = named else {
            let text = format!("{key_id} stands beside a ciphertext of version {version}");
            return Err(Error::new(Kind::Corrupt, text));
        };
        self.check_legacy(key_id, number, version, deadline).await.map(|()| false)
    }
}

impl Witness {
    fn bound(&self) -> Bound<'_> {
        let ciphertext = std::str::from_utf8(&self.ciphertext).unwrap_or_default();
        Bound::new(ciphertext, self.key_id.as_ref())
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
