//! Cluster DNS: CoreDNS as a pod of the cluster, as users have it.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::image::ScratchImage;
use super::machine::Addresses;
use crate::golang;

/// Which Service address it has.
pub(super) const SERVICE: u8 = 10;

/// The names of its namespace and of all its objects.
pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const NAME: &str = "coredns";

const IMAGE: &str = "localhost/sidekey-e2e/coredns:1";

/// Names of the cluster alone: a test asks for no others.
const COREFILE: &str = "\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa {
        pods insecure
    }
    cache 5
}
";

/// Its image, as an archive.
pub(super) async fn image() -> Result<PathBuf> {
    let program = golang::COREDNS.build_async().await?;
    ScratchImage::new(IMAGE).program(program, "coredns").archive()
}

/// Everything it consists of.
pub(super) fn objects(addresses: Addresses) -> Vec<Value> {
    let named = json!({"name": NAME, "namespace": NAMESPACE});
    let rbac = "rbac.authorization.k8s.io";
    let watch = json!(["list", "watch"]);
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named}),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": NAME},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": watch},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
            ],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": named,
            "data": {"Corefile": COREFILE},
        }),
        deployment(&named),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": NAMESPACE},
            "spec": {
                "clusterIP": addresses.service(SERVICE),
                "selector": {"app": NAME},
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        }),
    ]
}

fn deployment(named: &Value) -> Value {
    let container = json!({
        "name": NAME, "image": IMAGE, "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
        // Unready it would lose its Service, and a busy machine would resolve no name.
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": 8181},
            "periodSeconds": 1, "timeoutSeconds": 15, "failureThreshold": 40,
        },
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": named,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": NAME}},
            "template": {
                "metadata": {"labels": {"app": NAME}},
                "spec": {
                    "serviceAccountName": NAME,
                    "priorityClassName": "system-cluster-critical",
                    "dnsPolicy": "Default",
                    "containers": [container],
                    "volumes": [{"name": "config", "configMap": {"name": NAME}}],
                },
            },
        },
    })
}
