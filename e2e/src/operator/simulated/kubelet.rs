//! A simulated kubelet for every pod of a cluster: it runs nothing, and says that all is well.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::KubeClient;

/// How often it looks for pods that nobody runs yet.
const LOOK: Duration = Duration::from_millis(500);
/// Pods at a time.
const PAGE: u32 = 500;

/// The addresses of pods: one for each namespace, on this host's loopback, where a simulated shim
/// answers for all of them.
const NETWORK: u32 = u32::from_be_bytes([127, 77, 0, 1]);

/// Whose pods have which address.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    known: Arc<Mutex<HashMap<String, Ipv4Addr>>>,
}

/// Ended when this is dropped.
#[derive(Debug)]
pub(super) struct SimulatedKubelet {
    task: JoinHandle<()>,
}

impl SimulatedKubelet {
    pub(super) fn start(client: KubeClient, addresses: Addresses) -> Self {
        let task = tokio::spawn(async move {
            loop {
                // What was changed meanwhile by others is looked at again.
                if let Err(error) = look(&client, &addresses).await {
                    eprintln!("simulated kubelet: {error:#}");
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        Self { task }
    }
}

impl Drop for SimulatedKubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Addresses {
    /// The address of the pods of a namespace.
    pub(super) fn of(&self, namespace: &str) -> Ipv4Addr {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Ipv4Addr::from(NETWORK + u32::try_from(known.len()).unwrap_or_default());
        *known.entry(namespace.to_owned()).or_insert(next)
    }

    /// The namespace whose pods have this address.
    pub(super) fn namespace(&self, address: Ipv4Addr) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = known.iter();
        known.find(|(_, given)| **given == address).map(|(namespace, _)| namespace.clone())
    }
}

async fn look(client: &KubeClient, addresses: &Addresses) -> Result<()> {
    let pending = "fieldSelector=status.phase%3DPending";
    let mut list = client.get(&format!("/api/v1/pods?{pending}&limit={PAGE}")).await?;
    let Value::Array(pods) = list["items"].take() else { bail!("a list without items") };
    let (client, addresses) = (client.clone(), addresses.clone());
    super::at_once(pods.into_iter().map(move |pod| run(client.clone(), pod, addresses.clone())))
        .await
}

async fn run(client: KubeClient, pod: Value, addresses: Addresses) -> Result<()> {
    let status = status(&pod, &addresses)?;
    let text = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
    // It may have been deleted by now.
    let _ = client.merge(&path, &json!({"status": status})).await;
    Ok(())
}

/// What is said of a pod.
fn status(pod: &Value, addresses: &Addresses) -> Result<Value> {
    let namespace = pod["metadata"]["namespace"].as_str().context("a pod without namespace")?;
    let names = |list: &str| -> Vec<String> {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.filter_map(|one| Some(one["name"].as_str()?.to_owned())).collect()
    };
    let job = pod["metadata"]["labels"]["sidekey.dev/job"].as_str();
    // What is counted in etcd is believed for some minutes only.
    let now = sidekey_core::time(SystemTime::now());
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let state = match job {
        None => running,
        Some(kind) => json!({"terminated": {
            "exitCode": 0, "reason": "Completed", "message": answer(kind).to_string(),
            "startedAt": now, "finishedAt": now,
        }}),
    };
    let container = |name: &String| {
        json!({
            "name": name, "image": "", "imageID": "", "containerID": format!("simulated://{name}"),
            "restartCount": 0, "ready": job.is_none(), "started": job.is_none(), "state": state,
        })
    };
    let all = |list: &str| names(list).iter().map(container).collect::<Vec<_>>();
    let ready = if job.is_none() { "True" } else { "False" };
    let conditions = ["Ready", "ContainersReady", "Initialized", "PodScheduled"];
    let conditions = conditions.map(
        |kind| json!({"type": kind, "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}),
    );
    let ip = addresses.of(namespace);
    Ok(json!({
        "phase": if job.is_none() { "Running" } else { "Succeeded" },
        "podIP": ip, "podIPs": [{"ip": ip}], "startTime": "2026-01-01T00:00:00Z",
        "conditions": conditions,
        "initContainerStatuses": all("initContainers"),
        "containerStatuses": all("containers"),
    }))
}

/// What a Job that has succeeded says.
fn answer(kind: &str) -> Value {
    match kind {
        "preflight" => json!({
            "verdict": "ready",
            "keys": [{"id": "1", "verdict": "ready", "steps": [], "keyIdHash": "simulated"}],
        }),
        "gate" => json!({"kind": "Gate"}),
        "migrate" => json!({"kind": "Migration", "complete": true, "dryRun": false}),
        _ => json!({"mayDrop": "yes"}),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn every_namespace_has_an_address_and_an_address_its_namespace() {
        let addresses = Addresses::default();
        let one = addresses.of("one");
        assert_eq!(addresses.of("one"), one);
        assert_ne!(addresses.of("two"), one);
        assert_eq!(addresses.namespace(one).as_deref(), Some("one"));
    }

    #[test]
    fn a_server_is_said_to_run_and_a_job_to_have_succeeded() {
        let addresses = Addresses::default();
        let mut pod = json!({
            "metadata": {"namespace": "said", "name": "x"},
            "spec": {"containers": [{"name": "kube-apiserver"}]},
        });
        let said = status(&pod, &addresses).unwrap();
        assert_eq!(said["phase"], "Running");
        assert_eq!(said["containerStatuses"][0]["ready"], true);
        pod["metadata"]["labels"] = json!({"sidekey.dev/job": "gate"});
        let said = status(&pod, &addresses).unwrap();
        assert_eq!(said["phase"], "Succeeded");
        let message = &said["containerStatuses"][0]["state"]["terminated"]["message"];
        assert!(message.as_str().unwrap().contains("Gate"), "{message}");
    }
}
