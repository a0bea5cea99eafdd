//! Gets the sidecars into the pods of kube-apiserver, and out again.
//!
//! Where the operator owns the pod template it writes the template, and the Deployment replaces
//! its pods in its own order. Where another operator owns it, the webhook puts the sidecars into
//! every pod that is made, and pods that lack them are evicted, one at a time: a budget is never
//! overruled. Where somebody else puts them in, it is only told who lacks them.
//!
//! Each pass takes one step, and none while something else is under way: a pod that is not ready,
//! that ends, or that is missing is waited for. Only a roll-out that is stuck on one of our own
//! sidecars, or that its controller has given up, is overtaken.
//!
//! **Idle vendors.** When the last key of a vendor is retired its sidecar is of no use any more.
//! It is left alone nevertheless, because to take it out would replace every pod for nothing; it
//! goes with the next change that is made for another reason. So a pod is of the wanted form, too,
//! if it would be with the vendors that it has besides. Such a sidecar still mounts the head of its
//! vendor, and **that head must stay as it was last published**: a pod that lacks it does not start,
//! and a provider refuses a file without keys (`keys: is empty`). One that runs keeps what it has,
//! but one that starts exits with 64, and kube-apiserver, which starts after it, would wait for
//! ever. With the old head it starts, whatever has become of the key at the vendor: that the socket
//! listens is all that its start asks for. [`idle_vendors`] says whose heads these are.

#[cfg(test)]
pub(in crate::operator) mod fake;
mod goal;
pub(in crate::operator) mod plane;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::api::LABEL_INJECT;
use super::context::Context;
use crate::Error;
use crate::cluster::refused;
use crate::inject::{self, Injected, Wanted, inject, uninject};
use crate::model::{Injection, Placement, SecretEncryption, names};
use goal::Goal;
use plane::{Member, Plane, Workload, namespace};
use step::{Outlook, Step};

/// What [`LABEL_INJECT`] says where pods get sidecars.
const ENABLED: &str = "enabled";
/// The flag of a kube-apiserver that keeps some resources in another etcd.
const OVERRIDES: &str = "--etcd-servers-overrides";
/// Before the vendor in the name of a head.
const HEAD: &str = "sidekey-provider-";

/// Goes one step towards pods of the form that `encryption` asks for; gives who is not of that
/// form yet, and why. None: all are, all are ready, and none is ending.
pub async fn ensure(ctx: &Context, encryption: &SecretEncryption) -> Result<Vec<String>, Error> {
    go(ctx, encryption, &Goal::sidecars(encryption)?).await
}

/// The same towards pods without sidecars.
pub async fn remove(ctx: &Context, encryption: &SecretEncryption) -> Result<Vec<String>, Error> {
    go(ctx, encryption, &Goal::Bare).await
}

/// The sidecars that pods of this control plane are to have: for the webhook, which must put in
/// the same.
pub fn wanted(encryption: &SecretEncryption) -> Result<Wanted, Error> {
    goal::wanted(encryption)
}

/// Vendors without a key whose head is mounted still, and by whom.
///
/// As long as a vendor is among them its head Secret must be left as it is: neither deleted nor
/// written anew. When it is not any more, the Secret may be deleted, and with it the last copy of
/// the vendor's credentials in this namespace. The administrator should know of both: until then
/// the credentials are mounted, and the sidecar goes with the next change of the pods.
///
/// It lists every pod of the namespace: ask only if there is a head of a vendor without a key.
pub async fn idle_vendors(
    ctx: &Context,
    encryption: &SecretEncryption,
) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let namespace = namespace(encryption)?;
    let workloads = plane::workloads(&ctx.client, namespace).await?;
    let pods = plane::pods(&ctx.client, namespace, &ListParams::default()).await?;
    let templates = workloads.iter().map(|workload| (workload.title(), workload.pod_spec()));
    let all = templates.chain(pods.iter().map(|pod| (pod.title(), pod.spec())));
    let used = encryption.vendors();
    let mut idle: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (title, spec) in all {
        for vendor in mounted(spec).filter(|vendor| !used.contains(vendor)) {
            idle.entry(vendor.to_owned()).or_default().push(title.clone());
        }
    }
    Ok(idle)
}

/// Whether any pod of the namespace, or anything that makes pods there, mounts a Secret.
pub async fn is_mounted(
    ctx: &Context,
    encryption: &SecretEncryption,
    secret: &str,
) -> Result<bool, Error> {
    let namespace = namespace(encryption)?;
    let workloads = plane::workloads(&ctx.client, namespace).await?;
    let pods = plane::pods(&ctx.client, namespace, &ListParams::default()).await?;
    let specs = workloads.iter().map(|workload| workload.pod_spec());
    let mut specs = specs.chain(pods.iter().map(|pod| pod.spec()));
    Ok(specs.any(|spec| secrets(spec).any(|name| name == secret)))
}

/// Whether a pod of the namespace, or what makes pods there, has its sockets in one directory still,
/// as far as it concerns these vendors. It lists every pod: ask only if there are any.
pub async fn shares_sockets(
    ctx: &Context,
    encryption: &SecretEncryption,
    vendors: &BTreeSet<String>,
) -> Result<bool, Error> {
    let namespace = namespace(encryption)?;
    let workloads = plane::workloads(&ctx.client, namespace).await?;
    let pods = plane::pods(&ctx.client, namespace, &ListParams::default()).await?;
    let specs = workloads.iter().map(|workload| workload.pod_spec());
    let mut specs = specs.chain(pods.iter().map(|pod| pod.spec()));
    // Shims that are led to proxies see no provider's directory.
    let none = BTreeSet::new();
    let vendors = if encryption.spec.placement == Placement::Proxy { &none } else { vendors };
    Ok(specs.any(|spec| inject::shares_sockets(spec, vendors)))
}

/// The addresses that pods of kube-apiserver are given for names which the cluster's DNS does not know:
/// a KMS may be one of them. Null: none.
pub async fn host_aliases(ctx: &Context, encryption: &SecretEncryption) -> Result<Value, Error> {
    let plane = Plane::read(&ctx.client, encryption).await?;
    let templates = plane.workloads.iter().map(|workload| workload.pod_spec());
    let mut specs = templates.chain(plane.pods.iter().map(|pod| pod.spec()));
    let aliases = specs.find_map(|spec| spec.get("hostAliases").filter(|list| !list.is_null()));
    Ok(aliases.cloned().unwrap_or_default())
}

/// Why a count of the one etcd that is known says too little, if so: a kube-apiserver keeps some
/// resources in another one.
pub async fn stores_elsewhere(
    ctx: &Context,
    encryption: &SecretEncryption,
) -> Result<Option<String>, Error> {
    let plane = Plane::read(&ctx.client, encryption).await?;
    let workloads = plane.workloads.iter().map(|one| (one.title(), one.pod_spec()));
    let mut all = workloads.chain(plane.pods.iter().map(|pod| (pod.title(), pod.spec())));
    let words = |spec: &Value| {
        let containers = spec["containers"].as_array().cloned().unwrap_or_default();
        let lists =
            containers.into_iter().flat_map(|mut one| [one["command"].take(), one["args"].take()]);
        lists.map(|list| list.to_string()).collect::<String>()
    };
    let found = all.find(|(_, spec)| words(spec).contains(OVERRIDES));
    Ok(found.map(|(title, _)| {
        format!(
            "{title} has {OVERRIDES}, and only one etcd is counted here: ask `sidekey census \
             --may-drop` of each, then let it go with `sidekey publish --force-drop`"
        )
    }))
}

/// The vendors whose heads a pod mounts.
fn mounted(spec: &Value) -> impl Iterator<Item = &str> {
    secrets(spec).filter_map(|name| name.strip_prefix(HEAD))
}

/// The Secrets that a pod mounts.
fn secrets(spec: &Value) -> impl Iterator<Item = &str> {
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["secret"]["secretName"].as_str())
}

async fn go(
    ctx: &Context,
    encryption: &SecretEncryption,
    goal: &Goal,
) -> Result<Vec<String>, Error> {
    let injection = encryption.spec.control_plane.injection;
    if injection == Injection::Webhook {
        let on = matches!(goal, Goal::Sidecars(_));
        if let Some(done) = label(ctx, namespace(encryption)?, on).await? {
            return Ok(vec![done]);
        }
    }
    let plane = Plane::read(&ctx.client, encryption).await?;
    if injection != Injection::None && plane.workloads.is_empty() {
        return Err(nobody(encryption));
    }
    let Outlook { step, mut waits } = match injection {
        Injection::Template => step::by_template(&plane, goal),
        Injection::Webhook => step::by_eviction(&plane, goal),
        Injection::None => step::by_others(&plane, goal),
    };
    match step {
        Some(Step::Write(index)) => {
            waits.extend(write(ctx, encryption, &plane.workloads[index], goal).await?);
        }
        Some(Step::Evict(index)) => {
            waits.push(evict(ctx, encryption, &plane.pods[index]).await?);
        }
        None => {}
    }
    Ok(waits)
}

fn nobody(encryption: &SecretEncryption) -> Error {
    let plane = &encryption.spec.control_plane;
    let labels: Vec<String> = plane.selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
    Error::failed(format!(
        "no Deployment or StatefulSet of {} makes pods with the labels {} and a container {}",
        encryption.namespace.as_deref().unwrap_or_default(),
        labels.join(","),
        plane.container,
    ))
    .hint(
        "see selector and container under spec.controlPlane; for pods that nothing of this \
         cluster makes, such as static pods, set its injection to None and use `sidekey inject`",
    )
}

/// Says on the namespace whether its pods get sidecars; gives what was changed.
async fn label(ctx: &Context, name: &str, on: bool) -> Result<Option<String>, Error> {
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    let found = api.get_metadata(name).await;
    let found = found.map_err(|error| refused(format!("cannot read namespace {name}"), error))?;
    let labels = found.metadata.labels.unwrap_or_default();
    let value = labels.get(LABEL_INJECT).map(String::as_str);
    let (right, wanted) =
        if on { (value == Some(ENABLED), json!(ENABLED)) } else { (value.is_none(), Value::Null) };
    if right {
        return Ok(None);
    }
    let patch = json!({"metadata": {"labels": {LABEL_INJECT: wanted}}});
    let parameters = PatchParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patched = api.patch(name, &parameters, &Patch::Merge(&patch)).await;
    patched.map_err(|error| refused(format!("cannot label namespace {name}"), error))?;
    let what = if on { "now get sidecars" } else { "get no more sidecars" };
    Ok(Some(format!("new pods of kube-apiserver in namespace {name} {what}")))
}

/// Changes the template of just the version that was read; gives what came of it, and what
/// somebody should know.
async fn write(
    ctx: &Context,
    encryption: &SecretEncryption,
    workload: &Workload,
    goal: &Goal,
) -> Result<Vec<String>, Error> {
    let (name, title) = (workload.name(), workload.title());
    let what = || format!("cannot change {title} of {}", namespace(encryption).unwrap_or_default());
    let mut document = workload.document.clone();
    if let Some(fields) = document.as_object_mut() {
        // Its controller's; whoever writes it here writes nothing.
        fields.remove("status");
    }
    let text = document.to_string();
    let Injected { text, mut warnings, .. } = match goal {
        Goal::Sidecars(wish) => inject(&text, &wish.wanted),
        Goal::Bare => uninject(&text),
    }
    .map_err(|error| Error::failed(what()).because(error))?;
    let object: DynamicObject =
        serde_json::from_str(&text).map_err(|error| Error::failed(what()).because(error))?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(ctx.client.clone(), namespace(encryption)?, &workload.resource);
    let parameters =
        PostParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PostParams::default() };
    match api.replace(name, &parameters, &object).await {
        Ok(_) => {
            warnings.insert(0, format!("{title} has just been changed"));
            Ok(warnings)
        }
        Err(kube::Error::Api(status)) if status.code == 409 => {
            Ok(vec![format!("{title} was changed by somebody else meanwhile: it is tried again")])
        }
        Err(error) => Err(refused(what(), error)),
    }
}

/// Evicts just the pod that was looked at; gives what came of it.
async fn evict(
    ctx: &Context,
    encryption: &SecretEncryption,
    pod: &Member,
) -> Result<String, Error> {
    let (name, title) = (pod.name(), pod.title());
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace(encryption)?);
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": encryption.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid()}},
    });
    let parameters = PostParams::default();
    let evicted: Result<Value, _> =
        api.create_subresource("eviction", name, &parameters, &eviction).await;
    match evicted {
        Ok(_) => Ok(format!("{title} has been evicted, and is made anew")),
        Err(kube::Error::Api(status)) if status.code == 429 => {
            Ok(format!("{title} may not be evicted now: {}", status.message))
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            Ok(format!("{title} is another one, or gone: it is looked at again"))
        }
        Err(error) => Err(refused(format!("cannot evict {title}"), error)),
    }
}
