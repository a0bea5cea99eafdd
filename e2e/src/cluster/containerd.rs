//! The container runtime of a node, with images that come from files alone.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::json;

use super::cri;
use super::image::ScratchImage;
use super::inside::Inside;
use super::machine::Machine;
use crate::pki::write;
use crate::wait::{PATIENCE, eventually};
use crate::{golang, packages};

/// The image that holds the namespaces of every pod; what the pods of tests run
/// is in it too.
pub const POD_IMAGE: &str = "localhost/sidekey-e2e/pod:1";

/// Where it listens, on its machine.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";

/// Where Debian's package has the CNI plugins.
const CNI: &str = "/usr/lib/cni";

/// The label that the part for Kubernetes puts on images that it has seen.
const SEEN: &str = "io.cri-containerd.image=managed";

/// containerd on a machine.
#[derive(Debug)]
pub(super) struct Containerd {
    process: Inside,
    ctr: PathBuf,
}

impl Containerd {
    /// Starts it with its files in `dir`, and waits until it answers.
    pub(super) async fn start(machine: &Machine, dir: &Path) -> Result<Self> {
        let program = packages::program("containerd", "containerd").await?;
        let ctr = packages::program("ctr", "containerd").await?;
        packages::program("runc", "runc").await?;
        packages::program("/usr/lib/cni/bridge", "containernetworking-plugins").await?;
        let network = dir.join("cni");
        std::fs::create_dir_all(&network)?;
        write(&network, "10-pods.conflist", &conflist(machine))?;
        let config = write(dir, "config.toml", &config(dir))?;
        let spec = machine.spec("containerd", &program, &dir.join("containerd.log"));
        let process = machine.start(spec.arg("--config").arg(config))?;
        let mut containerd = Self { process, ctr };
        containerd.wait_ready(machine).await?;
        Ok(containerd)
    }

    /// Its process.
    pub(super) fn process(&mut self) -> &mut Inside {
        &mut self.process
    }

    /// Waits until it answers, also for Kubernetes.
    pub(super) async fn wait_ready(&mut self, machine: &Machine) -> Result<()> {
        let socket = machine.path(Path::new(SOCKET));
        let answers = async || cri::status(&socket).await;
        self.process.process().wait_until("it answers as to kubelet", PATIENCE, answers).await
    }

    /// Imports the images of a docker or OCI archive and gives their names.
    pub(super) async fn import(&self, machine: &Machine, archive: &Path) -> Result<Vec<String>> {
        let path = archive.display().to_string();
        ensure!(archive.is_file(), "there is no image archive {path}");
        let said = self.ctr(machine, &["images", "import", &path]).await?;
        let names: Vec<String> = said
            .lines()
            .filter_map(|line| Some(line.strip_prefix("unpacking ")?.split_once(' ')?.0.to_owned()))
            .collect();
        ensure!(!names.is_empty(), "{path} has no image with a name for {}: {said}", arch());
        for name in &names {
            self.wait_seen(machine, name).await?;
        }
        Ok(names)
    }

    /// Gives an image one more name.
    pub(super) async fn tag(&self, machine: &Machine, from: &str, to: &str) -> Result<()> {
        self.ctr(machine, &["images", "tag", "--force", from, to]).await?;
        self.wait_seen(machine, to).await
    }

    /// Until then kubelet would not find it.
    async fn wait_seen(&self, machine: &Machine, name: &str) -> Result<()> {
        eventually(format!("containerd shows {name} to kubelet"), PATIENCE, async || {
            let list = self.ctr(machine, &["images", "list", &format!("name=={name}")]).await?;
            ensure!(list.contains(SEEN), "{list}");
            Ok(())
        })
        .await
    }

    /// Any `ctr` command among the containers of Kubernetes.
    pub(super) async fn ctr(&self, machine: &Machine, args: &[&str]) -> Result<String> {
        let arguments = [&["--address", SOCKET, "--namespace", "k8s.io"], args].concat();
        machine.run(&self.ctr, &arguments).await
    }
}

/// The image of the harness's own pods, as an archive.
pub(super) async fn pod_image() -> Result<PathBuf> {
    let program = golang::POD.build_async().await?;
    ScratchImage::new(POD_IMAGE).program(program, "pod").argument("pause").archive()
}

fn arch() -> &'static str {
    std::env::consts::ARCH
}

/// State and sockets lie in the machine's own /run.
fn config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"version = 2
root = "{dir}/root"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{POD_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI}"
conf_dir = "{dir}/cni"
"#
    )
}

/// Each pod has its own address on the machine's bridge.
fn conflist(machine: &Machine) -> String {
    let bridge = json!({
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": true,
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": machine.addresses().pods()}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    });
    json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}).to_string()
}
