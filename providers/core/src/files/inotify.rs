//! One inotify instance for all subscriptions, without a thread or a task.
//!
//! Whoever waits reads the events for everybody: with nobody waiting nothing
//! needs to be read, since each wait begins with a look at the files.
//!
//! The kernel's interface is used through rustix and not through the `notify`
//! crate, because that one starts a thread in every process: a stack, an arena
//! and wake-ups in a sidecar that idles below 4 MiB and is multiplied by
//! thousands.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::route::Route;

pub(super) struct Inotify {
    fd: Arc<OwnedFd>,
    /// Registered with the runtime by the first who waits; `None` if it refused.
    reactor: OnceLock<Option<AsyncFd<Arc<OwnedFd>>>>,
    table: Mutex<Table>,
    /// Set once, so that each trouble is logged once.
    limited: AtomicBool,
    broken: AtomicBool,
}

#[derive(Default)]
struct Table {
    next: u64,
    wakes: BTreeMap<u64, Arc<Notify>>,
    /// Watch descriptor -> subscription -> the names it cares for.
    watches: BTreeMap<i32, BTreeMap<u64, BTreeSet<OsString>>>,
}

impl Inotify {
    pub(super) fn open() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self {
            fd: Arc::new(fd),
            reactor: OnceLock::new(),
            table: Mutex::default(),
            limited: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        })
    }

    /// Takes in a new subscription that will be woken through `wake`.
    pub(super) fn join(&self, wake: Arc<Notify>) -> u64 {
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        table.wakes.insert(id, wake);
        id
    }

    /// Ends a subscription, and every watch that was there for it alone.
    pub(super) fn leave(&self, id: u64) {
        let mut table = self.table();
        table.wakes.remove(&id);
        self.retain(&mut table, id, &BTreeSet::new());
    }

    /// Makes the watches of `id` just those of `route`.
    ///
    /// Every directory is asked for anew: the kernel answers with the descriptor
    /// that it has, or with a new one if another directory has taken the name.
    pub(super) fn watch(&self, id: u64, route: &Route) {
        let mask = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let mut table = self.table();
        let mut wanted: BTreeMap<i32, BTreeSet<OsString>> = BTreeMap::new();
        for (directory, names) in &route.0 {
            match inotify::add_watch(&self.fd, directory, mask) {
                Ok(wd) => wanted.entry(wd).or_default().extend(names.iter().cloned()),
                Err(Errno::NOSPC | Errno::NOMEM) => self.warn_limited(),
                // Gone or forbidden: the poll must do.
                Err(error) => tracing::debug!(?directory, %error, "directory is not watched"),
            }
        }
        self.retain(&mut table, id, &wanted.keys().copied().collect());
        for (wd, names) in wanted {
            table.watches.entry(wd).or_default().insert(id, names);
        }
    }

    /// Waits for `wake`; in the meantime reads events, for everybody.
    pub(super) async fn woken(&self, wake: &Notify) {
        while let Some(reactor) = self.reactor() {
            tokio::select! {
                biased;
                () = wake.notified() => return,
                ready = reactor.readable() => {
                    let outcome = ready.map(|mut guard| guard.try_io(|fd| self.dispatch(fd.get_ref())));
                    match outcome {
                        Ok(Ok(Err(error))) | Err(error) => self.give_up(&error),
                        Ok(Ok(Ok(()))) | Ok(Err(_)) => {}
                    }
                }
            }
        }
        wake.notified().await;
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.table().watches.len()
    }

    fn reactor(&self) -> Option<&AsyncFd<Arc<OwnedFd>>> {
        if self.broken.load(Ordering::Relaxed) {
            return None;
        }
        self.reactor
            .get_or_init(|| {
                let interest = tokio::io::Interest::READABLE;
                // What took its place is `unsafe`, for types that may change or close
                // their descriptor; an `OwnedFd` does neither.
                #[allow(deprecated)]
                AsyncFd::with_interest(self.fd.clone(), interest)
                    .inspect_err(|error| self.give_up(error))
                    .ok()
            })
            .as_ref()
    }

    /// Reads all that is queued; ends in `WouldBlock`, as `AsyncFd` wants it.
    fn dispatch(&self, fd: &OwnedFd) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(fd, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut table = self.table();
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                table.wakes.values().for_each(|wake| wake.notify_one());
                continue;
            }
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            for (id, names) in table.watches.get(&event.wd()).into_iter().flatten() {
                // Without a name it is the directory itself that moved or went.
                if name.is_none_or(|name| names.contains(name))
                    && let Some(wake) = table.wakes.get(id)
                {
                    wake.notify_one();
                }
            }
            if event.events().contains(ReadFlags::IGNORED) {
                table.watches.remove(&event.wd());
            }
        }
    }

    /// Takes `id` off all watches but those in `keep`.
    fn retain(&self, table: &mut Table, id: u64, keep: &BTreeSet<i32>) {
        table.watches.retain(|wd, subscriptions| {
            if !keep.contains(wd) {
                subscriptions.remove(&id);
            }
            if subscriptions.is_empty() {
                // Fails if the directory is gone and its watch with it: as well.
                let _ = inotify::remove_watch(&self.fd, *wd);
            }
            !subscriptions.is_empty()
        });
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warn_limited(&self) {
        if !self.limited.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                hint = "raise fs.inotify.max_user_watches",
                "cannot watch more directories; changes are found by polling"
            );
        }
    }

    fn give_up(&self, error: &io::Error) {
        if !self.broken.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "cannot read inotify events; changes are found by polling");
        }
    }
}
