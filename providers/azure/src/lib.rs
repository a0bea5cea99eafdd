//! The provider for Azure Key Vault and Managed HSM: RSA keys, and AES keys in a Managed HSM.
//!
//! It wraps with keys/encrypt and unwraps with keys/decrypt, always naming the version of the key.
//! It is a drop-in for Azure/kubernetes-kms and for OpenShift's fork of it: it takes their flags,
//! reads what either wrote, and writes what the one that it replaces reads.
//!
//! It refuses to make or to change a key, to send a token to anybody but the vault of the
//! configuration, and to unwrap with a version that nothing but etcd names for another key.
//!
//! The one invariant: **a key_id names the version that Key Vault says has wrapped the data**.
//! Without a version in the configuration new data follows the newest one, and every older one
//! goes on unwrapping, because its key_id names it. Key Vault never uses the name of a version
//! again, so that a key made anew under the same name is another one.
//!
//! # What binds data to its key_id
//! AES keys authenticate the key_id with the data. RSA has no associated data, and whoever has the
//! public key can wrap: what was moved to another version does not decrypt, and that is all.

mod account;
mod client;
mod cloud;
mod codes;
mod config;
mod dropin;
mod identity;
mod kek;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sidekey_core::config::Problems;
use sidekey_core::{Call, Error, Files, KeyId, Kind, Provider, Sealed, Secret};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::client::{Client, Operand, Told};
use crate::dropin::format::{Algorithm, Format, Stored};
use crate::kek::Kek;

pub use config::Config;

/// For calls that no caller waits for.
const OWN_TIME: Duration = Duration::from_secs(10);
/// What OAEP with SHA-256 adds to a plaintext.
const OAEP: usize = 66;
/// Lengths of the two parts that AES in Galois counter mode adds.
const NONCE: usize = 12;
const TAG: usize = 16;
const NO_GET: &str = "; keys/get is not allowed: the state of the key is not known";

/// One key at Azure.
pub struct Azure {
    config: Config,
    client: Client,
    newest: Mutex<Newest>,
}

/// The version that new data is wrapped with, and what is known of it.
#[derive(Clone, Debug)]
struct Newest {
    /// Unknown to who may neither look nor encrypt: data that is read names its own.
    version: Option<String>,
    algorithm: Algorithm,
    /// The most that it wraps, if that is known.
    most: Option<usize>,
    /// Whether Key Vault has said so a moment ago, and nobody has asked since.
    fresh: bool,
    /// Whether Key Vault tells us about it.
    told: bool,
}

impl Provider for Azure {
    const NAME: &'static str = "azure";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        config.check(problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.files()
    }

    fn named_files(config: &Config, files: &Files) -> Vec<PathBuf> {
        dropin::named_files(config, files)
    }

    async fn connect(
        config: &Config,
        files: &Files,
        previous: Option<&Self>,
    ) -> Result<Self, Error> {
        let client = Client::new(config, files)?;
        let same = previous.filter(|previous| previous.client.kek == client.kek);
        let known = same.map(|previous| previous.newest().clone());
        let found = look(&client, config.kek.version.as_deref(), known.as_ref()).await?;
        // What is disabled, or may only decrypt, still reads; who asks for the key_id is told.
        let newest = Newest { fresh: found.1.is_ok(), ..found.0 };
        Ok(Self { config: config.clone(), client, newest: Mutex::new(newest) })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        let known = self.newest().clone();
        self.newest().fresh = false;
        if let (true, Some(version)) = (known.fresh, &known.version) {
            return self.named(version);
        }
        let pinned = self.config.kek.version.as_deref();
        let (found, version) = look(&self.client, pinned, Some(&known)).await?;
        let key_id = self.named(&version?);
        *self.newest() = found;
        key_id
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let version = self.version(key_id)?;
        self.wrap(Some(&version), plaintext, call).await
    }

    async fn encrypt_current(
        &self,
        known: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        if self.config.kek.version.is_some() {
            return self.encrypt(known, plaintext, call).await;
        }
        if self.newest().algorithm == Algorithm::Aes {
            // Authenticated data names the version, which only a look can tell before.
            return self.encrypt(&self.key_id().await?, plaintext, call).await;
        }
        self.wrap(None, plaintext, call).await
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        let version = self.version(&sealed.key_id)?;
        let Stored { format, algorithm, block } = Stored::read(sealed)?;
        let operand = match algorithm {
            Algorithm::Rsa => {
                Operand { value: Zeroizing::new(block.to_vec()), ..Operand::default() }
            }
            Algorithm::Aes => opened(&block, &sealed.key_id)?,
        };
        let decrypted =
            self.client.decrypt(&version, algorithm.name(), &operand, call.deadline).await?;
        format.decoded(decrypted.value.to_vec())
    }

    fn expiry(&self) -> Option<SystemTime> {
        self.client.account.expiry()
    }

    fn note(&self) -> Option<String> {
        let newest = self.newest();
        let why = if newest.told { "" } else { NO_GET };
        let version = newest.version.as_deref().unwrap_or("unknown");
        Some(format!("version {version} of {}{why}", self.client.kek.url(None)))
    }
}

impl Azure {
    /// Every change of it is one assignment, which a panic cannot leave half done.
    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key_id of a version, as whoever is to read it names it.
    fn named(&self, version: &str) -> Result<KeyId, Error> {
        match self.config.settings.format {
            Format::Own => self.client.kek.key_id(version),
            Format::Text | Format::Binary => KeyId::new(&self.client.kek.hashed(version)),
        }
    }

    /// The version that a key_id names.
    fn version(&self, key_id: &KeyId) -> Result<String, Error> {
        let newest = self.newest().version.clone();
        let former = self.config.settings.former_versions.iter().map(String::as_str);
        self.client.kek.version(
            key_id,
            former.chain(newest.as_deref()).chain(self.config.kek.version.as_deref()),
        )
    }

    async fn wrap(
        &self,
        version: Option<&str>,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let (format, Newest { algorithm, most, .. }) =
            (self.config.settings.format, self.newest().clone());
        let mut operand = Operand { value: format.encoded(plaintext), ..Operand::default() };
        if most.is_some_and(|most| operand.value.len() > most) {
            let text = format!(
                "{} bytes are more than {} can wrap",
                plaintext.len(),
                self.client.kek.url(None)
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        if algorithm == Algorithm::Aes && format != Format::Own {
            let text = format!(
                "{} is an AES key, of which the replaced plugins know nothing",
                self.client.kek.url(None)
            );
            return Err(Error::new(Kind::Config, text).with_hint("leave settings.format out"));
        }
        if let (Algorithm::Aes, Some(version)) = (algorithm, version) {
            operand.aad = Some(self.named(version)?.as_str().as_bytes().to_vec());
        }
        let (sealed, version) =
            self.client.encrypt(version, algorithm.name(), &operand, call.deadline).await?;
        let mut block = sealed.value.to_vec();
        if algorithm == Algorithm::Aes {
            let (Some(iv), Some(tag)) = (sealed.iv, sealed.tag) else { return Err(unsealed()) };
            if iv.len() != NONCE || tag.len() != TAG {
                return Err(unsealed());
            }
            block = [iv, block, tag].concat();
        }
        Ok(format.stored(self.named(&version)?, algorithm, block))
    }
}

/// A block of AES as Key Vault takes it: the nonce before it, the tag after it.
fn opened(block: &[u8], key_id: &KeyId) -> Result<Operand, Error> {
    let short = || Error::new(Kind::Corrupt, "the stored data is too short");
    let (iv, rest) = block.split_at_checked(NONCE).ok_or_else(short)?;
    let (value, tag) = rest.len().checked_sub(TAG).map(|at| rest.split_at(at)).ok_or_else(short)?;
    let aad = Some(key_id.as_str().as_bytes().to_vec());
    let value = Zeroizing::new(value.to_vec());
    Ok(Operand { value, aad, iv: Some(iv.to_vec()), tag: Some(tag.to_vec()) })
}

fn unsealed() -> Error {
    Error::new(Kind::Unavailable, "keys/encrypt: the answer has no nonce or no tag")
        .with_hint("see whether it is a Managed HSM that answers")
}

/// What is known of the version that new data is wrapped with, and that version, or why there is
/// none. `known` is what was known of it before.
async fn look(
    client: &Client,
    pinned: Option<&str>,
    known: Option<&Newest>,
) -> Result<(Newest, Result<String, Error>), Error> {
    let deadline = Instant::now() + OWN_TIME;
    // Rights may be missing; a login that is refused is another matter.
    let denied = |error: &Error| error.kind() == Kind::Denied && !error.is_lasting();
    let error = match client.describe(pinned, deadline).await {
        Ok(told) => return described(&told, &client.kek, pinned),
        Err(error) if denied(&error) => error,
        Err(error) => return Err(error),
    };
    tracing::warn!(error = %error.report(), "the key is used without being looked at");
    let (algorithm, most) =
        known.map_or((Algorithm::Rsa, None), |known| (known.algorithm, known.most));
    let found = match pinned {
        Some(version) => Ok(version.to_owned()),
        None => by_encrypting(client, algorithm, deadline).await,
    };
    let version = match &found {
        Ok(version) => Some(version.clone()),
        Err(_) => known.and_then(|known| known.version.clone()),
    };
    match found {
        Err(error) if !denied(&error) => Err(error),
        found => Ok((Newest { version, algorithm, most, fresh: false, told: false }, found)),
    }
}

/// Encrypt tells which version is the newest, too.
async fn by_encrypting(
    client: &Client,
    algorithm: Algorithm,
    deadline: Instant,
) -> Result<String, Error> {
    let value = Zeroizing::new(Secret::random(32)?.expose().to_vec());
    let operand = Operand { value, ..Operand::default() };
    Ok(client.encrypt(None, algorithm.name(), &operand, deadline).await?.1)
}

fn described(
    told: &Told,
    kek: &Kek,
    pinned: Option<&str>,
) -> Result<(Newest, Result<String, Error>), Error> {
    let (key, shown) = (&told.key, kek.url(pinned));
    let version =
        kek.answered(&key.kid).filter(|version| pinned.is_none_or(|pinned| pinned == version));
    let version = version.ok_or_else(|| {
        Error::new(Kind::Unavailable, format!("keys/get on {shown} was answered about another key"))
            .with_hint("see whether it is Key Vault that answers, or a proxy in its place")
    })?;
    let unfit = |what: &str, hint: &str| {
        Error::new(Kind::Config, format!("{shown} {what}")).with_hint(hint.to_owned())
    };
    // Four letters of base64 for three bytes.
    let modulus = key.n.trim_end_matches('=').len() * 3 / 4;
    let (algorithm, most) = match key.kty.as_str() {
        "RSA" | "RSA-HSM" if (256..=512).contains(&modulus) => {
            (Algorithm::Rsa, Some(modulus - OAEP))
        }
        "oct" | "oct-HSM" => (Algorithm::Aes, None),
        _ => {
            return Err(unfit(
                "is of a type or size that cannot be used",
                "give an RSA key of 2048 to 4096 bits, or an AES key of 256 bits in a Managed HSM",
            ));
        }
    };
    let may = |action: &&str| key.key_ops.iter().flatten().any(|one| one == action);
    if key.key_ops.is_some() && !["encrypt", "decrypt"].iter().all(may) {
        return Err(unfit(
            "may not be used to encrypt and decrypt",
            "allow both operations on the key",
        ));
    }
    let state = match told.attributes.enabled {
        Some(false) => {
            Err(Error::new(Kind::KeyState, format!("{} is disabled", kek.url(Some(&version))))
                .with_hint("enable it until all data has been written anew"))
        }
        _ => Ok(version.clone()),
    };
    let version = Some(version);
    Ok((Newest { version, algorithm, most, fresh: false, told: true }, state))
}

#[cfg(test)]
mod tests;
