//! Promise: what kube-apiserver stores through the plugin is encrypted, and it
//! reads back whichever side is restarted, however rudely.

use anyhow::{Context, Result, ensure};
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::kube::KubeClient;
use sidekey_e2e::stored::KMS_V2;
use sidekey_e2e::{ControlPlane, EncryptionConfiguration, Kind, LocalPlugin, Stored};

const MARKER: &str = "correct-horse-battery-staple";

/// Dropped, and so ended, in this order.
struct Scene {
    server: KubeApiserver,
    plugin: LocalPlugin,
    plane: ControlPlane,
}

#[tokio::test]
async fn data_is_encrypted_at_rest_and_outlives_restarts_of_both_sides() {
    let plane = ControlPlane::start("at-rest").await.unwrap();
    let plugin = LocalPlugin::start(&plane.scratch, "plugin").await.unwrap();
    let encryption = EncryptionConfiguration::kms("sidekey", plugin.endpoint());
    let options = Options::new("a").encryption(encryption);
    let server = KubeApiserver::start(&plane, options).await.unwrap();
    let mut scene = Scene { server, plugin, plane };

    secrets_and_configmaps_are_encrypted_in_etcd_and_not_in_clear(&scene).await.unwrap();
    they_read_back_after_kube_apiserver_restarts(&mut scene).await.unwrap();
    the_kms_providers_check_turns_bad_and_good_again(&mut scene).await.unwrap();
    they_read_back_after_the_plugin_was_killed_and_restarted(&mut scene).await.unwrap();
}

async fn secrets_and_configmaps_are_encrypted_in_etcd_and_not_in_clear(
    scene: &Scene,
) -> Result<()> {
    let Scene { server, plugin, plane } = scene;
    let announced = plugin.key_id_hash().await?;
    for kind in Kind::ALL {
        server.client().create(kind, "default", "first", &[("word", MARKER)]).await?;
        let raw = plane.etcd.raw(&kind.etcd_key("default", "first")).await?;
        let stored = Stored::parse(&raw).with_context(|| format!("{kind:?}"))?;
        ensure!(stored.provider == "sidekey", "provider {}", stored.provider);
        ensure!(stored.key_id_hash() == announced, "key_id {:?}", stored.object.key_id);
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
    let decrypts =
        |metrics: sidekey_e2e::metrics::Metrics| metrics.sum("kms_decrypt_requests_total", &[]);
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
        ensure!(data["word"] == MARKER, "{kind:?} {name} holds {data:?}");
        let listed = client.list(kind, "default").await?;
        ensure!(listed.get(name) == Some(&data), "{kind:?} {name} is listed otherwise");
    }
    Ok(())
}
