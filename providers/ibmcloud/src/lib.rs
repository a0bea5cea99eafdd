//! KMS v2 on IBM Key Protect.
//!
//! It is for those whose KEK is a root key of Key Protect: it wraps and unwraps there, and follows
//! the key when it is rotated. It refuses to make a key, to follow an alias or a name, which can be
//! turned to another key, and to guess whose a ciphertext is.
//!
//! The one invariant: **a key_id names the version that Key Protect itself says it has used, and
//! the ciphertext is bound to it.** Key Protect cannot be told which version to wrap with. What it
//! wrapped with another one than was named is thrown away, and wrapped once more under its own
//! key_id; the runtime announces that before anything is stored under it.
//!
//! # What is written
//! The ciphertext is Key Protect's, as it gave it. Its additional authenticated data (`aad`) is one
//! text, the key_id. An unwrapping may bring along the same data under a newer version: that is
//! ignored, because kube-apiserver writes anew by itself when the key_id moves.
//!
//! # How it hangs together
//! ```text
//! IbmCloud (one key, and older ones that it reads) ── root_key (calls, codes) ── session (token, shared)
//! ```

mod config;
mod dropin;
mod root_key;
mod session;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sidekey_core::config::Problems;
use sidekey_core::{Call, Error, Files, KeyId, Kind, Provider, Sealed, Secret};
use sidekey_rest::naming::Version;
use tokio::time::Instant;

pub use config::Config;

use root_key::RootKey;
use session::Session;

/// For what no caller waits for: the runtime has a limit of its own for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// One root key of Key Protect.
pub struct IbmCloud {
    session: Arc<Session>,
    key: RootKey,
    /// What this socket reads too.
    older: Vec<RootKey>,
}

impl Provider for IbmCloud {
    const NAME: &'static str = "ibmcloud";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        config.check(problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.files()
    }

    /// Asks nobody: a key whose version cannot be told, or that may not wrap any more, reads its
    /// data all the same.
    async fn connect(config: &Config, files: &Files, _: Option<&Self>) -> Result<Self, Error> {
        let session = Session::shared(config, files)?;
        let (key, older) = (config.key(&session)?, config.older(&session)?);
        Ok(Self { session, key, older })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        self.key.current(Instant::now() + PATIENCE).await
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        if plaintext.is_empty() {
            // Key Protect would make a key of its own and wrap that.
            return Err(Error::new(Kind::Invalid, "there is nothing to encrypt"));
        }
        let mut bound = key_id.clone();
        for _ in 0..2 {
            let (ciphertext, used) = self.key.wrap(&bound, plaintext, call).await?;
            if used == bound {
                let ciphertext = ciphertext.into_bytes().into();
                return Ok(Sealed { key_id: used, ciphertext, annotations: BTreeMap::new() });
            }
            bound = used;
        }
        let text = format!("wrap on {}: each answer was of another version", self.key.id);
        Err(Error::new(Kind::Unavailable, text)
            .with_hint("the key is being rotated: the caller will ask again"))
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let key_id = &sealed.key_id;
        let named = Version::parse(Self::NAME, key_id.as_str());
        let mut keys = std::iter::once(&self.key).chain(&self.older);
        let key = named.and_then(|named| keys.find(|key| key.scope == named.scope));
        let key = key.ok_or_else(|| {
            let text = format!("{key_id} is not of root key {}", self.key.id);
            Error::new(Kind::KeyState, text).with_hint("serve the key that wrote it too; data of IBM's own plugin is read by that plugin alone")
        })?;
        key.unwrap(key_id, &sealed.ciphertext, call).await
    }

    fn expiry(&self) -> Option<SystemTime> {
        self.session.lease.expiry()
    }

    fn note(&self) -> Option<String> {
        Some(format!("root key {} at {}", self.key.id, self.key.address))
    }
}
