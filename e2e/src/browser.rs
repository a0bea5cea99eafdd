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

/// How large a page is painted, in pixels.
const WINDOW: (u32, u32) = (1280, 900);

/// A surface of one colour is packed by a thousand; words on it take many times that.
const PACKED: u32 = 300;

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

    /// Loads the page and paints it to a PNG file in `dir`; an error if nothing is to be seen there.
    pub async fn screenshot(&mut self, url: &str, file: &Path, dark: bool) -> Result<()> {
        let (to, (width, height)) = (format!("--screenshot={}", file.display()), WINDOW);
        let scheme = if dark { "--force-dark-mode" } else { "--hide-scrollbars" };
        let window = format!("--window-size={width},{height}");
        self.run(&[&to, &window, scheme], url).await?;
        let png = std::fs::read(file).with_context(|| format!("no {}", file.display()))?;
        is_painted(&png).with_context(|| format!("{} of {url}", file.display()))
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

/// An error unless it is a PNG of the window's size, with more on it than one colour.
fn is_painted(png: &[u8]) -> Result<()> {
    let (width, height) = WINDOW;
    let size: Vec<u8> = [width.to_be_bytes(), height.to_be_bytes()].concat();
    ensure!(png.starts_with(b"\x89PNG"), "it is no PNG");
    ensure!(png.get(16..24) == Some(&size), "it is not {width} by {height}");
    let least = usize::try_from(width * height * 3 / PACKED)?;
    ensure!(png.len() > least, "nothing is painted on it: {} bytes", png.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_of_another_size_or_of_one_colour_is_not_painted() {
        let png = |width: u32, length: usize| {
            let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
            png.extend([width.to_be_bytes(), WINDOW.1.to_be_bytes()].concat());
            png.resize(length, 0);
            png
        };
        assert!(is_painted(&png(WINDOW.0, 40_000)).is_ok());
        assert!(is_painted(&png(WINDOW.0 + 1, 40_000)).is_err());
        assert!(is_painted(&png(WINDOW.0, 5_000)).is_err());
        assert!(is_painted(b"<html>").is_err());
    }
}
