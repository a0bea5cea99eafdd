//! The keys that HyperShift's sidecars are told of: those of a HostedCluster, by its own rules, or of
//! a SecretEncryption that says no more than their arguments can.

use serde_json::{Map, Value, json};
use sidekey_core::config::Problems;

use super::profiles::{AwsKms, AzureKms, HostedKms, IbmKms};
use crate::model::{AzureKey, FileSource, Key, Role};
use crate::render::hosted::{AZURE_LOGINS, AzureAccess, Hosted, IBM_ENTRY, Identity, parse};

/// Reads `spec.secretEncryption` of a HostedCluster or HostedControlPlane.
pub(super) fn read(document: &Value) -> Result<HostedKms, Problems> {
    let hosted = parse(document)?;
    let path = "spec.secretEncryption";
    let kms = |key: &&_| !matches!(identity(key), Identity::Aescbc { .. });
    // Until HyperShift has promoted a new key the old one is the active one.
    let mut keys = hosted.keys.iter().filter(kms);
    let active = keys.clone().find(|key| key.writes).or_else(|| keys.find(|key| key.wanted));
    let Some(active) = active else {
        let text = "must be kms: nothing else has sidecars";
        return Err(Problems::one(&format!("{path}.type"), text));
    };
    let others = hosted.keys.iter().filter(kms).filter(|key| !std::ptr::eq(*key, active));
    let others: Vec<&Identity> = others.map(|key| &key.identity).collect();
    let vendor = active.identity.vendor();
    if let Some(other) = others.iter().find(|other| other.vendor() != vendor) {
        let text = format!(
            "status names a key of {} too, and HyperShift has sidecars of one provider: use the \
             profile sidekey",
            other.vendor()
        );
        return Err(Problems::one(path, &text));
    }
    if vendor != "ibmcloud" && others.len() > 1 {
        return Err(Problems::one(path, ONE_BACKUP));
    }
    Ok(sidecars(&hosted, &active.identity, &others))
}

/// What is wrong with a third key.
const ONE_BACKUP: &str =
    "names more than two keys, and HyperShift has one backup sidecar: use the profile sidekey";

fn identity(key: &crate::render::hosted::HostedKey) -> &Identity {
    &key.identity
}

fn sidecars(hosted: &Hosted, active: &Identity, others: &[&Identity]) -> HostedKms {
    match active {
        Identity::Azure(key) => {
            let backup = others.iter().find_map(|other| match other {
                Identity::Azure(key) => Some(key.clone()),
                _ => None,
            });
            let none = AzureAccess::ManagedIdentity { secret: String::new() };
            let access = hosted.auth.azure.clone().unwrap_or(none);
            HostedKms::Azure(AzureKms { active: key.clone(), backup, access })
        }
        Identity::Ibm { region, .. } => {
            let credentials = hosted.auth.ibm_secret.clone();
            let mut keys = Map::new();
            for key in others.iter().copied().chain([active]) {
                if let Identity::Ibm { crk, instance, version, correlation, url, .. } = key {
                    let entry = entry(crk, instance, correlation, url, credentials.is_none());
                    keys.insert(version.to_string(), entry);
                }
            }
            let keys = Value::Object(keys).to_string();
            HostedKms::Ibm(IbmKms { region: region.clone(), keys, credentials })
        }
        Identity::Aws { .. } | Identity::Aescbc { .. } => {
            let arn = |key: &Identity| match key {
                Identity::Aws { arn, .. } => arn.clone(),
                _ => String::new(),
            };
            let region = match active {
                Identity::Aws { region, .. } => region.clone(),
                _ => String::new(),
            };
            let backup = others.first().map(|key| arn(key));
            HostedKms::Aws(AwsKms { active: arn(active), backup, region })
        }
    }
}

/// One of `KP_DATA_JSON`.
fn entry(crk: &str, instance: &str, correlation: &str, url: &str, managed: bool) -> Value {
    json!({
        "crkID": crk, "instanceID": instance, "correlationID": correlation, "url": url,
        "serviceToService": managed,
    })
}

/// The keys of a SecretEncryption, all of one vendor.
pub(super) fn of_keys(keys: &[Key]) -> Result<HostedKms, Problems> {
    let vendor = keys.first().map_or("", |key| key.vendor.as_str());
    let mut problems = Problems::default();
    for (index, key) in keys.iter().enumerate().filter(|(_, key)| key.vendor != vendor) {
        let path = format!("spec.keys[{index}].type");
        let text =
            format!("{} beside {vendor}: HyperShift has sidecars of one provider", key.vendor);
        problems.add(&path, &text);
    }
    problems.into_result(Some(()))?;
    match vendor {
        "aws" => aws(keys).map(HostedKms::Aws),
        "azure" => azure(keys).map(HostedKms::Azure),
        "ibmcloud" => ibm(keys).map(HostedKms::Ibm),
        "" => Err(Problems::one("spec.keys", "there is no key that writes")),
        _ => Err(Problems::one(
            "spec.keys[0].type",
            "only aws, azure and ibmcloud have a place in HyperShift's sidecars",
        )),
    }
}

/// The key that writes and the one that reads, each by `read`.
fn by_role<T>(
    keys: &[Key],
    problems: &mut Problems,
    mut read: impl FnMut(&Key, &mut Problems) -> Option<T>,
) -> Option<(T, Option<T>)> {
    let (mut active, mut backup) = (None, None);
    for (index, key) in keys.iter().enumerate() {
        problems.within(&format!("spec.keys[{index}]"), |problems| {
            let Some(found) = read(key, problems) else { return };
            let place = if key.role == Role::Write { &mut active } else { &mut backup };
            if place.replace(found).is_some() {
                let text = "HyperShift has one key that reads, besides the one that writes";
                problems.add("role", text);
            }
        });
    }
    if !keys.iter().any(|key| key.role == Role::Write) {
        problems.add("spec.keys", "there is no key that writes");
    }
    Some((active?, backup))
}

fn aws(keys: &[Key]) -> Result<AwsKms, Problems> {
    let mut problems = Problems::default();
    let mut region = None;
    let found = by_role(keys, &mut problems, |key, problems| {
        let Some(arn) = key.kek["key"].as_str().filter(|arn| arn.starts_with("arn:")) else {
            problems.add("kek.key", "must be an ARN");
            return None;
        };
        let there = match &key.kek["region"] {
            Value::String(region) => Some(region.clone()),
            _ => arn.split(':').nth(3).map(str::to_owned),
        };
        if region.is_some() && region != there {
            problems.add("kek.region", "must be that of the other key");
        }
        region = there;
        Some(arn.to_owned())
    });
    let kms = found.zip(region);
    problems.into_result(kms.map(|((active, backup), region)| AwsKms { active, backup, region }))
}

fn azure(keys: &[Key]) -> Result<AzureKms, Problems> {
    let mut problems = Problems::default();
    let mut first: Option<(AzureKey, AzureAccess)> = None;
    let found = by_role(keys, &mut problems, |key, problems| {
        let Some(named) = AzureKey::of(&key.kek) else {
            problems.add("kek.version", "is required: HyperShift knows no key without one");
            return None;
        };
        let Some(access) = AzureAccess::of(&key.credentials) else {
            problems.add("credentials", AZURE_LOGINS);
            return None;
        };
        if let Some((other, login)) = &first {
            if (&other.vault, other.managed_hsm) != (&named.vault, named.managed_hsm) {
                problems.add("kek.vault", "must be that of the other key");
            }
            if *login != access {
                problems.add("credentials", "must be those of the other key");
            }
        }
        first = Some((named.clone(), access));
        Some(named)
    });
    let kms = found.zip(first);
    problems.into_result(kms.map(|((active, backup), (_, access))| AzureKms {
        active,
        backup,
        access,
    }))
}

fn ibm(keys: &[Key]) -> Result<IbmKms, Problems> {
    let mut problems = Problems::default();
    let (mut entries, mut region, mut login) = (Map::new(), None, None);
    for (index, key) in keys.iter().enumerate() {
        problems.within(&format!("spec.keys[{index}]"), |problems| {
            let Some(own) = ibm_login(key, problems) else { return };
            if login.as_ref().is_some_and(|other| *other != own) {
                problems.add("credentials", "must be those of the other keys");
            }
            let text = |section: &Value, field: &str| section[field].as_str().map(str::to_owned);
            let (crk, instance) = (text(&key.kek, "key"), text(&key.kek, "instance"));
            let url = text(&key.settings, "address");
            let fields =
                [("kek.key", &crk), ("kek.instance", &instance), ("settings.address", &url)];
            for (path, value) in fields {
                problems.require(path, value);
            }
            let correlation = text(&key.settings, "correlationId").unwrap_or_default();
            if let (Some(crk), Some(instance), Some(url)) = (crk, instance, url) {
                let host = url.split("://").nth(1).unwrap_or_default();
                let labels = host.split('.').find(|label| *label != "private");
                region = labels.map(str::to_owned);
                let entry = entry(&crk, &instance, &correlation, &url, own.is_none());
                entries.insert(key.id.to_string(), entry);
            }
            login = Some(own);
        });
    }
    let newest = keys.iter().max_by_key(|key| key.id);
    if newest.is_some_and(|key| key.role != Role::Write) {
        let text = "the highest id must be that of the key that writes: IBM's sidecar is told so";
        problems.add("spec.keys", text);
    }
    let keys = Value::Object(entries).to_string();
    let credentials = login.flatten();
    problems.into_result(region.map(|region| IbmKms { region, keys, credentials }))
}

/// The Secret with the API key; none where the pod's own token is exchanged.
fn ibm_login(key: &Key, problems: &mut Problems) -> Option<Option<String>> {
    if key.credentials["tokenFile"].is_string() {
        return Some(None);
    }
    let path = key.credentials["apiKeyFile"].as_str().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let file = key.files.iter().find(|file| file.name == name);
    match file.map(|file| &file.source) {
        Some(FileSource::Secret(object)) if object.key == IBM_ENTRY => {
            Some(Some(object.name.clone()))
        }
        _ => {
            let text = format!(
                "must be one of files, from a Secret's entry {IBM_ENTRY}: IBM's sidecar reads no other"
            );
            problems.add("credentials.apiKeyFile", &text);
            None
        }
    }
}
