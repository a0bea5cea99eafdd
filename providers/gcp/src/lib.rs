//! KMS v2 on Google Cloud KMS: symmetric keys, in software, in HSMs and behind Cloud EKM.
//!
//! It wraps with `cryptoKeys.encrypt`, naming the version that was announced, and unwraps with
//! `cryptoKeys.decrypt`. What it sends and gets is summed with CRC32C on both sides. It is a drop-in
//! for GoogleCloudPlatform/k8s-cloudkms-plugin: it takes its flags, reads what it wrote, and writes
//! what it reads.
//!
//! It refuses to make or rotate a key, to use a key that the configuration does not name, whatever a
//! key_id from etcd says, and to take an answer whose sums or names are not right.
//!
//! The one invariant: **a key_id names the version that has wrapped the data**, as Cloud KMS itself
//! has reported it. Names of keys are never given again there, also after a key was deleted, so that
//! a name and a number are enough to tell one version from all others for ever.
//!
//! # Rotation
//! Which version is the primary one is told by two: the description of the key, at once, and the
//! encryption itself, hours later at worst. A probe that names no version learns of a rotation. The
//! description then decides; while the two differ, the announced version is asked for by its number.
//!
//! # No crate of Google's
//! google-cloud-kms takes no other HTTP client, and so trusts by the system's store alone. These are
//! three calls, over [`sidekey_rest`].

mod adc;
mod client;
mod codes;
mod config;
mod dropin;
mod name;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::Value;
use sidekey_core::config::Problems;
use sidekey_core::{Call, Deletion, Error, Files, KeyId, Kind, Provider, Sealed, Secret};
use sidekey_rest::naming::{Version, scope};
use tokio::time::Instant;

pub use config::Config;

use client::{Account, Client};
use codes::odd;
use name::{Named, number, version_of};

/// For what no caller waits for.
const PATIENCE: Duration = Duration::from_secs(10);
/// On what is bound to its key_id by associated data; its value is of no account.
const BOUND: &str = "bound.gcp.sidekey.dev";
const OTHER: &str = "serve that one too, or name it in settings.alsoReads if the plugin wrote it";

/// One key of Cloud KMS.
pub struct Gcp {
    client: Client,
    key: String,
    scope: String,
    settings: config::Settings,
    /// When the primary version is destroyed, if that is planned.
    destroyed: Mutex<Option<SystemTime>>,
}

impl Provider for Gcp {
    const NAME: &'static str = "gcp";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        config.check(problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.files()
    }

    fn named_files(config: &Config, files: &Files) -> Vec<PathBuf> {
        adc::named_files(config, files)
    }

    /// Nothing is asked: a key that may only decrypt is as good.
    async fn connect(config: &Config, files: &Files, _: Option<&Self>) -> Result<Self, Error> {
        let key = config.kek.key.clone();
        let key = key.ok_or_else(|| Error::new(Kind::Config, "kek.key is not set"))?;
        let (client, scope) = (Client::new(config, files)?, scope(&[&key]));
        let (settings, destroyed) = (config.settings.clone(), Mutex::default());
        Ok(Self { client, key, scope, settings, destroyed })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        let deadline = Instant::now() + PATIENCE;
        match self.primary(deadline).await {
            // The role that the replaced plugin needs does not let us look: encryption tells, too.
            Err(error) if error.kind() == Kind::Denied => {
                let sealed = self.seal(&self.key, &self.name(1)?, b"version?", deadline).await?;
                self.name(sealed.0)
            }
            primary => self.name(primary?),
        }
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let bug = || Error::new(Kind::Bug, format!("{key_id} is no key_id of this key"));
        let version = version_of(&self.key, self.version(key_id).ok_or_else(bug)?);
        let (used, sealed) = self.seal(&version, key_id, plaintext, call.deadline).await?;
        let other = || odd("encrypt", &version, "another version was used");
        if Some(used) == self.version(key_id) { Ok(sealed) } else { Err(other()) }
    }

    /// Names no version. What another one than the known has wrapped is bound to the wrong key_id: it
    /// is thrown away, and wrapped once more.
    async fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let (used, sealed) = self.seal(&self.key, known, plaintext, call.deadline).await?;
        match self.version(known).cmp(&Some(used)) {
            Ordering::Equal => Ok(sealed),
            // It has not heard of a rotation yet.
            Ordering::Greater => self.encrypt(known, plaintext, call).await,
            Ordering::Less => self.encrypt(&self.key_id().await?, plaintext, call).await,
        }
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let key_id = &sealed.key_id;
        let ours = self.own(key_id).map(|_| self.key.as_str());
        let key = ours.or_else(|| self.adopted(key_id)).ok_or_else(|| {
            Error::new(Kind::KeyState, format!("{key_id} is of another key than {}", self.key))
                .with_hint(OTHER)
        })?;
        // The annotation may be forged: what was wrapped in the other way does not authenticate.
        let bound = sealed.annotations.contains_key(BOUND).then_some(key_id.as_str());
        self.client.decrypt(key, bound, &sealed.ciphertext, call.deadline).await
    }

    fn expiry(&self) -> Option<SystemTime> {
        self.client.account.lease.expiry()
    }

    fn deletion(&self) -> Deletion {
        let at = *self.destroyed.lock().unwrap_or_else(PoisonError::into_inner);
        Deletion { at, allowed: None }
    }

    fn note(&self) -> Option<String> {
        let Account { address, lease, .. } = &*self.client.account;
        Some(format!("{} at {address} as {}", self.key, lease.source().name))
    }
}

impl Gcp {
    /// The key_id of one version.
    fn name(&self, version: u64) -> Result<KeyId, Error> {
        if let Some(format) = &self.settings.plugin_format {
            return format.key_id(&version_of(&self.key, version));
        }
        Version { scope: self.scope.clone(), version: version.to_string() }.key_id(Self::NAME)
    }

    /// The version of our key that a key_id in our form names.
    fn own(&self, key_id: &KeyId) -> Option<u64> {
        let named = Version::parse(Self::NAME, key_id.as_str())?;
        number(&named.version).filter(|_| named.scope == self.scope)
    }

    /// The version of our key that a key_id in either form names.
    fn version(&self, key_id: &KeyId) -> Option<u64> {
        self.own(key_id).or_else(|| self.written(key_id))
    }

    /// Wraps with what has this name: the key, or one version of it. Tells the version that was used.
    async fn seal(
        &self,
        name: &str,
        key_id: &KeyId,
        plaintext: &[u8],
        deadline: Instant,
    ) -> Result<(u64, Sealed), Error> {
        let bound = self.settings.plugin_format.is_none().then_some(key_id.as_str());
        let (used, ciphertext) = self.client.encrypt(name, bound, plaintext, deadline).await?;
        let note = bound.map(|_| (BOUND.to_owned(), Bytes::from_static(b"1")));
        let (key_id, annotations) = (key_id.clone(), BTreeMap::from_iter(note));
        let sealed = Sealed { key_id, ciphertext: ciphertext.into(), annotations };
        Ok((self.answered("encrypt", &used)?, sealed))
    }

    /// The version that an answer speaks of; it must be one of our key.
    fn answered(&self, action: &str, name: &str) -> Result<u64, Error> {
        let ours = |named: &Named<'_>| {
            let key = Named::parse(&self.key);
            named.rest.is_empty() && key.is_some_and(|key| key.is_same_key(named))
        };
        let version = Named::parse(name).filter(ours).and_then(|named| named.version);
        version.ok_or_else(|| odd(action, &self.key, "the answer is about another key"))
    }

    /// The primary version, if the key and that can be used.
    async fn primary(&self, deadline: Instant) -> Result<u64, Error> {
        let found = self.client.look(&self.key, deadline).await?;
        let text =
            |value: &'static str| found.pointer(value).and_then(Value::as_str).unwrap_or_default();
        let refused = |why: String, hint: &str| {
            Err(Error::new(Kind::KeyState, format!("key {}: {why}", self.key)).with_hint(hint))
        };
        self.answered("describe", &version_of(text("/name"), 1))?;
        let (purpose, algorithm) = (text("/purpose"), text("/primary/algorithm"));
        let end = humantime::parse_rfc3339(text("/primary/destroyTime")).ok();
        *self.destroyed.lock().unwrap_or_else(PoisonError::into_inner) = end;
        if purpose != "ENCRYPT_DECRYPT" || !algorithm.ends_with("_SYMMETRIC_ENCRYPTION") {
            let why = format!("it is for {purpose:?}, its primary version for {algorithm:?}");
            return refused(
                why,
                "make a key for symmetric encryption and give it a new key id; if there is no primary version: gcloud kms keys set-primary-version",
            );
        }
        let version = self.answered("describe", text("/primary/name"))?;
        let state = text("/primary/state");
        let hint = match state {
            "ENABLED" => return Ok(version),
            "DISABLED" => "gcloud kms keys versions enable",
            "DESTROY_SCHEDULED" => "nothing is lost yet: gcloud kms keys versions restore",
            "DESTROYED" => "data of that version is lost; make another one the primary version",
            _ => "wait until it is made or imported, or make another one the primary version",
        };
        refused(format!("its primary version {version} is {state}"), hint)
    }
}
