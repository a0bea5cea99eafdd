//! Publishing to a cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret as Object;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use sidekey_core::Secret;

use super::live::Source;
use super::{Live, LivePart, Options, Outcome};
use crate::Error;
use crate::cluster::refused;
use crate::model::names;
use crate::render::{Created, PartName, Rendered};

/// The most that a Secret may hold.
const MAX_SECRET: usize = 1024 * 1024;

pub(super) async fn live(client: &Client, namespace: &str, name: &str) -> Result<Live, Error> {
    let api: Api<Object> = Api::namespaced(client.clone(), namespace);
    let (managed, by) = names::MANAGED_BY;
    let ours = ListParams::default().labels(&format!("{managed}={by}"));
    let found = api.list_metadata(&ours).await;
    let what = || format!("cannot list the Secrets of namespace {namespace}");
    let found = found.map_err(|error| refused(what(), error))?;
    let mut parts = vec![PartName::Shim, PartName::KubeApiserver];
    let mut revisions = Vec::new();
    for object in &found.items {
        let title = object.name_any();
        if let Some(vendor) = title.strip_prefix("sidekey-provider-") {
            parts.push(PartName::Provider(vendor.to_owned()));
        }
        revisions.extend(names::revision_number(&title));
    }
    revisions.sort_unstable();
    let mut live = Live { revisions, source: Source::Cluster, ..Live::default() };
    for part in parts {
        let Some(object) = read(&api, &part.secret()).await? else { continue };
        belongs(&object, namespace, name)?;
        let version = object.resource_version();
        live.parts.insert(part, LivePart { files: contents(object), version });
    }
    if let Some(newest) = live.revisions.last() {
        let object = read(&api, &names::revision_secret(*newest)).await?;
        live.newest = object.map(contents).unwrap_or_default();
    }
    Ok(live)
}

async fn read(api: &Api<Object>, name: &str) -> Result<Option<Object>, Error> {
    let found = api.get_opt(name).await;
    found.map_err(|error| refused(format!("cannot read Secret {name}"), error))
}

fn contents(object: Object) -> BTreeMap<String, Secret> {
    let data = object.data.unwrap_or_default();
    data.into_iter().map(|(name, bytes)| (name, Secret::new(bytes.0))).collect()
}

/// A namespace is one control plane's.
fn belongs(object: &Object, namespace: &str, name: &str) -> Result<(), Error> {
    match object.labels().get(names::LABEL_ENCRYPTION) {
        Some(other) if other != name => Err(Error::refused(format!(
            "Secret {namespace}/{} belongs to the SecretEncryption {other}, not to {name}",
            object.name_any()
        ))
        .hint("each control plane has a namespace of its own: is this the right one?")),
        _ => Ok(()),
    }
}

pub(super) async fn write(
    client: &Client,
    namespace: &str,
    live: &Live,
    rendered: &Rendered,
    created: &Created,
    options: &Options,
) -> Result<Outcome, Error> {
    let api: Api<Object> = Api::namespaced(client.clone(), namespace);
    let mut written = Vec::new();
    let number = rendered.revision;
    if !live.revisions.contains(&number) {
        create_revision(&api, namespace, rendered, created).await?;
        written.push(names::revision_secret(number));
    }
    for part in &rendered.parts {
        let mut head = rendered.head(part);
        head["metadata"]["namespace"] = namespace.into();
        // Of two who publish at the same time one is told so.
        if let Some(version) = live.parts.get(&part.name).and_then(|part| part.version.as_ref()) {
            head["metadata"]["resourceVersion"] = version.as_str().into();
        }
        let mut params = PatchParams::apply(names::FIELD_MANAGER);
        params.force = options.force_conflicts;
        let title = part.name.secret();
        let applied = api.patch(&title, &params, &Patch::Apply(&head)).await;
        applied.map_err(|error| {
            changed_meanwhile(&format!("{namespace}/{title}"), error, number, &written)
        })?;
        written.push(title);
    }
    let pruned = prune(&api, live, number, options.keep).await?;
    Ok(Outcome { revision: number, changed: true, written, pruned, notes: Vec::new() })
}

async fn create_revision(
    api: &Api<Object>,
    namespace: &str,
    rendered: &Rendered,
    created: &Created,
) -> Result<(), Error> {
    let size: usize = rendered.history(created).values().map(|c| c.expose().len()).sum();
    let title = names::revision_secret(rendered.revision);
    if size > MAX_SECRET {
        return Err(Error::usage(format!(
            "the revision has {size} bytes: a Secret holds at most {MAX_SECRET}"
        ))
        .hint("are large CA bundles among the files? give the providers only the CAs they need"));
    }
    let mut object = rendered.revision_object(created);
    object["metadata"]["namespace"] = namespace.into();
    let object: Object = serde_json::from_value(object)
        .map_err(|error| Error::failed(format!("cannot make Secret {title}")).because(error))?;
    let params =
        PostParams { field_manager: Some(names::FIELD_MANAGER.into()), ..PostParams::default() };
    match api.create(&params, &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(Error::failed(format!(
            "somebody else has just published revision {} to {namespace}",
            rendered.revision
        ))
        .hint("nothing was changed: run it again, and it is checked against what is there then")),
        Err(error) => {
            let what = format!("cannot create Secret {namespace}/{title}: nothing was changed");
            Err(refused(what, error))
        }
    }
}

fn changed_meanwhile(title: &str, error: kube::Error, number: u64, written: &[String]) -> Error {
    let written = written.join(", ");
    let what = format!("cannot apply Secret {title} of revision {number} (written: {written})");
    match &error {
        kube::Error::Api(status) if status.code == 409 => Error::failed(what).because(error).hint(
            "somebody else has changed it: look at it with `kubectl get --show-managed-fields`, \
                 then run this again, or with --force-conflicts to take it over",
        ),
        _ => refused(what, error),
    }
}

/// Old revisions go; those that a head still carries stay.
async fn prune(
    api: &Api<Object>,
    live: &Live,
    number: u64,
    keep: usize,
) -> Result<Vec<u64>, Error> {
    let mut pruned = Vec::new();
    for old in super::live::prunable(live, number, keep) {
        let title = names::revision_secret(old);
        match api.delete(&title, &DeleteParams::default()).await {
            Ok(_) => pruned.push(old),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(refused(format!("cannot delete Secret {title}"), error)),
        }
    }
    Ok(pruned)
}
