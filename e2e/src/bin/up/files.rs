//! The directory of `cargo up`: keys and configurations that stay from run to run, and the
//! edits by which a key is added and promoted.

use std::fs::{DirBuilder, File, OpenOptions, read_to_string, rename};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sidekey_core::Endpoint;
use sidekey_e2e::{binaries, local};

/// Where everything lies. One `cargo up` at a time has it.
pub(crate) struct Files {
    dir: PathBuf,
    _lock: File,
}

impl Files {
    /// Opens the directory. What is missing in it is made: a first key, and configurations in
    /// which that key writes.
    pub(crate) async fn open(dir: &Path) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let dir = dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))?;
        let files = Self { _lock: lock(&dir)?, dir };
        // Checked first: a long path would otherwise fail deep inside, with less to say. The
        // shim's own socket has a shorter name than those behind it.
        let longest = files.dir.join("kms-1000.sock");
        longest
            .to_str()
            .context("the directory's path is not UTF-8; choose another with --dir")?
            .parse::<Endpoint>()
            .context("choose a shorter directory with --dir")?;
        if !files.shim().exists() {
            let lineage = files.create_key(1).await?;
            let provider = format!("{PROVIDER_HEAD}{}\n", files.provider_line(1));
            write_private(&files.provider(), &provider)?;
            let head = SHIM_HEAD.replace("{listen}", &json!(files.endpoint()).to_string());
            let line = files.shim_line(1, "write", Some(&lineage));
            write_private(&files.shim(), &format!("{head}{line}\n"))?;
        }
        let listen = files.shim_document()?["listen"].clone();
        ensure!(
            listen == files.endpoint(),
            "{} listens on {listen}, so it was made for another directory: remove it",
            files.shim().display()
        );
        Ok(files)
    }

    /// A file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The shim's configuration.
    pub(crate) fn shim(&self) -> PathBuf {
        self.path("shim.yaml")
    }

    /// The provider's configuration.
    pub(crate) fn provider(&self) -> PathBuf {
        self.path("provider.yaml")
    }

    /// The socket for kube-apiserver, which is the shim's.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("kms.sock")
    }

    /// The same as EncryptionConfiguration writes it.
    pub(crate) fn endpoint(&self) -> String {
        unix(&self.socket())
    }

    /// The file of a key.
    pub(crate) fn key(&self, id: u64) -> PathBuf {
        self.path(&format!("key-{id}"))
    }

    /// The number of the next key: above every one in the shim's configuration.
    pub(crate) fn next_key(&self) -> Result<u64> {
        let document = self.shim_document()?;
        let keys = document["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        let number = |key: &Value| match &key["id"] {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64(),
        };
        Ok(keys.iter().filter_map(number).max().unwrap_or_default() + 1)
    }

    /// Makes a key file, unless it is there, and tells the key's identity.
    pub(crate) async fn create_key(&self, id: u64) -> Result<String> {
        let file = self.key(id);
        let args = [
            "create".as_ref(),
            "--key-file".as_ref(),
            file.as_os_str(),
            "-o".as_ref(),
            "json".as_ref(),
        ];
        let said = binaries::run(local::PROGRAM, &args).await?.ok()?;
        let key: Value = serde_json::from_str(&said.stdout).context("sidekey-local's answer")?;
        let lineage = key["lineage"].as_str();
        Ok(lineage.with_context(|| format!("sidekey-local answered {key}"))?.to_owned())
    }

    /// The line that gives a key to the provider.
    pub(crate) fn provider_line(&self, id: u64) -> String {
        let (listen, file) = (json!(self.key_endpoint(id)), json!(self.key(id)));
        format!("- {{id: {id}, listen: {listen}, credentials: {{keyFile: {file}}}}}")
    }

    /// The line that gives a key to the shim; with its identity, the key_id carries its hash.
    pub(crate) fn shim_line(&self, id: u64, role: &str, lineage: Option<&str>) -> String {
        let endpoint = json!(self.key_endpoint(id));
        let kek = lineage.map_or_else(String::new, |text| format!(", kek: {{lineage: {text}}}"));
        format!("- {{id: {id}, role: {role}, endpoints: [{endpoint}]{kek}}}")
    }

    /// Lets that key write, and the one that wrote before read.
    pub(crate) fn promote(&self, id: u64) -> Result<()> {
        let path = self.shim();
        let text =
            read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        write_private(&path, &promoted(&text, id)?)
    }

    /// The socket of a key, behind the shim.
    fn key_endpoint(&self, id: u64) -> String {
        unix(&self.path(&format!("kms-{id}.sock")))
    }

    fn shim_document(&self) -> Result<Value> {
        let path = self.shim();
        sidekey_core::read_file(&path).map_err(|problems| {
            let list: Vec<String> =
                problems.iter().map(|problem| problem.message.clone()).collect();
            anyhow::anyhow!("{}: {}", path.display(), list.join("; "))
        })
    }
}

const PROVIDER_HEAD: &str = "\
# sidekey-local: the keys that it serves, each on a socket of its own. Changes are taken over
# while it runs.
admin: 127.0.0.1:0
keys:
";

const SHIM_HEAD: &str = "\
# sidekey-shim: one key writes, any number read. Changes are taken over while it runs; what
# cannot be taken over is refused, and the last good configuration stays in use.
listen: {listen}
admin: 127.0.0.1:0
keys:
";

/// The roles of the lines changed: `id` writes, everybody else reads.
fn promoted(text: &str, id: u64) -> Result<String> {
    let (old, new) = (format!("{{id: {id}, role: read,"), format!("{{id: {id}, role: write,"));
    if !text.contains(&old) {
        bail!("the shim's configuration has no line that begins `- {old}`: was it edited?");
    }
    Ok(text.replace("role: write,", "role: read,").replace(&old, &new))
}

/// One `cargo up` at a time in a directory: two would fight for the socket.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    if file.try_lock().is_err() {
        bail!(
            "another cargo up runs in {}: end it, or choose another directory with --dir",
            dir.display()
        );
    }
    Ok(file)
}

/// Adds a line to a file, in one step for those who watch it.
pub(crate) fn append(path: &Path, line: &str) -> Result<()> {
    let text = read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    write_private(path, &format!("{}\n{line}\n", text.trim_end()))
}

/// Writes a file that only its owner may read, in place of an older one.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new).with_context(what)?;
    file.write_all(text.as_bytes()).with_context(what)?;
    rename(&new, path).with_context(what)
}

fn unix(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_promotion_changes_two_roles_and_nothing_else() {
        let text = "# role: write or read\nkeys:\n- {id: 1, role: write, x: 1}\n- {id: 11, role: read, x: 2}\n- {id: 2, role: read, x: 3}\n";
        let wanted = "# role: write or read\nkeys:\n- {id: 1, role: read, x: 1}\n- {id: 11, role: read, x: 2}\n- {id: 2, role: write, x: 3}\n";
        assert_eq!(promoted(text, 2).unwrap(), wanted);
        assert!(promoted(text, 3).is_err(), "there is no key 3");
        assert!(promoted(wanted, 2).is_err(), "it writes already");
    }
}
