//! What `cargo up` runs: the provider, the shim before it, and a cluster if asked for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sidekey_e2e::apiserver::Options;
use sidekey_e2e::process::Process;
use sidekey_e2e::{ControlPlane, EncryptionConfiguration, KubeApiserver, local, shim};

use crate::files::{Files, write_private};
use crate::program::Program;
use crate::trial::{Trial, round_trip};

/// The name in EncryptionConfiguration, which every stored object will carry.
pub(crate) const PROVIDER: &str = "sidekey";

/// How often a look is taken at whether everything still runs.
const LOOK: Duration = Duration::from_millis(250);

/// How long a process may take to end when asked to.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything that runs. Fields are dropped, and so ended, in this order.
pub(crate) struct Stack {
    pub(crate) cluster: Option<Cluster>,
    pub(crate) shim: Program,
    pub(crate) provider: Program,
    pub(crate) trial: Trial,
    pub(crate) encryption_file: PathBuf,
    pub(crate) encryption: EncryptionConfiguration,
    pub(crate) files: Files,
}

/// A real control plane without nodes.
pub(crate) struct Cluster {
    pub(crate) server: KubeApiserver,
    pub(crate) plane: ControlPlane,
    pub(crate) kubeconfig: PathBuf,
}

impl Stack {
    /// Starts everything and tries it out.
    pub(crate) async fn start(dir: &Path, with_cluster: bool) -> Result<Self> {
        let files = Files::open(dir).await?;
        let provider =
            Program::start(local::PROGRAM, &files.provider(), &files.path("provider.log")).await?;
        let shim = Program::start(shim::PROGRAM, &files.shim(), &files.path("shim.log")).await?;
        let endpoint = files.endpoint();
        let trial = round_trip(&endpoint.parse()?)
            .await
            .context("the round trip through the shim's socket failed")?;
        let encryption = EncryptionConfiguration::kms(PROVIDER, endpoint);
        let encryption_file = files.path("encryption-configuration.yaml");
        write_private(&encryption_file, &encryption.to_string())?;
        let cluster = match with_cluster {
            true => Some(Cluster::start(&files, encryption.clone()).await?),
            false => None,
        };
        Ok(Self { cluster, shim, provider, trial, encryption_file, encryption, files })
    }

    /// The cluster's kubeconfig, if there is a cluster.
    pub(crate) fn kubeconfig(&self) -> Option<&Path> {
        self.cluster.as_ref().map(|cluster| cluster.kubeconfig.as_path())
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
        if let Some(cluster) = &mut self.cluster {
            cluster.server.process().terminate(PATIENCE).await?;
            cluster.plane.etcd.process().terminate(PATIENCE).await?;
            // It leads nowhere any more.
            let _ = std::fs::remove_file(&cluster.kubeconfig);
        }
        for process in [&mut self.shim.process, &mut self.provider.process] {
            let status = process.terminate(PATIENCE).await?;
            if !status.success() {
                bail!("{} ended with {status}\n{}", process.name(), process.log_tail());
            }
        }
        Ok(())
    }

    fn processes(&mut self) -> Vec<&mut Process> {
        let mut processes = vec![&mut self.provider.process, &mut self.shim.process];
        if let Some(cluster) = &mut self.cluster {
            processes.push(cluster.plane.etcd.process());
            processes.push(cluster.server.process());
        }
        processes
    }
}

impl Cluster {
    async fn start(files: &Files, encryption: EncryptionConfiguration) -> Result<Self> {
        let plane = ControlPlane::start("up").await?;
        let options = Options::new("kube-apiserver").encryption(encryption);
        let server = KubeApiserver::start(&plane, options).await?;
        let kubeconfig = files.path("kubeconfig");
        write_private(&kubeconfig, &server.kubeconfig())?;
        Ok(Self { server, plane, kubeconfig })
    }
}
