//! The last good configuration, kept on disk beside the socket, so that a restart after a refused
//! revision is no outage, with what its keys must be able to read. It holds no secrets: keys are
//! named by their sockets, and what they must read is wrapped.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidekey_core::config::KeyNumber;
use sidekey_core::{Endpoint, hex, sha256};

use crate::memory::Memory;

/// More than the most keys with all that they remember need.
const MAX_SIZE: u64 = 16 * 1024 * 1024;

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastGood {
    /// The configuration that was in use.
    pub(crate) document: Value,
    /// Keys that have written and do no longer: they must not write again under their number.
    pub(crate) past_writers: BTreeSet<u64>,
    /// Against a file that was cut off or edited.
    checksum: String,
    /// What keys have written or read. A file without it is one of an older version, which in
    /// turn reads this one: hence a checksum of its own.
    #[serde(default)]
    memory: BTreeMap<u64, Value>,
    #[serde(default)]
    memory_checksum: String,
}

impl LastGood {
    pub(crate) fn new(
        document: &Value,
        past_writers: BTreeSet<u64>,
        memory: &BTreeMap<KeyNumber, Memory>,
    ) -> Self {
        let checksum = checksum(document, &past_writers);
        let memory = memory.iter().map(|(id, memory)| (id.0, memory.document())).collect();
        let memory_checksum = memory_checksum(&memory);
        Self { document: document.clone(), past_writers, checksum, memory, memory_checksum }
    }

    /// What keys have written or read.
    pub(crate) fn memory(&self) -> BTreeMap<KeyNumber, Memory> {
        let parsed = |(id, document): (&u64, &Value)| {
            Some((KeyNumber(*id), Memory::parse(document.clone())?))
        };
        self.memory.iter().filter_map(parsed).collect()
    }

    /// Where it lies for a shim that listens there; abstract sockets have no directory.
    pub(crate) fn path(listen: &Endpoint) -> Option<PathBuf> {
        let path = listen.path()?;
        let name = path.file_name()?.to_string_lossy();
        Some(path.with_file_name(format!(".{name}.last-good.json")))
    }

    /// Where it lies, too, if that directory can be written to: there it is found when the
    /// configuration cannot be read and so cannot say where the socket is.
    pub(crate) fn beside(config: &Path) -> Option<PathBuf> {
        let name = config.file_name()?.to_string_lossy();
        Some(config.with_file_name(format!(".{name}.last-good.json")))
    }

    /// Reads it; one that is damaged is none, and that is said.
    pub(crate) fn load(path: &Path) -> Option<Self> {
        let bytes = match read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "the last good configuration on disk cannot be read and is ignored");
                return None;
            }
        };
        let stored: Option<Self> = serde_json::from_slice(&bytes).ok();
        let sound = stored.filter(|s| {
            let old = s.memory.is_empty() && s.memory_checksum.is_empty();
            s.checksum == checksum(&s.document, &s.past_writers)
                && (old || s.memory_checksum == memory_checksum(&s.memory))
        });
        if sound.is_none() {
            tracing::warn!(file = %path.display(), "the last good configuration on disk is damaged and is ignored");
        }
        sound
    }

    /// Replaces it atomically.
    pub(crate) fn store(&self, path: &Path) -> std::io::Result<()> {
        let temporary = path.with_extension("tmp");
        let _ = std::fs::remove_file(&temporary);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        let written = self
            .bytes()
            .and_then(|bytes| file.write_all(&bytes))
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&temporary, path))
            // The name is on disk only with its directory: it must outlast a loss of power.
            .and_then(|()| std::fs::File::open(path.parent().unwrap_or(path))?.sync_all());
        written.inspect_err(|_| {
            let _ = std::fs::remove_file(&temporary);
        })
    }

    fn bytes(&self) -> std::io::Result<Vec<u8>> {
        let bytes = serde_json::to_vec_pretty(self).map_err(std::io::Error::other)?;
        if bytes.len() as u64 > MAX_SIZE {
            let text = format!("it has {} bytes, at most {MAX_SIZE} are read again", bytes.len());
            return Err(std::io::Error::other(text));
        }
        Ok(bytes)
    }
}

/// Reads a regular file of our own or of root, which is not a link and not longer than we write; a
/// FIFO is not waited for.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(std::io::Error::other)?;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let (metadata, own) = (file.metadata()?, rustix::process::geteuid().as_raw());
    if !metadata.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    // Whoever else may write in that directory must not tell us where keys are.
    if ![0, own].contains(&metadata.uid()) {
        return Err(std::io::Error::other(format!("it belongs to uid {}", metadata.uid())));
    }
    let mut bytes = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(std::io::Error::other(format!("it is longer than {MAX_SIZE} bytes")));
    }
    Ok(bytes)
}

fn memory_checksum(memory: &BTreeMap<u64, Value>) -> String {
    let text: String = memory.iter().map(|(id, document)| format!("{id}{document}")).collect();
    hex(&sha256(text.as_bytes()))
}

fn checksum(document: &Value, past_writers: &BTreeSet<u64>) -> String {
    hex(&sha256(format!("{document}{past_writers:?}").as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::Bytes;
    use serde_json::json;
    use sidekey_core::{KeyId, Sealed};

    use super::*;

    fn memory() -> BTreeMap<KeyNumber, Memory> {
        let key_id = KeyId::new("v/1").unwrap();
        let (ciphertext, annotations) = (Bytes::from_static(b"wrapped"), BTreeMap::new());
        let memory = Memory::read(Sealed { key_id, ciphertext, annotations });
        [(KeyNumber(2), memory)].into()
    }

    #[test]
    fn what_was_stored_is_loaded_and_what_was_damaged_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let listen: Endpoint =
            directory.path().join("kms.sock").display().to_string().parse().unwrap();
        let path = LastGood::path(&listen).unwrap();
        assert_eq!(LastGood::load(&path), None);
        let good = LastGood::new(&json!({"keys": [1, 2]}), BTreeSet::from([1]), &memory());
        good.store(&path).unwrap();
        let loaded = LastGood::load(&path).unwrap();
        assert_eq!(loaded.memory(), memory());
        assert_eq!(loaded, good);
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in
            [&text[..text.len() / 2], &text.replace('2', "3"), &text.replace("v/1", "v/9"), ""]
        {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(LastGood::load(&path), None);
        }
    }

    #[test]
    fn numbers_of_any_length_damage_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("last-good");
        let numbers: Vec<f64> = (1..2000).map(|n| f64::from(n).sqrt() / 7.0).collect();
        let good = LastGood::new(&json!({"keys": numbers}), BTreeSet::new(), &BTreeMap::new());
        good.store(&path).unwrap();
        assert_eq!(LastGood::load(&path).map(|loaded| loaded.document), Some(good.document));
    }

    #[test]
    fn a_file_of_a_version_without_memory_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("last-good");
        // As sha256 of `{"keys":[1]}{7}` is.
        let checksum = hex(&sha256(br#"{"keys":[1]}{7}"#));
        let old = json!({"document": {"keys": [1]}, "past_writers": [7], "checksum": checksum});
        std::fs::write(&path, old.to_string()).unwrap();
        let loaded = LastGood::load(&path).unwrap();
        assert_eq!(loaded.past_writers, BTreeSet::from([7]));
        assert!(loaded.memory().is_empty());
    }

    #[test]
    fn what_belongs_to_somebody_else_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("last-good");
        LastGood::new(&json!({}), BTreeSet::new(), &memory()).store(&path).unwrap();
        assert!(LastGood::load(&path).is_some());
        std::os::unix::fs::chown(&path, Some(4242), None).expect("run it as root");
        assert_eq!(LastGood::load(&path), None);
    }

    #[test]
    fn what_is_no_regular_file_is_not_followed_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("there"), directory.path().join("link"));
        LastGood::new(&json!({}), BTreeSet::new(), &memory()).store(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(LastGood::load(&path).is_some());
        assert_eq!(LastGood::load(&link), None);
        assert_eq!(LastGood::load(directory.path()), None);
        let long = std::fs::File::create(&path).unwrap();
        long.set_len(MAX_SIZE + 1).unwrap();
        assert_eq!(LastGood::load(&path), None);
    }
}
