//! Promise: while Vault is sealed, away, slow, throttles or has revoked what it
//! gave out, running kube-apiservers go on: what they have unwrapped stays
//! readable, writes go on within their window, Status turns into an error by the
//! documented rule alone, and all heals by itself. No request fails in all that
//! time.
//!
//! Vault is a real OpenBao over TLS, which is really sealed, killed and limited;
//! latency is simulated by a gateway in front of it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sidekey_e2e::gateway::{Fault, Gateway};
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::vendor::{COAST, MEANWHILE, Sufferer};
use sidekey_e2e::{ControlPlane, Load, OpenBao, VaultPlugin};

struct Scene {
    gateway: Gateway,
    bao: OpenBao,
    role: AppRole,
    secret_id: PathBuf,
    sufferer: Sufferer<VaultPlugin>,
}

#[tokio::test]
async fn faults_of_vault_fail_no_request_and_heal_by_themselves() {
    let mut scene = Scene::start().await.unwrap();
    let load = scene.sufferer.load().unwrap();
    load.more(MEANWHILE).await.unwrap();

    revoked_tokens_are_not_even_felt(&mut scene, &load).await.unwrap();
    vault_is_sealed(&mut scene, &load).await.unwrap();
    vault_is_down(&mut scene, &load).await.unwrap();
    vault_has_five_seconds_of_latency(&mut scene, &load).await.unwrap();
    vault_throttles(&mut scene, &load).await.unwrap();
    everything_that_was_given_is_revoked(&mut scene, &load).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout six faults {report}");
    scene.sufferer.everything_reads_after_a_restart(&report).await.unwrap();
}

impl Scene {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start("vault-faults").await?;
        let bao = OpenBao::start(&plane.scratch, "bao").await?;
        let role = bao.prepare().await?.role;
        let dir = plane.scratch.subdir("plugin")?;
        let secret_id = dir.join("secret-id");
        fs::write(&secret_id, role.secret_id().await?)?;
        let gateway = Gateway::start(bao.socket_address()).await?;
        let listen = format!("unix://{}", dir.join("kms.sock").display());
        let coast = format!("{}s", COAST.as_secs());
        let address = format!("https://{}", gateway.address());
        let config = json!({
            "probe": {"interval": "1s", "timeout": "2s", "coast": coast},
            "keys": [{
                "id": 1, "listen": listen, "kek": {"key": "kms"},
                "settings": {"address": address, "tls": {"caFile": bao.ca()}},
                "credentials": {"appRole": {"roleId": role.role_id, "secretIdFile": secret_id}},
            }],
        });
        let plugin = VaultPlugin::start(&dir, "plugin", &config).await?;
        let sufferer = Sufferer::start(plane, plugin, listen).await?;
        Ok(Self { gateway, bao, role, secret_id, sufferer })
    }
}

/// A login is made inside the very call that needs it.
async fn revoked_tokens_are_not_even_felt(scene: &mut Scene, load: &Load) -> Result<()> {
    for _ in 0..3 {
        let revoked = scene.bao.root().revoke_logins("approle").await?;
        ensure!(revoked > 0, "no token was out");
        let Sufferer { client, sealed, .. } = &scene.sufferer;
        scene.sufferer.unwraps().await?;
        let status = client.status().await.context("Status wavers")?;
        ensure!(status.healthz == "ok" && status.key_id == sealed.key_id, "{status:?}");
    }
    load.more(MEANWHILE).await
}

async fn vault_is_sealed(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.bao.seal().await?;
    scene.sufferer.is_felt_after_the_coast("sealed", load).await?;
    scene.sufferer.is_seen_by_the_apiserver(load).await?;
    scene.bao.unseal().await?;
    scene.sufferer.heals_for_the_apiserver(load).await
}

async fn vault_is_down(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.bao.process().kill()?;
    scene.sufferer.is_felt_after_the_coast("unavailable", load).await?;
    scene.bao.revive().await?;
    scene.sufferer.heals().await
}

async fn vault_has_five_seconds_of_latency(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.gateway.inject(Fault::Slow(Duration::from_secs(5)));
    scene.sufferer.is_felt_after_the_coast("in time", load).await?;
    scene.gateway.heal();
    scene.sufferer.heals().await
}

async fn vault_throttles(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.bao.root().limit("few", "transit", 0.1).await?;
    scene.sufferer.is_felt_after_the_coast("throttled", load).await?;
    scene.bao.root().unlimit("few").await?;
    scene.sufferer.heals().await
}

/// For good, so neither the plugin nor the shim in front of it coasts. A new
/// secret-id in its file is all that is needed.
async fn everything_that_was_given_is_revoked(scene: &mut Scene, load: &Load) -> Result<()> {
    let secret_id = fs::read_to_string(&scene.secret_id)?;
    scene.role.revoke(&secret_id).await?;
    scene.bao.root().revoke_logins("approle").await?;
    let error = scene.sufferer.first_error().await?;
    scene.sufferer.is_felt(&error, "denied").await?;
    load.more(MEANWHILE).await?;
    fs::write(&scene.secret_id, scene.role.secret_id().await?)?;
    scene.sufferer.heals().await?;
    load.more(MEANWHILE).await
}
