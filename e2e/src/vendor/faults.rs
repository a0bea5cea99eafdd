//! A node while its KMS is away, slow, or refuses.

use std::ops::DerefMut;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sidekey_core::proto::v2::EncryptResponse;

use super::Node;
use crate::coast::Coast;
use crate::kms::KmsClient;
use crate::kube::Kind;
use crate::load::{Load, LoadOptions, Report};
use crate::plane::ControlPlane;
use crate::shim::ShimConfig;
use crate::sidecar::Sidecar;
use crate::stored::Stored;
use crate::wait::{PATIENCE, eventually};

/// Short, so that a test sees the end of it; long enough to be seen.
pub const COAST: Duration = Duration::from_secs(12);

/// The shim's probes: how often, and how long each may take.
const PROBE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(2));

/// Requests while a fault is on and after it.
pub const MEANWHILE: u64 = 100;

/// What was wrapped while all was well.
const WORDS: &[u8] = b"before all faults";

/// One node, and what its shim wrapped before anything happened. Dropped, and so
/// ended, in this order.
pub struct Sufferer<P> {
    /// A client of the shim.
    pub client: KmsClient,
    /// One of the provider, whose last proof is what a coast counts from.
    provider: KmsClient,
    /// The node.
    pub node: Node<P>,
    /// What was wrapped while all was well.
    pub sealed: EncryptResponse,
    /// What the node stands on.
    pub plane: ControlPlane,
}

impl<P: DerefMut<Target = Sidecar>> Sufferer<P> {
    /// Puts shim and kube-apiserver in front of a provider, which coasts for [`COAST`]
    /// too, and listens at `endpoint`.
    pub async fn start(plane: ControlPlane, plugin: P, endpoint: String) -> Result<Self> {
        let node = Node::start(&plane, "a", plugin, &coasting(&endpoint)).await?;
        let client = KmsClient::connect(&node.shim.endpoint()).await?;
        let provider = KmsClient::connect(&endpoint).await?;
        let sealed = client.round_trip(WORDS).await?;
        Ok(Self { client, provider, node, sealed, plane })
    }

    /// Load on its kube-apiserver.
    pub fn load(&self) -> Result<Load> {
        let rest = Duration::from_millis(40);
        let options = LoadOptions { writers: 2, readers: 1, rest, ..Default::default() };
        Load::start(vec![self.node.server.client()], options)
    }

    /// Asks for Status until it fails; until then it must be as before.
    pub async fn first_error(&self) -> Result<tonic::Status> {
        let key_id = &self.sealed.key_id;
        eventually("Status becomes an error", PATIENCE, async || match self.client.status().await {
            Err(error) => Ok(error),
            Ok(status) if status.key_id == *key_id && status.healthz == "ok" => bail!("it is ok"),
            Ok(status) => Ok(tonic::Status::internal(format!("{status:?}"))),
        })
        .await
    }

    /// A passing fault is on: Status is ok for the coast, then an error that
    /// tells why, and so does the provider's own. Meanwhile the load goes on.
    pub async fn is_felt_after_the_coast(&self, why: &str, load: &Load) -> Result<()> {
        let coast =
            Coast { shim: &self.client, provider: &self.provider, lasts: COAST, probe: PROBE };
        let error = coast.ends(&self.sealed.key_id).await?;
        self.is_felt(&error, why).await?;
        load.more(MEANWHILE).await
    }

    /// Status is an error that tells why, and so does the provider's own.
    pub async fn is_felt(&self, error: &tonic::Status, why: &str) -> Result<()> {
        ensure!(error.message().contains("write key 1"), "{error}");
        // On a busy machine a probe may end for want of time.
        eventually("the provider tells why", PATIENCE, async || {
            let status = self.node.plugin.status().await?;
            let key = &status["keys"][0];
            ensure!(key["healthy"] == false, "{status}");
            ensure!(key["last_error"].to_string().contains(why), "no {why} in {status}");
            Ok(())
        })
        .await?;
        let answered = self.client.as_kube_apiserver().decrypt(&self.sealed).await;
        ensure!(answered.is_err(), "yet the KMS has answered in time");
        Ok(())
    }

    /// kube-apiserver sees the fault, is not ready, and serves all the same.
    pub async fn is_seen_by_the_apiserver(&mut self, load: &Load) -> Result<()> {
        self.node.server.wait_kms_providers(false).await?;
        load.more(MEANWHILE).await
    }

    /// The fault is over: everything is as before, by itself.
    pub async fn heals(&mut self) -> Result<()> {
        let Self { client, node, sealed, .. } = self;
        node.shim
            .process()
            .wait_until("Status heals", PATIENCE, async || {
                let status = client.status().await?;
                ensure!(status.key_id == sealed.key_id, "key_id has become {}", status.key_id);
                Ok(())
            })
            .await?;
        self.unwraps().await?;
        let again = self.client.round_trip(b"afterwards").await?;
        ensure!(again.key_id == self.sealed.key_id, "key_id has become {}", again.key_id);
        Ok(())
    }

    /// What was wrapped before is unwrapped by the KMS now.
    pub async fn unwraps(&self) -> Result<()> {
        self.client.reads(&self.sealed, WORDS).await
    }

    /// The same, and kube-apiserver has noticed.
    pub async fn heals_for_the_apiserver(&mut self, load: &Load) -> Result<()> {
        self.heals().await?;
        self.node.server.wait_kms_providers(true).await?;
        load.more(MEANWHILE).await
    }

    /// A restarted kube-apiserver has no unwrapped keys left: what the load has left is
    /// encrypted, and unwrapped by the KMS.
    pub async fn everything_reads_after_a_restart(&mut self, report: &Report) -> Result<()> {
        self.node.server.restart().await?;
        for kind in Kind::ALL {
            let prefix = format!("/registry/{}/default/", kind.plural());
            for entry in self.plane.etcd.list(&prefix).await? {
                Stored::parse(&entry.value).with_context(|| entry.key.clone())?;
            }
        }
        report.all_reads(&self.node.server.client(), "default").await
    }
}

fn coasting(endpoint: &str) -> ShimConfig {
    let seconds = |time: Duration| format!("{}s", time.as_secs());
    let (interval, timeout) = PROBE;
    let config = ShimConfig::new(1).write(1, endpoint);
    config.probe(&seconds(interval), &seconds(timeout)).coast(&seconds(COAST))
}
