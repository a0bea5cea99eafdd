//! The CA roots of an image: what the distribution's package brings, and nothing else.
//!
//! The ready bundle of a machine would not do: it also has what its administrator added, such
//! as the CA of a proxy that looks into TLS. Nobody who runs the image has agreed to that one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::packages;

/// The bundle's name, by which providers and the libraries of others find it in `/etc/ssl/certs`.
pub const FILE: &str = "ca-certificates.crt";

/// Where Debian's package has them, one in a file.
const PACKAGED: &str = "/usr/share/ca-certificates/mozilla";

/// Writes the bundle: that file, or what the package has, in the order of names.
pub(super) async fn write(given: Option<&Path>, to: &Path) -> Result<()> {
    let bundle = match given {
        Some(path) => read(path)?,
        None => {
            if !Path::new(PACKAGED).is_dir() {
                let installed = packages::program("update-ca-certificates", "ca-certificates");
                installed.await.context("or name a file of CA roots with --ca-roots")?;
            }
            packaged(Path::new(PACKAGED))?
        }
    };
    fs::write(to, bundle).with_context(|| format!("cannot write {}", to.display()))
}

fn packaged(folder: &Path) -> Result<String> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()
        .with_context(|| format!("cannot read {}", folder.display()))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "crt"));
    paths.sort();
    ensure!(!paths.is_empty(), "{} has no CA root", folder.display());
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<String> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(text.contains("-----BEGIN CERTIFICATE-----"), "{} has no CA root", path.display());
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_has_every_root_in_the_order_of_names() {
        let dir = tempfile::tempdir().unwrap();
        let root = |text: &str| format!("-----BEGIN CERTIFICATE-----{text}");
        fs::write(dir.path().join("b.crt"), root("second")).unwrap();
        packaged(&dir.path().join("missing")).unwrap_err();
        fs::write(dir.path().join("a.crt"), root("first\n")).unwrap();
        fs::write(dir.path().join("README"), "no root").unwrap();
        let expected = format!("{}\n{}\n", root("first"), root("second"));
        assert_eq!(packaged(dir.path()).unwrap(), expected);
        fs::write(dir.path().join("c.crt"), "").unwrap();
        packaged(dir.path()).unwrap_err();
    }
}
