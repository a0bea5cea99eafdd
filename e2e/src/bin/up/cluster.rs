//! The cluster of `cargo up`: a whole one, or kube-apiserver and its store alone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sidekey_e2e::apiserver::Options;
use sidekey_e2e::process::Process;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{ControlPlane, EncryptionConfiguration, Etcd, Ground, KubeApiserver};

use crate::files::{Files, write_private};
use crate::stack::Extent;

/// What those can have who cannot have a whole cluster.
const LIGHTER: &str = "`cargo up -- --apiserver` runs etcd and a kube-apiserver alone, \
                       and takes neither root nor packages";

/// Fails, before anything is started, where that cannot run here.
pub(crate) fn check(extent: Extent) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    ensure!(
        extent != Extent::Cluster || root,
        "--cluster takes root, because kubelet and containerd do: run it as root \
         (sudo -E env \"PATH=$PATH\" cargo up -- --cluster), in a container that is privileged. {LIGHTER}"
    );
    Ok(())
}

async fn whole(encryption: EncryptionConfiguration) -> Result<sidekey_e2e::Cluster> {
    let ground = Ground::prepare("up").await?;
    let options = ground.apiserver().encryption(encryption);
    ground.start(options).await
}

/// A real cluster, and how to talk to it.
pub(crate) struct Cluster {
    running: Running,
    kubeconfig: PathBuf,
    took: Duration,
}

enum Running {
    /// Without a node. The server is dropped, and so ended, first.
    Apiserver {
        server: Box<KubeApiserver>,
        plane: Box<ControlPlane>,
    },
    Whole(Box<sidekey_e2e::Cluster>),
}

impl Cluster {
    /// Starts one that encrypts so.
    pub(crate) async fn start(
        files: &Files,
        encryption: EncryptionConfiguration,
        extent: Extent,
    ) -> Result<Self> {
        let began = Instant::now();
        let running = if extent == Extent::Cluster {
            let whole = whole(encryption).await;
            Running::Whole(Box::new(whole.with_context(|| format!("no cluster: {LIGHTER}"))?))
        } else {
            let plane = ControlPlane::start("up").await?;
            let options = Options::new("kube-apiserver").encryption(encryption);
            let server = Box::new(KubeApiserver::start(&plane, options).await?);
            Running::Apiserver { server, plane: Box::new(plane) }
        };
        let took = began.elapsed();
        let cluster = Self { running, kubeconfig: files.path("kubeconfig"), took };
        write_private(&cluster.kubeconfig, &cluster.server()?.kubeconfig())?;
        Ok(cluster)
    }

    /// Its kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// How long it took to come up.
    pub(crate) fn took(&self) -> Duration {
        self.took
    }

    /// Its kube-apiserver.
    pub(crate) fn server(&self) -> Result<&KubeApiserver> {
        match &self.running {
            Running::Apiserver { server, .. } => Ok(server),
            Running::Whole(cluster) => cluster.apiserver().context("it is not a process here"),
        }
    }

    /// The same, to be waited for.
    pub(crate) fn server_mut(&mut self) -> Result<&mut KubeApiserver> {
        match &mut self.running {
            Running::Apiserver { server, .. } => Ok(server),
            Running::Whole(cluster) => cluster.apiserver_mut().context("it is not a process here"),
        }
    }

    /// Its store.
    pub(crate) fn etcd(&self) -> &Etcd {
        match &self.running {
            Running::Apiserver { plane, .. } => &plane.etcd,
            Running::Whole(cluster) => &cluster.ground().plane().etcd,
        }
    }

    /// The node's first process, if there is a node.
    pub(crate) fn node(&self) -> Option<u32> {
        match &self.running {
            Running::Apiserver { .. } => None,
            Running::Whole(cluster) => Some(cluster.ground().machine().pid()),
        }
    }

    /// Everything that runs.
    pub(crate) fn processes(&mut self) -> Vec<&mut Process> {
        match &mut self.running {
            Running::Apiserver { server, plane } => {
                vec![plane.etcd.process(), server.process()]
            }
            Running::Whole(cluster) => cluster.processes(),
        }
    }

    /// Ends kube-apiserver, then etcd. With a node, all of it is killed when this is dropped:
    /// kube-apiserver would wait for its clients, and nothing is to be kept.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        if let Running::Apiserver { server, plane } = &mut self.running {
            server.process().terminate(PATIENCE).await?;
            plane.etcd.process().terminate(PATIENCE).await?;
        }
        // It leads nowhere any more.
        let _ = std::fs::remove_file(&self.kubeconfig);
        Ok(())
    }
}
