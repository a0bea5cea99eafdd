//! The operator's own pods: found, killed, read.

use anyhow::{Context, Result, ensure};
use hyper::Method;

use super::{Managed, OPERATOR, OPERATOR_NAMESPACE};
use crate::cluster::Pod;
use crate::wait::{PATIENCE, eventually};

/// How many of a log's last lines go into an error.
const TAIL: usize = 40;

impl Managed {
    /// Its pods, ending ones included.
    pub async fn operators(&self) -> Result<Vec<Pod>> {
        let labels = format!("app.kubernetes.io/name={OPERATOR}");
        self.hosted.cluster.client().pods(OPERATOR_NAMESPACE, &labels).await
    }

    /// Kills every operator: no signal that it could heed, no time to end.
    pub async fn kill_operator(&self) -> Result<()> {
        let client = self.hosted.cluster.client();
        for pod in self.operators().await? {
            let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{}", pod.name);
            client.send(Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), None).await?;
        }
        Ok(())
    }

    /// Kills every operator, and waits until there are new ones and one of them leads.
    pub async fn replace_operator(&self) -> Result<()> {
        let before = self.operators().await?;
        self.kill_operator().await?;
        self.wait_operator().await?;
        let now = self.operators().await?;
        let same = |pod: &&Pod| before.iter().any(|old| old.uid == pod.uid);
        ensure!(!now.iter().any(|pod| same(&pod)), "it was not killed");
        eventually("a new operator leads", PATIENCE, async || {
            let path = "/apis/coordination.k8s.io/v1/namespaces";
            let path = format!("{path}/{OPERATOR_NAMESPACE}/leases/{OPERATOR}");
            let lease = self.hosted.cluster.client().get(&path).await?;
            let holder = lease["spec"]["holderIdentity"].as_str().context("nobody leads")?;
            let leads = now.iter().any(|pod| holder.starts_with(&pod.name));
            ensure!(leads, "{holder} leads");
            Ok(())
        })
        .await
        .with_context(|| self.operator_tail())
    }

    /// Lets there be so many operators, without waiting for them.
    pub async fn scale_operator(&self, replicas: u32) -> Result<()> {
        let path = format!("/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/{OPERATOR}");
        let patch = serde_json::json!({"spec": {"replicas": replicas}});
        self.hosted.cluster.client().merge(&path, &patch).await?;
        Ok(())
    }

    /// Everything that operators have logged, those before them included.
    pub fn operator_log(&self) -> String {
        let logs = self.hosted.cluster.all_logs(OPERATOR_NAMESPACE).into_iter();
        let logs = logs.filter(|(name, _)| name.ends_with("/operator"));
        logs.map(|(_, text)| text).collect()
    }

    /// The last lines of each operator's log, ready to be shown.
    pub fn operator_tail(&self) -> String {
        let mut shown = String::new();
        for (name, text) in self.hosted.cluster.all_logs(OPERATOR_NAMESPACE) {
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n    ");
            shown.push_str(&format!("--- last lines of {name}:\n    {tail}\n"));
        }
        shown + "---"
    }
}
