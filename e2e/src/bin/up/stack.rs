//! What `cargo up` runs: the provider, the shim before it, and a cluster if asked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sidekey_e2e::encryption::Stanza;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{EncryptionConfiguration, Sidecar, binaries, local, shim};

use crate::cluster::Cluster;
use crate::files::{Files, write_private};
use crate::trial::{Trial, round_trip};

/// The name in EncryptionConfiguration, which every stored object will carry.
pub(crate) const PROVIDER: &str = "sidekey";

/// How often a look is taken at whether everything still runs.
const LOOK: Duration = Duration::from_millis(250);

/// Everything that runs. Fields are dropped, and so ended, in this order.
pub(crate) struct Stack {
    pub(crate) cluster: Option<Cluster>,
    pub(crate) shim: Sidecar,
    pub(crate) provider: Sidecar,
    pub(crate) trial: Trial,
    pub(crate) encryption_file: PathBuf,
    pub(crate) encryption: EncryptionConfiguration,
    pub(crate) files: Files,
}

/// What to run besides the provider and the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Nothing.
    Sidekey,
    /// etcd and kube-apiserver.
    Apiserver,
    /// A whole cluster: a control plane, and a node on which pods run.
    Cluster,
}

impl Stack {
    /// Starts everything and tries it out.
    pub(crate) async fn start(dir: &Path, extent: Extent) -> Result<Self> {
        let files = Files::open(dir).await?;
        let provider =
            start(local::PROGRAM, &files.provider(), &files.path("provider.log")).await?;
        let shim = start(shim::PROGRAM, &files.shim(), &files.path("shim.log")).await?;
        let endpoint = files.endpoint();
        let trial = round_trip(&endpoint.parse()?)
            .await
            .context("the round trip through the shim's socket failed")?;
        let stanza = Stanza::new(["secrets", "configmaps"]);
        let stanza = stanza.kms_by_default(PROVIDER, endpoint).identity();
        let encryption = EncryptionConfiguration::new().stanza(stanza);
        let encryption_file = files.path("encryption-configuration.yaml");
        write_private(&encryption_file, &encryption.to_string())?;
        let cluster = match extent {
            Extent::Sidekey => None,
            _ => Some(Cluster::start(&files, encryption.clone(), extent).await?),
        };
        Ok(Self { cluster, shim, provider, trial, encryption_file, encryption, files })
    }

    /// The cluster's kubeconfig, if there is a cluster.
    pub(crate) fn kubeconfig(&self) -> Option<&Path> {
        self.cluster.as_ref().map(Cluster::kubeconfig)
    }

    /// The first process of the cluster's node, if it has one.
    pub(crate) fn node(&self) -> Option<u32> {
        self.cluster.as_ref().and_then(Cluster::node)
    }

    /// The pids of all processes, by program.
    pub(crate) fn pids(&mut self) -> Vec<(String, u32)> {
        let program = |process: &Process| process.name().split(' ').next().map(str::to_owned);
        let processes = self.processes();
        processes.iter().filter_map(|process| Some((program(process)?, process.pid()?))).collect()
    }

    /// Returns when one of the processes has ended, with the last lines of its log.
    pub(crate) async fn watch(&mut self) -> anyhow::Error {
        loop {
            if let Err(ended) = self.look() {
                return ended;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// An error if one of the processes has ended.
    pub(crate) fn look(&mut self) -> Result<()> {
        self.processes().into_iter().try_for_each(Process::check_running)
    }

    /// Ends everything, those who need others first. What does not end in time is killed.
    pub(crate) async fn stop(mut self) -> Result<()> {
        if let Some(mut cluster) = self.cluster.take() {
            cluster.stop().await?;
        }
        for process in [self.shim.process(), self.provider.process()] {
            let status = process.terminate(PATIENCE).await?;
            if !status.success() {
                bail!("{} ended with {status}\n{}", process.name(), process.log_tail());
            }
        }
        Ok(())
    }

    fn processes(&mut self) -> Vec<&mut Process> {
        let mut processes = vec![self.provider.process(), self.shim.process()];
        if let Some(cluster) = &mut self.cluster {
            processes.extend(cluster.processes());
        }
        processes
    }
}

/// Starts one of our programs, and waits until it is ready.
async fn start(name: &'static str, config: &Path, log: &Path) -> Result<Sidecar> {
    let path = binaries::path_async(name).await?;
    let mut sidecar =
        Sidecar::start(Spec::new(name, path, log).arg("--config").arg(config)).await?;
    sidecar.wait_ready().await?;
    Ok(sidecar)
}
