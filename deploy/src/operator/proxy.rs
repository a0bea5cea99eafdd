//! Providers in pods of their own, behind the socket proxy.
//!
//! One Deployment has a provider for each vendor, as a native sidecar, and a `sidekey-proxy` for
//! each key, because a proxy serves one socket. Shims reach them through one Service with a port
//! for each key, over mutual TLS. Heads are mounted: what changes in them rolls nothing. A new key
//! adds a proxy and rolls this Deployment, and no kube-apiserver.
//!
//! **Ports.** Key N is served at 10000 + N mod 10000, and its proxy's admin endpoints on loopback
//! 10000 above. A port never depends on which other keys there are, so that none moves when a key
//! comes or goes. Two keys could meet only if their numbers were 10000 apart, and are refused then
//! ([`refused`]). All of it is below the ports that outgoing connections get.
//!
//! **When pods are replaced** a new one is ready first. The old one is taken out of the Service at
//! once, while its proxies serve on for all who are connected, and for whoever comes before every
//! node has heard of it: they linger. Then they say good-bye on each connection (GOAWAY), let open
//! requests end, and only after them the providers are told to end. A shim opens a new connection,
//! which the Service leads to another pod, and repeats what was under way: it is felt as latency.
//!
//! **Nothing owns these objects**, as nothing owns the heads: if the garbage collector took them with
//! a SecretEncryption that somebody deletes, or restores from a backup, what is stored could not be
//! read. One of the same name takes them over.
//!
//! **Tokens.** A provider that logs in with a token of the control plane has its minter beside it.
//! It asks any kube-apiserver, ready or not, through a Service of its own: after a loss of power
//! none is ready before its KMS is, and the KMS is not before there is a token.
//!
//! **Not on a standalone cluster.** These pods are made, led to and kept by an API server. If that
//! is the very one whose data they decrypt, then after a loss of power it waits for them, and they
//! wait for it. So this placement is only for control planes that another cluster hosts.

mod manifest;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kube::api::ListParams;
use serde_json::Value;

use super::context::Context;
use super::roll::plane::{Plane, namespace, pods};
use crate::Error;
use crate::cluster::refused as call_refused;
use crate::model::{Key, KeyNumber, SecretEncryption, names};
use manifest::{Pattern, SELECTOR};
use write::{KINDS, Place, SERVERS};

/// Where the ports of proxies begin, and how many there are.
const FIRST_PORT: u16 = 10_000;
const PORTS: u16 = 10_000;
/// The most keys: a Service's endpoints have at most a hundred ports.
const MAX_KEYS: usize = 100;

/// The labels of the providers' pods, as a selector.
pub(super) fn selector() -> String {
    format!("{}={}", SELECTOR.0, SELECTOR.1)
}

/// Leads the shims to the proxies: every key that Sidekey serves gets its proxy's address.
pub fn lead(encryption: &mut SecretEncryption) {
    let namespace = encryption.namespace.clone().unwrap_or_default();
    for key in encryption.spec.keys.iter_mut().filter(|key| !key.is_external()) {
        let address = format!("https://{}.{namespace}.svc:{}", names::PROVIDERS, port(key.id));
        key.endpoints = vec![address];
    }
}

/// Goes one step towards providers that serve every key of `encryption`; gives who is not ready
/// yet, and why. Nothing is written where all is as it should be.
///
/// Shims that are led to a proxy which is not there yet keep what they have; one that starts in
/// that moment has nothing to keep. So where keys are served otherwise now, go on with [`lead`]
/// only when this has given nobody.
pub async fn ensure(ctx: &Context, encryption: &SecretEncryption) -> Result<Vec<String>, Error> {
    if proxied(encryption).next().is_none() {
        remove(ctx, encryption).await?;
        return Ok(Vec::new());
    }
    let place = Place::new(ctx, encryption)?;
    let plane = Plane::read(&ctx.client, encryption).await?;
    let mut pattern = Pattern::new(encryption)?;
    if let Some(workload) = plane.workloads.first() {
        pattern.follow(workload.pod_spec());
    }
    let service = place.keep(&pattern.service()).await?;
    if service["spec"]["ipFamilies"][0] == "IPv6" {
        pattern.listen_on_ipv6();
    }
    let mut objects = vec![pattern.files()?, pattern.policy(), pattern.budget()];
    let servers = pattern.servers();
    let minted = servers.is_some();
    objects.extend(servers);
    for object in objects {
        place.keep(&object).await?;
    }
    let deployment = place.keep(&pattern.deployment()).await?;
    let mut waits: Vec<String> = unsettled(&deployment).into_iter().collect();
    let own = ListParams::default().labels(&selector());
    let pods = pods(&ctx.client, namespace(encryption)?, &own).await?;
    // One that is ending serves on, and whoever follows it is there.
    waits.extend(pods.iter().filter(|pod| !pod.is_ending()).filter_map(|pod| pod.trouble()));
    if waits.is_empty() && !minted {
        place.clear(SERVERS).await?;
    }
    Ok(waits)
}

/// Removes them, once no shim is led there any more. Costs one call where nothing is there.
pub async fn remove(ctx: &Context, encryption: &SecretEncryption) -> Result<(), Error> {
    let place = Place::new(ctx, encryption)?;
    let [others @ .., deployment] = KINDS;
    // The last to go: as long as it is there, so may be the others.
    if !place.has(deployment).await? {
        return Ok(());
    }
    for kind in others {
        if place.has(kind).await? {
            place.delete(kind).await?;
        }
    }
    place.delete(deployment).await
}

/// Why providers of this control plane may not run in pods of their own, if so.
///
/// Refused is whatever may be a standalone cluster: pods that a node runs by itself, pods that no
/// Deployment or StatefulSet makes (then nothing tells a hosted control plane from the cluster's
/// own), and pods that have the address of the API server that answers here.
pub async fn refused(
    ctx: &Context,
    encryption: &SecretEncryption,
) -> Result<Option<String>, Error> {
    if let Some(reason) = crowded(encryption) {
        return Ok(Some(reason));
    }
    let plane = Plane::read(&ctx.client, encryption).await?;
    let versions = ctx.client.list_core_api_versions().await;
    let versions = versions
        .map_err(|error| call_refused("cannot ask the API server for its address", error))?;
    let servers = versions.server_address_by_client_cidrs;
    let servers: Vec<String> = servers.into_iter().map(|server| server.server_address).collect();
    Ok(standalone(&plane, &servers))
}

/// Where a key is served.
fn port(id: KeyNumber) -> u16 {
    // The rest of a division by a u16 is one.
    FIRST_PORT + u16::try_from(id.0 % u64::from(PORTS)).unwrap_or_default()
}

/// The keys that have proxies.
fn proxied(encryption: &SecretEncryption) -> impl Iterator<Item = &Key> {
    encryption.spec.keys.iter().filter(|key| !key.is_external())
}

fn crowded(encryption: &SecretEncryption) -> Option<String> {
    let mut seen: BTreeMap<u16, KeyNumber> = BTreeMap::new();
    for key in proxied(encryption) {
        if let Some(other) = seen.insert(port(key.id), key.id) {
            return Some(format!(
                "keys {other} and {} have the same port, because their numbers are a multiple of \
                 {PORTS} apart: give one of the KEKs another number",
                key.id
            ));
        }
    }
    let count = seen.len();
    (count > MAX_KEYS)
        .then(|| format!("{count} keys need a port each: at most {MAX_KEYS} have one"))
}

fn standalone(plane: &Plane, servers: &[String]) -> Option<String> {
    let why = "it would wait for pods that wait for it; use placement: Sidecar";
    if let Some(pod) = plane.pods.iter().find(|pod| pod.is_mirror()) {
        return Some(format!("{} is a static pod of this cluster: {why}", pod.title()));
    }
    if plane.workloads.is_empty() {
        return Some(format!(
            "no Deployment or StatefulSet makes the pods of kube-apiserver, so it may be this \
             cluster's own: {why}"
        ));
    }
    let host = |server: &String| {
        let address = server.rsplit_once(':').map_or(server.as_str(), |(host, _)| host);
        address.trim_start_matches('[').trim_end_matches(']').to_owned()
    };
    let hosts: Vec<String> = servers.iter().map(host).collect();
    let own = plane.pods.iter().find(|pod| {
        pod.addresses().into_iter().any(|address| hosts.iter().any(|host| host == address))
    })?;
    Some(format!("{} is the API server of this cluster: {why}", own.title()))
}

/// Why the Deployment's pods are not all of its newest form and available, if they are not.
fn unsettled(deployment: &Value) -> Option<String> {
    let status = &deployment["status"];
    let count = |name: &str| status[name].as_u64().unwrap_or(0);
    let generation = deployment["metadata"]["generation"].as_u64().unwrap_or(0);
    let wanted = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
    let name = names::PROVIDERS;
    if status["observedGeneration"].as_u64().unwrap_or(0) < generation || status.is_null() {
        return Some(format!("Deployment {name} has a change that nobody has taken up yet"));
    }
    let good = count("updatedReplicas").min(count("availableReplicas"));
    let settled = good >= wanted && count("replicas") <= count("updatedReplicas");
    (!settled).then(|| format!("Deployment {name}: {good} of {wanted} pods are new and ready"))
}
