//! The last good configuration, kept on disk beside the socket, so that a restart after a refused
//! revision is no outage. It holds no secrets: keys are named by their sockets.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidekey_core::{Endpoint, hex, sha256};

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LastGood {
    /// The configuration that was in use.
    pub(crate) document: Value,
    /// Keys that have written and do no longer: they must not write again under their number.
    pub(crate) past_writers: BTreeSet<u64>,
    /// Against a file that was cut off or edited.
    checksum: String,
}

impl LastGood {
    pub(crate) fn new(document: Value, past_writers: BTreeSet<u64>) -> Self {
        let checksum = checksum(&document, &past_writers);
        Self { document, past_writers, checksum }
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
        let bytes = std::fs::read(path).ok()?;
        let stored: Option<Self> = serde_json::from_slice(&bytes).ok();
        let sound = stored.filter(|s| s.checksum == checksum(&s.document, &s.past_writers));
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
        let written = serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::other)
            .and_then(|bytes| file.write_all(&bytes))
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&temporary, path));
        written.inspect_err(|_| {
            let _ = std::fs::remove_file(&temporary);
        })
    }
}

fn checksum(document: &Value, past_writers: &BTreeSet<u64>) -> String {
    hex(&sha256(format!("{document}{past_writers:?}").as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_stored_is_loaded_and_what_was_damaged_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let listen: Endpoint =
            directory.path().join("kms.sock").display().to_string().parse().unwrap();
        let path = LastGood::path(&listen).unwrap();
        assert_eq!(LastGood::load(&path), None);
        let good = LastGood::new(json!({"keys": [1, 2]}), BTreeSet::from([1]));
        good.store(&path).unwrap();
        assert_eq!(LastGood::load(&path), Some(good));
        let text = std::fs::read_to_string(&path).unwrap();
        for damaged in [&text[..text.len() / 2], &text.replace('2', "3"), ""] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(LastGood::load(&path), None);
        }
    }
}
