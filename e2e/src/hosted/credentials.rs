//! Tokens and credentials of a hosted control plane, replaced while it runs.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::Hosted;
use crate::cluster::Pod;
use crate::wait::{PATIENCE, eventually};

impl Hosted {
    /// How often each pod's provider has taken changed files over, all its keys together.
    pub async fn reloads(&self, pods: &[Pod]) -> Result<Vec<f64>> {
        let mut all = Vec::new();
        for pod in pods {
            let metrics = self.provider_metrics(pod).await?;
            all.push(metrics.sum("kms_reloads_total", &[("result", "success")]));
        }
        Ok(all)
    }

    /// Waits until each has done so so many times more.
    pub async fn wait_reloads(&self, pods: &[Pod], before: &[f64], more: f64) -> Result<()> {
        eventually("all providers have taken the change over", PATIENCE, async || {
            let now = self.reloads(pods).await?;
            let all = before.iter().zip(&now).all(|(before, now)| now - before >= more);
            ensure!(all, "{now:?} after {before:?}");
            Ok(())
        })
        .await
    }

    /// Gives the minters another token, waits until `keys` keys of each provider are
    /// on it, and withdraws the old one with its sessions.
    pub async fn replace_token(
        &self,
        pods: &[Pod],
        keys: f64,
        [old, new]: [&str; 2],
    ) -> Result<()> {
        self.moto.accept_tokens(&[old, new]).await?;
        let before = self.reloads(pods).await?;
        let client = self.cluster.client();
        client.patch_secret(&self.namespace, "kms-token", &[("token", new)]).await?;
        self.wait_reloads(pods, &before, keys).await?;
        eventually("all providers have sessions of the new token", PATIENCE, async || {
            let sessions = self.moto.sessions().await?;
            let count = sessions.values().filter(|token| *token == new).count();
            ensure!(count >= pods.len(), "{count} sessions");
            Ok(())
        })
        .await?;
        self.moto.accept_tokens(&[new]).await?;
        self.moto.revoke_sessions_of(old, "ExpiredTokenException").await
    }

    /// Where `..data` of the credentials' volume of a pod points: kubelet's own swap moves it.
    pub fn credentials_link(&self, pod: &Pod) -> Result<PathBuf> {
        let link = self.cluster.volume(pod, "secret", "aws-kms-credentials").join("..data");
        std::fs::read_link(&link).with_context(|| format!("cannot read {}", link.display()))
    }
}
