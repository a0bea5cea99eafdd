//! The cheap look at a control plane: is anything that the last whole pass stood on another one?
//!
//! Noted are the versions of every Secret of ours in the namespace (heads, revisions,
//! certificates, copies), of what keys refer to besides, and of every pod of kube-apiserver and of
//! the providers' proxies; and what every shim says, because that is where a rotation at the
//! vendor and a key that fails are seen. All but the shims' answers takes two requests, one more
//! for each object that is referred to and not ours, and one where there are proxies.
//!
//! Where a NetworkPolicy of ours stands, those of the namespace are one more: see
//! [`policy`](super::super::policy). One that is narrowed may leave ours the only one of a pod, which
//! shuts it to everybody.
//!
//! Where the webhook puts sidecars in, the labels of the namespace are one more: without its own the
//! next pod would come without them.
//!
//! Not looked at are what shows in these soon after: a pod template that somebody changes (its
//! pods are other ones then), and the state of a rotation that `sidekey rotate` begins beside the
//! operator (it publishes). The rest is time: certificates
//! and versions of keys come of age over days, and the whole pass comes within minutes.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DynamicObject, GetParams, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use sidekey_core::sha256;

use super::super::context::Context;
use super::super::status::Status;
use super::{outlook, pods, proxy, read};
use crate::Error;
use crate::cluster::refused;
use crate::fleet::{Fleet, Observation, Replica};
use crate::model::{FileSource, Injection, Placement, SecretEncryption, names};

/// What a whole pass that found nothing to do stood on.
pub struct Stood {
    /// Of the SecretEncryption, with its status.
    object: Option<String>,
    versions: Versions,
    calm: Calm,
}

/// A digest of the versions of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Versions([u8; 32]);

/// What the shims said in a pass that found nothing to do, and how to ask them again.
pub(super) struct Calm {
    answers: [u8; 32],
    replicas: Vec<Replica>,
    tls: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Stood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stood").field(&self.versions).finish()
    }
}

impl Calm {
    /// None if something is wrong with a shim: then everything is looked at each time.
    pub(super) fn new(
        seen: &Observation,
        replicas: Vec<Replica>,
        tls: Option<Arc<ClientConfig>>,
    ) -> Option<Self> {
        let well = seen.shims.iter().all(|shim| outlook::wrong(shim).is_empty());
        well.then(|| Self { answers: outlook::answers(&seen.shims), replicas, tls })
    }
}

impl Stood {
    pub(super) fn new(object: &DynamicObject, versions: Versions, calm: Calm) -> Self {
        Self { object: object.resource_version(), versions, calm }
    }

    /// Whether everything is as it was; and the versions that were found, where they were asked
    /// for. What fails is a matter for a whole pass.
    pub(super) async fn holds(
        &self,
        object: &DynamicObject,
        ctx: &Context,
    ) -> (bool, Option<Versions>) {
        if self.object.is_none() || self.object != object.resource_version() {
            return (false, note(object, ctx).await);
        }
        let found = note(object, ctx).await;
        let same = found.as_ref() == Some(&self.versions);
        (same && self.answer_as_before(object, ctx).await, found)
    }

    async fn answer_as_before(&self, object: &DynamicObject, ctx: &Context) -> bool {
        let Calm { answers, replicas, tls } = &self.calm;
        // Without keys there are no shims.
        let Some(tls) = tls else { return true };
        let Ok(wanted) = read(object) else { return false };
        let namespace = wanted.namespace.clone().unwrap_or_default();
        let pods = pods(ctx, &wanted, &namespace);
        let pods = pods.direct(tls.clone(), names::SHIM_NAME, names::SHIM_ADMIN_TLS_PORT);
        let shims = Fleet::new().pods(pods).ask(replicas).await;
        outlook::answers(&shims) == *answers
    }
}

/// The versions of what there is, before a whole pass looks at it. None where nothing is to be
/// remembered: something is under way, or it cannot be told.
pub(super) async fn note(object: &DynamicObject, ctx: &Context) -> Option<Versions> {
    let status = Status::of(object);
    if status.rotation.is_some() || status.active_key.is_none() {
        return None;
    }
    let wanted = read(object).ok()?;
    versions(&wanted, ctx).await.ok()
}

async fn versions(wanted: &SecretEncryption, ctx: &Context) -> Result<Versions, Error> {
    let namespace = wanted.namespace.as_deref().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), namespace);
    let maps: Api<ConfigMap> = Api::namespaced(ctx.client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    let (managed, by) = names::MANAGED_BY;
    let mut list = List(String::new());
    let ours = list.add(&secrets, &format!("{managed}={by}")).await?;
    let plane = &wanted.spec.control_plane;
    let selector: Vec<String> = plane.selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
    list.add(&pods, &selector.join(",")).await?;
    if wanted.spec.placement == Placement::Proxy {
        list.add(&pods, &proxy::selector()).await?;
    }
    if ctx.quiet.has_policy(namespace) {
        let policies: Api<NetworkPolicy> = Api::namespaced(ctx.client.clone(), namespace);
        list.add(&policies, "").await?;
    }
    if plane.injection == Injection::Webhook {
        // Without its label the next pod would come without sidecars.
        list.add_labels(&ctx.client, namespace).await?;
    }
    let mut others = BTreeSet::new();
    for source in wanted.sources() {
        match source {
            FileSource::Secret(object) if !ours.contains(&object.name) => {
                others.insert((true, object.name.as_str()));
            }
            FileSource::ConfigMap(object) => drop(others.insert((false, object.name.as_str()))),
            _ => {}
        }
    }
    for (secret, name) in others {
        match secret {
            true => list.add_one(&secrets, name).await?,
            false => list.add_one(&maps, name).await?,
        }
    }
    Ok(Versions(sha256(list.0.as_bytes())))
}

/// One line for each object.
struct List(String);

impl List {
    /// All objects with these labels; gives their names. An answer from the API server's cache
    /// will do: it may be a moment old, and so may be whatever is looked at between two polls.
    async fn add<K>(&mut self, api: &Api<K>, labels: &str) -> Result<Vec<String>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + fmt::Debug,
        K: DeserializeOwned,
    {
        let which = ListParams::default().labels(labels).match_any();
        let found = api.list_metadata(&which).await;
        let what = || format!("cannot list {} with {labels}", K::plural(&()));
        let mut found = found.map_err(|error| refused(what(), error))?.items;
        found.sort_by_key(ResourceExt::name_any);
        for object in &found {
            self.note::<K>(&object.name_any(), Some(object));
        }
        Ok(found.iter().map(ResourceExt::name_any).collect())
    }

    /// The labels of a namespace; the rest of it is nobody's business here.
    async fn add_labels(&mut self, client: &Client, namespace: &str) -> Result<(), Error> {
        let api: Api<Namespace> = Api::all(client.clone());
        let found = api.get_metadata_opt_with(namespace, &GetParams::any()).await;
        let what = || format!("cannot read namespace {namespace}");
        let found = found.map_err(|error| refused(what(), error))?;
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{:?}", found.as_ref().map(ResourceExt::labels));
        Ok(())
    }

    async fn add_one<K>(&mut self, api: &Api<K>, name: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + fmt::Debug,
        K: DeserializeOwned,
    {
        let found = api.get_metadata_opt_with(name, &GetParams::any()).await;
        let what = || format!("cannot read {} {name}", K::kind(&()));
        let found = found.map_err(|error| refused(what(), error))?;
        self.note::<K>(name, found.as_ref());
        Ok(())
    }

    fn note<K: Resource<DynamicType = ()>>(
        &mut self,
        name: &str,
        object: Option<&PartialObjectMeta<K>>,
    ) {
        let version = object.and_then(ResourceExt::resource_version).unwrap_or_default();
        let uid = object.and_then(ResourceExt::uid).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{} {name} {uid} {version}", K::kind(&()));
    }
}

#[cfg(test)]
mod tests;
