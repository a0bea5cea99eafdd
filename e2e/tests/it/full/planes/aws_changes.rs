//! Promise: what changes at AWS while everything runs is taken over behind
//! kube-apiserver's back. On-demand rotation moves key_id and new writes; a new
//! web identity token, the old one revoked, and a new CA move nothing. No
//! request fails, no kube-apiserver restarts, and everything stays readable.
//!
//! AWS is moto; rotation, tokens and revocation are simulated on top of it. TLS
//! ends at a gateway in front of it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::aws::{AwsPlugin, Moto, REGION};
use sidekey_e2e::gateway::Gateway;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::vendor::{Node, Replicas};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{ControlPlane, Load, eventually};

const ROLE: &str = "arn:aws:iam::123456789012:role/kms-provider";

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 150;

struct Scene {
    gateway: Gateway,
    moto: Moto,
    key: String,
    token: PathBuf,
    bundle: PathBuf,
    ca: Authority,
    replicas: Replicas<AwsPlugin>,
}

#[tokio::test]
async fn rotation_tokens_and_cas_change_without_a_failed_request() {
    let mut scene = Scene::start().await.unwrap();
    let pids = scene.replicas.server_pids();
    let load = scene.replicas.load().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    let old = scene.replicas.write("before").await.unwrap();
    on_demand_rotation_moves_new_writes(&mut scene, &load, &old).await.unwrap();
    let new = scene.replicas.write("between").await.unwrap();
    a_new_token_is_taken_over_and_the_old_one_revoked(&mut scene, &load).await.unwrap();
    a_new_ca_is_taken_over(&mut scene, &load).await.unwrap();
    assert_eq!(scene.replicas.write("after").await.unwrap(), new, "neither has moved key_id");

    load.more(BETWEEN_STEPS).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout three changes {report}");
    assert_eq!(scene.replicas.server_pids(), pids, "a kube-apiserver has restarted");
    let written = [("before", old.as_str()), ("between", &new), ("after", &new)];
    scene.replicas.everything_reads_after_a_restart(&written, &report).await.unwrap();
}

impl Scene {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start("aws-changes").await?;
        let moto = Moto::start(plane.scratch.path()).await?;
        let shared = plane.scratch.subdir("aws")?;
        let (token, bundle) = (shared.join("token"), shared.join("ca.pem"));
        fs::write(&token, "token-1")?;
        moto.accept_tokens(&["token-1"]).await?;
        moto.accept_access_keys(&[]).await?;
        let key = moto.owner().create_key().await?;
        let ca = Authority::new("first CA")?;
        fs::write(&bundle, ca.pem())?;
        let gateway = Gateway::tls(moto.address(), &ca.server(&shared, "first")?).await?;
        let url = format!("https://{}", gateway.address());
        let key_of = json!({
            "kek": {"key": key, "region": REGION, "encryptionContext": {"cluster": "e2e"}},
            "settings": {"endpoint": url, "stsEndpoint": url, "caBundle": bundle},
            "credentials": {"roleArn": ROLE, "webIdentityTokenFile": token},
        });
        let nodes = [node(&plane, "a", &key_of).await?, node(&plane, "b", &key_of).await?];
        let replicas = Replicas { nodes, plane };
        Ok(Self { gateway, moto, key, token, bundle, ca, replicas })
    }
}

async fn node(plane: &ControlPlane, name: &str, key: &Value) -> Result<Node<AwsPlugin>> {
    let (plugin, scratch) = (format!("plugin-{name}"), &plane.scratch);
    let mut key = key.clone();
    key["id"] = 1.into();
    key["listen"] = scratch.subdir(&plugin)?.join("kms.sock").display().to_string().into();
    let config = json!({"probe": {"interval": "1s", "timeout": "2s"}, "keys": [key]});
    let env = [("AWS_EC2_METADATA_DISABLED", "true")];
    let mut plugin = AwsPlugin::configured(scratch, &plugin, &config, &env).await?;
    plugin.wait_ready().await?;
    let config = ShimConfig::new(1).write(1, plugin.endpoint("kms")).probe("1s", "2s");
    Node::start(plane, name, plugin, &config).await
}

async fn on_demand_rotation_moves_new_writes(
    scene: &mut Scene,
    load: &Load,
    old: &str,
) -> Result<()> {
    let first = scene.moto.owner().material_id(&scene.key).await?;
    ensure!(old.contains(&scene.key) && old.ends_with(&first), "{old} does not name {first}");
    let material = scene.moto.owner().rotate(&scene.key).await?;
    let wanted = |key_id: &str| key_id.contains(&scene.key) && key_id.ends_with(&material);
    scene.replicas.wait_key_id_moves(old, load, BETWEEN_STEPS).await?;
    let new = scene.replicas.write("rotated").await?;
    ensure!(wanted(&new), "new writes are under {new}, not under material {material}");
    Ok(())
}

async fn a_new_token_is_taken_over_and_the_old_one_revoked(
    scene: &mut Scene,
    load: &Load,
) -> Result<()> {
    let moto = &scene.moto;
    moto.accept_tokens(&["token-1", "token-2"]).await?;
    fs::write(&scene.token, "token-2")?;
    let sessions = async || {
        let sessions = moto.sessions().await?;
        anyhow::Ok(sessions.values().filter(|token| *token == "token-2").count())
    };
    eventually("both plugins have sessions of the new token", PATIENCE, async || {
        let count = sessions().await?;
        ensure!(count >= 2, "{count} sessions");
        Ok(())
    })
    .await?;
    scene.replicas.reloaded(2.0).await?;
    moto.accept_tokens(&["token-2"]).await?;
    moto.revoke_sessions_of("token-1", "ExpiredTokenException").await?;
    load.more(BETWEEN_STEPS).await?;
    scene.replicas.is_well().await
}

async fn a_new_ca_is_taken_over(scene: &mut Scene, load: &Load) -> Result<()> {
    let new = Authority::new("second CA")?;
    fs::write(&scene.bundle, format!("{}{}", scene.ca.pem(), new.pem()))?;
    scene.replicas.reloaded(3.0).await?;
    let dir = scene.replicas.plane.scratch.subdir("aws")?;
    scene.gateway.present(&new.server(&dir, "second")?)?;
    load.more(BETWEEN_STEPS).await?;
    fs::write(&scene.bundle, new.pem())?;
    scene.replicas.reloaded(4.0).await?;
    scene.ca = new;
    load.more(BETWEEN_STEPS).await?;
    scene.replicas.is_well().await
}
