//! Asks everybody: every shim what it has loaded, every kube-apiserver which key it uses.
//!
//! A rotation goes on only when *all* replicas have come along, so a replica that cannot be asked
//! is reported as such and never left out. Replicas are counted from the API (pods that are being
//! deleted still serve, and are asked too), and what a Deployment wants is compared with what was
//! found.

mod address;
mod http;
mod judge;
mod metrics;
mod pods;
mod servers;
mod status;
mod verdict;

#[cfg(test)]
mod tests;

use std::time::Duration;

use futures_util::future::join_all;
use kube::Config;
use serde::Serialize;

use crate::Error;

pub use address::{Address, Credentials};
pub use judge::{Findings, Wanted};
pub use pods::{Pods, Replica, SHIM_CONTAINER, SHIM_PORT};
pub use servers::{Announced, ServerReport, ServerStatus};
pub use status::{KeyStatus, ProviderKey, ProviderStatus, Refusal, ShimStatus, Trouble};

/// For one replica: the way through two API servers and a kubelet included.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Whom to ask, and how.
#[derive(Clone)]
pub struct Fleet {
    timeout: Duration,
    pods: Option<Pods>,
    shims: Vec<Address>,
    providers: Vec<Address>,
    servers: Vec<servers::Source>,
}

/// What everybody answered, at one time.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// Every shim, also those that did not answer.
    pub shims: Vec<ShimReport>,
    /// Every kube-apiserver, also those that did not answer.
    pub servers: Vec<ServerReport>,
    /// Every provider that was to be asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<ProviderReport>,
    /// How many replicas there should be, if anything says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<u32>,
    /// What could not be found out beside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One shim.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShimReport {
    /// Its pod or its address.
    pub name: String,
    /// Its pod is being deleted; as long as kube-apiserver runs there, it counts.
    pub ending: bool,
    /// What it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ShimStatus>,
    /// Why it says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One provider process.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderReport {
    /// Its admin server.
    pub name: String,
    /// What it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ProviderStatus>,
    /// Why it says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            timeout: TIMEOUT,
            pods: None,
            shims: Vec::new(),
            providers: Vec::new(),
            servers: Vec::new(),
        }
    }
}

impl Fleet {
    /// Nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits so long for each replica.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The shims in the pods of a control plane.
    #[must_use]
    pub fn pods(mut self, pods: Pods) -> Self {
        self.pods = Some(pods);
        self
    }

    /// A shim at an address.
    #[must_use]
    pub fn shim(mut self, address: Address) -> Self {
        self.shims.push(address);
        self
    }

    /// A provider, by its admin server.
    #[must_use]
    pub fn provider(mut self, address: Address) -> Self {
        self.providers.push(address);
        self
    }

    /// The kube-apiservers in the pods of [`pods`](Self::pods), through their port, with the
    /// credentials and the name of the hosted cluster's kubeconfig.
    #[must_use]
    pub fn hosted(mut self, config: Config, port: u16) -> Self {
        self.servers.push(servers::Source::InPods { config: Box::new(config), port });
        self
    }

    /// The kube-apiservers that a cluster itself names as its own (the EndpointSlices of
    /// `default/kubernetes`).
    #[must_use]
    pub fn standalone(mut self, config: Config) -> Self {
        self.servers.push(servers::Source::Named(Box::new(config)));
        self
    }

    /// One kube-apiserver at a URL, with the credentials of a kubeconfig.
    #[must_use]
    pub fn server(mut self, mut config: Config, url: ::http::Uri) -> Self {
        config.cluster_url = url;
        self.servers.push(servers::Source::Url(Box::new(config)));
        self
    }

    /// Asks the shims of these pods, and nobody else.
    pub async fn ask(&self, replicas: &[Replica]) -> Vec<ShimReport> {
        join_all(replicas.iter().map(|replica| self.ask_pod(replica))).await
    }

    /// Asks everybody at once. It fails only where nobody knows whom to ask.
    pub async fn observe(&self) -> Result<Observation, Error> {
        Ok(self.observe_replicas().await?.0)
    }

    /// The same; gives also which pods there were.
    pub async fn observe_replicas(&self) -> Result<(Observation, Vec<Replica>), Error> {
        let mut notes = Vec::new();
        let (replicas, expected) = match &self.pods {
            Some(pods) => {
                let replicas = pods.replicas().await?;
                let expected = pods.expected().await.unwrap_or_else(|error| {
                    notes.push(format!("how many replicas there should be: {}", error.report()));
                    None
                });
                (replicas, expected)
            }
            None => (Vec::new(), None),
        };
        let targets = servers::targets(&self.servers, self.pods.as_ref(), &replicas).await?;
        let elsewhere = self.shims.iter().map(|address| self.ask_shim(address));
        let providers = self.providers.iter().map(|address| self.ask_provider(address));
        let servers = targets.into_iter().map(|target| target.ask(self.timeout));
        let (mut shims, more, providers, servers) = tokio::join!(
            self.ask(&replicas),
            join_all(elsewhere),
            join_all(providers),
            join_all(servers)
        );
        shims.extend(more);
        Ok((Observation { shims, servers, providers, expected, notes }, replicas))
    }

    async fn ask_pod(&self, replica: &Replica) -> ShimReport {
        let asked = async {
            let pods = self.pods.as_ref().ok_or_else(|| Error::failed("there are no pods"))?;
            http::json(&pods.ask(replica).await?)
        };
        self.report(replica.name.clone(), replica.ending, asked).await
    }

    async fn ask_shim(&self, address: &Address) -> ShimReport {
        let asked = async { http::json(&address.fetch("/status").await?) };
        self.report(address.to_string(), false, asked).await
    }

    async fn ask_provider(&self, address: &Address) -> ProviderReport {
        let asked = async { http::json(&address.fetch("/status").await?) };
        let (status, error) = split(within(self.timeout, asked).await);
        ProviderReport { name: address.to_string(), status, error }
    }

    async fn report(
        &self,
        name: String,
        ending: bool,
        asked: impl Future<Output = Result<ShimStatus, Error>>,
    ) -> ShimReport {
        let (status, error) = split(within(self.timeout, asked).await);
        ShimReport { name, ending, status, error }
    }
}

/// The answer, or that there was none in time.
async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| {
        Err(Error::failed(format!("no answer in {}", humantime::format_duration(limit))))
    })
}

fn split<T>(answer: Result<T, Error>) -> (Option<T>, Option<String>) {
    match answer {
        Ok(status) => (Some(status), None),
        Err(error) => (None, Some(error.report())),
    }
}
