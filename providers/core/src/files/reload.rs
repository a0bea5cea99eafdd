//! A configuration file that is taken over when it changes, and tried again when it was refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::Backoff;
use crate::config::{mistakes, parse_file};
use crate::files::{Digest, Files, Subscription, Watcher};

/// The waits before a refused configuration is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// Watches a configuration file.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    subscription: Subscription,
    refused: Option<Refused>,
}

#[derive(Debug)]
struct Refused {
    files: Files,
    backoff: Backoff,
    /// When it is tried again: a moment, because whoever waits for it may be called away.
    due: Instant,
}

impl Refused {
    fn new(files: Files, mut backoff: Backoff) -> Self {
        let due = Instant::now() + backoff.delay();
        Self { files, backoff, due }
    }
}

impl ConfigFile {
    /// Watches from what is `known` on, or from what is there now.
    pub(crate) fn watch(watcher: &Watcher, path: &Path, known: Option<Digest>) -> Self {
        let mut subscription = watcher.subscribe([path.to_owned()].into());
        match known {
            Some(known) => subscription.told(known),
            None => drop(subscription.read()),
        }
        Self { path: path.to_owned(), subscription, refused: None }
    }

    /// Waits for a document to take over: a changed one, or a refused one once more. `Err` says
    /// why the changed file holds no document. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Value, String> {
        let due = self.refused.as_ref().map(|refused| refused.due);
        let files = tokio::select! {
            files = self.subscription.changed() => {
                self.refused = None;
                files
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                match &self.refused {
                    Some(refused) => Ok(refused.files.clone()),
                    None => self.subscription.read(),
                }
            }
        };
        let files = files.map_err(|error| error.report())?;
        let result = self.document(&files);
        let backoff = self.refused.as_ref().map_or(RETRY, |refused| refused.backoff);
        self.refused = Some(Refused::new(files, backoff));
        // A document that cannot be read does not get better by waiting.
        result.inspect_err(|_| self.refused = None)
    }

    /// What is in the file now was refused by the caller: it is tried again.
    pub(crate) fn retry_current(&mut self) {
        let files = self.subscription.read().ok();
        self.refused = files.map(|files| Refused::new(files, RETRY));
    }

    /// The document was taken over.
    pub(crate) fn accepted(&mut self) {
        self.refused = None;
    }

    fn document(&self, files: &Files) -> Result<Value, String> {
        parse_file(&self.path, files)
            .map_err(|problems| mistakes(&self.path.display().to_string(), &problems))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_change_between_reading_and_watching_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.yaml");
        std::fs::write(&path, "a: 1").unwrap();
        let read = Files::read([path.as_path()]).unwrap();
        std::fs::write(&path, "a: 2").unwrap();
        let watcher = Watcher::new(Duration::from_secs(1));
        let mut file = ConfigFile::watch(&watcher, &path, Some(read.digest()));
        assert_eq!(file.next().await.unwrap()["a"], 2);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_called_away_does_not_put_the_next_try_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.yaml");
        std::fs::write(&path, "a: 1").unwrap();
        let mut file = ConfigFile::watch(&Watcher::new(Duration::from_secs(3600)), &path, None);
        file.retry_current();
        let due = file.refused.as_ref().unwrap().due;
        let mut calls = 0;
        while tokio::time::timeout(Duration::from_millis(10), file.next()).await.is_err() {
            calls += 1;
            assert!(Instant::now() < due + Duration::from_secs(1), "called away {calls} times");
        }
    }

    #[tokio::test]
    async fn a_refused_document_is_tried_again_and_an_unreadable_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.yaml");
        std::fs::write(&path, "a: 1").unwrap();
        let watcher = Watcher::new(Duration::from_secs(1));
        let mut file = ConfigFile::watch(&watcher, &path, None);
        std::fs::write(&path, "a: 2").unwrap();
        for _ in 0..2 {
            assert_eq!(file.next().await.unwrap()["a"], 2, "refused so far");
        }
        std::fs::write(&path, "a: [").unwrap();
        assert!(file.next().await.unwrap_err().contains("c.yaml"));
        assert!(file.refused.is_none());
        std::fs::write(&path, "a: 3").unwrap();
        assert_eq!(file.next().await.unwrap()["a"], 3);
        file.accepted();
        assert!(file.refused.is_none());
    }
}
