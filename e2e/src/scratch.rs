//! Directories that go away with their test.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::watchdog::{KEEP, Watchdog};

/// A directory of one test, removed on drop and also when the process dies.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// A new empty directory, whose short path leaves room for unix sockets.
    pub fn new(name: &str) -> Result<Self> {
        let root = Watchdog::of_this_process()?.root();
        let mut dir = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .rand_bytes(4)
            .tempdir_in(root)
            .with_context(|| format!("cannot make a directory in {}", root.display()))?;
        dir.disable_cleanup(std::env::var_os(KEEP).is_some());
        Ok(Self { dir })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A directory in it, as private as sockets and keys need (0700).
    pub fn subdir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}
