//! The provider for AWS KMS: symmetric keys, aliases, multi-region keys.
//!
//! It wraps with kms:Encrypt and unwraps with kms:Decrypt, naming the key, under the configured
//! encryption context. It is a drop-in for kubernetes-sigs/aws-encryption-provider: it takes its
//! flags, reads what it wrote, and writes what it reads.
//!
//! It refuses to use a key that the configuration does not lead to, whatever a key_id from etcd
//! says; to take a re-pointed alias for the same key; and to change anything at AWS, but for the new
//! key material that `rotate` is there to ask for.
//!
//! The one invariant: **a key_id names the key and the key material that really wrapped the data**
//! (or, where AWS does not tell the material, the key alone, for as long as the configuration is
//! loaded). AWS rotates material behind an unchanged ARN and cannot be told which one to wrap
//! with, so every Encrypt is checked by the Decrypt that follows it, which tells; a rotation moves
//! key_id by itself, and kube-apiserver re-wraps.
//!
//! # Aliases
//! An alias stands for the key that it points at, and that key's ARN is what is announced. When
//! the alias is pointed at another key, that key is tried first, and then announced under its own
//! ARN: never as the same key. What the former key wrapped stays readable, because its key_id
//! names it, and Decrypt asks for just that key. An alias can only point at keys of its own account
//! and region, so that is how far a key_id can lead. What the replaced plugin wrote under the alias
//! names no key: where the present one did not wrap it, KMS is asked without naming one, and what
//! a key further away has wrapped is not given out.

mod arn;
mod client;
mod codes;
mod config;
mod dropin;

mod kek;
mod key_id;
mod profile;

mod rotate;
mod sources;
#[cfg(test)]
mod testing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sidekey_core::config::Problems;
use sidekey_core::{Call, Deletion, Error, Files, KeyId, Kind, Provider, Sealed, Secret};
use tokio::time::Instant;

use crate::arn::KeyArn;
use crate::client::Client;
use crate::dropin::environment::Environment;
use crate::kek::{Kek, Material};
use crate::key_id::{Target, Version};

pub use config::Config;

/// The first byte of every ciphertext, as the replaced plugin writes and wants it.
const FORMAT: u8 = b'1';
/// For calls that no caller waits for.
const OWN_TIME: Duration = Duration::from_secs(10);

/// One key at AWS KMS.
pub struct Aws {
    config: Config,
    client: Client,
    /// The key that it stands for now.
    kek: Mutex<Kek>,
}

impl Provider for Aws {
    const NAME: &'static str = "aws";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        config.check(problems);
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.files(&Environment::process())
    }

    fn named_files(config: &Config, files: &Files) -> Vec<PathBuf> {
        config.named_files(files, &Environment::process())
    }

    async fn connect(
        config: &Config,
        files: &Files,
        previous: Option<&Self>,
    ) -> Result<Self, Error> {
        let client = Client::new(config, files).await?;
        let same = previous.filter(|previous| previous.config == *config);
        let before = previous.map(|previous| previous.kek().clone());
        let kek = Kek::find(&client, before.as_ref(), same.is_some()).await?;
        Ok(Self { config: config.clone(), client, kek: Mutex::new(kek) })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        let known = self.kek().clone();
        let new = known.refreshed(&self.client).await?;
        self.keep(&known, new).key_id()
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        call: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let version = Version::parse(key_id.as_str()).ok_or_else(|| {
            Error::new(Kind::Bug, format!("asked to wrap under {key_id}, which is not ours"))
        })?;
        let key = version.arn.to_string();
        let answer = self.client.encrypt(&key, plaintext, call.deadline).await?;
        same_key("kms:Encrypt", &key, answer.key_id())?;
        let blob = answer.ciphertext_blob.unwrap_or_default().into_inner();
        let mut ciphertext = Vec::with_capacity(1 + blob.len());
        ciphertext.push(FORMAT);
        ciphertext.extend_from_slice(&blob);
        let (key_id, annotations) = (key_id.clone(), BTreeMap::new());
        Ok(Sealed { key_id, ciphertext: ciphertext.into(), annotations })
    }

    async fn decrypt(&self, sealed: &Sealed, call: &Call<'_>) -> Result<Secret, Error> {
        Ok(self.unwrap(sealed, call).await?.0)
    }

    async fn verify(&self, sealed: &Sealed, call: &Call<'_>) -> Result<(Secret, KeyId), Error> {
        let (plaintext, material) = self.unwrap(sealed, call).await?;
        let version = Version::parse(sealed.key_id.as_str());
        let (Some(mut version), Some(material)) = (version, material) else {
            return Ok((plaintext, sealed.key_id.clone()));
        };
        let mut kek = self.kek();
        if matches!(kek.material, Material::Unknown(_)) || version.material.is_none() {
            return Ok((plaintext, sealed.key_id.clone()));
        }
        if kek.arn == version.arn {
            kek.material = Material::Known(material.clone());
        }
        version.material = Some(material);
        Ok((plaintext, version.key_id()?))
    }

    fn expiry(&self) -> Option<SystemTime> {
        self.client.account.lease.expiry()
    }

    fn deletion(&self) -> Deletion {
        Deletion { at: self.client.deletion(), allowed: None }
    }

    fn note(&self) -> Option<String> {
        self.kek().note(&self.client.name)
    }
}

impl Aws {
    /// Every change of it is one assignment, which a panic cannot leave half done.
    fn kek(&self) -> MutexGuard<'_, Kek> {
        self.kek.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what KMS has said of `known`. What a verification has told of the material since
    /// KMS was asked is newer.
    fn keep(&self, known: &Kek, mut new: Kek) -> Version {
        let mut kek = self.kek();
        if kek.arn == new.arn && kek.material != known.material {
            new.material = kek.material.clone();
        }
        *kek = new;
        kek.version()
    }

    /// Which key unwraps what `key_id` names, and its ARN.
    fn target(&self, key_id: &KeyId) -> Result<(Target, Arc<str>), Error> {
        let kek = self.kek();
        if kek.is_named_by(key_id.as_str()) {
            return Ok((Target::Key(kek.arn.clone()), kek.text.clone()));
        }
        let target = key_id::target(key_id, &self.client.name, &kek.arn)?;
        let (Target::Key(arn) | Target::OrNeighbour(arn)) = &target;
        let text = arn.to_string().into();
        Ok((target, text))
    }

    /// The plaintext, and the material that had wrapped it if KMS tells.
    async fn unwrap(
        &self,
        sealed: &Sealed,
        call: &Call<'_>,
    ) -> Result<(Secret, Option<String>), Error> {
        let (target, key) = self.target(&sealed.key_id)?;
        let Some((&FORMAT, blob)) = sealed.ciphertext.split_first() else {
            let what = "the ciphertext was written neither by this provider nor by \
                        aws-encryption-provider";
            return Err(Error::new(Kind::Corrupt, what));
        };
        let answer = match self.client.decrypt(Some(&key), blob, call.deadline).await {
            Err(failure)
                if failure.is("IncorrectKeyException")
                    && matches!(target, Target::OrNeighbour(_)) =>
            {
                let answer = self.client.decrypt(None, blob, call.deadline).await?;
                neighbour(&key, answer.key_id())?;
                answer
            }
            result => {
                let answer = result?;
                same_key("kms:Decrypt", &key, answer.key_id())?;
                answer
            }
        };
        let material = answer.key_material_id.filter(|material| key_id::is_material(material));
        let plaintext = Secret::new(answer.plaintext.unwrap_or_default().into_inner());
        Ok((plaintext, material))
    }
}

/// What answered must be what was asked, and KMS always says by its ARN which key that was.
fn same_key(action: &str, asked: &str, answered: Option<&str>) -> Result<(), Error> {
    if answered == Some(asked) {
        return Ok(());
    }
    let both = KeyArn::parse(asked).zip(answered.and_then(KeyArn::parse));
    if both.as_ref().is_some_and(|(asked, answered)| answered.is_same_key(asked)) {
        return Ok(());
    }
    let other = both.map_or_else(|| "no key".to_owned(), |(_, other)| other.to_string());
    Err(not_kms(format!("{action} on {asked} was answered by {other}")))
}

/// An answer that KMS does not give: what is asked in its place may be put right meanwhile.
fn not_kms(what: String) -> Error {
    Error::new(Kind::Unavailable, what)
        .with_hint("see whether the endpoint is AWS KMS and whether a proxy stands between")
}

/// A key that an alias has pointed at before lies where its present one does.
fn neighbour(current: &str, answered: Option<&str>) -> Result<(), Error> {
    let both = KeyArn::parse(current).zip(answered.and_then(KeyArn::parse));
    if both.is_some_and(|(current, arn)| arn.is_neighbour(&current)) {
        return Ok(());
    }
    Err(Error::new(Kind::KeyState, "the data was wrapped by a key of another account or region")
        .with_hint("serve that key too, as a key of its own"))
}

fn own_deadline() -> Instant {
    Instant::now() + OWN_TIME
}

#[cfg(test)]
mod tests;
