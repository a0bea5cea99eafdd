//! Promise: the vendor is changed by editing the SecretEncryption: with sidecars it takes exactly one
//! rolling update each time, with providers in pods of their own no kube-apiserver restarts; what is
//! encrypted becomes clear and encrypted again by kube-apiserver's own reload; no request fails.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::operator::{
    AwsKeys, BETWEEN_STEPS, LocalKey, Managed, NAMESPACE, Options, ROTATION, VaultKey, encryption,
};
use sidekey_e2e::shim::replicas::key_number;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Load, eventually};

/// The Deployment of providers in pods of their own.
const PROVIDERS: &str = "sidekey-providers";

/// Keys of three vendors. Dropped, and so ended, in this order.
struct Scene {
    vault: VaultKey,
    local: LocalKey,
    aws: AwsKeys,
    more: Value,
    managed: Managed,
}

#[tokio::test]
async fn with_sidecars_each_vendor_takes_one_rolling_update() {
    let scene = Scene::start("op-sidecars", json!({})).await.unwrap();
    scene.put(&[scene.aws.key(1, 0)]).await.unwrap();
    scene.managed.wait_written_with(1).await.unwrap();

    let load = scene.managed.load_on_service().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let keys = [scene.aws.key(1, 0), scene.vault.key(2), scene.local.key(3)];
    for number in [2_u64, 3] {
        let before = scene.managed.rollouts().await.unwrap();
        scene.write_with(number, &keys, &load).await.unwrap();
        let rolled = scene.managed.rollouts().await.unwrap() - before;
        assert_eq!(rolled, 1, "rolling updates for key {number}");
        if number == 2 {
            scene.a_version_that_somebody_makes_in_vault_is_followed(&load).await.unwrap();
            assert_eq!(scene.managed.rollouts().await.unwrap(), before + 1, "for a version");
        }
    }
    let before = scene.managed.rollouts().await.unwrap();
    scene.one_more_resource_is_read_by_all_before_one_encrypts_it(&keys, &load).await.unwrap();
    assert_eq!(scene.managed.rollouts().await.unwrap(), before, "for a resource");
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout two changes of vendor, through the balancer: {report}");
}

#[tokio::test]
async fn with_providers_elsewhere_no_kube_apiserver_restarts() {
    let scene = Scene::start("op-proxy", json!({"placement": "Proxy"})).await.unwrap();
    scene.aws.admit_tokens_alone(&scene.managed).await.unwrap();
    let aws = scene.aws.key_with_role(1, 0);
    scene.put(std::slice::from_ref(&aws)).await.unwrap();
    scene.managed.wait_written_with(1).await.unwrap();
    scene.providers_have_tokens_of_the_hosted_cluster().await.unwrap();

    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let keys = [aws, scene.vault.key(2), scene.local.key(3)];
    scene.write_with(2, &keys, &load).await.unwrap();
    scene.vault_is_asked_for_a_version_on_a_schedule(&keys[..2], &load).await.unwrap();
    scene.write_with(3, &keys, &load).await.unwrap();
    scene.everything_becomes_clear_and_is_encrypted_again(&load).await.unwrap();
    scene.deleted_and_put_back_it_takes_nothing_away(&load).await.unwrap();
    scene.providers_that_nobody_needs_are_gone().await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout five changes, on each pod: {report}");
    scene.managed.hosted.nothing_has_restarted(&pods).await.unwrap();
}

impl Scene {
    async fn start(name: &str, mut more: Value) -> Result<Self> {
        let options = Options::default().vendors(&["aws", "vault", "local", "proxy"]);
        let managed = Managed::start(name, options).await?;
        let aws = AwsKeys::create(&managed, NAMESPACE, 1).await?;
        let vault = VaultKey::create(&managed).await?;
        let local = LocalKey::create(&managed, "key").await?;
        // A version that is made at the vendor is followed at once, not after five minutes.
        more["convergence"] = "1s".into();
        Ok(Self { vault, local, aws, more, managed })
    }

    async fn put(&self, keys: &[Value]) -> Result<()> {
        self.managed.put_encryption(&self.document(keys)).await?;
        Ok(())
    }

    /// With a token for as long as a key that needs one is named.
    fn document(&self, keys: &[Value]) -> Value {
        let mut document = encryption(keys, &self.more);
        if keys.iter().any(|key| key["credentials"]["webIdentityTokenFile"].is_string()) {
            document["spec"]["tokens"] = json!([{"type": "aws"}]);
        }
        document
    }

    /// AWS knows no other way in.
    async fn providers_have_tokens_of_the_hosted_cluster(&self) -> Result<()> {
        let client = self.managed.hosted.cluster.client();
        let pods = client.wait_deployment(NAMESPACE, PROVIDERS).await?;
        let tokens = self.aws.reviewed_tokens(&self.managed).await?;
        ensure!(tokens.len() > pods.len(), "preflight and each pod have one: {}", tokens.len());
        client.get(&servers()).await?;
        Ok(())
    }

    /// Lets the key of this number write; all before it read.
    async fn write_with(&self, number: u64, keys: &[Value], load: &Load) -> Result<()> {
        let at = usize::try_from(number)? - 1;
        let all: Vec<Value> = keys[..=at].iter().rev().cloned().collect();
        self.put(&all).await?;
        let done = self.managed.wait_written_with(number).await?;
        load.more(BETWEEN_STEPS).await?;
        self.managed.all_is_under(number).await?;
        println!("to {}: {:#}", keys[at]["type"], done["status"]["history"][0]);
        Ok(())
    }

    async fn a_version_that_somebody_makes_in_vault_is_followed(&self, load: &Load) -> Result<()> {
        let before = self.managed.encrypted_under().await?;
        self.vault.key.rotate().await?;
        self.managed.wait_followed(2, &before).await?;
        load.more(BETWEEN_STEPS).await?;
        self.managed.all_is_under(2).await
    }

    /// Both replicas are asked all the while, for what either of them writes.
    async fn one_more_resource_is_read_by_all_before_one_encrypts_it(
        &self,
        keys: &[Value],
        load: &Load,
    ) -> Result<()> {
        let (managed, hosted) = (&self.managed, &self.managed.hosted);
        let pods = hosted.pods().await?;
        let servers: Vec<_> = pods.iter().map(|pod| hosted.server(pod)).collect::<Result<_>>()?;
        let keys: Vec<Value> = keys.iter().rev().cloned().collect();
        let mut document = self.document(&keys);
        document["spec"]["resources"] = json!(["secrets", "configmaps", "serviceaccounts"]);
        managed.put_encryption(&document).await?;
        let mut made = 0;
        eventually("service accounts are encrypted", ROTATION, async || {
            for server in &servers {
                let metadata = json!({"name": format!("account-{made}"), "namespace": "default"});
                let account = json!({
                    "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata,
                });
                made += 1;
                // A failure is the end of the wait, no reason to ask again.
                if let Err(error) = server.apply(&account).await {
                    return Ok(Err(error));
                }
                for other in &servers {
                    if let Err(error) = other.get("/api/v1/serviceaccounts").await {
                        return Ok(Err(error));
                    }
                }
            }
            let status = managed.encryption().await?["status"].clone();
            let listed = &status["encryptedResources"];
            ensure!(listed == &json!(["configmaps", "secrets", "serviceaccounts"]), "{listed}");
            Ok(Ok(()))
        })
        .await??;
        managed.wait_condition("EtcdDataEncryptionUpToDate", "True").await?;
        load.more(BETWEEN_STEPS).await?;
        let stored = hosted.stored_of("serviceaccounts").await?;
        ensure!(stored.len() >= made, "{} are stored", stored.len());
        for entry in stored {
            let key = key_number(&entry.value).with_context(|| entry.key.clone())?;
            ensure!(key == 3, "{} is under key {key}", entry.key);
        }
        Ok(())
    }

    /// Nobody but the operator asks for it.
    async fn vault_is_asked_for_a_version_on_a_schedule(
        &self,
        keys: &[Value],
        load: &Load,
    ) -> Result<()> {
        let (managed, keys) = (&self.managed, [keys[1].clone(), keys[0].clone()]);
        let before = managed.encrypted_under().await?;
        let mut document = self.document(&keys);
        document["spec"]["autoRotation"] = json!({"every": "1s"});
        managed.put_encryption(&document).await?;
        managed.wait_followed(2, &before).await?;
        self.put(&keys).await?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(2).await?;
        let versions = self.vault.key.describe().await?["latest_version"].clone();
        ensure!(versions.as_u64() > Some(1), "{versions}");
        Ok(())
    }

    async fn everything_becomes_clear_and_is_encrypted_again(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let mut clear = self.document(&[self.local.key(3)]);
        clear["spec"]["write"] = "identity".into();
        managed.put_encryption(&clear).await?;
        managed.wait_written_with(0).await?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(0).await?;
        // A number never writes twice: what it wrote before could not be told from what it writes now.
        self.put(&[self.local.key(4), self.local.key(3)]).await?;
        managed.wait_written_with(4).await?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(4).await
    }

    /// Its status is lost with it.
    async fn deleted_and_put_back_it_takes_nothing_away(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let client = managed.hosted.cluster.client();
        let before = managed.encryption().await?;
        let deployment = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{PROVIDERS}");
        let providers = client.get(&deployment).await?;
        managed.delete_encryption().await?;
        load.more(BETWEEN_STEPS).await?;
        self.put(&[self.local.key(4), self.local.key(3)]).await?;
        managed.wait_written_with(4).await?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(4).await?;
        let after = managed.encryption().await?;
        ensure!(before["metadata"]["uid"] != after["metadata"]["uid"], "it is the same object");
        // Keys that the document does not name are there, or were counted and retired meanwhile.
        let ids = |list: &Value| -> BTreeSet<String> {
            let text = |id: &Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            list.as_array().into_iter().flatten().map(|one| text(&one["id"])).collect()
        };
        let mut known = ids(&after["status"]["keys"]);
        known.extend(ids(&after["status"]["retired"]));
        let loaded = ids(&before["status"]["keys"]);
        ensure!(known.is_superset(&loaded), "{loaded:?}, then {known:?}");
        let now = client.get(&deployment).await?;
        let same = providers["metadata"]["uid"] == now["metadata"]["uid"];
        ensure!(same, "the providers were made anew");
        Ok(())
    }

    /// AWS and Vault can be gone: nothing stored needs them.
    async fn providers_that_nobody_needs_are_gone(&self) -> Result<()> {
        self.put(&[self.local.key(4)]).await?;
        for number in [1, 2, 3] {
            self.managed.wait_retired(number).await?;
        }
        let client = self.managed.hosted.cluster.client();
        let pods = client.wait_deployment(NAMESPACE, PROVIDERS).await?;
        for pod in &pods {
            let names: Vec<&str> = pod.containers.iter().map(|one| one.name.as_str()).collect();
            ensure!(!names.iter().any(|name| name.contains("aws") || name.contains("vault")));
            ensure!(names.iter().any(|name| name.contains("local")), "{names:?}");
        }
        eventually("minters' way to kube-apiservers is gone", PATIENCE, async || {
            let answer = client.raw(&servers()).await?;
            ensure!(answer.status == 404, "{}", answer.status);
            Ok(())
        })
        .await
    }
}

/// The Service by which minters reach kube-apiservers.
fn servers() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/services/sidekey-apiservers")
}
