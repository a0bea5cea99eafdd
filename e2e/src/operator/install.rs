//! Putting the operator on a cluster, as users do.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{CLUSTERS, IMAGES, Managed, OPERATOR, OPERATOR_NAMESPACE, Options, TOKEN};
use crate::cluster::manifest;
use crate::hosted::Hosted;
use crate::images::{self, Image};
use crate::wait::{PATIENCE, eventually};
use crate::{Cluster, KubeClient, Scratch, golang};

/// The kustomize base under test.
const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kustomize");
/// Schemas of HyperShift's and OpenShift's objects, of the fields that count here.
const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");

/// A control plane with nothing to do is looked at so often.
const POLL: &str = "2s";
/// So far apart are the two counts of a census, in the place of minutes.
const CENSUS_APART: &str = "2s";

impl Managed {
    /// A cluster with the operator on it, and a hosted control plane of two kube-apiservers that
    /// encrypts nothing yet.
    pub async fn start(name: &str, options: Options) -> Result<Self> {
        let scratch = Scratch::new(&format!("{name}-images"))?;
        let folders: Vec<&str> = IMAGES.iter().chain(&options.vendors).copied().collect();
        let images = images::ready(&folders, scratch.path());
        let (cluster, built) = tokio::try_join!(Cluster::start(name), images)?;
        for image in &built {
            cluster.load_image(&image.archive).await?;
        }
        let names: Vec<(&str, &Image)> = folders.into_iter().zip(&built).collect();
        let image = |wanted: &str| {
            let found = names.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, image)| image.reference.clone()).unwrap_or_default()
        };
        let kubectl = kubectl().await?;
        let dir = cluster.ground().plane().scratch.subdir("operator")?;
        crds(cluster.client()).await?;
        let (namespace, _) = options.plane;
        let hosted = Hosted::on(cluster, namespace, [image("aws"), image("shim")], TOKEN).await?;
        let managed = Self { dir, plane: options.plane, kubectl, hosted };
        managed.prepare().await?;
        let overlay = managed.overlay(&names, &options)?;
        managed.run_kubectl(&["apply", "-k", &overlay.display().to_string()]).await?;
        managed.wait_operator().await?;
        Ok(managed)
    }

    /// What HyperShift would have made by now.
    async fn prepare(&self) -> Result<()> {
        let hosted = &self.hosted;
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLUSTERS}});
        hosted.cluster.client().apply(&namespace).await?;
        hosted.secure_etcd().await?;
        for (secret, host) in [
            ("service-network-admin-kubeconfig", "kube-apiserver"),
            ("localhost-kubeconfig", "localhost"),
        ] {
            let kubeconfig = [("kubeconfig", hosted.kubeconfig_at(host))];
            hosted.put_secret(secret, &kubeconfig).await?;
        }
        hosted.roll_out_as(&hosted.bare_for_operator()?).await?;
        hosted.wait_usable().await
    }

    /// The base, and what differs here: images that are there already, and shorter times.
    fn overlay(&self, images: &[(&str, &Image)], options: &Options) -> Result<PathBuf> {
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
        arguments.extend(options.arguments.iter().cloned());
        let file = kustomization(own, options.replicas, &arguments);
        std::fs::write(overlay.join("kustomization.yaml"), file.to_string())?;
        Ok(overlay)
    }

    /// Runs kubectl as the cluster's administrator, and gives what it printed.
    pub async fn run_kubectl(&self, args: &[&str]) -> Result<String> {
        let what = || format!("kubectl {}", args.join(" "));
        let ran = tokio::process::Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(self.hosted.cluster.kubeconfig())
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

    /// Waits until every operator that there should be is ready.
    pub async fn wait_operator(&self) -> Result<()> {
        let client = self.hosted.cluster.client();
        let rolled = client.wait_deployment(OPERATOR_NAMESPACE, OPERATOR).await;
        rolled.with_context(|| self.operator_tail())?;
        Ok(())
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

fn kustomization(image: &str, replicas: u32, arguments: &[String]) -> Value {
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
        "replicas": [{"name": OPERATOR, "count": replicas}],
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
    fn the_overlay_names_the_image_the_arguments_and_the_replicas() {
        let arguments = ["--poll=2s".to_owned()];
        let file = kustomization("localhost/x/sidekey-operator:7", 2, &arguments);
        assert_eq!(file["images"][0]["newName"], "localhost/x/sidekey-operator");
        assert_eq!(file["images"][0]["newTag"], "7");
        assert_eq!(file["replicas"][0]["count"], 2);
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
