//! Control-plane nodes whose keys are a vendor's: what every vendor's tests do alike.

mod all;
mod changes;
mod faults;

use std::ops::DerefMut;

use anyhow::{Result, ensure};

use crate::apiserver::{KubeApiserver, Options};
use crate::encryption::EncryptionConfiguration;
use crate::kms::KmsClient;
use crate::plane::ControlPlane;
use crate::shim::{Shim, ShimConfig};
use crate::sidecar::Sidecar;

pub use all::{Kms, Provider, every};
pub use changes::Replicas;
pub use faults::{COAST, MEANWHILE, Sufferer};

/// The provider's name in EncryptionConfiguration.
pub const PROVIDER: &str = "sidekey";

/// One control-plane node: kube-apiserver, the shim, and a vendor's provider as key 1.
/// Dropped, and so ended, in this order.
#[derive(Debug)]
pub struct Node<P> {
    /// kube-apiserver.
    pub server: KubeApiserver,
    /// The shim in front of the provider.
    pub shim: Shim,
    /// The provider.
    pub plugin: P,
}

impl<P: DerefMut<Target = Sidecar>> Node<P> {
    /// Starts the shim with that configuration, which leads to `plugin`, and kube-apiserver.
    pub async fn start(
        plane: &ControlPlane,
        name: &str,
        plugin: P,
        config: &ShimConfig,
    ) -> Result<Self> {
        let shim = Shim::start(&plane.scratch, &format!("shim-{name}"), config).await?;
        let encryption = EncryptionConfiguration::kms(PROVIDER, shim.endpoint());
        let options = Options::new(name).encryption(encryption);
        let server = KubeApiserver::start(plane, options).await?;
        Ok(Self { server, shim, plugin })
    }

    /// Each link of the chain is well, and really asks the KMS.
    pub async fn is_well(&self) -> Result<()> {
        let client = KmsClient::connect(&self.shim.endpoint()).await?;
        client.round_trip(b"is everything well?").await?;
        ensure!(self.server.readyz().await?["kms-providers"], "kms-providers is bad");
        Ok(())
    }
}
