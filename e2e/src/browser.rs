//! A real browser without a screen: what it makes of a page, and how that looks.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::packages;
use crate::process::Spec;
use crate::scratch::Scratch;
use crate::wait::{PATIENCE, eventually};

/// No sandbox, because tests run as root in containers; nothing but the page
/// that was asked for is fetched.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
];

/// Its complaints go elsewhere, so that its answer can be read.
const APART: &str = r#"exec 2>"$1"; shift; exec "$@""#;

/// Chromium, a new profile for each page.
#[derive(Debug)]
pub struct Browser {
    program: PathBuf,
    dir: PathBuf,
    pages: u32,
}

impl Browser {
    /// Finds it, or installs it where that is possible.
    pub async fn find(scratch: &Scratch) -> Result<Self> {
        let program = packages::program("chromium", "chromium").await?;
        Ok(Self { program, dir: scratch.subdir("browser")?, pages: 0 })
    }

    /// Loads the page, runs what scripts it may have, and tells the document
    /// that has come of it.
    pub async fn document(&mut self, url: &str) -> Result<String> {
        self.run(&["--dump-dom"], url).await
    }

    /// Loads the page and paints it to a PNG file in `dir`.
    pub async fn screenshot(&mut self, url: &str, file: &Path, dark: bool) -> Result<()> {
        let to = format!("--screenshot={}", file.display());
        let scheme = if dark { "--force-dark-mode" } else { "--hide-scrollbars" };
        self.run(&[&to, "--window-size=1280,900", scheme], url).await?;
        let png = std::fs::read(file).with_context(|| format!("no {}", file.display()))?;
        ensure!(png.starts_with(b"\x89PNG"), "{} is no PNG", file.display());
        Ok(())
    }

    async fn run(&mut self, extra: &[&str], url: &str) -> Result<String> {
        self.pages += 1;
        let file = |name: &str| self.dir.join(format!("{}-{name}", self.pages));
        let mut process = Spec::new("chromium", "sh", file("stdout"))
            .args(["-c", APART, "apart"])
            .arg(file("stderr"))
            .arg(&self.program)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", file("profile").display()))
            .args(extra)
            .arg(url)
            .start()?;
        let ended = eventually(format!("chromium ends with {url}"), PATIENCE, async || {
            process.ended()?.context("it still runs")
        });
        let complaints = || std::fs::read_to_string(file("stderr")).unwrap_or_default();
        let status = ended.await.with_context(complaints)?;
        ensure!(status.success(), "chromium with {url}: {status}\n{}", complaints());
        process.log()
    }
}
