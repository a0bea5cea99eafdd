//! Promise: on a standalone cluster, where kube-apiserver, shim and plugins are
//! static pods of the node, plugin and shim may be killed, deleted, updated and
//! re-credentialed, and kubelet restarted, without a failed request; the plugin may
//! come later than kube-apiserver; and shim and plugin need share nothing but a
//! port. Without a shim the plugin may be away for the three minutes for which
//! kube-apiserver writes without it.
//!
//! The pods are those of `deploy/static-pods`, with their host paths moved into
//! the test's directory and nothing else changed.

mod direct;
mod node;
mod scene;
mod vendors;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::Value;
use sidekey_e2e::cluster::Pod;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::wait::{LONG_PATIENCE, PATIENCE};
use sidekey_e2e::{Ground, eventually};

use node::Node;
use scene::{Scene, assert_same};
use vendors::{Aws, Vault};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 40;

#[tokio::test]
async fn static_pods_serve_a_standalone_cluster_throughout_its_life() {
    let ground = Ground::prepare("standalone").await.unwrap();
    let node = Node::furnish(&ground).await.unwrap();
    node.publish_local(&[1]).unwrap();
    node.publish_encryption("kms-1.sock").unwrap();
    let apiserver = node.direct_apiserver(&ground).await.unwrap();
    ground.put_static_pod("kube-apiserver", &apiserver).unwrap();
    ground.put_static_pod("local", &node.pod("local").unwrap()).unwrap();
    let cluster = ground.start_static().await.unwrap();
    let mut scene = Scene { cluster, node };
    direct::what_happens_to_a_plugin_without_a_shim_fails_no_request(&mut scene).await.unwrap();

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
    let vault = Vault::writes_with_a_secret_id(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    vault.takes_a_new_secret_id_from_a_swapped_directory(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let aws = Aws::writes_with_a_credentials_file(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    aws.takes_new_credentials_from_a_swapped_directory(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let now = scene.pods(&["kube-apiserver", "sidekey-shim"]).await.unwrap();
    assert_same(&before[..2], &now);
    a_killed_shim_is_started_again(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    a_shim_is_updated_to_another_image(&scene).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    assert_same(&before[..1], &scene.pods(&["kube-apiserver"]).await.unwrap());
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout all that happened to plugins and shim {report}");

    kube_apiserver_may_start_before_the_plugin(&scene).await.unwrap();
    scene.cluster.check_running().unwrap();
}

/// The same control plane with the shim in kube-apiserver's pod.
async fn shim_and_plugin_in_different_pods_work_without_a_shared_volume(
    scene: &Scene,
) -> Result<()> {
    let (node, ground) = (&scene.node, scene.cluster.ground());
    node.publish_proxy()?;
    node.publish_shim(&node.isolated_config())?;
    let isolated = node.pod("proxy")?;
    let apiserver = node.apiserver(ground, "kube-apiserver-with-shim").await?;
    assert_nothing_shared((&apiserver, "shim"), (&isolated, "local"));
    scene.remove("local").await?;
    scene.add("proxy").await?;
    node.publish_encryption("kms.sock")?;
    scene.change_apiserver(&apiserver).await?;
    for written in ["direct", "direct-alone", "direct-last"] {
        scene.reads(written).await?;
    }
    scene.write_under("isolated", "sidekey/1-").await?;
    let load = scene.load("kube-public")?;
    load.more(BETWEEN_STEPS).await?;
    for name in ["local", "proxy"] {
        scene.kill("sidekey-proxy", name).await?;
        load.more(BETWEEN_STEPS).await?;
    }
    let report = load.stop().await?.without_failures()?;
    println!("while the isolated plugin and its proxy were killed {report}");
    Ok(())
}

/// The same control plane with sockets in directories of the node.
async fn kube_apiserver_starts_after_shim_and_plugin(scene: &Scene) -> Result<()> {
    scene.remove("proxy").await?;
    scene.node.publish_shim(&scene.node.shim_config(1))?;
    for name in ["local", "shim"] {
        scene.add(name).await?;
    }
    let apiserver = scene.node.apiserver(scene.cluster.ground(), "kube-apiserver").await?;
    scene.change_apiserver(&apiserver).await?;
    let containers = scene.pod("kube-apiserver").await?.containers;
    ensure!(containers.len() == 1, "the shim is still in its pod: {containers:?}");
    scene.reads("isolated").await?;
    scene.write_under("first", "sidekey/1-").await
}

async fn a_swapped_host_directory_is_taken_over(scene: &Scene, before: &[Pod]) -> Result<()> {
    scene.node.publish_local(&[1, 2])?;
    let fresh = scene.node.kms(2);
    eventually("the plugin serves key 2", PATIENCE, async || {
        KmsClient::connect(&fresh).await?.round_trip(b"fresh").await
    })
    .await?;
    scene.promote(2, "second").await?;
    let now = scene.pods(&["kube-apiserver", "sidekey-shim", "sidekey-local"]).await?;
    assert_same(before, &now);
    Ok(())
}

async fn a_killed_plugin_is_started_again(scene: &Scene) -> Result<()> {
    scene.kill("sidekey-local", "local").await?;
    scene.plugin_serves().await
}

async fn a_deleted_plugin_comes_back(scene: &Scene) -> Result<()> {
    scene.remove("local").await?;
    ensure!(KmsClient::connect(&scene.node.kms(2)).await.is_err(), "it still serves");
    scene.add("local").await?;
    scene.plugin_serves().await
}

async fn a_plugin_is_updated_to_another_image(scene: &Scene) -> Result<()> {
    scene.update("local").await?;
    scene.plugin_serves().await
}

async fn a_restarted_kubelet_restarts_nothing(scene: &mut Scene) -> Result<()> {
    scene.restart_kubelet(&["kube-apiserver", "sidekey-shim", "sidekey-local"]).await
}

async fn a_killed_shim_is_started_again(scene: &Scene) -> Result<()> {
    scene.kill("sidekey-shim", "shim").await?;
    scene.plugin_serves().await?;
    scene.apiserver_has_reconnected().await
}

async fn a_shim_is_updated_to_another_image(scene: &Scene) -> Result<()> {
    scene.update("shim").await?;
    scene.plugin_serves().await?;
    scene.apiserver_has_reconnected().await?;
    scene.write_under("updated", "sidekey/4-").await
}

/// Its cache is then empty: each key must unwrap what it wrote.
async fn kube_apiserver_may_start_before_the_plugin(scene: &Scene) -> Result<()> {
    scene.remove("aws").await?;
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
    scene.cluster.ground().put_static_pod("aws", &scene.node.pod("aws")?)?;
    eventually("kube-apiserver is ready", LONG_PATIENCE, async || {
        client.raw("/readyz").await?.ok()?;
        Ok(())
    })
    .await?;
    for written in ["direct", "isolated", "first", "second", "vault", "aws"] {
        scene.reads(written).await?;
    }
    scene.write_under("late", "sidekey/4-").await?;
    let now = scene.ready("kube-apiserver").await?;
    let restarts = now.container("kube-apiserver")?.restarts;
    ensure!(restarts == 1, "it was started {restarts} times: {}", now.summary());
    Ok(())
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
