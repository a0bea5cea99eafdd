//! buildah: runs a Containerfile with what we give it, and without a daemon or a network.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::platform::Platform;
use super::source::Source;
use crate::packages;
use crate::scratch::Scratch;

/// buildah, with a store of its own that goes away with the scratch directory.
pub(super) struct Buildah {
    program: PathBuf,
    store: PathBuf,
}

/// One image to build.
pub(super) struct Order<'a> {
    pub(super) containerfile: &'a Path,
    /// The directory that the Containerfile calls `files`.
    pub(super) files: &'a Path,
    pub(super) platform: Platform,
    pub(super) version: &'a str,
    pub(super) source: &'a Source,
    /// An empty directory that becomes an OCI layout.
    pub(super) layout: &'a Path,
}

impl Buildah {
    pub(super) async fn new(scratch: &Scratch) -> Result<Self> {
        let program = packages::program("buildah", "buildah").await?;
        let store = scratch.subdir("buildah")?;
        // An image from ready files needs no other context.
        for name in ["context", "temporary"] {
            scratch.subdir(&format!("buildah/{name}"))?;
        }
        Ok(Self { program, store })
    }

    pub(super) async fn build(&self, order: &Order<'_>) -> Result<()> {
        let path = |name: &str| self.store.join(name);
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(path("root")).arg("--runroot").arg(path("run"));
        command.args(["--storage-driver", "vfs", "build", "--quiet", "--isolation", "chroot"]);
        // One layer, as it is unpacked: its digest hangs on no version of gzip, and the history
        // would only repeat the Containerfile in the words of this version of buildah.
        command.args(["--format", "oci", "--layers=false", "--disable-compression"]);
        command.args(["--omit-history", "--identity-label=false"]);
        command.arg(format!("--timestamp={}", order.source.epoch));
        command.arg(format!("--platform={}", order.platform));
        for (name, value) in
            [("version", Some(order.version)), ("revision", order.source.revision.as_deref())]
        {
            if let Some(value) = value {
                command.arg(format!("--label=org.opencontainers.image.{name}={value}"));
            }
        }
        command.arg(format!("--build-context=files={}", order.files.display()));
        command.arg("--file").arg(order.containerfile);
        command.arg(format!("--tag=oci:{}", order.layout.display())).arg(path("context"));
        command.env("TMPDIR", path("temporary")).stdin(Stdio::null()).kill_on_drop(true);
        let ran = command.output().await.context("cannot run buildah")?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "buildah could not: {}", said.trim());
        Ok(())
    }
}
