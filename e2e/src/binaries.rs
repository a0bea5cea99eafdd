//! Our own programs: as the tests build them, or as users run them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
pub use sidekey_verify::BIN_DIR;
use sidekey_verify::{is_dynamic, link_dynamically};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::cache::say;
use crate::wait::LONG_PATIENCE;

/// Whether what is missing is built as it is shipped.
static SHIPPED: AtomicBool = AtomicBool::new(false);

/// Whether it is built with the FIPS module.
static FIPS: AtomicBool = AtomicBool::new(false);

/// The crate of a binary.
struct Owner {
    package: String,
    manifest: String,
    is_dynamic: bool,
}

static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// From now on binaries are built as they are shipped, for programs that show or measure them.
pub fn build_shipped() {
    SHIPPED.store(true, Ordering::Relaxed);
}

/// From now on binaries are built with the FIPS module, in a directory of their own.
pub fn build_fips() {
    FIPS.store(true, Ordering::Relaxed);
}

/// The path of a binary such as `sidekey-local`: from `$SIDEKEY_BIN_DIR`, else built by cargo,
/// once per process. Blocks.
pub fn path(name: &str) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(BIN_DIR) {
        let path = PathBuf::from(dir).join(name);
        ensure!(path.is_file(), "{BIN_DIR} is set, but there is no {}", path.display());
        return Ok(path);
    }
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(name) {
        return Ok(path.clone());
    }
    let path = build(name).with_context(|| format!("cannot build {name}"))?;
    built.insert(name.to_owned(), path.clone());
    Ok(path)
}

/// The same from async code.
pub async fn path_async(name: &'static str) -> Result<PathBuf> {
    tokio::task::spawn_blocking(move || path(name)).await?
}

/// What a program that ended by itself has said.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// All of its stdout.
    pub stdout: String,
    /// All of its stderr.
    pub stderr: String,
}

impl Outcome {
    /// An error that quotes its output unless it ended with 0.
    pub fn ok(self) -> Result<Self> {
        let Self { code, stdout, stderr } = &self;
        ensure!(*code == Some(0), "exit code {code:?}\nstdout: {stdout}\nstderr: {stderr}");
        Ok(self)
    }
}

/// Runs a command of ours to its end, for those that end by themselves.
pub async fn run<A: AsRef<OsStr>>(name: &'static str, args: &[A]) -> Result<Outcome> {
    let program = path_async(name).await?;
    let args: Vec<OsString> = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
    let what = format!("{name} {args:?}");
    let output = tokio::task::spawn_blocking(move || {
        Command::new(program).args(args).stdin(Stdio::null()).output()
    });
    let ran = output.await?.with_context(|| format!("cannot run {what}"))?;
    Ok(Outcome {
        code: ran.status.code(),
        stdout: String::from_utf8_lossy(&ran.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&ran.stderr).into_owned(),
    })
}

/// Runs a command of ours and kills it (-9) when it says a line on stderr that begins so; an
/// error if it ends before that.
pub async fn kill_at(name: &'static str, args: &[String], line: &str) -> Result<()> {
    let program = path_async(name).await?;
    let mut child = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let mut lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
    let mut said = String::new();
    let reached = async {
        while let Some(next) = lines.next_line().await? {
            if next.starts_with(line) {
                return Ok(());
            }
            said = format!("{said}{next}\n");
        }
        bail!("{name} has ended and never said {line:?}:\n{said}")
    };
    let reached = tokio::time::timeout(LONG_PATIENCE, reached).await;
    reached.with_context(|| format!("{name} does not say {line:?}"))??;
    child.kill().await.with_context(|| format!("cannot kill {name}"))
}

fn build(name: &str) -> Result<PathBuf> {
    let Owner { package, is_dynamic, .. } = owner_of(name)?;
    say(&format!("building {name}"));
    let mut command = cargo();
    command.args(["build", "--message-format=json-render-diagnostics", "--bin", name]);
    let is_shipped = SHIPPED.load(Ordering::Relaxed);
    if is_shipped {
        command.arg("--release");
    }
    if is_shipped || is_dynamic {
        // Built alone, a binary has just its own features, as when released.
        command.args(["--package", &package]);
    } else {
        // With everything, it has what the tests have built already.
        command.arg("--workspace");
    }
    let is_fips = FIPS.load(Ordering::Relaxed);
    if is_fips {
        command.args(["--features", "fips"]);
    }
    if is_dynamic {
        link_dynamically(&mut command);
    } else if is_fips {
        command.args(["--target-dir", "target/fips"]);
    }
    let ran = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(ran.status.success(), "cargo build --bin {name} failed, see above");
    let executable = String::from_utf8_lossy(&ran.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    executable.context("cargo did not say where it put the binary")
}

/// The names of all binaries that users get: all but the developer programs and the example.
pub fn products() -> Result<BTreeSet<String>> {
    let ours = |owner: &Owner| {
        !["/e2e/", "/providers/example/"].iter().any(|other| owner.manifest.contains(other))
    };
    let all = all()?.into_iter();
    Ok(all.filter(|(_, owner)| ours(owner)).map(|(name, _)| name).collect())
}

/// Those among them that load libraries, so that they cannot be static.
pub fn dynamic() -> Result<BTreeSet<String>> {
    let all = all()?.into_iter();
    Ok(all.filter(|(_, owner)| owner.is_dynamic).map(|(name, _)| name).collect())
}

/// The crate that a binary belongs to.
pub(crate) fn package_of(name: &str) -> Result<String> {
    Ok(owner_of(name)?.package)
}

fn owner_of(name: &str) -> Result<Owner> {
    let mut all = all()?;
    let known: Vec<String> = all.keys().cloned().collect();
    let found = all.remove(name);
    let none = || format!("the workspace has no binary of that name; it has {}", known.join(", "));
    found.with_context(none)
}

/// Every binary of the workspace.
fn all() -> Result<BTreeMap<String, Owner>> {
    let ran = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .output()
        .context("cannot run cargo metadata")?;
    let text = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "cargo metadata failed: {text}");
    let metadata: Value = serde_json::from_slice(&ran.stdout).context("bad cargo metadata")?;
    let text = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_default();
    let mut found = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            if target["kind"].as_array().is_some_and(|kind| kind.contains(&"bin".into())) {
                let owner = Owner {
                    package: text(&package["name"]),
                    manifest: text(&package["manifest_path"]),
                    is_dynamic: is_dynamic(&package["metadata"]),
                };
                found.insert(text(&target["name"]), owner);
            }
        }
    }
    Ok(found)
}

/// The cargo that runs us, at the top of the repository.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).stdin(Stdio::null());
    command
}
