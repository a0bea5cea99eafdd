//! The OCI layout that buildah wrote: what is in it, and the archive made from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::packages;

/// A directory with one image.
pub(super) struct Layout {
    dir: PathBuf,
    index: Value,
    /// The digest of its manifest.
    pub(super) digest: String,
    /// The time that it bears.
    pub(super) created: String,
    /// Layers, configuration and manifest together.
    pub(super) bytes: u64,
}

impl Layout {
    pub(super) fn read(dir: PathBuf) -> Result<Self> {
        let index = parse(&dir.join("index.json"))?;
        let images = index["manifests"].as_array().map(Vec::as_slice).unwrap_or_default();
        let [image] = images else { anyhow::bail!("buildah wrote {} images", images.len()) };
        let digest = image["digest"].as_str().context("the image has no digest")?.to_owned();
        let blob = |part: &Value| {
            let digest = part["digest"].as_str().and_then(|text| text.strip_prefix("sha256:"));
            parse(&dir.join("blobs/sha256").join(digest.context("a part without SHA-256")?))
        };
        let manifest = blob(image)?;
        let config = blob(&manifest["config"])?;
        let created = config["created"].as_str().context("the image has no time")?.to_owned();
        let layers = manifest["layers"].as_array().context("the image has no layers")?;
        let parts = layers.iter().chain([image, &manifest["config"]]);
        let sizes = parts.map(|part| part["size"].as_u64().context("a part without size"));
        let bytes = sizes.sum::<Result<u64>>()?;
        for layer in layers {
            let kind = layer["mediaType"].as_str().unwrap_or_default();
            ensure!(kind.ends_with(".tar"), "a layer is {kind}, so its size says little");
        }
        Ok(Self { index, digest, created, bytes, dir })
    }

    /// Writes all of it into one file. The name is what it gets when it is loaded: podman and
    /// skopeo look for the first of the two, containerd and Docker for the second.
    pub(super) async fn archive(&self, reference: &str, to: &Path) -> Result<()> {
        let mut index = self.index.clone();
        index["manifests"][0]["annotations"] = json!({
            "org.opencontainers.image.ref.name": reference,
            "io.containerd.image.name": reference,
        });
        fs::write(self.dir.join("index.json"), index.to_string())?;
        let tar = packages::program("tar", "tar").await?;
        let fresh = to.with_extension("tar.new");
        let mut command = Command::new(tar);
        command.args(["--create", "--format=ustar", "--sort=name", "--mtime=@0"]);
        command.args(["--owner=0", "--group=0", "--numeric-owner", "--mode=a=rX,u+w"]);
        command.arg("--file").arg(&fresh).arg("--directory").arg(&self.dir);
        command.args(["oci-layout", "index.json", "blobs"]);
        let ran = command.stdin(Stdio::null()).output().await.context("cannot run tar")?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "tar could not: {}", said.trim());
        fs::rename(&fresh, to).with_context(|| format!("cannot write {}", to.display()))
    }
}

fn parse(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", path.display()))
}
