//! The part of a HostedCluster that is about Azure.

use serde_json::Value;
use sidekey_core::config::Problems;

use super::raw::{RawAzure, RawAzureKey, RawIdentity};
use super::read::sized;
use super::{Auth, AzureAccess, Identity};
use crate::model::{AZURE_PUBLIC_CLOUD, AzureKey};

/// The cloud whose vaults are wherever its owner has them.
const STACK: &str = "AzureStackCloud";
/// Forms of a secret in a secrets store.
const ENCODINGS: [&str; 3] = ["utf-8", "hex", "base64"];
/// The longest name of a secret in a vault.
const MAX_SECRET: usize = 127;

/// The keys, the wanted writer last.
pub(super) fn azure(raw: &RawAzure, auth: &mut Auth, problems: &mut Problems) -> Vec<Identity> {
    let managed_hsm = match raw.key_vault_type.as_deref() {
        None | Some("KeyVault") => false,
        Some("ManagedHSM") => true,
        Some(_) => {
            problems.add("keyVaultType", "is neither KeyVault nor ManagedHSM");
            false
        }
    };
    if raw.key_vault_access.as_deref().is_some_and(|at| !["", "Public", "Private"].contains(&at)) {
        problems.add("keyVaultAccess", "is neither Public nor Private");
    }
    auth.azure = match (&raw.kms, &raw.workload_identity) {
        (Some(kms), None) => problems.within("kms", |problems| managed_identity(kms, problems)),
        (None, Some(raw)) => {
            problems.within("workloadIdentity", |problems| workload_identity(raw, problems))
        }
        _ => {
            problems.add("", "needs exactly one of kms and workloadIdentity");
            None
        }
    };
    let mut key = |path: &str, raw: &RawAzureKey| {
        problems.within(path, |problems| {
            let vault = sized("keyVaultName", &raw.key_vault_name, 255, problems);
            let name = sized("keyName", &raw.key_name, 255, problems);
            let version = sized("keyVersion", &raw.key_version, 255, problems);
            let (vault, name, version) = (vault?, name?, version?);
            Some(AzureKey { vault, name, version, managed_hsm })
        })
    };
    let backup = raw.backup_key.as_ref().and_then(|raw| key("backupKey", raw));
    let active = raw.active_key.as_ref().and_then(|raw| key("activeKey", raw));
    problems.require("activeKey", &raw.active_key);
    if let (Some(one), Some(two)) = (&backup, &active)
        && one.vault != two.vault
    {
        problems.add("backupKey.keyVaultName", "must be the vault of activeKey");
    }
    backup.into_iter().chain(active).map(Identity::Azure).collect()
}

/// An identity whose credentials a secrets store holds, and a file of the pod.
fn managed_identity(raw: &RawIdentity, problems: &mut Problems) -> Option<AzureAccess> {
    client(raw, problems);
    if raw.tenant.is_some() {
        let text =
            "is no field of HyperShift's: leave it out, what credentialsSecretName names has it";
        problems.add("tenantID", text);
    }
    if raw.object_encoding.as_deref().is_some_and(|form| !ENCODINGS.contains(&form)) {
        let text = format!("is not one of {}", ENCODINGS.join(", "));
        problems.add("objectEncoding", &text);
    }
    if raw.certificate_name.is_some() && raw.credentials_secret_name.is_none() {
        let text = "HyperShift has credentialsSecretName in its place: write kms: \
                    {credentialsSecretName: NAME, objectEncoding: utf-8} with the secret that holds \
                    the identity's credentials";
        problems.add("certificateName", text);
        return None;
    }
    if raw.certificate_name.is_some() {
        problems.add("certificateName", "is no field of HyperShift's any more: leave it out");
    }
    let path = "credentialsSecretName";
    let secret = sized(path, &raw.credentials_secret_name, MAX_SECRET, problems)?;
    // It becomes the name of a file.
    if !secret.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        problems.add(path, "has more in it than letters, digits and -");
        return None;
    }
    Some(AzureAccess::ManagedIdentity { secret })
}

/// An identity that trusts tokens of the hosted cluster. Its tenant is the platform's.
fn workload_identity(raw: &RawIdentity, problems: &mut Problems) -> Option<AzureAccess> {
    let others = [
        ("objectEncoding", raw.object_encoding.is_some()),
        ("credentialsSecretName", raw.credentials_secret_name.is_some()),
        ("certificateName", raw.certificate_name.is_some()),
        ("tenantID", raw.tenant.is_some()),
    ];
    for (name, _) in others.iter().filter(|(_, given)| *given) {
        problems.add(name, "unknown field");
    }
    problems.require("clientID", &raw.client);
    let client = client(raw, problems)?;
    Some(AzureAccess::WorkloadIdentity { client, tenant: String::new() })
}

fn client(raw: &RawIdentity, problems: &mut Problems) -> Option<String> {
    let client = raw.client.clone()?;
    let lengths = client.split('-').map(str::len);
    let hex = client.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    if hex && lengths.eq([8, 4, 4, 4, 12]) {
        return Some(client);
    }
    problems.add("clientID", "is no GUID: write 8-4-4-4-12 hex digits");
    None
}

/// What the platform says of where and as whose to log in.
pub(super) fn platform(document: &Value, auth: &mut Auth, problems: &mut Problems) {
    let Some(access) = &mut auth.azure else { return };
    let text = |name: &str| {
        let value = document.pointer(&format!("/spec/platform/azure/{name}"));
        value.and_then(Value::as_str).filter(|text| !text.is_empty())
    };
    if let AzureAccess::WorkloadIdentity { tenant, .. } = access {
        match text("tenantID") {
            Some(id) => *tenant = id.to_owned(),
            None => problems.add(
                "spec.platform.azure.tenantID",
                "is required where secretEncryption has a workloadIdentity: tokens are of a tenant",
            ),
        }
    }
    match text("cloud") {
        None | Some(AZURE_PUBLIC_CLOUD) => {}
        Some(STACK) => problems.add(
            "spec.platform.azure.cloud",
            "has vaults at addresses of its own: write a SecretEncryption whose kek.vault is a URL",
        ),
        Some(cloud) => auth.azure_cloud = Some(cloud.to_owned()),
    }
}
