//! Putting the operator on a cluster, as users do.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use hyper::Method;
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::task::JoinHandle;

use super::shared::runtime;
use super::{CLUSTERS, IMAGES, Managed, Management, OPERATOR, TOKEN};
use crate::cluster::manifest;
use crate::hosted::{Hosted, load_servers};
use crate::images::{self, Image};
use crate::wait::{LONG_PATIENCE, PATIENCE, Pace, eventually};
use crate::{Cluster, KubeClient, Scratch, golang};

/// The kustomize base under test.
const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kustomize");
/// Schemas of HyperShift's and OpenShift's objects, of the fields that count here.
const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");

/// A control plane with nothing to do is looked at so often.
const POLL: &str = "2s";
/// So far apart are the two counts of a census, in the place of minutes.
const CENSUS_APART: &str = "2s";
/// An ending kube-apiserver serves on for so long: on a busy machine it takes a while until no
/// request is led to it any more.
const DELAY: Duration = Duration::from_secs(30);
/// The same where nobody leads requests to whoever is ready.
const UNBALANCED_DELAY: Duration = Duration::from_secs(5);

impl Management {
    /// A cluster with the operator on it, as it is shipped: two of them.
    pub(super) async fn start(name: &str) -> Result<Self> {
        let scratch = Scratch::new(&format!("{name}-images"))?;
        let images = images::ready(&IMAGES, scratch.path());
        let (cluster, built) = tokio::try_join!(Cluster::start(name), images)?;
        for image in &built {
            cluster.load_image(&image.archive).await?;
        }
        load_servers(&cluster).await?;
        let names: Vec<(&str, &Image)> = IMAGES.into_iter().zip(&built).collect();
        let image = |wanted: &str| {
            let found = names.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, image)| image.reference.clone()).unwrap_or_default()
        };
        let images = [image("aws"), image("shim")];
        let kubectl = kubectl().await?;
        let dir = cluster.ground().plane().scratch.subdir("operator")?;
        crds(cluster.client()).await?;
        let metadata = json!({"name": CLUSTERS});
        let clusters = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        cluster.client().apply(&clusters).await?;
        let (calm, leaving, cluster) = (RwLock::new(()), Mutex::default(), Arc::new(cluster));
        let management = Self { dir, images, kubectl, calm, leaving, cluster };
        let overlay = management.overlay(&names)?;
        management.run_kubectl(&["apply", "-k", &overlay.display().to_string()]).await?;
        management.wait_operator().await?;
        Ok(management)
    }

    /// The base, and what differs here: images that are there already, and shorter times.
    fn overlay(&self, images: &[(&str, &Image)]) -> Result<PathBuf> {
        let (base, overlay) = (self.dir.join("base"), self.dir.join("overlay"));
        copy(Path::new(BASE), &base)?;
        std::fs::create_dir_all(&overlay)?;
        let own = images.iter().find(|(name, _)| *name == "operator");
        let own = &own.context("there is no image of the operator")?.1.reference;
        let mut arguments =
            vec![format!("--poll={POLL}"), format!("--census-apart-for-tests={CENSUS_APART}")];
        for (name, image) in images.iter().filter(|(name, _)| *name != "operator") {
            arguments.push(format!("--image={name}={}", image.reference));
        }
        let file = kustomization(own, &arguments);
        std::fs::write(overlay.join("kustomization.yaml"), file.to_string())?;
        Ok(overlay)
    }

    fn leaving(&self) -> MutexGuard<'_, HashMap<String, JoinHandle<()>>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs kubectl as the cluster's administrator, and gives what it printed.
    pub(super) async fn run_kubectl(&self, args: &[&str]) -> Result<String> {
        let what = || format!("kubectl {}", args.join(" "));
        let ran = tokio::process::Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(what)?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "{}: {}\n{}", what(), ran.status, said.trim());
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }
}

impl Managed {
    /// A hosted control plane of two kube-apiservers that encrypts nothing yet, on the management
    /// cluster of this process: where the control plane of a HostedCluster of this name is.
    pub async fn start(name: &str) -> Result<Self> {
        Self::start_in(&format!("{CLUSTERS}-{name}"), name).await
    }

    /// The same for those whose load is on the pods themselves, none of which ends under it.
    pub async fn start_unbalanced(name: &str) -> Result<Self> {
        Self::start_with(&format!("{CLUSTERS}-{name}"), name, UNBALANCED_DELAY).await
    }

    /// The same in another namespace; `name` is that of its SecretEncryption.
    pub async fn start_in(namespace: &str, name: &str) -> Result<Self> {
        Self::start_with(namespace, name, DELAY).await
    }

    async fn start_with(namespace: &str, name: &str, delay: Duration) -> Result<Self> {
        let management = Management::shared().await?;
        let before = management.leaving().remove(namespace);
        if let Some(before) = before {
            before.await?;
        }
        let cluster = Arc::clone(&management.cluster);
        let hosted = Hosted::on(cluster, namespace, management.images.clone(), TOKEN).await?;
        let dir = management.dir.join(namespace);
        std::fs::create_dir_all(&dir)?;
        let plane = (namespace.to_owned(), name.to_owned());
        let managed = Self { dir, plane, hosted, management };
        managed.prepare(delay).await?;
        Ok(managed)
    }

    /// What HyperShift would have made by now.
    async fn prepare(&self, delay: Duration) -> Result<()> {
        let hosted = &self.hosted;
        hosted.secure_etcd().await?;
        for (secret, host) in [
            ("service-network-admin-kubeconfig", "kube-apiserver"),
            ("localhost-kubeconfig", "localhost"),
        ] {
            let kubeconfig = [("kubeconfig", hosted.kubeconfig_at(host))];
            hosted.put_secret(secret, &kubeconfig).await?;
        }
        hosted.roll_out_as(&hosted.bare_for_operator(delay)?).await?;
        hosted.wait_usable().await
    }

    /// Runs kubectl as the cluster's administrator, and gives what it printed.
    pub async fn run_kubectl(&self, args: &[&str]) -> Result<String> {
        self.management.run_kubectl(args).await
    }

    /// Has what others edit and the namespace deleted: nobody waits for it but whoever comes after.
    pub(super) fn remove(&self) {
        let (client, namespace) = (self.hosted.cluster.client().clone(), self.namespace());
        let mut paths = self.fronts();
        let own = format!("/api/v1/namespaces/{namespace}");
        paths.push(own.clone());
        let work = async move {
            for path in paths {
                // Most of them are not there; and what is left goes with the cluster.
                let _ = client.send(Method::DELETE, &path, None).await;
            }
            let mut pace = Pace::new(LONG_PATIENCE);
            while client.raw(&own).await.is_ok_and(|answer| answer.status != 404) {
                // In vain, whoever comes after sees that it is still there.
                if pace.next(&own, anyhow!("it is there")).await.is_err() {
                    break;
                }
            }
        };
        if let Ok(runtime) = runtime() {
            self.management.leaving().insert(namespace.to_owned(), runtime.spawn(work));
        }
    }
}

/// kubectl with kustomize in it: built from Go modules once, so that any machine has it.
pub async fn kubectl() -> Result<PathBuf> {
    golang::KUBECTL.build_async().await
}

/// Makes HyperShift's and OpenShift's kinds known to a cluster.
pub async fn crds(client: &KubeClient) -> Result<()> {
    let list = || format!("cannot list {CRDS}");
    let entries = std::fs::read_dir(CRDS).with_context(list)?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        for object in manifest(&text)? {
            client.apply(&object).await.with_context(|| file.display().to_string())?;
            established(client, &object).await?;
        }
    }
    Ok(())
}

/// Waits until objects of the kind can be made.
pub(super) async fn established(client: &KubeClient, crd: &Value) -> Result<()> {
    let name = crd["metadata"]["name"].as_str().context("a CRD without a name")?;
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
    eventually(format!("{name} is established"), PATIENCE, async || {
        let now = client.get(&path).await?;
        let mut conditions = now["status"]["conditions"].as_array().into_iter().flatten();
        let good = |one: &Value| one["type"] == "Established" && one["status"] == "True";
        ensure!(conditions.any(good), "{}", now["status"]);
        Ok(())
    })
    .await
}

fn kustomization(image: &str, arguments: &[String]) -> Value {
    let (name, tag) = image.rsplit_once(':').unwrap_or((image, "latest"));
    let container = "/spec/template/spec/containers/0";
    let patch = json!([
        {"op": "add", "path": format!("{container}/args"), "value": arguments},
        {"op": "add", "path": format!("{container}/imagePullPolicy"), "value": "Never"},
    ]);
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../base"],
        "images": [{"name": "localhost/sidekey-operator", "newName": name, "newTag": tag}],
        "patches": [{
            "target": {"kind": "Deployment", "name": OPERATOR},
            "patch": patch.to_string(),
        }],
    })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    let list = || format!("cannot list {}", from.display());
    for entry in std::fs::read_dir(from).with_context(list)? {
        let entry = entry?;
        if entry.path().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))
                .with_context(|| format!("cannot copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn the_overlay_names_the_image_and_the_arguments() {
        let arguments = ["--poll=2s".to_owned()];
        let file = kustomization("localhost/x/sidekey-operator:7", &arguments);
        assert_eq!(file["images"][0]["newName"], "localhost/x/sidekey-operator");
        assert_eq!(file["images"][0]["newTag"], "7");
        let patch: Value =
            serde_json::from_str(file["patches"][0]["patch"].as_str().unwrap()).unwrap();
        assert_eq!(patch[0]["value"][0], "--poll=2s");
        assert_eq!(patch[1]["value"], "Never");
    }

    #[test]
    fn the_image_that_the_overlay_replaces_is_that_of_the_base() {
        let base = std::fs::read_to_string(format!("{BASE}/deployment.yaml")).unwrap();
        assert!(base.contains("image: localhost/sidekey-operator:"), "{base}");
        let first = manifest(&base).unwrap().remove(0);
        let containers = &first["spec"]["template"]["spec"]["containers"];
        assert_eq!(first["metadata"]["name"], OPERATOR);
        assert_eq!(containers.as_array().unwrap().len(), 1, "{containers}");
        assert!(containers[0]["args"].is_null(), "the overlay would replace {containers}");
    }
}
