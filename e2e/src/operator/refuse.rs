//! Writes that the cluster refuses, so that a state of the operator lasts for as long as a test
//! needs it: it has done everything but for what would end the state.
//!
//! The cluster's own admission policies do that, as they may for any user.

use std::fmt::Display;

use anyhow::{Result, ensure};
use hyper::Method;
use serde_json::{Value, json};

use super::Managed;
use crate::wait::{PATIENCE, eventually};

const GROUP: &str = "admissionregistration.k8s.io/v1";

/// The ConfigMap in which a rotation stands.
const ROTATION: &str = "sidekey-rotation";

/// Something is refused, until [`allow`](Managed::allow).
#[derive(Debug)]
#[must_use]
pub struct Refusal {
    name: String,
    /// What whoever is refused is told.
    pub message: String,
}

impl Managed {
    /// From now on nobody can write down that the rotation is at this stage.
    pub async fn refuse_stage(&self, stage: impl Display) -> Result<Refusal> {
        let text = format!("\"stage\": \"{stage}\"");
        let expression = format!(
            "object.metadata.name != '{ROTATION}' || !('rotation.json' in object.data) || \
             !object.data['rotation.json'].contains('{text}')"
        );
        let name = format!("{}-{stage}", self.namespace()).to_lowercase();
        let probe = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ROTATION},
            "data": {"rotation.json": text},
        });
        let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace());
        let rule = json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
            "resources": ["configmaps"],
        });
        self.refuse(name, &rule, &expression, (&path, &probe)).await
    }

    /// From now on nobody can make a Job of this name.
    pub async fn refuse_job(&self, job: &str) -> Result<Refusal> {
        let expression = format!("object.metadata.name != '{job}'");
        let pod = json!({
            "restartPolicy": "Never", "containers": [{"name": "none", "image": "none"}],
        });
        let probe = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job},
            "spec": {"template": {"spec": pod}},
        });
        let path = format!("/apis/batch/v1/namespaces/{}/jobs", self.namespace());
        let name = format!("{}-{job}", self.namespace());
        // Not updates: one of that name that makes room is updated on its way out.
        let rule = json!({
            "apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["jobs"],
        });
        self.refuse(name, &rule, &expression, (&path, &probe)).await
    }

    /// A policy for what a rule says of the control plane's namespace. It is in force when `probe`,
    /// which is never stored, is refused.
    async fn refuse(
        &self,
        name: String,
        rule: &Value,
        expression: &str,
        (path, probe): (&str, &Value),
    ) -> Result<Refusal> {
        let client = self.hosted.cluster.client();
        let message = format!("a test refuses {name}");
        let place = json!({"matchLabels": {"kubernetes.io/metadata.name": self.namespace()}});
        let policy = json!({
            "apiVersion": GROUP, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"namespaceSelector": place, "resourceRules": [rule]},
                "validations": [{"expression": expression, "message": message}],
            },
        });
        let binding = json!({
            "apiVersion": GROUP, "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        });
        for object in [policy, binding] {
            client.apply(&object).await?;
        }
        eventually(format!("{name} is in force"), PATIENCE, async || {
            let tried = client.send(Method::POST, &format!("{path}?dryRun=All"), Some(probe)).await;
            let said = tried.err().map(|error| format!("{error:#}")).unwrap_or_default();
            ensure!(said.contains(&message), "the answer was {said:?}");
            Ok(())
        })
        .await?;
        Ok(Refusal { name, message })
    }

    /// The end of a refusal.
    pub async fn allow(&self, refusal: Refusal) -> Result<()> {
        for kind in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
            let path = format!("/apis/{GROUP}/{kind}/{}", refusal.name);
            self.hosted.cluster.client().send(Method::DELETE, &path, None).await?;
        }
        Ok(())
    }
}
