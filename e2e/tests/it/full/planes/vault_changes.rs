//! Promise: what changes at Vault while everything runs is taken over behind
//! kube-apiserver's back. A rotation in Vault moves key_id and new writes; a new
//! secret-id, the old one revoked with all its tokens, and a new CA move
//! nothing. No request fails, no kube-apiserver restarts, and everything stays
//! readable.
//!
//! Vault is a real OpenBao over TLS.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::openbao::Prepared;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::vendor::{Node, Replicas};
use sidekey_e2e::{ControlPlane, Load, OpenBao, VaultPlugin};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 150;

struct Scene {
    bao: OpenBao,
    prepared: Prepared,
    secret_id: PathBuf,
    bundle: PathBuf,
    replicas: Replicas<VaultPlugin>,
}

#[tokio::test]
async fn rotation_secret_ids_and_cas_change_without_a_failed_request() {
    let mut scene = Scene::start().await.unwrap();
    let pids = scene.replicas.server_pids();
    let load = scene.replicas.load().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    let old = scene.replicas.write("before").await.unwrap();
    a_rotation_in_vault_moves_new_writes(&mut scene, &load, &old).await.unwrap();
    let new = scene.replicas.write("between").await.unwrap();
    assert_ne!(old, new);
    a_new_secret_id_is_taken_over_and_the_old_one_revoked(&mut scene, &load).await.unwrap();
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
        let plane = ControlPlane::start("vault-changes").await?;
        let bao = OpenBao::start(&plane.scratch, "bao").await?;
        let prepared = bao.prepare().await?;
        let shared = plane.scratch.subdir("vault")?;
        let (secret_id, bundle) = (shared.join("secret-id"), shared.join("ca.pem"));
        fs::write(&secret_id, prepared.role.secret_id().await?)?;
        fs::write(&bundle, bao.authority().pem())?;
        let login = json!({"roleId": prepared.role.role_id, "secretIdFile": secret_id});
        let key = json!({
            "kek": {"keyPath": prepared.key.key_path()},
            "settings": {"address": bao.address(), "tls": {"caFile": bundle}},
            "credentials": {"appRole": login},
        });
        let nodes = [node(&plane, "a", &key).await?, node(&plane, "b", &key).await?];
        let replicas = Replicas { nodes, plane };
        Ok(Self { bao, prepared, secret_id, bundle, replicas })
    }
}

async fn node(plane: &ControlPlane, name: &str, key: &Value) -> Result<Node<VaultPlugin>> {
    let dir = plane.scratch.subdir(&format!("plugin-{name}"))?;
    let listen = format!("unix://{}", dir.join("kms.sock").display());
    let mut key = key.clone();
    key["id"] = 1.into();
    key["listen"] = listen.clone().into();
    let config = json!({"probe": {"interval": "1s", "timeout": "2s"}, "keys": [key]});
    let plugin = VaultPlugin::start(&dir, name, &config).await?;
    let config = ShimConfig::new(1).write(1, listen).probe("1s", "2s");
    Node::start(plane, name, plugin, &config).await
}

async fn a_rotation_in_vault_moves_new_writes(
    scene: &mut Scene,
    load: &Load,
    old: &str,
) -> Result<()> {
    let version = scene.prepared.key.rotate().await?;
    scene.replicas.wait_key_id_moves(old, load, BETWEEN_STEPS).await?;
    let new = scene.replicas.write("rotated").await?;
    ensure!(new.ends_with(&format!("/{version}")), "new writes are under {new}");
    Ok(())
}

async fn a_new_secret_id_is_taken_over_and_the_old_one_revoked(
    scene: &mut Scene,
    load: &Load,
) -> Result<()> {
    let old = fs::read_to_string(&scene.secret_id)?;
    fs::write(&scene.secret_id, scene.prepared.role.secret_id().await?)?;
    scene.replicas.reloaded(2.0).await?;
    scene.prepared.role.revoke(&old).await?;
    let tokens = scene.bao.root().revoke_logins("approle").await?;
    ensure!(tokens >= scene.replicas.nodes.len(), "only {tokens} tokens were out");
    load.more(BETWEEN_STEPS).await?;
    scene.replicas.is_well().await
}

async fn a_new_ca_is_taken_over(scene: &mut Scene, load: &Load) -> Result<()> {
    let (old, new) = (scene.bao.authority().pem(), Arc::new(Authority::new("second CA")?));
    fs::write(&scene.bundle, format!("{old}{}", new.pem()))?;
    scene.replicas.reloaded(3.0).await?;
    scene.bao.change_authority(new.clone()).await?;
    load.more(BETWEEN_STEPS).await?;
    fs::write(&scene.bundle, new.pem())?;
    scene.replicas.reloaded(4.0).await?;
    load.more(BETWEEN_STEPS).await?;
    scene.replicas.is_well().await
}
