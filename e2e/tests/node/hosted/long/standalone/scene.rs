//! A cluster whose control plane is in static pods, and what may happen to these.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::cluster::{NODE, Pod};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::metrics::Metrics;
use sidekey_e2e::wait::{BROKEN, LONG_PATIENCE, PATIENCE};
use sidekey_e2e::{Cluster, Kind, Load, LoadOptions, Stored, eventually};

use super::node::Node;

const NAMESPACE: &str = "kube-system";

/// When kube-apiserver last had a good answer to Status.
const LAST_STATUS: &str = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds";

/// A cluster whose control plane is in static pods, and what lies on its node.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    pub(crate) node: Node,
}

impl Scene {
    /// Several loads need as many namespaces: each keeps some of its objects.
    pub(crate) fn load(&self, namespace: &str) -> Result<Load> {
        let options = LoadOptions {
            writers: 1,
            readers: 1,
            namespace: namespace.to_owned(),
            rest: Duration::from_millis(50),
        };
        Load::start(vec![self.cluster.client().clone()], options)
    }

    pub(crate) async fn pod(&self, name: &str) -> Result<Pod> {
        self.cluster.client().pod(NAMESPACE, &format!("{name}-{NODE}")).await
    }

    pub(crate) async fn ready(&self, name: &str) -> Result<Pod> {
        self.cluster.client().wait_pod_ready(NAMESPACE, &format!("{name}-{NODE}")).await
    }

    pub(crate) async fn pods(&self, names: &[&str]) -> Result<Vec<Pod>> {
        let mut pods = Vec::new();
        for name in names {
            pods.push(self.ready(name).await?);
        }
        Ok(pods)
    }

    /// Puts one of our pods on the node, and waits until it is ready.
    pub(crate) async fn add(&self, name: &str) -> Result<Pod> {
        self.cluster.ground().put_static_pod(name, &self.node.pod(name)?)?;
        self.ready(&format!("sidekey-{name}")).await
    }

    /// Takes a pod's manifest away, and waits until it has ended.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        let pod = self.pod(&format!("sidekey-{name}")).await?;
        self.cluster.ground().remove_static_pod(name)?;
        self.cluster.client().wait_pod_gone(&pod).await
    }

    /// kill -9 of a container, and waits until kubelet has started it again.
    pub(crate) async fn kill(&self, pod: &str, container: &str) -> Result<()> {
        let old = self.ready(pod).await?.container(container)?.clone();
        self.cluster.kill_container(&old.id).await?;
        eventually(format!("{container} of {pod} runs again"), PATIENCE, async || {
            let now = self.pod(pod).await?;
            let again = now.container(container)?.restarts == old.restarts + 1;
            ensure!(now.ready && again, "{}", now.summary());
            Ok(())
        })
        .await
    }

    /// Updates one of our pods to its other image.
    pub(crate) async fn update(&self, name: &str) -> Result<()> {
        let image = self.node.update(name)?;
        let mut pod = self.node.pod(name)?;
        pod["spec"]["containers"][0]["image"] = image.into();
        self.cluster.ground().put_static_pod(name, &pod)?;
        eventually(format!("{name} runs from its new image"), PATIENCE, async || {
            let now = self.pod(&format!("sidekey-{name}")).await?;
            let found = &now.object["status"]["containerStatuses"][0]["image"];
            ensure!(now.ready && found == image, "{found}, {}", now.summary());
            Ok(())
        })
        .await
    }

    /// kill -9 of kubelet, which is started again; nothing else restarts.
    pub(crate) async fn restart_kubelet(&mut self, names: &[&str]) -> Result<()> {
        let before = self.pods(names).await?;
        self.cluster.kubelet().restart().await?;
        self.cluster.wait_node_ready().await?;
        assert_same(&before, &self.pods(names).await?);
        Ok(())
    }

    /// Gives kube-apiserver's pod another form, and waits until that one serves.
    pub(crate) async fn change_apiserver(&self, apiserver: &Value) -> Result<()> {
        let old = self.pod("kube-apiserver").await?;
        self.cluster.ground().put_static_pod("kube-apiserver", apiserver)?;
        eventually("kube-apiserver runs in its new form", PATIENCE, async || {
            let now = self.pod("kube-apiserver").await?;
            let same = now.container("kube-apiserver")?.id == old.container("kube-apiserver")?.id;
            ensure!(now.ready && !same, "{}", now.summary());
            Ok(())
        })
        .await
    }

    /// Writes a Secret, and fails if it is not stored under a key_id that begins so.
    pub(crate) async fn write_under(&self, name: &str, key_id: &str) -> Result<()> {
        self.cluster.client().create(Kind::Secret, "default", name, &[("word", name)]).await?;
        let stored = self.stored(name).await?;
        let found = &stored.object.key_id;
        ensure!(stored.provider == "sidekey", "{name} is stored by {}", stored.provider);
        ensure!(found.starts_with(key_id), "{name} is stored under {found}");
        Ok(())
    }

    pub(crate) async fn reads(&self, name: &str) -> Result<()> {
        let data = self.cluster.client().read(Kind::Secret, "default", name).await?;
        ensure!(data["word"] == name, "{BROKEN}{name} holds {data:?}");
        Ok(())
    }

    /// Lets a key write, all older ones read, and waits until kube-apiserver has
    /// followed: kubelet's probes make it ask for Status every 20 s.
    pub(crate) async fn promote(&self, key: u32, name: &str) -> Result<()> {
        self.node.publish_shim(&self.node.shim_config(key))?;
        let prefix = format!("sidekey/{key}-");
        eventually(format!("the shim announces key {key}"), PATIENCE, async || {
            let status = KmsClient::connect(&self.node.shim()).await?.status().await?;
            ensure!(status.key_id.starts_with(&prefix), "it announces {}", status.key_id);
            Ok(())
        })
        .await?;
        self.followed(key, name).await
    }

    /// Waits until kube-apiserver writes under that key; `name` is then so stored.
    pub(crate) async fn followed(&self, key: u32, name: &str) -> Result<()> {
        let prefix = format!("sidekey/{key}-");
        let mut number = 0;
        eventually(format!("kube-apiserver writes under key {key}"), LONG_PATIENCE, async || {
            number += 1;
            self.write_under(&format!("{name}-{number}"), &prefix).await
        })
        .await?;
        self.write_under(name, &prefix).await
    }

    /// The data key of a stored object is unwrapped through the shim, whatever
    /// kube-apiserver has in its cache.
    pub(crate) async fn unwraps(&self, name: &str) -> Result<()> {
        let object = self.stored(name).await?.object;
        let sealed = EncryptResponse {
            ciphertext: object.encrypted_dek_source,
            key_id: object.key_id,
            annotations: object.annotations,
        };
        let shim = KmsClient::connect(&self.node.shim()).await?;
        shim.decrypt(&sealed).await.with_context(|| format!("the data key of {name}"))?;
        Ok(())
    }

    /// The shim has found the plugin again, and kube-apiserver has never lost the shim.
    pub(crate) async fn plugin_serves(&self) -> Result<()> {
        let shim = KmsClient::connect(&self.node.shim()).await?;
        eventually("the shim reaches its plugin", PATIENCE, async || {
            shim.round_trip(b"again").await
        })
        .await?;
        Ok(())
    }

    /// kube-apiserver has found who listens on its socket again.
    pub(crate) async fn apiserver_has_reconnected(&self) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let client = self.cluster.client();
        eventually("kube-apiserver has a fresh Status", LONG_PATIENCE, async || {
            // The question makes it ask for Status if the last time was 20 s ago.
            client.raw("/readyz").await?;
            let metrics = Metrics::parse(&client.raw("/metrics").await?.ok()?.text())?;
            let last = metrics.find(LAST_STATUS, &[("provider_name", "sidekey")]);
            let last = last.map(|sample| sample.value).fold(0.0, f64::max);
            ensure!(last > now, "the last one is {:.1} s too old", now - last);
            Ok(())
        })
        .await
    }

    async fn stored(&self, name: &str) -> Result<Stored> {
        let path = Kind::Secret.etcd_key("default", name);
        Stored::parse(&self.cluster.ground().plane().etcd.raw(&path).await?)
    }
}

/// The same containers, never started again.
pub(crate) fn assert_same(before: &[Pod], now: &[Pod]) {
    assert_eq!(before.len(), now.len());
    for (before, now) in before.iter().zip(now) {
        assert_eq!(
            before.containers,
            now.containers,
            "{} after {}",
            now.summary(),
            before.summary()
        );
    }
}
