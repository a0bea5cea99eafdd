//! The keys of a HostedCluster, as HyperShift's API has them.

use serde_json::{Map, Value, json};
use sidekey_core::config::Problems;

use super::profiles::{AwsKms, AzureAccess, AzureKms, HostedKms, IbmKms};

/// Reads `spec.secretEncryption` of a HostedCluster or HostedControlPlane.
pub(super) fn read(document: &Value) -> Result<HostedKms, Problems> {
    let mut problems = Problems::default();
    let encryption = &document["spec"]["secretEncryption"];
    let kms = &encryption["kms"];
    let read = problems.within("spec.secretEncryption", |problems| {
        if encryption["type"] != "kms" {
            problems.add("type", "must be kms: nothing else has sidecars");
            return None;
        }
        match kms["provider"].as_str() {
            Some("AWS") => problems
                .within("kms.aws", |problems| aws(&kms["aws"], problems))
                .map(HostedKms::Aws),
            Some("Azure") => {
                let tenant = &document["spec"]["platform"]["azure"]["tenantID"];
                let azure =
                    problems.within("kms.azure", |problems| azure(&kms["azure"], tenant, problems));
                azure.map(HostedKms::Azure)
            }
            Some("IBMCloud") => problems
                .within("kms.ibmcloud", |problems| ibm(&kms["ibmcloud"], problems))
                .map(HostedKms::Ibm),
            _ => {
                problems.add("kms.provider", "must be AWS, Azure or IBMCloud");
                None
            }
        }
    });
    problems.into_result(read)
}

fn text(value: &Value, path: &str, problems: &mut Problems) -> Option<String> {
    let found = path.split('.').fold(value, |value, key| &value[key]);
    match found.as_str().filter(|text| !text.is_empty()) {
        Some(text) => Some(text.to_owned()),
        None => {
            problems.add(path, "is required");
            None
        }
    }
}

fn aws(aws: &Value, problems: &mut Problems) -> Option<AwsKms> {
    let region = text(aws, "region", problems);
    let mut arn = |path: &str| {
        let arn = text(aws, path, problems)?;
        if !arn.starts_with("arn:") {
            problems.add(path, "must begin with arn:");
        }
        Some(arn)
    };
    let active = arn("activeKey.arn");
    let backup = if aws["backupKey"].is_null() { None } else { Some(arn("backupKey.arn")?) };
    Some(AwsKms { active: active?, backup, region: region? })
}

fn azure(azure: &Value, tenant: &Value, problems: &mut Problems) -> Option<AzureKms> {
    let mut key = |role: &str| {
        let name = text(azure, &format!("{role}.keyName"), problems);
        let version = text(azure, &format!("{role}.keyVersion"), problems);
        let vault = text(azure, &format!("{role}.keyVaultName"), problems);
        Some((vault?, (name?, version?)))
    };
    let active = key("activeKey");
    let backup = if azure["backupKey"].is_null() { None } else { Some(key("backupKey")?) };
    let (vault, active) = active?;
    if backup.as_ref().is_some_and(|(other, _)| *other != vault) {
        problems.add("backupKey.keyVaultName", "must be that of activeKey");
    }
    let access = match (azure["kms"].is_object(), azure["workloadIdentity"].is_object()) {
        (true, false) => AzureAccess::ManagedIdentity,
        (false, true) => {
            let client = text(azure, "workloadIdentity.clientID", problems);
            let Some(tenant) = tenant.as_str() else {
                problems.add("workloadIdentity", "needs spec.platform.azure.tenantID");
                return None;
            };
            AzureAccess::WorkloadIdentity { client: client?, tenant: tenant.to_owned() }
        }
        _ => {
            problems.add("", "exactly one of kms and workloadIdentity is required");
            return None;
        }
    };
    let managed_hsm = azure["keyVaultType"] == "ManagedHSM";
    Some(AzureKms { vault, active, backup: backup.map(|(_, key)| key), managed_hsm, access })
}

fn ibm(ibm: &Value, problems: &mut Problems) -> Option<IbmKms> {
    let region = text(ibm, "region", problems);
    let managed = ibm["auth"]["type"] == "Managed";
    let credentials = match ibm["auth"]["type"].as_str() {
        Some("Managed") => None,
        Some("Unmanaged") => Some(text(ibm, "auth.unmanaged.credentials.name", problems)?),
        _ => {
            problems.add("auth.type", "must be Managed or Unmanaged");
            None
        }
    };
    let mut keys = Map::new();
    for (index, key) in ibm["keyList"].as_array().into_iter().flatten().enumerate() {
        problems.within(&format!("keyList[{index}]"), |problems| {
            let fields = ["crkID", "instanceID", "correlationID", "url"];
            let mut entry = Map::new();
            for field in fields {
                entry.insert(field.to_owned(), json!(text(key, field, problems)));
            }
            entry.insert("serviceToService".to_owned(), managed.into());
            match key["keyVersion"].as_u64() {
                Some(version) => drop(keys.insert(version.to_string(), entry.into())),
                None => problems.add("keyVersion", "must be a number"),
            }
        });
    }
    if keys.is_empty() {
        problems.add("keyList", "is empty");
    }
    Some(IbmKms { region: region?, keys: Value::Object(keys).to_string(), credentials })
}
