//! The directories of all subscriptions, watched by one `notify` watcher for the process.
//!
//! Directories and not files, because files are replaced: kubelet turns the link `..data`, others
//! rename. An event only says when to look, so that one too many costs a look and one too few the
//! time to the next poll.
//!
//! `notify` brings a thread, so there is one watcher for the process and not one for each key.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{Config, ErrorKind, Event, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Directory entries, each a directory without links in its path and a name in it.
type Entries = BTreeSet<(PathBuf, OsString)>;

pub(super) struct Directories {
    /// Locked before the table, never while the table is: its thread may wait for that.
    watcher: Mutex<RecommendedWatcher>,
    table: Arc<Mutex<WatchTable>>,
    /// Set once, so that it is logged once.
    limited: AtomicBool,
}

#[derive(Default)]
struct WatchTable {
    next: u64,
    subscriptions: BTreeMap<u64, WatchEntry>,
    /// What is watched under each path, by device and inode; `None` if it may be another now.
    watched: BTreeMap<PathBuf, Option<(u64, u64)>>,
}

struct WatchEntry {
    wake: Arc<Notify>,
    entries: Entries,
}

impl Directories {
    pub(super) fn new() -> notify::Result<Self> {
        let table = Arc::new(Mutex::new(WatchTable::default()));
        let told = table.clone();
        let handler = move |event| told.lock().dispatch(event);
        let mut watcher = RecommendedWatcher::new(handler, Config::default())?;
        // Whether its thread could be started is told by nothing but this; without it every other
        // call, and the drop too, would panic.
        if let Err(error) = watcher.configure(Config::default()) {
            std::mem::forget(watcher);
            return Err(error);
        }
        Ok(Self { watcher: Mutex::new(watcher), table, limited: AtomicBool::new(false) })
    }

    /// Takes in a new subscription that will be woken through `wake`.
    pub(super) fn join(&self, wake: Arc<Notify>) -> u64 {
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        table.subscriptions.insert(id, WatchEntry { wake, entries: Entries::new() });
        id
    }

    /// Ends a subscription, and every watch that was there for it alone.
    pub(super) fn leave(&self, id: u64) {
        let mut watcher = self.watcher.lock();
        let mut table = self.table.lock();
        table.subscriptions.remove(&id);
        let unused = table.take_unused();
        drop(table);
        unwatch(&mut watcher, &unused);
    }

    /// Watches what decides about these paths, and whether that was anything new.
    pub(super) fn watch(&self, id: u64, paths: &BTreeSet<PathBuf>) -> bool {
        let entries = entries(paths);
        let mut watcher = self.watcher.lock();
        let mut table = self.table.lock();
        let fresh = table.fresh(&entries);
        let mut new = false;
        if let Some(subscription) = table.subscriptions.get_mut(&id) {
            new = subscription.entries != entries;
            subscription.entries = entries;
        }
        let unused = table.take_unused();
        drop(table);
        unwatch(&mut watcher, &unused);
        for (directory, identity) in fresh {
            // Another directory may have had this path; if none had, this fails.
            let _ = watcher.unwatch(&directory);
            match watcher.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    new = true;
                    self.table.lock().note(id, directory, identity);
                }
                Err(error) if matches!(error.kind, ErrorKind::MaxFilesWatch) => self.warn_limited(),
                // Gone or forbidden: the poll must do.
                Err(error) => tracing::debug!(?directory, %error, "directory is not watched"),
            }
        }
        new
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.table.lock().watched.len()
    }

    fn warn_limited(&self) {
        if !self.limited.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                hint = "raise fs.inotify.max_user_watches",
                "cannot watch more directories; changes are found by polling"
            );
        }
    }
}

impl WatchTable {
    /// The directories that must be watched for `entries` and are not.
    fn fresh(&self, entries: &Entries) -> BTreeMap<PathBuf, (u64, u64)> {
        let directories = entries.iter().filter_map(|(directory, _)| {
            let found = fs::metadata(directory).ok()?;
            Some((directory.clone(), (found.dev(), found.ino())))
        });
        directories.filter(|(path, now)| self.watched.get(path) != Some(&Some(*now))).collect()
    }

    /// Notes that a directory is watched. What the others of its readers may have missed until
    /// then they see by a look.
    fn note(&mut self, id: u64, directory: PathBuf, identity: (u64, u64)) {
        for (other, subscription) in &self.subscriptions {
            if *other != id && subscription.entries.iter().any(|(path, _)| *path == directory) {
                subscription.wake.notify_one();
            }
        }
        self.watched.insert(directory, Some(identity));
    }

    fn take_unused(&mut self) -> Vec<PathBuf> {
        let entries = self.subscriptions.values().flat_map(|one| &one.entries);
        let used: BTreeSet<&PathBuf> = entries.map(|(directory, _)| directory).collect();
        let unused: Vec<_> = self.watched.extract_if(.., |path, _| !used.contains(path)).collect();
        // The kernel watches a directory once, under however many paths: with one it loses all, and
        // those that are left must be watched anew.
        for identity in self.watched.values_mut() {
            if identity.is_some() && unused.iter().any(|(_, left)| left == identity) {
                *identity = None;
            }
        }
        unused.into_iter().map(|(path, _)| path).collect()
    }

    /// Wakes those whom an event concerns.
    fn dispatch(&mut self, event: notify::Result<Event>) {
        let Some(event) = event.ok().filter(|event| !event.need_rescan()) else {
            return self.subscriptions.values().for_each(|one| one.wake.notify_one());
        };
        match event.kind {
            // Reading, ours above all.
            EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write) => return,
            // What stood there is watched no longer, or under a path that is not its own.
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => {
                let gone = |path: &PathBuf| event.paths.iter().any(|gone| path.starts_with(gone));
                for (_, identity) in self.watched.iter_mut().filter(|(path, _)| gone(path)) {
                    *identity = None;
                }
            }
            _ => {}
        }
        for one in self.subscriptions.values().filter(|one| one.concerned(&event)) {
            one.wake.notify_one();
        }
    }
}

impl WatchEntry {
    /// By name alone: a directory may be mounted twice, and events tell one of its paths.
    fn concerned(&self, event: &Event) -> bool {
        self.entries.iter().any(|(directory, name)| {
            let of = |path: &PathBuf| path.file_name() == Some(name) || directory.starts_with(path);
            event.paths.iter().any(of)
        })
    }
}

/// What decides about the paths: the files themselves, or the first part that is missing, and
/// every link on the way.
fn entries(paths: &BTreeSet<PathBuf>) -> Entries {
    let mut found = Entries::new();
    // An empty or otherwise impossible path leads nowhere.
    let mut ways: Vec<PathBuf> =
        paths.iter().filter_map(|path| std::path::absolute(path).ok()).collect();
    while let Some(way) = ways.pop() {
        for part in way.ancestors() {
            let (Some(parent), Some(name)) = (part.parent(), part.file_name()) else { continue };
            let link = fs::read_link(part);
            let counts = part == way || link.is_ok() || fs::symlink_metadata(part).is_err();
            if let Some(directory) = parent.canonicalize().ok().filter(|_| counts)
                && found.insert((directory, name.to_owned()))
                && let Ok(target) = link
            {
                ways.push(parent.join(target));
            }
        }
    }
    found
}

fn unwatch(watcher: &mut RecommendedWatcher, directories: &[PathBuf]) {
    for directory in directories {
        // Fails if the directory is gone: then its watch is gone too.
        let _ = watcher.unwatch(directory);
    }
}
