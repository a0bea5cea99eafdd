//! Promise: `sidekey doctor` finds nothing on a sound node, and each fault that is planted there,
//! with what to do about it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::binaries;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::ports::Port;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::wait::{PATIENCE, eventually};
use sidekey_e2e::{LocalPlugin, Scratch, packages};

/// The program's name.
const PROGRAM: &str = "sidekey";

/// A node as static pods leave it. Dropped, and so ended, in this order.
struct Node {
    shim: Process,
    plugin: LocalPlugin,
    authority: Authority,
    bin_dir: PathBuf,
    scratch: Scratch,
}

impl Node {
    async fn start() -> Result<Self> {
        let scratch = Scratch::new("doctor")?;
        let sockets = scratch.subdir("sockets")?;
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o750))?;
        let (home, key) = (scratch.subdir("plugin")?, scratch.path().join("key"));
        let plugin = LocalPlugin::in_directory(&home, "doctor", &key).await?;
        let authority = Authority::new("doctor")?;
        let binary = binaries::path_async("sidekey-shim").await?;
        let bin_dir = binary.parent().context("no directory")?.to_owned();
        let config = scratch.subdir("config/shim")?;
        let mut node_files = Files { config, authority: &authority };
        node_files.good_certificates()?;
        node_files.shim(&shim_document(&sockets, &plugin, 1))?;
        let log = scratch.path().join("shim.log");
        let spec = Spec::new("sidekey-shim doctor", binary, log).arg("--config");
        let shim = spec.arg(scratch.path().join("config/shim/config.yaml")).start()?;
        let node = Self { shim, plugin, authority, bin_dir, scratch };
        node.encryption("unix:///var/run/kmsplugin/kms.sock")?;
        let path = sockets.join("kms.sock");
        eventually("the shim listens", PATIENCE, async || {
            ensure!(path.exists(), "not yet");
            Ok(())
        })
        .await?;
        Ok(node)
    }

    fn files(&self) -> Files<'_> {
        Files { config: self.at("config/shim"), authority: &self.authority }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn encryption(&self, endpoint: &str) -> Result<()> {
        let kms = json!({"kms": {"apiVersion": "v2", "name": "sidekey", "endpoint": endpoint, "timeout": "5s"}});
        let document = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
            "resources": [{"resources": ["secrets"], "providers": [kms, {"identity": {}}]}],
        });
        let directory = self.scratch.subdir("config/kube-apiserver")?;
        Ok(std::fs::write(directory.join("encryption.yaml"), document.to_string())?)
    }

    async fn doctor(&self) -> Result<(Option<i32>, Vec<Value>)> {
        let path = |name: &str| self.at(name).display().to_string();
        let bin_dir = self.bin_dir.display().to_string();
        let args = [
            "doctor",
            "-o",
            "json",
            "--config-dir",
            &path("config"),
            "--socket-dir",
            &path("sockets"),
            "--manifest",
            &path("manifest.yaml"),
            "--bin-dir",
            &bin_dir,
        ];
        let said = binaries::run(PROGRAM, &args).await?;
        let json: Value = serde_json::from_str(&said.stdout)
            .with_context(|| format!("no JSON: {} {}", said.stdout, said.stderr))?;
        let all = json["findings"].as_array().cloned().unwrap_or_default();
        Ok((said.code, all))
    }

    /// Waits until it is well: the shim needs a moment.
    async fn is_well(&self) -> Result<()> {
        eventually("the node is well", PATIENCE, async || {
            let (code, all) = self.doctor().await?;
            let bad: Vec<&Value> = all.iter().filter(|one| one["level"] != "ok").collect();
            ensure!(code == Some(0) && bad.is_empty(), "{code:?} {bad:#?}");
            Ok(())
        })
        .await
    }

    /// Waits until it finds the fault, says what to do and ends with the code for it.
    async fn finds(&self, level: &str, area: &str, text: &str) -> Result<()> {
        eventually(format!("doctor finds {text:?}"), PATIENCE, async || {
            let (code, all) = self.doctor().await?;
            let found = all.iter().any(|one| {
                let said = format!("{} {}", one["subject"], one["text"]);
                one["level"] == level
                    && one["area"] == area
                    && said.contains(text)
                    && one["fix"].is_string()
            });
            let right = if level == "problem" { Some(3) } else { Some(0) };
            ensure!(found && code == right, "{code:?} {all:#?}");
            Ok(())
        })
        .await
    }
}

/// The shim's directory of files.
struct Files<'a> {
    config: PathBuf,
    authority: &'a Authority,
}

impl Files<'_> {
    fn shim(&self, document: &Value) -> Result<()> {
        let fresh = self.config.join("config.new");
        std::fs::write(&fresh, document.to_string())?;
        Ok(std::fs::rename(fresh, self.config.join("config.yaml"))?)
    }

    fn good_certificates(&mut self) -> Result<()> {
        self.authority.file(&self.config)?;
        self.authority.peer(&self.config, "tls", &["shim.example"])?;
        Ok(())
    }
}

fn shim_document(sockets: &Path, plugin: &LocalPlugin, revision: u64) -> Value {
    json!({
        "revision": revision,
        "listen": format!("unix://{}", sockets.join("kms.sock").display()),
        "adminSocket": format!("unix://{}", sockets.join("shim-admin.sock").display()),
        "tls": tls(sockets), "probe": {"interval": "500ms", "timeout": "2s"}, "coast": "1s",
        "keys": [{"id": 1, "role": "write", "endpoints": [plugin.endpoint()]}],
    })
}

/// As it is on this host: what pods have at /etc/sidekey is told in unit tests.
fn tls(sockets: &Path) -> Value {
    let config = sockets.parent().map(|parent| parent.join("config/shim")).unwrap_or_default();
    let path = |name: &str| config.join(name).display().to_string();
    json!({"ca": path("ca.crt"), "cert": path("tls.crt"), "key": path("tls.key")})
}

#[tokio::test]
async fn every_planted_fault_is_found_and_mended_ones_are_gone() {
    let mut node = Node::start().await.unwrap();
    node.is_well().await.unwrap();
    colours_are_for_terminals_alone(&node).await.unwrap();
    certificates_that_end_or_do_not_fit_are_found(&node).await.unwrap();
    a_revision_that_is_refused_is_found(&node).await.unwrap();
    a_mistake_in_a_file_is_found(&node).await.unwrap();
    sockets_and_endpoints_are_found(&node).await.unwrap();
    a_proxy_that_cannot_be_reached_is_found(&node).await.unwrap();
    a_dead_plugin_and_a_dead_shim_are_found(&mut node).await.unwrap();
}

async fn colours_are_for_terminals_alone(node: &Node) -> Result<()> {
    let script = packages::program("script", "bsdutils").await?;
    let sidekey = binaries::path_async(PROGRAM).await?;
    let path = |name: &str| node.at(name).display().to_string();
    let (config, sockets, manifest) = (path("config"), path("sockets"), path("manifest.yaml"));
    let line = format!(
        "{} doctor --config-dir {config} --socket-dir {sockets} --manifest {manifest}",
        sidekey.display()
    );
    let said = async |program: &Path, args: [&str; 3], no_color: &str| {
        let mut command = tokio::process::Command::new(program);
        command.args(args).env("NO_COLOR", no_color).stdin(std::process::Stdio::null());
        let ran = command.output().await?;
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        ensure!(text.contains("FINDING"), "{ran:?}");
        anyhow::Ok(text.contains("\x1b[3"))
    };
    // `script` runs a command on a terminal of its own.
    let terminal = ["-qec", &line, "/dev/null"];
    ensure!(said(&script, terminal, "").await?, "a terminal shows no colours");
    ensure!(!said(&script, terminal, "1").await?, "NO_COLOR is not obeyed");
    let pipe = ["-c", &line, "sh"];
    ensure!(!said(Path::new("sh"), pipe, "").await?, "a pipe gets colours");
    Ok(())
}

async fn certificates_that_end_or_do_not_fit_are_found(node: &Node) -> Result<()> {
    let config = node.at("config/shim");
    node.authority.expired_peer(&config, "tls", "shim.example")?;
    node.finds("problem", "certificate", "has expired at 2020-12-31").await?;
    node.files().good_certificates()?;
    node.is_well().await?;
    node.authority.peer(&node.scratch.subdir("other")?, "tls", &["x"])?;
    std::fs::copy(node.at("other/tls.key"), config.join("tls.key"))?;
    node.finds("problem", "certificate", "is not the key of").await?;
    let stranger = Authority::new("stranger")?;
    stranger.peer(&config, "tls", &["shim.example"])?;
    node.finds("warning", "certificate", "is not accepted by").await?;
    std::fs::write(config.join("tls.crt"), "garbage")?;
    node.finds("problem", "certificate", "holds no certificate").await?;
    node.files().good_certificates()?;
    node.is_well().await
}

async fn a_revision_that_is_refused_is_found(node: &Node) -> Result<()> {
    let mut document = shim_document(&node.at("sockets"), &node.plugin, 2);
    document["keys"][0]["role"] = "read".into();
    let key = json!({"id": 2, "role": "write", "endpoints": ["unix:///nowhere/kms-2.sock"]});
    document["keys"].as_array_mut().context("no keys")?.push(key);
    node.files().shim(&document)?;
    node.finds("problem", "revision", "revision 1 is in use, 2 is published").await?;
    node.finds("problem", "socket", "/nowhere/kms-2.sock").await?;
    node.files().shim(&shim_document(&node.at("sockets"), &node.plugin, 3))?;
    node.is_well().await
}

async fn a_mistake_in_a_file_is_found(node: &Node) -> Result<()> {
    let mut document = shim_document(&node.at("sockets"), &node.plugin, 3);
    document["keys"][0]["rolle"] = "write".into();
    node.files().shim(&document)?;
    node.finds("problem", "configuration", "keys[0].rolle: unknown field").await?;
    node.files().shim(&shim_document(&node.at("sockets"), &node.plugin, 3))?;
    node.is_well().await
}

async fn sockets_and_endpoints_are_found(node: &Node) -> Result<()> {
    let sockets = node.at("sockets");
    let mode = |mode| std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(mode));
    mode(0o777)?;
    node.finds("warning", "socket", "mode 0777").await?;
    mode(0o750)?;
    node.encryption("unix:///var/run/kmsplugin/other.sock")?;
    node.finds("problem", "encryption", "other.sock is not there").await?;
    node.encryption("unix:///var/run/kmsplugin/kms.sock")?;
    node.is_well().await
}

async fn a_proxy_that_cannot_be_reached_is_found(node: &Node) -> Result<()> {
    let nobody = Port::free()?;
    let mut document = shim_document(&node.at("sockets"), &node.plugin, 4);
    let endpoint = format!("https://{}", nobody.address()).into();
    document["keys"][0]["endpoints"].as_array_mut().context("no endpoints")?.push(endpoint);
    node.files().shim(&document)?;
    node.finds("problem", "network", &nobody.address().to_string()).await?;
    node.files().shim(&shim_document(&node.at("sockets"), &node.plugin, 5))?;
    node.is_well().await
}

async fn a_dead_plugin_and_a_dead_shim_are_found(node: &mut Node) -> Result<()> {
    node.plugin.process().kill()?;
    node.finds("problem", "socket", "plugin/kms.sock").await?;
    node.finds("problem", "key", "kms.sock").await?;
    node.plugin.restart().await?;
    node.is_well().await?;
    node.shim.kill()?;
    node.finds("problem", "socket", "cannot connect").await
}
