//! A pod that others cannot reach on one of its ports.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Cluster, Pod};
use crate::packages;

/// What becomes of packets to a port that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// They get lost: whoever sends them waits.
    Lost,
    /// They are refused at once, also those of connections that are open.
    Refused,
}

/// A rule in the network of one pod. It stays until it is healed, or goes with the pod.
#[derive(Debug)]
pub struct Partition {
    pid: String,
    port: u16,
    cut: Cut,
    nsenter: PathBuf,
    iptables: PathBuf,
}

impl Cluster {
    /// Cuts a port of a pod off. Its other ports, its probes and what it asks others are as before.
    pub async fn cut(&self, pod: &Pod, port: u16, cut: Cut) -> Result<Partition> {
        let first = pod.containers.iter().find(|container| !container.id.is_empty());
        let id = &first.with_context(|| format!("{} does not run", pod.summary()))?.id;
        let list = self.ground.containerd.ctr(&self.ground.machine, &["tasks", "list"]).await?;
        let mut tasks = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let task = tasks.find(|task| task.first().is_some_and(|found| found == id));
        let pid = task.and_then(|task| task.get(1).map(|pid| (*pid).to_owned()));
        let partition = Partition {
            pid: pid.with_context(|| format!("container {id} is no task: {list}"))?,
            port,
            cut,
            nsenter: packages::program("nsenter", "util-linux").await?,
            iptables: packages::program("iptables", "iptables").await?,
        };
        self.rule("--insert", &partition).await?;
        Ok(partition)
    }

    /// Lets them pass again.
    pub async fn heal(&self, partition: Partition) -> Result<()> {
        self.rule("--delete", &partition).await
    }

    async fn rule(&self, verb: &str, partition: &Partition) -> Result<()> {
        let Partition { pid, port, cut, nsenter, iptables } = partition;
        let (target, port) = (format!("--target={pid}"), port.to_string());
        let iptables = iptables.display().to_string();
        let jump: &[&str] = match cut {
            Cut::Lost => &["DROP"],
            Cut::Refused => &["REJECT", "--reject-with", "tcp-reset"],
        };
        let rule = ["INPUT", "--protocol", "tcp", "--dport", &port, "--jump"];
        let enter = [&target, "--net", "--", &iptables, "--wait", verb];
        let arguments = [&enter[..], &rule[..], jump].concat();
        self.ground.machine.run(nsenter, &arguments).await?;
        Ok(())
    }
}
