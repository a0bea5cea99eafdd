//! HyperShift's manner: ordinary containers by role, as its control-plane operator renders them,
//! with ports that nobody else in the pod has.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::Wanted;
use super::super::add::{Addition, Facts};
use super::super::flags::{CONFIG, RELOAD};
use super::{ONE_DIRECTORY, hypershift_vendors as vendors, mount};
use crate::model::AzureKey;
use crate::render::hosted::AzureAccess;

/// Where kube-apiserver has its EncryptionConfiguration.
const ENCRYPTION: &str = "/etc/kubernetes/secret-encryption";

/// The keys of a hosted cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostedKms {
    /// AWS KMS.
    Aws(AwsKms),
    /// Azure Key Vault.
    Azure(AzureKms),
    /// IBM Key Protect.
    Ibm(IbmKms),
}

/// Keys of AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsKms {
    /// The key that writes, by its ARN.
    pub active: String,
    /// The key that only reads.
    pub backup: Option<String>,
    /// Their region.
    pub region: String,
}

/// Keys of Azure, in one vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureKms {
    /// The key that writes.
    pub active: AzureKey,
    /// The key that only reads.
    pub backup: Option<AzureKey>,
    /// How the sidecars log in.
    pub access: AzureAccess,
}

/// Keys of IBM Key Protect: all in one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbmKms {
    /// Their region.
    pub region: String,
    /// What the plugin reads: its keys by version, as JSON.
    pub keys: String,
    /// The Secret with `iam_apikey`, where the service does not log in by itself.
    pub credentials: Option<String>,
}

/// Gives out ports that nobody has.
pub(super) struct Ports<'a> {
    used: BTreeSet<u16>,
    warnings: &'a mut Vec<String>,
}

impl Ports<'_> {
    /// This port, or the next one that is free.
    pub(super) fn take(&mut self, wanted: u16, container: &str) -> u16 {
        let port = (wanted..u16::MAX).find(|port| !self.used.contains(port)).unwrap_or(wanted);
        if port != wanted {
            self.warnings.push(format!(
                "port {wanted} of {container} is in use in this pod; it has {port} instead"
            ));
        }
        self.used.insert(port);
        port
    }
}

pub(super) fn addition(
    kms: &HostedKms,
    minter: Option<&str>,
    wanted: &Wanted,
    facts: &Facts,
) -> Addition {
    let secret = "kas-secret-encryption-config";
    let mut addition = Addition {
        volumes: vec![
            json!({"name": "kms-socket", "emptyDir": {}}),
            json!({"name": secret, "secret": {"secretName": secret}}),
        ],
        mounts: vec![mount(secret, ENCRYPTION)],
        flags: vec![(CONFIG, format!("{ENCRYPTION}/config.yaml")), (RELOAD, "false".to_owned())],
        ..Addition::default()
    };
    let mut warnings = Vec::new();
    let mut ports = Ports { used: facts.ports.clone(), warnings: &mut warnings };
    match kms {
        HostedKms::Aws(keys) => {
            vendors::aws(keys, &wanted.image("aws"), minter, &mut ports, &mut addition);
        }
        HostedKms::Azure(keys) => {
            vendors::azure(keys, &wanted.image("azure"), minter, &mut ports, &mut addition);
        }
        HostedKms::Ibm(keys) => {
            vendors::ibm(keys, &wanted.image("ibmcloud"), &mut ports, &mut addition);
        }
    }
    addition.warnings.extend(warnings);
    addition.warnings.push(ONE_DIRECTORY.to_owned());
    if facts.static_pod {
        addition.problems.push(
            "HyperShift's sidecars mount Secrets, which a static pod cannot; use another profile"
                .to_owned(),
        );
    }
    addition
}

/// What all of HyperShift's KMS containers have in common.
pub(super) fn container(name: &str, image: &str, memory: &str) -> Value {
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": {"cpu": "10m", "memory": memory}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

/// HyperShift's own, whose numbers are generous.
pub(super) fn liveness(port: u16, path: &str) -> Value {
    json!({
        "httpGet": {"scheme": "HTTP", "port": port, "path": path},
        "initialDelaySeconds": 120,
        "periodSeconds": 300,
        "timeoutSeconds": 160,
        "failureThreshold": 3,
        "successThreshold": 1,
    })
}
