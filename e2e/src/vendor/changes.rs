//! Two replicas while something changes at their KMS.

use std::ops::DerefMut;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Node, PROVIDER};
use crate::kube::Kind;
use crate::load::{Load, LoadOptions, Report};
use crate::plane::ControlPlane;
use crate::sidecar::Sidecar;
use crate::stored::{Stored, key_id_hash};
use crate::wait::{BROKEN, PATIENCE, eventually};

/// Two nodes on one etcd. Dropped, and so ended, in this order.
pub struct Replicas<P> {
    /// The nodes.
    pub nodes: [Node<P>; 2],
    /// What they stand on.
    pub plane: ControlPlane,
}

impl<P: DerefMut<Target = Sidecar>> Replicas<P> {
    /// Load on both.
    pub fn load(&self) -> Result<Load> {
        let clients = self.nodes.iter().map(|node| node.server.client()).collect();
        let rest = Duration::from_millis(40);
        Load::start(clients, LoadOptions { writers: 2, readers: 1, rest, ..Default::default() })
    }

    /// Who runs, to see that no kube-apiserver has restarted.
    pub fn server_pids(&mut self) -> Vec<Option<u32>> {
        self.nodes.iter_mut().map(|node| node.server.process().pid()).collect()
    }

    /// Writes through each replica, reads through the other, and tells the key_id in etcd.
    pub async fn write(&self, name: &str) -> Result<String> {
        let mut seen = None;
        for (index, node) in self.nodes.iter().enumerate() {
            let (name, other) = (format!("{name}-{index}"), &self.nodes[1 - index]);
            for kind in Kind::ALL {
                node.server.client().create(kind, "default", &name, &[("word", &name)]).await?;
                let data = other.server.client().read(kind, "default", &name).await?;
                ensure!(data["word"] == name, "{BROKEN}{name} holds {data:?}");
                let key_id = self.stored(kind, &name).await?;
                let first = seen.get_or_insert_with(|| key_id.clone());
                ensure!(*first == key_id, "{name} is stored under {key_id}, others under {first}");
            }
        }
        seen.context("nothing was written")
    }

    /// The key_id under which something is stored.
    pub async fn stored(&self, kind: Kind, name: &str) -> Result<String> {
        let raw = self.plane.etcd.raw(&kind.etcd_key("default", name)).await?;
        Ok(Stored::parse(&raw)?.object.key_id)
    }

    /// Waits until both have left that key_id behind, with `requests` of the load in between.
    pub async fn wait_key_id_moves(&mut self, old: &str, load: &Load, requests: u64) -> Result<()> {
        let before = key_id_hash(old);
        for node in &mut self.nodes {
            let hash = node.shim.wait_key_id_moves(&before).await?;
            node.server.wait_key_id(PROVIDER, &hash).await?;
            load.more(requests).await?;
        }
        Ok(())
    }

    /// Waits until both providers have taken over that many sets of files and settings.
    pub async fn reloaded(&self, times: f64) -> Result<()> {
        eventually("both providers have taken over the files", PATIENCE, async || {
            for node in &self.nodes {
                let metrics = node.plugin.metrics().await?;
                let reloads = metrics.sum("kms_reloads_total", &[("result", "success")]);
                ensure!(reloads >= times, "{reloads} reloads");
            }
            Ok(())
        })
        .await
    }

    /// Each link of both chains is well, and really asks the KMS.
    pub async fn is_well(&self) -> Result<()> {
        for node in &self.nodes {
            node.is_well().await?;
        }
        Ok(())
    }

    /// A restarted kube-apiserver has no unwrapped keys left: the KMS unwraps each
    /// generation, and of the load's last `report` too. `written` are the names that were
    /// given to [`write`](Self::write), with the key_ids it told.
    pub async fn everything_reads_after_a_restart(
        &mut self,
        written: &[(&str, &str)],
        report: &Report,
    ) -> Result<()> {
        self.nodes[0].plugin.restart().await?;
        self.nodes[0].server.restart().await?;
        let client = self.nodes[0].server.client();
        for (name, key_id) in written {
            for (index, kind) in [0, 1].into_iter().flat_map(|at| Kind::ALL.map(|kind| (at, kind)))
            {
                let name = format!("{name}-{index}");
                ensure!(self.stored(kind, &name).await? == *key_id, "{name} was rewritten");
                let data = client.read(kind, "default", &name).await?;
                ensure!(data["word"] == name, "{BROKEN}{name} holds {data:?}");
            }
        }
        report.all_reads(&client, "default").await
    }
}
