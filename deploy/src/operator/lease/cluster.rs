//! The Lease as an object of the cluster.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, PostParams};

use super::{Ledger, NAME};
use crate::model::names::FIELD_MANAGER;
use crate::{Error, cluster};

/// The Lease of a namespace.
#[derive(Clone, Debug)]
pub struct Cluster(Api<Lease>);

impl Cluster {
    /// In the operator's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self(Api::namespaced(client, namespace))
    }
}

impl Ledger for Cluster {
    async fn read(&self) -> Result<Option<Lease>, Error> {
        let found = self.0.get_opt(NAME).await;
        found.map_err(|error| cluster::refused(format!("cannot read Lease {NAME}"), error))
    }

    async fn write(&self, lease: &Lease) -> Result<Option<Lease>, Error> {
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        let written = if lease.metadata.resource_version.is_some() {
            self.0.replace(NAME, &parameters, lease).await
        } else {
            let mut lease = lease.clone();
            lease.metadata.name = Some(NAME.to_owned());
            self.0.create(&parameters, &lease).await
        };
        match written {
            Ok(lease) => Ok(Some(lease)),
            // Changed, made or removed by somebody else in between.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(cluster::refused(format!("cannot write Lease {NAME}"), error)),
        }
    }
}
