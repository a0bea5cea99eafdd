//! Many control planes without a node: what their kubelets and shims would say is simulated.
//!
//! Real are etcd, kube-apiserver, the controllers (Deployments, ReplicaSets, Jobs) and the operator,
//! which runs as a process. Simulated are kubelet, which only says of pods that they run, or of Jobs'
//! pods what a Job that succeeds says; and one shim for each control plane, which says by mutual
//! TLS that it has loaded what is published. Nothing is encrypted.

mod backup;
mod heads;
mod kubelet;
mod shims;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{CLUSTERS, OPERATOR_NAMESPACE, install, objects};
use crate::apiserver::Options;
use crate::bench::Memory;
use crate::cluster::manifest;
use crate::metrics::Metrics;
use crate::pki::{ServiceAccountKeys, write};
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::wait::{PATIENCE, eventually};
use crate::{ControlPlane, KubeApiserver, KubeClient, binaries, golang};

use backup::Backup;
use kubelet::{Addresses, SimulatedKubelet};
use shims::SimulatedShims;

/// The controllers that control planes need.
const CONTROLLERS: &str = "deployment-controller,replicaset-controller,job-controller,\
                           serviceaccount-controller,garbage-collector-controller";
/// Requests at a time.
const AT_ONCE: usize = 8;
const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kustomize");

/// A cluster without a node, the operator, and control planes. Dropped, and so ended, in this order.
pub struct Fleet {
    /// The operator.
    pub operator: Process,
    probes: Port,
    _ports: [Port; 3],
    _kubelet: SimulatedKubelet,
    shims: SimulatedShims,
    _controllers: Process,
    /// The management cluster's.
    pub server: KubeApiserver,
    kubeconfig: PathBuf,
    plane: ControlPlane,
}

impl Fleet {
    /// A cluster with the CRDs and no control plane yet; the operator runs.
    pub async fn start(name: &str, arguments: &[&str]) -> Result<Self> {
        let plane = ControlPlane::start(name).await?;
        let server = KubeApiserver::start(&plane, Options::new("a")).await?;
        let kubeconfig = write(plane.scratch.path(), "kubeconfig", &server.kubeconfig())?;
        let client = server.client();
        install::crds(&client).await?;
        for file in ["namespace.yaml", "secretencryptions.yaml", "webhook.yaml"] {
            let text = std::fs::read_to_string(format!("{BASE}/{file}"))?;
            for object in manifest(&text)? {
                client.apply(&object).await.with_context(|| file.to_owned())?;
                if object["kind"] == "CustomResourceDefinition" {
                    install::established(&client, &object).await?;
                }
            }
        }
        client.apply(&namespace(CLUSTERS)).await?;
        let (controllers, port) = controllers(&plane, &kubeconfig).await?;
        let (addresses, taken) = Addresses::new();
        let shims = SimulatedShims::start(client.clone(), taken);
        let kubelet = SimulatedKubelet::start(client, addresses);
        let [probes, webhook, page] = [Port::free()?, Port::free()?, Port::free()?];
        let program = binaries::path_async("sidekey-operator").await?;
        let operator = Spec::new("sidekey-operator", program, plane.scratch.path().join("op.log"))
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["--namespace", OPERATOR_NAMESPACE])
            .arg(format!("--probe-listen={}", probes.address()))
            .arg(format!("--webhook-listen={}", webhook.address()))
            .arg(format!("--page-listen={}", page.address()))
            .args(arguments)
            .start()?;
        Ok(Self {
            operator,
            probes,
            _ports: [port, webhook, page],
            _kubelet: kubelet,
            shims,
            _controllers: controllers,
            server,
            kubeconfig,
            plane,
        })
    }

    /// Where the operator's probes are.
    pub fn probes(&self) -> std::net::SocketAddr {
        self.probes.address()
    }

    /// A kubeconfig with an administrator's rights.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The cluster's etcd and scratch directory.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// So many HostedClusters that are handed over, with the control planes that HyperShift would
    /// have made.
    pub async fn add(&self, count: usize) -> Result<()> {
        at_once((0..count).map(|number| add(self.server.client(), number))).await
    }

    /// More of them, as a backup of the first one brings them to this cluster: already encrypted.
    /// That one must be settled.
    pub async fn restore(&self, numbers: Range<usize>) -> Result<()> {
        let client = self.server.client();
        let backup = Arc::new(Backup::take(&client).await?);
        at_once(numbers.map(|number| {
            let (client, backup) = (client.clone(), Arc::clone(&backup));
            async move { backup.restore(&client, number).await }
        }))
        .await
    }

    /// Waits until that many control planes are settled, one after the other: nothing is under way,
    /// and their data is under their key.
    pub async fn wait_settled(&mut self, count: usize, limit: Duration) -> Result<()> {
        let client = self.server.client();
        let all = async || {
            for number in 0..count {
                let what = format!("control plane {number} is settled");
                eventually(what, limit, async || settled(&client, number).await).await?;
            }
            Ok(())
        };
        self.operator.wait_until("its control planes are settled", limit, all).await
    }

    /// Resident memory of the operator, in KiB.
    pub fn memory(&self) -> Result<u64> {
        let pid = self.operator.pid().context("the operator does not run")?;
        Ok(Memory::of(pid)?.rss)
    }

    /// How often what was asked for, by verb and resource, whoever asked.
    pub async fn requests(&self) -> Result<BTreeMap<String, f64>> {
        let metrics = self.server.metrics().await?;
        Ok(requests(&metrics))
    }

    /// How often anything was, all together.
    pub async fn asked(&self) -> Result<f64> {
        Ok(self.requests().await?.values().sum())
    }

    /// How often a status of a shim was asked for.
    pub fn shims_asked(&self) -> u64 {
        self.shims.asked()
    }

    /// Waits until shims were asked so many times more.
    pub async fn wait_asked(&mut self, more: u64) -> Result<()> {
        let goal = self.shims_asked() + more;
        let shims = self.shims.counter();
        let what = format!("shims were asked {more} times more");
        let look = async || {
            let now = shims.load(std::sync::atomic::Ordering::Relaxed);
            ensure!(now >= goal, "{now} of {goal}");
            Ok(())
        };
        self.operator.wait_until(&what, 4 * PATIENCE, look).await
    }
}

async fn add(client: KubeClient, number: usize) -> Result<()> {
    let name = format!("c{number}");
    let place = format!("{CLUSTERS}-{name}");
    client.apply(&namespace(&place)).await?;
    client.apply(&deployment(&place)).await?;
    client.apply(&cluster(number, number)).await?;
    Ok(())
}

/// A HostedCluster with the key of that number.
fn cluster(number: usize, key: usize) -> Value {
    let arn = format!("arn:aws:kms:us-east-1:123456789012:key/{key:012}");
    objects::hosted_cluster(&format!("c{number}"), &[&arn], &json!({}))
}

/// Does all of it, some at a time.
async fn at_once<F>(work: impl IntoIterator<Item = F>) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for one in work {
        if tasks.len() >= AT_ONCE
            && let Some(ended) = tasks.join_next().await
        {
            ended??;
        }
        tasks.spawn(one);
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

async fn settled(client: &KubeClient, number: usize) -> Result<()> {
    let place = format!("/apis/sidekey.dev/v1alpha1/namespaces/{CLUSTERS}-c{number}");
    let item = client.get(&format!("{place}/secretencryptions/c{number}")).await?;
    let up_to_date = super::condition(&item, "EtcdDataEncryptionUpToDate");
    let well = item["status"]["activeKey"]["id"] == 1
        && item["status"]["rotation"].is_null()
        && up_to_date.is_some_and(|one| one["status"] == "True");
    ensure!(well, "{}", super::shown(&item));
    Ok(())
}

/// By verb and resource, such as `PUT pods/status`.
fn requests(metrics: &Metrics) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for sample in metrics.find("apiserver_request_total", &[]) {
        let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        let mut name = format!("{} {}", label("verb"), label("resource"));
        let part = label("subresource");
        if !part.is_empty() {
            name = format!("{name}/{part}");
        }
        *all.entry(name).or_default() += sample.value;
    }
    all
}

async fn controllers(plane: &ControlPlane, kubeconfig: &Path) -> Result<(Process, Port)> {
    let name = "kube-controller-manager";
    let dir = plane.scratch.subdir(name)?;
    let ServiceAccountKeys { private, .. } = &plane.service_account;
    let (program, port) = (golang::NODE.build_async().await?, Port::free()?);
    let process = Spec::new(name, program, dir.join(format!("{name}.log")))
        .arg(name)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--secure-port={}", port.number()))
        .arg(format!("--cert-dir={}", dir.display()))
        .arg(format!("--service-account-private-key-file={}", private.display()))
        .arg(format!("--controllers={CONTROLLERS}"))
        .args(["--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false"])
        .args(["--kube-api-qps=500", "--kube-api-burst=1000"])
        .start()?;
    eventually("the controllers make service accounts", PATIENCE, async || {
        let path = "/api/v1/namespaces/default/serviceaccounts/default";
        client_of(plane, kubeconfig)?.get(path).await
    })
    .await?;
    Ok((process, port))
}

/// The address is in the kubeconfig; the rest the plane knows.
fn client_of(plane: &ControlPlane, kubeconfig: &Path) -> Result<KubeClient> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let address = text.split("https://").nth(1).and_then(|rest| rest.split('"').next());
    let address = address.context("a kubeconfig without address")?.parse()?;
    let token = Some(plane.admin_token.clone());
    let http = crate::http::HttpClient::tls(address, plane.authority.connector()?, token);
    Ok(KubeClient::new("kube-apiserver", http))
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// A kube-apiserver that nobody runs.
fn deployment(namespace: &str) -> Value {
    let labels = json!({"app": "kube-apiserver"});
    let container = json!({
        "name": "kube-apiserver", "image": "nobody.runs/this:1",
        "args": ["--etcd-servers=https://etcd-client:2379", "--secure-port=6443"],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "kube-apiserver", "namespace": namespace},
        "spec": {
            "replicas": 1, "revisionHistoryLimit": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"automountServiceAccountToken": false, "containers": [container]},
            },
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_and_resource() {
        let text = "apiserver_request_total{code=\"200\",verb=\"LIST\",resource=\"secrets\"} 5\n\
                    apiserver_request_total{code=\"500\",verb=\"LIST\",resource=\"secrets\"} 2\n\
                    apiserver_request_total{verb=\"PUT\",resource=\"pods\",subresource=\"status\"} 7\n";
        let counted = requests(&Metrics::parse(text).unwrap());
        assert_eq!(counted["LIST secrets"], 7.0);
        assert_eq!(counted["PUT pods/status"], 7.0);
    }
}
