//! Promise: a cluster moves from one KMS vendor to another and back while it
//! works. No request fails, no kube-apiserver restarts; when all is rewritten
//! the old vendor can be switched off, and everything stays readable.
//!
//! AWS is moto, reached with the Go plugin's flags; Vault is a real OpenBao
//! over TLS, with AppRole. The rewriting of stored objects is done by the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::json;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::aws::{AwsPlugin, Moto};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::shim::replicas::{PROVIDER, key_number};
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, KubeClient, Load, LoadOptions, OpenBao, Shim,
    Stored, VaultPlugin,
};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 150;

/// A key as a node's shim is told of it.
#[derive(Clone, Copy)]
enum Key {
    Aws(u64),
    Vault(u64),
}

/// One control-plane node. Dropped, and so ended, in this order.
struct Node {
    server: KubeApiserver,
    shim: Shim,
    aws: AwsPlugin,
    vault: VaultPlugin,
    vault_endpoint: String,
}

impl Node {
    fn endpoint(&self, key: Key) -> (u64, String) {
        match key {
            Key::Aws(id) => (id, self.aws.endpoint("kms")),
            Key::Vault(id) => (id, self.vault_endpoint.clone()),
        }
    }

    /// Loads a revision with that write key and those read keys.
    async fn load(&mut self, revision: u64, write: Key, read: &[Key]) -> Result<()> {
        let (id, endpoint) = self.endpoint(write);
        let mut config = ShimConfig::new(revision).write(id, endpoint);
        for (id, endpoint) in read.iter().map(|key| self.endpoint(*key)) {
            config = config.read(id, endpoint);
        }
        self.shim.load(&config).await
    }
}

/// Dropped, and so ended, in this order.
struct Scene {
    nodes: Vec<Node>,
    moto: Moto,
    bao: OpenBao,
    plane: ControlPlane,
}

#[tokio::test]
async fn from_aws_to_vault_and_back_without_a_failed_request_or_a_restart() {
    let mut scene = Scene::start().await.unwrap();
    let pids = scene.server_pids();
    let load = scene.load().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.everything_is_under(1).await.unwrap();

    scene.migrate(2, Key::Aws(1), Key::Vault(2), &load).await.unwrap();
    aws_goes_away(&mut scene, &load).await.unwrap();

    scene.migrate(5, Key::Vault(2), Key::Aws(3), &load).await.unwrap();
    vault_goes_away(&mut scene, &load).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout two changes of the vendor {report}");
    assert_eq!(scene.server_pids(), pids, "a kube-apiserver has restarted");
    // With no unwrapped key in memory, what is left must do.
    scene.nodes[0].server.restart().await.unwrap();
    scene.everything_is_under(3).await.unwrap();
}

/// The whole vendor is gone: the plugins of all nodes and the KMS itself.
async fn aws_goes_away(scene: &mut Scene, load: &Load) -> Result<()> {
    for node in &mut scene.nodes {
        node.aws.process().kill()?;
    }
    scene.moto.process().pause()?;
    load.more(BETWEEN_STEPS).await?;
    scene.everything_is_under(2).await?;
    scene.moto.process().resume()?;
    for node in &mut scene.nodes {
        node.aws.restart().await?;
    }
    Ok(())
}

async fn vault_goes_away(scene: &mut Scene, load: &Load) -> Result<()> {
    for node in &mut scene.nodes {
        node.vault.process().kill()?;
    }
    scene.bao.process().kill()?;
    load.more(BETWEEN_STEPS).await?;
    scene.everything_is_under(3).await
}

impl Scene {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start("vendor-migration").await?;
        let moto = Moto::start(plane.scratch.path()).await?;
        let arn = moto.owner().create_key().await?;
        let bao = OpenBao::start(&plane.scratch, "bao").await?;
        let role = bao.prepare().await?.role;
        fs::write(plane.scratch.subdir("vault")?.join("secret-id"), role.secret_id().await?)?;
        let mut scene = Self { nodes: Vec::new(), moto, bao, plane };
        for name in ["a", "b"] {
            let node = scene.node(name, &arn, &role.role_id).await?;
            scene.nodes.push(node);
        }
        Ok(scene)
    }

    async fn node(&self, name: &str, arn: &str, role_id: &str) -> Result<Node> {
        let scratch = &self.plane.scratch;
        let aws = AwsPlugin::start(scratch, &format!("aws-{name}"), arn, &self.moto.url()).await?;
        let dir = scratch.subdir(&format!("vault-{name}"))?;
        let vault_endpoint = format!("unix://{}", dir.join("kms.sock").display());
        let secret_id = scratch.subdir("vault")?.join("secret-id");
        let config = json!({"keys": [{
            "id": 2, "type": "vault", "listen": vault_endpoint,
            "kek": {"mount": "transit", "key": "kms"},
            "settings": {"address": self.bao.address(), "tls": {"caFile": self.bao.ca()}},
            "credentials": {"appRole": {"roleId": role_id, "secretIdFile": secret_id}},
        }]});
        let vault = VaultPlugin::start(&dir, name, &config).await?;
        let config = ShimConfig::new(1).write(1, aws.endpoint("kms"));
        let shim = Shim::start(scratch, &format!("shim-{name}"), &config).await?;
        let encryption = EncryptionConfiguration::kms(PROVIDER, shim.endpoint());
        let options = Options::new(name).encryption(encryption);
        let server = KubeApiserver::start(&self.plane, options).await?;
        Ok(Node { server, shim, aws, vault, vault_endpoint })
    }

    fn load(&self) -> Result<Load> {
        let rest = std::time::Duration::from_millis(50);
        let clients = self.nodes.iter().map(|node| node.server.client()).collect();
        Load::start(clients, LoadOptions { rest, ..LoadOptions::default() })
    }

    fn server_pids(&mut self) -> Vec<Option<u32>> {
        self.nodes.iter_mut().map(|node| node.server.process().pid()).collect()
    }

    /// A whole rotation, one replica after the other: read, write, rewrite, drop.
    async fn migrate(&mut self, revision: u64, old: Key, new: Key, load: &Load) -> Result<()> {
        for node in &mut self.nodes {
            node.load(revision, old, &[new]).await?;
            load.more(BETWEEN_STEPS).await?;
        }
        for node in &mut self.nodes {
            node.load(revision + 1, new, &[old]).await?;
            let announced = node.shim.key_id_hash().await?;
            node.server.wait_key_id(PROVIDER, &announced).await?;
            load.more(BETWEEN_STEPS).await?;
        }
        self.rewrite_everything().await?;
        for node in &mut self.nodes {
            node.load(revision + 2, new, &[]).await?;
            load.more(BETWEEN_STEPS).await?;
        }
        Ok(())
    }

    /// An update of each stored object with itself, as storage migration does it.
    async fn rewrite_everything(&self) -> Result<()> {
        for kind in Kind::ALL {
            let prefix = format!("/registry/{}/", kind.plural());
            for (number, entry) in self.plane.etcd.list(&prefix).await?.iter().enumerate() {
                let place = entry.key.strip_prefix(&prefix).and_then(|rest| rest.split_once('/'));
                let (namespace, name) = place.with_context(|| entry.key.clone())?;
                let path = format!("/api/v1/namespaces/{namespace}/{}/{name}", kind.plural());
                rewrite(&self.nodes[number % 2].server.client(), &path).await?;
            }
        }
        Ok(())
    }

    /// Everything stored is under that key; each node's shim can unwrap it now, and each
    /// kube-apiserver shows it.
    async fn everything_is_under(&self, wanted: u64) -> Result<()> {
        let (mut census, mut wrapped) = (BTreeMap::new(), BTreeSet::new());
        for kind in Kind::ALL {
            let entries = self.plane.etcd.list(&format!("/registry/{}/", kind.plural())).await?;
            for entry in entries {
                *census.entry(key_number(&entry.value)?).or_insert(0) += 1;
                let object = Stored::parse(&entry.value)?.object;
                wrapped.insert((object.key_id, object.encrypted_dek_source, object.annotations));
            }
            for node in &self.nodes {
                node.server.client().list(kind, "default").await?;
            }
        }
        println!("objects by key: {census:?}, wrapped keys: {}", wrapped.len());
        ensure!(census.keys().eq([&wanted]), "not all is under key {wanted}: {census:?}");
        for node in &self.nodes {
            let shim = KmsClient::connect(&node.shim.endpoint()).await?;
            for (key_id, ciphertext, annotations) in wrapped.clone() {
                shim.decrypt(&EncryptResponse { ciphertext, key_id, annotations }).await?;
            }
        }
        Ok(())
    }
}

/// Loses against no other writer and does not mind a deletion.
async fn rewrite(client: &KubeClient, path: &str) -> Result<()> {
    loop {
        let found = client.raw(path).await?;
        if found.status == 404 {
            return Ok(());
        }
        let object = found.ok()?.json()?;
        let Err(error) = client.send(Method::PUT, path, Some(&object)).await else { return Ok(()) };
        let now = client.raw(path).await?;
        let conflict = now.status == 404
            || now.ok()?.json()?["metadata"]["resourceVersion"]
                != object["metadata"]["resourceVersion"];
        ensure!(conflict, "{error:#}");
    }
}
