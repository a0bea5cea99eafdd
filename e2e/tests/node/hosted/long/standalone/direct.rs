//! Without a shim: kube-apiserver's socket is the plugin's own, and goes away
//! with it. kube-apiserver then lives on what it has unwrapped, for three minutes
//! of writes, and gRPC's back-off decides when it looks again.

use anyhow::{Result, ensure};
use sidekey_e2e::kms::KmsClient;

use super::BETWEEN_STEPS;
use super::scene::Scene;

/// What the local provider announces by itself.
const KEY_ID: &str = "local/";

pub(crate) async fn what_happens_to_a_plugin_without_a_shim_fails_no_request(
    scene: &mut Scene,
) -> Result<()> {
    scene.write_under("direct", KEY_ID).await?;
    let before = scene.pods(&["kube-apiserver"]).await?;
    let load = scene.load("kube-node-lease")?;
    load.more(BETWEEN_STEPS).await?;

    scene.kill("sidekey-local", "local").await?;
    load.more(BETWEEN_STEPS).await?;
    scene.apiserver_has_reconnected().await?;

    scene.remove("local").await?;
    let gone = KmsClient::connect(&scene.node.kms(1)).await.is_err();
    ensure!(gone, "somebody still serves");
    load.more(BETWEEN_STEPS).await?;
    scene.write_under("direct-alone", KEY_ID).await?;
    scene.add("local").await?;
    scene.apiserver_has_reconnected().await?;

    scene.update("local").await?;
    load.more(BETWEEN_STEPS).await?;
    scene.apiserver_has_reconnected().await?;

    scene.restart_kubelet(&["kube-apiserver", "sidekey-local"]).await?;
    load.more(BETWEEN_STEPS).await?;

    super::scene::assert_same(&before, &scene.pods(&["kube-apiserver"]).await?);
    scene.write_under("direct-last", KEY_ID).await?;
    scene.reads("direct").await?;
    let report = load.stop().await?.without_failures()?;
    println!("while the plugin without a shim was killed, deleted and updated {report}");
    Ok(())
}
