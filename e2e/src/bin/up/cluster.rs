//! The cluster of `cargo up`: a control plane alone, or with a node.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sidekey_e2e::apiserver::Options;
use sidekey_e2e::process::Process;
use sidekey_e2e::{ControlPlane, EncryptionConfiguration, Etcd, Ground, KubeApiserver};

use crate::files::{Files, write_private};
use crate::stack::{Extent, PATIENCE};

/// A real cluster, and how to talk to it.
pub(crate) struct Cluster {
    running: Running,
    kubeconfig: PathBuf,
}

enum Running {
    /// Without nodes. The server is dropped, and so ended, first.
    ControlPlane {
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
        let running = if extent == Extent::Node {
            let ground = Ground::prepare("up").await?;
            let options = ground.apiserver().encryption(encryption);
            Running::Whole(Box::new(ground.start(options).await?))
        } else {
            let plane = ControlPlane::start("up").await?;
            let options = Options::new("kube-apiserver").encryption(encryption);
            let server = Box::new(KubeApiserver::start(&plane, options).await?);
            Running::ControlPlane { server, plane: Box::new(plane) }
        };
        let cluster = Self { running, kubeconfig: files.path("kubeconfig") };
        write_private(&cluster.kubeconfig, &cluster.server()?.kubeconfig())?;
        Ok(cluster)
    }

    /// Its kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Its kube-apiserver.
    pub(crate) fn server(&self) -> Result<&KubeApiserver> {
        match &self.running {
            Running::ControlPlane { server, .. } => Ok(server),
            Running::Whole(cluster) => cluster.apiserver().context("it is not a process here"),
        }
    }

    /// The same, to be waited for.
    pub(crate) fn server_mut(&mut self) -> Result<&mut KubeApiserver> {
        match &mut self.running {
            Running::ControlPlane { server, .. } => Ok(server),
            Running::Whole(cluster) => cluster.apiserver_mut().context("it is not a process here"),
        }
    }

    /// Its store.
    pub(crate) fn etcd(&self) -> &Etcd {
        match &self.running {
            Running::ControlPlane { plane, .. } => &plane.etcd,
            Running::Whole(cluster) => &cluster.ground().plane().etcd,
        }
    }

    /// The node's first process, if there is a node.
    pub(crate) fn node(&self) -> Option<u32> {
        match &self.running {
            Running::ControlPlane { .. } => None,
            Running::Whole(cluster) => Some(cluster.ground().machine().pid()),
        }
    }

    /// Everything that runs.
    pub(crate) fn processes(&mut self) -> Vec<&mut Process> {
        match &mut self.running {
            Running::ControlPlane { server, plane } => {
                vec![plane.etcd.process(), server.process()]
            }
            Running::Whole(cluster) => cluster.processes(),
        }
    }

    /// Ends kube-apiserver, then etcd. With a node, all of it is killed when this is dropped:
    /// kube-apiserver would wait for its clients, and nothing is to be kept.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        if let Running::ControlPlane { server, plane } = &mut self.running {
            server.process().terminate(PATIENCE).await?;
            plane.etcd.process().terminate(PATIENCE).await?;
        }
        // It leads nowhere any more.
        let _ = std::fs::remove_file(&self.kubeconfig);
        Ok(())
    }
}
