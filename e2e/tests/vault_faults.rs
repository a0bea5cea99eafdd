//! Promise: while Vault is sealed, away, slow, throttles or has revoked what it
//! gave out, running kube-apiservers go on: what they have unwrapped stays
//! readable, writes go on within their window, Status turns into an error by the
//! documented rule alone, and all heals by itself. No request fails in all that
//! time.
//!
//! Vault is a real OpenBao over TLS, which is really sealed, killed and limited;
//! latency is simulated by a gateway in front of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::gateway::{Fault, Gateway};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, OpenBao, Shim, VaultPlugin,
    eventually,
};

/// Short, so that a test sees the end of it; long enough to be seen.
const COAST: Duration = Duration::from_secs(3);

/// Requests while a fault is on and after it.
const MEANWHILE: u64 = 100;

/// Dropped, and so ended, in this order.
struct Scene {
    client: KmsClient,
    server: KubeApiserver,
    shim: Shim,
    plugin: VaultPlugin,
    gateway: Gateway,
    bao: OpenBao,
    role: AppRole,
    secret_id: PathBuf,
    sealed: EncryptResponse,
    _plane: ControlPlane,
}

#[tokio::test]
async fn faults_of_vault_fail_no_request_and_heal_by_themselves() {
    let mut scene = Scene::start().await.unwrap();
    let load = scene.load().unwrap();
    load.more(MEANWHILE).await.unwrap();

    revoked_tokens_are_not_even_felt(&mut scene, &load).await.unwrap();
    vault_is_sealed(&mut scene, &load).await.unwrap();
    vault_is_down(&mut scene, &load).await.unwrap();
    vault_has_five_seconds_of_latency(&mut scene, &load).await.unwrap();
    vault_throttles(&mut scene, &load).await.unwrap();
    everything_that_was_given_is_revoked(&mut scene, &load).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout six faults {report}");
    scene.server.restart().await.unwrap();
    for kind in Kind::ALL {
        let read = scene.server.client().list(kind, "default").await.unwrap();
        assert!(!read.is_empty(), "there is no {kind:?}");
    }
}

impl Scene {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start("vault-faults").await?;
        let bao = OpenBao::start(&plane.scratch, "bao").await?;
        let root = bao.root();
        root.enable("transit", "transit").await?;
        root.enable_auth("approle", "approle").await?;
        root.make_key("transit", "kms").await?;
        let rules: [(&str, &[&str]); 3] = [
            ("transit/keys/kms", &["read"]),
            ("transit/encrypt/kms", &["update"]),
            ("transit/decrypt/kms", &["update"]),
        ];
        root.policy("kms", &rules).await?;
        let role = AppRole::create(&root, "approle", "kms", &["kms"], &json!({})).await?;
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
        let config = ShimConfig::new(1).write(1, listen).probe("1s", "2s").coast(&coast);
        let shim = Shim::start(&plane.scratch, "shim", &config).await?;
        let encryption = EncryptionConfiguration::kms("sidekey", shim.endpoint());
        let server = KubeApiserver::start(&plane, Options::new("a").encryption(encryption)).await?;
        let client = KmsClient::connect(&shim.endpoint()).await?;
        let sealed = client.round_trip(b"before all faults").await?;
        let _plane = plane;
        Ok(Self { client, server, shim, plugin, gateway, bao, role, secret_id, sealed, _plane })
    }

    fn load(&self) -> Result<Load> {
        let rest = Duration::from_millis(40);
        let options = LoadOptions { writers: 2, readers: 1, rest, ..Default::default() };
        Load::start(vec![self.server.client()], options)
    }

    /// Asks for Status until it fails; until then it must be as before.
    async fn first_error(&self) -> Result<tonic::Status> {
        let key_id = &self.sealed.key_id;
        eventually("Status becomes an error", PATIENCE, async || match self.client.status().await {
            Err(error) => Ok(error),
            Ok(status) if status.key_id == *key_id && status.healthz == "ok" => bail!("it is ok"),
            Ok(status) => Ok(tonic::Status::internal(format!("{status:?}"))),
        })
        .await
    }

    /// A passing fault is on: Status is ok for the coast, then an error that
    /// tells why, and so does the plugin's own. Meanwhile the load goes on.
    async fn is_felt_after_the_coast(&self, began: Instant, why: &str, load: &Load) -> Result<()> {
        let error = self.first_error().await?;
        ensure!(began.elapsed() >= COAST, "Status failed after {:?}: {error}", began.elapsed());
        self.is_felt(&error, why).await?;
        load.more(MEANWHILE).await
    }

    async fn is_felt(&self, error: &tonic::Status, why: &str) -> Result<()> {
        ensure!(error.code() == tonic::Code::Unavailable, "{error}");
        ensure!(error.message().contains("write key 1"), "{error}");
        let status = self.plugin.status().await?;
        let key = &status["keys"][0];
        ensure!(key["healthy"] == false, "{status}");
        ensure!(key["last_error"].to_string().contains(why), "no {why} in {status}");
        ensure!(self.client.decrypt(&self.sealed).await.is_err(), "yet Vault has answered");
        Ok(())
    }

    async fn heals(&mut self) -> Result<()> {
        let Self { client, shim, sealed, .. } = self;
        shim.process()
            .wait_until("Status heals", PATIENCE, async || {
                let status = client.status().await?;
                ensure!(status.key_id == sealed.key_id, "key_id has become {}", status.key_id);
                Ok(())
            })
            .await?;
        ensure!(client.decrypt(sealed).await? == "before all faults");
        let again = client.round_trip(b"afterwards").await?;
        ensure!(again.key_id == sealed.key_id, "key_id has become {}", again.key_id);
        Ok(())
    }
}

/// A login is made inside the very call that needs it.
async fn revoked_tokens_are_not_even_felt(scene: &mut Scene, load: &Load) -> Result<()> {
    for _ in 0..3 {
        let revoked = scene.bao.root().revoke_logins("approle").await?;
        ensure!(revoked > 0, "no token was out");
        ensure!(scene.client.decrypt(&scene.sealed).await? == "before all faults");
        let status = scene.client.status().await.context("Status wavers")?;
        ensure!(status.healthz == "ok" && status.key_id == scene.sealed.key_id, "{status:?}");
    }
    load.more(MEANWHILE).await
}

async fn vault_is_sealed(scene: &mut Scene, load: &Load) -> Result<()> {
    let began = Instant::now();
    scene.bao.seal().await?;
    scene.is_felt_after_the_coast(began, "sealed", load).await?;
    // kube-apiserver sees it, is not ready, and serves all the same.
    scene.server.wait_kms_providers(false).await?;
    load.more(MEANWHILE).await?;
    scene.bao.unseal().await?;
    scene.heals().await?;
    scene.server.wait_kms_providers(true).await?;
    load.more(MEANWHILE).await
}

async fn vault_is_down(scene: &mut Scene, load: &Load) -> Result<()> {
    let began = Instant::now();
    scene.bao.process().kill()?;
    scene.is_felt_after_the_coast(began, "unavailable", load).await?;
    scene.bao.revive().await?;
    scene.heals().await
}

async fn vault_has_five_seconds_of_latency(scene: &mut Scene, load: &Load) -> Result<()> {
    let began = Instant::now();
    scene.gateway.inject(Fault::Slow(Duration::from_secs(5)));
    scene.is_felt_after_the_coast(began, "in time", load).await?;
    scene.gateway.heal();
    scene.heals().await
}

async fn vault_throttles(scene: &mut Scene, load: &Load) -> Result<()> {
    let began = Instant::now();
    scene.bao.root().limit("few", "transit", 0.1).await?;
    scene.is_felt_after_the_coast(began, "throttled", load).await?;
    scene.bao.root().unlimit("few").await?;
    scene.heals().await
}

/// For good, so the plugin does not coast; the shim in front of it does. A new
/// secret-id in its file is all that is needed.
async fn everything_that_was_given_is_revoked(scene: &mut Scene, load: &Load) -> Result<()> {
    let secret_id = fs::read_to_string(&scene.secret_id)?;
    scene.role.revoke(&secret_id).await?;
    scene.bao.root().revoke_logins("approle").await?;
    let error = scene.first_error().await?;
    scene.is_felt(&error, "denied").await?;
    load.more(MEANWHILE).await?;
    fs::write(&scene.secret_id, scene.role.secret_id().await?)?;
    scene.heals().await?;
    load.more(MEANWHILE).await
}
