//! Promise: the vendor is changed by editing the SecretEncryption: with sidecars it takes exactly one
//! rolling update, with providers in pods of their own no kube-apiserver restarts; no request fails.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::Load;
use sidekey_e2e::operator::{AwsKeys, BETWEEN_STEPS, LocalKey, Managed, VaultKey, run};

/// The Deployment of providers in pods of their own.
pub(crate) const PROVIDERS: &str = "sidekey-providers";

/// Keys of three vendors. Dropped, and so ended, in this order.
pub(crate) struct Scene {
    pub(crate) vault: VaultKey,
    pub(crate) local: LocalKey,
    pub(crate) aws: AwsKeys,
    more: Value,
    pub(crate) managed: Managed,
}

#[test]
fn with_sidecars_a_vendor_takes_one_rolling_update() {
    run(with_sidecars()).unwrap();
}

async fn with_sidecars() {
    let scene = Scene::start("sidecars", json!({})).await.unwrap();
    scene.put(&[scene.aws.key(1, 0)]).await.unwrap();
    scene.managed.wait_written_with(1).await.unwrap();
    let load = scene.managed.load_on_service().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let keys = [scene.aws.key(1, 0), scene.vault.key(2)];
    scene.write_with_one_rolling_update(2, &keys, &load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout a change of vendor, through the balancer: {report}");
}

#[test]
fn with_providers_elsewhere_a_vendor_takes_no_restart() {
    run(with_providers_elsewhere()).unwrap();
}

async fn with_providers_elsewhere() {
    let scene = Scene::start("proxy", json!({"placement": "Proxy"})).await.unwrap();
    let aws = scene.encrypt_with_tokens().await.unwrap();
    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.write_with(2, &[aws, scene.vault.key(2)], &load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout a change of vendor, on each pod: {report}");
    scene.managed.hosted.nothing_has_restarted(&pods).await.unwrap();
}

impl Scene {
    pub(crate) async fn start(name: &str, mut more: Value) -> Result<Self> {
        let managed = match more["placement"] == "Proxy" {
            true => Managed::start_unbalanced(name).await?,
            false => Managed::start(name).await?,
        };
        let aws = AwsKeys::create(&managed, managed.namespace(), 1).await?;
        let vault = VaultKey::create(&managed).await?;
        let local = LocalKey::create(&managed, "key").await?;
        // A version that is made at the vendor is followed at once, not after five minutes.
        more["convergence"] = "1s".into();
        Ok(Self { vault, local, aws, more, managed })
    }

    pub(crate) async fn put(&self, keys: &[Value]) -> Result<()> {
        self.managed.put_encryption(&self.document(keys)).await?;
        Ok(())
    }

    /// With a token for as long as a key that needs one is named.
    pub(crate) fn document(&self, keys: &[Value]) -> Value {
        let mut document = self.managed.document(keys, &self.more);
        if keys.iter().any(|key| key["credentials"]["webIdentityTokenFile"].is_string()) {
            document["spec"]["tokens"] = json!([{"type": "aws"}]);
        }
        document
    }

    /// Encrypts with a key of AWS to which nothing but the hosted cluster's tokens leads.
    pub(crate) async fn encrypt_with_tokens(&self) -> Result<Value> {
        self.aws.admit_tokens_alone(&self.managed).await?;
        let aws = self.aws.key_with_role(1, 0);
        self.put(std::slice::from_ref(&aws)).await?;
        self.managed.wait_written_with(1).await?;
        self.providers_have_tokens_of_the_hosted_cluster().await?;
        Ok(aws)
    }

    async fn providers_have_tokens_of_the_hosted_cluster(&self) -> Result<()> {
        let client = self.managed.hosted.cluster.client();
        let pods = client.wait_deployment(self.managed.namespace(), PROVIDERS).await?;
        let tokens = self.aws.reviewed_tokens(&self.managed).await?;
        ensure!(tokens.len() > pods.len(), "preflight and each pod have one: {}", tokens.len());
        client.get(&self.servers()).await?;
        Ok(())
    }

    /// Lets the key of this number write; all before it read.
    pub(crate) async fn write_with(&self, number: u64, keys: &[Value], load: &Load) -> Result<()> {
        let at = usize::try_from(number)? - 1;
        let all: Vec<Value> = keys[..=at].iter().rev().cloned().collect();
        self.put(&all).await?;
        let done = self.managed.wait_written_with(number).await?;
        load.more(BETWEEN_STEPS).await?;
        self.managed.all_is_under(number).await?;
        println!("to {}: {:#}", keys[at]["type"], done["status"]["history"][0]);
        Ok(())
    }

    /// The same, with sidecars, which takes just that.
    pub(crate) async fn write_with_one_rolling_update(
        &self,
        number: u64,
        keys: &[Value],
        load: &Load,
    ) -> Result<()> {
        let before = self.managed.rollouts().await?;
        self.write_with(number, keys, load).await?;
        let rolled = self.managed.rollouts().await? - before;
        ensure!(rolled == 1, "{rolled} rolling updates for key {number}");
        Ok(())
    }

    /// The Service by which minters reach kube-apiservers.
    pub(crate) fn servers(&self) -> String {
        format!("/api/v1/namespaces/{}/services/sidekey-apiservers", self.managed.namespace())
    }
}
