//! The key file: JSON with a lineage, the versions, the write version and a checksum.

use std::fmt;
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sidekey_core::{Error, Kind, Secret, hex};
use zeroize::Zeroizing;

/// The only format so far.
const FORMAT: &str = "sidekey-local/1";
/// Far more than anybody rotates through, and well below the size that a file may have to be read.
const MAX_VERSIONS: usize = 4096;
/// Bytes of an AES-256 key.
const KEY_LEN: usize = 32;

/// The content of a key file that has been checked.
#[derive(Clone)]
pub struct KeyFile {
    raw: Raw,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    format: String,
    lineage: String,
    active: u32,
    versions: Vec<Version>,
    checksum: String,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Version {
    version: u32,
    key: Material,
}

/// Key bytes, in the file as base64.
#[derive(Clone, PartialEq, Eq)]
struct Material(Secret);

impl KeyFile {
    /// A new file with one version, which writes.
    pub fn create() -> Result<Self, Error> {
        let lineage = hex(Secret::random(16)?.expose());
        let versions = vec![Version { version: 1, key: Material(Secret::random(KEY_LEN)?) }];
        let format = FORMAT.to_owned();
        let raw = Raw { format, lineage, active: 1, versions, checksum: String::new() };
        Ok(Self { raw }.sealed())
    }

    /// Reads a file; anything unsound in it is an error that says what to do.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let damaged = |why: String| {
            Error::new(Kind::Config, format!("key file {} is damaged: {why}", path.display()))
                .with_hint("restore it from a backup; it is never repaired or replaced by itself")
        };
        let raw: Raw = serde_json::from_slice(bytes).map_err(|error| {
            // The parser's own text could quote the file.
            damaged(format!("not readable at line {} column {}", error.line(), error.column()))
        })?;
        if raw.format != FORMAT {
            let text = format!("key file {} has an unknown format", path.display());
            return Err(Error::new(Kind::Config, text)
                .with_hint(format!("this binary reads {FORMAT}: use a newer one")));
        }
        let file = Self { raw };
        file.check().map_err(|why| damaged(why.into()))?;
        Ok(file)
    }

    /// The identity of the file, in every key_id.
    pub fn lineage(&self) -> &str {
        &self.raw.lineage
    }

    /// The version that writes.
    pub fn active(&self) -> u32 {
        self.raw.active
    }

    /// The newest version.
    pub fn latest(&self) -> u32 {
        self.raw.versions.last().map_or(0, |version| version.version)
    }

    /// All versions, oldest first.
    pub fn versions(&self) -> impl Iterator<Item = (u32, &Secret)> {
        self.raw.versions.iter().map(|version| (version.version, &version.key.0))
    }

    /// The same with one version more; the write version stays.
    pub fn rotated(&self) -> Result<Self, Error> {
        if self.raw.versions.len() >= MAX_VERSIONS {
            let text = format!("the key has {MAX_VERSIONS} versions, and can have no more");
            return Err(Error::new(Kind::KeyState, text)
                .with_hint("make another key under a new key id, and keep this one to read"));
        }
        let version = self.latest() + 1;
        let mut raw = self.raw.clone();
        raw.versions.push(Version { version, key: Material(Secret::random(KEY_LEN)?) });
        Ok(Self { raw }.sealed())
    }

    /// With as many versions as there can be.
    #[cfg(test)]
    pub(crate) fn full() -> Result<Self, Error> {
        let mut raw = Self::create()?.raw;
        for version in 2..=u32::try_from(MAX_VERSIONS).unwrap_or(u32::MAX) {
            raw.versions.push(Version { version, key: Material(Secret::random(KEY_LEN)?) });
        }
        Ok(Self { raw }.sealed())
    }

    /// The same with another write version: a key_id must never come back, so only forward.
    pub fn activated(&self, version: u32) -> Result<Self, Error> {
        let invalid = |text: String| Error::new(Kind::Invalid, text);
        if !self.raw.versions.iter().any(|known| known.version == version) {
            return Err(invalid(format!("version {version} is not in the key file"))
                .with_hint("`rotate` adds one; `show` lists them"));
        }
        if version < self.raw.active {
            let text = format!("version {version} is older than the active {}", self.raw.active);
            return Err(invalid(text)
                .with_hint("a key_id must never come back: `rotate` adds a new version"));
        }
        let mut raw = self.raw.clone();
        raw.active = version;
        Ok(Self { raw }.sealed())
    }

    /// Whether this file can take the place of `previous` without making data unreadable.
    pub fn continues(&self, previous: &Self) -> Result<(), Error> {
        let refused = |why: String| {
            Error::new(Kind::KeyState, why)
                .with_hint("put back a file that holds every version; the loaded one stays in use")
        };
        if self.raw.lineage != previous.raw.lineage {
            return Err(refused("the key file was replaced by another key".into()));
        }
        for old in &previous.raw.versions {
            if !self.raw.versions.iter().any(|new| new.version == old.version && new.key == old.key)
            {
                return Err(refused(format!(
                    "version {} is missing or altered in the key file",
                    old.version
                )));
            }
        }
        if self.raw.active < previous.raw.active {
            return Err(refused("the key file went back to an older write version".into()));
        }
        Ok(())
    }

    /// The bytes to write.
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, Error> {
        // Large enough not to leave copies behind while growing.
        let capacity = 512 + self.raw.versions.len() * 160;
        let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
        serde_json::to_writer_pretty(&mut *bytes, &self.raw).map_err(|error| {
            Error::new(Kind::Bug, "cannot encode the key file").with_source(error)
        })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    fn sealed(mut self) -> Self {
        self.raw.checksum = self.checksum();
        self
    }

    fn check(&self) -> Result<(), &'static str> {
        if !is_lineage(&self.raw.lineage) {
            return Err("its lineage is not 32 hex digits");
        }
        let numbers: Vec<u32> = self.raw.versions.iter().map(|version| version.version).collect();
        if numbers.first() != Some(&1)
            || !numbers.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1))
        {
            return Err("its versions are not 1, 2, 3 …");
        }
        if self.raw.active == 0 || self.raw.active > self.latest() {
            return Err("its active version does not exist");
        }
        if self.raw.checksum != self.checksum() {
            return Err("its checksum does not match");
        }
        Ok(())
    }

    /// Against bit rot and careless editing, not against an attacker, who could recompute it.
    fn checksum(&self) -> String {
        let mut context = Context::new(&SHA256);
        context.update(FORMAT.as_bytes());
        context.update(self.raw.lineage.as_bytes());
        context.update(&self.raw.active.to_be_bytes());
        for version in &self.raw.versions {
            context.update(&version.version.to_be_bytes());
            context.update(version.key.0.expose());
        }
        hex(context.finish().as_ref())
    }
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile")
            .field("lineage", &self.raw.lineage)
            .field("active", &self.raw.active)
            .field("versions", &self.raw.versions.len())
            .finish()
    }
}

impl<'de> Deserialize<'de> for Material {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Borrowed, so that no copy of the text outlives this.
        let text = <&str>::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map(Secret::new);
        match bytes {
            Ok(secret) if secret.expose().len() == KEY_LEN => Ok(Self(secret)),
            _ => Err(serde::de::Error::custom("a key is not 32 bytes in base64")),
        }
    }
}

impl Serialize for Material {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(STANDARD.encode(self.0.expose())))
    }
}

/// 32 lower-case hex digits.
pub(crate) fn is_lineage(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
