//! What is really stored, read by other code than the census has.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sidekey_e2e::Stored;

use super::scene::Scene;

/// What EncryptionConfiguration has encrypted.
pub(crate) const ENCRYPTED: [&str; 3] = ["secrets", "configmaps", "widgets.example.com"];

/// How objects of a resource are stored: kind, name, key and hash of key_id.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    kind: String,
    name: Option<String>,
    key: Option<u64>,
    hash: Option<String>,
}

/// Compares a census with the bytes in etcd, for all encrypted resources and all that is
/// encrypted elsewhere.
pub(crate) async fn agrees(census: &Value, scene: &Scene) -> Result<()> {
    let mut real: BTreeMap<String, BTreeMap<Way, u64>> = BTreeMap::new();
    for entry in scene.plane.etcd.list("/registry/").await? {
        let way = way(&entry.value).with_context(|| entry.key.clone())?;
        let path: Vec<&str> = entry.key.split('/').collect();
        let resource = match path[2] {
            "example.com" => format!("{}.example.com", path[3]),
            plain => plain.to_owned(),
        };
        *real.entry(resource).or_default().entry(way).or_default() += 1;
    }
    for resource in ENCRYPTED.into_iter().chain(["namespaces", "serviceaccounts"]) {
        let (real, counted) = (real.get(resource).cloned(), rows(census, resource));
        let real = real.unwrap_or_default();
        ensure!(real == counted, "{resource}: really {real:?}, counted {counted:?}");
    }
    let all: u64 = census["objects"].as_u64().context("no total")?;
    let stored: u64 = real.values().flat_map(|ways| ways.values()).sum();
    // kube-apiserver makes and forgets a lease now and then.
    ensure!(all.abs_diff(stored) < 5, "{all} objects counted, {stored} stored");
    let keys = census["keys"].as_array().context("no keys")?;
    let of_keys: u64 = keys.iter().filter_map(|key| key["objects"].as_u64()).sum();
    ensure!(of_keys == all, "{of_keys} by key, {all} in all");
    Ok(())
}

/// The counts of one resource.
pub(crate) fn rows(census: &Value, resource: &str) -> BTreeMap<Way, u64> {
    let found = census["resources"].as_array().into_iter().flatten();
    let found = found.filter(|one| one["resource"] == resource);
    let under = found.flat_map(|one| one["under"].as_array().into_iter().flatten());
    let row = |under: &Value| {
        let text = |field: &str| under[field].as_str().map(str::to_owned);
        let way = Way {
            kind: text("kind").unwrap_or_default(),
            name: text("provider"),
            key: under["keyID"].as_u64(),
            hash: text("keyIdHash"),
        };
        (way, under["objects"].as_u64().unwrap_or_default())
    };
    under.map(row).collect()
}

pub(crate) fn resources(census: &Value) -> impl Iterator<Item = String> {
    let found = census["resources"].as_array().into_iter().flatten();
    found.filter_map(|one| Some(one["resource"].as_str()?.to_owned()))
}

/// How many objects of a resource are stored so.
pub(crate) fn objects(census: &Value, resource: &str, stored: (&str, Option<&str>)) -> u64 {
    let fits = |way: &&Way| (way.kind.as_str(), way.name.as_deref()) == stored;
    let rows = rows(census, resource);
    rows.iter().filter(|(way, _)| fits(way)).map(|(_, objects)| objects).sum()
}

/// How many objects of the encrypted resources are not stored so.
pub(crate) fn objects_but(census: &Value, stored: (&str, Option<&str>)) -> u64 {
    let rows = ENCRYPTED.iter().flat_map(|resource| rows(census, resource));
    let others = rows.filter(|(way, _)| (way.kind.as_str(), way.name.as_deref()) != stored);
    others.map(|(_, objects)| objects).sum()
}

/// How many objects of all resources are under a key of the shim.
pub(crate) fn under_key(census: &Value, key: u64) -> u64 {
    let keys = census["keys"].as_array().into_iter().flatten();
    keys.filter(|one| one["keyID"] == key).filter_map(|one| one["objects"].as_u64()).sum()
}

pub(crate) fn strings(list: &Value) -> BTreeSet<String> {
    let found = list.as_array().into_iter().flatten();
    found.filter_map(|one| Some(one.as_str()?.to_owned())).collect()
}

fn way(value: &[u8]) -> Result<Way> {
    if let Ok(stored) = Stored::parse(value) {
        let number = |id: &str| id.strip_prefix("sidekey/")?.split('-').next()?.parse().ok();
        return Ok(Way {
            kind: "kms-v2".to_owned(),
            key: number(&stored.object.key_id),
            hash: Some(stored.key_id_hash()),
            name: Some(stored.provider),
        });
    }
    let text = String::from_utf8_lossy(&value[..value.len().min(80)]).into_owned();
    let Some(rest) = text.strip_prefix("k8s:enc:") else {
        ensure!(text.starts_with("k8s\0") || text.starts_with('{'), "begins {text:?}");
        return Ok(Way { kind: "clear".to_owned(), ..Way::default() });
    };
    let parts: Vec<&str> = rest.split(':').collect();
    Ok(Way { kind: parts[0].to_owned(), name: Some(parts[2].to_owned()), ..Way::default() })
}
