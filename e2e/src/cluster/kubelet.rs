//! kubelet, and what it leaves in files: static pods go in, logs come out.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::containerd::SOCKET;
use super::inside::Inside;
use super::machine::Machine;
use crate::http::HttpClient;
use crate::pki::write;
use crate::wait::PATIENCE;
use crate::{golang, process};

/// The node's name.
pub const NODE: &str = "node";

/// Where kubelet says whether it is well, on its own machine.
const HEALTH: u16 = 10248;

/// kubelet on a machine.
#[derive(Debug)]
pub struct Kubelet {
    process: Inside,
    health: HttpClient,
    dir: PathBuf,
}

impl Kubelet {
    /// Starts it with its files in `dir`, without waiting for a kube-apiserver.
    pub(super) async fn start(machine: &Machine, dir: &Path, kubeconfig: &Path) -> Result<Self> {
        let program = golang::NODE.build_async().await?;
        let config = config(machine, dir);
        let config = write(dir, "config.json", &serde_json::to_string_pretty(&config)?)?;
        write(dir, "resolv.conf", "")?;
        let node = machine.addresses().node();
        let spec = machine
            .spec("kubelet", &program, &dir.join("kubelet.log"))
            .arg("kubelet")
            .arg(format!("--config={}", config.display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--root-dir={}", dir.join("root").display()))
            .arg(format!("--cert-dir={}", dir.join("pki").display()))
            .arg(format!("--hostname-override={NODE}"))
            .arg(format!("--node-ip={node}"));
        let process = machine.start(spec)?;
        let health = HttpClient::plain((node, HEALTH).into());
        Ok(Self { process, health, dir: dir.to_owned() })
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Inside {
        &mut self.process
    }

    /// Stops it with kill -9: containers keep running.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Starts it again after [`stop`](Self::stop), and waits until it is well.
    pub async fn resume(&mut self) -> Result<()> {
        self.process.start()?;
        self.wait_healthy().await
    }

    /// Stops it with kill -9 and starts it again.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.resume().await
    }

    /// Waits until `/healthz` is good.
    pub async fn wait_healthy(&mut self) -> Result<()> {
        let health = self.health.clone();
        self.process
            .process()
            .wait_until("/healthz answers", PATIENCE, async || {
                health.get("/healthz").await?.ok()?;
                Ok(())
            })
            .await
    }

    /// Everything a container has logged, its former runs included, as far as
    /// kubelet keeps them. Empty while there is no log.
    pub fn logs(&self, pod: &str, uid: &str, namespace: &str, container: &str) -> Result<String> {
        read_logs(&logs_dir(&self.dir).join(format!("{namespace}_{pod}_{uid}")).join(container))
    }

    /// The directories of containers' logs in a namespace: `POD_UID/CONTAINER`, and where.
    pub(super) fn log_dirs(&self, namespace: &str) -> Vec<(String, PathBuf)> {
        let mut all = Vec::new();
        for (pod, dir) in children(&logs_dir(&self.dir)) {
            let Some(pod) = pod.strip_prefix(&format!("{namespace}_")) else { continue };
            let containers = children(&dir).into_iter();
            all.extend(containers.map(|(name, dir)| (format!("{pod}/{name}"), dir)));
        }
        all.sort();
        all
    }

    /// Says so if a program of ours has panicked in a container of any namespace.
    pub(super) fn tell_of_panics(&self) {
        for (pod, dir) in children(&logs_dir(&self.dir)) {
            for (name, dir) in children(&dir) {
                let log = read_logs(&dir).unwrap_or_default();
                process::tell_of_panics(&format!("{pod}/{name}"), &log);
            }
        }
    }

    /// Where a volume of a pod is mounted, as the machine sees it: `kind` is
    /// `secret`, `configmap`, `projected` or `empty-dir`.
    pub(super) fn volume(&self, uid: &str, kind: &str, name: &str) -> PathBuf {
        let volumes = self.dir.join("root/pods").join(uid).join("volumes");
        volumes.join(format!("kubernetes.io~{kind}")).join(name)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell_of_panics();
        }
    }
}

/// What is in a directory: names and paths.
fn children(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect()
}

/// The logs of one container, its former runs included; empty while there is none.
pub(super) fn read_logs(dir: &Path) -> Result<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(String::new()) };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|end| end == "log"));
    // 0.log, 1.log, …, 10.log
    files.sort_by_key(|file| (file.as_os_str().len(), file.clone()));
    let mut text = String::new();
    for file in files {
        let read = || format!("cannot read {}", file.display());
        let bytes = std::fs::read(&file).with_context(read)?;
        text.extend(plain_log(&String::from_utf8_lossy(&bytes)));
    }
    Ok(text)
}

/// Where manifests of static pods go.
pub(super) fn static_pods(dir: &Path) -> PathBuf {
    dir.join("manifests")
}

fn logs_dir(dir: &Path) -> PathBuf {
    dir.join("logs")
}

/// Lines are `TIME STREAM F TEXT`, or P instead of F where a line goes on.
fn plain_log(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut parts = line.splitn(4, ' ').skip(2);
        let (tag, text) = (parts.next()?, parts.next().unwrap_or_default());
        Some(format!("{text}{}", if tag == "P" { "" } else { "\n" }))
    };
    text.lines().filter_map(line).collect()
}

/// As on a user's node, but: it takes a machine with any kind of control groups
/// and swap, looks at static pods each second and at mounted Secrets every few (a minute
/// elsewhere), and takes orders from whoever reaches its machine.
fn config(machine: &Machine, dir: &Path) -> Value {
    let everywhere = Ipv4Addr::UNSPECIFIED;
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": machine.cgroup(),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        "makeIPTablesUtilChains": false,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "syncFrequency": "4s",
        "fileCheckFrequency": "1s",
        "staticPodPath": static_pods(dir),
        "podLogsDir": logs_dir(dir),
        "volumePluginDir": dir.join("plugins"),
        "resolvConf": dir.join("resolv.conf"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [machine.addresses().service(super::dns::SERVICE)],
        "healthzBindAddress": everywhere,
        "healthzPort": HEALTH,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "registerWithTaints": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_shown_without_what_the_runtime_adds() {
        let text = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n\
                    2026-01-01T00:00:00Z stderr F o\n2026-01-01T00:00:00Z stdout F \n";
        assert_eq!(plain_log(text).concat(), "one\ntwo\n\n");
    }
}
