//! What is no rotation, and has states too: a resource that comes along, and a retired key that
//! comes back. And people see all of it, with kubectl and on the operator's page.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::operator::{BETWEEN_STEPS, Lease, ROTATION, run};
use sidekey_e2e::shim::replicas::key_number;
use sidekey_e2e::{KubeClient, Load};

use super::Scene;

/// What is encrypted, with the resource that comes along.
pub(super) const RESOURCES: [&str; 3] = ["configmaps", "secrets", "serviceaccounts"];

#[test]
fn killed_while_a_resource_or_a_key_comes_in_it_goes_on() {
    run(others()).unwrap();
}

async fn others() {
    let scene = Scene::start("others", 3).await.unwrap();
    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.a_resource_is_read_by_all_before_one_encrypts_it(&load).await.unwrap();
    scene.a_retired_key_that_is_named_again_has_everything_rewritten(&load).await.unwrap();
    scene.a_deleted_secret_is_named_and_waited_for(&load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout: {report}");
    scene.managed.hosted.nothing_has_restarted(&pods).await.unwrap();
    scene.people_see_it_with_kubectl().await.unwrap();
    scene.people_see_it_on_the_page().await.unwrap();
}

impl Scene {
    /// The operator is killed while it is written in clear, and again before it is rewritten.
    /// Service accounts are made and read through every replica all the while.
    async fn a_resource_is_read_by_all_before_one_encrypts_it(&self, load: &Load) -> Result<()> {
        let (managed, hosted) = (&self.managed, &self.managed.hosted);
        let pods = hosted.pods().await?;
        let servers: Vec<_> = pods.iter().map(|pod| hosted.server(pod)).collect::<Result<_>>()?;
        let mut made = 0;
        let gate = managed.refuse_job("sidekey-gate").await?;
        self.put_with(&[(1, 0)], json!({"resources": RESOURCES})).await?;
        accounts_until(managed.wait_refused(&gate), &servers, &mut made).await?;
        self.killed_it_is_as_far_as_before(Lease::TakenAway, load).await?;
        ensure!(self.is_written_in_clear().await?, "it is encrypted before all can read it");

        let rewrite = managed.refuse_job("sidekey-migrate").await?;
        managed.allow(gate).await?;
        accounts_until(managed.wait_refused(&rewrite), &servers, &mut made).await?;
        self.killed_it_is_as_far_as_before(Lease::TakenAway, load).await?;
        ensure!(!self.is_written_in_clear().await?, "it is still written in clear");
        let told = managed.encryption().await?["status"]["encryptedResources"].clone();
        ensure!(told == json!(["configmaps", "secrets"]), "told before it was rewritten: {told}");

        managed.allow(rewrite).await?;
        let what = "service accounts are encrypted";
        let told = managed.wait_encryption(what, ROTATION, |encryption| {
            let told = &encryption["status"]["encryptedResources"];
            ensure!(*told == json!(RESOURCES), "{told}");
            Ok(())
        });
        accounts_until(told, &servers, &mut made).await?;
        managed.wait_condition("EtcdDataEncryptionUpToDate", "True").await?;
        load.more(BETWEEN_STEPS).await?;
        let stored = hosted.stored_of("serviceaccounts").await?;
        ensure!(stored.len() >= made, "{} are stored", stored.len());
        for entry in stored {
            let key = key_number(&entry.value).with_context(|| entry.key.clone())?;
            ensure!(key == 1, "{} is under key {key}", entry.key);
        }
        Ok(())
    }

    /// Whether service accounts are written in clear, by what was published last.
    async fn is_written_in_clear(&self) -> Result<bool> {
        let published = self.managed.published().await?;
        let (_, last) = published.last().context("nothing is published")?;
        let names = |stanza: &&Value| {
            let list = stanza["resources"].as_array().into_iter().flatten();
            list.into_iter().any(|name| name == "serviceaccounts")
        };
        let mut stanzas = last["resources"].as_array().into_iter().flatten();
        let first = stanzas.find(names).with_context(|| format!("none has it: {last}"))?;
        Ok(first["providers"][0].get("identity").is_some())
    }

    /// As when a backup of etcd has brought data back that needs it.
    async fn a_retired_key_that_is_named_again_has_everything_rewritten(
        &self,
        load: &Load,
    ) -> Result<()> {
        let (managed, more) = (&self.managed, || json!({"resources": RESOURCES}));
        self.put_with(&[(2, 1)], more()).await?;
        managed.wait_written_with(2).await?;
        managed.wait_retired(1).await?;
        let before = managed.encrypted_under().await?;
        let rewrite = managed.refuse_job("sidekey-migrate").await?;
        self.put_with(&[(2, 1), (1, 0)], more()).await?;
        managed.wait_refused(&rewrite).await?;
        self.killed_it_is_as_far_as_before(Lease::TakenAway, load).await?;
        let status = managed.encryption().await?["status"].clone();
        ensure!(status["encryptedUnder"].is_null(), "forgotten: {status}");
        let mut loaded = status["keys"].as_array().into_iter().flatten();
        ensure!(loaded.any(|key| key["id"] == 1), "it is not back: {status}");
        managed.allow(rewrite).await?;
        managed.wait_condition("EtcdDataEncryptionUpToDate", "True").await?;
        ensure!(managed.encrypted_under().await? == before, "it is under another key_id");
        managed.all_is_under(2).await
    }
}

/// Makes and reads service accounts until something has come about.
async fn accounts_until<T>(
    event: impl Future<Output = Result<T>>,
    servers: &[KubeClient],
    made: &mut usize,
) -> Result<T> {
    let mut event = std::pin::pin!(event);
    loop {
        tokio::select! {
            biased;
            come = &mut event => return come,
            () = std::future::ready(()) => accounts(servers, made).await?,
        }
    }
}

/// Makes a service account through each replica, and reads all through each.
async fn accounts(servers: &[KubeClient], made: &mut usize) -> Result<()> {
    for server in servers {
        *made += 1;
        let metadata = json!({"name": format!("account-{made}"), "namespace": "default"});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
        server.apply(&account).await?;
        for other in servers {
            other.get("/api/v1/serviceaccounts").await?;
        }
    }
    Ok(())
}
