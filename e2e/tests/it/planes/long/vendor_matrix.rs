//! Promise: a cluster moves from one KMS vendor to the next, through all of them and back to the
//! first, while it works. No request fails, no kube-apiserver restarts, and what every vendor
//! wrote stays readable, also for a kube-apiserver that knows nothing yet. Once all is rewritten the
//! others can be gone.
//!
//! Which vendors there are, and what stands for each of them, is in `sidekey_e2e::vendor`. The
//! rewriting of stored objects is done by the test.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::shim::replicas::{PROVIDER, key_number};
use sidekey_e2e::vendor::{Kms, Provider, every};
use sidekey_e2e::wait::BROKEN;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, KubeClient, Load, LoadOptions, Shim, Stored,
};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 100;

/// One control-plane node. Dropped, and so ended, in this order.
struct Node {
    server: KubeApiserver,
    shim: Shim,
    /// One of each vendor.
    providers: Vec<Provider>,
}

impl Node {
    /// Keys count from 1, and go round the vendors.
    fn endpoint(&self, key: usize) -> &str {
        &self.providers[(key - 1) % self.providers.len()].endpoint
    }

    /// Loads a revision in which that key writes, and all others up to `newest` read.
    async fn load(&mut self, revision: u64, write: usize, newest: usize) -> Result<()> {
        let mut config = ShimConfig::new(revision);
        for key in 1..=newest {
            let (id, endpoint) = (u64::try_from(key)?, self.endpoint(key));
            config =
                if key == write { config.write(id, endpoint) } else { config.read(id, endpoint) };
        }
        self.shim.load(&config).await
    }

    /// Waits until kube-apiserver writes under what the shim announces.
    async fn wait_written_key(&mut self) -> Result<()> {
        let announced = self.shim.key_id_hash().await?;
        self.server.wait_key_id(PROVIDER, &announced).await
    }
}

/// Dropped, and so ended, in this order.
struct Scene {
    nodes: [Node; 2],
    vendors: Vec<(&'static str, Box<dyn Kms>)>,
    plane: ControlPlane,
    revision: u64,
}

#[tokio::test]
async fn through_every_vendor_and_back_without_a_failed_request_or_a_restart() {
    let mut scene = Scene::start().await.unwrap();
    every_provider_there_is_takes_part(&scene);
    let pids = scene.server_pids();
    let load = scene.load().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.write(1).await.unwrap();

    let last = scene.vendors.len() + 1;
    for key in 2..=last {
        scene.move_to(key, &load).await.unwrap();
    }
    what_every_vendor_wrote_reads(&scene, last).await.unwrap();
    a_cold_kube_apiserver_reads_it_too(&scene, last).await.unwrap();
    scene.rewrite_everything().await.unwrap();
    all_but_the_first_vendor_go_away(&mut scene, last, &load).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout {} changes of the vendor {report}", last - 1);
    assert_eq!(scene.server_pids(), pids, "a kube-apiserver has restarted");
    // With no unwrapped key in memory, what is left must do.
    scene.nodes[0].server.restart().await.unwrap();
    scene.keys_in_use(last..=last).await.unwrap();
    for node in &scene.nodes {
        report.all_reads(&node.server.client(), "default").await.unwrap();
        scene.markers_read(&node.server, last).await.unwrap();
    }
}

fn every_provider_there_is_takes_part(scene: &Scene) {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../providers");
    let folders = std::fs::read_dir(folders).unwrap().map(|entry| entry.unwrap());
    // What providers have in common is in crates without a program.
    let programs = folders.filter(|folder| folder.path().join("src/main.rs").is_file());
    let names = programs.map(|folder| folder.file_name().into_string().unwrap());
    let providers: BTreeSet<String> =
        names.filter(|name| !["conformance", "example"].contains(&name.as_str())).collect();
    let taking_part = scene.vendors.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(taking_part.collect::<BTreeSet<_>>(), providers, "vendor::every lacks somebody");
}

/// Nothing was rewritten: each vendor's objects are under its own key, and unwrapped by it.
async fn what_every_vendor_wrote_reads(scene: &Scene, last: usize) -> Result<()> {
    scene.keys_in_use(1..=last).await?;
    for key in 1..=last {
        for kind in Kind::ALL {
            let name = marker(key, 0);
            let raw = scene.plane.etcd.raw(&kind.etcd_key("default", &name)).await?;
            ensure!(key_number(&raw)? == u64::try_from(key)?, "{kind:?} {name} was rewritten");
        }
    }
    for node in &scene.nodes {
        scene.markers_read(&node.server, last).await?;
    }
    Ok(())
}

/// One more replica, behind the first one's shim: it has every DEK unwrapped.
async fn a_cold_kube_apiserver_reads_it_too(scene: &Scene, last: usize) -> Result<()> {
    let shim = &scene.nodes[0].shim;
    let before = decrypts(shim).await?;
    let encryption = EncryptionConfiguration::kms(PROVIDER, shim.endpoint());
    let options = Options::new("cold").encryption(encryption);
    let server = KubeApiserver::start(&scene.plane, options).await?;
    scene.markers_read(&server, last).await?;
    let asked = decrypts(shim).await? - before;
    ensure!(asked >= last as f64, "only {asked} DEKs were unwrapped for {last} keys");
    Ok(())
}

async fn decrypts(shim: &Shim) -> Result<f64> {
    let labels = [("operation", "decrypt"), ("code", "OK")];
    Ok(shim.metrics().await?.sum("kms_shim_requests_total", &labels))
}

/// Their providers on all nodes, and their KMS.
async fn all_but_the_first_vendor_go_away(
    scene: &mut Scene,
    last: usize,
    load: &Load,
) -> Result<()> {
    scene.revision += 1;
    for node in &mut scene.nodes {
        let config = ShimConfig::new(scene.revision);
        let config = config.write(u64::try_from(last)?, node.endpoint(last));
        node.shim.load(&config).await?;
        load.more(BETWEEN_STEPS).await?;
        for provider in &mut node.providers[1..] {
            provider.process().kill()?;
        }
    }
    for (_, kms) in &mut scene.vendors[1..] {
        kms.end()?;
    }
    load.more(BETWEEN_STEPS).await?;
    scene.keys_in_use(last..=last).await
}

/// What is written as soon as a key writes.
fn marker(key: usize, node: usize) -> String {
    format!("by-key-{key}-{node}")
}

impl Scene {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start("vendor-matrix").await?;
        let vendors = every(&plane.scratch).await?;
        let nodes = [node(&plane, &vendors, "a").await?, node(&plane, &vendors, "b").await?];
        Ok(Self { nodes, vendors, plane, revision: 1 })
    }

    fn load(&self) -> Result<Load> {
        let rest = Duration::from_millis(50);
        let clients = self.nodes.iter().map(|node| node.server.client()).collect();
        Load::start(clients, LoadOptions { rest, ..LoadOptions::default() })
    }

    fn server_pids(&mut self) -> Vec<Option<u32>> {
        self.nodes.iter_mut().map(|node| node.server.process().pid()).collect()
    }

    /// A rotation to the next vendor's key, one replica after the other: first all may read with
    /// it, then they write. All keys before it stay.
    async fn move_to(&mut self, key: usize, load: &Load) -> Result<()> {
        println!("key {key} is of {}", self.vendors[(key - 1) % self.vendors.len()].0);
        for write in [key - 1, key] {
            self.revision += 1;
            for node in &mut self.nodes {
                node.load(self.revision, write, key).await?;
                load.more(BETWEEN_STEPS).await?;
            }
        }
        // Both are asked all the time, so that neither waits for its own poll.
        let [a, b] = &mut self.nodes;
        tokio::try_join!(a.wait_written_key(), b.wait_written_key())?;
        self.write(key).await
    }

    /// Writes through each replica, reads through the other; all is under that key.
    async fn write(&self, key: usize) -> Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            let name = marker(key, index);
            for kind in Kind::ALL {
                node.server.client().create(kind, "default", &name, &[("word", &name)]).await?;
                let raw = self.plane.etcd.raw(&kind.etcd_key("default", &name)).await?;
                let number = key_number(&raw)?;
                ensure!(number == u64::try_from(key)?, "{kind:?} {name} is under key {number}");
            }
        }
        for node in &self.nodes {
            self.markers_read(&node.server, key).await?;
        }
        Ok(())
    }

    /// What was written under each key up to that one reads through this server.
    async fn markers_read(&self, server: &KubeApiserver, newest: usize) -> Result<()> {
        for kind in Kind::ALL {
            let listed = server.client().list(kind, "default").await?;
            for key in 1..=newest {
                for name in [marker(key, 0), marker(key, 1)] {
                    let found = listed.get(&name).and_then(|data| data.get("word"));
                    ensure!(found == Some(&name), "{BROKEN}{kind:?} {name} holds {found:?}");
                }
            }
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

    /// Just these keys have objects, and each node's shim unwraps all there is by asking whoever
    /// wrapped it.
    async fn keys_in_use(&self, wanted: std::ops::RangeInclusive<usize>) -> Result<()> {
        let (mut census, mut wrapped) = (BTreeMap::new(), BTreeSet::new());
        for kind in Kind::ALL {
            let entries = self.plane.etcd.list(&format!("/registry/{}/", kind.plural())).await?;
            for entry in entries {
                *census.entry(usize::try_from(key_number(&entry.value)?)?).or_insert(0) += 1;
                let object = Stored::parse(&entry.value)?.object;
                wrapped.insert((object.key_id, object.encrypted_dek_source, object.annotations));
            }
        }
        println!("objects by key: {census:?}, wrapped keys: {}", wrapped.len());
        ensure!(census.keys().copied().eq(wanted), "objects by key: {census:?}");
        for node in &self.nodes {
            let shim = KmsClient::connect(&node.shim.endpoint()).await?;
            for (key_id, ciphertext, annotations) in wrapped.clone() {
                shim.decrypt(&EncryptResponse { ciphertext, key_id, annotations }).await?;
            }
        }
        Ok(())
    }
}

async fn node(
    plane: &ControlPlane,
    vendors: &[(&'static str, Box<dyn Kms>)],
    name: &str,
) -> Result<Node> {
    let mut providers = Vec::new();
    for (index, (vendor, kms)) in vendors.iter().enumerate() {
        let name = format!("{vendor}-{index}-{name}");
        providers.push(kms.provider(&plane.scratch, &name).await?);
    }
    let config = ShimConfig::new(1).write(1, providers[0].endpoint.as_str());
    let shim = Shim::start(&plane.scratch, &format!("shim-{name}"), &config).await?;
    let encryption = EncryptionConfiguration::kms(PROVIDER, shim.endpoint());
    let server = KubeApiserver::start(plane, Options::new(name).encryption(encryption)).await?;
    Ok(Node { server, shim, providers })
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
