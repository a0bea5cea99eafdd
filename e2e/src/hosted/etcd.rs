//! The etcd of a hosted control plane: plain for those that need no more, and, under another port,
//! with mutual TLS and HyperShift's names for the certificates.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Hosted;
use crate::golang;

pub(super) const ETCD: &str = "etcd";
pub(super) const ETCD_IMAGE: &str = "localhost/sidekey-e2e/etcd:1";

/// The Service, in HyperShift's words.
const CLIENT: &str = "etcd-client";
/// The Service of those that speak plain HTTP, once [`CLIENT`] does not.
pub(super) const PLAIN: &str = "etcd-plain";
/// Where it speaks TLS.
const SECURE_PORT: u16 = 2381;

/// It and its Service. It has no disk that outlives it.
pub(super) fn objects(namespace: &str) -> [Value; 2] {
    let secure = format!("https://0.0.0.0:{SECURE_PORT}");
    let container = json!({
        "name": ETCD, "image": ETCD_IMAGE, "imagePullPolicy": "Never",
        "args": [
            "--data-dir=/data/etcd",
            format!("--listen-client-urls=http://0.0.0.0:2379,{secure}"),
            format!("--advertise-client-urls=http://{CLIENT}:2379"), "--unsafe-no-fsync",
            "--cert-file=/tls/server.crt", "--key-file=/tls/server.key",
            "--trusted-ca-file=/tls/ca.crt", "--client-cert-auth",
        ],
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "tls", "mountPath": "/tls", "readOnly": true},
        ],
        // Unready it would lose its Service, and a busy machine would fail requests.
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": 2379},
            "periodSeconds": 1, "timeoutSeconds": 15, "failureThreshold": 40,
        },
        // Without its share a busy machine starves it before all that ask it.
        "resources": {"requests": {"cpu": "300m", "memory": "100Mi"}},
    });
    let labels = json!({"app": ETCD});
    let volumes = json!([
        {"name": "data", "emptyDir": {}},
        {"name": "tls", "secret": {"secretName": "etcd-server-tls"}},
    ]);
    [
        service(namespace, CLIENT, 2379),
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": ETCD, "namespace": namespace},
            "spec": {
                "serviceName": CLIENT, "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "automountServiceAccountToken": false,
                        "containers": [container],
                        "volumes": volumes,
                    },
                },
            },
        }),
    ]
}

fn service(namespace: &str, name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"app": ETCD},
            "ports": [{"port": 2379, "protocol": "TCP", "targetPort": port}],
        },
    })
}

impl Hosted {
    /// What etcd shows, and what its clients show, under HyperShift's names.
    pub(super) async fn put_etcd_certificates(&self, dir: &Path) -> Result<()> {
        let own = format!("{CLIENT}.{}.svc", self.namespace);
        let server = self.tls.peer(dir, "etcd-server", &[CLIENT, &own, "localhost"])?;
        let client = self.tls.peer(dir, "etcd-client", &[CLIENT])?;
        let read = |path: &Path| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let files = [
            ("ca.crt", self.tls.pem()),
            ("server.crt", read(&server.certificate)?),
            ("server.key", read(&server.key)?),
        ];
        self.put_secret("etcd-server-tls", &files).await?;
        let files = [
            ("etcd-client.crt", read(&client.certificate)?),
            ("etcd-client.key", read(&client.key)?),
        ];
        self.put_secret("etcd-client-tls", &files).await?;
        let trust = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "etcd-ca", "namespace": self.namespace},
            "data": {"ca.crt": self.tls.pem()},
        });
        self.cluster.client().apply(&trust).await?;
        Ok(())
    }

    /// From now on `etcd-client` speaks TLS alone, as it does with HyperShift. kube-apiserver, which
    /// has no certificates for it here, is led to a Service of its own.
    pub async fn secure_etcd(&self) -> Result<()> {
        let client = self.cluster.client();
        client.apply(&service(&self.namespace, CLIENT, SECURE_PORT)).await?;
        client.apply(&service(&self.namespace, PLAIN, 2379)).await?;
        Ok(())
    }

    /// The Deployment before anything is encrypted, for after [`secure_etcd`](Self::secure_etcd).
    /// etcd is compacted every two seconds, so that a census can end; a pod that is told to end
    /// serves on for `delay` in the place of 70 s; and kube-apiserver looks at its
    /// EncryptionConfiguration every 3 s. Once a minute it does so in `hosted::cli_inject`.
    pub fn bare_for_operator(&self, delay: Duration) -> Result<Value> {
        let mut deployment = self.bare();
        let args = deployment.pointer_mut("/spec/template/spec/containers/0/args");
        let args = args.and_then(Value::as_array_mut).context("kube-apiserver has no flags")?;
        for flag in args.iter_mut() {
            let text = flag.as_str().unwrap_or_default();
            if text.starts_with("--etcd-servers=") {
                *flag = format!("--etcd-servers=http://{PLAIN}:2379").into();
            } else if text.starts_with("--shutdown-delay-duration=") {
                *flag = format!("--shutdown-delay-duration={}s", delay.as_secs()).into();
            }
        }
        args.push("--etcd-compaction-interval=2s".into());
        deployment["spec"]["template"]["spec"]["containers"][0]["env"] =
            json!([{"name": golang::CONFIG_POLL, "value": "3s"}]);
        Ok(deployment)
    }
}
