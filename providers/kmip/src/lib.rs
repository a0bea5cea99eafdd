//! KMS v2 on a KMIP server: Thales CipherTrust, Fortanix, IBM GKLM and whoever else speaks KMIP 1.2
//! to 1.4 over mutual TLS.
//!
//! It is for those whose KEK is an AES key in such a KMS, which encrypts and decrypts there. It
//! refuses to read that key (Get is not spoken), to make or change one, and to guess whose a
//! ciphertext is.
//!
//! The one invariant: **a key_id names the very object that wrapped, by its unique identifier, and
//! nothing is answered that was not authenticated.** A name is only how the object for new data is
//! found: the active key that has it, looked up with every probe that encrypts. The objects that had
//! it before read on, for as long as the KMS lets them.
//!
//! # How it hangs together
//! ```text
//! Kmip (one key) ── sealed (what is stored) ── sidekey-ttlv (KMIP) ── sidekey-rest (TLS, servers)
//! ```

mod config;
mod sealed;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::Value;
use sidekey_core::config::Problems;
use sidekey_core::{
    Answer, Call, CommandLine, Error, Files, KeyId, Kind, NoCommand, Output, Provider, Sealed,
    Secret,
};
use sidekey_rest::naming::{Version, only, scope};
use sidekey_ttlv::{Client, Mode};
use tokio::time::Instant;

pub use config::Config;

use config::Kek;
use sealed::Wrapping;

/// For what no caller waits for: the runtime has a limit of its own for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// One key of a KMIP server, or the keys that have had one name.
pub struct Kmip {
    client: Client,
    kek: Kek,
    /// The hash of how the key is named.
    scope: String,
    mode: Mode,
    expiry: Option<SystemTime>,
    /// The key that was last found for new data.
    found: Mutex<Option<String>>,
}

impl Provider for Kmip {
    const NAME: &'static str = "kmip";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        config.check(problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.files()
    }

    /// Asks nobody: a key that may not encrypt any more reads its data all the same.
    async fn connect(config: &Config, files: &Files, old: Option<&Self>) -> Result<Self, Error> {
        let trust = config.trust(files)?;
        let expiry = trust.expiry;
        let client = Client::new(&trust, config.addresses()?);
        let kek = config.kek.clone();
        let mode = config.mode();
        let mode = mode.ok_or_else(|| Error::new(Kind::Config, "settings.mode cannot be used"))?;
        let scope = match (&kek.id, &kek.name) {
            (Some(id), _) => scope(&["id", id]),
            (None, name) => scope(&["name", name.as_deref().unwrap_or_default()]),
        };
        let old = old.filter(|old| old.scope == scope);
        let found = Mutex::new(old.and_then(|old| old.found().clone()));
        Ok(Self { client, kek, scope, mode, expiry, found })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        let deadline = Instant::now() + PATIENCE;
        let uid = self.current(deadline).await?;
        self.client.check(&uid, deadline).await?;
        self.name(uid)
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let uid = self.uid(key_id)?;
        let ciphertext = self.with(&uid, key_id, call).seal(self.mode, plaintext).await?.into();
        Ok(Sealed { key_id: key_id.clone(), ciphertext, annotations: BTreeMap::new() })
    }

    async fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let old = self.uid(known)?;
        let uid = self.current(call.deadline).await?;
        if uid != old {
            self.client.check(&uid, call.deadline).await?;
        }
        self.encrypt(&self.name(uid)?, plaintext, call).await
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let uid = self.uid(&sealed.key_id)?;
        self.with(&uid, &sealed.key_id, call).open(&sealed.ciphertext).await
    }

    fn expiry(&self) -> Option<SystemTime> {
        self.expiry
    }
}

impl Kmip {
    fn with<'a>(&'a self, uid: &'a str, key_id: &'a KeyId, call: &Call<'_>) -> Wrapping<'a> {
        Wrapping { client: &self.client, uid, key_id, deadline: call.deadline }
    }

    /// The key for new data. Where several active keys have the name, the one that is in use stays:
    /// which of them is meant is not ours to guess.
    async fn current(&self, deadline: Instant) -> Result<String, Error> {
        let Kek { id, name } = &self.kek;
        let (None, Some(name)) = (id, name) else { return Ok(id.clone().unwrap_or_default()) };
        let found = self.client.locate(name, deadline).await?;
        if let Some(kept) = self.found().as_ref().filter(|kept| found.contains(kept)) {
            return Ok(kept.clone());
        }
        let uid = only(name, found)?;
        *self.found() = Some(uid.clone());
        Ok(uid)
    }

    fn found(&self) -> MutexGuard<'_, Option<String>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What cannot be read back must not be written.
    fn name(&self, uid: String) -> Result<KeyId, Error> {
        let version = Version { scope: self.scope.clone(), version: uid };
        let key_id = version.key_id(Self::NAME)?;
        let unfit = |_| {
            let text = format!("{key_id}: the KMS's identifier of the key fits into no key_id");
            Error::new(Kind::Config, text).with_hint("it must be of letters, digits, -, _ and .")
        };
        self.uid(&key_id).map_err(unfit)?;
        Ok(key_id)
    }

    /// The unique identifier that a key_id names; the key_id comes from etcd and may be forged.
    fn uid(&self, key_id: &KeyId) -> Result<String, Error> {
        let named = Version::parse(Self::NAME, key_id.as_str());
        let is_ours = |named: &Version| {
            named.scope == self.scope && self.kek.id.as_ref().is_none_or(|id| *id == named.version)
        };
        let other = || Error::new(Kind::KeyState, format!("{key_id} is of another key"));
        named.filter(is_ours).map(|named| named.version).ok_or_else(other)
    }
}

/// This provider takes the place of no other plugin, so that no flags describe its keys.
#[derive(Debug, Args)]
pub struct Flags {}

impl CommandLine for Kmip {
    const ABOUT: &'static str = "KMS v2 provider for KMIP servers";
    const EXAMPLES: &'static str = "Examples:
  sidekey-kmip --config kmip.yaml
  sidekey-kmip check --config kmip.yaml --connect

Exit codes: 0 success, 1 failure, 64 bad usage or configuration.";
    type Flags = Flags;
    type Command = NoCommand;

    fn keys(_: &Flags) -> Result<Option<Value>, Error> {
        Ok(None)
    }

    fn output(command: &NoCommand) -> Output {
        match *command {}
    }

    fn execute(command: NoCommand) -> Result<Answer, Error> {
        match command {}
    }
}
