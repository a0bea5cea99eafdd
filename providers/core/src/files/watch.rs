//! Telling each state of a set of files once.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::inotify::Inotify;
use super::route::Route;
use super::{Digest, Files, State};
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

/// How often the way to the files is walked again if it moves meanwhile.
const ATTEMPTS: u32 = 4;

/// Watches files: one per process, without a thread or a task of its own.
///
/// Events from the kernel only say when to look; what counts is what a look
/// finds. So a missed event costs no more than the time to the next poll.
#[derive(Debug)]
pub struct Watcher {
    inotify: Option<Arc<Inotify>>,
    poll: Duration,
}

/// The files of one reader; dropping it ends the watches nobody else needs.
pub struct Subscription {
    inotify: Option<(Arc<Inotify>, u64)>,
    poll: Duration,
    wake: Arc<Notify>,
    paths: BTreeSet<PathBuf>,
    told: Option<Digest>,
    looked: Option<Instant>,
}

impl Watcher {
    /// Looks at files at least every `poll`, and sooner where inotify works.
    pub fn new(poll: Duration) -> Self {
        let inotify = Inotify::open()
            .inspect_err(|error| {
                tracing::warn!(
                    %error,
                    ?poll,
                    hint = "raise fs.inotify.max_user_instances",
                    "cannot use inotify; changes of files are found by polling"
                );
            })
            .ok();
        Self { inotify: inotify.map(Arc::new), poll }
    }

    /// As if inotify were not to be had.
    #[cfg(test)]
    pub(super) fn polling(poll: Duration) -> Self {
        Self { inotify: None, poll }
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.inotify.as_ref().map_or(0, |inotify| inotify.watched())
    }

    /// Begins to watch `paths`; nothing has been told yet.
    pub fn subscribe(&self, paths: BTreeSet<PathBuf>) -> Subscription {
        let wake = Arc::new(Notify::new());
        let inotify = self.inotify.clone().map(|inotify| {
            let id = inotify.join(wake.clone());
            (inotify, id)
        });
        Subscription { inotify, poll: self.poll.max(SETTLE), wake, paths, told: None, looked: None }
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
            let mut state = self.look();
            if self.told.is_some_and(|told| told != state.digest) {
                state = self.settle(state).await;
            }
            if self.told != Some(state.digest) {
                self.told = Some(state.digest);
                return state.result;
            }
            self.stirred().await;
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
    fn look(&mut self) -> State {
        self.looked = Some(Instant::now());
        if let Some((inotify, id)) = &self.inotify {
            let mut route = self.route();
            for _ in 0..ATTEMPTS {
                inotify.watch(*id, &route);
                let again = self.route();
                if again == route {
                    break;
                }
                route = again;
            }
        }
        State::of(self.paths.iter().map(PathBuf::as_path))
    }

    fn route(&self) -> Route {
        Route::of(self.paths.iter().map(PathBuf::as_path))
    }

    /// Looks until the state holds.
    async fn settle(&mut self, mut state: State) -> State {
        let mut held = 0;
        for _ in 0..MAX_HOLDS {
            sleep(SETTLE).await;
            let next = self.look();
            held = if next.digest == state.digest { held + 1 } else { 0 };
            state = next;
            if held >= if state.result.is_ok() { 1 } else { BAD_HOLDS } {
                break;
            }
        }
        state
    }

    /// Waits for an event or the poll, but never less than [`SETTLE`] since the
    /// last look: a file that is rewritten all the time must not keep us busy.
    async fn stirred(&self) {
        let event = async {
            match &self.inotify {
                Some((inotify, _)) => inotify.woken(&self.wake).await,
                None => std::future::pending().await,
            }
        };
        if timeout(self.poll, event).await.is_ok()
            && let Some(looked) = self.looked
        {
            sleep_until(looked + SETTLE).await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some((inotify, id)) = &self.inotify {
            inotify.leave(*id);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl fmt::Debug for Inotify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inotify")
    }
}
