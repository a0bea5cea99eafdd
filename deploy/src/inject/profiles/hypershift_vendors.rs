//! HyperShift's containers, vendor by vendor.

use serde_json::{Value, json};

use super::super::add::Addition;
use super::hypershift::{AwsKms, AzureKms, IbmKms, Ports, container, liveness};
use super::{mount, read_only};
use crate::model::AzureKey;
use crate::render::hosted::{AZURE_CERTS, AzureAccess};

/// Where the tokens are that sidecars log in with.
const TOKEN: &str = "/var/run/secrets/openshift/serviceaccount";

pub(super) fn aws(
    keys: &AwsKms,
    image: &str,
    minter: Option<&str>,
    ports: &mut Ports<'_>,
    addition: &mut Addition,
) {
    let roles = [("active", Some(&keys.active), 8080), ("backup", keys.backup.as_ref(), 8081)];
    for (role, arn, port) in roles {
        let Some(arn) = arn else { continue };
        let name = format!("aws-kms-{role}");
        let port = ports.take(port, &name);
        let mut sidecar = container(&name, image, "10Mi");
        sidecar["args"] = json!([
            format!("--key={arn}"),
            format!("--region={}", keys.region),
            format!("--listen=/var/run/awskms{role}.sock"),
            format!("--health-port=:{port}"),
        ]);
        sidecar["env"] = json!([
            {"name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/aws/credentials"},
            {"name": "AWS_SDK_LOAD_CONFIG", "value": "true"},
            {"name": "AWS_EC2_METADATA_DISABLED", "value": "true"},
        ]);
        sidecar["ports"] = port_of(port);
        sidecar["livenessProbe"] = liveness(port, "healthz");
        sidecar["volumeMounts"] = json!([
            mount("kms-socket", "/var/run"),
            mount("aws-kms-credentials", "/aws"),
            mount("aws-kms-token", TOKEN),
            mount("tmp-dir", "/tmp"),
        ]);
        addition.containers.push(sidecar);
    }
    if let Some(image) = minter {
        let kubeconfig = "/var/secrets/localhost-kubeconfig/kubeconfig";
        addition.needs.push("localhost-kubeconfig");
        let mounts = json!([
            mount("aws-kms-token", TOKEN),
            mount("localhost-kubeconfig", "/var/secrets/localhost-kubeconfig"),
        ]);
        addition.containers.push(token_minter("aws-kms-token-minter", image, kubeconfig, mounts));
    }
    addition.mounts.push(mount("kms-socket", "/var/run"));
    addition.volumes.extend([
        json!({"name": "aws-kms-credentials", "secret": {"secretName": "kms-creds"}}),
        memory("aws-kms-token"),
        tmp(),
    ]);
}

pub(super) fn azure(
    keys: &AzureKms,
    image: &str,
    minter: Option<&str>,
    ports: &mut Ports<'_>,
    addition: &mut Addition,
) {
    let roles = [
        ("active", Some(&keys.active), [8787, 8095]),
        ("backup", keys.backup.as_ref(), [8788, 8096]),
    ];
    for (role, key, numbers) in roles {
        let Some(key) = key else { continue };
        let title = format!("azure-kms-provider-{role}");
        let numbers = numbers.map(|port| ports.take(port, &title));
        let mut sidecar = container(&title, image, "10Mi");
        sidecar["args"] = json!(azure_args(role, key, numbers));
        sidecar["ports"] = port_of(numbers[0]);
        sidecar["livenessProbe"] = liveness(numbers[0], "/healthz");
        let mut mounts =
            vec![mount("azure-kms-credentials", "/etc/kubernetes"), mount("kms-socket", "/opt")];
        match &keys.access {
            AzureAccess::ManagedIdentity { .. } => mounts.push(read_only("kms-cert", AZURE_CERTS)),
            AzureAccess::WorkloadIdentity { client, tenant } => {
                mounts.push(read_only("azure-kms-cloud-token", TOKEN));
                sidecar["env"] = json!([
                    {"name": "AZURE_CLIENT_ID", "value": client},
                    {"name": "AZURE_TENANT_ID", "value": tenant},
                    {"name": "AZURE_FEDERATED_TOKEN_FILE", "value": format!("{TOKEN}/token")},
                ]);
            }
        }
        mounts.push(mount("tmp-dir", "/tmp"));
        sidecar["volumeMounts"] = json!(mounts);
        addition.containers.push(sidecar);
    }
    addition.mounts.push(mount("kms-socket", "/opt"));
    let items = json!([{"key": "cloud.conf", "path": "azure.json"}]);
    let credentials = json!({"secretName": "azure-kms-config", "items": items});
    addition
        .volumes
        .extend([json!({"name": "azure-kms-credentials", "secret": credentials}), tmp()]);
    azure_access(keys, minter, addition);
}

fn azure_args(role: &str, key: &AzureKey, [health, metrics]: [u16; 2]) -> Vec<String> {
    let AzureKey { vault, name, version, managed_hsm } = key;
    let mut args = vec![
        format!("--keyvault-name={vault}"),
        format!("--key-name={name}"),
        format!("--key-version={version}"),
        format!("--listen-addr=unix:///opt/azurekms{role}.socket"),
        format!("--healthz-port={health}"),
        format!("--metrics-addr={metrics}"),
        "--healthz-path=/healthz".to_owned(),
        "--config-file-path=/etc/kubernetes/azure.json".to_owned(),
        "-v=1".to_owned(),
    ];
    if *managed_hsm {
        args.push("--managed-hsm".to_owned());
    }
    args
}

fn azure_access(keys: &AzureKms, minter: Option<&str>, addition: &mut Addition) {
    if matches!(keys.access, AzureAccess::ManagedIdentity { .. }) {
        let attributes = json!({"secretProviderClass": "managed-azure-kms"});
        let csi = json!({
            "driver": "secrets-store.csi.k8s.io", "readOnly": true, "volumeAttributes": attributes,
        });
        addition.volumes.push(json!({"name": "kms-cert", "csi": csi}));
        return;
    }
    addition.volumes.push(memory("azure-kms-cloud-token"));
    if let Some(image) = minter {
        addition.needs.push("localhost-kubeconfig");
        let mounts = json!([
            mount("azure-kms-cloud-token", TOKEN),
            mount("localhost-kubeconfig", "/etc/kubernetes"),
        ]);
        let kubeconfig = "/etc/kubernetes/kubeconfig";
        let minter = token_minter("azure-kms-token-minter", image, kubeconfig, mounts);
        addition.containers.push(minter);
    }
}

pub(super) fn ibm(keys: &IbmKms, image: &str, ports: &mut Ports<'_>, addition: &mut Addition) {
    let socket = "/tmp/keyprotectprovider.sock";
    let port = ports.take(8081, "ibmcloud-kms");
    let mut sidecar = container("ibmcloud-kms", image, "10Mi");
    let health = format!(":{port}");
    let pairs = [
        ("LOG_LEVEL", "info"),
        ("NUM_LEN_BYTES", "4"),
        ("CACHE_TIMEOUT_IN_HOURS", "1"),
        ("RESTART_DELAY_IN_SECONDS", "0"),
        ("UNIX_SOCKET_PATH", socket),
        ("KP_TIMEOUT", "10"),
        ("KP_WDEK_PATH", "/tmp/kp/wdek"),
        ("KP_STATE_PATH", "/tmp/kp/state"),
        ("HEALTHZ_PATH", "/healthz"),
        ("HEALTHZ_PORT", &health),
        ("KP_DATA_JSON", &keys.keys),
        ("REGION", &keys.region),
    ];
    let mut env: Vec<Value> =
        pairs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let name = "pod-identity-token";
    let identity = json!({"serviceAccountToken": {"path": name, "expirationSeconds": 900}});
    addition.volumes.extend([
        json!({"name": "ibmcloud-kms-kp", "secret": {"secretName": "kp-wdek-secret", "optional": true}}),
        json!({"name": name, "projected": {"sources": [identity]}}),
    ]);
    if let Some(secret) = &keys.credentials {
        let source = json!({"secretKeyRef": {"name": secret, "key": "iam_apikey"}});
        env.push(json!({"name": "API_KEY", "valueFrom": source}));
        addition
            .volumes
            .push(json!({"name": "ibmcloud-kms-credentials", "secret": {"secretName": secret}}));
    }
    sidecar["env"] = json!(env);
    // As HyperShift declares it, wherever health is told.
    sidecar["ports"] = port_of(8001);
    sidecar["livenessProbe"] = liveness(port, "healthz/liveness");
    sidecar["volumeMounts"] = json!([
        mount("ibmcloud-kms-kp", "/tmp/kp"),
        mount("kms-socket", "/tmp"),
        mount(name, "/etc/pod-identity-token"),
    ]);
    addition.containers.push(sidecar);
    addition.mounts.push(mount("kms-socket", "/tmp"));
}

fn token_minter(name: &str, image: &str, kubeconfig: &str, mounts: Value) -> Value {
    let mut minter = container(name, image, "30Mi");
    minter["command"] = json!(["/usr/bin/control-plane-operator", "token-minter"]);
    minter["args"] = json!([
        "--token-audience=openshift",
        "--service-account-namespace=kube-system",
        "--service-account-name=kms-provider",
        format!("--token-file={TOKEN}/token"),
        format!("--kubeconfig={kubeconfig}"),
    ]);
    minter["volumeMounts"] = mounts;
    minter
}

fn port_of(port: u16) -> Value {
    json!([{"name": "http", "containerPort": port, "protocol": "TCP"}])
}

fn memory(name: &str) -> Value {
    json!({"name": name, "emptyDir": {"medium": "Memory"}})
}

fn tmp() -> Value {
    json!({"name": "tmp-dir", "emptyDir": {}})
}
