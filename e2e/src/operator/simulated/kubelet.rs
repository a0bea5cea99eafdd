//! A simulated kubelet for every pod of a cluster: it runs nothing, and says that all is well.

use std::collections::HashMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::shims::{KEY_ID, PORT};
use crate::KubeClient;

/// How often it looks for pods that nobody runs yet.
const LOOK: Duration = Duration::from_millis(500);
/// Pods at a time.
const PAGE: u32 = 500;

/// The addresses of pods: one for each namespace, on this host's loopback, where its simulated shim
/// answers. The first one, and how many there are.
const NETWORK: u32 = u32::from_be_bytes([127, 77, 0, 1]);
const HOSTS: u32 = 1 << 16;

/// Whose pods have which address. Whoever listens there has it: runs beside this one have others.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    known: Arc<Mutex<Known>>,
    taken: UnboundedSender<Taken>,
}

#[derive(Debug, Default)]
struct Known {
    given: HashMap<String, Ipv4Addr>,
    next: u32,
}

/// The shim of a namespace is to answer here.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) namespace: String,
    pub(super) listener: TcpListener,
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
    /// None is given yet. What is taken is told to whoever has the other end.
    pub(super) fn new() -> (Self, UnboundedReceiver<Taken>) {
        let (taken, shims) = unbounded_channel();
        (Self { known: Arc::default(), taken }, shims)
    }

    /// The address of the pods of a namespace.
    pub(super) fn of(&self, namespace: &str) -> Result<Ipv4Addr> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = known.given.get(namespace) {
            return Ok(*address);
        }
        while known.next < HOSTS {
            let address = Ipv4Addr::from(NETWORK + known.next);
            known.next += 1;
            let Ok(listener) = TcpListener::bind((address, PORT)) else { continue };
            listener.set_nonblocking(true)?;
            known.given.insert(namespace.to_owned(), address);
            // In vain where nobody answers for shims any more.
            let _ = self.taken.send(Taken { namespace: namespace.to_owned(), listener });
            return Ok(address);
        }
        bail!("port {PORT} is free on no address from {} on", Ipv4Addr::from(NETWORK))
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
    let ip = addresses.of(namespace)?;
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
            "keys": [{
                "id": "1", "verdict": "ready", "steps": [], "keyIdHash": "simulated",
                "canary": {
                    "keyId": KEY_ID, "ciphertext": "AAAA", "sha256": "0".repeat(64),
                },
            }],
        }),
        "gate" => json!({"kind": "Gate"}),
        "migrate" => json!({"kind": "Migration", "complete": true, "dryRun": false}),
        _ => json!({"mayDrop": "yes", "counted": 9}),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn every_namespace_has_an_address_that_no_other_run_has() {
        let (addresses, mut taken) = Addresses::new();
        let one = addresses.of("one").unwrap();
        assert_eq!(addresses.of("one").unwrap(), one);
        assert_ne!(addresses.of("two").unwrap(), one);
        let (beside, _shims) = Addresses::new();
        assert_ne!(beside.of("one").unwrap(), one);
        let first = taken.try_recv().unwrap();
        assert_eq!(first.namespace, "one");
        assert_eq!(first.listener.local_addr().unwrap().ip(), one);
    }

    #[test]
    fn a_server_is_said_to_run_and_a_job_to_have_succeeded() {
        let (addresses, _shims) = Addresses::new();
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
