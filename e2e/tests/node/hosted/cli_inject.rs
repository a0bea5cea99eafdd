//! Promise: `sidekey inject` makes the pods of HyperShift and OpenShift encrypt, in each of its
//! profiles, also if the manifest has been through a cluster; a provider that was taken over can put
//! its socket in the place of nobody else's; and what it took in it gives back.

mod hosted;
mod openshift;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sidekey_e2e::binaries;
use sidekey_e2e::cluster::manifest;

/// Where manifests lie while they are worked on.
struct Desk {
    dir: tempfile::TempDir,
}

impl Desk {
    fn new() -> Result<Self> {
        Ok(Self { dir: tempfile::tempdir()? })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Injects into a manifest, and makes sure that taking out gives back each byte of it and
    /// that injecting again changes nothing.
    async fn inject(&self, text: &str, args: &[&str]) -> Result<Value> {
        let (plain, out) = (self.put("plain", text)?, self.path("injected"));
        inject(&plain, &out, args).await?;
        let injected = fs::read_to_string(&out)?;
        inject(&out, &self.path("twice"), args).await?;
        ensure!(fs::read_to_string(self.path("twice"))? == injected, "the second time differs");
        ensure!(piped(&plain, args).await? == injected, "through a pipe it differs");
        let back = self.take_out(&injected).await?;
        ensure!(back == text, "taken out it is another:\n{back}");
        manifest(&injected)?.pop().context("no object")
    }

    async fn take_out(&self, text: &str) -> Result<String> {
        let (from, to) = (self.put("before", text)?, self.path("after"));
        let told = inject(&from, &to, &["--uninject"]).await?;
        ensure!(
            told.contains("sidekey census"),
            "it does not say what is to be seen first: {told}"
        );
        Ok(fs::read_to_string(to)?)
    }
}

/// Runs the command; gives what it says beside its answer.
async fn inject(from: &Path, to: &Path, args: &[&str]) -> Result<String> {
    let (from, to) = (from.display().to_string(), to.display().to_string());
    let mut all = vec!["inject", "-f", &from, "--to", &to];
    all.extend(args);
    Ok(binaries::run("sidekey", &all).await?.ok()?.stderr)
}

/// The same as a part of a pipe.
async fn piped(from: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new(binaries::path_async("sidekey").await?);
    command.args(["inject", "-f", "-"]).args(args).stdin(fs::File::open(from)?);
    let ran = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(ran.status.success(), "{ran:?}");
    Ok(String::from_utf8(ran.stdout)?)
}
