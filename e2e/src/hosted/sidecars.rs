//! The sidecars of a hosted kube-apiserver.

use serde_json::{Value, json};

use super::manifests::{HEALTH, Images, TOKEN_DIR};
use crate::aws::REGION;
use crate::cluster::POD_IMAGE;

/// `aws-kms-active` and `aws-kms-backup`.
pub(super) fn native(role: &str, arn: &str, port: u16, images: &Images<'_>, url: &str) -> Value {
    json!({
        "name": format!("aws-kms-{role}"), "image": images.aws, "imagePullPolicy": "Never",
        "args": [
            format!("--key={arn}"),
            format!("--region={REGION}"),
            format!("--listen=/var/run/awskms{role}.sock"),
            format!("--health-port=:{port}"),
            // The simulated AWS speaks plain HTTP, from the host.
            "--allow-plaintext".to_owned(),
        ],
        "env": environment(url),
        "ports": [{"name": format!("{role}-http"), "containerPort": port, "protocol": "TCP"}],
        "livenessProbe": {
            "httpGet": {"scheme": "HTTP", "port": port, "path": "healthz"},
            "initialDelaySeconds": 120, "periodSeconds": 300, "timeoutSeconds": 160,
            "failureThreshold": 3, "successThreshold": 1,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "kms-socket", "mountPath": "/var/run"},
            {"name": "aws-kms-credentials", "mountPath": "/aws"},
            {"name": "aws-kms-token", "mountPath": TOKEN_DIR},
            {"name": "tmp-dir", "mountPath": "/tmp"},
        ],
    })
}

pub(super) fn shim(images: &Images<'_>) -> Value {
    json!({
        "name": "sidekey-shim", "image": images.shim, "imagePullPolicy": "Never",
        "args": ["--config=/config/shim.yaml"],
        "startupProbe": exec_probe("/sidekey-shim", "kmsplugin/kms"),
        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "kms-socket", "mountPath": "/var/run/kmsplugin"},
            {"name": "kms-socket-aws", "mountPath": "/var/run/sidekey/aws", "readOnly": true},
            {"name": "sidekey-shim", "mountPath": "/config", "readOnly": true},
            {"name": "kas-pki", "mountPath": "/certs", "readOnly": true},
        ],
    })
}

pub(super) fn provider(images: &Images<'_>, url: &str) -> Value {
    json!({
        "name": "sidekey-aws", "image": images.aws, "imagePullPolicy": "Never",
        "args": ["--config=/config/config.yaml"],
        "env": environment(url),
        "startupProbe": exec_probe("/sidekey-aws", "sidekey/aws/kms-1"),
        "livenessProbe": {
            "httpGet": {"port": HEALTH, "path": "/livez"}, "periodSeconds": 30, "timeoutSeconds": 10,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "kms-socket-aws", "mountPath": "/var/run/sidekey/aws"},
            {"name": "sidekey-provider-aws", "mountPath": "/config", "readOnly": true},
            {"name": "aws-kms-credentials", "mountPath": "/aws", "readOnly": true},
            {"name": "aws-kms-token", "mountPath": TOKEN_DIR, "readOnly": true},
        ],
    })
}

/// The socket listens, nothing more.
fn exec_probe(program: &str, socket: &str) -> Value {
    let socket = format!("unix:///var/run/{socket}.sock");
    json!({
        "exec": {"command": [program, "probe", "--socket", socket]},
        "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 120,
    })
}

/// HyperShift's token minter, imitated.
pub(super) fn minter() -> Value {
    json!({
        "name": "aws-kms-token-minter", "image": POD_IMAGE, "imagePullPolicy": "Never",
        "args": ["mint", "/source/token", format!("{TOKEN_DIR}/token")],
        "resources": {"requests": {"cpu": "10m", "memory": "30Mi"}},
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "aws-kms-token", "mountPath": TOKEN_DIR},
            {"name": "token-source", "mountPath": "/source", "readOnly": true},
        ],
    })
}

fn environment(url: &str) -> Value {
    json!([
        {"name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/aws/credentials"},
        {"name": "AWS_SDK_LOAD_CONFIG", "value": "true"},
        {"name": "AWS_EC2_METADATA_DISABLED", "value": "true"},
        {"name": "AWS_ENDPOINT_URL", "value": url},
    ])
}

pub(super) fn restricted() -> Value {
    json!({
        "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
    })
}
