//! Promise: on a standalone cluster, where kube-apiserver, shim and plugins are
//! static pods of the node, the plugin may be killed, deleted, updated and
//! re-credentialed, and kubelet restarted, without a failed request; it may come
//! later than kube-apiserver; and shim and plugin need share nothing but a port.
//!
//! The pods are those of `deploy/static-pods`, with their host paths moved into
//! the test's directory and nothing else changed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod node;
mod vendors;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use sidekey_e2e::cluster::{NODE, Pod};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::wait::{LONG_PATIENCE, PATIENCE};
use sidekey_e2e::{Cluster, Ground, Kind, Load, LoadOptions, Stored, eventually};

use node::Node;

const NAMESPACE: &str = "kube-system";

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 40;

#[tokio::test]
async fn static_pods_serve_a_standalone_cluster_throughout_its_life() {
    let ground = Ground::prepare("standalone").await.unwrap();
    let node = Node::furnish(&ground).await.unwrap();
    node.publish_local(&[1]).unwrap();
    node.publish_proxy().unwrap();
    node.publish_shim(&node.isolated_config()).unwrap();
    let apiserver = node.apiserver(&ground, "kube-apiserver-with-shim").await.unwrap();
    let isolated = node.pod("proxy").unwrap();
    assert_nothing_shared((&apiserver, "shim"), (&isolated, "local"));
    ground.put_static_pod("kube-apiserver", &apiserver).unwrap();
    ground.put_static_pod("proxy", &isolated).unwrap();
    let cluster = ground.start_static().await.unwrap();
    let mut scene = Scene { cluster, node };
    shim_and_plugin_in_different_pods_work_without_a_shared_volume(&scene).await.unwrap();

    kube_apiserver_starts_after_shim_and_plugin(&scene).await.unwrap();
    let before = scene.pods(&["kube-apiserver", "sidekey-shim", "sidekey-local"]).await.unwrap();
    let load = scene.load("default").unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    a_swapped_host_directory_is_taken_over(&scene, &before).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    a_killed_plugin_is_started_again(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    a_deleted_plugin_comes_back(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    a_plugin_is_updated_to_another_image(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    a_restarted_kubelet_restarts_nothing(&mut scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    vendors::vault_takes_a_new_secret_id_from_a_swapped_directory(&scene).await.unwrap();
    vendors::aws_takes_new_access_keys_from_a_swapped_directory(&scene).await.unwrap();
    new_writes_have_moved_to_the_new_key(&scene).await.unwrap();
    let now = scene.pods(&["kube-apiserver", "sidekey-shim"]).await.unwrap();
    assert_same(&before[..2], &now);
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout all that happened to the plugin {report}");

    kube_apiserver_may_start_before_the_plugin(&scene).await.unwrap();
    scene.cluster.check_running().unwrap();
}

async fn shim_and_plugin_in_different_pods_work_without_a_shared_volume(
    scene: &Scene,
) -> Result<()> {
    scene.write_under("isolated", 1).await?;
    let old = scene.ready("sidekey-proxy").await?;
    let load = scene.load("kube-public")?;
    load.more(BETWEEN_STEPS).await?;
    for name in ["local", "proxy"] {
        scene.cluster.kill_container(&old.container(name)?.id).await?;
        load.more(BETWEEN_STEPS).await?;
        eventually(format!("{name} runs again"), PATIENCE, async || {
            let now = scene.pod("sidekey-proxy").await?;
            ensure!(now.ready && now.container(name)?.restarts == 1, "{}", now.summary());
            Ok(())
        })
        .await?;
    }
    let report = load.stop().await?.without_failures()?;
    println!("while the isolated plugin and its proxy were killed {report}");
    Ok(())
}

/// The same control plane with sockets in a directory of the node.
async fn kube_apiserver_starts_after_shim_and_plugin(scene: &Scene) -> Result<()> {
    let (node, ground) = (&scene.node, scene.cluster.ground());
    let old = scene.pod("kube-apiserver").await?;
    scene.remove("proxy").await?;
    node.publish_shim(&node.shim_config(1))?;
    for name in ["local", "shim"] {
        ground.put_static_pod(name, &node.pod(name)?)?;
        scene.ready(&format!("sidekey-{name}")).await?;
    }
    let apiserver = node.apiserver(ground, "kube-apiserver").await?;
    ground.put_static_pod("kube-apiserver", &apiserver)?;
    eventually("kube-apiserver runs without the shim in its pod", PATIENCE, async || {
        let now = scene.pod("kube-apiserver").await?;
        let same = now.container("kube-apiserver")?.id == old.container("kube-apiserver")?.id;
        ensure!(now.ready && !same && now.containers.len() == 1, "{}", now.summary());
        Ok(())
    })
    .await?;
    scene.reads("isolated").await?;
    scene.write_under("first", 1).await
}

async fn a_swapped_host_directory_is_taken_over(scene: &Scene, before: &[Pod]) -> Result<()> {
    let node = &scene.node;
    node.publish_local(&[1, 2])?;
    let fresh = node.kms("kms-2.sock");
    eventually("the plugin serves key 2", PATIENCE, async || {
        KmsClient::connect(&fresh).await?.round_trip(b"fresh").await
    })
    .await?;
    node.publish_shim(&node.shim_config(2))?;
    eventually("the shim announces key 2", PATIENCE, async || {
        let status = KmsClient::connect(&node.kms("kms.sock")).await?.status().await?;
        ensure!(status.key_id.starts_with("sidekey/2-"), "it announces {}", status.key_id);
        Ok(())
    })
    .await?;
    let now = scene.pods(&["kube-apiserver", "sidekey-shim", "sidekey-local"]).await?;
    assert_same(before, &now);
    Ok(())
}

async fn a_killed_plugin_is_started_again(scene: &Scene) -> Result<()> {
    let old = scene.pod("sidekey-local").await?;
    scene.cluster.kill_container(&old.container("local")?.id).await?;
    eventually("the plugin runs again", PATIENCE, async || {
        let now = scene.pod("sidekey-local").await?;
        let container = now.container("local")?;
        ensure!(now.ready && container.restarts == 1, "{}", now.summary());
        Ok(())
    })
    .await?;
    scene.plugin_serves().await
}

async fn a_deleted_plugin_comes_back(scene: &Scene) -> Result<()> {
    let old = scene.pod("sidekey-local").await?;
    scene.remove("local").await?;
    ensure!(KmsClient::connect(&scene.node.kms("kms-2.sock")).await.is_err(), "it still serves");
    scene.cluster.ground().put_static_pod("local", &scene.node.pod("local")?)?;
    let now = scene.ready("sidekey-local").await?;
    ensure!(now.container("local")?.id != old.container("local")?.id, "it is the same container");
    scene.plugin_serves().await
}

async fn a_plugin_is_updated_to_another_image(scene: &Scene) -> Result<()> {
    let mut pod = scene.node.pod("local")?;
    pod["spec"]["containers"][0]["image"] = scene.node.update.clone().into();
    scene.cluster.ground().put_static_pod("local", &pod)?;
    eventually("the plugin runs from the new image", PATIENCE, async || {
        let now = scene.pod("sidekey-local").await?;
        let image = &now.object["status"]["containerStatuses"][0]["image"];
        ensure!(now.ready && *image == scene.node.update, "{image}, {}", now.summary());
        Ok(())
    })
    .await?;
    scene.plugin_serves().await
}

async fn a_restarted_kubelet_restarts_nothing(scene: &mut Scene) -> Result<()> {
    let names = ["kube-apiserver", "sidekey-shim", "sidekey-local"];
    let before = scene.pods(&names).await?;
    scene.cluster.kubelet().restart().await?;
    scene.cluster.wait_node_ready().await?;
    assert_same(&before, &scene.pods(&names).await?);
    Ok(())
}

/// kube-apiserver asks for Status once a minute.
async fn new_writes_have_moved_to_the_new_key(scene: &Scene) -> Result<()> {
    let mut number = 0;
    eventually("new writes are under key 2", LONG_PATIENCE, async || {
        number += 1;
        scene.write_under(&format!("moved-{number}"), 2).await
    })
    .await?;
    scene.reads("first").await
}

async fn kube_apiserver_may_start_before_the_plugin(scene: &Scene) -> Result<()> {
    scene.remove("local").await?;
    let old = scene.pod("kube-apiserver").await?;
    let client = scene.cluster.client();
    scene.cluster.kill_container(&old.container("kube-apiserver")?.id).await?;
    eventually("kube-apiserver answers, without its key", PATIENCE, async || {
        let ready = client.raw("/readyz?verbose").await?;
        ensure!(ready.status == 500, "/readyz: {}", ready.status);
        ensure!(ready.text().contains("[-]kms-providers failed"), "{}", ready.text());
        Ok(())
    })
    .await?;
    ensure!(scene.reads("first").await.is_err(), "who has unwrapped that?");
    scene.cluster.ground().put_static_pod("local", &scene.node.pod("local")?)?;
    eventually("kube-apiserver is ready", LONG_PATIENCE, async || {
        client.raw("/readyz").await?.ok()?;
        Ok(())
    })
    .await?;
    scene.reads("first").await?;
    scene.write_under("late", 2).await?;
    let now = scene.ready("kube-apiserver").await?;
    let restarts = now.container("kube-apiserver")?.restarts;
    ensure!(restarts == 1, "it was started {restarts} times: {}", now.summary());
    Ok(())
}

/// A cluster whose control plane is in static pods, and what lies on its node.
struct Scene {
    cluster: Cluster,
    node: Node,
}

impl Scene {
    /// Two loads need two namespaces: each keeps some of its objects.
    fn load(&self, namespace: &str) -> Result<Load> {
        let options = LoadOptions {
            writers: 1,
            readers: 1,
            namespace: namespace.to_owned(),
            rest: Duration::from_millis(50),
        };
        Load::start(vec![self.cluster.client().clone()], options)
    }

    async fn pod(&self, name: &str) -> Result<Pod> {
        self.cluster.client().pod(NAMESPACE, &format!("{name}-{NODE}")).await
    }

    async fn ready(&self, name: &str) -> Result<Pod> {
        self.cluster.client().wait_pod_ready(NAMESPACE, &format!("{name}-{NODE}")).await
    }

    async fn pods(&self, names: &[&str]) -> Result<Vec<Pod>> {
        let mut pods = Vec::new();
        for name in names {
            pods.push(self.ready(name).await?);
        }
        Ok(pods)
    }

    /// Takes a pod's manifest away, and waits until it has ended.
    async fn remove(&self, name: &str) -> Result<()> {
        let pod = self.pod(&format!("sidekey-{name}")).await?;
        self.cluster.ground().remove_static_pod(name)?;
        self.cluster.client().wait_pod_gone(&pod).await
    }

    /// Writes a Secret, and fails if it is not stored under that key.
    async fn write_under(&self, name: &str, key: u32) -> Result<()> {
        self.cluster.client().create(Kind::Secret, "default", name, &[("word", name)]).await?;
        let path = Kind::Secret.etcd_key("default", name);
        let stored = Stored::parse(&self.cluster.ground().plane().etcd.raw(&path).await?)?;
        let id = &stored.object.key_id;
        ensure!(stored.provider == "sidekey", "{name} is stored by {}", stored.provider);
        ensure!(id.starts_with(&format!("sidekey/{key}-")), "{name} is stored under {id}");
        Ok(())
    }

    async fn reads(&self, name: &str) -> Result<()> {
        let data = self.cluster.client().read(Kind::Secret, "default", name).await?;
        ensure!(data["word"] == name, "{name} holds {data:?}");
        Ok(())
    }

    /// The shim has found the plugin again, and kube-apiserver has never lost the shim.
    async fn plugin_serves(&self) -> Result<()> {
        let shim = KmsClient::connect(&self.node.kms("kms.sock")).await?;
        eventually("the shim reaches its plugin", PATIENCE, async || {
            shim.round_trip(b"again").await
        })
        .await?;
        Ok(())
    }
}

/// The same containers, never started again.
fn assert_same(before: &[Pod], now: &[Pod]) {
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

/// No path of the node is mounted in both containers.
fn assert_nothing_shared(one: (&Value, &str), other: (&Value, &str)) {
    let (one, other) = (host_paths(one.0, one.1), host_paths(other.0, other.1));
    assert!(!one.is_empty() && !other.is_empty());
    assert_eq!(one.intersection(&other).collect::<Vec<_>>(), Vec::<&String>::new());
}

fn host_paths(pod: &Value, container: &str) -> BTreeSet<String> {
    let spec = &pod["spec"];
    let lists = ["initContainers", "containers"].map(|list| spec[list].as_array());
    let mut containers = lists.into_iter().flatten().flatten();
    let mounts = &containers.find(|known| known["name"] == container).unwrap()["volumeMounts"];
    let names: Vec<_> = mounts.as_array().unwrap().iter().map(|mount| &mount["name"]).collect();
    let volumes = spec["volumes"].as_array().unwrap().iter();
    let mounted = volumes.filter(|volume| names.contains(&&volume["name"]));
    mounted
        .filter_map(|volume| Some(volume.pointer("/hostPath/path")?.as_str()?.to_owned()))
        .collect()
}
