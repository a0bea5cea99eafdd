//! Counts what a snapshot of etcd holds, without an etcd.
//!
//! Takes what `etcdctl snapshot save` writes, and the `member/snap/db` of an etcd that is stopped.
//! Values that were replaced or deleted but not compacted away are counted as history.

mod bolt;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use aws_lc_rs::digest;
use bytes::Bytes;
use prost::Message;
use sidekey_core::sha256;

use crate::Error;
use crate::census::{Census, Options, Step, Tally};
use crate::etcd::KeyValue;
use bolt::Bolt;

/// What etcd appends to a snapshot.
const CHECKSUM: u64 = 32;
/// Sizes of databases are multiples of this.
const BLOCK: u64 = 512;
/// Where etcd keeps all revisions.
const BUCKET: &[u8] = b"key";
/// A key of that bucket: main revision, `_`, sub revision; one byte more marks a deletion.
const REVISION: usize = 17;
/// How much of the file is read between two looks at the progress.
const CHUNK: usize = 1024 * 1024;

/// How far a snapshot can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// Its own checksum is right.
    Verified,
    /// It has none: a bare database.
    Unverified,
}

/// Counts what the file holds.
pub fn count(
    path: &Path,
    options: &Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<(Census, Integrity), Error> {
    read(path, options, watch).map_err(|error| {
        Error::failed(format!("cannot count {}", path.display()))
            .because(error)
            .hint("take a snapshot with `etcdctl snapshot save`, or the db of a stopped etcd")
    })
}

fn read(
    path: &Path,
    options: &Options,
    watch: &mut dyn FnMut(Step<'_>),
) -> Result<(Census, Integrity), Error> {
    let started = SystemTime::now();
    let (file, size, integrity) = open(path)?;
    let bolt = Bolt::open(&file, size)?;
    let bucket = bolt.bucket(BUCKET)?;
    let bucket =
        bucket.ok_or_else(|| Error::failed("it is no database of etcd: no bucket `key`"))?;
    let mut reader = Reader {
        now: Tally::new(options),
        history: Tally::new(&Options { list: None, ..options.clone() }),
        seen: HashSet::new(),
        last: None,
        newest: 0,
        done: 0,
    };
    bolt.descend(&bucket, &mut |key, value| {
        reader.take(key, value)?;
        if reader.done.is_multiple_of(4096) {
            watch(Step::Done(reader.done));
        }
        Ok(())
    })?;
    bolt.check_unchanged()?;
    watch(Step::Done(reader.done));
    let (counts, history) = (reader.now.rows(), reader.history.rows());
    let census = Census {
        cluster: None,
        revision: reader.newest,
        first_revision: reader.newest,
        started,
        finished: SystemTime::now(),
        rows: counts.rows,
        history: history.rows,
        other: counts.other,
        blank: counts.blank,
        listed: counts.listed,
        unlisted: counts.unlisted,
    };
    Ok((census, integrity))
}

/// The file, how much of it is the database, and whether its checksum was there and right.
fn open(path: &Path) -> Result<(File, u64, Integrity), Error> {
    let file =
        File::open(path).map_err(|error| Error::usage("it cannot be read").because(error))?;
    let size = file.metadata().map(|found| found.len());
    let size = size.map_err(|error| Error::failed("it has no size").because(error))?;
    let (size, integrity) = match size % BLOCK {
        0 => (size, Integrity::Unverified),
        CHECKSUM => (verify(&file, size - CHECKSUM)?, Integrity::Verified),
        _ => return Err(Error::failed("it is cut off, or no snapshot of etcd")),
    };
    Ok((file, size, integrity))
}

/// Takes revisions from the newest to the oldest: the first of a key is what is stored now.
struct Reader {
    now: Tally,
    history: Tally,
    /// Hashes of the keys, which are shorter than they are.
    seen: HashSet<[u8; 16]>,
    last: Option<[u8; REVISION]>,
    newest: i64,
    done: u64,
}

impl Reader {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let broken = |what: &str| Error::failed(format!("it is damaged: {what}"));
        let (revision, deleted) = match key.split_at_checked(REVISION) {
            Some((revision, [])) => (revision, false),
            Some((revision, [b't'])) => (revision, true),
            _ => return Err(broken("a revision of unknown form")),
        };
        let revision: [u8; REVISION] =
            revision.try_into().map_err(|_| broken("a revision of unknown form"))?;
        if self.last.is_some_and(|last| last <= revision) {
            return Err(broken("revisions are out of order"));
        }
        if self.last.is_none() {
            let mut main = [0; 8];
            main.copy_from_slice(&revision[..8]);
            self.newest = i64::from_be_bytes(main);
        }
        self.last = Some(revision);
        let entry = KeyValue::decode(Bytes::copy_from_slice(value))
            .map_err(|_| broken("a value of unknown form"))?;
        let mut hash = [0; 16];
        hash.copy_from_slice(&sha256(&entry.key)[..16]);
        self.done += 1;
        match (self.seen.insert(hash), deleted) {
            (true, false) => self.now.count(&entry.key, &entry.value),
            (false, false) => self.history.count(&entry.key, &entry.value),
            // A deletion has no value.
            (_, true) => {}
        }
        Ok(())
    }
}

/// Compares the checksum at the end with what is before it.
fn verify(file: &File, size: u64) -> Result<u64, Error> {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let part = usize::try_from(size - at).unwrap_or(CHUNK).min(CHUNK);
        bolt::read_at(file, &mut buffer[..part], at)?;
        context.update(&buffer[..part]);
        at += part as u64;
    }
    let mut wanted = [0; 32];
    bolt::read_at(file, &mut wanted, size)?;
    match context.finish().as_ref() == wanted {
        true => Ok(size),
        false => Err(Error::failed("it is damaged: its checksum is wrong")),
    }
}
