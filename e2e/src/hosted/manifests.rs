//! The objects of a hosted control plane.
//!
//! Names, arguments, environment, mounts, ports and probes of the KMS sidecars
//! are HyperShift's. On top of them: `AWS_ENDPOINT_URL`, which leads to the
//! simulated AWS, the leave to speak plain HTTP to it, and the token's source, which the imitated minter reads in the
//! place of asking the hosted kube-apiserver. kube-apiserver itself has
//! HyperShift's flags and probes as far as encryption and ending are concerned;
//! the delay before it ends is 15 s in the place of 70 s, where pods are rolled out,
//! and it is asked whether it is ready every 2 s in the place of 10 s, both to save time.
//!
//! With the shim the sidecars are native ones, which kubelet starts before
//! kube-apiserver and ends after it: one that is ending goes on serving, and must
//! be able to read what its successor writes. It does so for ten minutes, longer than
//! anybody waits for that successor.

use aws_lc_rs::digest;
use serde_json::{Value, json};

use super::sidecars::{minter, native, provider, restricted, shim};
use crate::aws::{ACCOUNT, REGION};
use crate::{EncryptionConfiguration, Stanza};

/// Where the hosted control plane lives, where nothing else is said.
pub const NAMESPACE: &str = "clusters-demo";

pub(super) const SERVER: &str = "kube-apiserver";
pub(super) const CREDENTIALS: &str = "kms-creds";
pub(super) const SERVER_IMAGE: &str = "localhost/sidekey-e2e/kube-apiserver:1";

/// Where the shim tells its state, over mutual TLS.
pub const ADMIN: u16 = 8444;

/// The health port of `aws-kms-active`; the backup has the next one.
pub(super) const HEALTH: u16 = 8080;

/// The user of all containers of the pod: OpenShift gives each namespace one.
const UID: u32 = 1_000_650_000;

/// Where the token is, in the pod.
pub(super) const TOKEN_DIR: &str = "/var/run/secrets/openshift/serviceaccount";

/// HyperShift's own: how long a pod has to end, and for how long kube-apiserver serves on then.
const GRACE: u32 = 135;
const DELAY: &str = "70s";

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It wraps new data.
    Write,
    /// It only unwraps.
    Read,
}

/// Which sidecars kube-apiserver has.
pub(super) enum Layout<'a> {
    /// HyperShift's own.
    Native { write: &'a str, read: Option<&'a str> },
    /// The shim, and one provider process behind it.
    Shim,
}

/// The images under test.
pub(super) struct Images<'a> {
    pub(super) aws: &'a str,
    pub(super) shim: &'a str,
}

/// HyperShift's name for a key in EncryptionConfiguration: FNV-1 of its ARN.
pub fn provider_name(arn: &str) -> String {
    let hash = arn
        .bytes()
        .fold(2_166_136_261_u32, |hash, byte| hash.wrapping_mul(16_777_619) ^ u32::from(byte));
    format!("awskmskey-{hash}")
}

/// EncryptionConfiguration, as HyperShift writes it.
pub(super) fn native_encryption(write: &str, read: Option<&str>) -> String {
    let mut stanza = stanza();
    for (role, arn) in [("active", Some(write)), ("backup", read)] {
        if let Some(arn) = arn {
            let endpoint = format!("unix:///var/run/awskms{role}.sock");
            stanza = stanza.kms_within(&provider_name(arn), endpoint, "35s");
        }
    }
    EncryptionConfiguration::new().stanza(stanza.identity()).to_string()
}

/// EncryptionConfiguration with the shim: the same for ever.
pub(super) fn shim_encryption() -> String {
    let endpoint = "unix:///var/run/kmsplugin/kms.sock";
    let stanza = stanza().kms_within("sidekey", endpoint, "35s").identity();
    EncryptionConfiguration::new().stanza(stanza).to_string()
}

fn stanza() -> Stanza {
    Stanza::new([
        "secrets",
        "configmaps",
        "routes.route.openshift.io",
        "oauthaccesstokens.oauth.openshift.io",
        "oauthauthorizetokens.oauth.openshift.io",
    ])
}

/// `kms-creds`, as HyperShift writes it, with a role of this name.
pub fn web_identity(role: &str) -> String {
    format!(
        "[default]\nrole_arn = arn:aws:iam::{ACCOUNT}:role/{role}\n\
         web_identity_token_file = {TOKEN_DIR}/token\n\
         sts_regional_endpoints = regional\nregion = {REGION}\n"
    )
}

/// The shim's head Secret.
pub(super) fn shim_head(revision: u64, keys: &[(u64, Role)], operator: &str) -> String {
    let keys: Vec<Value> = keys
        .iter()
        .map(|(id, role)| {
            let role = if *role == Role::Write { "write" } else { "read" };
            json!({"id": id, "role": role, "endpoints": [format!("unix://{}", socket(*id))]})
        })
        .collect();
    json!({
        "revision": revision.to_string(),
        "listen": "unix:///var/run/kmsplugin/kms.sock",
        "admin": "127.0.0.1:8093",
        "adminTls": {
            "listen": format!("0.0.0.0:{ADMIN}"), "allow": [operator],
            "ca": "/certs/ca.crt", "cert": "/certs/tls.crt", "key": "/certs/tls.key",
        },
        "keys": keys,
    })
    .to_string()
}

/// The provider's head Secret.
pub(super) fn provider_head(revision: u64, keys: &[(u64, &str)]) -> String {
    let keys: Vec<Value> = keys
        .iter()
        .map(|(id, arn)| {
            json!({
                "id": id, "listen": format!("unix://{}", socket(*id)), "kek": {"key": arn},
                "settings": {"allowPlaintext": true},
                "credentials": {"sharedCredentialsFile": "/aws/credentials"},
            })
        })
        .collect();
    json!({
        "revision": revision.to_string(),
        "health": [{
            "address": format!("0.0.0.0:{HEALTH}"),
            "healthz": "/healthz", "livez": "/livez", "metrics": "/metrics",
        }],
        "keys": keys,
    })
    .to_string()
}

fn socket(id: u64) -> String {
    format!("/var/run/sidekey/aws/kms-{id}.sock")
}

/// What stands for the balancer in front of the kube-apiservers.
pub(super) fn service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": SERVER, "namespace": namespace},
        "spec": {"selector": {"app": SERVER}, "ports": [{"port": 6443}]},
    })
}

/// The Deployment of kube-apiserver.
pub(super) fn server(
    namespace: &str,
    layout: &Layout<'_>,
    encryption: &str,
    images: &Images<'_>,
    url: &str,
) -> Value {
    let mut containers = vec![apiserver(layout)];
    let mut sidecars = Vec::new();
    let mut volumes = volumes();
    match layout {
        Layout::Native { write, read } => {
            containers.push(native("active", write, HEALTH, images, url));
            containers.extend(read.map(|arn| native("backup", arn, HEALTH + 1, images, url)));
            containers.push(minter());
        }
        Layout::Shim => {
            sidecars = vec![minter(), provider(images, url), shim(images)];
            for sidecar in &mut sidecars {
                sidecar["restartPolicy"] = "Always".into();
            }
            for name in ["sidekey-shim", "sidekey-provider-aws"] {
                volumes.push(json!({"name": name, "secret": {"secretName": name}}));
            }
            volumes.push(json!({"name": "kms-socket-aws", "emptyDir": {}}));
        }
    }
    let grace = match layout {
        Layout::Native { .. } => GRACE,
        Layout::Shim => 660,
    };
    let hash = hash(encryption);
    let annotation = "kube-apiserver.hypershift.openshift.io/encryption-config-hash";
    let labels = json!({"app": SERVER});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": SERVER, "namespace": namespace},
        "spec": {
            "replicas": 2,
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {
                    "labels": labels, "annotations": {annotation: hash},
                },
                "spec": {
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": grace,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": UID, "fsGroup": UID,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "initContainers": sidecars,
                    "containers": containers,
                    "volumes": volumes,
                },
            },
        },
    })
}

/// The Deployment before anything is encrypted: no sidecar, no flag, no volume of ours.
pub(super) fn bare(namespace: &str) -> Value {
    let images = Images { aws: "", shim: "" };
    let mut deployment = server(namespace, &Layout::Shim, "", &images, "");
    let template = &mut deployment["spec"]["template"];
    template["metadata"]["annotations"] = json!({});
    let spec = &mut template["spec"];
    spec["initContainers"] = json!([]);
    spec["terminationGracePeriodSeconds"] = GRACE.into();
    let kept = |list: &mut Value, keep: &dyn Fn(&Value) -> bool| {
        if let Some(list) = list.as_array_mut() {
            list.retain(|entry| keep(entry));
        }
    };
    let own = |entry: &Value| entry["name"] == "kas-pki" || entry["name"] == "tmp-dir";
    kept(&mut spec["volumes"], &own);
    let container = &mut spec["containers"][0];
    kept(&mut container["volumeMounts"], &own);
    container["args"] = flags(DELAY);
    kept(&mut container["args"], &|flag| {
        !flag.as_str().is_some_and(|flag| flag.starts_with("--encryption-provider"))
    });
    deployment
}

/// As HyperShift writes it into the pods' template, so that a change rolls them out.
fn hash(encryption: &str) -> String {
    let hash = digest::digest(&digest::SHA256, encryption.as_bytes());
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn volumes() -> Vec<Value> {
    let secret = |name: &str, secret: &str| json!({"name": name, "secret": {"secretName": secret}});
    vec![
        secret("kas-pki", "kas-pki"),
        secret("kas-secret-encryption-config", "kas-secret-encryption-config"),
        secret("aws-kms-credentials", CREDENTIALS),
        secret("token-source", "kms-token"),
        json!({"name": "kms-socket", "emptyDir": {}}),
        json!({"name": "aws-kms-token", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "tmp-dir", "emptyDir": {}}),
    ]
}

fn apiserver(layout: &Layout<'_>) -> Value {
    let (sockets, delay, excluded) = match layout {
        Layout::Native { .. } => {
            let sockets = json!({"name": "kms-socket", "mountPath": "/var/run"});
            (sockets, "15s", "&exclude=kms-provider-0&exclude=kms-provider-1")
        }
        Layout::Shim => {
            let path = "/var/run/kmsplugin";
            let sockets = json!({"name": "kms-socket", "mountPath": path, "readOnly": true});
            (sockets, "600s", "&exclude=kms-provider-0")
        }
    };
    let probe = |path: &str| json!({"scheme": "HTTPS", "port": 6443, "path": path});
    json!({
        "name": SERVER, "image": SERVER_IMAGE, "imagePullPolicy": "Never",
        "args": flags(delay),
        "ports": [{"name": "client", "containerPort": 6443, "protocol": "TCP"}],
        "livenessProbe": {
            "httpGet": probe(&format!("livez?exclude=etcd{excluded}")),
            "initialDelaySeconds": 300, "periodSeconds": 180, "timeoutSeconds": 160,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            "httpGet": probe("readyz"),
            "periodSeconds": 2, "timeoutSeconds": 10, "failureThreshold": 90,
        },
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "kas-pki", "mountPath": "/pki", "readOnly": true},
            {
                "name": "kas-secret-encryption-config",
                "mountPath": "/etc/kubernetes/secret-encryption",
            },
            sockets,
            {"name": "tmp-dir", "mountPath": "/tmp"},
        ],
    })
}

/// `delay`: for how long it serves on when it was told to end.
fn flags(delay: &str) -> Value {
    json!([
        "--etcd-servers=http://etcd-client:2379",
        "--bind-address=0.0.0.0",
        "--secure-port=6443",
        "--endpoint-reconciler-type=none",
        "--tls-cert-file=/pki/tls.crt",
        "--tls-private-key-file=/pki/tls.key",
        "--token-auth-file=/pki/tokens.csv",
        "--authorization-mode=RBAC",
        "--service-account-key-file=/pki/service-account.pub",
        "--service-account-signing-key-file=/pki/service-account.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--profiling=false",
        "--encryption-provider-config=/etc/kubernetes/secret-encryption/config.yaml",
        "--encryption-provider-config-automatic-reload=false",
        format!("--shutdown-delay-duration={delay}"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_as_hypershift_names_them() {
        assert_eq!(provider_name("test"), "awskmskey-3157003241");
        let key = "12345678-1234-1234-1234-123456789012";
        let arn = format!("arn:aws:kms:us-east-1:123456789012:key/{key}");
        assert_eq!(provider_name(&arn), "awskmskey-445794736");
    }
}
