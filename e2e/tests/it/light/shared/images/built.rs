//! The images under test, built once by `cargo images` itself and without a network.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sidekey_e2e::images::{self, Options, Source};
use sidekey_e2e::{Scratch, binaries, packages};
use tokio::sync::OnceCell;

/// What the images under test are said to be made from.
pub(crate) const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const EPOCH: u64 = 1_700_000_000;

const PROGRAM: &str = env!("CARGO_BIN_EXE_images");

/// What `cargo images` said of one image, and the documents in its archive.
pub(crate) struct Built {
    pub(crate) name: String,
    pub(crate) said: Value,
    pub(crate) binary: PathBuf,
    pub(crate) manifest: Value,
    pub(crate) config: Value,
    /// The only layer, a tar file.
    pub(crate) layer: PathBuf,
}

struct All {
    images: Vec<Built>,
    scratch: Scratch,
}

static ALL: OnceCell<All> = OnceCell::const_new();

/// Every image of the repository.
pub(crate) async fn all() -> &'static [Built] {
    let all = ALL.get_or_init(|| async {
        let scratch = Scratch::new("built").unwrap();
        prepare(&scratch).await;
        let output = scratch.path().join("first");
        let ran = build(&scratch.path().join("binaries"), &output, "022");
        let said: Vec<Value> = serde_json::from_slice(&ran.stdout).unwrap();
        let images = said.into_iter().map(|said| Built::unpack(said, &scratch)).collect();
        All { images, scratch }
    });
    &all.await.images
}

/// One image by the name of its folder.
pub(crate) async fn one(folder: &str) -> &'static Built {
    let name = images::binary(folder);
    all().await.iter().find(|image| image.name == name).unwrap()
}

/// The first of these may fetch and build; nothing after it does.
async fn prepare(scratch: &Scratch) {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    assert!(root, "this test makes network and mount namespaces, which takes root: run it as root");
    packages::program("buildah", "buildah").await.unwrap();
    packages::program("update-ca-certificates", "ca-certificates").await.unwrap();
    let to = scratch.subdir("binaries").unwrap();
    for folder in images::names(&images::folder()).unwrap() {
        let name = images::binary(&folder);
        let wanted = name.clone();
        let binary = tokio::task::spawn_blocking(move || binaries::path(&wanted)).await.unwrap();
        fs::copy(binary.unwrap(), to.join(name)).unwrap();
    }
}

/// Runs `cargo images` on a host without any network.
fn build(binaries: &Path, output: &Path, umask: &str) -> Output {
    let ran = Command::new("unshare")
        .args(["--net", "sh", "-c", "umask $0; exec \"$@\"", umask, PROGRAM])
        .args(["--revision", REVISION, "-o", "json", "--dir"])
        .arg(output)
        .env(binaries::BIN_DIR, binaries)
        .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    ran
}

impl Built {
    fn unpack(said: Value, scratch: &Scratch) -> Self {
        let name = said["name"].as_str().unwrap().to_owned();
        let layout = scratch.subdir(&format!("layout/{name}")).unwrap();
        let archive = said["archive"].as_str().unwrap();
        tar(&["--extract", "--file", archive, "--directory", layout.to_str().unwrap()]);
        let blob = |digest: &Value| {
            let hash = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
            layout.join("blobs/sha256").join(hash)
        };
        let manifest = json(&blob(&said["digest"]));
        let [layer] = manifest["layers"].as_array().unwrap().as_slice() else {
            panic!("{name} has not one layer: {manifest}");
        };
        Self {
            config: json(&blob(&manifest["config"]["digest"])),
            layer: blob(&layer["digest"]),
            binary: scratch.path().join("binaries").join(&name),
            manifest,
            name,
            said,
        }
    }
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub(crate) fn tar<A: AsRef<OsStr>>(arguments: &[A]) -> String {
    let ran = Command::new("tar").args(arguments).env("TZ", "UTC").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[tokio::test]
async fn every_folder_becomes_an_image_without_a_network() {
    let images: BTreeSet<&str> = all().await.iter().map(|image| image.name.as_str()).collect();
    for folder in ["shim", "proxy", "local", "aws", "vault", "operator"] {
        assert!(images.contains(format!("sidekey-{folder}").as_str()), "{images:?}");
    }
    assert!(images.contains("sidekey"), "{images:?}");
    assert_eq!(images.len(), images::names(&images::folder()).unwrap().len());
}

#[tokio::test]
async fn a_person_gets_a_table_of_sizes() {
    let local = one("local").await;
    let scratch = Scratch::new("table").unwrap();
    let ran = Command::new(PROGRAM)
        .args(["local", "--revision", REVISION, "--dir"])
        .arg(scratch.path())
        .env(binaries::BIN_DIR, local.binary.parent().unwrap())
        .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let text = String::from_utf8(ran.stdout).unwrap();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = text.lines().take(2).map(words).collect();
    assert_eq!(rows[0], ["image", "binary", "image", "difference", "digest"], "{text}");
    let size = fs::metadata(&local.binary).unwrap().len() as f64 / (1024.0 * 1024.0);
    assert_eq!(rows[1][..3], ["sidekey-local".to_owned(), format!("{size:.2}"), "MiB".to_owned()]);
    assert_eq!(rows[1].last().map(String::as_str), local.said["digest"].as_str(), "{text}");
}

#[tokio::test]
async fn the_same_files_give_the_same_bytes_elsewhere_and_later() {
    let first = all().await;
    let scratch = Scratch::new("again").unwrap();
    let binaries = scratch.subdir("other").unwrap();
    for image in first {
        // A copy has another time; the mode is other too.
        let copy = binaries.join(&image.name);
        fs::copy(&image.binary, &copy).unwrap();
        fs::set_permissions(&copy, Permissions::from_mode(0o700)).unwrap();
    }
    build(&binaries, &scratch.path().join("second"), "077");
    let before = ALL.get().unwrap().scratch.path().join("first");
    for image in first {
        for kind in ["tar", "cdx.json"] {
            let file = format!("{}.{kind}", image.name);
            let read = |dir: &Path| fs::read(dir.join(&file)).unwrap();
            let same = read(&before) == read(&scratch.path().join("second"));
            assert!(same, "{file} differs");
        }
    }
}

#[tokio::test]
async fn another_commit_or_other_ca_roots_give_another_digest() {
    let local = one("local").await;
    let scratch = Scratch::new("other").unwrap();
    let mut options = Options::new(scratch.path()).unwrap();
    options.names = vec!["local".to_owned()];
    let digest = |revision: &str, roots: &Path| {
        let mut options = options.clone();
        options.source = Source { revision: Some(revision.to_owned()), epoch: EPOCH };
        options.roots = Some(roots.to_owned());
        async move { images::build(&options).await.unwrap().remove(0).digest }
    };
    let roots = scratch.path().join("roots");
    let listing = tar(&[
        OsStr::new("--extract"),
        OsStr::new("--to-stdout"),
        OsStr::new("--file"),
        local.layer.as_os_str(),
        OsStr::new("etc/ssl/certs/ca-certificates.crt"),
    ]);
    fs::write(&roots, &listing).unwrap();
    assert_eq!(digest(REVISION, &roots).await, local.said["digest"]);
    assert_ne!(digest("another", &roots).await, local.said["digest"]);
    fs::write(&roots, listing + "\n").unwrap();
    assert_ne!(digest(REVISION, &roots).await, local.said["digest"]);
}

#[tokio::test]
async fn a_new_binary_gets_its_image_by_one_folder() {
    let scratch = Scratch::new("folder").unwrap();
    let folder = scratch.subdir("images/conformance").unwrap();
    let like = fs::read_to_string(images::folder().join("local/Containerfile")).unwrap();
    let text = like.replace("sidekey-local", "sidekey-conformance");
    fs::write(folder.join("Containerfile"), text).unwrap();
    let mut options = Options::new(scratch.path().join("out")).unwrap();
    options.folder = scratch.path().join("images");
    options.tag = Some("next".to_owned());
    let built = images::build(&options).await.unwrap();
    assert_eq!(built.len(), 1);
    assert_eq!(built[0].reference, "localhost/sidekey-conformance:next");
    let sbom = json(&built[0].sbom);
    assert_eq!(sbom["metadata"]["component"]["name"], "sidekey-conformance");

    fs::remove_file(folder.join("Containerfile")).unwrap();
    let error = format!("{:#}", images::build(&options).await.unwrap_err());
    assert!(error.contains("there is no") && error.contains("Containerfile"), "{error}");
}

/// The other machine's binary is simulated: it is ours with another number in its header.
#[tokio::test]
async fn the_platform_is_that_of_the_binary_and_what_cannot_run_is_refused() {
    let scratch = Scratch::new("platform").unwrap();
    let (machine, name) = match std::env::consts::ARCH {
        "aarch64" => (62, "linux/amd64"),
        _ => (183, "linux/arm64"),
    };
    let mut binary = fs::read(&one("local").await.binary).unwrap();
    binary[18] = machine;
    fs::write(scratch.path().join("sidekey-local"), binary).unwrap();
    let output = scratch.path().join("out");
    let images = |folder: &str| {
        let mut command = Command::new(PROGRAM);
        command.args([folder, "-o", "json", "--dir"]).arg(&output).stdin(Stdio::null());
        command.env(binaries::BIN_DIR, scratch.path()).output().unwrap()
    };
    let ran = images("local");
    let said: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert_eq!(said[0]["platform"], name);
    let image = Built::unpack(said[0].clone(), &scratch);
    assert_eq!(format!("linux/{}", image.config["architecture"].as_str().unwrap()), name);

    fs::copy("/bin/sh", scratch.path().join("sidekey-shim")).unwrap();
    let refused = images("shim");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("needs a loader"), "{refused:?}");
}

#[test]
fn bad_usage_is_exit_code_64_and_help_has_an_example() {
    let images = |arguments: &[&str]| {
        Command::new(PROGRAM).args(arguments).stdin(Stdio::null()).output().unwrap()
    };
    assert_eq!(images(&["--no-such-flag"]).status.code(), Some(64));
    let unknown = images(&["no-such-image"]);
    assert_eq!(unknown.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("shim"), "{unknown:?}");
    let mut wrong = Command::new(PROGRAM);
    let wrong = wrong.env("SOURCE_DATE_EPOCH", "yesterday").stdin(Stdio::null()).output().unwrap();
    assert_eq!(wrong.status.code(), Some(64), "{wrong:?}");
    let help = images(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("cargo images shim aws"), "{help:?}");
}
