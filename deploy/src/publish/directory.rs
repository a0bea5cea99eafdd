//! Publishing to directories of a host, in the form in which kubelet mounts Secrets: each file is
//! a link through `..data`, and a rename of that one link turns them all.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use sidekey_core::Secret;

use super::live::{Source, prunable};
use super::{Live, LivePart, Options, Outcome};
use crate::Error;
use crate::render::{Created, PartName, Rendered};

/// The link that turns.
const DATA: &str = "..data";
/// Its successor, for the moment before the rename.
const NEXT: &str = "..data_tmp";
/// History.
const REVISIONS: &str = "revisions";
/// Directories beside ours that are not ours.
const FOREIGN: [&str; 2] = [REVISIONS, "proxy"];

/// A directory of a host, with one directory for each process in it.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Where: `/etc/sidekey` in the static pods.
    pub path: PathBuf,
    /// The group that may read, which the pods run as.
    pub group: Option<u32>,
}

/// Held by whoever publishes here.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

/// New content of a part, complete on disk, and not yet seen by anybody.
struct Staged {
    name: PartName,
    at: PathBuf,
    fresh: PathBuf,
    files: Vec<String>,
}

impl Directory {
    /// What is there now.
    pub fn live(&self) -> Result<Live, Error> {
        let mut live = Live { source: Source::Directory(self.path.clone()), ..Live::default() };
        for name in names(&self.path)? {
            let at = self.path.join(&name);
            if name.starts_with('.') || FOREIGN.contains(&name.as_str()) || !at.is_dir() {
                continue;
            }
            let part = match name.as_str() {
                "kube-apiserver" => PartName::KubeApiserver,
                "shim" => PartName::Shim,
                _ => PartName::Provider(name),
            };
            let data = at.join(DATA);
            let files = read_files(if data.is_dir() { &data } else { &at })?;
            if files.contains_key(part.main_file()) {
                live.parts.insert(part, LivePart { files, version: None });
            }
        }
        let history = self.path.join(REVISIONS);
        live.revisions = names(&history)?.iter().filter_map(|name| name.parse().ok()).collect();
        live.revisions.sort_unstable();
        if let Some(newest) = live.revisions.last() {
            live.newest = read_files(&history.join(newest.to_string()))?;
        }
        Ok(live)
    }

    /// Keeps others who publish out, until it is dropped or this process ends.
    pub fn lock(&self) -> Result<Lock, Error> {
        let path = self.path.join(".lock");
        let failed = |error| {
            Error::failed(format!("cannot lock {}: nothing was changed", path.display()))
                .because(error)
                .hint("run this as root: the files are for the pods alone")
        };
        self.make(&self.path).map_err(failed)?;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = file.map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = format!("somebody else is publishing to {}", self.path.display());
                Err(Error::failed(text)
                    .hint("nothing was changed: run it again when they are done"))
            }
            Err(error) => Err(failed(error.into())),
        }
    }

    pub(super) fn write(
        &self,
        live: &Live,
        rendered: &Rendered,
        created: &Created,
        options: &Options,
    ) -> Result<Outcome, Error> {
        let number = rendered.revision;
        self.check_plain(rendered)?;
        let unchanged = |error: std::io::Error| {
            let text = format!(
                "cannot write revision {number} to {}: nothing was changed",
                self.path.display()
            );
            Error::failed(text).because(error).hint("is the disk full, or is this not root?")
        };
        let mut written = Vec::new();
        let fresh_history = !live.revisions.contains(&number);
        if fresh_history {
            self.write_history(rendered, created).map_err(unchanged)?;
            written.push(format!("{REVISIONS}/{number}"));
        }
        let staged = self.stage_all(rendered).map_err(|error| {
            if fresh_history {
                let _ = std::fs::remove_dir_all(self.path.join(REVISIONS).join(number.to_string()));
            }
            unchanged(error)
        })?;
        for part in &staged {
            part.swap().map_err(|error| {
                let done = written.join(", ");
                let place = part.at.display();
                Error::failed(format!("cannot turn {place} to revision {number} (done: {done})"))
                    .because(error)
                    .hint("every directory is whole, old or new: run it again")
            })?;
            written.push(part.name.directory().to_owned());
        }
        // What could not be tidied up is tidied up next time.
        staged.iter().for_each(Staged::tidy);
        let mut pruned = Vec::new();
        for old in prunable(live, number, options.keep) {
            if std::fs::remove_dir_all(self.path.join(REVISIONS).join(old.to_string())).is_ok() {
                pruned.push(old);
            }
        }
        Ok(Outcome { revision: number, changed: true, written, pruned, notes: Vec::new() })
    }

    /// A file of somebody else's is not overwritten.
    fn check_plain(&self, rendered: &Rendered) -> Result<(), Error> {
        for part in &rendered.parts {
            for name in part.files.keys() {
                let path = self.path.join(part.name.directory()).join(name);
                let found = path.symlink_metadata();
                if found.is_ok_and(|found| !found.is_symlink()) {
                    let text = format!("{} is a file, not a link through {DATA}", path.display());
                    return Err(Error::failed(text).hint(
                        "move it away: nothing was changed, and pods read it until it is published",
                    ));
                }
            }
        }
        Ok(())
    }

    fn write_history(&self, rendered: &Rendered, created: &Created) -> std::io::Result<()> {
        let history = self.path.join(REVISIONS);
        if !history.is_dir() {
            DirBuilder::new().mode(0o700).create(&history)?;
        }
        // Remains of whoever was killed while writing.
        for name in list(&history)?.iter().filter(|name| name.starts_with('.')) {
            let _ = std::fs::remove_dir_all(history.join(name));
        }
        let fresh = private(".new-").tempdir_in(&history)?;
        for (name, content) in rendered.history(created) {
            self.write_file(&fresh.path().join(name), &content, 0o600, None)?;
        }
        sync(fresh.path())?;
        let path = fresh.keep();
        let renamed = std::fs::rename(&path, history.join(rendered.revision.to_string()));
        if renamed.is_err() {
            let _ = std::fs::remove_dir_all(&path);
        }
        renamed?;
        sync(&history)
    }

    fn stage_all(&self, rendered: &Rendered) -> std::io::Result<Vec<Staged>> {
        let mut staged: Vec<Staged> = Vec::new();
        for part in &rendered.parts {
            match self.stage(&part.name, &part.files) {
                Ok(part) => staged.push(part),
                Err(error) => {
                    staged.iter().for_each(Staged::discard);
                    return Err(error);
                }
            }
        }
        Ok(staged)
    }

    fn stage(&self, name: &PartName, files: &BTreeMap<String, Secret>) -> std::io::Result<Staged> {
        let at = self.path.join(name.directory());
        self.make(&at)?;
        let stamp = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let prefix = format!("..{}.", stamp.replace(['-', 'T', ':'], "_").trim_end_matches('Z'));
        let fresh = private(&prefix).tempdir_in(&at)?;
        for (name, content) in files {
            self.write_file(&fresh.path().join(name), content, 0o640, self.group)?;
        }
        self.own(fresh.path(), 0o750)?;
        sync(fresh.path())?;
        let files = files.keys().cloned().collect();
        Ok(Staged { name: name.clone(), at, fresh: fresh.keep(), files })
    }

    fn write_file(
        &self,
        path: &Path,
        content: &Secret,
        mode: u32,
        group: Option<u32>,
    ) -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(content.expose())?;
        if group.is_some() {
            chown(path, None, group)?;
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    }

    /// Makes a directory that the pods may enter.
    fn make(&self, path: &Path) -> std::io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o750).create(path)?;
        self.own(path, 0o750)
    }

    fn own(&self, path: &Path, mode: u32) -> std::io::Result<()> {
        if self.group.is_some() {
            chown(path, None, self.group)?;
        }
        std::fs::set_permissions(path, Permissions::from_mode(mode))
    }
}

impl Staged {
    /// Turns the directory to its new content, in one rename.
    fn swap(&self) -> std::io::Result<()> {
        // New links first, though they lead nowhere yet: once the rename is done, all is done.
        for name in &self.files {
            let link = self.at.join(name);
            if link.symlink_metadata().is_err() {
                symlink(Path::new(DATA).join(name), &link)?;
            }
        }
        let next = self.at.join(NEXT);
        match std::fs::remove_file(&next) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let fresh = self.fresh.file_name().unwrap_or_default();
        symlink(fresh, &next)?;
        std::fs::rename(&next, self.at.join(DATA))?;
        sync(&self.at)
    }

    /// Takes away what nothing leads to any more.
    fn tidy(&self) {
        // By name: one of the two paths may be relative.
        let fresh = self.fresh.file_name();
        for name in list(&self.at).unwrap_or_default() {
            let path = self.at.join(&name);
            let dated =
                name.starts_with("..") && name.as_bytes().get(2).is_some_and(u8::is_ascii_digit);
            if dated && path.file_name() != fresh {
                let _ = std::fs::remove_dir_all(&path);
            } else if path.is_symlink() && !path.exists() {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    fn discard(&self) {
        let _ = std::fs::remove_dir_all(&self.fresh);
    }
}

/// A new directory that nobody else may enter yet.
fn private(prefix: &str) -> tempfile::Builder<'_, '_> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).permissions(Permissions::from_mode(0o700));
    builder
}

fn sync(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

fn list(directory: &Path) -> std::io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn names(directory: &Path) -> Result<Vec<String>, Error> {
    list(directory).map_err(|error| {
        Error::failed(format!("cannot read {}", directory.display())).because(error)
    })
}

/// Every file of a directory; hidden ones are not ours.
fn read_files(directory: &Path) -> Result<BTreeMap<String, Secret>, Error> {
    let mut files = BTreeMap::new();
    for name in names(directory)? {
        let path = directory.join(&name);
        if name.starts_with("..") || !path.is_file() {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(|error| {
            Error::failed(format!("cannot read {}", path.display())).because(error)
        })?;
        files.insert(name, Secret::new(bytes));
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
