//! Images FROM scratch for the harness's own programs, written as archives
//! that any runtime imports. The product's images are built elsewhere.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest::{Context as Digest, SHA256, digest};
use serde_json::json;

use crate::cache::{self, Lock};

/// A tar's unit.
const BLOCK: usize = 512;

/// An image of some files and nothing else.
#[derive(Clone, Debug)]
pub(crate) struct ScratchImage {
    name: String,
    files: Vec<(PathBuf, String)>,
    entrypoint: Vec<String>,
    arguments: Vec<String>,
}

impl ScratchImage {
    /// `name` is what pods call it, such as `localhost/sidekey-e2e/pod:1`.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), files: Vec::new(), entrypoint: Vec::new(), arguments: Vec::new() }
    }

    /// Puts a static program into its root; the first one is what it runs.
    pub(crate) fn program(mut self, path: impl Into<PathBuf>, name: &str) -> Self {
        if self.entrypoint.is_empty() {
            self.entrypoint.push(format!("/{name}"));
        }
        self.files.push((path.into(), name.to_owned()));
        self
    }

    /// Adds an argument for those that name none.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// A docker-archive for this machine's architecture, written once and kept in the cache. The
    /// programs are the cache's own, whose names tell what is in them.
    pub(crate) fn archive(&self) -> Result<PathBuf> {
        let dir = cache::directory()?.join("images");
        let hash = digest(&SHA256, format!("{self:?}").as_bytes());
        let name: String = hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let archive = dir.join(format!("{name}.tar"));
        if !archive.is_file() {
            let _lock = Lock::take(&dir, &name)?;
            let unfinished = dir.join(format!("{name}.unfinished"));
            self.write(&unfinished)?;
            std::fs::rename(&unfinished, &archive)?;
        }
        Ok(archive)
    }

    /// Writes `file` as such an archive.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let what = || format!("cannot write the image {}", file.display());
        self.write_archive(file).with_context(what)
    }

    fn write_archive(&self, file: &Path) -> Result<()> {
        ensure!(!self.files.is_empty(), "an image without a program runs nothing");
        let layer = file.with_extension("layer");
        let diff = {
            let mut tar = Tar::create(&layer)?;
            for (path, name) in &self.files {
                tar.copy(name, 0o755, path)?;
            }
            tar.finish()?
        };
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Cmd": self.arguments},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
        });
        let manifest = json!([
            {"Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"]}
        ]);
        let mut tar = Tar::create(file)?;
        tar.copy("layer.tar", 0o644, &layer)?;
        tar.text("config.json", &config.to_string())?;
        tar.text("manifest.json", &manifest.to_string())?;
        tar.finish()?;
        std::fs::remove_file(&layer)?;
        Ok(())
    }
}

/// What images call the machine that this runs on.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A tar of plain files, and the digest of all its bytes.
struct Tar {
    file: BufWriter<File>,
    digest: Digest,
}

impl Tar {
    fn create(path: &Path) -> Result<Self> {
        Ok(Self { file: BufWriter::new(File::create(path)?), digest: Digest::new(&SHA256) })
    }

    fn text(&mut self, name: &str, text: &str) -> Result<()> {
        self.put(&header(name, 0o644, text.len() as u64)?)?;
        self.put(text.as_bytes())?;
        self.pad(text.len() as u64)
    }

    fn copy(&mut self, name: &str, mode: u32, path: &Path) -> Result<()> {
        let open = || format!("cannot read {}", path.display());
        let mut file = File::open(path).with_context(open)?;
        let size = file.metadata()?.len();
        self.put(&header(name, mode, size)?)?;
        let copied = std::io::copy(&mut file, self).with_context(open)?;
        ensure!(copied == size, "{} changed while it was read", path.display());
        self.pad(size)
    }

    fn finish(mut self) -> Result<String> {
        self.put(&[0; 2 * BLOCK])?;
        self.file.flush()?;
        Ok(self.digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn pad(&mut self, size: u64) -> Result<()> {
        let rest = size.next_multiple_of(BLOCK as u64) - size;
        self.put(&vec![0; usize::try_from(rest)?])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.write_all(bytes)?)
    }
}

impl Write for Tar {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// A POSIX header: owned by root, without a time, so that the same files give
/// the same bytes.
fn header(name: &str, mode: u32, size: u64) -> Result<[u8; BLOCK]> {
    ensure!(name.len() < 100, "the name {name} is too long for a tar");
    let mut block = [0; BLOCK];
    let mut set = |at: usize, text: &str| {
        block[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    set(0, name);
    set(100, &format!("{mode:07o}"));
    set(108, "0000000");
    set(116, "0000000");
    set(124, &format!("{size:011o}"));
    set(136, "00000000000");
    set(148, "        ");
    set(156, "0");
    set(257, "ustar");
    set(263, "00");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use std::process::Command;

    use super::*;

    #[test]
    fn the_same_files_give_the_same_archive_which_tar_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, "x".repeat(700)).unwrap();
        let image = ScratchImage::new("localhost/x:1").program(&program, "x");
        let (one, two) = (dir.path().join("one.tar"), dir.path().join("two.tar"));
        image.write(&one).unwrap();
        image.write(&two).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
        let list = Command::new("tar").arg("-tvf").arg(&one).output().unwrap();
        let text = String::from_utf8(list.stdout).unwrap();
        assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
        for name in ["layer.tar", "config.json", "manifest.json"] {
            assert!(text.contains(name), "{text}");
        }
    }
}
