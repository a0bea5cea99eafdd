//! The objects that people edit.

use anyhow::Result;
use hyper::Method;
use serde_json::{Map, Value, json};

use super::{CLUSTERS, Managed};
use crate::aws::{ACCOUNT, REGION};

/// A HostedCluster of this name that is handed over, with these AWS keys: the first one is active, the second, if
/// there is one, the backup. `settings` is what it has no field for, such as where the simulated AWS
/// is found.
pub fn hosted_cluster(name: &str, arns: &[&str], settings: &Value) -> Value {
    let mut aws = json!({
        "region": REGION,
        "activeKey": {"arn": arns.first()},
        "auth": {"awsKms": format!("arn:aws:iam::{ACCOUNT}:role/kms-provider")},
    });
    if let Some(backup) = arns.get(1) {
        aws["backupKey"] = json!({"arn": backup});
    }
    json!({
        "apiVersion": "hypershift.openshift.io/v1beta1",
        "kind": "HostedCluster",
        "metadata": {
            "name": name, "namespace": CLUSTERS,
            "annotations": {
                "sidekey.dev/manage": "true",
                "sidekey.dev/settings": settings.to_string(),
            },
        },
        "spec": {"secretEncryption": {"type": "kms", "kms": {"provider": "AWS", "aws": aws}}},
    })
}

/// The spec of a SecretEncryption with these keys, the first of which writes, and with `more`.
fn spec(keys: &[Value], more: &Value) -> Value {
    let keys: Vec<Value> = keys
        .iter()
        .enumerate()
        .map(|(index, key)| {
            let mut key = key.clone();
            key["role"] = if index == 0 { "write" } else { "read" }.into();
            key
        })
        .collect();
    let mut spec = Map::from_iter([("keys".to_owned(), keys.into())]);
    spec.extend(more.as_object().cloned().unwrap_or_default());
    spec.into()
}

impl Managed {
    /// Its SecretEncryption with these keys, the first of which writes; more of its spec is in
    /// `more`.
    pub fn document(&self, keys: &[Value], more: &Value) -> Value {
        json!({
            "apiVersion": "sidekey.dev/v1alpha1",
            "kind": "SecretEncryption",
            "metadata": {"name": self.name(), "namespace": self.namespace()},
            "spec": spec(keys, more),
        })
    }

    fn hosted_path(&self) -> String {
        let group = "/apis/hypershift.openshift.io/v1beta1";
        format!("{group}/namespaces/{CLUSTERS}/hostedclusters/{}", self.name())
    }

    /// What the SecretEncryption may be translated from.
    pub(super) fn fronts(&self) -> Vec<String> {
        vec![self.hosted_path(), format!("/apis/config.openshift.io/v1/apiservers/{}", self.name())]
    }

    /// The HostedCluster as it is.
    pub async fn hosted_cluster(&self) -> Result<Value> {
        self.hosted.cluster.client().get(&self.hosted_path()).await
    }

    /// Edits the HostedCluster.
    pub async fn edit_hosted_cluster(&self, patch: &Value) -> Result<Value> {
        self.hosted.cluster.client().merge(&self.hosted_path(), patch).await
    }

    /// The one edit that a rotation takes.
    pub async fn activate(&self, arn: &str) -> Result<()> {
        let aws = json!({"activeKey": {"arn": arn}});
        let spec = json!({"secretEncryption": {"kms": {"aws": aws}}});
        self.edit_hosted_cluster(&json!({"spec": spec})).await?;
        Ok(())
    }

    fn encryption_path(&self) -> String {
        let (namespace, name) = &self.plane;
        format!("/apis/sidekey.dev/v1alpha1/namespaces/{namespace}/secretencryptions/{name}")
    }

    /// The SecretEncryption as it is.
    pub async fn encryption(&self) -> Result<Value> {
        self.hosted.cluster.client().get(&self.encryption_path()).await
    }

    /// Creates the SecretEncryption, or replaces its whole spec, as `kubectl replace` does.
    pub async fn put_encryption(&self, document: &Value) -> Result<Value> {
        let client = self.hosted.cluster.client();
        let now = client.raw(&self.encryption_path()).await?;
        if now.status == 404 {
            return client.apply(document).await;
        }
        now.ok()?;
        // By a patch: the operator may write its status at the same moment.
        let patch = json!([{"op": "replace", "path": "/spec", "value": document["spec"]}]);
        let kind = "application/json-patch+json";
        client.send_as(Method::PATCH, &self.encryption_path(), kind, &patch).await
    }

    /// Edits the SecretEncryption.
    pub async fn edit_encryption(&self, patch: &Value) -> Result<Value> {
        self.hosted.cluster.client().merge(&self.encryption_path(), patch).await
    }

    /// Deletes the SecretEncryption.
    pub async fn delete_encryption(&self) -> Result<()> {
        self.hosted.cluster.client().send(Method::DELETE, &self.encryption_path(), None).await?;
        Ok(())
    }

    /// Creates a Secret of the control plane, or of the HostedCluster, or replaces it.
    pub async fn put_secret_in(
        &self,
        namespace: &str,
        name: &str,
        data: &[(&str, &str)],
    ) -> Result<()> {
        let data: Map<String, Value> =
            data.iter().map(|(key, text)| ((*key).to_owned(), (*text).into())).collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace}, "stringData": data,
        });
        self.hosted.cluster.client().apply(&secret).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_writes_and_the_others_read() {
        let keys = [json!({"id": 2}), json!({"id": 1, "role": "write"})];
        let spec = spec(&keys, &json!({"timeout": "5s"}));
        assert_eq!(spec["keys"][0]["role"], "write");
        assert_eq!(spec["keys"][1]["role"], "read");
        assert_eq!(spec["timeout"], "5s");
    }

    #[test]
    fn a_hosted_cluster_names_its_active_key_and_its_backup() {
        let cluster = hosted_cluster("a", &["arn:new", "arn:old"], &json!({"timeout": "5s"}));
        let aws = &cluster["spec"]["secretEncryption"]["kms"]["aws"];
        assert_eq!(aws["activeKey"]["arn"], "arn:new");
        assert_eq!(aws["backupKey"]["arn"], "arn:old");
        let one = hosted_cluster("a", &["arn:new"], &json!({}));
        assert!(one["spec"]["secretEncryption"]["kms"]["aws"]["backupKey"].is_null());
    }
}
