//! What there is of a kube-apiserver: its pods, and what makes them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::TypeMeta;
use serde_json::Value;

use crate::Error;
use crate::cluster::refused;
use crate::model::{ControlPlane, SecretEncryption};

/// The container of the shim.
const SHIM: &str = crate::fleet::SHIM_CONTAINER;
/// Before the name of each of our sidecars.
const OURS: &str = "sidekey-";
/// What a container waits for that does not come by waiting.
const HOPELESS: [&str; 8] = [
    "CrashLoopBackOff",
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// The pods of a kube-apiserver, and what makes them.
#[derive(Clone, Debug, Default)]
pub(in crate::operator) struct Plane {
    pub(in crate::operator) workloads: Vec<Workload>,
    pub(in crate::operator) pods: Vec<Member>,
}

/// A Deployment or a StatefulSet, as the API server gave it.
#[derive(Clone, Debug)]
pub(in crate::operator) struct Workload {
    pub(super) resource: ApiResource,
    /// All of it.
    pub(super) document: Value,
}

/// A pod, as the API server gave it.
#[derive(Clone, Debug)]
pub(in crate::operator) struct Member {
    document: Value,
}

/// The namespace of a control plane.
pub(in crate::operator) fn namespace(encryption: &SecretEncryption) -> Result<&str, Error> {
    encryption.namespace.as_deref().ok_or_else(|| {
        Error::usage(format!("SecretEncryption {} has no namespace", encryption.name))
    })
}

impl Plane {
    /// Reads what is there now.
    pub(in crate::operator) async fn read(
        client: &Client,
        encryption: &SecretEncryption,
    ) -> Result<Self, Error> {
        let namespace = namespace(encryption)?;
        let plane = &encryption.spec.control_plane;
        let mut workloads = workloads(client, namespace).await?;
        workloads.retain(|workload| workload.is_of(plane));
        let selector: Vec<String> =
            plane.selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let labels = ListParams::default().labels(&selector.join(","));
        let mut pods = pods(client, namespace, &labels).await?;
        pods.retain(|pod| pod.has_container(&plane.container));
        Ok(Self { workloads, pods })
    }

    /// How many pods there should be.
    pub(super) fn wanted(&self) -> usize {
        self.workloads.iter().map(Workload::replicas).sum()
    }
}

/// Every Deployment and StatefulSet of a namespace.
pub(super) async fn workloads(client: &Client, namespace: &str) -> Result<Vec<Workload>, Error> {
    let mut all = Vec::new();
    for resource in [ApiResource::erase::<Deployment>(&()), ApiResource::erase::<StatefulSet>(&())]
    {
        let found = list(client, namespace, &resource, &ListParams::default()).await?;
        all.extend(found.into_iter().map(|document| {
            let resource = resource.clone();
            Workload { resource, document }
        }));
    }
    Ok(all)
}

/// Pods in which something runs, is to run, or runs still.
pub(in crate::operator) async fn pods(
    client: &Client,
    namespace: &str,
    which: &ListParams,
) -> Result<Vec<Member>, Error> {
    let resource = ApiResource::erase::<Pod>(&());
    let found = list(client, namespace, &resource, which).await?;
    let pods = found.into_iter().map(|document| Member { document });
    Ok(pods.filter(|pod| !pod.is_over()).collect())
}

/// As they are written: what a newer API server knows of them must not be lost.
async fn list(
    client: &Client,
    namespace: &str,
    resource: &ApiResource,
    which: &ListParams,
) -> Result<Vec<Value>, Error> {
    let what = || format!("cannot list the {} of {namespace}", resource.plural);
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    let list = api.list(which).await.map_err(|error| refused(what(), error))?;
    let documents = list.items.into_iter().map(|mut object| {
        // Items of a list do not say their kind.
        let (api_version, kind) = (resource.api_version.clone(), resource.kind.clone());
        object.types = Some(TypeMeta { api_version, kind });
        object.metadata.managed_fields = None;
        serde_json::to_value(object)
    });
    let documents: Result<Vec<Value>, _> = documents.collect();
    documents.map_err(|error| Error::failed(what()).because(error))
}

impl Workload {
    pub(super) fn name(&self) -> &str {
        text(&self.document, "/metadata/name")
    }

    /// Kind and name.
    pub(in crate::operator) fn title(&self) -> String {
        format!("{} {}", self.resource.kind, self.name())
    }

    pub(in crate::operator) fn pod_spec(&self) -> &Value {
        &self.document["spec"]["template"]["spec"]
    }

    pub(super) fn annotations(&self) -> BTreeMap<String, String> {
        texts(&self.document["spec"]["template"]["metadata"]["annotations"])
    }

    fn replicas(&self) -> usize {
        let replicas = self.document["spec"]["replicas"].as_u64().unwrap_or(1);
        usize::try_from(replicas).unwrap_or(usize::MAX)
    }

    /// Whether it makes the pods of this kube-apiserver.
    fn is_of(&self, plane: &ControlPlane) -> bool {
        let labels = texts(&self.document["spec"]["template"]["metadata"]["labels"]);
        let covered = plane.selector.iter().all(|(key, value)| labels.get(key) == Some(value));
        covered && has(self.pod_spec(), "containers", &plane.container)
    }

    /// Why its pods are not all of its newest template, if they are not. Whether they are ready
    /// is for the pods to say.
    pub(super) fn unsettled(&self) -> Option<String> {
        let title = self.title();
        let (spec, status) = (&self.document["spec"], &self.document["status"]);
        let generation = self.document["metadata"]["generation"].as_u64().unwrap_or(0);
        if status["observedGeneration"].as_u64().unwrap_or(0) < generation {
            return Some(format!("{title} has a change that nobody has taken up yet"));
        }
        let count = |name: &str| status[name].as_u64().unwrap_or(0);
        let wanted = self.replicas() as u64;
        let (updated, all) = (count("updatedReplicas"), count("replicas"));
        if updated >= wanted && all <= updated {
            return None;
        }
        let advice = if spec["paused"] == true {
            "; it is paused: kubectl rollout resume"
        } else if spec["updateStrategy"]["type"] == "OnDelete" {
            "; it replaces no pod by itself (OnDelete): delete them one after the other"
        } else if spec["updateStrategy"]["rollingUpdate"]["partition"].as_u64().unwrap_or(0) > 0 {
            "; its partition holds some back: set it to 0"
        } else {
            ""
        };
        Some(format!("{title}: {updated} of {wanted} pods are of its newest form{advice}"))
    }

    /// Whether its own controller has given up on the roll-out under way.
    pub(super) fn gave_up(&self) -> bool {
        let conditions = self.document["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|condition| {
            condition["type"] == "Progressing" && condition["reason"] == "ProgressDeadlineExceeded"
        })
    }
}

impl Member {
    pub(super) fn name(&self) -> &str {
        text(&self.document, "/metadata/name")
    }

    /// As people call it.
    pub(in crate::operator) fn title(&self) -> String {
        format!("pod {}", self.name())
    }

    pub(super) fn uid(&self) -> &str {
        text(&self.document, "/metadata/uid")
    }

    /// When it was made; later ones sort later.
    pub(super) fn created(&self) -> &str {
        text(&self.document, "/metadata/creationTimestamp")
    }

    pub(in crate::operator) fn is_ending(&self) -> bool {
        !self.document["metadata"]["deletionTimestamp"].is_null()
    }

    pub(in crate::operator) fn spec(&self) -> &Value {
        &self.document["spec"]
    }

    pub(super) fn annotations(&self) -> BTreeMap<String, String> {
        texts(&self.document["metadata"]["annotations"])
    }

    /// Whether a node runs it by itself, and the API server only shows it.
    pub(in crate::operator) fn is_mirror(&self) -> bool {
        self.annotations().contains_key("kubernetes.io/config.mirror")
    }

    /// Its addresses, and its node's.
    pub(in crate::operator) fn addresses(&self) -> Vec<&str> {
        let status = &self.document["status"];
        let more = status["podIPs"].as_array().into_iter().flatten().map(|ip| &ip["ip"]);
        let all = [&status["podIP"], &status["hostIP"]].into_iter().chain(more);
        all.filter_map(Value::as_str).collect()
    }

    pub(super) fn has_shim(&self) -> bool {
        has(self.spec(), "initContainers", SHIM) || self.has_container(SHIM)
    }

    pub(super) fn has_container(&self, name: &str) -> bool {
        has(self.spec(), "containers", name)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready["status"] == "True")
    }

    /// Why it does not serve as it should, if it does not.
    pub(in crate::operator) fn trouble(&self) -> Option<String> {
        let title = self.title();
        if self.is_ending() {
            return Some(format!("{title} is ending"));
        }
        if self.is_ready() {
            return None;
        }
        if let Some((container, reason, message)) = self.hopeless().next() {
            let message = if message.is_empty() { String::new() } else { format!(": {message}") };
            return Some(format!("{title} is not ready: {container}: {reason}{message}"));
        }
        let scheduled = self.condition("PodScheduled").filter(|one| one["status"] == "False");
        match scheduled.and_then(|one| one["message"].as_str()) {
            Some(message) => Some(format!("{title} has no node: {message}")),
            None => Some(format!("{title} is not ready")),
        }
    }

    /// Whether one of our sidecars will not start as it is.
    pub(super) fn is_stuck(&self) -> bool {
        self.hopeless().any(|(container, ..)| container.starts_with(OURS))
    }

    /// Containers that wait for what does not come: name, reason and message.
    fn hopeless(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let lists = ["initContainerStatuses", "containerStatuses"];
        let all = lists.into_iter().filter_map(|list| self.document["status"][list].as_array());
        all.flatten().filter_map(|status| {
            let waiting = &status["state"]["waiting"];
            let reason = waiting["reason"].as_str().filter(|reason| HOPELESS.contains(reason))?;
            Some((text(status, "/name"), reason, text(waiting, "/message")))
        })
    }

    fn condition(&self, kind: &str) -> Option<&Value> {
        let conditions = self.document["status"]["conditions"].as_array()?;
        conditions.iter().find(|condition| condition["type"] == kind)
    }

    fn is_over(&self) -> bool {
        matches!(text(&self.document, "/status/phase"), "Failed" | "Succeeded")
    }
}

fn has(spec: &Value, list: &str, name: &str) -> bool {
    spec[list].as_array().into_iter().flatten().any(|item| item["name"] == name)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn texts(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}
