//! What `cargo verify` runs before the first test: fetches, builds and installs all that tests
//! need, so that none of them waits for it within its own time.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use sidekey_e2e::{aws, binaries, cluster, command, golang, images, kmip, packages};

/// Programs of the distribution, and the packages that have them.
const PROGRAMS: [(&str, &str); 16] = [
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("find", "findutils"),
    ("tar", "tar"),
    ("script", "bsdutils"),
    ("strace", "strace"),
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("buildah", "buildah"),
    ("update-ca-certificates", "ca-certificates"),
    ("chromium", "chromium"),
    ("softhsm2-util", "softhsm2"),
    ("pkcs11-tool", "opensc"),
];

/// Servers that are built from Go modules.
const SERVERS: &[golang::GoServer] = &[
    golang::ETCD,
    golang::KUBE_APISERVER,
    golang::OPENBAO,
    golang::NODE,
    golang::COREDNS,
    golang::POD,
    golang::KUBECTL,
    golang::LOCAL_KMS,
    golang::KMIP,
];

/// Vendors' own programs, by which fakes are proven: tests in `full` alone run them.
const CLIENTS: &[golang::GoServer] = &[
    golang::AZURE_CLIENT,
    golang::AZURE_KMS,
    golang::GCP_CLIENT,
    golang::KEYPROTECT_CLIENT,
    golang::OKMS_CLIENT,
];

/// Prepares everything that the end-to-end tests need.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run -p sidekey-e2e --bin prepare -- --binaries target/x86_64-unknown-linux-gnu/debug --into target/verify\n\nExit codes: 0 prepared, 1 failed, 64 bad usage"
)]
struct Arguments {
    /// The directory with our binaries
    #[arg(long, value_name = "DIRECTORY")]
    binaries: PathBuf,
    /// Where they go without symbols (bin), and their images (images)
    #[arg(long, value_name = "DIRECTORY")]
    into: PathBuf,
    /// They are what users get: they go there as they are, to be judged
    #[arg(long)]
    shipped: bool,
    /// Also what nothing but `cargo verify --all` needs
    #[arg(long)]
    all: bool,
}

fn main() -> ExitCode {
    let arguments = match command::arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    command::block_on(prepare(&arguments))
}

async fn prepare(arguments: &Arguments) -> Result<()> {
    let Arguments { binaries: built, into, shipped, all } = arguments;
    for (program, package) in PROGRAMS {
        packages::program(program, package).await?;
    }
    aws::install().await?;
    kmip::install().await?;
    let clients = CLIENTS.iter().filter(|_| *all);
    for server in SERVERS.iter().chain(clients) {
        server.build_async().await?;
    }
    cluster::write_images().await?;
    let bin = into.join("bin");
    let dynamic = binaries::dynamic()?;
    let copy = if *shipped { copy } else { strip };
    copy_all(built, &bin, copy, &dynamic)?;
    if *shipped {
        binaries::build_shipped();
    }
    for name in dynamic {
        let to = bin.join(&name);
        copy(&tokio::task::spawn_blocking(move || binaries::path(&name)).await??, &to)?;
    }
    images::prepare(&bin, &into.join("images")).await
}

/// Copies our binaries but those that are built elsewhere: what is here of them is static, and
/// refuses to start.
fn copy_all(
    from: &Path,
    to: &Path,
    copy: fn(&Path, &Path) -> Result<()>,
    elsewhere: &BTreeSet<String>,
) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let list = || format!("cannot list {}", from.display());
    for entry in fs::read_dir(from).with_context(list)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { continue };
        let is_ours = name.starts_with("sidekey") && !name.contains('.');
        if path.is_file() && is_ours && !elsewhere.contains(name) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

/// Without symbols: pods load them many times.
fn strip(from: &Path, to: &Path) -> Result<()> {
    if is_newer(to, from) {
        return Ok(());
    }
    let ran = Command::new("strip").arg("-o").arg(to).arg(from).output();
    if !ran.is_ok_and(|ran| ran.status.success()) {
        // Where there are no binutils: larger, and just as good.
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

/// As cargo made it: whether it carries symbols is for a test to see.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let size = |path: &Path| fs::metadata(path).map(|data| data.len()).ok();
    if !is_newer(to, from) || size(to) != size(from) {
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

fn is_newer(one: &Path, other: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    modified(one).is_some_and(|then| Some(then) > modified(other))
}
