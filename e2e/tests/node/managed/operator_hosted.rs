//! Promise: whoever edits the HostedCluster, and nothing else, has its data encrypted, its key and
//! its credentials changed and its old keys retired; no request fails, nothing restarts but by the
//! one rolling update that new sidecars take; and every mistake is told where it was made and changes
//! nothing.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidekey_e2e::Load;
use sidekey_e2e::operator::{
    AwsKeys, BETWEEN_STEPS, CLUSTERS, Managed, condition, hosted_cluster, run,
};
use sidekey_e2e::wait::{LONG_PATIENCE, PATIENCE, eventually};

/// A key that is well written, and does not exist.
const MISSING: &str = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000";

/// Where a mistake is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// To whoever makes the edit, which the schema refuses.
    AtOnce,
    /// By the operator, in the object's status.
    InStatus,
}

struct Scene {
    managed: Managed,
    keys: AwsKeys,
}

#[test]
fn editing_the_hosted_cluster_is_all_that_encryption_takes() {
    run(scene()).unwrap();
}

async fn scene() {
    let managed = Managed::start("a").await.unwrap();
    let keys = AwsKeys::create(&managed, CLUSTERS, 5).await.unwrap();
    keys.admit_tokens_alone(&managed).await.unwrap();
    let scene = Scene { managed, keys };
    scene.what_was_in_clear_is_encrypted_by_one_rolling_update().await.unwrap();
    scene.providers_log_in_with_tokens_of_the_hosted_cluster().await.unwrap();

    let pods = scene.managed.hosted.pods().await.unwrap();
    let load = scene.managed.load_on_pods().await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.one_edit_rotates_the_key(&load).await.unwrap();
    scene.mistakes_are_told_and_change_nothing(&load).await.unwrap();
    scene.a_key_that_does_not_exist_is_given_up_by_going_back(&load).await.unwrap();
    scene.three_rotations_in_a_row_leave_nothing_behind(&load).await.unwrap();
    scene.new_credentials_are_taken_over_in_place(&load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout three rotations, on each pod: {report}");
    scene.managed.hosted.nothing_has_restarted(&pods).await.unwrap();
}

impl Scene {
    async fn what_was_in_clear_is_encrypted_by_one_rolling_update(&self) -> Result<()> {
        let managed = &self.managed;
        let load = managed.load_on_service()?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(0).await?;
        let before = managed.rollouts().await?;
        let document = hosted_cluster(managed.name(), &[&self.keys.arns[0]], &self.keys.place());
        managed.hosted.cluster.client().apply(&document).await?;
        managed.wait_written_with(1).await?;
        load.more(BETWEEN_STEPS).await?;
        let report = load.stop().await?.without_failures()?;
        println!("throughout first enablement, through the balancer: {report}");
        let rolled = managed.rollouts().await? - before;
        ensure!(rolled == 1, "{rolled} rolling updates");
        managed.all_is_under(1).await?;
        self.every_replica_could_read_before_any_wrote().await
    }

    /// The role of the HostedCluster is all that they were told.
    async fn providers_log_in_with_tokens_of_the_hosted_cluster(&self) -> Result<()> {
        let hosted = &self.managed.hosted;
        let tokens = self.keys.reviewed_tokens(&self.managed).await?;
        let pods = hosted.pods().await?;
        println!("{} tokens of the hosted cluster were used", tokens.len());
        ensure!(tokens.len() > pods.len(), "preflight and each pod have one: {}", tokens.len());
        for pod in &pods {
            let log = hosted.cluster.logs(pod, "sidekey-token-aws")?;
            ensure!(log.contains("a token of kube-system/kms-provider"), "{log}");
            ensure!(tokens.iter().all(|token| !log.contains(token.as_str())), "a token is told");
        }
        Ok(())
    }

    /// Two phases: what is published first reads both and writes in clear.
    async fn every_replica_could_read_before_any_wrote(&self) -> Result<()> {
        let published = self.managed.published().await?;
        let first = |config: &Value| -> Option<String> {
            let providers = config["resources"][0]["providers"].as_array()?;
            Some(providers.first()?.as_object()?.keys().next()?.clone())
        };
        let order: Vec<Option<String>> = published.iter().map(|(_, one)| first(one)).collect();
        let names: Vec<&str> = order.iter().flatten().map(String::as_str).collect();
        let turned = names.iter().position(|name| *name == "kms").context("it never writes")?;
        ensure!(names.first() == Some(&"identity"), "the first ones were {names:?}");
        ensure!(names[turned..].iter().all(|name| *name == "kms"), "it turned back: {names:?}");
        Ok(())
    }

    async fn one_edit_rotates_the_key(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let before = managed.rollouts().await?;
        managed.activate(&self.keys.arns[1]).await?;
        let done = managed.wait_written_with(2).await?;
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(2).await?;
        ensure!(managed.rollouts().await? == before, "pods were rolled out");
        println!("the first rotation: {:#}", done["status"]["history"][0]);
        let past = &done["status"]["history"][0];
        ensure!(past["state"] == "Completed" && past["to"]["id"] == 2, "{past}");
        self.hypershifts_own_status_tells_of_it().await?;
        let retired = managed.wait_retired(1).await?;
        ensure!(retired["advice"].as_str().is_some_and(|text| !text.is_empty()), "{retired}");
        load.more(BETWEEN_STEPS).await
    }

    async fn hypershifts_own_status_tells_of_it(&self) -> Result<()> {
        let arn = &self.keys.arns[1];
        let what = "the HostedCluster's status tells of the rotation";
        self.managed
            .wait_hosted_cluster(what, PATIENCE, |cluster| {
                let status = &cluster["status"]["secretEncryption"];
                ensure!(status["history"][0]["state"] == "Completed", "{status}");
                ensure!(status["activeKey"].to_string().contains(arn.as_str()), "{status}");
                ensure!(status["targetKey"].is_null(), "{status}");
                for kind in ["EtcdDataEncryptionUpToDate", "ValidAWSKMSConfig"] {
                    let found = condition(cluster, kind).with_context(|| format!("no {kind}"))?;
                    ensure!(found["status"] == "True", "{found}");
                }
                Ok(())
            })
            .await
    }

    /// Each is told on the HostedCluster, by the path of the field; keys stay as they are.
    async fn mistakes_are_told_and_change_nothing(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        let right = managed.hosted_cluster().await?["spec"].clone();
        let before = managed.encryption().await?["status"]["revision"].clone();
        let aws = |change: Value| json!({"secretEncryption": {"kms": {"aws": change}}});
        let mistakes = [
            (aws(json!({"auth": null})), Told::AtOnce, "auth"),
            (aws(json!({"auth": {"awsKms": "arn-from-secret::x"}})), Told::InStatus, "clusters/x"),
            (
                json!({"secretEncryption": {"kms": {"provider": "Azure", "aws": null}}}),
                Told::InStatus,
                "azure",
            ),
            (
                json!({"secretEncryption": {
                    "type": "aescbc", "kms": null, "aescbc": {"activeKey": {"name": "nowhere"}},
                }}),
                Told::InStatus,
                "nowhere",
            ),
        ];
        for (mistake, where_told, part) in mistakes {
            let edited = managed.edit_hosted_cluster(&json!({"spec": mistake})).await;
            let kind = "SecretEncryptionConfigured";
            if where_told == Told::AtOnce {
                let refused = edited.err().with_context(|| format!("{part} was not refused"))?;
                let text = format!("{refused:#}");
                ensure!(text.contains("status 422") && text.contains(part), "{text}");
                println!("refused: {text}");
                continue;
            }
            edited?;
            let told = managed.wait_complaint(kind, "False", part).await?;
            println!("told: {}: {}", told["reason"], told["message"]);
            load.more(BETWEEN_STEPS).await?;
            let mut back = right.clone();
            // A merge leaves what it does not name.
            back["secretEncryption"]["aescbc"] = Value::Null;
            managed.edit_hosted_cluster(&json!({"spec": back})).await?;
            managed.wait_complaint(kind, "True", "").await?;
        }
        let now = managed.encryption().await?["status"].clone();
        ensure!(now["revision"] == before, "{before} was published, and now {}", now["revision"]);
        ensure!(now["activeKey"]["id"] == 2, "{now}");
        Ok(())
    }

    /// Preflight refuses it and nothing changes; the edit back is all that it takes.
    async fn a_key_that_does_not_exist_is_given_up_by_going_back(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        managed.activate(MISSING).await?;
        let refused = managed.wait_condition("KMSKeyAccessible", "False").await?;
        println!("preflight: {}: {}", refused["reason"], refused["message"]);
        let stage = managed.wait_stage("Preflight").await?;
        ensure!(stage["status"]["activeKey"]["id"] == 2, "{}", stage["status"]);
        load.more(BETWEEN_STEPS).await?;
        managed.all_is_under(2).await?;
        managed.activate(&self.keys.arns[1]).await?;
        managed.wait_written_with(2).await?;
        managed.wait_stage("Interrupted").await?;
        managed.wait_condition("KMSKeyAccessible", "True").await?;
        load.more(BETWEEN_STEPS).await
    }

    /// With the first one, three. The one that was given up has used up number 3.
    async fn three_rotations_in_a_row_leave_nothing_behind(&self, load: &Load) -> Result<()> {
        let managed = &self.managed;
        for (number, arn) in [(4, &self.keys.arns[2]), (5, &self.keys.arns[3])] {
            managed.activate(arn).await?;
            managed.wait_written_with(number).await?;
            load.more(BETWEEN_STEPS).await?;
            managed.all_is_under(number).await?;
        }
        for number in [2, 4] {
            managed.wait_retired(number).await?;
        }
        let status = managed.encryption().await?["status"].clone();
        let loaded = status["keys"].as_array().map(Vec::len);
        ensure!(loaded == Some(1), "{}", status["keys"]);
        // Nobody needs them any more, so they may be gone from AWS.
        for arn in &self.keys.arns[..3] {
            managed.hosted.moto.owner().change_state("DisableKey", arn).await?;
        }
        load.more(BETWEEN_STEPS).await
    }

    async fn new_credentials_are_taken_over_in_place(&self, load: &Load) -> Result<()> {
        let (managed, keys) = (&self.managed, &self.keys);
        let before = managed.encryption().await?["status"].clone();
        // Access keys in the place of tokens, and then others.
        let count = self.taken_over().await?;
        keys.admit_both(managed, ["first", "second"]).await?;
        self.edit_settings(&keys.settings()).await?;
        self.wait_taken_over(&count).await?;
        managed.hosted.moto.accept_tokens(&[]).await?;
        managed.hosted.moto.revoke_sessions("ExpiredTokenException").await?;
        load.more(BETWEEN_STEPS).await?;
        let count = self.taken_over().await?;
        keys.put_credentials(managed, CLUSTERS, "second").await?;
        self.wait_taken_over(&count).await?;
        keys.admit(managed, "second").await?;
        load.more(BETWEEN_STEPS).await?;
        let now = managed.encryption().await?["status"].clone();
        ensure!(now["activeKey"] == before["activeKey"], "{}", now["activeKey"]);
        ensure!(now["history"] == before["history"], "it was taken for a rotation");
        managed.wait_condition("SecretEncryptionHealthy", "True").await?;
        Ok(())
    }

    async fn edit_settings(&self, settings: &Value) -> Result<()> {
        let annotations = json!({"sidekey.dev/settings": settings.to_string()});
        let patch = json!({"metadata": {"annotations": annotations}});
        self.managed.edit_hosted_cluster(&patch).await?;
        Ok(())
    }

    async fn wait_taken_over(&self, count: &[usize]) -> Result<()> {
        eventually("every provider has taken them over", LONG_PATIENCE, async || {
            let now = self.taken_over().await?;
            let all = count.iter().zip(&now).all(|(before, now)| now > before);
            ensure!(all && now.len() == count.len(), "{now:?} after {count:?}");
            Ok(())
        })
        .await
        .with_context(|| self.managed.operator_tail())
    }

    /// How often each pod's provider says that it has taken over something new.
    async fn taken_over(&self) -> Result<Vec<usize>> {
        let hosted = &self.managed.hosted;
        let mut counts = Vec::new();
        for pod in hosted.pods().await? {
            let log = hosted.cluster.logs(&pod, "sidekey-aws")?;
            counts.push(log.matches("new files or settings are in use").count());
        }
        Ok(counts)
    }
}
