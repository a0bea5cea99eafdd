//! A KMS that does what a test tells it, for tests of the runtime itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::Problems;
use crate::{
    Answer, Call, CommandLine, Error, Files, KeyId, Kind, NoCommand, Output, Provider, Rotate,
    Sealed, Secret,
};

/// All KMSs of the test process, by name: a configuration can only hold a name.
static ALL: Mutex<BTreeMap<String, Arc<ScriptedKms>>> = Mutex::new(BTreeMap::new());

/// A KMS.
#[derive(Default)]
pub(crate) struct ScriptedKms {
    state: Mutex<KmsState>,
    released: Notify,
}

/// What it does next.
#[derive(Default)]
pub(crate) struct KmsState {
    /// The KEK: ciphertexts of one cannot be read with another.
    pub(crate) kek: u8,
    /// Every KEK is called by the key_ids of the first, as if it were deleted and made anew.
    pub(crate) alike: bool,
    pub(crate) version: u32,
    /// Wraps with this version whatever it is asked for.
    pub(crate) wraps_with: Option<u32>,
    /// Every call fails so.
    pub(crate) fails: Option<Kind>,
    /// Encrypt fails so, and nothing else.
    pub(crate) encrypt_fails: Option<Kind>,
    /// So many calls fail as unavailable, and then no more.
    pub(crate) fails_times: u32,
    /// Nothing is done with this version.
    pub(crate) disabled: Option<u32>,
    pub(crate) delay: Duration,
    /// Answers nobody until it is released.
    held: bool,
    /// Whoever encrypts next waits until it is released.
    encrypt_held: bool,
    /// The form in which it encrypts, and the one that it no longer reads.
    pub(crate) form: u8,
    pub(crate) refused_form: Option<u8>,
    pub(crate) lies: bool,
    pub(crate) encrypts: u32,
    pub(crate) decrypts: u32,
    pub(crate) describes: u32,
    pub(crate) connects: u32,
    pub(crate) closes: u32,
    pub(crate) rotations: u32,
    /// A rotation shows only after so many looks.
    pub(crate) lags: u32,
}

/// The provider of [`ScriptedKms`].
pub(crate) struct Scripted {
    kms: Arc<ScriptedKms>,
    /// From the credentials file, if there is one: the KMS takes only `good…`.
    token: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    kek: Option<Kek>,
    credentials: Option<Credentials>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Kek {
    kms: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Credentials {
    token: Option<PathBuf>,
}

impl ScriptedKms {
    /// A KMS of this name with version 1 of KEK 1.
    pub(crate) fn new(name: &str) -> Arc<Self> {
        let kms: Arc<Self> = Arc::default();
        kms.set(|state| (state.kek, state.version) = (1, 1));
        ALL.lock().insert(name.to_owned(), kms.clone());
        kms
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut KmsState)) {
        change(&mut self.state.lock());
    }

    pub(crate) fn ask<T>(&self, question: impl FnOnce(&KmsState) -> T) -> T {
        question(&self.state.lock())
    }

    /// Whoever calls from now on waits.
    pub(crate) fn hold(&self) {
        self.set(|state| state.held = true);
    }

    /// Whoever encrypts next waits.
    pub(crate) fn hold_encrypt(&self) {
        self.set(|state| state.encrypt_held = true);
    }

    /// All who wait are answered.
    pub(crate) fn release(&self) {
        self.set(|state| state.held = false);
        self.released.notify_waiters();
    }

    async fn wait_if(&self, held: impl FnOnce(&mut KmsState) -> bool) {
        // Waits already when it looks, so that no release is missed in between.
        let released = self.released.notified();
        let held = held(&mut self.state.lock());
        if held {
            released.await;
        }
    }

    async fn call(&self, token: Option<&str>) -> Result<(), Error> {
        let (delay, failure) = {
            let mut state = self.state.lock();
            let once = state.fails_times > 0;
            state.fails_times = state.fails_times.saturating_sub(1);
            (state.delay, state.fails.or_else(|| once.then_some(Kind::Unavailable)))
        };
        self.wait_if(|state| state.held).await;
        tokio::time::sleep(delay).await;
        match failure {
            Some(kind) => Err(Error::new(kind, "as the test wants it")),
            None if token.is_some_and(|token| !token.starts_with("good")) => {
                Err(Error::new(Kind::Denied, "bad token"))
            }
            None => Ok(()),
        }
    }
}

impl Provider for Scripted {
    const NAME: &'static str = "scripted";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        let name = config.kek.as_ref().and_then(|kek| kek.kms.as_ref());
        if name.is_none() {
            problems.add("kek.kms", "is required");
        }
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.credentials.iter().filter_map(|credentials| credentials.token.clone()).collect()
    }

    async fn connect(config: &Config, files: &Files, _: Option<&Self>) -> Result<Self, Error> {
        let name = config.kek.as_ref().and_then(|kek| kek.kms.as_deref()).unwrap_or_default();
        let kms = ALL.lock().get(name).cloned();
        let kms = kms.ok_or_else(|| Error::new(Kind::Unavailable, "no such KMS"))?;
        kms.set(|state| state.connects += 1);
        let token = match Self::files(config).first() {
            Some(path) => files.secret(path)?.as_text().map(str::to_owned),
            None => None,
        };
        kms.call(token.as_deref()).await?;
        Ok(Self { kms, token })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        self.kms.set(|state| state.describes += 1);
        self.kms.call(self.token.as_deref()).await?;
        let key_id = self.kms.ask(|state| state.key_id(state.version));
        self.kms.set(KmsState::look);
        key_id
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        _: &Call<'_>,
    ) -> Result<Sealed, Error> {
        self.kms.set(|state| state.encrypts += 1);
        self.kms.call(self.token.as_deref()).await?;
        if let Some(kind) = self.kms.ask(|state| state.encrypt_fails) {
            return Err(Error::new(kind, "encrypt fails as the test wants it"));
        }
        self.kms.wait_if(|state| std::mem::take(&mut state.encrypt_held)).await;
        let (kek, used) = self.kms.ask(|state| (state.kek, state.wraps_with));
        let key_id = match used {
            Some(version) => self.kms.ask(|state| state.key_id(version))?,
            None => key_id.clone(),
        };
        let masked = plaintext.iter().map(|b| b ^ mask(&key_id));
        let ciphertext: Bytes = [kek].into_iter().chain(masked).collect();
        let form = self.kms.ask(|state| Bytes::copy_from_slice(&[state.form]));
        let annotations = BTreeMap::from([("form.example".to_owned(), form)]);
        Ok(Sealed { key_id, ciphertext, annotations })
    }

    async fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let now = self.kms.ask(|state| state.key_id(state.version))?;
        self.encrypt(if known.as_str() > now.as_str() { known } else { &now }, plaintext, call)
            .await
    }

    async fn decrypt(&self, sealed: &Sealed, _: &Call<'_>) -> Result<Secret, Error> {
        self.kms.set(|state| state.decrypts += 1);
        self.kms.call(self.token.as_deref()).await?;
        let disabled = self.kms.ask(|state| state.disabled).map(|version| format!("/{version}"));
        if disabled.is_some_and(|version| sealed.key_id.as_str().ends_with(&version)) {
            return Err(Error::new(Kind::KeyState, "this version is disabled"));
        }
        let form = sealed.annotations.get("form.example").and_then(|form| form.first().copied());
        if form.is_some() && form == self.kms.ask(|state| state.refused_form) {
            return Err(Error::new(Kind::KeyState, "this form is not read"));
        }
        let (kek, lies) = self.kms.ask(|state| (state.kek, state.lies));
        if sealed.ciphertext.first() != Some(&kek) {
            return Err(Error::new(Kind::KeyState, "another KEK wrapped this"));
        }
        let mask = mask(&sealed.key_id) ^ u8::from(lies);
        Ok(Secret::new(sealed.ciphertext.iter().skip(1).map(|b| b ^ mask).collect()))
    }

    async fn close(&self) {
        self.kms.set(|state| state.closes += 1);
    }
}

impl KmsState {
    fn key_id(&self, version: u32) -> Result<KeyId, Error> {
        KeyId::new(&format!("{}/{version}", if self.alike { 1 } else { self.kek }))
    }

    /// Whoever has been asked for a new version gets on with it.
    fn look(&mut self) {
        if self.rotations > 0 && self.version <= self.rotations {
            self.lags = self.lags.saturating_sub(1);
            self.version += u32::from(self.lags == 0);
        }
    }
}

impl Rotate for Scripted {
    async fn rotate(&self, _: Instant) -> Result<(), Error> {
        self.kms.call(self.token.as_deref()).await?;
        self.kms.set(|state| state.rotations += 1);
        Ok(())
    }
}

/// No flags, and no command of its own: one that cannot rotate.
#[derive(Debug, clap::Args)]
pub(crate) struct NoFlags {}

impl CommandLine for Scripted {
    const ABOUT: &'static str = "for tests";
    const EXAMPLES: &'static str = "";
    type Flags = NoFlags;
    type Command = NoCommand;

    fn keys(_: &NoFlags) -> Result<Option<serde_json::Value>, Error> {
        Ok(None)
    }

    fn output(command: &NoCommand) -> Output {
        match *command {}
    }

    fn execute(command: NoCommand) -> Result<Answer, Error> {
        match command {}
    }
}

/// What lies at an address of this process, whether it is in use or not.
pub(crate) fn memory_at(address: *const u8, len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; len];
    let memory = std::fs::File::open("/proc/self/mem");
    let read = memory.and_then(|file| file.read_exact_at(&mut bytes, address as u64));
    assert!(read.is_ok(), "{read:?}");
    bytes
}

fn mask(key_id: &KeyId) -> u8 {
    key_id.as_str().bytes().fold(0x5a, |mask, b| mask ^ b)
}
