//! Promise: a rotation moves key_id in plugin and kube-apiserver alike, new
//! writes use the new key, and old data still reads.

use anyhow::{Context, Result, ensure};
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::{ControlPlane, EncryptionConfiguration, Kind, LocalPlugin, Stored};

/// Dropped, and so ended, in this order.
struct Scene {
    server: KubeApiserver,
    plugin: LocalPlugin,
    plane: ControlPlane,
    old: String,
}

#[tokio::test]
async fn a_rotation_moves_new_writes_to_the_new_key_and_old_data_still_reads() {
    let plane = ControlPlane::start("rotation").await.unwrap();
    let plugin = LocalPlugin::start(&plane.scratch, "plugin").await.unwrap();
    let encryption = EncryptionConfiguration::kms("sidekey", plugin.endpoint());
    let options = Options::new("a").encryption(encryption);
    let server = KubeApiserver::start(&plane, options).await.unwrap();
    let old = plugin.key_id_hash().await.unwrap();
    let mut scene = Scene { server, plugin, plane, old };
    for name in ["before", "migrated"] {
        scene.create(name).await.unwrap();
    }

    let new = activation_moves_key_id_and_rotation_alone_does_not(&mut scene).await.unwrap();
    new_writes_use_the_new_key_and_old_data_still_reads(&mut scene, &new).await.unwrap();
    rewriting_old_data_moves_it_to_the_new_key(&scene, &new).await.unwrap();
    kube_apiserver_shows_the_same_key_id_hash_as_the_plugin(&scene, &new).await.unwrap();
    both_generations_read_back_after_restarts_of_both_sides(&mut scene).await.unwrap();
}

async fn activation_moves_key_id_and_rotation_alone_does_not(scene: &mut Scene) -> Result<String> {
    let version = scene.plugin.rotate().await?;
    // After a restart the file with both versions has surely been read.
    scene.plugin.restart().await?;
    let still = scene.plugin.key_id_hash().await?;
    ensure!(still == scene.old, "rotate alone moved key_id to {still}");
    scene.plugin.activate(version).await?;
    scene.plugin.wait_key_id_moves(&scene.old).await
}

async fn new_writes_use_the_new_key_and_old_data_still_reads(
    scene: &mut Scene,
    new: &str,
) -> Result<()> {
    scene.server.wait_key_id("sidekey", new).await?;
    scene.create("after").await?;
    scene.is_stored_under("after", new).await?;
    scene.is_stored_under("before", &scene.old).await?;
    scene.reads_back("before").await?;
    scene.reads_back("after").await
}

/// Storage migration is just that: a write without any change.
async fn rewriting_old_data_moves_it_to_the_new_key(scene: &Scene, new: &str) -> Result<()> {
    scene.is_stored_under("migrated", &scene.old).await?;
    for kind in Kind::ALL {
        scene.server.client().update(kind, "default", "migrated", &data("migrated")).await?;
    }
    scene.is_stored_under("migrated", new).await?;
    scene.reads_back("migrated").await
}

async fn kube_apiserver_shows_the_same_key_id_hash_as_the_plugin(
    scene: &Scene,
    new: &str,
) -> Result<()> {
    let metrics = scene.plugin.metrics().await?;
    let infos: Vec<_> = metrics.find("kms_plugin_key_id_hash_info", &[]).collect();
    let [info] = infos.as_slice() else { anyhow::bail!("not one metric: {infos:?}") };
    let ours = info.labels.get("key_id_hash").context("no key_id_hash label")?;
    ensure!(ours == new, "the plugin's metric says {ours}, its status {new}");
    let announced = scene.server.announced_key_id("sidekey").await?;
    let written = scene.server.written_key_id("sidekey").await?;
    ensure!(&announced == ours, "kube-apiserver saw {announced}, the plugin says {ours}");
    ensure!(&written == ours, "kube-apiserver wrote {written}, the plugin says {ours}");
    Ok(())
}

async fn both_generations_read_back_after_restarts_of_both_sides(scene: &mut Scene) -> Result<()> {
    scene.server.process().kill()?;
    scene.plugin.restart().await?;
    scene.server.restart().await?;
    for name in ["before", "migrated", "after"] {
        scene.reads_back(name).await?;
    }
    scene.is_stored_under("before", &scene.old).await
}

impl Scene {
    async fn create(&self, name: &str) -> Result<()> {
        for kind in Kind::ALL {
            self.server.client().create(kind, "default", name, &data(name)).await?;
        }
        Ok(())
    }

    async fn is_stored_under(&self, name: &str, hash: &str) -> Result<()> {
        for kind in Kind::ALL {
            let raw = self.plane.etcd.raw(&kind.etcd_key("default", name)).await?;
            let found = Stored::parse(&raw)?.key_id_hash();
            ensure!(found == hash, "{kind:?} {name} is stored under {found}, not {hash}");
        }
        Ok(())
    }

    async fn reads_back(&self, name: &str) -> Result<()> {
        for kind in Kind::ALL {
            let found = self.server.client().read(kind, "default", name).await?;
            ensure!(found["word"] == name, "{kind:?} {name} holds {found:?}");
        }
        Ok(())
    }
}

fn data(name: &str) -> [(&str, &str); 1] {
    [("word", name)]
}
