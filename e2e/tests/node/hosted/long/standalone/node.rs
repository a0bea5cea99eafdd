//! What an administrator puts on a node: directories, keys, certificates, pods.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::cluster::manifest;
use sidekey_e2e::images::Image;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::{Ground, binaries, images};

/// Who runs all our pods.
const UID: u32 = 65532;

/// Where the proxy listens: the node's loopback, which its host-network pods share.
const PROXY: &str = "127.0.0.1:8444";

/// The files that an administrator puts on a node.
pub(crate) struct Node {
    root: PathBuf,
    authority: Authority,
    /// Second images, of what is updated.
    updates: Vec<Image>,
}

impl Node {
    /// Directories as `deploy/README.md` has them, keys, and images.
    pub(crate) async fn furnish(ground: &Ground) -> Result<Self> {
        let root = ground.plane().scratch.subdir("node")?;
        fs::create_dir_all(root.join("keys"))?;
        for (sockets, owner) in [
            ("kmsplugin", UID),
            ("sidekey", 0),
            ("sidekey/local", UID),
            ("sidekey/vault", UID),
            ("sidekey/aws", UID),
        ] {
            let sockets = root.join("var/run").join(sockets);
            fs::create_dir_all(&sockets)?;
            chown(&sockets, Some(owner), Some(UID))?;
            fs::set_permissions(&sockets, fs::Permissions::from_mode(0o750))?;
        }
        for key in ["key-1", "key-2"] {
            let path = root.join("keys").join(key).display().to_string();
            binaries::run("sidekey-local", &["create", "--key-file", &path]).await?.ok()?;
        }
        let authority = Authority::new("of this control plane")?;
        let names = ["local", "shim", "proxy", "vault", "aws"];
        let built = images::ready(&names, &root.join("images")).await?;
        let updates = images::updates(&names[..2], &root.join("update")).await?;
        for (update, first) in updates.iter().zip(&built) {
            ensure!(update.name == first.name, "{} for {}", update.name, first.name);
            ensure!(update.digest != first.digest, "{} is the same image", update.reference);
        }
        for image in built.iter().chain(&updates) {
            ground.load_image(&image.archive).await?;
        }
        Ok(Self { root, authority, updates })
    }

    /// The other image of one of our programs.
    pub(crate) fn update(&self, name: &str) -> Result<&str> {
        let found = self.updates.iter().find(|image| image.name == format!("sidekey-{name}"));
        Ok(&found.with_context(|| format!("there is no other image of {name}"))?.reference)
    }

    /// A pod of `deploy/static-pods`, its host paths in the test's directory.
    pub(crate) fn pod(&self, name: &str) -> Result<Value> {
        let mut pod = manifest(&shipped(&format!("{name}.yaml"))?)?.pop().context("no pod")?;
        let volumes = pod["spec"]["volumes"].as_array_mut().context("no volumes")?;
        for volume in volumes {
            if let Some(path) = volume.pointer_mut("/hostPath/path") {
                let text = path.as_str().context("a path that is no text")?;
                *path = self.root.join(text.trim_start_matches('/')).to_string_lossy().into();
            }
        }
        Ok(pod)
    }

    /// The harness's kube-apiserver with a patch of ours and the flags of the README.
    pub(crate) async fn apiserver(&self, ground: &Ground, patch: &str) -> Result<Value> {
        let mut apiserver = ground.static_apiserver().await?;
        let patch = self.pod(patch)?;
        let container = "/spec/containers/0";
        for (list, more) in [
            ("/spec/volumes", &patch["spec"]["volumes"]),
            ("/spec/containers/0/volumeMounts", &patch["spec"]["containers"][0]["volumeMounts"]),
        ] {
            let list = apiserver.pointer_mut(list).and_then(Value::as_array_mut);
            list.context("no such list")?.extend(more.as_array().context("no list")?.clone());
        }
        ensure!(patch.pointer(container).is_some_and(|it| it["name"] == "kube-apiserver"));
        apiserver["spec"]["initContainers"] = patch["spec"]["initContainers"].clone();
        let flags = apiserver.pointer_mut("/spec/containers/0/args").and_then(Value::as_array_mut);
        flags.context("no flags")?.extend([
            "--encryption-provider-config=/etc/kubernetes/encryption/encryption.yaml".into(),
            "--encryption-provider-config-automatic-reload=true".into(),
        ]);
        Ok(apiserver)
    }

    /// The same without a shim: it is led to the plugin's own directory.
    pub(crate) async fn direct_apiserver(&self, ground: &Ground) -> Result<Value> {
        let mut apiserver = self.apiserver(ground, "kube-apiserver").await?;
        let volumes = apiserver.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
        let mut volumes = volumes.context("no volumes")?.iter_mut();
        let sockets = volumes.find(|volume| volume["name"] == "kms-sockets");
        let own = self.root.join("var/run/sidekey/local");
        sockets.context("no kms-sockets")?["hostPath"]["path"] = own.to_string_lossy().into();
        Ok(apiserver)
    }

    /// The shim's socket, as this host reaches it.
    pub(crate) fn shim(&self) -> String {
        format!("unix://{}", self.root.join("var/run/kmsplugin/kms.sock").display())
    }

    /// The socket of a key, as this host reaches it.
    pub(crate) fn kms(&self, key: u32) -> String {
        format!("unix://{}", self.root.join(&socket(key)[1..]).display())
    }

    /// Swaps a directory by the script that is shipped.
    pub(crate) fn publish(&self, name: &str, files: &[(&str, &str)]) -> Result<()> {
        let staging = tempfile::tempdir_in(&self.root)?;
        for (file, text) in files {
            fs::write(staging.path().join(file), text)?;
        }
        let to = self.root.join("etc/sidekey").join(name);
        let ran = Command::new(folder().join("publish.sh")).arg(staging.path()).arg(to).output()?;
        ensure!(ran.status.success(), "publish.sh: {}", String::from_utf8_lossy(&ran.stderr));
        Ok(())
    }

    /// kube-apiserver's directory: the file that is shipped, with the shim's socket in
    /// it or a plugin's own.
    pub(crate) fn publish_encryption(&self, socket: &str) -> Result<()> {
        let text = shipped("encryption.yaml")?;
        let shim = "unix:///var/run/kmsplugin/kms.sock";
        ensure!(text.contains(shim), "encryption.yaml leads elsewhere: {text}");
        let text = text.replace(shim, &format!("unix:///var/run/kmsplugin/{socket}"));
        self.publish("kube-apiserver", &[("encryption.yaml", &text)])
    }

    /// The plugin's directory, its revision being the number of its keys.
    pub(crate) fn publish_local(&self, keys: &[u32]) -> Result<()> {
        let listed = keys.iter().map(
            |id| json!({"id": id, "credentials": {"keyFile": format!("/etc/sidekey/key-{id}")}}),
        );
        let config =
            json!({"revision": keys.len(), "keys": listed.collect::<Vec<_>>()}).to_string();
        let mut files = vec![("config.yaml".to_owned(), config)];
        for id in keys {
            let name = format!("key-{id}");
            let text = fs::read_to_string(self.root.join("keys").join(&name))?;
            files.push((name, text));
        }
        let files: Vec<_> =
            files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        self.publish("local", &files)
    }

    pub(crate) fn publish_shim(&self, config: &Value) -> Result<()> {
        let names = ["127.0.0.1", "shim.sidekey.test"];
        let files = self.authority.peer(&self.root, "shim", &names)?;
        let (cert, key) = (fs::read_to_string(files.certificate)?, fs::read_to_string(files.key)?);
        let (text, ca) = (config.to_string(), self.authority.pem());
        let all = [("config.yaml", text), ("ca.crt", ca), ("tls.crt", cert), ("tls.key", key)];
        self.publish("shim", &all.each_ref().map(|(name, text)| (*name, text.as_str())))
    }

    pub(crate) fn publish_proxy(&self) -> Result<()> {
        let files = self.authority.peer(&self.root, "proxy", &["127.0.0.1"])?;
        let (cert, key) = (fs::read_to_string(files.certificate)?, fs::read_to_string(files.key)?);
        let config = json!({
            "listen": PROXY, "plugin": format!("unix://{}", socket(1)), "tls": tls(),
            "clients": [{"san": "shim.sidekey.test", "allow": ["status", "encrypt", "decrypt"]}],
        });
        let (text, ca) = (config.to_string(), self.authority.pem());
        let all = [("config.yaml", text), ("ca.crt", ca), ("tls.crt", cert), ("tls.key", key)];
        self.publish("proxy", &all.each_ref().map(|(name, text)| (*name, text.as_str())))
    }

    /// Keys in the directories of their plugins; the newest one writes, and the first one wrote
    /// before there was a shim.
    pub(crate) fn shim_config(&self, newest: u32) -> Value {
        let key = |id: u32| {
            let role = if id == newest { "write" } else { "read" };
            let endpoint = format!("unix://{}", socket(id));
            json!({"id": id, "role": role, "endpoints": [endpoint]})
        };
        let keys: Vec<_> = (1..=newest).map(key).collect();
        let probe = json!({"interval": "1s", "timeout": "2s"});
        json!({"revision": newest, "legacyKey": 1, "probe": probe, "keys": keys})
    }

    /// The first key, behind the proxy.
    pub(crate) fn isolated_config(&self) -> Value {
        let mut config = self.shim_config(1);
        config["keys"][0]["endpoints"] = json!([format!("https://{PROXY}")]);
        config["tls"] = tls();
        config
    }
}

/// Where the shim finds a key: the first two are local, then one of each vendor.
fn socket(key: u32) -> String {
    let vendor = match key {
        3 => "vault",
        4 => "aws",
        _ => "local",
    };
    format!("/var/run/sidekey/{vendor}/kms-{key}.sock")
}

fn tls() -> Value {
    json!({"ca": "/etc/sidekey/ca.crt", "cert": "/etc/sidekey/tls.crt", "key": "/etc/sidekey/tls.key"})
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/static-pods")
}

fn shipped(file: &str) -> Result<String> {
    let path = folder().join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}
