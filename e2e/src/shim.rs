//! `sidekey-shim` as a process under test, with its configuration mounted as
//! kubelet mounts a Secret.

pub mod replicas;

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::binaries;
use crate::local::{self, LocalPlugin};
use crate::process::Spec;
use crate::scratch::Scratch;
use crate::sidecar::Sidecar;

/// The program's name.
pub const PROGRAM: &str = "sidekey-shim";

/// The configuration's name in its directory.
pub const FILE: &str = "shim.yaml";

/// One key of a [`ShimConfig`].
#[derive(Clone, Debug)]
pub struct ShimKey {
    fields: Map<String, Value>,
}

impl ShimKey {
    /// The key that wraps new data.
    pub fn write(id: u64, endpoint: impl Into<String>) -> Self {
        Self::new(id, "write", endpoint.into())
    }

    /// A key that only unwraps.
    pub fn read(id: u64, endpoint: impl Into<String>) -> Self {
        Self::new(id, "read", endpoint.into())
    }

    /// Adds another way to the same key, tried after those before it.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        if let Some(Value::Array(endpoints)) = self.fields.get_mut("endpoints") {
            endpoints.push(endpoint.into().into());
        }
        self
    }

    /// What the key must be able to read; see [`canary`].
    pub fn canary(self, canary: Value) -> Self {
        self.with("canary", canary)
    }

    /// Sets any other field, such as `fingerprint` or `tls`.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(field.to_owned(), value.into());
        self
    }

    fn new(id: u64, role: &str, endpoint: String) -> Self {
        let fields = [
            ("id", id.to_string().into()),
            ("role", role.into()),
            ("endpoints", Value::from(vec![endpoint])),
        ];
        Self { fields: fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect() }
    }
}

/// A shim's configuration but for its sockets, which each [`Shim`] fills in.
#[derive(Clone, Debug)]
pub struct ShimConfig {
    revision: u64,
    keys: Vec<Value>,
    adopt: Vec<(String, u64)>,
    fields: Map<String, Value>,
}

impl ShimConfig {
    /// One without keys, which the shim refuses: add some.
    pub fn new(revision: u64) -> Self {
        Self { revision, keys: Vec::new(), adopt: Vec::new(), fields: Map::new() }
    }

    /// Adds a key.
    pub fn key(mut self, key: ShimKey) -> Self {
        self.keys.push(key.fields.into());
        self
    }

    /// Adds the key that wraps new data.
    pub fn write(self, id: u64, endpoint: impl Into<String>) -> Self {
        self.key(ShimKey::write(id, endpoint))
    }

    /// Adds a key that only unwraps.
    pub fn read(self, id: u64, endpoint: impl Into<String>) -> Self {
        self.key(ShimKey::read(id, endpoint))
    }

    /// The key of what was written without the shim under the main listener's name.
    pub fn legacy(self, id: u64) -> Self {
        self.with("legacyKey", id.to_string())
    }

    /// Adds a listener for data that was written without the shim under
    /// another name; [`Shim::adopted`] tells its endpoint.
    pub fn adopt(mut self, name: &str, id: u64) -> Self {
        self.adopt.push((name.to_owned(), id));
        self
    }

    /// How often keys are probed, and for how long; for example `1s` and `2s`.
    pub fn probe(self, interval: &str, timeout: &str) -> Self {
        self.with("probe", json!({"interval": interval, "timeout": timeout}))
    }

    /// How long the loss of the write key is borne; for example `5s`.
    pub fn coast(self, coast: &str) -> Self {
        self.with("coast", coast)
    }

    /// Sets any other field of the document.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(field.to_owned(), value.into());
        self
    }

    /// The document for a shim in that directory.
    fn document(&self, dir: &Path) -> Value {
        let mut document = self.fields.clone();
        let adopt = self.adopt.iter().map(
            |(name, id)| json!({"listen": endpoint(&socket(dir, name)), "key": id.to_string()}),
        );
        document.insert("revision".to_owned(), self.revision.to_string().into());
        document.insert("listen".to_owned(), endpoint(&socket(dir, MAIN)).into());
        document.insert("admin".to_owned(), "127.0.0.1:0".into());
        document.insert("keys".to_owned(), self.keys.clone().into());
        if !self.adopt.is_empty() {
            document.insert("adopt".to_owned(), adopt.collect());
        }
        document.into()
    }
}

/// The main socket's name; adopted ones have the name they were given.
const MAIN: &str = "kms";

/// One running `sidekey-shim`.
#[derive(Debug)]
pub struct Shim {
    sidecar: Sidecar,
    dir: PathBuf,
    swaps: u64,
}

impl Shim {
    /// Starts one, its files in a directory of `scratch`, and waits until it is
    /// ready with that revision.
    pub async fn start(scratch: &Scratch, name: &str, config: &ShimConfig) -> Result<Self> {
        let mut shim = Self::spawn(scratch, name, config).await?;
        shim.wait_ready().await?;
        shim.wait_revision(config.revision).await?;
        Ok(shim)
    }

    /// Starts one without waiting for readiness, for those whose keys are not
    /// there yet.
    pub async fn spawn(scratch: &Scratch, name: &str, config: &ShimConfig) -> Result<Self> {
        let program = binaries::path_async(PROGRAM).await?;
        let dir = scratch.subdir(name)?;
        let mount = scratch.subdir(&format!("{name}/config"))?;
        let mut swaps = 0;
        publish(&mount, &mut swaps, &[(FILE, &config.document(&dir).to_string())])?;
        let spec = Spec::new(format!("{PROGRAM} {name}"), program, dir.join("shim.log"))
            .arg("--config")
            .arg(mount.join(FILE));
        Ok(Self { sidecar: Sidecar::start(spec).await?, dir, swaps })
    }

    /// The endpoint of its main listener, as EncryptionConfiguration writes it.
    pub fn endpoint(&self) -> String {
        endpoint(&self.socket())
    }

    /// Its main socket.
    pub fn socket(&self) -> PathBuf {
        socket(&self.dir, MAIN)
    }

    /// The endpoint of the listener that was adopted under that name.
    pub fn adopted(&self, name: &str) -> String {
        endpoint(&socket(&self.dir, name))
    }

    /// The directory that kubelet would mount.
    pub fn mount(&self) -> PathBuf {
        self.dir.join("config")
    }

    /// Swaps the configuration as kubelet does; does not wait.
    pub fn swap(&mut self, config: &ShimConfig) -> Result<()> {
        let text = config.document(&self.dir).to_string();
        self.swap_files(&[(FILE, &text)])
    }

    /// Swaps the configuration and waits until it is in use.
    pub async fn load(&mut self, config: &ShimConfig) -> Result<()> {
        self.swap(config)?;
        self.wait_revision(config.revision).await
    }

    /// Swaps the whole directory for these files, whatever is in them.
    pub fn swap_files(&mut self, files: &[(&str, &str)]) -> Result<()> {
        publish(&self.mount(), &mut self.swaps, files)
    }

    /// Kills it with SIGKILL: its sockets stay behind, and nobody answers.
    pub fn kill(&mut self) -> Result<()> {
        self.process().kill()
    }

    /// Waits until that revision is in use.
    pub async fn wait_revision(&mut self, revision: u64) -> Result<()> {
        let what = format!("revision {revision} is in use");
        let wanted = Value::from(revision.to_string());
        self.wait_status(&what, |status| {
            let (now, refused) = (&status["revision"], &status["config"]["refused"]);
            ensure!(*now == wanted, "it is {now}, refused: {refused}");
            Ok(())
        })
        .await
    }

    /// Waits until a newer configuration is refused, and tells why.
    pub async fn wait_refused(&mut self) -> Result<String> {
        self.wait_status("a configuration is refused", |status| {
            let error = status["config"]["refused"]["error"].as_str();
            Ok(error.with_context(|| format!("nothing is refused: {status}"))?.to_owned())
        })
        .await
    }

    /// What `/status` says of one key.
    pub async fn key(&self, id: u64) -> Result<Value> {
        let status = self.status().await?;
        let keys = status["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        let wanted = Value::from(id.to_string());
        let found = keys.iter().find(|key| key["id"] == wanted);
        found.cloned().with_context(|| format!("/status has no key {id}: {status}"))
    }
}

impl Deref for Shim {
    type Target = Sidecar;

    fn deref(&self) -> &Sidecar {
        &self.sidecar
    }
}

impl DerefMut for Shim {
    fn deref_mut(&mut self) -> &mut Sidecar {
        &mut self.sidecar
    }
}

/// A canary of a plugin's key, as `sidekey-local canary` makes it.
pub async fn canary(plugin: &LocalPlugin) -> Result<Value> {
    let socket = plugin.endpoint();
    let args = ["canary", "--socket", &socket, "-o", "json"];
    let said = binaries::run(local::PROGRAM, &args).await?.ok()?;
    serde_json::from_str(&said.stdout)
        .with_context(|| format!("canary printed no JSON: {}", said.stdout))
}

fn socket(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.sock"))
}

fn endpoint(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

/// As kubelet's AtomicWriter does it: the files in a new directory, `..data`
/// pointed to it by one rename, each file a link through `..data`.
pub fn publish(mount: &Path, swaps: &mut u64, files: &[(&str, &str)]) -> Result<()> {
    *swaps += 1;
    let fresh = format!("..2026_01_01_00_00_00.{swaps:09}");
    let write = || {
        fs::create_dir(mount.join(&fresh))?;
        for (name, text) in files {
            fs::write(mount.join(&fresh).join(name), text)?;
        }
        let old = fs::read_link(mount.join("..data")).ok();
        symlink(&fresh, mount.join("..data_tmp"))?;
        fs::rename(mount.join("..data_tmp"), mount.join("..data"))?;
        for (name, _) in files {
            if !mount.join(name).is_symlink() {
                symlink(Path::new("..data").join(name), mount.join(name))?;
            }
        }
        old.map_or(Ok(()), |old| fs::remove_dir_all(mount.join(old)))
    };
    write().with_context(|| format!("cannot publish to {}", mount.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_swap_replaces_all_files_at_once_and_leaves_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut swaps = 0;
        publish(dir.path(), &mut swaps, &[("a", "1"), ("b", "1")]).unwrap();
        publish(dir.path(), &mut swaps, &[("a", "2"), ("b", "2")]).unwrap();
        for name in ["a", "b"] {
            assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), "2");
            let link = fs::read_link(dir.path().join(name)).unwrap();
            assert_eq!(link, Path::new("..data").join(name));
        }
        // The link, its target, and the two files.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_configuration_is_written_with_the_sockets_of_its_shim() {
        let key = ShimKey::read(1, "unix:///a").endpoint("unix:///b").with("fingerprint", "abcd");
        let config = ShimConfig::new(7).write(2, "unix:///c").key(key).legacy(1).adopt("old", 2);
        let document = config.probe("1s", "2s").coast("3s").document(Path::new("/run"));
        let wanted = json!({
            "revision": "7", "listen": "unix:///run/kms.sock", "admin": "127.0.0.1:0", "legacyKey": "1",
            "adopt": [{"listen": "unix:///run/old.sock", "key": "2"}],
            "probe": {"interval": "1s", "timeout": "2s"}, "coast": "3s",
            "keys": [
                {"id": "2", "role": "write", "endpoints": ["unix:///c"]},
                {"id": "1", "role": "read", "endpoints": ["unix:///a", "unix:///b"], "fingerprint": "abcd"},
            ],
        });
        assert_eq!(document, wanted);
    }
}
