//! Credential and configuration files: read whole or not at all, and watched.
//!
//! A snapshot is consistent: files that were swapped while they were being read
//! are read again. Contents live in [`Secret`], so they are wiped and never
//! printed; a digest tells one state of the files from another.
//!
//! Reading is plain blocking `std::fs`, on purpose: the files are few, small
//! (1 MiB at most), local and regular (a FIFO or a device is refused, never
//! waited for), so that a thread pool would cost more than it saves.

pub(crate) mod reload;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use zeroize::Zeroizing;

use crate::{Error, Kind, Secret};

mod directories;
#[cfg(test)]
mod tests;
mod watch;

pub use watch::{Subscription, Watcher};

/// Larger files are no credentials; reading them would only cost memory.
const MAX_SIZE: u64 = 1024 * 1024;

/// How often a set that moves under the reader is read before giving up.
const ATTEMPTS: u32 = 5;

/// A consistent snapshot of files, cheap to clone.
#[derive(Clone)]
pub struct Files(Arc<FileContents>);

struct FileContents {
    contents: BTreeMap<PathBuf, Secret>,
    digest: Digest,
}

/// SHA-256 over paths and contents: equal digests mean equal files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// What a look at a set of files found, good or bad, with the digest of just that.
struct ReadState {
    digest: Digest,
    result: Result<Files, Error>,
}

/// Why one file cannot be used.
#[derive(Debug)]
enum ReadProblem {
    Missing,
    Denied,
    Empty,
    TooLarge,
    Directory,
    NotRegular,
    Moving,
    Io(io::Error),
}

/// Where a path leads and what is there: unchanged means read in one piece.
#[derive(PartialEq, Eq)]
struct Place {
    real: PathBuf,
    stamp: [i128; 7],
}

impl Files {
    /// Reads all `paths`; the error names every file that cannot be used, and why.
    pub fn read<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self, Error> {
        ReadState::of(paths).result
    }

    /// The content of one of the files.
    pub fn secret(&self, path: &Path) -> Result<&Secret, Error> {
        self.0.contents.get(path).ok_or_else(|| {
            Error::new(Kind::Bug, format!("file {path:?} was not declared, so it was not read"))
                .with_hint("a defect of the provider: it must name each file that it uses")
        })
    }

    /// Tells this state of the files from any other.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.0.contents).finish()
    }
}

impl fmt::Debug for Digest {
    /// Short, for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl ReadState {
    /// Looks at the files once, good or bad.
    fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let paths: Vec<&Path> = paths.into_iter().collect();
        Self::with(&paths, read_file)
    }

    /// Reads again as long as any path leads elsewhere, or to something altered,
    /// after the reading than before it: kubelet swaps the directory of all files
    /// at once, and a half of each set would be neither the old nor the new one.
    fn with(paths: &[&Path], mut read: impl FnMut(&Path) -> Result<Secret, ReadProblem>) -> Self {
        let places = || paths.iter().map(|path| Place::of(path)).collect::<Vec<_>>();
        let mut before = places();
        let mut attempt = 1;
        loop {
            let mut found: Vec<_> = paths.iter().map(|path| read(path)).collect();
            let after = places();
            if before == after {
                return Self::from_found(paths, found);
            }
            if attempt == ATTEMPTS {
                for (found, _) in
                    found.iter_mut().zip(before.iter().zip(&after)).filter(|(_, (b, a))| b != a)
                {
                    *found = Err(ReadProblem::Moving);
                }
                return Self::from_found(paths, found);
            }
            before = after;
            attempt += 1;
        }
    }

    fn from_found(paths: &[&Path], found: Vec<Result<Secret, ReadProblem>>) -> Self {
        let mut contents = BTreeMap::new();
        let mut problems = BTreeMap::new();
        for (path, found) in paths.iter().zip(found) {
            match found {
                Ok(secret) => drop(contents.insert(path.to_path_buf(), secret)),
                Err(problem) => drop(problems.insert(path.to_path_buf(), problem)),
            }
        }
        let mut hash = Context::new(&SHA256);
        for (path, secret) in &contents {
            absorb(&mut hash, 1, path, secret.expose());
        }
        for (path, problem) in &problems {
            absorb(&mut hash, 0, path, problem.to_string().as_bytes());
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(hash.finish().as_ref());
        let digest = Digest(digest);
        if problems.is_empty() {
            Self { digest, result: Ok(Files(Arc::new(FileContents { contents, digest }))) }
        } else {
            Self { digest, result: Err(explain(problems)) }
        }
    }
}

/// Lengths go in first, so that no two sets run into the same bytes.
fn absorb(hash: &mut Context, tag: u8, path: &Path, content: &[u8]) {
    let path = path.as_os_str().as_bytes();
    hash.update(&[tag]);
    hash.update(&(path.len() as u64).to_be_bytes());
    hash.update(path);
    hash.update(&(content.len() as u64).to_be_bytes());
    hash.update(content);
}

/// One error for all problems: an operator wants to mend everything in one go.
fn explain(problems: BTreeMap<PathBuf, ReadProblem>) -> Error {
    let list: Vec<_> = problems.iter().map(|(path, why)| format!("{path:?} {why}")).collect();
    let mut hints: Vec<String> = Vec::new();
    for hint in problems.values().map(ReadProblem::hint) {
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    let noun = if list.len() == 1 { "file" } else { "files" };
    Error::new(Kind::Config, format!("cannot use {noun}: {}", list.join("; ")))
        .with_hint(hints.join("; "))
}

impl Place {
    fn of(path: &Path) -> Option<Self> {
        let real = path.canonicalize().ok()?;
        let meta = real.metadata().ok()?;
        let stamp = [
            meta.dev().into(),
            meta.ino().into(),
            meta.size().into(),
            meta.mtime().into(),
            meta.mtime_nsec().into(),
            meta.ctime().into(),
            meta.ctime_nsec().into(),
        ];
        Some(Self { real, stamp })
    }
}

fn read_file(path: &Path) -> Result<Secret, ReadProblem> {
    // Looked at before it is opened, because opening a device may have effects,
    // and again when open, because it may have been replaced in between.
    regular(&std::fs::metadata(path)?)?;
    let nonblocking = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file =
        OpenOptions::new().read(true).custom_flags(nonblocking.bits().cast_signed()).open(path)?;
    let meta = file.metadata()?;
    regular(&meta)?;
    let bytes = read_bounded(file, meta.len())?;
    if bytes.trim_ascii().is_empty() {
        return Err(ReadProblem::Empty);
    }
    Ok(Secret::new(bytes))
}

fn regular(meta: &Metadata) -> Result<(), ReadProblem> {
    if meta.is_dir() {
        Err(ReadProblem::Directory)
    } else if !meta.is_file() {
        Err(ReadProblem::NotRegular)
    } else if meta.len() > MAX_SIZE {
        Err(ReadProblem::TooLarge)
    } else {
        Ok(())
    }
}

/// Like `read_to_end`, but leaves no copy behind when the buffer must grow; the
/// size is a hint alone, because some file systems say 0.
fn read_bounded(mut file: File, size: u64) -> Result<Vec<u8>, ReadProblem> {
    let room = usize::try_from(size.min(MAX_SIZE)).unwrap_or(0) + 1;
    let mut buffer = Zeroizing::new(vec![0; room]);
    let mut len = 0;
    loop {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        }
        if len as u64 > MAX_SIZE {
            return Err(ReadProblem::TooLarge);
        }
        if len == buffer.len() {
            let mut larger = Zeroizing::new(vec![0; len * 2 + 4096]);
            larger[..len].copy_from_slice(&buffer);
            buffer = larger;
        }
    }
    buffer.truncate(len);
    Ok(std::mem::take(&mut *buffer))
}

impl ReadProblem {
    fn hint(&self) -> String {
        match self {
            Self::Missing => "check the path and the mount".to_owned(),
            Self::Denied => {
                let uid = rustix::process::geteuid().as_raw();
                format!("make the file and its directories readable for uid {uid}")
            }
            Self::Empty => "see whether what writes the file works".to_owned(),
            Self::TooLarge | Self::Directory | Self::NotRegular => {
                "name the file itself".to_owned()
            }
            Self::Moving => "have it written to another name and renamed".to_owned(),
            Self::Io(_) => "check the volume".to_owned(),
        }
    }
}

impl fmt::Display for ReadProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("does not exist"),
            Self::Denied => f.write_str("may not be read"),
            Self::Empty => f.write_str("is empty"),
            Self::TooLarge => f.write_str("is larger than 1 MiB"),
            Self::Directory => f.write_str("is a directory"),
            Self::NotRegular => f.write_str("is not a regular file"),
            Self::Moving => f.write_str("keeps changing while it is being read"),
            Self::Io(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

impl From<io::Error> for ReadProblem {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Io(error),
        }
    }
}
