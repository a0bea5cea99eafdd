//! Reading a HostedCluster, with the rules of its own API.

use serde_json::Value;
use sidekey_core::config::{Problems, read};

use super::azure::{self, azure};
use super::raw::{RawArn, RawAws, RawEncryption, RawIbm, RawIbmAuth, RawIbmKey, RawKms, RawName};
use super::{Auth, Hosted, HostedKey, Identity};
use crate::model::AzureKey;

/// Before the name of a Secret that holds the role, where a role's ARN is expected.
const ROLE_IN_SECRET: &str = "arn-from-secret::";

/// What to do for a vendor that HyperShift lacks.
const GCP: &str = ", and HyperShift has no field for a key of Google's: write a SecretEncryption with \
    keys: [{id: 1, type: gcp, role: write, kek: {key: projects/P/locations/L/keyRings/R/cryptoKeys/K}}]";

/// Checks a HostedCluster; `Err` lists every mistake in what concerns its encryption.
pub fn parse(document: &Value) -> Result<Hosted, Problems> {
    let mut problems = Problems::default();
    let text = |path: &str| document.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let name = text("/metadata/name").unwrap_or_default();
    if !crate::model::is_name(&name) {
        problems.add("metadata.name", "is no name of an object");
    }
    let spec = document.pointer("/spec/secretEncryption");
    let Some(spec) = spec.filter(|spec| spec.is_object()) else {
        problems.add("spec.secretEncryption", "is required");
        return problems.into_result(None);
    };
    let mut auth = Auth::default();
    let mut wanted = problems.within("spec.secretEncryption", |problems| {
        let raw: RawEncryption = read(spec, problems).unwrap_or_default();
        encryption(&raw, &mut auth, problems)
    });
    azure::platform(document, &mut auth, &mut problems);
    let status = document.pointer("/status/secretEncryption");
    let keys = problems.within("status.secretEncryption", |problems| {
        with_status(&mut wanted, status.unwrap_or(&Value::Null), problems)
    });
    let namespace = text("/metadata/namespace");
    problems.into_result(Some(Hosted { name, namespace, keys, auth }))
}

/// What the spec names: others first, and the wanted writer last.
fn encryption(raw: &RawEncryption, auth: &mut Auth, problems: &mut Problems) -> Vec<Identity> {
    match problems.require("type", &raw.r#type).map(String::as_str) {
        Some("aescbc") => {
            if raw.kms.is_some() {
                problems.add("kms", "must not be set where type is aescbc");
            }
            let Some(raw) = problems.require("aescbc", &raw.aescbc) else { return Vec::new() };
            problems.within("aescbc", |problems| {
                let backup = secret("backupKey", raw.backup_key.as_ref(), problems);
                problems.require("activeKey", &raw.active_key);
                let active = secret("activeKey", raw.active_key.as_ref(), problems);
                backup.into_iter().chain(active).collect()
            })
        }
        Some(kind) if kind.eq_ignore_ascii_case("kms") => {
            if kind != "kms" {
                problems
                    .add("type", &format!("{kind:?} is no type of HyperShift's: write type: kms"));
            }
            if raw.aescbc.is_some() {
                problems.add("aescbc", "must not be set where type is kms");
            }
            let Some(raw) = problems.require("kms", &raw.kms) else { return Vec::new() };
            problems.within("kms", |problems| kms(raw, auth, problems))
        }
        Some(other) => {
            problems.add("type", &format!("{other:?} is neither kms nor aescbc"));
            Vec::new()
        }
        None => Vec::new(),
    }
}

fn secret(path: &str, raw: Option<&RawName>, problems: &mut Problems) -> Option<Identity> {
    let name = problems.require(&format!("{path}.name"), &raw?.name)?.clone();
    (!name.is_empty()).then_some(Identity::Aescbc { secret: name })
}

fn kms(raw: &RawKms, auth: &mut Auth, problems: &mut Problems) -> Vec<Identity> {
    let provider = problems.require("provider", &raw.provider).map(String::as_str);
    let given = [
        ("IBMCloud", raw.ibmcloud.is_some()),
        ("AWS", raw.aws.is_some()),
        ("Azure", raw.azure.is_some()),
    ];
    for (name, _) in given.iter().filter(|(name, given)| *given && Some(*name) != provider) {
        problems.add(&name.to_lowercase(), &format!("must not be set unless provider is {name}"));
    }
    match provider {
        Some("AWS") => match problems.require("aws", &raw.aws) {
            Some(raw) => problems.within("aws", |problems| aws(raw, auth, problems)),
            None => Vec::new(),
        },
        Some("Azure") => match problems.require("azure", &raw.azure) {
            Some(raw) => problems.within("azure", |problems| azure(raw, auth, problems)),
            None => Vec::new(),
        },
        Some("IBMCloud") => match problems.require("ibmcloud", &raw.ibmcloud) {
            Some(raw) => problems.within("ibmcloud", |problems| ibm(raw, auth, problems)),
            None => Vec::new(),
        },
        Some(other) => {
            let mut text = format!("{other:?} is not one of IBMCloud, AWS, Azure");
            if raw.gcp.is_some() || other == "GCP" {
                text.push_str(GCP);
            }
            problems.add("provider", &text);
            Vec::new()
        }
        None => Vec::new(),
    }
}

/// A text that must be there, of 1 to `max` bytes.
pub(super) fn sized(
    path: &str,
    text: &Option<String>,
    max: usize,
    problems: &mut Problems,
) -> Option<String> {
    let text = problems.require(path, text)?;
    if text.is_empty() || text.len() > max {
        problems.add(path, &format!("must have 1 to {max} characters"));
        return None;
    }
    Some(text.clone())
}

fn aws(raw: &RawAws, auth: &mut Auth, problems: &mut Problems) -> Vec<Identity> {
    let region = sized("region", &raw.region, 255, problems).unwrap_or_default();
    let mut key = |path: &str, raw: &RawArn| {
        let arn = sized(&format!("{path}.arn"), &raw.arn, 2048, problems)?;
        if !arn.starts_with("arn:") {
            problems.add(&format!("{path}.arn"), "must begin with arn:");
        }
        Some(Identity::Aws { arn, region: region.clone() })
    };
    let backup = raw.backup_key.as_ref().and_then(|raw| key("backupKey", raw));
    let active = raw.active_key.as_ref().and_then(|raw| key("activeKey", raw));
    problems.require("activeKey", &raw.active_key);
    let role = problems.require("auth", &raw.auth).and_then(|raw| {
        if raw.role_arn.is_some() {
            let text = "HyperShift calls it awsKms: write auth: {awsKms: ARN-OF-THE-ROLE}";
            problems.add("auth.awsKMSRoleARN", text);
            return None;
        }
        sized("auth.awsKms", &raw.aws_kms, 2048, problems)
    });
    match role.as_deref().and_then(|role| role.strip_prefix(ROLE_IN_SECRET)) {
        None => auth.aws_role = role,
        Some("") => problems.add("auth.awsKms", "names no Secret after arn-from-secret::"),
        Some(name) => auth.aws_role_secret = Some(name.to_owned()),
    }
    backup.into_iter().chain(active).collect()
}

fn ibm(raw: &RawIbm, auth: &mut Auth, problems: &mut Problems) -> Vec<Identity> {
    let region = sized("region", &raw.region, 255, problems).unwrap_or_default();
    if let Some(raw) = problems.require("auth", &raw.auth) {
        problems.within("auth", |problems| ibm_auth(raw, auth, problems));
    }
    let list = problems.require("keyList", &raw.key_list).map(Vec::as_slice).unwrap_or_default();
    match list.len() {
        0 => problems.add("keyList", "is empty: give at least one"),
        n if n > 100 => problems.add("keyList", &format!("has {n} keys, at most 100")),
        _ => {}
    }
    let mut keys: Vec<(u32, Identity)> = Vec::new();
    for (index, raw) in list.iter().take(100).enumerate() {
        let Some(raw) = raw else { continue };
        let key = problems
            .within(&format!("keyList[{index}]"), |problems| ibm_key(raw, &region, problems));
        let Some((version, key)) = key else { continue };
        if keys.iter().any(|(other, _)| *other == version) {
            let text = format!("{version} is the version of another key too");
            problems.add(&format!("keyList[{index}].keyVersion"), &text);
        }
        keys.push((version, key));
    }
    // The version is counted up whenever a new key is enabled: the highest one writes.
    keys.sort_by_key(|(version, _)| *version);
    keys.into_iter().map(|(_, key)| key).collect()
}

fn ibm_auth(raw: &RawIbmAuth, auth: &mut Auth, problems: &mut Problems) {
    match problems.require("type", &raw.r#type).map(String::as_str) {
        Some("Managed") if raw.unmanaged.is_some() => {
            problems.add("unmanaged", "must not be set where type is Managed");
        }
        Some("Managed") | None => {}
        Some("Unmanaged") => {
            if raw.managed.is_some() {
                problems.add("managed", "must not be set where type is Unmanaged");
            }
            let credentials = raw.unmanaged.as_ref().and_then(|raw| raw.credentials.as_ref());
            let name = credentials.and_then(|raw| raw.name.clone());
            if name.is_none() {
                problems.add("unmanaged.credentials.name", "is required");
            }
            auth.ibm_secret = name;
        }
        Some(_) => problems.add("type", "is neither Managed nor Unmanaged"),
    }
}

fn ibm_key(raw: &RawIbmKey, region: &str, problems: &mut Problems) -> Option<(u32, Identity)> {
    let crk = sized("crkID", &raw.crk, 255, problems);
    let instance = sized("instanceID", &raw.instance, 255, problems);
    let correlation = sized("correlationID", &raw.correlation, 255, problems);
    let url = sized("url", &raw.url, 2048, problems);
    if url.as_deref().is_some_and(|url| !url.starts_with("https://")) {
        problems.add("url", "must begin with https://");
    }
    let version = *problems.require("keyVersion", &raw.key_version)?;
    let Some(version) = u32::try_from(version).ok().filter(|n| *n <= 2_147_483_647) else {
        problems.add("keyVersion", "must be between 0 and 2147483647");
        return None;
    };
    let (crk, instance, correlation, url) = (crk?, instance?, correlation?, url?);
    let region = region.to_owned();
    Some((version, Identity::Ibm { crk, instance, version, correlation, url, region }))
}

/// Joins what the status knows: its active key holds the data, its target may hold some already.
/// Nothing that either of them names is left out.
fn with_status(
    wanted: &mut Vec<Identity>,
    status: &Value,
    problems: &mut Problems,
) -> Vec<HostedKey> {
    let active = status_key("activeKey", &status["activeKey"], problems);
    let active = active.map(|key| as_in_spec(key, wanted));
    let target = status_key("targetKey", &status["targetKey"], problems);
    let target = target.map(|key| as_in_spec(key, wanted));
    let state = status.pointer("/history/0/state").and_then(Value::as_str).unwrap_or_default();
    let promoted = ["WritePromote", "Migrating"].contains(&state);
    let newest = wanted.pop();
    let writer = match (&active, &target) {
        (_, Some(target)) if promoted => Some(target.clone()),
        // Until a new key is known everywhere the old one writes.
        (Some(active), _) => Some(active.clone()),
        _ => newest.clone(),
    };
    let mut keys: Vec<HostedKey> = Vec::new();
    let all = wanted.drain(..).chain(active).chain(target).chain(newest.clone());
    for identity in all {
        let same = |key: &HostedKey| key.identity.fingerprint() == identity.fingerprint();
        if keys.iter().any(same) {
            continue;
        }
        let is = |key: &Option<Identity>| {
            key.as_ref().is_some_and(|key| key.fingerprint() == identity.fingerprint())
        };
        let (writes, wanted) = (is(&writer), is(&newest));
        keys.push(HostedKey { identity, writes, wanted });
    }
    keys
}

/// HyperShift's status leaves out what is not of the key's identity: the spec says it, if it names
/// the key or another one of the same provider.
fn as_in_spec(mut key: Identity, spec: &[Identity]) -> Identity {
    if let Some(same) = spec.iter().find(|other| other.fingerprint() == key.fingerprint()) {
        return same.clone();
    }
    let mut regions = spec.iter().filter_map(|other| match other {
        Identity::Aws { region, .. } | Identity::Ibm { region, .. } => Some(region),
        _ => None,
    });
    let spoken = regions.next_back().cloned().unwrap_or_default();
    match &mut key {
        Identity::Ibm { region, .. } if region.is_empty() => *region = spoken,
        // Only a multi-region key can be used elsewhere than where its ARN says.
        Identity::Aws { arn, region } if region.is_empty() && arn.contains(":key/mrk-") => {
            *region = spoken;
        }
        _ => {}
    }
    key
}

fn status_key(path: &str, value: &Value, problems: &mut Problems) -> Option<Identity> {
    let provider = value.get("provider").and_then(Value::as_str)?;
    let text = |body: &Value, name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let identity = match provider {
        "AWS" => {
            let body = &value["aws"];
            Identity::Aws { arn: text(body, "arn"), region: text(body, "region") }
        }
        "Azure" => {
            let body = &value["azure"];
            Identity::Azure(AzureKey {
                vault: text(body, "keyVaultName"),
                name: text(body, "keyName"),
                version: text(body, "keyVersion"),
                managed_hsm: body["keyVaultType"] == "ManagedHSM",
            })
        }
        "IBMCloud" => {
            let body = &value["ibmCloud"];
            Identity::Ibm {
                crk: text(body, "crkID"),
                instance: text(body, "instanceID"),
                version: body["keyVersion"].as_u64().and_then(|n| n.try_into().ok()).unwrap_or(0),
                correlation: text(body, "correlationID"),
                url: text(body, "url"),
                region: text(body, "region"),
            }
        }
        "AESCBC" => {
            // It was called secretRef once.
            let body = ["secret", "secretRef"].map(|name| text(&value["aescbc"][name], "name"));
            Identity::Aescbc { secret: body.concat() }
        }
        other => {
            // A key that cannot be read must not be lost in silence.
            problems.add(&format!("{path}.provider"), &format!("{other:?} is not known here"));
            return None;
        }
    };
    Some(identity)
}
