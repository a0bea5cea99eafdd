//! Telling each state of a set of files once.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::directories::Directories;
use super::{Digest, Files, ReadState};
use crate::Error;

#[cfg(test)]
mod tests;

/// A good state must hold this long before it is told; also the shortest time
/// between two looks.
const SETTLE: Duration = Duration::from_millis(100);

/// A bad state must hold for so many times [`SETTLE`]: some writers truncate a
/// file, or remove it, a good while before they write it.
const BAD_HOLDS: u32 = 10;

/// What never settles is told as it is after so many times [`SETTLE`].
const MAX_HOLDS: u32 = 30;

/// How often the directories are looked for again if they move meanwhile.
const ATTEMPTS: u32 = 4;

/// Watches files: one per process.
///
/// Events from the kernel only say when to look; what counts is what a look
/// finds. So a missed event costs no more than the time to the next poll.
#[derive(Debug)]
pub struct Watcher {
    directories: Option<Arc<Directories>>,
    poll: Duration,
}

/// The files of one reader; dropping it ends the watches nobody else needs.
pub struct Subscription {
    directories: Option<(Arc<Directories>, u64)>,
    poll: Duration,
    wake: Arc<Notify>,
    paths: BTreeSet<PathBuf>,
    told: Option<Digest>,
    settling: Option<Settling>,
    looked: Option<Instant>,
}

/// A state that has not been told yet.
struct Settling {
    digest: Digest,
    /// Since when it has been just so.
    since: Instant,
    /// Since when the files have differed from what was told.
    began: Instant,
}

impl Watcher {
    /// Looks at files at least every `poll`, and sooner where the kernel tells of changes.
    pub fn new(poll: Duration) -> Self {
        let directories = Directories::new()
            .inspect_err(|error| {
                tracing::warn!(
                    %error,
                    ?poll,
                    hint = "raise fs.inotify.max_user_instances",
                    "cannot watch directories; changes of files are found by polling"
                );
            })
            .ok();
        Self { directories: directories.map(Arc::new), poll }
    }

    /// As if inotify were not to be had.
    #[cfg(test)]
    pub(super) fn polling(poll: Duration) -> Self {
        Self { directories: None, poll }
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.directories.as_ref().map_or(0, |directories| directories.watched())
    }

    /// Begins to watch `paths`; nothing has been told yet.
    pub fn subscribe(&self, paths: BTreeSet<PathBuf>) -> Subscription {
        let wake = Arc::new(Notify::new());
        let directories = self.directories.clone().map(|directories| {
            let id = directories.join(wake.clone());
            (directories, id)
        });
        let poll = self.poll.max(SETTLE);
        let (told, settling, looked) = (None, None, None);
        Subscription { directories, poll, wake, paths, told, settling, looked }
    }
}

impl Subscription {
    /// Tells each distinct state of the files once: a snapshot, or why there is
    /// none (missing, empty, unreadable).
    ///
    /// The first state is told at once, unless [`told`](Self::told) or
    /// [`read`](Self::read) came before. Every later one is told when it differs
    /// from the last one told and has settled: a file that is empty or half
    /// written for a moment is not told. States in between may be skipped, the
    /// last one never. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Result<Files, Error> {
        loop {
            let state = self.look();
            if self.told == Some(state.digest) {
                self.settling = None;
                self.stirred().await;
            } else if self.told.is_none() || self.settled(&state) {
                self.settling = None;
                self.told = Some(state.digest);
                return state.result;
            } else {
                sleep(SETTLE).await;
            }
        }
    }

    /// Reads the files now, without waiting for them to settle; the result counts
    /// as told.
    pub fn read(&mut self) -> Result<Files, Error> {
        let state = self.look();
        self.told = Some(state.digest);
        state.result
    }

    /// Says that the caller already knows the state with this digest.
    pub fn told(&mut self, digest: Digest) {
        self.told = Some(digest);
    }

    /// Watches these paths from now on; another set counts as not told.
    pub fn replace(&mut self, paths: BTreeSet<PathBuf>) {
        if self.paths != paths {
            self.paths = paths;
            self.told = None;
        }
    }

    /// The paths that are watched.
    pub fn paths(&self) -> &BTreeSet<PathBuf> {
        &self.paths
    }

    /// Watches first and reads then: what changes after the reading is noticed.
    fn look(&mut self) -> ReadState {
        self.looked = Some(Instant::now());
        if let Some((directories, id)) = &self.directories {
            for _ in 0..ATTEMPTS {
                if !directories.watch(*id, &self.paths) {
                    break;
                }
            }
        }
        ReadState::of(self.paths.iter().map(PathBuf::as_path))
    }

    /// Whether the state has held long enough; remembered in `self`, so that a caller
    /// who drops the future often does not begin anew each time.
    fn settled(&mut self, state: &ReadState) -> bool {
        let now = Instant::now();
        let fresh = Settling { digest: state.digest, since: now, began: now };
        let settling = self.settling.get_or_insert(fresh);
        if settling.digest != state.digest {
            settling.digest = state.digest;
            settling.since = now;
        }
        let holds = if state.result.is_ok() { 1 } else { BAD_HOLDS };
        now - settling.since >= SETTLE * holds || now - settling.began >= SETTLE * MAX_HOLDS
    }

    /// Waits for an event or the poll, but never less than [`SETTLE`] since the
    /// last look: a file that is rewritten all the time must not keep us busy.
    async fn stirred(&self) {
        if timeout(self.poll, self.wake.notified()).await.is_ok()
            && let Some(looked) = self.looked
        {
            sleep_until(looked + SETTLE).await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some((directories, id)) = &self.directories {
            directories.leave(*id);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl fmt::Debug for Directories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Directories")
    }
}
