//! Writes objects, and only those that are not as they should be.

use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use sidekey_core::{hex, sha256};

use super::manifest::FILES;
use crate::Error;
use crate::cluster::refused;
use crate::model::{SecretEncryption, names};
use crate::operator::context::Context;
use crate::operator::roll::plane::namespace;

/// Annotation with the SHA-256 of what was applied: without it nobody would see what is not
/// wanted any more.
const ANNOTATION: &str = "sidekey.dev/applied";

/// A kind of object that belongs to the providers' pods.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    name: &'static str,
}

/// The Service by which minters reach kube-apiservers.
pub(super) const SERVERS: Kind = kind("", "v1", "Service", "services", names::APISERVERS);

/// All of them; the Deployment is the last.
pub(super) const KINDS: [Kind; 6] = [
    kind("", "v1", "Service", "services", names::PROVIDERS),
    SERVERS,
    kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", names::PROVIDERS),
    kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", names::PROVIDERS),
    kind("", "v1", "Secret", "secrets", FILES),
    kind("apps", "v1", "Deployment", "deployments", names::PROVIDERS),
];

const fn kind(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    name: &'static str,
) -> Kind {
    Kind { group, version, kind, plural, name }
}

/// The namespace of a control plane.
pub(super) struct Place {
    client: Client,
    namespace: String,
    encryption: String,
}

impl Place {
    pub(super) fn new(ctx: &Context, encryption: &SecretEncryption) -> Result<Self, Error> {
        Ok(Self {
            client: ctx.client.clone(),
            namespace: namespace(encryption)?.to_owned(),
            encryption: encryption.name.clone(),
        })
    }

    /// Makes an object as it should be, if it is not; gives it as it is then.
    pub(super) async fn keep(&self, wanted: &Value) -> Result<Value, Error> {
        let name = &wanted["metadata"]["name"];
        let named = KINDS.into_iter().find(|one| wanted["kind"] == one.kind && *name == one.name);
        let Some(kind) = named else {
            return Err(Error::failed(format!("{} is no kind of these", wanted["kind"])));
        };
        let hash = hex(&sha256(wanted.to_string().as_bytes()));
        if let Some(live) = self.read(kind).await? {
            let same = live["metadata"]["annotations"][ANNOTATION] == hash.as_str();
            if same && says(&live, wanted) {
                return Ok(live);
            }
        }
        let mut object = wanted.clone();
        object["metadata"]["annotations"] = json!({ANNOTATION: hash});
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        let api = self.api(kind);
        let applied = api.patch(kind.name, &parameters, &Patch::Apply(&object)).await;
        let what = || format!("cannot apply {}", self.title(kind));
        let applied = applied.map_err(|error| refused(what(), error))?;
        serde_json::to_value(applied).map_err(|error| Error::failed(what()).because(error))
    }

    pub(super) async fn has(&self, kind: Kind) -> Result<bool, Error> {
        Ok(self.read(kind).await?.is_some())
    }

    pub(super) async fn delete(&self, kind: Kind) -> Result<(), Error> {
        match self.api(kind).delete(kind.name, &DeleteParams::background()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(refused(format!("cannot delete {}", self.title(kind)), error)),
        }
    }

    /// Deletes what is not wanted any more, if it is there and ours.
    pub(super) async fn clear(&self, kind: Kind) -> Result<(), Error> {
        match self.look(kind).await? {
            Some(object) if self.owns(&object) => self.delete(kind).await,
            _ => Ok(()),
        }
    }

    /// One of ours; another's of the same name is neither written nor deleted.
    async fn read(&self, kind: Kind) -> Result<Option<Value>, Error> {
        let Some(object) = self.look(kind).await? else { return Ok(None) };
        if self.owns(&object) {
            return Ok(Some(object));
        }
        let text = format!(
            "{} is there already, and not of SecretEncryption {}",
            self.title(kind),
            self.encryption
        );
        Err(Error::refused(text).hint("rename or delete it: providers of their own need its name"))
    }

    async fn look(&self, kind: Kind) -> Result<Option<Value>, Error> {
        let what = || format!("cannot read {}", self.title(kind));
        let found = self.api(kind).get_opt(kind.name).await;
        let found = found.map_err(|error| refused(what(), error))?.map(serde_json::to_value);
        found.transpose().map_err(|error| Error::failed(what()).because(error))
    }

    fn owns(&self, object: &Value) -> bool {
        object["metadata"]["labels"][names::LABEL_ENCRYPTION] == self.encryption.as_str()
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        let Kind { group, version, kind, plural, .. } = kind;
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    fn title(&self, kind: Kind) -> String {
        format!("{} {}/{}", kind.kind, self.namespace, kind.name)
    }
}

/// Whether all of `wanted` is said in `live`, which may say more: the API server adds defaults,
/// and others may add what is theirs. What has a name is found by it, wherever it stands.
pub(super) fn says(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| says(live.get(key).unwrap_or(&Value::Null), value))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            let named = wanted.iter().all(|item| item["name"].is_string());
            if !named {
                return live.len() == wanted.len()
                    && live.iter().zip(wanted).all(|(live, wanted)| says(live, wanted));
            }
            wanted.iter().all(|item| {
                live.iter().any(|other| other["name"] == item["name"] && says(other, item))
            })
        }
        // An empty list is not kept by the API server.
        (Value::Null, Value::Array(wanted)) => wanted.is_empty(),
        _ => live == wanted,
    }
}
