//! What is kept on disk, written by one at a time and in the order in which it was told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sidekey_core::config::KeyNumber;
use tokio::sync::{Mutex, Notify};

use crate::lastgood::LastGood;
use crate::memory::Memory;

/// A disk that takes longer keeps nobody from going on.
const PATIENCE: Duration = Duration::from_secs(2);

/// The last good configuration on disk.
#[derive(Default)]
pub(crate) struct Store {
    contents: Arc<Mutex<Contents>>,
    /// Told by keys that have read something that is to be kept, and do not wait for it.
    pub(crate) remembered: Notify,
}

/// What is kept, and where.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) document: Arc<Value>,
    pub(crate) past_writers: BTreeSet<u64>,
    pub(crate) memory: BTreeMap<KeyNumber, Memory>,
    /// Beside the socket.
    pub(crate) path: Option<PathBuf>,
    /// A copy, if it can be written there.
    pub(crate) beside: Option<PathBuf>,
}

impl Store {
    /// Keeps another configuration from now on.
    pub(crate) async fn replace(&self, next: Contents) {
        self.write(|contents| *contents = next).await;
    }

    /// Keeps what a key has written, with the configuration in use.
    pub(crate) async fn keep(&self, key: KeyNumber, memory: Memory) {
        self.write(move |contents| {
            contents.memory.insert(key, memory);
        })
        .await;
    }

    /// Waits until it is on disk, but not for ever. The thread that serves requests does not wait
    /// with it.
    async fn write(&self, change: impl FnOnce(&mut Contents) + Send + 'static) {
        let contents = self.contents.clone();
        let writing = tokio::spawn(async move {
            let mut contents = contents.lock_owned().await;
            change(&mut contents);
            // It fails only if it panics or the process ends.
            let _ = tokio::task::spawn_blocking(move || contents.write()).await;
        });
        if tokio::time::timeout(PATIENCE, writing).await.is_err() {
            tracing::warn!("the disk is slow: the last good configuration is not on it yet");
        }
    }
}

impl Contents {
    fn write(&self) {
        let stored = LastGood::new(&self.document, self.past_writers.clone(), &self.memory);
        if let Some(path) = &self.path
            && let Err(error) = stored.store(path)
        {
            tracing::warn!(file = %path.display(), %error, "the last good configuration cannot be kept on disk");
        }
        if let Some(path) = &self.beside
            && let Err(error) = stored.store(path)
        {
            // Mounted Secrets are read-only.
            tracing::debug!(file = %path.display(), %error, "no copy of the last good configuration");
        }
    }
}

#[cfg(test)]
impl Store {
    /// A disk that writes nothing until this is dropped.
    pub(crate) async fn hang(&self) -> tokio::sync::OwnedMutexGuard<Contents> {
        self.contents.clone().lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use sidekey_core::{KeyId, Sealed};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_is_waited_for_two_seconds_and_told_later() {
        let store = Store::default();
        let sealed = Sealed {
            key_id: KeyId::new("v/1").unwrap(),
            ciphertext: "wrapped".into(),
            annotations: BTreeMap::new(),
        };
        let (disk, began) = (store.hang().await, Instant::now());
        store.keep(KeyNumber(1), Memory::read(sealed)).await;
        assert_eq!(began.elapsed().as_secs(), 2);
        drop(disk);
        while store.contents.lock().await.memory.is_empty() {
            tokio::task::yield_now().await;
        }
    }
}
