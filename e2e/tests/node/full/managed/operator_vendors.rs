//! Promise: AWS, Vault and local after each other: with sidecars exactly one rolling update each, with
//! providers in pods of their own no restart at all; versions that somebody makes in Vault, or that
//! `autoRotation` asks for, are followed; what is encrypted becomes clear and encrypted again by
//! kube-apiserver's own reload; no request fails.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::operator::{BETWEEN_STEPS, run};
use sidekey_e2e::wait::{LONG_PATIENCE, PATIENCE};
use sidekey_e2e::{Load, eventually};

use crate::managed::operator_vendors::{PROVIDERS, Scene};

#[test]
fn with_sidecars_each_vendor_takes_one_rolling_update() {
    run(with_sidecars()).unwrap();
}

async fn with_sidecars() {
    let scene = Scene::start("three-sidecars", json!({})).await.unwrap();
    scene.put(&[scene.aws.key(1, 0)]).await.unwrap();
    scene.managed.wait_written_with(1).await.unwrap();
    let load = scene.managed.load_on_service().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let keys = [scene.aws.key(1, 0), scene.vault.key(2), scene.local.key(3)];
    scene.write_with_one_rolling_update(2, &keys, &load).await.unwrap();
    scene.a_version_that_somebody_makes_in_vault_is_followed(&load).await.unwrap();
    scene.write_with_one_rolling_update(3, &keys, &load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout two changes of vendor, through the balancer: {report}");
}

#[test]
fn with_providers_elsewhere_no_kube_apiserver_restarts() {
    run(with_providers_elsewhere()).unwrap();
}

async fn with_providers_elsewhere() {
    let scene = Scene::start("three-proxy", json!({"placement": "Proxy"})).await.unwrap();
    let aws = scene.encrypt_with_tokens().await.unwrap();
    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let keys = [aws, scene.vault.key(2), scene.local.key(3)];
    scene.write_with(2, &keys, &load).await.unwrap();
    scene.vault_is_asked_for_a_version_on_a_schedule(&keys[..2], &load).await.unwrap();
    scene.write_with(3, &keys, &load).await.unwrap();
    scene.providers_that_nobody_needs_are_gone().await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout three changes, on each pod: {report}");
    scene.managed.hosted.nothing_has_restarted(&pods).await.unwrap();
}

#[test]
fn what_is_clear_or_deleted_for_a_while_takes_nothing_away() {
    run(clear_for_a_while()).unwrap();
}

async fn clear_for_a_while() {
    let scene = Scene::start("clear", json!({"placement": "Proxy"})).await.unwrap();
    scene.put(&[scene.local.key(3)]).await.unwrap();
    scene.managed.wait_written_with(3).await.unwrap();
    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.everything_becomes_clear_and_is_encrypted_again(&load).await.unwrap();
    scene.deleted_and_put_back_it_takes_nothing_away(&load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout, on each pod: {report}");
    scene.managed.hosted.nothing_has_restarted(&pods).await.unwrap();
}

impl Scene {
    async fn a_version_that_somebody_makes_in_vault_is_followed(&self, load: &Load) -> Result<()> {
        let rollouts = self.managed.rollouts().await?;
        let before = self.managed.encrypted_under().await?;
        self.vault.key.rotate().await?;
        self.managed.wait_followed(2, &before).await?;
        load.more(BETWEEN_STEPS).await?;
        ensure!(self.managed.rollouts().await? == rollouts, "a rolling update for a version");
        self.managed.all_is_under(2).await
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
        let place = format!("/apis/apps/v1/namespaces/{}", managed.namespace());
        let deployment = format!("{place}/deployments/{PROVIDERS}");
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
        self.put(&[self.local.key(3)]).await?;
        for number in [1, 2] {
            self.managed.wait_retired(number).await?;
        }
        let client = self.managed.hosted.cluster.client();
        // They are retired before the pods are made anew.
        eventually("the providers are those of local alone", LONG_PATIENCE, async || {
            let pods = client.wait_deployment(self.managed.namespace(), PROVIDERS).await?;
            for pod in &pods {
                let names: Vec<&str> = pod.containers.iter().map(|one| one.name.as_str()).collect();
                let old = names.iter().any(|name| name.contains("aws") || name.contains("vault"));
                ensure!(!old && names.iter().any(|name| name.contains("local")), "{names:?}");
            }
            Ok(())
        })
        .await?;
        eventually("minters' way to kube-apiservers is gone", PATIENCE, async || {
            let answer = client.raw(&self.servers()).await?;
            ensure!(answer.status == 404, "{}", answer.status);
            Ok(())
        })
        .await
    }
}
