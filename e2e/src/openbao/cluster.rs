//! Several servers that share their data by raft: one is active, the others
//! stand by and take over.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use serde_json::json;

use super::{OpenBao, Storage};
use crate::pki::Authority;
use crate::ports::Port;
use crate::scratch::Scratch;
use crate::wait::{PATIENCE, eventually};

/// A running cluster.
pub struct Cluster {
    nodes: Vec<OpenBao>,
    _ports: Vec<Port>,
}

impl Cluster {
    /// Starts that many nodes, initialised and unsealed, each with a
    /// certificate of the same authority.
    pub async fn start(scratch: &Scratch, name: &str, count: usize) -> Result<Self> {
        let authority = Arc::new(Authority::new(&format!("{name} CA"))?);
        let mut nodes: Vec<OpenBao> = Vec::new();
        let mut ports = Vec::new();
        for number in 0..count {
            let port = Port::free()?;
            let storage = Storage::Raft { port: &port, leader: nodes.first() };
            let node_name = format!("{name}-{number}");
            let mut node = OpenBao::spawn(scratch, &node_name, authority.clone(), &storage).await?;
            match nodes.first() {
                None => node.initialise().await?,
                Some(leader) => node.join(leader).await?,
            }
            node.unseal().await?;
            nodes.push(node);
            ports.push(port);
        }
        let cluster = Self { nodes, _ports: ports };
        cluster.wait_voters().await?;
        Ok(cluster)
    }

    /// A new node has no vote, and cannot take over, until it has proven stable.
    async fn wait_voters(&self) -> Result<()> {
        let root = self.nodes.first().context("no node")?.root();
        let patience = json!({"server_stabilization_time": "500ms"});
        root.write("sys/storage/raft/autopilot/configuration", &patience).await?;
        eventually("every node has a vote", PATIENCE, async || {
            let answer = root.read("sys/storage/raft/configuration").await?;
            let servers = answer["data"]["config"]["servers"].as_array().cloned();
            let servers = servers.unwrap_or_default();
            let voters = servers.iter().filter(|server| server["voter"] == true).count();
            ensure!(voters == self.nodes.len(), "{voters} have one");
            Ok(())
        })
        .await
    }

    /// The nodes.
    pub fn nodes(&mut self) -> &mut [OpenBao] {
        &mut self.nodes
    }

    /// The addresses of all nodes.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(OpenBao::address).collect()
    }

    /// Which node is active; waits until one is.
    pub async fn active(&self) -> Result<usize> {
        eventually("a node is active", PATIENCE, async || {
            for (number, node) in self.nodes.iter().enumerate() {
                // 200 is active, 429 stands by, 503 is sealed, no answer is dead.
                let health = node.client("").http().get("/v1/sys/health").await;
                if health.is_ok_and(|health| health.status == 200) {
                    return Ok(number);
                }
            }
            anyhow::bail!("none is")
        })
        .await
    }

    /// Makes the active node stand by, and waits until another is active. A
    /// node that wins the election again is told again.
    pub async fn step_down(&self) -> Result<usize> {
        let old = self.active().await?;
        let node = self.nodes.get(old).context("no such node")?;
        eventually("another node is active", PATIENCE, async || {
            let new = self.active().await?;
            if new == old {
                node.root().write("sys/step-down", &json!({})).await?;
            }
            ensure!(new != old, "still node {old}");
            Ok(new)
        })
        .await
    }
}

impl OpenBao {
    /// Joins the leader's cluster; the keys of the first node open every node.
    async fn join(&mut self, leader: &Self) -> Result<()> {
        self.keys = leader.keys.clone();
        let ca = self.authority.pem();
        let order = json!({"leader_api_addr": leader.address(), "leader_ca_cert": ca});
        let answer = self.client("").write("sys/storage/raft/join", &order).await?;
        ensure!(answer["joined"] == true, "it has not joined: {answer}");
        Ok(())
    }
}
