//! What `cargo verify` runs before the first test: fetches, builds and installs all that tests
//! need, so that none of them waits for it within its own time.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use sidekey_e2e::{aws, cluster, command, golang, images, packages};

/// Programs of the distribution, and the packages that have them.
const PROGRAMS: [(&str, &str); 14] = [
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
];

/// Servers that are built from Go modules.
const SERVERS: [golang::GoServer; 8] = [
    golang::ETCD,
    golang::KUBE_APISERVER,
    golang::OPENBAO,
    golang::NODE,
    golang::COREDNS,
    golang::POD,
    golang::KUBECTL,
    golang::LOCAL_KMS,
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
}

fn main() -> ExitCode {
    let arguments = match command::arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    command::block_on(prepare(&arguments))
}

async fn prepare(arguments: &Arguments) -> Result<()> {
    let Arguments { binaries, into } = arguments;
    for (program, package) in PROGRAMS {
        packages::program(program, package).await?;
    }
    aws::install().await?;
    for server in SERVERS {
        server.build_async().await?;
    }
    cluster::write_images().await?;
    let bin = into.join("bin");
    strip_all(binaries, &bin)?;
    images::prepare(&bin, &into.join("images")).await
}

/// Copies our binaries without symbols: pods load them many times.
fn strip_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let list = || format!("cannot list {}", from.display());
    for entry in fs::read_dir(from).with_context(list)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { continue };
        if path.is_file() && name.starts_with("sidekey") && !name.contains('.') {
            strip(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn strip(from: &Path, to: &Path) -> Result<()> {
    let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    if modified(to).is_some_and(|then| Some(then) > modified(from)) {
        return Ok(());
    }
    let ran = Command::new("strip").arg("-o").arg(to).arg(from).output();
    if !ran.is_ok_and(|ran| ran.status.success()) {
        // Where there are no binutils: larger, and just as good.
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}
