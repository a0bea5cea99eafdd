//! Key files on disk: made without ever overwriting, changed without ever losing.
//!
//! A change is written to a new file, synced, and renamed over the old one while the directory is
//! locked; a full disk or a kill -9 leaves the old file as it was.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sidekey_core::{Error, Files, Kind};

use crate::KeyFile;

/// Makes a key file where there is none; false if there was one, which is left alone.
pub(crate) fn create(path: &Path) -> Result<bool, Error> {
    if path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    let directory = directory(path)?;
    let _lock = lock(&directory)?;
    let temporary = write_beside(path, &KeyFile::create()?, 0o600)?;
    // A hard link fails where a file exists: two creators cannot overwrite each other.
    let linked = std::fs::hard_link(&temporary, path);
    let _ = std::fs::remove_file(&temporary);
    match linked {
        Ok(()) => sync(&directory).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed("cannot create", path, error)),
    }
}

/// Reads a key file.
pub(crate) fn read(path: &Path) -> Result<KeyFile, Error> {
    let files = Files::read([path])?;
    KeyFile::parse(path, files.secret(path)?.expose())
}

/// Changes a key file; what is there is read under the lock, so that no change is lost.
pub(crate) fn change(
    path: &Path,
    change: impl FnOnce(&KeyFile) -> Result<KeyFile, Error>,
) -> Result<KeyFile, Error> {
    // Renaming over a symbolic link would replace the link and leave the file.
    let path = path.canonicalize().map_err(|error| failed("cannot open", path, error))?;
    let directory = directory(&path)?;
    let _lock = lock(&directory)?;
    let old = read(&path)?;
    let new = change(&old)?;
    new.continues(&old)?;
    let metadata = path.metadata().map_err(|error| failed("cannot read", &path, error))?;
    let temporary = write_beside(&path, &new, metadata.permissions().mode() & 0o777)?;
    let replaced =
        keep_owner(&temporary, &metadata).and_then(|()| std::fs::rename(&temporary, &path));
    if let Err(error) = replaced {
        let _ = std::fs::remove_file(&temporary);
        return Err(failed("cannot replace", &path, error));
    }
    sync(&directory)?;
    Ok(new)
}

/// Says so when strangers can read the key.
pub(crate) fn warn_if_open(path: &Path) {
    let mode = path.metadata().map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o007 != 0 {
        tracing::warn!(file = %path.display(), mode = format!("{:o}", mode & 0o777),
            hint = "chmod 0600", "key file is open to every user of this machine");
    }
}

/// A root who rotates must not lock the provider's user out.
fn keep_owner(path: &Path, like: &std::fs::Metadata) -> io::Result<()> {
    let now = path.metadata()?;
    if (now.uid(), now.gid()) == (like.uid(), like.gid()) {
        return Ok(());
    }
    std::os::unix::fs::chown(path, Some(like.uid()), Some(like.gid()))
}

/// Always under the same name, which is ours while we hold the lock: what a killed process left
/// there, and there are keys in it, goes with the next change.
fn write_beside(path: &Path, file: &KeyFile, mode: u32) -> Result<PathBuf, Error> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let bytes = file.encode()?;
    let _ = std::fs::remove_file(&temporary);
    let written =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).and_then(
            |mut out| {
                out.write_all(&bytes)?;
                out.sync_all()
            },
        );
    if let Err(error) = written {
        let _ = std::fs::remove_file(&temporary);
        return Err(failed("cannot write beside", path, error));
    }
    Ok(temporary)
}

fn directory(path: &Path) -> Result<File, Error> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent).map_err(|error| failed("cannot open the directory of", path, error))
}

fn lock(directory: &File) -> Result<&File, Error> {
    flock(directory, FlockOperation::LockExclusive).map_err(|error| {
        Error::new(Kind::Unavailable, "cannot lock the directory").with_source(error)
    })?;
    Ok(directory)
}

fn sync(directory: &File) -> Result<(), Error> {
    directory.sync_all().map_err(|error| {
        Error::new(Kind::Unavailable, "cannot sync the directory").with_source(error)
    })
}

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "check the path; --create-key makes a new key",
        io::ErrorKind::PermissionDenied => "check owner and mode of file and directory",
        io::ErrorKind::StorageFull => "the disk is full; the key file is as it was",
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only: change the key at its source"
        }
        _ => "the key file is as it was",
    };
    Error::new(Kind::Config, format!("{what} {}", path.display()))
        .with_source(error)
        .with_hint(hint)
}
