//! Objects of a cluster: applied as manifests, waited for, looked at.

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::kube::{Kind, KubeClient};
use crate::wait::{LONG_PATIENCE, PATIENCE, eventually};

/// Who owns the fields that tests apply.
const MANAGER: &str = "sidekey-e2e";

/// A pod, as kube-apiserver shows it.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What tells it from a pod of the same name before or after it.
    pub uid: String,
    /// Its own address, once it has one.
    pub address: Option<std::net::Ipv4Addr>,
    /// Whether all its readiness gates and containers are ready.
    pub ready: bool,
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub phase: String,
    /// Whether it is being deleted.
    pub ending: bool,
    /// Its containers, sidecars and other init containers first.
    pub containers: Vec<Container>,
    /// All of it.
    pub object: Value,
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its name in the pod.
    pub name: String,
    /// The runtime's id of its present run, empty before the first.
    pub id: String,
    /// How often it was started again.
    pub restarts: u64,
    /// Whether it is ready.
    pub ready: bool,
    /// Why it does not run, or `running`.
    pub state: String,
}

impl Pod {
    /// From the object that kube-apiserver gives.
    pub fn parse(object: Value) -> Result<Self> {
        let text = |pointer: &str| {
            object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let status = &object["status"];
        let statuses = ["initContainerStatuses", "containerStatuses"];
        let containers = statuses.iter().flat_map(|list| status[*list].as_array()).flatten();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let ready =
            |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        let pod = Self {
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            address: text("/status/podIP").parse().ok(),
            ready: conditions.into_iter().any(ready),
            phase: text("/status/phase"),
            ending: object["metadata"]["deletionTimestamp"].is_string(),
            containers: containers.map(Container::parse).collect(),
            object,
        };
        ensure!(!pod.uid.is_empty(), "not a pod: {}", pod.object);
        Ok(pod)
    }

    /// One of its containers.
    pub fn container(&self, name: &str) -> Result<&Container> {
        let found = self.containers.iter().find(|container| container.name == name);
        found.with_context(|| format!("{} has no container {name}", self.summary()))
    }

    /// How often any of its containers was started again.
    pub fn restarts(&self) -> u64 {
        self.containers.iter().map(|container| container.restarts).sum()
    }

    /// What is going on with it, in one line.
    pub fn summary(&self) -> String {
        let states: Vec<String> = self
            .containers
            .iter()
            .map(|container| format!("{} {}", container.name, container.state))
            .collect();
        let (namespace, name, phase) = (&self.namespace, &self.name, &self.phase);
        format!("pod {namespace}/{name} {phase}: {}", states.join(", "))
    }
}

impl Container {
    fn parse(status: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let id = text(&status["containerID"]);
        let state = match status["state"].as_object().and_then(|state| state.iter().next()) {
            Some((kind, _)) if kind == "running" => kind.clone(),
            Some((kind, why)) => {
                let code = why["exitCode"].as_i64().map(|code| format!(" {code}"));
                let parts = [&why["reason"], &why["message"]].map(text);
                format!("{kind}{} {}", code.unwrap_or_default(), parts.join(" "))
            }
            None => "unknown".to_owned(),
        };
        Self {
            name: text(&status["name"]),
            id: id.rsplit('/').next().unwrap_or_default().to_owned(),
            restarts: status["restartCount"].as_u64().unwrap_or_default(),
            ready: status["ready"] == true,
            state,
        }
    }
}

/// The objects of a YAML or JSON manifest, documents and Lists taken apart.
pub fn manifest(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("not a manifest")?;
    let mut objects = Vec::new();
    for document in documents {
        match document["items"].as_array() {
            Some(items) if document["kind"] == "List" => objects.extend(items.iter().cloned()),
            _ if document.is_null() => {}
            _ => objects.push(document),
        }
    }
    Ok(objects)
}

impl KubeClient {
    /// Applies a manifest on the server's side, as `kubectl apply --server-side` does.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        let path = self.path_of(object).await?;
        let path = format!("{path}?fieldManager={MANAGER}&force=true");
        self.send_as(Method::PATCH, &path, "application/apply-patch+yaml", object).await
    }

    /// Applies all objects of a YAML or JSON text, one after the other.
    pub async fn apply_text(&self, text: &str) -> Result<()> {
        for object in manifest(text)? {
            self.apply(&object).await?;
        }
        Ok(())
    }

    /// Merges `patch` into the object at `path`.
    pub async fn merge(&self, path: &str, patch: &Value) -> Result<Value> {
        self.send_as(Method::PATCH, path, "application/merge-patch+json", patch).await
    }

    /// Changes some keys of a Secret and leaves the others as they are.
    pub async fn patch_secret(
        &self,
        namespace: &str,
        name: &str,
        data: &[(&str, &str)],
    ) -> Result<()> {
        let data: Map<String, Value> = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), STANDARD.encode(text).into()))
            .collect();
        let path = format!("/api/v1/namespaces/{namespace}/{}/{name}", Kind::Secret.plural());
        self.merge(&path, &json!({"data": data})).await?;
        Ok(())
    }

    /// Deletes the object that a manifest describes.
    pub async fn remove(&self, object: &Value) -> Result<()> {
        let path = self.path_of(object).await?;
        self.send(Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// The pods of a namespace that have these labels, such as `app=web`.
    pub async fn pods(&self, namespace: &str, labels: &str) -> Result<Vec<Pod>> {
        let labels = labels.replace('=', "%3D").replace(',', "%2C");
        let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector={labels}");
        let mut list = self.get(&path).await?;
        let items = list["items"].as_array_mut().context("a list without items")?;
        std::mem::take(items).into_iter().map(Pod::parse).collect()
    }

    /// One pod.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Pod> {
        Pod::parse(self.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}")).await?)
    }

    /// Deletes a pod; kubelet then ends it as its manifest says.
    pub async fn delete_pod(&self, pod: &Pod) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        self.send(Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// Waits until a pod is ready.
    pub async fn wait_pod_ready(&self, namespace: &str, name: &str) -> Result<Pod> {
        eventually(format!("pod {namespace}/{name} is ready"), PATIENCE, async || {
            let pod = self.pod(namespace, name).await?;
            if !pod.ready || pod.ending {
                bail!("{}; {}", pod.summary(), self.last_event(namespace, name).await);
            }
            Ok(pod)
        })
        .await
    }

    /// Waits until all containers of a pod that is not to be restarted have
    /// ended, and fails if they did so badly.
    pub async fn wait_pod_succeeded(&self, namespace: &str, name: &str) -> Result<Pod> {
        let pod = eventually(format!("pod {namespace}/{name} has ended"), PATIENCE, async || {
            let pod = self.pod(namespace, name).await?;
            if pod.phase != "Succeeded" && pod.phase != "Failed" {
                bail!("{}; {}", pod.summary(), self.last_event(namespace, name).await);
            }
            Ok(pod)
        });
        let pod = pod.await?;
        ensure!(pod.phase == "Succeeded", "{}", pod.summary());
        Ok(pod)
    }

    /// Waits until a pod is gone, or another one has its name.
    pub async fn wait_pod_gone(&self, pod: &Pod) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        let what = format!("pod {}/{} is gone", pod.namespace, pod.name);
        // A kube-apiserver serves on for more than a minute after it was told to end.
        eventually(what, LONG_PATIENCE, async || {
            let answer = self.raw(&path).await?;
            if answer.status == 404 {
                return Ok(());
            }
            let now = Pod::parse(answer.ok()?.json()?)?;
            ensure!(now.uid != pod.uid, "{}", now.summary());
            Ok(())
        })
        .await
    }

    /// Waits until a Deployment has rolled out: all replicas are of its present
    /// form and available, and no old pod is left. Gives its pods.
    pub async fn wait_deployment(&self, namespace: &str, name: &str) -> Result<Vec<Pod>> {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
        let what = format!("deployment {namespace}/{name} is rolled out");
        eventually(what, LONG_PATIENCE, async || {
            let object = self.get(&path).await?;
            let labels = labels(&object["spec"]["selector"]["matchLabels"]);
            let pods = self.pods(namespace, &labels).await?;
            let wanted = object["spec"]["replicas"].as_u64();
            let count = |field: &str| Some(object["status"][field].as_u64().unwrap_or_default());
            let seen = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
            let rolled = counts.iter().all(|field| count(field) == wanted);
            if !seen || !rolled || Some(pods.len() as u64) != wanted {
                let states: Vec<String> = pods.iter().map(Pod::summary).collect();
                let first = pods.first().map_or(name, |pod| &pod.name).to_owned();
                let event = self.last_event(namespace, &first).await;
                bail!("{}; {}; {event}", object["status"], states.join("; "));
            }
            Ok(pods)
        })
        .await
    }

    /// What was last reported about an object, for messages.
    async fn last_event(&self, namespace: &str, name: &str) -> String {
        let selector = format!("involvedObject.name%3D{name}");
        let path = format!("/api/v1/namespaces/{namespace}/events?fieldSelector={selector}");
        let Ok(list) = self.get(&path).await else { return String::new() };
        let events = list["items"].as_array().into_iter().flatten();
        let warnings = events.filter(|event| event["type"] == "Warning");
        let last = warnings.max_by_key(|event| event["lastTimestamp"].to_string());
        last.map_or(String::new(), |event| format!("{}: {}", event["reason"], event["message"]))
    }

    /// Where an object lives, as the server's own list of kinds says.
    async fn path_of(&self, object: &Value) -> Result<String> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let version = text("/apiVersion").context("a manifest without apiVersion")?;
        let kind = text("/kind").context("a manifest without kind")?;
        let name = text("/metadata/name").context("a manifest without a name")?;
        let root = if version.contains('/') { "/apis" } else { "/api" };
        let list = self.get(&format!("{root}/{version}")).await?;
        let mut kinds = list["resources"].as_array().into_iter().flatten();
        // Subresources, such as pods/eviction, have kinds too.
        let found = kinds.find(|known| {
            known["kind"] == kind && known["name"].as_str().is_some_and(|name| !name.contains('/'))
        });
        let found = found.with_context(|| format!("{} knows no {version} {kind}", self.name()))?;
        let plural = found["name"].as_str().context("a kind without a name")?;
        if found["namespaced"] == true {
            let namespace = text("/metadata/namespace").unwrap_or("default");
            return Ok(format!("{root}/{version}/namespaces/{namespace}/{plural}/{name}"));
        }
        Ok(format!("{root}/{version}/{plural}/{name}"))
    }
}

fn labels(wanted: &Value) -> String {
    let pairs = wanted.as_object().into_iter().flatten();
    let pairs = pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    pairs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_manifest_is_taken_apart() {
        let text = "kind: A\n---\n---\nkind: List\nitems:\n- kind: B\n- {kind: C}\n";
        let kinds: Vec<Value> =
            manifest(text).unwrap().iter().map(|object| object["kind"].clone()).collect();
        assert_eq!(kinds, ["A", "B", "C"]);
    }
}
