//! Promise: what changes at AWS while everything runs is taken over behind
//! kube-apiserver's back. On-demand rotation moves key_id and new writes; a new
//! web identity token, the old one revoked, and a new CA move nothing. No
//! request fails, no kube-apiserver restarts, and everything stays readable.
//!
//! AWS is moto; rotation, tokens and revocation are simulated on top of it. TLS
//! ends at a gateway in front of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::aws::{AwsPlugin, Moto, REGION};
use sidekey_e2e::gateway::Gateway;
use sidekey_e2e::pki::Authority;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, Shim, Stored, eventually,
};

const PROVIDER: &str = "sidekey";
const ROLE: &str = "arn:aws:iam::123456789012:role/kms-provider";

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 150;

/// Dropped, and so ended, in this order.
struct Node {
    server: KubeApiserver,
    shim: Shim,
    plugin: AwsPlugin,
}

struct Scene {
    nodes: Vec<Node>,
    gateway: Gateway,
    moto: Moto,
    key: String,
    token: PathBuf,
    bundle: PathBuf,
    ca: Authority,
    plane: ControlPlane,
}

#[tokio::test]
async fn rotation_tokens_and_cas_change_without_a_failed_request() {
    let mut scene = Scene::start().await.unwrap();
    let pids: Vec<_> = scene.nodes.iter_mut().map(|node| node.server.process().pid()).collect();
    let load = scene.load().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    let old = scene.write("before").await.unwrap();
    on_demand_rotation_moves_new_writes(&mut scene, &load, &old).await.unwrap();
    let new = scene.write("between").await.unwrap();
    a_new_token_is_taken_over_and_the_old_one_revoked(&mut scene, &load).await.unwrap();
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
        let mut scene = Self { nodes: Vec::new(), gateway, moto, key, token, bundle, ca, plane };
        for name in ["a", "b"] {
            let node = scene.node(name).await?;
            scene.nodes.push(node);
        }
        Ok(scene)
    }

    async fn node(&self, name: &str) -> Result<Node> {
        let (plugin, scratch) = (format!("plugin-{name}"), &self.plane.scratch);
        let url = format!("https://{}", self.gateway.address());
        let config = json!({
            "probe": {"interval": "1s", "timeout": "2s"},
            "keys": [{
                "id": 1,
                "listen": scratch.subdir(&plugin)?.join("kms.sock"),
                "kek": {"key": self.key, "region": REGION, "encryptionContext": {"cluster": "e2e"}},
                "settings": {"endpoint": url, "stsEndpoint": url, "caBundle": self.bundle},
                "credentials": {"roleArn": ROLE, "webIdentityTokenFile": self.token},
            }],
        });
        let env = [("AWS_EC2_METADATA_DISABLED", "true")];
        let mut plugin = AwsPlugin::configured(scratch, &plugin, &config, &env).await?;
        plugin.wait_ready().await?;
        let config = ShimConfig::new(1).write(1, plugin.endpoint("kms")).probe("1s", "2s");
        let shim = Shim::start(scratch, &format!("shim-{name}"), &config).await?;
        let encryption = EncryptionConfiguration::kms(PROVIDER, shim.endpoint());
        let options = Options::new(name).encryption(encryption);
        let server = KubeApiserver::start(&self.plane, options).await?;
        Ok(Node { server, shim, plugin })
    }

    fn load(&self) -> Result<Load> {
        let clients = self.nodes.iter().map(|node| node.server.client()).collect();
        let rest = std::time::Duration::from_millis(40);
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
    for node in &mut scene.nodes {
        let before = sidekey_e2e::stored::key_id_hash(old);
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
        for node in &scene.nodes {
            let metrics = node.plugin.metrics().await?;
            ensure!(metrics.sum("kms_reloads_total", &[("result", "success")]) >= 2.0, "not yet");
        }
        Ok(())
    })
    .await?;
    moto.accept_tokens(&["token-2"]).await?;
    moto.revoke_sessions_of("token-1", "ExpiredTokenException").await?;
    load.more(BETWEEN_STEPS).await?;
    is_well(scene).await
}

async fn a_new_ca_is_taken_over(scene: &mut Scene, load: &Load) -> Result<()> {
    let new = Authority::new("second CA")?;
    fs::write(&scene.bundle, format!("{}{}", scene.ca.pem(), new.pem()))?;
    reloaded(scene, 3.0).await?;
    let dir = scene.plane.scratch.subdir("aws")?;
    scene.gateway.present(&new.server(&dir, "second")?)?;
    load.more(BETWEEN_STEPS).await?;
    fs::write(&scene.bundle, new.pem())?;
    reloaded(scene, 4.0).await?;
    scene.ca = new;
    load.more(BETWEEN_STEPS).await?;
    is_well(scene).await
}

async fn reloaded(scene: &Scene, times: f64) -> Result<()> {
    eventually("both plugins have taken the bundle", PATIENCE, async || {
        for node in &scene.nodes {
            let metrics = node.plugin.metrics().await?;
            let reloads = metrics.sum("kms_reloads_total", &[("result", "success")]);
            ensure!(reloads >= times, "{reloads} reloads");
        }
        Ok(())
    })
    .await
}

/// Each link of the chain is well, and really asks AWS.
async fn is_well(scene: &mut Scene) -> Result<()> {
    for node in &mut scene.nodes {
        let client = sidekey_e2e::kms::KmsClient::connect(&node.shim.endpoint()).await?;
        client.round_trip(b"is everything well?").await?;
        ensure!(node.server.readyz().await?["kms-providers"], "kms-providers is bad");
    }
    Ok(())
}

/// A restarted kube-apiserver has no unwrapped keys left: AWS unwraps each generation.
async fn everything_reads_after_a_restart(scene: &mut Scene, old: &str, new: &str) -> Result<()> {
    scene.nodes[0].plugin.restart().await?;
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
