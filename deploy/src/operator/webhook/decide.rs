//! What becomes of a pod: pure, so that every case can be tried.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::Error;
use crate::inject::{self, Profile, Sidecars, SocketLayout, Wanted};
use crate::model::{EXTERNAL, Injection, Placement, SecretEncryption, kept_tokens};
use crate::operator::api::LABEL_INJECT;
use crate::operator::context::Options;
use crate::operator::status::Status;

/// The annotation of what kubelet runs by itself: the API server shows it, and nobody can change
/// it there.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
/// The label of kube-apiserver's pods where nothing is said.
const SELECTOR: (&str, &str) = ("app", "kube-apiserver");
/// Without it a kube-apiserver encrypts nothing.
const FLAG: &str = "--encryption-provider-config";
/// The API server cuts longer ones.
const MAX_WARNING: usize = 256;

/// What becomes of a pod.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// It is made as it is.
    Untouched,
    /// It is made with these changes.
    Changed {
        /// RFC 6902.
        patch: Value,
        /// What whoever makes it should know.
        warnings: Vec<String>,
    },
    /// It is not made, and this is why.
    Refused(String),
}

/// Decides about a pod that is to be made in a namespace with these SecretEncryptions.
pub(super) fn decide(
    namespace: &str,
    pod: &Value,
    encryptions: &[Arc<DynamicObject>],
    options: &Options,
) -> Decision {
    if !pod["metadata"]["annotations"][MIRROR].is_null() {
        return Decision::Untouched;
    }
    if encryptions.is_empty() {
        return Decision::Refused(format!(
            "namespace {namespace} has the label {LABEL_INJECT}, which it gets when encryption is \
             published, and there is no SecretEncryption: without sidecars this pod could not read \
             what is encrypted (bring the SecretEncryption back; if nothing is encrypted, remove \
             the label)"
        ));
    }
    let mut ours = encryptions.iter().filter(|object| concerns(object, pod));
    let Some(object) = ours.next() else { return Decision::Untouched };
    let name = object.name_any();
    if let Some(other) = ours.next() {
        let other = other.name_any();
        return Decision::Refused(format!(
            "SecretEncryptions {name} and {other} in {namespace} both ask for this pod: \
             change the controlPlane.selector of one, or delete it"
        ));
    }
    match change(object, pod, options) {
        Ok(decision) => decision,
        Err(error) => {
            let hint = error.advice().map(|hint| format!(" ({hint})")).unwrap_or_default();
            Decision::Refused(format!(
                "SecretEncryption {namespace}/{name} gives this pod no sidecars, and without them \
                 it could not read what is encrypted: {}{hint}",
                error.report()
            ))
        }
    }
}

/// Whether a SecretEncryption asks for sidecars in this pod, as it is written: one that cannot be
/// read in full must not let a pod pass.
fn concerns(object: &DynamicObject, pod: &Value) -> bool {
    let plane = &object.data["spec"]["controlPlane"];
    if plane["injection"] != json!(Injection::Webhook) {
        return false;
    }
    let labels = &pod["metadata"]["labels"];
    match &plane["selector"] {
        Value::Null => labels[SELECTOR.0] == SELECTOR.1,
        Value::Object(selector) => selector.iter().all(|(name, value)| labels[name] == *value),
        _ => true,
    }
}

fn change(object: &DynamicObject, pod: &Value, options: &Options) -> Result<Decision, Error> {
    // The sidecars mount what is published, and the namespace has its label because something is:
    // a status that does not say so yet was lost, or has not been heard of here.
    let status = Status::of(object);
    if status.revision.is_none() {
        let text = "its status does not say what is published";
        return Err(Error::refused(text).hint("the operator writes it in a moment"));
    }
    let Some(wanted) = wanted(object, &status, options)? else { return Ok(Decision::Untouched) };
    let injected = inject::inject(&template(pod).to_string(), &wanted)?;
    let broken = |error| Error::failed("the pod with sidecars is no JSON").because(error);
    let mut after: Value = serde_json::from_str(&injected.text).map_err(broken)?;
    let mut after = after["spec"]["template"].take();
    require_flag(&after["spec"], &wanted.container)?;
    let form = inject::form_of(&annotations(pod));
    if form == Some(inject::form(&wanted)) && holds(&pod["spec"], &after["spec"]) {
        return Ok(Decision::Untouched);
    }
    let patch = json!([
        {"op": "replace", "path": "/spec", "value": after["spec"].take()},
        {"op": "add", "path": "/metadata/annotations", "value": after["metadata"]["annotations"].take()},
    ]);
    let warnings = injected.warnings.iter().map(|text| shortened(text)).collect();
    Ok(Decision::Changed { patch, warnings })
}

/// The sidecars of what is published. Providers are those of the keys that are loaded: a key that
/// has left the spec is needed until nothing is stored under it, and one that has just come has no
/// Secret to mount yet.
fn wanted(
    object: &DynamicObject,
    status: &Status,
    options: &Options,
) -> Result<Option<Wanted>, Error> {
    let unreadable = || {
        Error::usage("it cannot be read")
            .hint("mend it; `kubectl describe secretencryption` says what is wrong")
    };
    let document = serde_json::to_value(object).map_err(|error| unreadable().because(error))?;
    let mut encryption = SecretEncryption::from_document(&document)
        .map_err(|problems| unreadable().because(problems))?;
    options.complete(&mut encryption);
    if encryption.spec.keys.is_empty() && status.keys.is_empty() {
        return Ok(None);
    }
    let loaded = status.keys.iter().map(|key| (key.id, key.vendor.as_str()));
    let kept = kept_tokens(&encryption, loaded, &status.tokens);
    encryption.spec.tokens.extend(kept.map_err(Error::refused)?);
    let mut sidecars = inject::sidecars(&encryption, Profile::Sidekey)
        .map_err(|problems| unreadable().because(problems))?;
    if let Sidecars::Sidekey { layout, .. } = &mut sidecars
        && !status.isolated_sockets
    {
        // Heads of before know no other, and the operator has not published since.
        *layout = SocketLayout::Shared;
    }
    if let Sidecars::Sidekey { vendors, .. } = &mut sidecars
        && encryption.spec.placement == Placement::Sidecar
        && !status.keys.is_empty()
    {
        let loaded = status.keys.iter().map(|key| &key.vendor).filter(|name| *name != EXTERNAL);
        *vendors = loaded.cloned().collect();
        vendors.sort_unstable();
        vendors.dedup();
    }
    Ok(Some(Wanted {
        container: encryption.spec.control_plane.container,
        sidecars,
        images: encryption.spec.images,
        static_pod: false,
        flags: true,
    }))
}

/// The pod as the template of something: a Pod that somebody writes is one that a node runs by
/// itself, with files of the node; this one mounts Secrets.
fn template(pod: &Value) -> Value {
    let mut metadata = json!({});
    if pod["metadata"]["annotations"].is_object() {
        metadata["annotations"] = pod["metadata"]["annotations"].clone();
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": super::title(pod)},
        "spec": {"template": {"metadata": metadata, "spec": pod["spec"]}},
    })
}

fn annotations(pod: &Value) -> BTreeMap<String, String> {
    let all = pod["metadata"]["annotations"].as_object().into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Flags in a file or in a script are left alone; then they must be there already.
fn require_flag(spec: &Value, container: &str) -> Result<(), Error> {
    let mut containers = spec["containers"].as_array().into_iter().flatten();
    let container = containers.find(|item| item["name"] == container);
    let words = ["command", "args"].into_iter().filter_map(|field| container?[field].as_array());
    if words.flatten().filter_map(Value::as_str).any(|word| word.contains(FLAG)) {
        return Ok(());
    }
    let flags = "--encryption-provider-config=/etc/kubernetes/encryption/encryption.yaml \
                 --encryption-provider-config-automatic-reload=true";
    Err(Error::refused("its flags are in a script or in a file, where they cannot be set")
        .hint(format!("give kube-apiserver {flags}")))
}

/// Whether a value says all that another says; it may say more, as the API server's defaults do.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|own| holds(own, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|value| whole.iter().any(|own| holds(own, value)))
        }
        _ => whole == part,
    }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_WARNING).collect()
}
