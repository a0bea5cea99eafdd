//! Servers from PyPI and what they need, installed once into the cache.
//!
//! The directory's name carries a digest of the pinned versions and of Python's
//! own. Packages are installed under another name and renamed, so a half-made
//! directory is never seen; nothing else on the machine changes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::digest;

use crate::cache::{self, Lock, say};
use crate::packages;

/// What is installed together.
pub(crate) struct Packages {
    /// What it is called.
    pub(crate) name: &'static str,
    /// A file with exact versions of it and of all it needs.
    pub(crate) requirements: &'static str,
    /// What can be imported then.
    pub(crate) modules: &'static str,
}

/// AWS.
pub(crate) const MOTO: Packages = Packages {
    name: "moto",
    requirements: concat!(env!("CARGO_MANIFEST_DIR"), "/python/requirements.txt"),
    modules: "flask, flask_cors, moto.kms.models, moto.sts.models",
};

/// A KMIP server.
pub(crate) const PYKMIP: Packages = Packages {
    name: "pykmip",
    requirements: concat!(env!("CARGO_MANIFEST_DIR"), "/python/pykmip.txt"),
    modules: "kmip.services.server, kmip.pie.client",
};

/// A Python and the directory of packages for its PYTHONPATH.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    pub(crate) program: PathBuf,
    pub(crate) packages: PathBuf,
}

impl Python {
    pub(crate) async fn with(wanted: &'static Packages) -> Result<Self> {
        let program = packages::program("python3", "python3").await?;
        let packages = match installed(&program, wanted)? {
            path if path.is_dir() => path,
            path => {
                // Where Python came without it.
                packages::program("pip3", "python3-pip").await?;
                let program = program.clone();
                tokio::task::spawn_blocking(move || install(&program, wanted, path)).await??
            }
        };
        Ok(Self { program, packages })
    }
}

/// Where the packages are or will be.
fn installed(python: &Path, wanted: &Packages) -> Result<PathBuf> {
    let ran = Command::new(python).arg("--version").output();
    let ran = ran.with_context(|| format!("cannot run {}", python.display()))?;
    let pinned = wanted.requirements;
    let pinned = std::fs::read(pinned).with_context(|| format!("no {pinned}"))?;
    let all = [ran.stdout.as_slice(), &pinned].concat();
    let hash = digest::digest(&digest::SHA256, &all);
    let short: String = hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(cache::directory()?.join(format!("{}-{short}", wanted.name)))
}

fn install(python: &Path, wanted: &Packages, target: PathBuf) -> Result<PathBuf> {
    let Packages { name, requirements, modules } = wanted;
    let cache = cache::directory()?;
    let _lock = Lock::take(&cache, name)?;
    if target.is_dir() {
        return Ok(target);
    }
    say(&format!("installing {name} from PyPI, half a minute the first time"));
    // The lock is ours: whatever lies here was left by an installation that died.
    let unfinished = cache.join(format!("{name}.unfinished"));
    if unfinished.exists() {
        std::fs::remove_dir_all(&unfinished)?;
    }
    let python = python.display().to_string();
    let mut tried = String::new();
    for pip in [&[python.as_str(), "-m", "pip"][..], &["pip3"], &["uv", "pip"]] {
        let ran = Command::new(pip[0])
            .args(&pip[1..])
            .args(["install", "--no-deps", "--requirement", requirements, "--target"])
            .arg(&unfinished)
            .stdin(Stdio::null())
            .output();
        match ran {
            Ok(ran) if ran.status.success() => {
                check(&python, &unfinished, modules)?;
                std::fs::rename(&unfinished, &target)?;
                return Ok(target);
            }
            Ok(ran) => {
                let text = String::from_utf8_lossy(&ran.stderr);
                writeln!(tried, "  {}: {}", pip.join(" "), text.trim())?;
            }
            Err(error) => writeln!(tried, "  {}: {error}", pip.join(" "))?,
        }
    }
    bail!(
        "cannot install {name}:\n{tried}To fix it, make `{python} -m pip install --target DIR \
         --requirement {requirements}` work on this machine"
    )
}

/// What is there can be imported by this Python.
fn check(python: &str, packages: &Path, modules: &str) -> Result<()> {
    let ran = Command::new(python)
        .args(["-c", &format!("import {modules}")])
        .env("PYTHONPATH", packages)
        .output()?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "{modules} cannot be imported: {said}");
    Ok(())
}
