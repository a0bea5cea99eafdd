//! The operator on a real cluster, and hosted control planes that it manages.
//!
//! All tests of one process share one cluster with one installation of the operator
//! ([`Management`]); each has a control plane in a namespace of its own ([`Managed`]).
//!
//! What users do is done as they do it: the images are built and loaded, the CRDs are there,
//! `kubectl apply -k` of an overlay on `deploy/kustomize` installs, and after that objects are
//! edited and looked at. HyperShift is imitated as far as [`Hosted`] says; its `HostedCluster` has
//! our own schema, of the fields that encryption needs. Times that would only make tests wait are
//! shortened by flags of the operator that say so in their names.

mod install;
mod keys;
mod look;
mod objects;
mod own;
pub mod page;
mod refuse;
mod shared;
pub mod simulated;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::task::JoinHandle;

use crate::hosted::Hosted;
use crate::{Cluster, Load, LoadOptions};

pub use install::{crds, kubectl};
pub use keys::{AwsKeys, LocalKey, VaultKey};
pub use look::{ROTATION, condition, shown, stage_of};
pub use objects::hosted_cluster;
pub use own::Lease;
pub use refuse::Refusal;
pub use shared::run;

/// The namespace of HostedClusters.
pub const CLUSTERS: &str = "clusters";
/// Where the operator is.
pub const OPERATOR_NAMESPACE: &str = "sidekey-system";
/// Its Deployment, its Service and its webhook's configuration.
pub const OPERATOR: &str = "sidekey-operator";

/// The folders of `images/` that control planes need.
const IMAGES: [&str; 7] = ["operator", "sidekey", "shim", "aws", "vault", "local", "proxy"];

/// The token of HyperShift's minter, which nothing here uses.
const TOKEN: &str = "unused";

/// Requests between two steps, so that each state sees load.
pub const BETWEEN_STEPS: u64 = 50;

/// A management cluster with the operator on it. Dropped, and so ended, in this order.
pub struct Management {
    dir: PathBuf,
    /// Of `sidekey-aws` and of the shim.
    images: [String; 2],
    kubectl: PathBuf,
    /// Whoever ends the operator has it alone; whoever needs an answer of it shares it.
    calm: RwLock<()>,
    /// Control planes that are on their way out, by namespace.
    leaving: Mutex<HashMap<String, JoinHandle<()>>>,
    cluster: Arc<Cluster>,
}

/// A hosted control plane, in clear at first, that the operator is to manage. What there is of it
/// in the cluster is removed when this is dropped.
pub struct Managed {
    dir: PathBuf,
    /// Where it is, and what its SecretEncryption is called.
    plane: (String, String),
    /// The hosted control plane, and the cluster that it is on.
    pub hosted: Hosted,
    management: Arc<Management>,
}

impl Managed {
    /// The namespace of the control plane.
    pub fn namespace(&self) -> &str {
        &self.plane.0
    }

    /// The name of its SecretEncryption, and of the HostedCluster if there is one.
    pub fn name(&self) -> &str {
        &self.plane.1
    }

    /// While this is held no other test ends the operator.
    pub async fn calm(&self) -> RwLockReadGuard<'_, ()> {
        self.management.calm.read().await
    }

    /// Requests on each kube-apiserver pod itself: for changes that touch no pod.
    pub async fn load_on_pods(&self) -> Result<Load> {
        let pods = self.hosted.pods().await?;
        let servers = pods.iter().map(|pod| self.hosted.server(pod)).collect::<Result<_>>()?;
        Load::start(servers, gentle())
    }

    /// Requests through the balancer, as users have it: for changes that roll pods out.
    pub fn load_on_service(&self) -> Result<Load> {
        Load::start(vec![self.hosted.service()?], gentle())
    }
}

/// Gentle enough for two cores and several control planes, of which most wait for the clocks of
/// kube-apiserver: some forty requests a second.
fn gentle() -> LoadOptions {
    LoadOptions { rest: Duration::from_millis(400), ..LoadOptions::default() }
}

impl Drop for Managed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.operator_tail());
            self.management.cluster.tell_of_panics();
        }
        self.remove();
    }
}
