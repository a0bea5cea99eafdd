//! Promise: where another operator owns the pod template, and puts it back and rolls it out as it
//! likes, the webhook puts the sidecars in; with our operator down pods that run go on, and none is
//! made without its sidecars; its certificate is replaced without anybody's help.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::cluster::Pod;
use sidekey_e2e::operator::{AwsKeys, BETWEEN_STEPS, Managed, OPERATOR_NAMESPACE, run};
use sidekey_e2e::wait::{LONG_PATIENCE, PATIENCE};
use sidekey_e2e::{KubeClient, Load, eventually};
use tokio::task::JoinHandle;

const NAMESPACE: &str = "clusters-webhook";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/clusters-webhook/deployments/kube-apiserver";

/// How often the imitated operator looks.
const LOOK: Duration = Duration::from_millis(500);

/// An imitation of HyperShift's own operator: whatever others write into the pod template, it puts
/// its own back. Ended when this is dropped.
struct Owner {
    task: JoinHandle<()>,
}

impl Owner {
    fn start(client: KubeClient, template: Value) -> Self {
        let task = tokio::spawn(async move {
            loop {
                // A conflict is looked at again.
                let _ = put_back(&client, &template).await;
                tokio::time::sleep(LOOK).await;
            }
        });
        Self { task }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn put_back(client: &KubeClient, template: &Value) -> Result<()> {
    let mut now = client.get(DEPLOYMENT).await?;
    if now["spec"]["template"]["spec"] != template["spec"] {
        now["spec"]["template"]["spec"] = template["spec"].clone();
        client.send(Method::PUT, DEPLOYMENT, Some(&now)).await?;
    }
    Ok(())
}

struct Scene {
    managed: Managed,
    keys: AwsKeys,
}

#[test]
fn sidecars_come_in_whoever_owns_the_template() {
    run(scene()).unwrap();
}

async fn scene() {
    let managed = Managed::start("webhook").await.unwrap();
    let client = managed.hosted.cluster.client().clone();
    let template = client.get(DEPLOYMENT).await.unwrap()["spec"]["template"].clone();
    let owner = Owner::start(client, template);
    let keys = AwsKeys::create(&managed, NAMESPACE, 2).await.unwrap();
    let scene = Scene { managed, keys };
    let load = scene.managed.load_on_service().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    scene.it_is_encrypted_and_the_template_is_the_owners(&load).await.unwrap();
    scene.a_rotation_changes_no_pod(&load).await.unwrap();
    scene.the_owner_rolls_out_and_the_sidecars_are_in("one", &load).await.unwrap();
    scene.without_the_operator_no_pod_is_made_and_those_that_run_go_on(&load).await.unwrap();
    scene.a_lost_certificate_is_replaced(&load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout, through the balancer: {report}");
    drop(owner);
}

impl Scene {
    async fn put(&self, keys: &[(u64, usize)]) -> Result<()> {
        let keys: Vec<Value> = keys.iter().map(|(id, index)| self.keys.key(*id, *index)).collect();
        let more = json!({"controlPlane": {"injection": "Webhook"}});
        self.managed.put_encryption(&self.managed.document(&keys, &more)).await?;
        Ok(())
    }

    /// The pods, all of which have their sidecars.
    async fn whole_pods(&self) -> Result<Vec<Pod>> {
        let client = self.managed.hosted.cluster.client();
        let pods = client.wait_deployment(NAMESPACE, "kube-apiserver").await?;
        for pod in &pods {
            for name in ["kube-apiserver", "sidekey-shim", "sidekey-aws"] {
                pod.container(name)?;
            }
        }
        Ok(pods)
    }

    /// Waits until none of these is left, and those in their place are whole.
    async fn wait_other_pods(&self, before: &[Pod]) -> Result<()> {
        eventually("other pods run, and are whole", LONG_PATIENCE, async || {
            let now = self.whole_pods().await?;
            let old = now.iter().find(|pod| before.iter().any(|old| old.uid == pod.uid));
            ensure!(old.is_none(), "{:?}", old.map(Pod::summary));
            Ok(())
        })
        .await
    }

    async fn template_is_bare(&self) -> Result<()> {
        let now = self.managed.hosted.cluster.client().get(DEPLOYMENT).await?;
        let text = now["spec"]["template"].to_string();
        ensure!(!text.contains("sidekey-shim"), "{text}");
        Ok(())
    }

    /// Rolls out, as the owner does when its own configuration changes.
    async fn roll(&self, mark: &str) -> Result<()> {
        let metadata = json!({"annotations": {"owner.example/roll": mark}});
        let patch = json!({"spec": {"template": {"metadata": metadata}}});
        self.managed.hosted.cluster.client().merge(DEPLOYMENT, &patch).await?;
        Ok(())
    }

    async fn it_is_encrypted_and_the_template_is_the_owners(&self, load: &Load) -> Result<()> {
        self.put(&[(1, 0)]).await?;
        self.managed.wait_written_with(1).await?;
        self.whole_pods().await?;
        self.template_is_bare().await?;
        load.more(BETWEEN_STEPS).await?;
        self.managed.all_is_under(1).await
    }

    async fn a_rotation_changes_no_pod(&self, load: &Load) -> Result<()> {
        let pods = self.whole_pods().await?;
        self.put(&[(2, 1), (1, 0)]).await?;
        self.managed.wait_written_with(2).await?;
        load.more(BETWEEN_STEPS).await?;
        self.managed.all_is_under(2).await?;
        self.managed.hosted.nothing_has_restarted(&pods).await
    }

    async fn the_owner_rolls_out_and_the_sidecars_are_in(
        &self,
        mark: &str,
        load: &Load,
    ) -> Result<()> {
        let before = self.whole_pods().await?;
        self.roll(mark).await?;
        self.wait_other_pods(&before).await?;
        self.template_is_bare().await?;
        load.more(BETWEEN_STEPS).await
    }

    async fn without_the_operator_no_pod_is_made_and_those_that_run_go_on(
        &self,
        load: &Load,
    ) -> Result<()> {
        let (managed, hosted) = (&self.managed, &self.managed.hosted);
        let before = self.whole_pods().await?;
        let away = managed.without_operator().await?;
        self.roll("two").await?;
        eventually("a pod is refused", PATIENCE, async || {
            let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/replicasets");
            let sets = hosted.cluster.client().get(&path).await?;
            let refused =
                sets["items"].as_array().into_iter().flatten().any(|set| {
                    set["status"]["conditions"].to_string().contains("pods.sidekey.dev")
                });
            ensure!(refused, "no ReplicaSet says so");
            Ok(())
        })
        .await?;
        load.more(BETWEEN_STEPS).await?;
        hosted.nothing_has_restarted(&before).await?;
        away.end().await?;
        self.wait_other_pods(&before).await?;
        load.more(BETWEEN_STEPS).await
    }

    async fn a_lost_certificate_is_replaced(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let before = managed.webhook_ca().await?;
        let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/sidekey-operator-tls");
        managed.hosted.cluster.client().send(Method::DELETE, &path, None).await?;
        eventually("the cluster trusts another CA", LONG_PATIENCE, async || {
            let now = managed.webhook_ca().await?;
            ensure!(now != before, "still the old one");
            Ok(())
        })
        .await
        .with_context(|| managed.operator_tail())?;
        self.the_owner_rolls_out_and_the_sidecars_are_in("three", load).await
    }
}
