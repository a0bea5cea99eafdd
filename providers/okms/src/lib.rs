//! KMS v2 on OVHcloud KMS (OKMS): its service keys by REST, its other keys by KMIP.
//!
//! It is for those whose KEK is a symmetric key of an OKMS domain, named by its id or found by its
//! label. It refuses to make a key, to download one, to take a label that names no key or
//! several, and to guess whose a ciphertext is. It is a drop-in for ovh/okms-k8s-encryption-provider:
//! it takes its flags, reads what it wrote, and writes what it reads.
//!
//! The one invariant: **a key_id names the one key that has wrapped the data.** Keys of OKMS have no
//! versions: another key is another id, and ids are never given again. A label is not one: it is
//! looked up, and what it leads to is what is announced.
//!
//! # What is written
//! By REST the ciphertext is OKMS's, as it gave it: a JWE that is not looked into. By KMIP it is that
//! of AES-GCM with the tag behind it, and an annotation holds the IV, which we make. The additional
//! authenticated data is the scope in the key_id: whose data it is. Which key it is needs no
//! binding: no other one opens it.
//!
//! # Rotation
//! A key that is named by its id stays that key. A label is turned to another key at OKMS, and
//! followed by every probe that encrypts. Keys that it led to before are still read: their data
//! names them, and is bound to the label.

mod config;
mod dropin;
mod kmip;
mod rest;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use sidekey_core::config::Problems;
use sidekey_core::{Call, Error, Files, KeyId, Kind, Provider, Sealed, Secret};
use sidekey_rest::naming::{Version, only, scope};
use tokio::time::Instant;

pub use config::Config;

use config::Protocol;
use dropin::data::uuid;
use kmip::Kmip;
use rest::Rest;

/// For what no caller waits for: the runtime has a limit of its own for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// One key of OKMS, or those that a label leads to.
pub struct Okms {
    service: Service,
    config: Config,
    /// The id in the configuration, in OKMS's way to write it; without one the label decides.
    key: Option<String>,
    scope: String,
    /// The end of the certificate that is shown.
    expiry: Option<SystemTime>,
}

/// How keys are reached.
enum Service {
    Rest(Rest),
    Kmip(Kmip),
}

/// Asks by whichever protocol it is.
macro_rules! ask {
    ($okms:ident.$call:ident($($argument:expr),*)) => {
        match &$okms.service {
            Service::Rest(rest) => rest.$call($($argument),*).await,
            Service::Kmip(kmip) => kmip.$call($($argument),*).await,
        }
    };
}

/// What a request is for.
pub(crate) struct Target {
    pub(crate) key_id: KeyId,
    pub(crate) id: String,
    /// What data is bound to: its scope, or nothing.
    pub(crate) bound: String,
    pub(crate) deadline: Instant,
}

impl Provider for Okms {
    const NAME: &'static str = "okms";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        config.check(problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.credentials.files(config.settings.ca_file.as_deref())
    }

    /// Asks nobody: a key that cannot be found any more may read its data all the same.
    async fn connect(config: &Config, files: &Files, _: Option<&Self>) -> Result<Self, Error> {
        let config = config.clone();
        let trust = config.credentials.trust(config.settings.ca_file.as_deref(), files)?;
        let address = config.address().map_err(|why| Error::new(Kind::Config, why))?;
        let domain = config.kek.okms_id.as_deref().and_then(uuid).unwrap_or_default();
        let (protocol, service) = match config.kek.protocol {
            Protocol::Rest => ("rest", Service::Rest(Rest::new(address, &trust, &domain))),
            Protocol::Kmip => ("kmip", Service::Kmip(Kmip::new(address, &trust))),
        };
        let label = config.kek.label.as_deref().unwrap_or_default();
        let key = config.kek.key.as_deref().and_then(|key| config.kek.id(key));
        let scope = scope(&[protocol, &domain, label]);
        Ok(Self { service, config, key, scope, expiry: trust.expiry })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        let deadline = Instant::now() + PATIENCE;
        if let Some(id) = &self.key {
            ask!(self.look(id, deadline))?;
            return self.name(id);
        }
        let label = self.config.kek.label.as_deref().unwrap_or_default();
        self.name(&only(label, ask!(self.find(label, deadline))?)?)
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        if plaintext.is_empty() {
            // OKMS refuses that, and does not say why.
            return Err(Error::new(Kind::Invalid, "there is nothing to encrypt"));
        }
        let to = self.target(key_id, call.deadline)?;
        ask!(self.encrypt(&to, plaintext))
    }

    /// Follows the label, if there is one.
    async fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        match self.key {
            Some(_) => self.encrypt(known, plaintext, call).await,
            None => self.encrypt(&self.key_id().await?, plaintext, call).await,
        }
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let to = self.target(&sealed.key_id, call.deadline)?;
        ask!(self.decrypt(&to, sealed))
    }

    fn expiry(&self) -> Option<SystemTime> {
        self.expiry
    }

    fn note(&self) -> Option<String> {
        let kek = &self.config.kek;
        let which = kek.key.as_ref().or(kek.label.as_ref())?;
        Some(format!("{which} at {}", self.config.settings.address.as_ref()?))
    }
}

impl Okms {
    /// The key_id of a key.
    fn name(&self, id: &str) -> Result<KeyId, Error> {
        if self.config.settings.plugin_format {
            return self.plugin_key_id(id);
        }
        let version = Version { scope: self.scope.clone(), version: id.to_owned() };
        version.key_id(Self::NAME)
    }

    /// The key that a key_id names, which may be forged, and what its data is bound to.
    fn target(&self, key_id: &KeyId, deadline: Instant) -> Result<Target, Error> {
        let own = Version::parse(Self::NAME, key_id.as_str()).filter(|own| {
            let ours = self.key.as_ref().is_none_or(|key| *key == own.version);
            let id = self.config.kek.id(&own.version);
            ours && own.scope == self.scope && id.as_ref() == Some(&own.version)
        });
        let own = own.map(|own| (own.version, self.scope.clone()));
        let Some((id, bound)) = own.or_else(|| Some((self.adopted(key_id)?, String::new()))) else {
            return Err(Error::new(Kind::KeyState, format!("{key_id} is of another key"))
                .with_hint("serve that one too; what the plugin wrote: settings.alsoReads"));
        };
        Ok(Target { key_id: key_id.clone(), id, bound, deadline })
    }
}
