//! Looking at what the operator says, and waiting for it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Managed, Refusal};
use crate::Kind;
use crate::shim::replicas::key_number;
use crate::wait::{LONG_PATIENCE, eventually};

/// For a whole rotation: kubelet's swaps, kube-apiserver's own clocks and Jobs, one after the other.
pub const ROTATION: Duration = Duration::from_secs(600);

/// A condition of a status, by its type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let list = object["status"]["conditions"].as_array()?;
    list.iter().find(|one| one["type"] == kind)
}

/// How far the rotation under way is, or how the last one ended.
pub fn stage_of(encryption: &Value) -> Option<&str> {
    let status = &encryption["status"];
    let now = status["rotation"]["stage"].as_str();
    now.or_else(|| status["history"][0]["state"].as_str())
}

/// A status for people.
pub fn shown(object: &Value) -> String {
    let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
    format!("{kind} {name}: {:#}", object["status"])
}

impl Managed {
    /// Waits until the SecretEncryption is as `judge` wants it. In vain, the error has its whole
    /// status and the end of the operator's log.
    pub async fn wait_encryption<T>(
        &self,
        what: impl Display,
        limit: Duration,
        judge: impl FnMut(&Value) -> Result<T>,
    ) -> Result<T> {
        self.wait_object(what, limit, async || self.encryption().await, judge).await
    }

    /// The same for the HostedCluster.
    pub async fn wait_hosted_cluster<T>(
        &self,
        what: impl Display,
        limit: Duration,
        judge: impl FnMut(&Value) -> Result<T>,
    ) -> Result<T> {
        self.wait_object(what, limit, async || self.hosted_cluster().await, judge).await
    }

    /// The same for whatever `read` gives.
    pub async fn wait_object<T>(
        &self,
        what: impl Display,
        limit: Duration,
        read: impl AsyncFn() -> Result<Value>,
        mut judge: impl FnMut(&Value) -> Result<T>,
    ) -> Result<T> {
        let mut last = Value::Null;
        let seen = eventually(what, limit, async || {
            last = read().await?;
            judge(&last)
        });
        let seen = seen.await;
        seen.with_context(|| format!("{}\n{}", shown(&last), self.operator_tail()))
    }

    /// Waits until a condition of the SecretEncryption has this status; gives the whole condition.
    pub async fn wait_condition(&self, kind: &str, status: &str) -> Result<Value> {
        let what = format!("{kind} is {status}");
        self.wait_encryption(what, LONG_PATIENCE, |encryption| {
            let found = condition(encryption, kind).with_context(|| format!("no {kind}"))?;
            ensure!(found["status"] == status, "{found}");
            Ok(found.clone())
        })
        .await
    }

    /// Waits until a condition of the HostedCluster has this status and a message with this in it.
    pub async fn wait_complaint(&self, kind: &str, status: &str, part: &str) -> Result<Value> {
        let what = format!("{kind} of the HostedCluster is {status} and speaks of {part:?}");
        self.wait_hosted_cluster(what, LONG_PATIENCE, |cluster| {
            let found = condition(cluster, kind).with_context(|| format!("no {kind}"))?;
            let message = found["message"].as_str().unwrap_or_default();
            ensure!(found["status"] == status && message.contains(part), "{found}");
            Ok(found.clone())
        })
        .await
    }

    /// Waits until a rotation is at this stage.
    pub async fn wait_stage(&self, stage: &str) -> Result<Value> {
        self.wait_encryption(format!("it is at {stage}"), ROTATION, |encryption| {
            let now = stage_of(encryption);
            ensure!(now == Some(stage), "it is at {now:?}");
            Ok(encryption.clone())
        })
        .await
    }

    /// Waits until somebody who leads has looked at it since now: at an edit that asks for nothing.
    pub async fn wait_looked(&self) -> Result<Value> {
        let now = self.encryption().await?["spec"]["convergence"].take();
        let next = if now == "1s" { "2s" } else { "1s" };
        self.edit_encryption(&json!({"spec": {"convergence": next}})).await?;
        self.wait_encryption("it was looked at again", LONG_PATIENCE, |encryption| {
            let (status, meta) = (&encryption["status"], &encryption["metadata"]);
            ensure!(status["observedGeneration"] == meta["generation"], "the edit is not seen yet");
            Ok(encryption.clone())
        })
        .await
    }

    /// Waits until the operator tells that the cluster has refused it something.
    pub async fn wait_refused(&self, refusal: &Refusal) -> Result<Value> {
        let what = format!("the operator tells: {}", refusal.message);
        self.wait_encryption(what, ROTATION, |encryption| {
            let kind = "SecretEncryptionConfigured";
            let found = condition(encryption, kind).with_context(|| format!("no {kind}"))?;
            let message = found["message"].as_str().unwrap_or_default();
            ensure!(message.contains(&refusal.message), "{found}");
            Ok(encryption.clone())
        })
        .await
    }

    /// Waits until everything is written with, and stored under, the key of this number; 0 for
    /// nothing and for ciphers.
    pub async fn wait_written_with(&self, id: u64) -> Result<Value> {
        self.wait_encryption(format!("key {id} has taken over"), ROTATION, |encryption| {
            let status = &encryption["status"];
            let generation = &encryption["metadata"]["generation"];
            ensure!(&status["observedGeneration"] == generation, "the edit is not seen yet");
            ensure!(status["activeKey"]["id"] == id, "{} writes", status["activeKey"]);
            ensure!(status["targetKey"].is_null(), "{} is to write", status["targetKey"]);
            ensure!(status["rotation"].is_null(), "{}", status["rotation"]);
            if id > 0 {
                let kind = "EtcdDataEncryptionUpToDate";
                let found = condition(encryption, kind).with_context(|| format!("no {kind}"))?;
                ensure!(found["status"] == "True", "{found}");
            }
            Ok(encryption.clone())
        })
        .await
    }

    /// Waits until the key of this number, which already writes, has another version at its vendor
    /// than the one called `before`, and everything is stored under that.
    pub async fn wait_followed(&self, id: u64, before: &Value) -> Result<Value> {
        let what = format!("everything is under the new version of key {id}");
        self.wait_encryption(what, ROTATION, |encryption| {
            let status = &encryption["status"];
            ensure!(status["encryptedUnder"].is_string(), "under nothing that is known: {status}");
            ensure!(status["encryptedUnder"] != *before, "still under {before}");
            ensure!(status["moved"].is_null() && status["rotation"].is_null(), "{status}");
            ensure!(status["activeKey"]["id"] == id, "{status}");
            Ok(encryption.clone())
        })
        .await
    }

    /// What everything stored is under, as `status` has it.
    pub async fn encrypted_under(&self) -> Result<Value> {
        let under = self.encryption().await?["status"]["encryptedUnder"].take();
        ensure!(under.is_string(), "it does not say what everything is under: {under}");
        Ok(under)
    }

    /// Waits until etcd was counted and the key of this number was taken out.
    pub async fn wait_retired(&self, id: u64) -> Result<Value> {
        let what = format!("key {id} is retired");
        self.wait_encryption(what, ROTATION, |encryption| {
            let status = &encryption["status"];
            let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
            let number = id.to_string();
            let retired = list("retired").into_iter().find(|key| key["id"] == number.as_str());
            let retired = retired.with_context(|| format!("retired: {}", status["retired"]))?;
            ensure!(list("keys").iter().all(|key| key["id"] != id), "it is still loaded");
            Ok(retired)
        })
        .await
    }

    /// How many objects of the load are stored under which key; 0 is in clear.
    pub async fn written_under(&self) -> Result<BTreeMap<u64, usize>> {
        let mut by_key = BTreeMap::new();
        for kind in Kind::ALL {
            for entry in self.hosted.stored(kind, "default").await? {
                let clear = !entry.value.starts_with(b"k8s:enc:");
                let key = if clear { 0 } else { key_number(&entry.value)? };
                *by_key.entry(key).or_default() += 1;
            }
        }
        ensure!(!by_key.is_empty(), "nothing is stored");
        Ok(by_key)
    }

    /// An error unless all that the load has written is under the key of this number.
    pub async fn all_is_under(&self, id: u64) -> Result<()> {
        let under = self.written_under().await?;
        ensure!(under.keys().eq([&id]), "stored under {under:?}");
        Ok(())
    }

    /// How often kube-apiserver's Deployment was rolled out.
    pub async fn rollouts(&self) -> Result<u64> {
        let path =
            format!("/apis/apps/v1/namespaces/{}/deployments/kube-apiserver", self.namespace());
        let object = self.hosted.cluster.client().get(&path).await?;
        let found = &object["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
        let found = found.as_str().and_then(|text| text.parse().ok());
        found.with_context(|| format!("no revision: {}", object["metadata"]))
    }

    /// The EncryptionConfigurations that were published, the oldest first, as far as they are kept.
    pub async fn published(&self) -> Result<Vec<(u64, Value)>> {
        let client = self.hosted.cluster.client();
        let list = client.get(&format!("/api/v1/namespaces/{}/secrets", self.namespace())).await?;
        let mut all = Vec::new();
        for secret in list["items"].as_array().context("a list without items")? {
            let name = secret["metadata"]["name"].as_str().unwrap_or_default();
            let Some(number) = name.strip_prefix("sidekey-revision-") else { continue };
            let files = secret["data"].as_object().into_iter().flatten();
            let mut files = files.filter(|(name, _)| name.ends_with("encryption.yaml"));
            let Some((_, text)) = files.next() else { continue };
            let text = STANDARD.decode(text.as_str().context("data is not text")?)?;
            let document = serde_saphyr::from_slice(&text).context("no YAML")?;
            all.push((number.parse().with_context(|| name.to_owned())?, document));
        }
        all.sort_by_key(|(number, _): &(u64, Value)| *number);
        Ok(all)
    }

    /// The state of the rotation as the operator has written it down.
    pub async fn kept_rotation(&self) -> Result<Value> {
        let path = format!("/api/v1/namespaces/{}/configmaps/sidekey-rotation", self.namespace());
        let map = self.hosted.cluster.client().get(&path).await?;
        let text = map["data"]["rotation.json"].as_str();
        let Some(text) = text else { bail!("the ConfigMap has no state: {}", map["data"]) };
        serde_json::from_str(text).context("the state is no JSON")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_stage_is_that_of_the_rotation_under_way_or_of_the_last_one() {
        let over = json!({"status": {"history": [{"state": "Completed"}]}});
        assert_eq!(stage_of(&over), Some("Completed"));
        let both = json!({"status": {
            "rotation": {"stage": "Migrating"}, "history": [{"state": "Completed"}],
        }});
        assert_eq!(stage_of(&both), Some("Migrating"));
        assert_eq!(stage_of(&json!({})), None);
    }

    #[test]
    fn a_condition_is_found_by_its_type() {
        let object = json!({"status": {"conditions": [{"type": "A"}, {"type": "B", "x": 1}]}});
        assert_eq!(condition(&object, "B").unwrap()["x"], 1);
        assert!(condition(&object, "C").is_none());
    }
}
