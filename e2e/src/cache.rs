//! Where built servers and toolchains are kept between runs.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The cache directory: `$SIDEKEY_CACHE`, or `sidekey` in the user's cache.
/// Everything in it can be removed at any time; it is made again when needed.
pub fn directory() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let path = set("SIDEKEY_CACHE")
        .map(PathBuf::from)
        .or_else(|| set("XDG_CACHE_HOME").map(|path| Path::new(&path).join("sidekey")))
        .or_else(|| set("HOME").map(|path| Path::new(&path).join(".cache/sidekey")))
        .context("no cache directory: set SIDEKEY_CACHE (or HOME) to a writable directory")?;
    std::path::absolute(&path).with_context(|| format!("bad cache path {}", path.display()))
}

/// A lock that makes parallel test processes build each thing once. It is
/// released on drop and, by the kernel, when the process dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes `<dir>/<name>.lock`, and says so when it has to wait for another.
    pub(crate) fn take(dir: &Path, name: &str) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| {
            format!("cannot make the cache {}; set SIDEKEY_CACHE elsewhere", dir.display())
        })?;
        let path = dir.join(format!("{name}.lock"));
        let file =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        if file.try_lock().is_err() {
            say(&format!("waiting for another process that makes {name}"));
            file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(Self { _file: file })
    }
}

/// Progress of slow preparations, shown even where tests capture output.
pub(crate) fn say(text: &str) {
    // A closed stderr must not fail a test.
    let _ = writeln!(std::io::stderr(), "sidekey-e2e: {text}");
}
