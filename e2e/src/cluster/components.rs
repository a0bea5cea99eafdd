//! The rest of a cluster: controllers and scheduler on this host, beside
//! kube-apiserver, and kube-proxy on the node.

use std::path::Path;

use anyhow::Result;

use super::inside::Inside;
use super::kubelet::NODE;
use super::machine::Machine;
use crate::golang;
use crate::pki::{ServiceAccountKeys, write};
use crate::plane::ControlPlane;
use crate::ports::Port;
use crate::process::{Process, Spec};

/// A component on this host, and the port it listens on.
#[derive(Debug)]
pub(super) struct Component {
    process: Process,
    _port: Port,
}

impl Component {
    pub(super) fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// kube-controller-manager, which also gives service accounts their root CA.
pub(super) async fn manager(plane: &ControlPlane, kubeconfig: &Path) -> Result<Component> {
    let dir = plane.scratch.subdir("kube-controller-manager")?;
    let ca = write(&dir, "ca.crt", &plane.authority.pem())?;
    let ServiceAccountKeys { private, .. } = &plane.service_account;
    let flags = [
        format!("--root-ca-file={}", ca.display()),
        format!("--service-account-private-key-file={}", private.display()),
        // Many short-lived objects: nothing is gained by being slow.
        "--kube-api-qps=200".to_owned(),
        "--kube-api-burst=400".to_owned(),
    ];
    component("kube-controller-manager", &dir, kubeconfig, &flags).await
}

/// kube-scheduler.
pub(super) async fn scheduler(plane: &ControlPlane, kubeconfig: &Path) -> Result<Component> {
    let dir = plane.scratch.subdir("kube-scheduler")?;
    component("kube-scheduler", &dir, kubeconfig, &[]).await
}

async fn component(
    name: &str,
    dir: &Path,
    kubeconfig: &Path,
    flags: &[String],
) -> Result<Component> {
    let program = golang::NODE.build_async().await?;
    let port = Port::free()?;
    let process = Spec::new(name, program, dir.join(format!("{name}.log")))
        .arg(name)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--secure-port={}", port.number()))
        .arg(format!("--cert-dir={}", dir.display()))
        .args(["--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false"])
        .args(flags)
        .start()?;
    Ok(Component { process, _port: port })
}

/// kube-proxy, with rules in the machine's own network. It touches no setting
/// of connection tracking, which the machine shares with this host.
pub(super) async fn proxy(machine: &Machine, dir: &Path, kubeconfig: &Path) -> Result<Inside> {
    crate::packages::program("iptables", "iptables").await?;
    let program = golang::NODE.build_async().await?;
    let spec = machine
        .spec("kube-proxy", &program, &dir.join("kube-proxy.log"))
        .arg("kube-proxy")
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--hostname-override={NODE}"))
        .arg(format!("--cluster-cidr={}", machine.addresses().pods()))
        // Pods share a bridge: an answer must not take the short way past the rules.
        .args(["--proxy-mode=iptables", "--masquerade-all"])
        .args(["--iptables-min-sync-period=100ms", "--conntrack-max-per-core=0"])
        .args(["--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"]);
    machine.start(spec)
}
