//! A control plane that a backup brings to another management cluster.
//!
//! As backup tools do it: objects come without their owners and whatever else a cluster gives them,
//! what others need first; the SecretEncryption's status comes with it. Here it all comes into a
//! namespace of another name.

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::{Value, json};

use super::{CLUSTERS, cluster, namespace};
use crate::KubeClient;

/// Whose backup it is.
const FIRST: usize = 0;

/// What comes back, in this order: group and resource.
const KINDS: [(&str, &str); 4] = [
    ("/api/v1", "secrets"),
    ("/api/v1", "configmaps"),
    ("/apis/apps/v1", "deployments"),
    ("/apis/sidekey.dev/v1alpha1", "secretencryptions"),
];

/// What a namespace held.
pub(super) struct Backup {
    /// With the index of their kind.
    objects: Vec<(usize, Value)>,
}

impl Backup {
    /// Of the first control plane.
    pub(super) async fn take(client: &KubeClient) -> Result<Self> {
        let mut objects = Vec::new();
        for kind in 0..KINDS.len() {
            let mut list = client.get(&path(kind, FIRST)).await?;
            let items = list["items"].as_array_mut().context("a list without items")?;
            // Every namespace has its own, which a controller makes.
            items.retain(|item| item["metadata"]["name"] != "kube-root-ca.crt");
            objects.extend(items.drain(..).map(|item| (kind, bare(item))));
        }
        Ok(Self { objects })
    }

    /// As the control plane of this number.
    pub(super) async fn restore(&self, client: &KubeClient, number: usize) -> Result<()> {
        client.apply(&namespace(&format!("{CLUSTERS}-c{number}"))).await?;
        for (kind, object) in &self.objects {
            let (path, mut object) = (path(*kind, number), moved(object, number)?);
            let status = object["status"].take();
            client.send(Method::POST, &path, Some(&object)).await?;
            if KINDS[*kind].1 == "secretencryptions" {
                let path = format!("{path}/c{number}/status");
                client.merge(&path, &json!({"status": status})).await?;
            }
        }
        client.apply(&cluster(number, FIRST)).await?;
        Ok(())
    }
}

/// Where objects of a kind are, of the control plane of this number.
fn path(kind: usize, number: usize) -> String {
    let (group, resource) = KINDS[kind];
    format!("{group}/namespaces/{CLUSTERS}-c{number}/{resource}")
}

/// What of an object people and the operator wrote.
fn bare(mut object: Value) -> Value {
    let metadata = &object["metadata"];
    let kept = json!({
        "name": metadata["name"], "labels": metadata["labels"],
        "annotations": metadata["annotations"],
    });
    object["metadata"] = kept;
    object
}

/// The same in the namespace, and for the HostedCluster, of another number.
fn moved(object: &Value, number: usize) -> Result<Value> {
    let text = object.to_string();
    let text = text.replace(&format!("{CLUSTERS}-c{FIRST}"), &format!("{CLUSTERS}-c{number}"));
    let text = text.replace(&format!("{CLUSTERS}/c{FIRST}"), &format!("{CLUSTERS}/c{number}"));
    let mut object: Value = serde_json::from_str(&text)?;
    let metadata = &mut object["metadata"];
    let (before, after) = (format!("c{FIRST}"), format!("c{number}"));
    if metadata["name"] == before {
        metadata["name"] = after.as_str().into();
    }
    for label in metadata["labels"].as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
        if *label == before {
            *label = after.as_str().into();
        }
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn what_a_cluster_gave_is_left_out_and_names_are_those_of_another() {
        let object = json!({
            "metadata": {
                "name": "c0", "namespace": "clusters-c0", "uid": "1", "resourceVersion": "2",
                "ownerReferences": [{}], "labels": {"of": "c0"},
                "annotations": {"sidekey.dev/source": "HostedCluster clusters/c0"},
            },
            "spec": {"fingerprint": "c0"}, "status": {"x": 1},
        });
        let moved = moved(&bare(object), 7).unwrap();
        let annotations = json!({"sidekey.dev/source": "HostedCluster clusters/c7"});
        let metadata = json!({"name": "c7", "labels": {"of": "c7"}, "annotations": annotations});
        let (spec, status) = (json!({"fingerprint": "c0"}), json!({"x": 1}));
        assert_eq!(moved, json!({"metadata": metadata, "spec": spec, "status": status}));
    }
}
