//! Images of our binaries, as users run them.
//!
//! For: `cargo images`, and the tests that run what it built. Every folder of `images/` is an
//! image, named after the binary that is in it; no list is kept here. Its Containerfile gets a
//! directory with the ready binary and the CA roots, so nothing is fetched and no program of
//! another image runs.
//!
//! Refuses: a binary that an empty image cannot run (one that must load libraries has what they need
//! around it), and CA roots that somebody has added to the building machine.
//!
//! The one invariant: the same files in give the same bytes out. What could differ between two
//! builds (times, modes, owners, order, names of directories) is fixed.

mod base;
mod buildah;
mod oci;
mod platform;
mod roots;
mod sbom;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};
use sidekey_verify::IMAGE_DIR;

use crate::bench::Binary;
use crate::binaries;
use crate::scratch::Scratch;

use buildah::Buildah;
use oci::Layout;
use platform::Platform;
use sbom::Bom;

pub use roots::FILE as CA_ROOTS;
pub use source::Source;

/// How much larger than its binary an image may be.
pub const ALLOWANCE: u64 = 512 * 1024;

/// What the names of our binaries begin with.
const PREFIX: &str = "sidekey-";

/// The folder of the command, whose binary has no more to its name.
const COMMAND: &str = "sidekey";

/// The folders of which [`prepare`] builds another image too, and where it goes.
const UPDATED: [&str; 2] = ["local", "shim"];
const UPDATES: &str = "updates";

/// What to build, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory whose folders are images.
    pub folder: PathBuf,
    /// The folders to build; all of them where this is empty.
    pub names: Vec<String>,
    /// Where the archives and the bills of materials go.
    pub output: PathBuf,
    /// A file of CA roots to put in instead of those of the distribution.
    pub roots: Option<PathBuf>,
    /// The tag of the images; the binary's version where there is none.
    pub tag: Option<String>,
    /// Whether binaries without the FIPS module are refused.
    pub fips: bool,
    /// What the images are said to be made from.
    pub source: Source,
    /// Where the binaries are; see [`binaries::path`] where this says nothing.
    pub binaries: Option<PathBuf>,
}

/// An image that was built.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Image {
    /// The name of the binary in it.
    pub name: String,
    /// What it is called once it is loaded.
    pub reference: String,
    /// Its platform, which is that of the binary.
    pub platform: String,
    /// The digest of its manifest.
    pub digest: String,
    /// The size of the binary.
    pub binary_bytes: u64,
    /// The size of what it needs around it, if it loads libraries.
    #[serde(default)]
    pub base_bytes: u64,
    /// The size of the image: its layers, as they are unpacked, and what describes them.
    pub image_bytes: u64,
    /// The OCI archive.
    pub archive: PathBuf,
    /// The bill of materials (CycloneDX).
    pub sbom: PathBuf,
}

impl Options {
    /// All images of this repository, into `output`.
    pub fn new(output: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self {
            folder: folder(),
            names: Vec::new(),
            output: output.into(),
            roots: None,
            tag: None,
            fips: false,
            source: Source::of_repository()?,
            binaries: None,
        })
    }
}

impl Image {
    /// How much it has on top of its binary and what that needs.
    pub fn overhead(&self) -> u64 {
        self.image_bytes.saturating_sub(self.binary_bytes + self.base_bytes)
    }
}

/// Where the repository keeps its images.
pub fn folder() -> PathBuf {
    repository().join("images")
}

/// The images that are in a directory: its folders, in order.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.path().is_dir() {
            let name = entry.file_name().into_string();
            names.push(name.map_err(|name| anyhow::anyhow!("{name:?} is not UTF-8"))?);
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "{} has no folder, so there is no image", folder.display());
    Ok(names)
}

/// The binary in the image of a folder. The command's is the name of the whole.
pub fn binary(folder: &str) -> String {
    if folder == COMMAND { folder.to_owned() } else { format!("{PREFIX}{folder}") }
}

/// Builds images. What is missing to do so is installed.
pub async fn build(options: &Options) -> Result<Vec<Image>> {
    let names =
        if options.names.is_empty() { names(&options.folder)? } else { options.names.clone() };
    let scratch = Scratch::new("images")?;
    let output = &options.output;
    fs::create_dir_all(output).with_context(|| format!("cannot make {}", output.display()))?;
    let output = &fs::canonicalize(output)?;
    let files = scratch.subdir("files")?;
    roots::write(options.roots.as_deref(), &files.join(CA_ROOTS)).await?;
    let buildah = Buildah::new(&scratch).await?;
    let mut images = Vec::new();
    for name in names {
        let image = one(options, &buildah, &scratch, output, &name);
        images.push(image.await.with_context(|| format!("cannot build the image {name}"))?);
    }
    Ok(images)
}

/// The images of these folders, for a test: those of `$SIDEKEY_IMAGE_DIR`, or else built now, into
/// `output`.
pub async fn ready(folders: &[&str], output: &Path) -> Result<Vec<Image>> {
    take(folders, Options::new(output)?, "").await
}

/// Other images of the same programs, for a test that updates them.
pub async fn updates(folders: &[&str], output: &Path) -> Result<Vec<Image>> {
    take(folders, update(output)?, UPDATES).await
}

async fn take(folders: &[&str], mut options: Options, within: &str) -> Result<Vec<Image>> {
    let Some(dir) = std::env::var_os(IMAGE_DIR) else {
        options.names = folders.iter().map(|&folder| folder.to_owned()).collect();
        return build(&options).await;
    };
    let dir = Path::new(&dir).join(within);
    folders.iter().map(|folder| described(&dir, folder).map(|(_, image)| image)).collect()
}

/// How images become other ones: their labels tell of other sources.
fn update(output: &Path) -> Result<Options> {
    let mut options = Options::new(output)?;
    options.tag = Some("update".to_owned());
    options.source.revision = Some("another".to_owned());
    Ok(options)
}

/// Builds all images of the binaries in `bin` into `dir`, for [`ready`] and [`updates`]; those that
/// are there and made of the same files stay.
pub async fn prepare(bin: &Path, dir: &Path) -> Result<()> {
    prepare_as(Options::new(dir)?, names(&folder())?, bin).await?;
    let updated = UPDATED.map(str::to_owned).to_vec();
    prepare_as(update(&dir.join(UPDATES))?, updated, bin).await
}

async fn prepare_as(mut options: Options, folders: Vec<String>, bin: &Path) -> Result<()> {
    let dir = options.output.clone();
    for folder in folders {
        let fresh = fingerprint(bin, &folder)?;
        let old = described(&dir, &folder).ok();
        if !old.is_some_and(|(made_of, image)| made_of == fresh && image.archive.is_file()) {
            options.names.push(folder);
        }
    }
    if options.names.is_empty() {
        return Ok(());
    }
    options.binaries = Some(bin.to_owned());
    for (folder, image) in options.names.iter().zip(build(&options).await?) {
        let text = serde_json::to_string(&(fingerprint(bin, folder)?, image))?;
        fs::write(description(&dir, folder), text)?;
    }
    Ok(())
}

/// What [`prepare`] has written down of an image: what it is made of, and itself.
fn described(dir: &Path, folder: &str) -> Result<(String, Image)> {
    let path = description(dir, folder);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("bad {}", path.display()))
}

fn description(dir: &Path, folder: &str) -> PathBuf {
    dir.join(format!("{folder}.image.json"))
}

/// A digest of what decides how an image of a folder turns out.
fn fingerprint(bin: &Path, image: &str) -> Result<String> {
    let mut context = digest::Context::new(&digest::SHA256);
    for path in [bin.join(binary(image)), folder().join(image).join("Containerfile")] {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        context.update(&bytes);
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn one(
    options: &Options,
    buildah: &Buildah,
    scratch: &Scratch,
    output: &Path,
    folder: &str,
) -> Result<Image> {
    let name = binary(folder);
    let containerfile = options.folder.join(folder).join("Containerfile");
    ensure!(containerfile.is_file(), "there is no {}", containerfile.display());
    let files = scratch.path().join("files");
    let (platform, binary) = take_binary(options, &name, &files.join(&name)).await?;
    let base = match binaries::dynamic()?.contains(&name) {
        true => base::write(&files.join(base::FOLDER))?,
        false => 0,
    };
    let is_fips = is_fips(&files.join(&name))?;
    check_tag(&name, options.tag.as_deref(), is_fips, options.fips)?;
    let bom = Bom::ask_cargo(&name, platform, is_fips).await?;
    let version = if is_fips { fips(bom.version()) } else { bom.version().to_owned() };
    let tag = options.tag.as_deref().unwrap_or(&version);
    let reference = format!("localhost/{name}:{tag}");

    let layout = scratch.subdir(&format!("oci/{name}"))?;
    let order = buildah::Order {
        containerfile: &containerfile,
        files: &files,
        platform,
        version: &version,
        source: &options.source,
        layout: &layout,
    };
    buildah.build(&order).await?;
    let layout = Layout::read(layout)?;
    let archive = output.join(format!("{name}.tar"));
    layout.archive(&reference, &archive).await?;
    let sbom = output.join(format!("{name}.cdx.json"));
    let document = bom.document(&layout, &fs::read(files.join(CA_ROOTS))?)?;
    fs::write(&sbom, document).with_context(|| format!("cannot write {}", sbom.display()))?;
    Ok(Image {
        reference,
        platform: platform.to_string(),
        digest: layout.digest,
        binary_bytes: binary,
        base_bytes: base,
        image_bytes: layout.bytes,
        archive,
        sbom,
        name,
    })
}

/// Copies a binary of ours to where the Containerfile takes it from; tells what it is for and
/// how large it is.
async fn take_binary(options: &Options, name: &str, to: &Path) -> Result<(Platform, u64)> {
    let from = match &options.binaries {
        Some(directory) => directory.join(name),
        None => {
            let wanted = name.to_owned();
            tokio::task::spawn_blocking(move || binaries::path(&wanted)).await??
        }
    };
    let at = || format!("of {}", from.display());
    let bytes = fs::copy(&from, to).with_context(at)?;
    let platform = Platform::of(to).with_context(at)?;
    if platform.is_little_endian() {
        let (is_static, loads) = (Binary::read(to)?.is_static, binaries::dynamic()?.contains(name));
        let from = from.display();
        ensure!(is_static || loads, "{from} needs a loader, which an empty image has not");
        ensure!(!is_static || !loads, "{from} is static, and so cannot load a library");
    }
    Ok((platform, bytes))
}

/// Whether a binary was built with the FIPS module: it carries its version, as it prints it. It may
/// be one of another platform, so it is not run.
fn is_fips(binary: &Path) -> Result<bool> {
    let wanted = fips(env!("CARGO_PKG_VERSION"));
    Ok(fs::read(binary)?.windows(wanted.len()).any(|part| part == wanted.as_bytes()))
}

/// Whether a binary may go into an image of that tag. One with the FIPS module never hides it.
fn check_tag(name: &str, tag: Option<&str>, is_fips: bool, must_be: bool) -> Result<()> {
    ensure!(is_fips || !must_be, "{name} was built without the FIPS module");
    let says = tag.map_or(is_fips, |tag| tag.ends_with("-fips"));
    ensure!(says || !is_fips, "{name} was built with the FIPS module: its tag must end in -fips");
    ensure!(
        is_fips || !says,
        "{name} was built without the FIPS module: its tag must not end in -fips"
    );
    Ok(())
}

/// The version of a build with the FIPS module, which is the tag of its image.
fn fips(version: &str) -> String {
    format!("{version}-fips")
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_says_fips_where_the_binary_is_and_nowhere_else() {
        let may = |tag, is_fips, must_be| check_tag("sidekey-x", tag, is_fips, must_be).is_ok();
        assert!(may(None, false, false) && may(None, true, false) && may(None, true, true));
        assert!(may(Some("v1"), false, false) && may(Some("v1-fips"), true, true));
        assert!(!may(Some("v1"), true, false), "it would be hidden");
        assert!(!may(Some("v1-fips"), false, false), "it would be claimed");
        for tag in [None, Some("v1"), Some("v1-fips")] {
            assert!(!may(tag, false, true), "it was asked for, and is not there");
        }
        assert!(!may(Some("v1-fips.1"), true, true));
    }

    #[test]
    fn a_binary_is_known_by_the_version_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sidekey-x");
        for (text, expected) in
            [(env!("CARGO_PKG_VERSION").to_owned(), false), (fips(env!("CARGO_PKG_VERSION")), true)]
        {
            fs::write(&path, format!("\0ELF {text} \0")).unwrap();
            assert_eq!(is_fips(&path).unwrap(), expected, "{text}");
        }
    }
}
