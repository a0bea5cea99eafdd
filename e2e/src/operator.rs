//! The operator on a real cluster, and a hosted control plane that it manages.
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
pub mod simulated;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::hosted::Hosted;
use crate::{Load, LoadOptions};

pub use install::{crds, kubectl};
pub use keys::{AwsKeys, LocalKey, VaultKey};
pub use look::{ROTATION, condition, shown, stage_of};
pub use objects::{encryption, hosted_cluster};

/// The namespace of the HostedCluster, its name, and the namespace of its control plane.
pub const CLUSTERS: &str = "clusters";
/// The HostedCluster's name, and the SecretEncryption's.
pub const NAME: &str = "a";
/// Where its control plane is.
pub const NAMESPACE: &str = "clusters-a";
/// Where the operator is.
pub const OPERATOR_NAMESPACE: &str = "sidekey-system";
/// Its Deployment, its Service and its webhook's configuration.
pub const OPERATOR: &str = "sidekey-operator";

/// The folders of `images/` that every control plane needs.
const IMAGES: [&str; 3] = ["operator", "sidekey", "shim"];

/// The token of HyperShift's minter, which nothing here uses.
const TOKEN: &str = "unused";

/// Requests between two steps, so that each state sees load.
pub const BETWEEN_STEPS: u64 = 100;

/// How to install it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the control plane is, and what its SecretEncryption is called.
    pub plane: (&'static str, &'static str),
    /// How many operators.
    pub replicas: u32,
    /// Whose providers' images are there.
    pub vendors: Vec<&'static str>,
    /// More of its arguments.
    pub arguments: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        let plane = (NAMESPACE, NAME);
        Self { plane, replicas: 1, vendors: vec!["aws"], arguments: Vec::new() }
    }
}

impl Options {
    /// With a control plane in this namespace, whose SecretEncryption has this name.
    pub fn plane(mut self, namespace: &'static str, name: &'static str) -> Self {
        self.plane = (namespace, name);
        self
    }

    /// With these vendors' providers.
    pub fn vendors(mut self, vendors: &[&'static str]) -> Self {
        self.vendors = vendors.to_vec();
        self
    }

    /// With so many operators.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }
}

/// A management cluster with the operator, and a hosted control plane in clear.
/// Dropped, and so ended, in this order.
pub struct Managed {
    dir: PathBuf,
    plane: (&'static str, &'static str),
    /// The kubectl that installed it.
    pub kubectl: PathBuf,
    /// The hosted control plane, and the cluster that it is on.
    pub hosted: Hosted,
}

impl Managed {
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

/// Gentle enough for two cores and a whole cluster.
fn gentle() -> LoadOptions {
    LoadOptions { rest: Duration::from_millis(50), ..LoadOptions::default() }
}

impl Drop for Managed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.operator_tail());
        }
    }
}
