//! Two kube-apiservers on one etcd, each with a shim and plugins of its own, as
//! two control-plane nodes have them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::apiserver::{KubeApiserver, Options};
use crate::wait::BROKEN;
use crate::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, LocalPlugin, Shim, Stored,
};

use super::ShimConfig;

/// The name in EncryptionConfiguration.
pub const PROVIDER: &str = "sidekey";

/// One control-plane node. Dropped, and so ended, in this order.
#[derive(Debug)]
pub struct Replica {
    /// Its kube-apiserver.
    pub server: KubeApiserver,
    /// What that one talks to.
    pub shim: Shim,
    /// One for each KEK; the replicas' plugins share key files.
    pub plugins: Vec<LocalPlugin>,
}

impl Replica {
    /// The endpoint of the plugin for a KEK, counted from 1.
    pub fn kek(&self, number: usize) -> String {
        self.plugins[number - 1].endpoint()
    }

    /// Waits until kube-apiserver writes under what the shim announces.
    pub async fn wait_written_key(&mut self) -> Result<()> {
        let announced = self.shim.key_id_hash().await?;
        self.server.wait_key_id(PROVIDER, &announced).await
    }
}

/// The control plane. Dropped, and so ended, in this order.
pub struct Replicas {
    /// The nodes.
    pub nodes: Vec<Replica>,
    /// What they share.
    pub plane: ControlPlane,
    pids: Vec<Option<u32>>,
}

impl Replicas {
    /// Two nodes with plugins for so many KEKs; `config` is asked for each
    /// shim's first configuration, with the endpoints of its node's plugins.
    pub async fn start(
        name: &str,
        keks: usize,
        config: impl Fn(&[LocalPlugin]) -> ShimConfig,
    ) -> Result<Self> {
        let plane = ControlPlane::start(name).await?;
        let keys = plane.scratch.subdir("keys")?;
        let mut nodes = Vec::new();
        for node in ["a", "b"] {
            let mut plugins = Vec::new();
            for kek in 1..=keks {
                let (name, file) = (format!("kek-{kek}-{node}"), keys.join(format!("kek-{kek}")));
                plugins.push(LocalPlugin::with_key_file(&plane.scratch, &name, &file).await?);
            }
            let shim = format!("shim-{node}");
            let shim = Shim::start(&plane.scratch, &shim, &config(&plugins)).await?;
            let encryption = EncryptionConfiguration::kms(PROVIDER, shim.endpoint());
            let options = Options::new(node).encryption(encryption);
            let server = KubeApiserver::start(&plane, options).await?;
            nodes.push(Replica { server, shim, plugins });
        }
        let mut replicas = Self { nodes, plane, pids: Vec::new() };
        replicas.pids = replicas.server_pids();
        Ok(replicas)
    }

    /// Load on all kube-apiservers, gentle enough for two cores and many processes.
    pub fn load(&self) -> Result<Load> {
        let rest = std::time::Duration::from_millis(50);
        let clients = self.nodes.iter().map(|node| node.server.client()).collect();
        Load::start(clients, LoadOptions { rest, ..LoadOptions::default() })
    }

    /// Restarts a node's kube-apiserver on purpose, and waits until it is ready.
    pub async fn restart_server(&mut self, node: usize) -> Result<()> {
        self.nodes[node].server.restart().await?;
        self.pids = self.server_pids();
        Ok(())
    }

    /// An error if a kube-apiserver is another process than was started.
    pub fn servers_have_not_restarted(&mut self) -> Result<()> {
        let now = self.server_pids();
        ensure!(now == self.pids, "kube-apiservers were {:?} and are {now:?}", self.pids);
        Ok(())
    }

    /// The key number in what is stored for an object.
    pub async fn stored_key(&self, kind: Kind, name: &str) -> Result<u64> {
        key_number(&self.plane.etcd.raw(&kind.etcd_key("default", name)).await?)
    }

    /// How many of the load's objects are stored under which key; each is read
    /// through each kube-apiserver.
    pub async fn read_everything(&self) -> Result<BTreeMap<u64, usize>> {
        let mut by_key = BTreeMap::new();
        for kind in Kind::ALL {
            let prefix = format!("/registry/{}/default/load-", kind.plural());
            for entry in self.plane.etcd.list(&prefix).await? {
                let key = key_number(&entry.value).with_context(|| entry.key.clone())?;
                *by_key.entry(key).or_default() += 1;
                let name = entry.key.rsplit('/').next().unwrap_or_default();
                for node in &self.nodes {
                    let data = node.server.client().read(kind, "default", name).await?;
                    let right = data.get("value").is_some_and(|v| *v == format!("{name} second"));
                    ensure!(right, "{BROKEN}{kind:?} {name} holds {data:?}");
                }
            }
        }
        Ok(by_key)
    }

    fn server_pids(&mut self) -> Vec<Option<u32>> {
        self.nodes.iter_mut().map(|node| node.server.process().pid()).collect()
    }
}

/// The number in the `sidekey/<number>-<fingerprint>/…` of a stored value.
pub fn key_number(value: &[u8]) -> Result<u64> {
    let Stored { provider, object } = Stored::parse(value)?;
    ensure!(provider == PROVIDER, "stored under the name {provider}");
    let number = object.key_id.strip_prefix("sidekey/").and_then(|rest| rest.split_once('-'));
    let number = number.and_then(|(number, _)| number.parse().ok());
    number.with_context(|| format!("key_id {:?} names no key", object.key_id))
}
