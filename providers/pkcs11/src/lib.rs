//! KMS v2 on an HSM, through the PKCS#11 library of its vendor.
//!
//! It is for those whose KEK is an AES or RSA key in a token: wrapping and unwrapping happen there,
//! and the key does not leave it. It refuses to make a key, to log in twice with a PIN that was
//! refused, because tokens lock, and to run as a static program, which cannot load a library.
//!
//! The one invariant: **a key_id names the key that the token itself says it has**: its CKA_ID, and
//! the check value of an AES key or the modulus of an RSA key. What has taken its place under the
//! same label and id has another key_id. An AES key is found by its CKA_ID alone, and proven by
//! reading: what the token says of it may have changed since.
//!
//! # Threads and time
//! A library blocks, for as long as it likes. Each call has a thread of its own, at most
//! `settings.maxSessions` at once for a key, and its caller waits until the deadline and no longer.
//! A call that does not come back within `settings.hangLimit` ends the process: neither its thread
//! nor what the library has locked can be had back in any other way.
//!
//! # Sessions
//! Sessions and the login are shared by all keys of the process that are on the same token. What
//! fails in a session costs the idle ones too; what fails in a new one has the library ended and
//! initialised anew, unless other calls are in it or another token's sessions work, because many
//! libraries see a token that was away only then.
//!
//! # How it hangs together
//! ```text
//! Pkcs11 (one key, and older ones that it reads) ── client (threads, deadlines) ── library (sessions, login)
//!                                                          └─ object (which key) ── key (seal, open)
//! ```
//!
//! # Plaintexts in memory
//! A plaintext is in one buffer that is wiped, and in what the library and its way to the HSM copy.

mod client;
mod codes;
mod config;
mod dropin;
mod key;
mod library;
mod object;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sidekey_core::config::Problems;
use sidekey_core::{Call, Error, Files, KeyId, Provider, Sealed, Secret};
use tokio::time::Instant;

pub use config::Config;

use client::Client;
use codes::found;
use dropin::form;
use key::Key;

/// For what no caller waits for: the runtime has a limit of its own for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// One key of a token.
pub struct Pkcs11 {
    key: Arc<Client>,
    /// What this socket reads too.
    older: Vec<Arc<Client>>,
}

impl Provider for Pkcs11 {
    const NAME: &'static str = "pkcs11";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        config.check(problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.files()
    }

    /// Asks nobody: a token that is away is not for this to notice.
    async fn connect(config: &Config, files: &Files, _: Option<&Self>) -> Result<Self, Error> {
        let older = config.settings.older_keks.iter().map(|older| Client::new(older, files));
        Ok(Self { key: Client::new(config, files)?, older: older.collect::<Result<_, _>>()? })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        let newest = self.key.run(Instant::now() + PATIENCE, Client::newest).await?;
        form::key_id(&self.key.form, &newest)
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        self.wrap(Some(key_id.clone()), plaintext, call).await
    }

    async fn encrypt_current(
        &self,
        _: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        self.wrap(None, plaintext, call).await
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let mut clients: Vec<_> = std::iter::once(&self.key).chain(&self.older).collect();
        clients.retain(|client| client.keys.may_be(&sealed.key_id));
        clients.sort_by_key(|client| !client.has_opened(&sealed.key_id));
        let mut refusal = None;
        for client in clients {
            let asked = sealed.clone();
            let work = move |client: &Client, link: &mut _| client.open(link, asked);
            match client.run(call.deadline, work).await {
                Ok(Some(plaintext)) => return Ok(plaintext),
                Ok(None) => {}
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(refusal.unwrap_or_else(|| found(&self.key.keys, codes::NOT_OURS)))
    }

    fn note(&self) -> Option<String> {
        Some(self.key.note())
    }
}

impl Pkcs11 {
    /// Under the key of a key_id, or under the newest.
    async fn wrap(
        &self,
        key_id: Option<KeyId>,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let plaintext = Secret::new(plaintext.to_vec());
        let work = move |client: &Client, link: &mut _| {
            let object = match &key_id {
                None => client.newest(link)?,
                Some(key_id) => {
                    let named = client.keys.named(link, key_id)?;
                    let named = named.filter(|object| object.is_named(key_id));
                    named.ok_or_else(|| found(&client.keys, codes::NOT_OURS))?
                }
            };
            let key = Key { keys: &client.keys, link, object: &object };
            let ciphertext = form::seal(&client.form, &key, plaintext.expose())?.into();
            let key_id = form::key_id(&client.form, &object)?;
            Ok(Sealed { key_id, ciphertext, annotations: BTreeMap::new() })
        };
        self.key.run(call.deadline, work).await
    }
}
