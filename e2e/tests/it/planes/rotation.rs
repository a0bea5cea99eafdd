//! Promise: what kube-apiserver stores through the plugin is encrypted, and reads back whichever
//! side is restarted, however rudely. A rotation moves key_id in plugin and kube-apiserver alike,
//! new writes use the new key, and old data still reads. Two kube-apiservers on one etcd, each with
//! its own plugin on a shared key file, read each other's writes throughout it, and no request fails.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::kube::KubeClient;
use sidekey_e2e::metrics::Metrics;
use sidekey_e2e::stored::KMS_V2;
use sidekey_e2e::wait::BROKEN;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, LocalPlugin, Stored,
};

const MARKER: &str = "correct-horse-battery-staple";

/// Requests between two steps of the rotation, so that each state sees load.
const BETWEEN_STEPS: u64 = 300;

/// Dropped, and so ended, in this order.
struct Scene {
    server: KubeApiserver,
    plugin: LocalPlugin,
    plane: ControlPlane,
    old: String,
}

#[tokio::test]
async fn data_is_encrypted_at_rest_and_outlives_restarts_and_a_rotation() {
    let plane = ControlPlane::start("rotation").await.unwrap();
    let plugin = LocalPlugin::start(&plane.scratch, "plugin").await.unwrap();
    let encryption = EncryptionConfiguration::kms("sidekey", plugin.endpoint());
    let options = Options::new("a").encryption(encryption);
    let server = KubeApiserver::start(&plane, options).await.unwrap();
    let old = plugin.key_id_hash().await.unwrap();
    let mut scene = Scene { server, plugin, plane, old };

    secrets_and_configmaps_are_encrypted_in_etcd_and_not_in_clear(&scene).await.unwrap();
    they_read_back_after_kube_apiserver_restarts(&mut scene).await.unwrap();
    the_kms_providers_check_turns_bad_and_good_again(&mut scene).await.unwrap();
    they_read_back_after_the_plugin_was_killed_and_restarted(&mut scene).await.unwrap();

    for name in ["before", "migrated"] {
        scene.create(name).await.unwrap();
    }
    let new = replicas_read_each_others_writes_throughout_a_rotation(&mut scene).await.unwrap();
    new_writes_use_the_new_key_and_old_data_still_reads(&mut scene, &new).await.unwrap();
    rewriting_old_data_moves_it_to_the_new_key(&scene, &new).await.unwrap();
    kube_apiserver_shows_the_same_key_id_hash_as_the_plugin(&scene, &new).await.unwrap();
    both_generations_read_back_after_restarts_of_both_sides(&mut scene).await.unwrap();
}

async fn secrets_and_configmaps_are_encrypted_in_etcd_and_not_in_clear(
    scene: &Scene,
) -> Result<()> {
    let Scene { server, plane, old, .. } = scene;
    for kind in Kind::ALL {
        server.client().create(kind, "default", "first", &[("word", MARKER)]).await?;
        let raw = plane.etcd.raw(&kind.etcd_key("default", "first")).await?;
        let stored = Stored::parse(&raw).with_context(|| format!("{kind:?}"))?;
        ensure!(stored.provider == "sidekey", "provider {}", stored.provider);
        ensure!(stored.key_id_hash() == *old, "key_id {:?}", stored.object.key_id);
        for entry in plane.etcd.list(&format!("/registry/{}/", kind.plural())).await? {
            ensure!(entry.value.starts_with(KMS_V2), "{} is not encrypted", entry.key);
        }
    }
    for entry in plane.etcd.list("/").await? {
        let seen = entry.value.windows(MARKER.len()).any(|part| part == MARKER.as_bytes());
        ensure!(!seen, "{} holds the secret in clear", entry.key);
    }
    // What is not configured stays plain: the reader above can see plain data.
    let namespace = plane.etcd.raw("/registry/namespaces/default").await?;
    ensure!(namespace.starts_with(b"k8s\0"), "namespaces are not configured");
    both_read_back(&server.client(), "first").await
}

async fn they_read_back_after_kube_apiserver_restarts(scene: &mut Scene) -> Result<()> {
    let decrypts = |metrics: Metrics| metrics.sum("kms_decrypt_requests_total", &[]);
    let before = decrypts(scene.plugin.metrics().await?);
    scene.server.restart().await?;
    both_read_back(&scene.server.client(), "first").await?;
    let after = decrypts(scene.plugin.metrics().await?);
    ensure!(after > before, "nothing was decrypted: {before} before, {after} after");
    Ok(())
}

async fn the_kms_providers_check_turns_bad_and_good_again(scene: &mut Scene) -> Result<()> {
    scene.server.wait_kms_providers(true).await?;
    scene.plugin.process().kill()?;
    ensure!(scene.plugin.socket().exists(), "kill -9 leaves a stale socket behind");
    scene.server.wait_kms_providers(false).await?;
    // Meanwhile what kube-apiserver has decrypted before stays readable.
    both_read_back(&scene.server.client(), "first").await?;
    scene.plugin.restart().await?;
    scene.server.wait_kms_providers(true).await
}

async fn they_read_back_after_the_plugin_was_killed_and_restarted(scene: &mut Scene) -> Result<()> {
    let client = scene.server.client();
    for kind in Kind::ALL {
        client.create(kind, "default", "second", &[("word", MARKER)]).await?;
    }
    // A fresh kube-apiserver has decrypted nothing: all goes to the new plugin.
    scene.server.restart().await?;
    for name in ["first", "second"] {
        both_read_back(&client, name).await?;
    }
    Ok(())
}

async fn both_read_back(client: &KubeClient, name: &str) -> Result<()> {
    for kind in Kind::ALL {
        let data = client.read(kind, "default", name).await?;
        ensure!(data["word"] == MARKER, "{BROKEN}{kind:?} {name} holds {data:?}");
        let listed = client.list(kind, "default").await?;
        ensure!(listed.get(name) == Some(&data), "{kind:?} {name} is listed otherwise");
    }
    Ok(())
}

/// First every plugin can read the new version, then one of them is told to write it.
async fn replicas_read_each_others_writes_throughout_a_rotation(
    scene: &mut Scene,
) -> Result<String> {
    let key_file = scene.plugin.key_file().to_owned();
    let mut other = LocalPlugin::with_key_file(&scene.plane.scratch, "other", &key_file).await?;
    let encryption = EncryptionConfiguration::kms("sidekey", other.endpoint());
    let options = Options::new("b").encryption(encryption);
    let mut server = KubeApiserver::start(&scene.plane, options).await?;
    let pids = [scene.server.process().pid(), server.process().pid()];
    let load = Load::start(vec![scene.server.client(), server.client()], LoadOptions::default())?;
    load.more(BETWEEN_STEPS).await?;

    let version = scene.plugin.rotate().await?;
    load.more(BETWEEN_STEPS).await?;
    for plugin in [&scene.plugin, &other] {
        let still = plugin.key_id_hash().await?;
        ensure!(still == scene.old, "rotate alone moved key_id to {still}");
    }
    scene.plugin.activate(version).await?;
    let new = scene.plugin.wait_key_id_moves(&scene.old).await?;
    let moved = other.wait_key_id_moves(&scene.old).await?;
    ensure!(moved == new, "one key, but the plugins announce {new} and {moved}");
    // One replica writes under the new key while the other still may not.
    for server in [&mut scene.server, &mut server] {
        server.wait_key_id("sidekey", &new).await?;
        load.more(BETWEEN_STEPS).await?;
    }
    for server in [&scene.server, &server] {
        let written = server.written_key_id("sidekey").await?;
        ensure!(written == new, "kube-apiserver writes under {written}, not {new}");
    }
    let report = load.stop().await?.without_failures()?;
    println!("throughout the rotation {report}");
    let after = [scene.server.process().pid(), server.process().pid()];
    ensure!(after == pids, "a kube-apiserver has restarted");
    let servers = [&scene.server, &server];
    everything_reads_through_both_whichever_key_it_has(scene, servers, &new).await?;
    Ok(new)
}

async fn everything_reads_through_both_whichever_key_it_has(
    scene: &Scene,
    servers: [&KubeApiserver; 2],
    new: &str,
) -> Result<()> {
    let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
    for kind in Kind::ALL {
        let prefix = format!("/registry/{}/default/load-", kind.plural());
        for entry in scene.plane.etcd.list(&prefix).await? {
            *by_key.entry(Stored::parse(&entry.value)?.key_id_hash()).or_default() += 1;
            let name = entry.key.rsplit('/').next().context("no name")?;
            for server in servers {
                let data = server.client().read(kind, "default", name).await?;
                ensure!(data["value"] == format!("{name} second"), "{BROKEN}{name} holds {data:?}");
            }
        }
    }
    let keys: Vec<&str> = by_key.keys().map(String::as_str).collect();
    let both = keys.len() == 2 && keys.contains(&scene.old.as_str()) && keys.contains(&new);
    ensure!(both, "objects by key: {by_key:?}");
    Ok(())
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
            ensure!(found["word"] == name, "{BROKEN}{kind:?} {name} holds {found:?}");
        }
        Ok(())
    }
}

fn data(name: &str) -> [(&str, &str); 1] {
    [("word", name)]
}
