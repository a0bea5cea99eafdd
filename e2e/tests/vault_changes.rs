//! Promise: what changes at Vault while everything runs is taken over behind
//! kube-apiserver's back. A rotation in Vault moves key_id and new writes; a new
//! secret-id, the old one revoked with all its tokens, and a new CA move
//! nothing. No request fails, no kube-apiserver restarts, and everything stays
//! readable.
//!
//! Vault is a real OpenBao over TLS.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::openbao::client::TransitKey;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, OpenBao, Shim, Stored,
    VaultPlugin, eventually,
};

const PROVIDER: &str = "sidekey";

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 150;

/// Dropped, and so ended, in this order.
struct Node {
    server: KubeApiserver,
    shim: Shim,
    plugin: VaultPlugin,
}

struct Scene {
    nodes: Vec<Node>,
    bao: OpenBao,
    key: TransitKey,
    role: AppRole,
    secret_id: PathBuf,
    bundle: PathBuf,
    plane: ControlPlane,
}

#[tokio::test]
async fn rotation_secret_ids_and_cas_change_without_a_failed_request() {
    let mut scene = Scene::start().await.unwrap();
    let pids: Vec<_> = scene.nodes.iter_mut().map(|node| node.server.process().pid()).collect();
    let load = scene.load().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    let old = scene.write("before").await.unwrap();
    a_rotation_in_vault_moves_new_writes(&mut scene, &load, &old).await.unwrap();
    let new = scene.write("between").await.unwrap();
    assert_ne!(old, new);
    a_new_secret_id_is_taken_over_and_the_old_one_revoked(&mut scene, &load).await.unwrap();
    a_new_ca_is_taken_over(&mut scene, &load).await.unwrap();
    assert_eq!(scene.write("after").await.unwrap(), new, "neither has moved key_id");

    load.more(BETWEEN_STEPS).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout three changes {report}");
    let now: Vec<_> = scene.nodes.iter_mut().map(|node| node.server.process().pid()).collect();
    assert_eq!(now, pids, "a kube-apiserver has restarted");
    everything_reads_after_a_restart(&mut scene, &old, &new).await.unwrap();
}

impl Scene {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start("vault-changes").await?;
        let bao = OpenBao::start(&plane.scratch, "bao").await?;
        let root = bao.root();
        root.enable("transit", "transit").await?;
        root.enable_auth("approle", "approle").await?;
        let key = root.make_key("transit", "kms").await?;
        let rules: [(&str, &[&str]); 3] = [
            ("transit/keys/kms", &["read"]),
            ("transit/encrypt/kms", &["update"]),
            ("transit/decrypt/kms", &["update"]),
        ];
        root.policy("kms", &rules).await?;
        let role = AppRole::create(&root, "approle", "kms", &["kms"], &json!({})).await?;
        let shared = plane.scratch.subdir("vault")?;
        let (secret_id, bundle) = (shared.join("secret-id"), shared.join("ca.pem"));
        fs::write(&secret_id, role.secret_id().await?)?;
        fs::write(&bundle, bao.authority().pem())?;
        let mut scene = Self { nodes: Vec::new(), bao, key, role, secret_id, bundle, plane };
        for name in ["a", "b"] {
            let node = scene.node(name).await?;
            scene.nodes.push(node);
        }
        Ok(scene)
    }

    async fn node(&self, name: &str) -> Result<Node> {
        let scratch = &self.plane.scratch;
        let dir = scratch.subdir(&format!("plugin-{name}"))?;
        let listen = format!("unix://{}", dir.join("kms.sock").display());
        let config = json!({
            "probe": {"interval": "1s", "timeout": "2s"},
            "keys": [{
                "id": 1, "listen": listen,
                "kek": {"keyPath": self.key.key_path()},
                "settings": {"address": self.bao.address(), "tls": {"caFile": self.bundle}},
                "credentials": {
                    "appRole": {"roleId": self.role.role_id, "secretIdFile": self.secret_id},
                },
            }],
        });
        let plugin = VaultPlugin::start(&dir, name, &config).await?;
        let config = ShimConfig::new(1).write(1, listen).probe("1s", "2s");
        let shim = Shim::start(scratch, &format!("shim-{name}"), &config).await?;
        let encryption = EncryptionConfiguration::kms(PROVIDER, shim.endpoint());
        let options = Options::new(name).encryption(encryption);
        let server = KubeApiserver::start(&self.plane, options).await?;
        Ok(Node { server, shim, plugin })
    }

    fn load(&self) -> Result<Load> {
        let clients = self.nodes.iter().map(|node| node.server.client()).collect();
        let rest = Duration::from_millis(40);
        Load::start(clients, LoadOptions { writers: 2, readers: 1, rest, ..Default::default() })
    }

    /// Writes through each replica, reads through the other, and tells the key_id in etcd.
    async fn write(&self, name: &str) -> Result<String> {
        let mut seen = None;
        for (index, node) in self.nodes.iter().enumerate() {
            let (name, other) = (format!("{name}-{index}"), &self.nodes[1 - index]);
            for kind in Kind::ALL {
                node.server.client().create(kind, "default", &name, &[("word", &name)]).await?;
                let data = other.server.client().read(kind, "default", &name).await?;
                ensure!(data["word"] == name, "{name} holds {data:?}");
                let key_id = self.stored(kind, &name).await?;
                let first = seen.get_or_insert_with(|| key_id.clone());
                ensure!(*first == key_id, "{name} is stored under {key_id}, others under {first}");
            }
        }
        seen.context("nothing was written")
    }

    async fn stored(&self, kind: Kind, name: &str) -> Result<String> {
        let raw = self.plane.etcd.raw(&kind.etcd_key("default", name)).await?;
        Ok(Stored::parse(&raw)?.object.key_id)
    }

    /// Waits until both plugins have taken over that many sets of files.
    async fn reloaded(&self, times: f64) -> Result<()> {
        eventually("both plugins have taken over the files", PATIENCE, async || {
            for node in &self.nodes {
                let metrics = node.plugin.metrics().await?;
                let reloads = metrics.sum("kms_reloads_total", &[("result", "success")]);
                ensure!(reloads >= times, "{reloads} reloads");
            }
            Ok(())
        })
        .await
    }

    /// Each link of the chain is well, and really asks Vault.
    async fn is_well(&self) -> Result<()> {
        for node in &self.nodes {
            let client = KmsClient::connect(&node.shim.endpoint()).await?;
            client.round_trip(b"is everything well?").await?;
            ensure!(node.server.readyz().await?["kms-providers"], "kms-providers is bad");
        }
        Ok(())
    }
}

async fn a_rotation_in_vault_moves_new_writes(
    scene: &mut Scene,
    load: &Load,
    old: &str,
) -> Result<()> {
    let version = scene.key.rotate().await?;
    let before = sidekey_e2e::stored::key_id_hash(old);
    for node in &mut scene.nodes {
        let hash = node.shim.wait_status("key_id moves", |status| {
            let hash = status["key_id_hash"].as_str().context("no key_id_hash")?;
            ensure!(hash != before, "it is still {before}");
            Ok(hash.to_owned())
        });
        let hash = hash.await?;
        node.server.wait_key_id(PROVIDER, &hash).await?;
        load.more(BETWEEN_STEPS).await?;
    }
    let new = scene.write("rotated").await?;
    ensure!(new.ends_with(&format!("/{version}")), "new writes are under {new}");
    Ok(())
}

async fn a_new_secret_id_is_taken_over_and_the_old_one_revoked(
    scene: &mut Scene,
    load: &Load,
) -> Result<()> {
    let old = fs::read_to_string(&scene.secret_id)?;
    fs::write(&scene.secret_id, scene.role.secret_id().await?)?;
    scene.reloaded(2.0).await?;
    scene.role.revoke(&old).await?;
    let tokens = scene.bao.root().revoke_logins("approle").await?;
    ensure!(tokens >= scene.nodes.len(), "only {tokens} tokens were out");
    load.more(BETWEEN_STEPS).await?;
    scene.is_well().await
}

async fn a_new_ca_is_taken_over(scene: &mut Scene, load: &Load) -> Result<()> {
    let (old, new) = (scene.bao.authority().pem(), Arc::new(Authority::new("second CA")?));
    fs::write(&scene.bundle, format!("{old}{}", new.pem()))?;
    scene.reloaded(3.0).await?;
    scene.bao.change_authority(new.clone()).await?;
    load.more(BETWEEN_STEPS).await?;
    fs::write(&scene.bundle, new.pem())?;
    scene.reloaded(4.0).await?;
    load.more(BETWEEN_STEPS).await?;
    scene.is_well().await
}

/// A restarted kube-apiserver has no unwrapped keys left: Vault unwraps each generation.
async fn everything_reads_after_a_restart(scene: &mut Scene, old: &str, new: &str) -> Result<()> {
    scene.nodes[0].plugin.restart().await?;
    scene.nodes[0].plugin.wait_ready().await?;
    scene.nodes[0].server.restart().await?;
    let client = scene.nodes[0].server.client();
    for (name, key_id) in [("before-1", old), ("between-0", new), ("after-1", new)] {
        for kind in Kind::ALL {
            ensure!(scene.stored(kind, name).await? == key_id, "{name} was rewritten");
            let data = client.read(kind, "default", name).await?;
            ensure!(data["word"] == name, "{name} holds {data:?}");
        }
    }
    for kind in Kind::ALL {
        client.list(kind, "default").await?;
    }
    Ok(())
}
