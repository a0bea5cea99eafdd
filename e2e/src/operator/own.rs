//! The operator's own pods: found, killed, read.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_verify::{QUOTED, UNQUOTED};
use tokio::sync::RwLockWriteGuard;

use super::shared::runtime;
use super::{Managed, Management, OPERATOR, OPERATOR_NAMESPACE};
use crate::cluster::Pod;
use crate::wait::{PATIENCE, eventually};

/// How many of a log's last lines go into an error.
const TAIL: usize = 40;

/// The container of its pods.
const CONTAINER: &str = "operator";

/// What kubelet says of a container that was ended by SIGKILL.
const KILLED: u64 = 137;

/// What becomes of the lease of an operator that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Its successor waits until it has run out.
    RunsOut,
    /// It is taken away, to save that time: whoever had it is dead.
    TakenAway,
}

impl Management {
    /// The operator's pods, ending ones included.
    async fn operators(&self) -> Result<Vec<Pod>> {
        let labels = format!("app.kubernetes.io/name={OPERATOR}");
        self.cluster.client().pods(OPERATOR_NAMESPACE, &labels).await
    }

    /// Waits until every operator that there should be is ready.
    pub(super) async fn wait_operator(&self) -> Result<()> {
        let rolled = self.cluster.client().wait_deployment(OPERATOR_NAMESPACE, OPERATOR).await;
        rolled.with_context(|| self.operator_tail())?;
        Ok(())
    }

    /// kill -9 of every operator, seen to be that; their pods make room for new ones, which kubelet
    /// starts at once, other than a container that has ended several times.
    async fn kill(&self) -> Result<()> {
        let client = self.cluster.client();
        let mut pods = self.operators().await?;
        pods.retain(|pod| !pod.ending);
        for pod in &pods {
            self.cluster.kill_container(&pod.container(CONTAINER)?.id).await?;
        }
        for pod in &pods {
            let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{}", pod.name);
            eventually(format!("{} was killed", pod.name), PATIENCE, async || {
                let code = ended_with(&client.get(&path).await?);
                ensure!(code == Some(KILLED), "it ended with {code:?}");
                Ok(())
            })
            .await?;
            client.send(Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), None).await?;
        }
        Ok(())
    }

    /// The pod of the operator that leads.
    async fn leader(&self) -> Result<Pod> {
        let lease = self.cluster.client().get(&lease_path()).await?;
        let holder = lease["spec"]["holderIdentity"].as_str().context("nobody leads")?;
        let pods = self.operators().await?;
        let leads = |pod: &Pod| holder.split('_').next() == Some(pod.name.as_str());
        let found = pods.into_iter().find(|pod| !pod.ending && leads(pod));
        found.with_context(|| format!("{holder} leads, who is not there"))
    }

    /// The last lines of each operator's log, ready to be shown.
    pub(super) fn operator_tail(&self) -> String {
        let mut shown = String::new();
        for (name, text) in self.cluster.all_logs(OPERATOR_NAMESPACE) {
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n    ");
            shown.push_str(&format!("{QUOTED}{name}:\n    {tail}\n"));
        }
        shown + UNQUOTED
    }

    /// Lets there be so many operators; gives how many there were to be.
    async fn scale(&self, replicas: u64) -> Result<u64> {
        let path = format!("/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/{OPERATOR}");
        let client = self.cluster.client();
        let before = client.get(&path).await?["spec"]["replicas"].take();
        client.merge(&path, &json!({"spec": {"replicas": replicas}})).await?;
        before.as_u64().context("a Deployment without replicas")
    }
}

fn lease_path() -> String {
    let group = "/apis/coordination.k8s.io/v1";
    format!("{group}/namespaces/{OPERATOR_NAMESPACE}/leases/{OPERATOR}")
}

/// How the operator in this pod has ended, if it was not started again since, or just once.
fn ended_with(pod: &Value) -> Option<u64> {
    let mut all = pod["status"]["containerStatuses"].as_array()?.iter();
    let own = all.find(|status| status["name"] == CONTAINER)?;
    let code = |state: &str| own[state]["terminated"]["exitCode"].as_u64();
    code("state").or_else(|| code("lastState"))
}

/// The operator is away. No other test gets an answer of it, nor ends it. It comes back when this is
/// dropped, also by a test that fails.
pub struct Away<'a> {
    management: Arc<Management>,
    replicas: u64,
    _alone: RwLockWriteGuard<'a, ()>,
}

impl Away<'_> {
    /// Waits until it is back.
    pub async fn end(self) -> Result<()> {
        self.management.scale(self.replicas).await?;
        self.management.wait_operator().await
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let (management, replicas) = (Arc::clone(&self.management), self.replicas);
        if let Ok(runtime) = runtime() {
            runtime.spawn(async move { management.scale(replicas).await });
        }
    }
}

impl Managed {
    /// kill -9 of every operator, and waits until there are new ones and one of them leads.
    pub async fn replace_operator(&self, lease: Lease) -> Result<()> {
        let management = &self.management;
        let _alone = management.calm.write().await;
        let before = management.operators().await?;
        management.kill().await?;
        if lease == Lease::TakenAway {
            self.hosted.cluster.client().send(Method::DELETE, &lease_path(), None).await?;
        }
        management.wait_operator().await?;
        eventually("a new operator leads", PATIENCE, async || {
            let leader = management.leader().await?;
            let old = before.iter().any(|old| old.uid == leader.uid);
            ensure!(!old, "{} leads, which was killed", leader.name);
            Ok(())
        })
        .await
        .with_context(|| self.operator_tail())
    }

    /// Ends every operator, and waits until none is left.
    pub async fn without_operator(&self) -> Result<Away<'_>> {
        let management = &self.management;
        let alone = management.calm.write().await;
        let replicas = management.scale(0).await?;
        let away = Away { management: Arc::clone(management), replicas, _alone: alone };
        eventually("no operator runs", PATIENCE, async || {
            let left = management.operators().await?.len();
            ensure!(left == 0, "{left} run");
            Ok(())
        })
        .await?;
        Ok(away)
    }

    /// The last lines of each operator's log, ready to be shown.
    pub fn operator_tail(&self) -> String {
        self.management.operator_tail()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_an_operator_ended_is_found_also_if_it_runs_again() {
        let ended = json!({"terminated": {"exitCode": 137}});
        let running = json!({"running": {}});
        let pod = |state: &Value, last: &Value| {
            json!({"status": {"containerStatuses": [
                {"name": "operator", "state": state, "lastState": last},
            ]}})
        };
        assert_eq!(ended_with(&pod(&ended, &json!({}))), Some(KILLED));
        assert_eq!(ended_with(&pod(&running, &ended)), Some(KILLED));
        assert_eq!(ended_with(&pod(&running, &json!({}))), None);
    }
}
