//! Programs that come from the distribution's packages.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cache::{self, Lock, say};

/// The path of `program`; where it is missing, `package` is installed with
/// apt-get, which takes root.
pub async fn program(program: &'static str, package: &'static str) -> Result<PathBuf> {
    tokio::task::spawn_blocking(move || find_or_install(program, package)).await?
}

fn find_or_install(program: &str, package: &str) -> Result<PathBuf> {
    if let Some(path) = find(program) {
        return Ok(path);
    }
    let by_hand = || format!("{program} is missing: install the package {package}");
    ensure!(rustix::process::geteuid().is_root(), "{} (or run as root on Debian)", by_hand());
    let _lock = Lock::take(&cache::directory()?, "apt-get")?;
    if find(program).is_none() {
        say(&format!("installing {package} with apt-get"));
        let install = ["install", "--yes", "--no-install-recommends", package];
        // The lists may be missing or old: then the first attempt fails.
        let installed = apt_get(&install).is_ok()
            || (apt_get(&["update"]).and_then(|()| apt_get(&install))).is_ok();
        ensure!(installed, "{}: apt-get could not, see above", by_hand());
    }
    find(program).with_context(by_hand)
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(usual).map(|dir| dir.join(program));
    places.find(|path| path.is_file())
}

fn apt_get(args: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        // A test's stdout may be read by a program.
        .stdout(std::io::stderr())
        .status()
        .context("cannot run apt-get")?;
    ensure!(status.success(), "apt-get {args:?}: {status}");
    Ok(())
}
