//! Replicas that are pods, found and reached through the API of the cluster they run in.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::ListParams;
use kube::{Api, Client};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Credentials;
use super::http::{Reply, get};
use crate::cluster::refused;
use crate::{Error, cluster};

/// The shim's container, a native sidecar.
pub const SHIM_CONTAINER: &str = "sidekey-shim";

/// Where the shim's `admin` listens, on the pod's loopback.
pub const SHIM_PORT: u16 = 8093;

/// kubelet's own words on why a port cannot be reached come a moment after the stream's end.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The pods of one control plane.
#[derive(Clone)]
pub struct Pods {
    client: Client,
    namespace: String,
    labels: BTreeMap<String, String>,
    container: String,
    port: u16,
    tls: Option<Credentials>,
    direct: Option<Direct>,
}

/// How shims are asked on their pods' own addresses.
#[derive(Clone)]
struct Direct {
    tls: Arc<ClientConfig>,
    /// The name in their certificates, the same in all of them.
    server: String,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its name.
    pub name: String,
    /// Tells it from another one of that name.
    pub uid: Option<String>,
    /// It is being deleted, and serves on until it is gone.
    pub ending: bool,
    /// Its address.
    pub ip: Option<String>,
    /// Why it cannot be asked.
    pub trouble: Option<String>,
}

impl Pods {
    /// Those with these labels, in which `container` is the API server.
    pub fn new(
        client: Client,
        namespace: impl Into<String>,
        labels: BTreeMap<String, String>,
        container: impl Into<String>,
    ) -> Self {
        let (namespace, container) = (namespace.into(), container.into());
        Self { client, namespace, labels, container, port: SHIM_PORT, tls: None, direct: None }
    }

    /// The shims listen on another port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The port is the shims' `adminTls`, with the pod's address in its certificate.
    #[must_use]
    pub fn tls(mut self, credentials: Credentials) -> Self {
        self.tls = Some(credentials);
        self
    }

    /// The shims are asked on their pods' addresses themselves, at the port of their `adminTls`.
    /// Their certificate carries `server_name`: nobody knows a pod's address beforehand.
    #[must_use]
    pub fn direct(mut self, tls: Arc<ClientConfig>, server_name: &str, port: u16) -> Self {
        self.direct = Some(Direct { tls, server: server_name.to_owned() });
        self.port = port;
        self
    }

    /// Every pod in which kube-apiserver runs, is to run or runs still.
    pub async fn replicas(&self) -> Result<Vec<Replica>, Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = format!("cannot list the pods {} of {}", self.selector(), self.namespace);
        let list = pods.list(&ListParams::default().labels(&self.selector())).await;
        let list = list.map_err(|error| refused(what, error))?;
        Ok(list.items.iter().filter_map(|pod| replica(pod, &self.container)).collect())
    }

    /// How many there should be, as the Deployments and StatefulSets of these pods say; `None`
    /// for static pods, which nothing counts.
    pub async fn expected(&self) -> Result<Option<u32>, Error> {
        let what = |kind: &str| format!("cannot list the {kind} of {}", self.namespace);
        let (deployments, sets): (Api<Deployment>, Api<StatefulSet>) = (
            Api::namespaced(self.client.clone(), &self.namespace),
            Api::namespaced(self.client.clone(), &self.namespace),
        );
        let all = ListParams::default();
        let deployments = deployments.list(&all).await;
        let deployments = deployments.map_err(|error| refused(what("Deployments"), error))?;
        let sets = sets.list(&all).await.map_err(|error| refused(what("StatefulSets"), error))?;
        let specs = deployments.items.into_iter().map(|item| item.spec);
        let wanted = specs.filter(|spec| self.covers(&spec.template));
        let mut counts: Vec<i32> = wanted.map(|spec| spec.replicas.unwrap_or(1)).collect();
        let specs = sets.items.into_iter().map(|item| item.spec);
        let specs = specs.filter(|spec| self.covers(&spec.template));
        counts.extend(specs.map(|spec| spec.replicas.unwrap_or(1)));
        let sum = counts.iter().map(|count| u32::try_from(*count).unwrap_or_default()).sum();
        Ok((!counts.is_empty()).then_some(sum))
    }

    /// The `/status` of a pod's shim.
    pub(super) async fn ask(&self, replica: &Replica) -> Result<Reply, Error> {
        if let Some(trouble) = &replica.trouble {
            return Err(Error::failed(trouble.clone()));
        }
        if let Some(direct) = &self.direct {
            return direct.ask(replica, self.port).await;
        }
        let (stream, failure) = self.forward(&replica.name, self.port).await?;
        let answer = match &self.tls {
            None => get(stream, "localhost", "/status").await,
            Some(credentials) => {
                let name = replica.ip.clone().unwrap_or_default();
                let server = ServerName::try_from(name.clone())
                    .map_err(|_| Error::failed("the pod has no address yet"))?;
                let connector = TlsConnector::from(credentials.client()?);
                match connector.connect(server, stream).await {
                    Ok(stream) => get(stream, &name, "/status").await,
                    Err(error) => Err(Error::failed("no TLS with the shim").because(error)),
                }
            }
        };
        match answer {
            Ok(reply) => Ok(reply),
            Err(error) => Err(failure.explain(error).await),
        }
    }

    /// A stream to a port of a pod's loopback: kubelet dials it inside the pod.
    pub(super) async fn forward(
        &self,
        pod: &str,
        port: u16,
    ) -> Result<(DuplexStream, Failure), Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = || format!("cannot forward to port {port} of pod {pod}");
        let forwarder = pods.portforward(pod, &[port]).await;
        let mut forwarder = forwarder.map_err(|error| cluster::refused(what(), error))?;
        let stream = forwarder.take_stream(port).ok_or_else(|| Error::failed(what()))?;
        let words = forwarder.take_error(port).map(|words| Box::pin(words) as _);
        Ok((stream, Failure { words }))
    }

    fn selector(&self) -> String {
        let pairs: Vec<String> = self.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        pairs.join(",")
    }

    fn covers(&self, template: &PodTemplateSpec) -> bool {
        let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
        labels.is_some_and(|labels| self.labels.iter().all(|(k, v)| labels.get(k) == Some(v)))
    }
}

impl Direct {
    async fn ask(&self, replica: &Replica, port: u16) -> Result<Reply, Error> {
        let ip: Option<IpAddr> = replica.ip.as_ref().and_then(|ip| ip.parse().ok());
        let ip = ip.ok_or_else(|| Error::failed("the pod has no address yet"))?;
        let server = ServerName::try_from(self.server.clone()).map_err(|error| {
            Error::failed(format!("{:?} is no name of a server", self.server)).because(error)
        })?;
        let stream = TcpStream::connect((ip, port)).await.map_err(|error| {
            Error::failed(format!("cannot connect to the shim at port {port}")).because(error)
        })?;
        let stream = TlsConnector::from(self.tls.clone()).connect(server, stream).await;
        let stream =
            stream.map_err(|error| Error::failed("no TLS with the shim").because(error))?;
        get(stream, &self.server, "/status").await
    }
}

/// What kubelet says if the port cannot be reached.
pub(super) struct Failure {
    words: Option<std::pin::Pin<Box<dyn Future<Output = Option<String>> + Send>>>,
}

impl Failure {
    /// The error with kubelet's words, if there are any.
    pub(super) async fn explain(self, error: Error) -> Error {
        let Some(words) = self.words else { return error };
        match tokio::time::timeout(LAST_WORDS, words).await {
            Ok(Some(words)) => Error::failed(words.trim().to_owned()),
            _ => error,
        }
    }
}

/// `None` if nothing runs in the pod any more.
fn replica(pod: &Pod, container: &str) -> Option<Replica> {
    let name = pod.metadata.name.clone()?;
    let ending = pod.metadata.deletion_timestamp.is_some();
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    if matches!(phase, "Failed" | "Succeeded") {
        return None;
    }
    let states = status.and_then(|status| status.container_statuses.as_ref());
    let server = states.into_iter().flatten().find(|state| state.name == container);
    let ended = server.is_some_and(|server| {
        server.state.as_ref().is_some_and(|state| state.terminated.is_some())
    });
    if ending && ended {
        return None;
    }
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten().chain(&spec.containers);
    let has_shim = sidecars.into_iter().any(|one| one.name == SHIM_CONTAINER);
    let ip = status.and_then(|status| status.pod_ip.clone());
    let trouble = match (has_shim, phase) {
        (false, _) => Some(format!("the pod has no container {SHIM_CONTAINER}")),
        // A native sidecar runs while the pod is Pending; it has an address by then.
        (true, "Pending") if ip.is_none() => Some("the pod is Pending".to_owned()),
        _ => None,
    };
    Some(Replica { name, uid: pod.metadata.uid.clone(), ending, ip, trouble })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value, status: Value, deleted: bool) -> Pod {
        let mut metadata = json!({"name": "kas-0"});
        if deleted {
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
            .unwrap()
    }

    fn with_shim() -> Value {
        json!({
            "initContainers": [{"name": SHIM_CONTAINER}],
            "containers": [{"name": "kube-apiserver"}],
        })
    }

    #[test]
    fn a_deleted_pod_counts_until_its_kube_apiserver_has_ended() {
        let state = |state: Value| {
            json!({"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [{
                "name": "kube-apiserver", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "state": state,
            }]})
        };
        let running = state(json!({"running": {}}));
        let found = replica(&pod(with_shim(), running, true), "kube-apiserver").unwrap();
        assert!(found.ending && found.trouble.is_none());
        let over = || state(json!({"terminated": {"exitCode": 0}}));
        assert_eq!(replica(&pod(with_shim(), over(), true), "kube-apiserver"), None);
        // It will be started again: it counts.
        assert!(replica(&pod(with_shim(), over(), false), "kube-apiserver").is_some());
        let failed = json!({"phase": "Failed"});
        assert_eq!(replica(&pod(with_shim(), failed, false), "kube-apiserver"), None);
    }

    #[test]
    fn a_pod_without_shim_or_address_is_reported_not_dropped() {
        let bare = json!({"containers": [{"name": "kube-apiserver"}]});
        let found = replica(&pod(bare, json!({"phase": "Running"}), false), "kube-apiserver");
        assert!(found.unwrap().trouble.unwrap().contains("no container"));
        let pending = json!({"phase": "Pending"});
        let found = replica(&pod(with_shim(), pending, false), "kube-apiserver").unwrap();
        assert_eq!(found.trouble.as_deref(), Some("the pod is Pending"));
    }
}
