//! The front ends: HyperShift's HostedCluster and OpenShift's APIServer, each translated into a
//! SecretEncryption.
//!
//! They act for objects that were handed over by `sidekey.dev/manage: "true"`, and leave all others
//! alone. Of the SecretEncryption they own just what the foreign object says: its keys, resources,
//! ciphers and writer. What people add to it stays. Whatever a key is needed for is the core's
//! business: a key that the foreign object names no more leaves the SecretEncryption, and the core
//! keeps it until etcd was counted. Nothing is ever deleted here.
//!
//! Numbers of keys are made here, and none is ever used twice: see [`numbers`].
//!
//! What is so is mirrored to the foreign object's status, where nobody else owns the field. A
//! mistake in it is told there too, and leaves the SecretEncryption as it is.

mod adopt;
mod apply;
mod hosted;
mod ledger;
mod mirror;
mod numbers;
mod openshift;
mod owners;
mod settings;
mod sources;
mod stood;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject};

use super::api;
use super::context::Context;
use crate::Error;
use crate::cluster::refused;
use crate::render::hosted::control_plane_namespace;
use sources::Origin;
pub use stood::Stood;

/// On a HostedCluster or APIServer: more of the SecretEncryption's spec, as YAML.
pub const ANNOTATION_SETTINGS: &str = "sidekey.dev/settings";
/// On a SecretEncryption: the object that it is translated from.
pub const ANNOTATION_SOURCE: &str = "sidekey.dev/source";
/// On a SecretEncryption: since when nobody translates it any more.
pub const ANNOTATION_HANDED_BACK: &str = "sidekey.dev/handed-back";
/// On a SecretEncryption: the highest number that a key of it ever had.
const ANNOTATION_LAST: &str = "sidekey.dev/last-key";
/// On a SecretEncryption: the hash of what was last applied.
const ANNOTATION_APPLIED: &str = "sidekey.dev/applied";

/// Where OpenShift's kube-apiserver runs.
const OPENSHIFT_PLANE: &str = "openshift-kube-apiserver";
/// What is missing may come any moment.
const SOON: Duration = Duration::from_secs(5);
/// An object that is none of ours is looked at when it changes.
const IDLE: Duration = Duration::from_secs(60 * 60);

/// What keeps an object from being translated.
#[derive(Debug)]
enum Failure {
    /// People must do something: it becomes a condition.
    Fault(Fault),
    /// The API did not answer as it should: it is tried again.
    Api(Error),
}

/// What people must do something about.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    reason: &'static str,
    message: String,
}

/// One foreign object, and where what is made of it goes.
struct Front<'a> {
    ctx: &'a Context,
    object: &'a DynamicObject,
    resource: ApiResource,
    /// Who owns what is written.
    manager: &'static str,
    /// The namespace that the object's references are in.
    sources: String,
    /// The namespace of the control plane.
    namespace: String,
    /// Name of the SecretEncryption.
    name: String,
    /// What was read of what it refers to, with its version.
    read: Mutex<BTreeMap<Origin, Option<String>>>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Api(error)
    }
}

impl Failure {
    fn fault(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Fault(Fault { reason, message: message.into() })
    }
}

impl Fault {
    /// The foreign object is wrong.
    const INVALID: &'static str = "InvalidSpec";
    /// What it refers to is not there.
    const MISSING: &'static str = "ReferenceNotFound";
    /// The control plane has no namespace yet.
    const NO_PLANE: &'static str = "ControlPlaneNotFound";
    /// There is something of that name which is not ours.
    const NOT_OURS: &'static str = "NotOurs";
    /// Stored data carries names that no key is known for.
    const UNKNOWN_NAME: &'static str = "UnknownProviderName";

    /// Whether it may go away without an edit of the object.
    fn may_pass(&self) -> bool {
        [Self::MISSING, Self::NO_PLANE].contains(&self.reason)
    }
}

/// One pass over a HostedCluster; gives when to look again.
pub async fn hosted_cluster(object: &DynamicObject, ctx: &Context) -> Result<Duration, Error> {
    let name = object.name_any();
    let Some(sources) = object.namespace() else {
        return Err(Error::failed(format!("HostedCluster {name} has no namespace")));
    };
    let namespace = control_plane_namespace(&sources, &name);
    let (manager, resource) = ("sidekey-hostedcluster", api::hosted_cluster());
    let read = Mutex::default();
    let front = Front { ctx, object, resource, manager, sources, namespace, name, read };
    if let Some(next) = front.look().await {
        return Ok(next);
    }
    let Some(existing) = front.begin().await? else { return Ok(IDLE) };
    let made = match hosted::draft(&front, existing.as_ref()).await {
        Ok(draft) => front.put(draft, existing.as_ref()).await.map(Some),
        Err(failure) => Err(failure),
    };
    front.end(existing, made).await
}

/// One pass over an APIServer; gives when to look again.
pub async fn api_server(object: &DynamicObject, ctx: &Context) -> Result<Duration, Error> {
    let front = Front {
        ctx,
        object,
        resource: api::api_server(),
        manager: "sidekey-apiserver",
        sources: openshift::SOURCES.to_owned(),
        namespace: OPENSHIFT_PLANE.to_owned(),
        name: object.name_any(),
        read: Mutex::default(),
    };
    if let Some(next) = front.look().await {
        return Ok(next);
    }
    let Some(existing) = front.begin().await? else { return Ok(IDLE) };
    let made = match openshift::draft(&front, existing.as_ref()).await {
        Ok(Some(draft)) => front.put(draft, existing.as_ref()).await.map(Some),
        Ok(None) => Ok(None),
        Err(failure) => Err(failure),
    };
    front.end(existing, made).await
}

impl Front<'_> {
    /// As people name the object.
    fn title(&self) -> String {
        let kind = &self.resource.kind;
        match self.object.namespace() {
            Some(namespace) => format!("{kind} {namespace}/{}", self.name),
            None => format!("{kind} {}", self.name),
        }
    }

    /// The cheap look; gives when to look again if nothing has changed.
    async fn look(&self) -> Option<Duration> {
        let (memory, title) = (&self.ctx.quiet.fronts, self.title());
        let (stood, until) = memory.begin(&title)?;
        if !stood.holds(self).await {
            return None;
        }
        memory.keep(&title, stood, Some(until));
        Some(self.ctx.options.poll)
    }

    /// Every critical section leaves the value whole.
    fn sources_read(&self) -> MutexGuard<'_, BTreeMap<Origin, Option<String>>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The SecretEncryption, if there is one; nothing where the object is none of ours.
    async fn begin(&self) -> Result<Option<Option<DynamicObject>>, Error> {
        if self.object.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let managed = self.object.annotations().get(api::ANNOTATION_MANAGE);
        let existing = self.encryption().await?;
        if managed.is_some_and(|value| value == "true") {
            return Ok(Some(existing));
        }
        if let Some(existing) = existing {
            self.hand_back(&existing).await?;
        }
        Ok(None)
    }

    async fn encryption(&self) -> Result<Option<DynamicObject>, Error> {
        let api = api::encryptions(&self.ctx.client, &self.namespace);
        let found = api.get_opt(&self.name).await;
        let what = || format!("cannot read SecretEncryption {}/{}", self.namespace, self.name);
        found.map_err(|error| refused(what(), error))
    }

    /// Says on the foreign object how it went.
    async fn end(
        &self,
        existing: Option<DynamicObject>,
        made: Result<Option<DynamicObject>, Failure>,
    ) -> Result<Duration, Error> {
        let (encryption, fault) = match made {
            Ok(encryption) => (encryption, None),
            Err(Failure::Fault(fault)) => (existing, Some(fault)),
            Err(Failure::Api(error)) => return Err(error),
        };
        self.log(fault.as_ref());
        // Another one's SecretEncryption says nothing of this object.
        let encryption = encryption.filter(|encryption| self.is_ours(encryption));
        mirror::mirror(self, encryption.as_ref(), fault.as_ref()).await?;
        if fault.is_none() {
            self.ctx.quiet.fronts.keep(&self.title(), Stood::of(self), None);
        }
        let poll = self.ctx.options.poll;
        Ok(if fault.is_some_and(|fault| fault.may_pass()) { poll.min(SOON) } else { poll })
    }

    /// Says what is wrong, and that it is not any more: once, not with every pass.
    fn log(&self, fault: Option<&Fault>) {
        let (told, object) = (&self.ctx.quiet.told, self.title());
        match fault {
            Some(Fault { reason, message }) => {
                if told.is_news(&object, &format!("{reason}: {message}")) {
                    tracing::warn!(object, reason, detail = message, "cannot be translated");
                }
            }
            None => told.forget(&object),
        }
    }

    /// Whether the SecretEncryption is a translation of this object.
    fn is_ours(&self, encryption: &DynamicObject) -> bool {
        encryption.annotations().get(ANNOTATION_SOURCE) == Some(&self.title())
    }

    /// A write that the API refused: some refusals are for people.
    fn write_failed(&self, what: String, error: kube::Error) -> Failure {
        match &error {
            kube::Error::Api(status) if status.code == 404 => {
                let text = format!("{what}: is namespace {} there yet?", self.namespace);
                Failure::fault(Fault::NO_PLANE, text)
            }
            kube::Error::Api(status) if status.code == 422 => {
                Failure::fault(Fault::INVALID, format!("{what}: {}", status.message))
            }
            _ => Failure::Api(refused(what, error)),
        }
    }
}
