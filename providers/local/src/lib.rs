//! The embedded default: AES-256-GCM with a key in a local file.
//!
//! It is for development, demonstrations and air-gapped single nodes, and it is honest about that:
//! the key lies beside the data that it protects, so it protects backups and stolen disks of etcd,
//! not a stolen node. It refuses to overwrite, to shrink or to guess a key file: a damaged or
//! missing one is an error, and a new one is made only on request.
//!
//! The one invariant: a version, once written, stays in the file for ever, and the write version
//! only moves forward. Rotation has two steps, `rotate` (add a version) and `activate` (write with
//! it), so that several processes that share the file can all read a version before one of them
//! writes with it; a process that meets a version it does not know reads the file again.

mod commands;
mod keyfile;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use serde::Deserialize;
use sidekey_core::config::Problems;
use sidekey_core::{Call, Error, Files, KeyId, Kind, Provider, Sealed, Secret};

pub use commands::{Flags, LocalCommand};
pub use keyfile::KeyFile;

/// The first byte of every ciphertext: what follows is nonce, data and tag.
const FORMAT: u8 = 1;
/// Length of the GCM tag.
const TAG_LEN: usize = 16;

/// A key file in use.
#[derive(Debug)]
pub struct Local {
    file: KeyFile,
    keys: BTreeMap<u32, RandomizedNonceKey>,
}

/// One key of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    kek: Option<Kek>,
    credentials: Option<Credentials>,
}

/// Which KEK it must be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Kek {
    lineage: Option<String>,
}

/// Where the KEK is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Credentials {
    key_file: Option<PathBuf>,
}

impl Provider for Local {
    const NAME: &'static str = "local";
    type Config = Config;

    fn check(config: &Config, problems: &mut Problems) {
        match config.key_file() {
            None => problems.add("credentials.keyFile", "is required"),
            Some(path) if !path.is_absolute() => {
                problems.add("credentials.keyFile", "must be an absolute path");
            }
            Some(_) => {}
        }
        let lineage = config.kek.as_ref().and_then(|kek| kek.lineage.as_deref());
        if lineage.is_some_and(|lineage| !keyfile::is_lineage(lineage)) {
            problems.add(
                "kek.lineage",
                "is not 32 lower-case hex digits: `sidekey-local show` prints it",
            );
        }
    }

    fn files(config: &Config) -> Vec<PathBuf> {
        config.key_file().cloned().into_iter().collect()
    }

    async fn connect(
        config: &Config,
        files: &Files,
        previous: Option<&Self>,
    ) -> Result<Self, Error> {
        let path =
            config.key_file().ok_or_else(|| Error::new(Kind::Config, "no key file is set"))?;
        let file = KeyFile::parse(path, files.secret(path)?.expose())?;
        let wanted = config.kek.as_ref().and_then(|kek| kek.lineage.as_deref());
        if wanted.is_some_and(|wanted| wanted != file.lineage()) {
            let text = format!(
                "{} has lineage {}, not the configured one",
                path.display(),
                file.lineage()
            );
            return Err(Error::new(Kind::KeyState, text).with_hint(
                "this is another key: restore the right file, or give this one a new key id",
            ));
        }
        if let Some(previous) = previous {
            file.continues(&previous.file)?;
        }
        store::warn_if_open(path);
        let keys = file
            .versions()
            .map(|(version, material)| Ok((version, cipher(material)?)))
            .collect::<Result<_, Error>>()?;
        Ok(Self { file, keys })
    }

    async fn key_id(&self) -> Result<KeyId, Error> {
        self.name(self.file.active())
    }

    async fn encrypt(
        &self,
        key_id: &KeyId,
        plaintext: &[u8],
        _: &Call<'_>,
    ) -> Result<Sealed, Error> {
        let key = self.key(key_id)?;
        let mut out = Vec::with_capacity(1 + NONCE_LEN + plaintext.len() + TAG_LEN);
        out.push(FORMAT);
        out.extend_from_slice(&[0; NONCE_LEN]);
        out.extend_from_slice(plaintext);
        // The nonce is made by what encrypts: FIPS 140-3 approves no other.
        let (nonce, tag) = key
            .seal_in_place_separate_tag(aad(key_id), &mut out[1 + NONCE_LEN..])
            .map_err(|_| Error::new(Kind::Bug, "AES-GCM refused to encrypt"))?;
        out[1..=NONCE_LEN].copy_from_slice(nonce.as_ref());
        out.extend_from_slice(tag.as_ref());
        let annotations = BTreeMap::new();
        Ok(Sealed { key_id: key_id.clone(), ciphertext: out.into(), annotations })
    }

    async fn decrypt(&self, sealed: &Sealed, _: &Call<'_>) -> Result<Secret, Error> {
        let key = self.key(&sealed.key_id)?;
        let corrupt = |why| Error::new(Kind::Corrupt, why);
        let (format, rest) =
            sealed.ciphertext.split_first().ok_or_else(|| corrupt("no ciphertext"))?;
        if *format != FORMAT {
            return Err(corrupt("the ciphertext was not made by sidekey-local"));
        }
        if rest.len() < NONCE_LEN + TAG_LEN {
            return Err(corrupt("the ciphertext is too short"));
        }
        let (nonce, data) = rest.split_at(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| corrupt("bad nonce"))?;
        let mut buffer = data.to_vec();
        let plaintext = key.open_in_place(nonce, aad(&sealed.key_id), &mut buffer);
        let len = plaintext.map_err(|_| corrupt("the ciphertext does not authenticate"))?.len();
        buffer.truncate(len);
        Ok(Secret::new(buffer))
    }

    fn note(&self) -> Option<String> {
        let (active, count) = (self.file.active(), self.keys.len());
        Some(format!("version {active} of {count} writes; for development and single nodes"))
    }
}

impl Config {
    fn key_file(&self) -> Option<&PathBuf> {
        self.credentials.as_ref()?.key_file.as_ref()
    }
}

impl Local {
    /// `local/<lineage>/<version>`: another file never looks like this one.
    fn name(&self, version: u32) -> Result<KeyId, Error> {
        KeyId::new(&format!("local/{}/{version}", self.file.lineage()))
    }

    /// Finds the version that a key_id names; the key_id comes from etcd and may be forged.
    fn key(&self, key_id: &KeyId) -> Result<&RandomizedNonceKey, Error> {
        let unknown = |why: &str| Error::new(Kind::KeyState, format!("{key_id}: {why}"));
        let rest = key_id.as_str().strip_prefix("local/").and_then(|rest| rest.split_once('/'));
        let Some((lineage, version)) = rest else {
            return Err(unknown("is not a key_id of sidekey-local"));
        };
        if lineage != self.file.lineage() {
            return Err(unknown("belongs to another key file")
                .with_hint("restore the file of that lineage, as a key of its own"));
        }
        let number: Option<u32> = version.parse().ok().filter(|n: &u32| n.to_string() == version);
        let number = number.ok_or_else(|| unknown("has no sound version"))?;
        self.keys.get(&number).ok_or_else(|| {
            unknown("this version is not in the key file")
                .with_hint("the file may be older than the data: restore the newest one")
                .after_reload()
        })
    }
}

/// Binds a ciphertext to its key_id, so that neither can be exchanged.
fn aad(key_id: &KeyId) -> Aad<Vec<u8>> {
    Aad::from([b"sidekey-local/1/", key_id.as_str().as_bytes()].concat())
}

fn cipher(material: &Secret) -> Result<RandomizedNonceKey, Error> {
    RandomizedNonceKey::new(&AES_256_GCM, material.expose())
        .map_err(|_| Error::new(Kind::Bug, "a key version is not 32 bytes long"))
}

#[cfg(test)]
mod tests;
