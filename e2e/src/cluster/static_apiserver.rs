//! kube-apiserver as users run it themselves: a static pod of the node, which
//! kubelet starts before there is any kube-apiserver.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::Ground;
use super::image::ScratchImage;
use crate::golang;

/// Where it listens, on the node's address.
pub const STATIC_APISERVER: u16 = 6443;

const IMAGE: &str = "localhost/sidekey-e2e/kube-apiserver:1";

/// The image in it, as an archive.
pub(super) async fn image() -> Result<PathBuf> {
    let program = golang::KUBE_APISERVER.build_async().await?;
    ScratchImage::new(IMAGE).program(program, "kube-apiserver").archive()
}

impl Ground {
    /// The manifest of a static pod with kube-apiserver in it, whose image is
    /// loaded. Plain storage: to be completed with containers, volumes, and flags
    /// at `/spec/containers/0/args`.
    ///
    /// It is in the node's own network and sees the scratch directory of the
    /// cluster under its own path.
    pub async fn static_apiserver(&self) -> Result<Value> {
        self.load_image(&image().await?).await?;
        // Looked at as kubeadm has it, and given up after ten minutes: a machine that is busy with
        // other tests is no reason to restart what must not be restarted here.
        let probe = |path: &str, period: u32, failures: u32| {
            let (host, port) = (self.addresses().node(), STATIC_APISERVER);
            json!({
                "httpGet": {"scheme": "HTTPS", "host": host, "port": port, "path": path},
                "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 15,
            })
        };
        let scratch = self.plane().scratch.path();
        let container = json!({
            "name": "kube-apiserver", "image": IMAGE, "imagePullPolicy": "Never",
            "args": self.static_apiserver_flags()?,
            "volumeMounts": [{"name": "scratch", "mountPath": scratch}],
            // More often than kubeadm: kubelet looks at nothing else before.
            "startupProbe": probe("/livez", 2, 300),
            "livenessProbe": probe("/livez", 10, 60),
            "readinessProbe": probe("/readyz", 1, 3),
        });
        Ok(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "kube-apiserver", "namespace": "kube-system",
                "labels": {"component": "kube-apiserver"},
            },
            "spec": {
                "hostNetwork": true,
                "priorityClassName": "system-node-critical",
                "containers": [container],
                "volumes": [{"name": "scratch", "hostPath": {"path": scratch, "type": "Directory"}}],
            },
        }))
    }

    fn static_apiserver_flags(&self) -> Result<Vec<String>> {
        let (node, services) = (self.addresses().node(), self.addresses().services());
        let plane = self.plane();
        let dir = plane.scratch.subdir("static-apiserver")?;
        let names = self.apiserver_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let serving = plane.authority.peer(&dir, "kube-apiserver", &names)?;
        let keys = &plane.service_account;
        Ok(vec![
            format!("--etcd-servers={}", plane.etcd.url()),
            format!("--bind-address={node}"),
            format!("--advertise-address={node}"),
            format!("--secure-port={STATIC_APISERVER}"),
            format!("--cert-dir={}", dir.display()),
            format!("--tls-cert-file={}", serving.certificate.display()),
            format!("--tls-private-key-file={}", serving.key.display()),
            format!("--token-auth-file={}", plane.tokens.display()),
            format!("--service-account-key-file={}", keys.public.display()),
            format!("--service-account-signing-key-file={}", keys.private.display()),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            format!("--service-cluster-ip-range={services}"),
            "--allow-privileged=true".to_owned(),
            super::KUBELET_ADDRESS.to_owned(),
            "--profiling=false".to_owned(),
        ])
    }
}
