//! SoftHSM, a real PKCS#11 token in software: a token of one's own, its keys, and what happens to HSMs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrap};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::packages;
use crate::scratch::Scratch;

/// The provider's program.
pub const PROGRAM: &str = "sidekey-pkcs11";
/// Where Debian's package has the library.
pub const LIBRARY: &str = "/usr/lib/softhsm/libsofthsm2.so";
/// The variable that names a configuration of SoftHSM.
pub const CONF: &str = "SOFTHSM2_CONF";
/// The label of the token.
pub const TOKEN: &str = "kms";
/// The PIN of its user.
pub const PIN: &str = "cat-4711";
const OFFICER: &str = "officer-0815";

/// One token.
pub struct SoftHsm {
    dir: PathBuf,
    tool: PathBuf,
    library: PathBuf,
}

impl SoftHsm {
    /// A new token without keys.
    pub async fn start(scratch: &Scratch, name: &str) -> Result<Self> {
        let util = packages::program("softhsm2-util", "softhsm2").await?;
        let tool = packages::program("pkcs11-tool", "opensc").await?;
        let dir = scratch.subdir(name)?;
        scratch.subdir(&format!("{name}/tokens"))?;
        let tokens = dir.join("tokens");
        let text = format!(
            "directories.tokendir = {}\nobjectstore.backend = file\nlog.level = ERROR\n",
            tokens.display()
        );
        fs::write(dir.join("softhsm2.conf"), text)?;
        fs::write(dir.join("pin"), PIN)?;
        let hsm = Self { dir, tool, library: PathBuf::from(LIBRARY) };
        let mut init = Command::new(util);
        init.args(["--init-token", "--free", "--label", TOKEN, "--so-pin", OFFICER, "--pin", PIN]);
        hsm.run(init).await?;
        Ok(hsm)
    }

    /// The configuration that a process is to be told by [`CONF`].
    pub fn conf(&self) -> PathBuf {
        self.dir.join("softhsm2.conf")
    }

    /// The file with the PIN.
    pub fn pin_file(&self) -> PathBuf {
        self.dir.join("pin")
    }

    /// Makes an AES key.
    pub async fn make_aes(&self, label: &str, id: &str, bytes: usize) -> Result<()> {
        let kind = format!("AES:{bytes}");
        self.keys(&["--keygen", "--key-type", &kind, "--label", label, "--id", id, "--sensitive"])
            .await
    }

    /// Makes a pair of RSA keys.
    pub async fn make_rsa(&self, label: &str, id: &str, bits: usize) -> Result<()> {
        let kind = format!("rsa:{bits}");
        self.keys(&["--keypairgen", "--key-type", &kind, "--label", label, "--id", id]).await
    }

    /// Takes over an AES key.
    pub async fn import_aes(&self, label: &str, id: &str, material: &[u8]) -> Result<()> {
        let (kind, file) = (format!("AES:{}", material.len()), self.file("material", material)?);
        let object = ["--write-object", &file, "--type", "secrkey", "--key-type", &kind];
        self.keys(&[&object[..], &["--label", label, "--id", id, "--sensitive"]].concat()).await
    }

    /// Takes over a pair of RSA keys, in PKCS#8 and base64.
    pub async fn import_rsa(&self, label: &str, id: &str, material: &str) -> Result<()> {
        // Lines of PEM have 64 characters.
        let lines: Vec<_> = material.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        let kind = "PRIVATE KEY";
        let pem = format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"));
        let file = self.file("material", pem.as_bytes())?;
        let mut import = Command::new(packages::program("softhsm2-util", "softhsm2").await?);
        import.args(["--import", &file, "--token", TOKEN, "--pin", PIN]);
        import.args(["--label", label, "--id", id]);
        self.run(import).await.map(drop)
    }

    /// Takes over a key for HMAC. pkcs11-tool writes no such object, but an AES key that is there
    /// already can unwrap one.
    pub async fn import_hmac(&self, id: &str, material: &[u8], by: (&str, &[u8])) -> Result<()> {
        let (wrapping, key) = by;
        let failed = |_| anyhow!("it cannot be wrapped");
        let mut wrapped = vec![0; material.len() + 8];
        let kek = AesKek::new(&AES_256, key).map_err(failed)?;
        let file = self.file("wrapped", kek.wrap(material, &mut wrapped).map_err(failed)?)?;
        let unwrap = ["--unwrap", "--mechanism", "AES-KEY-WRAP", "--id", wrapping];
        let made = ["--input-file", &file, "--key-type", "GENERIC:", "--application-id", id];
        self.keys(&[&unwrap[..], &made].concat()).await
    }

    fn file(&self, name: &str, content: &[u8]) -> Result<String> {
        let path = self.dir.join(name);
        fs::write(&path, content)?;
        Ok(path.display().to_string())
    }

    /// Deletes a secret key.
    pub async fn delete_aes(&self, id: &str) -> Result<()> {
        self.keys(&["--delete-object", "--type", "secrkey", "--id", id]).await
    }

    /// Gives the user another PIN; the file is for the caller to write.
    pub async fn change_pin(&self, old: &str, new: &str) -> Result<()> {
        self.tool(old, &["--change-pin", "--new-pin", new]).await.map(drop)
    }

    /// pkcs11-tool, logged in.
    pub async fn keys(&self, arguments: &[&str]) -> Result<()> {
        self.tool(PIN, arguments).await.map(drop)
    }

    async fn tool(&self, pin: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.tool);
        command.arg("--module").arg(&self.library).args(["--token-label", TOKEN]);
        command.args(["--login", "--pin", pin]).args(arguments);
        self.run(command).await
    }

    async fn run(&self, mut command: Command) -> Result<String> {
        let what = format!("{command:?}");
        let ran = command.env(CONF, self.conf()).output().await.context("cannot run it")?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "{what}: {}", said.trim());
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    /// The token is gone: somebody has unplugged it.
    pub fn unplug(&self) -> Result<()> {
        Ok(fs::rename(self.dir.join("tokens"), self.dir.join("unplugged"))?)
    }

    /// It is back.
    pub fn plug(&self) -> Result<()> {
        Ok(fs::rename(self.dir.join("unplugged"), self.dir.join("tokens"))?)
    }

    /// One key of a provider's configuration.
    pub fn entry(&self, id: u64, label: &str, endpoint: &str) -> Value {
        json!({
            "id": id, "type": "pkcs11", "listen": endpoint,
            "kek": {"tokenLabel": TOKEN, "keyLabel": label},
            "settings": {"library": self.library},
            "credentials": {"pinFile": self.pin_file()},
        })
    }
}
