//! The NetworkPolicy that lets the operator ask shims.
//!
//! HyperShift lets nobody into the namespace of a control plane but to the API itself, and the
//! operator, in a namespace of its own, asks every shim: it needs a policy for that.
//!
//! **Whoever lets one in shuts all others out.** Pods that no policy selects take whatever comes;
//! from the first policy on they take what policies name, and nothing else. A policy of ours alone
//! would cut kube-apiserver off. So there is one only where other policies shut its pods already,
//! and these are its owners: with the last of them the garbage collector takes ours away. One that is
//! only narrowed is noticed by the cheap look ([`reconcile`](super::reconcile)), and a policy whose
//! SecretEncryption is gone is swept away ([`orphans`]).

pub(super) mod orphans;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, OwnerReference,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};

use super::context::Context;
use super::roll::plane::namespace;
use crate::Error;
use crate::cluster::refused;
use crate::model::{SecretEncryption, names};

/// The label of every namespace with its own name.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";
/// The label of the operator's pods, as in `kustomize/deployment.yaml`.
const OPERATOR_LABEL: (&str, &str) = ("app.kubernetes.io/name", "sidekey-operator");
const INGRESS: &str = "Ingress";

/// Lets the operator through to the shims where others shut it out, and only there. Nothing is
/// written where all is as it should be.
pub(super) async fn ensure(ctx: &Context, encryption: &SecretEncryption) -> Result<(), Error> {
    let stands = keep(ctx, encryption).await?;
    ctx.quiet.set_policy(namespace(encryption)?, stands);
    Ok(())
}

/// Gives whether it stands.
async fn keep(ctx: &Context, encryption: &SecretEncryption) -> Result<bool, Error> {
    let namespace = namespace(encryption)?;
    let api: Api<NetworkPolicy> = Api::namespaced(ctx.client.clone(), namespace);
    let what = || format!("cannot list the NetworkPolicies of {namespace}");
    let all = api.list(&ListParams::default()).await.map_err(|error| refused(what(), error))?;
    let (mut ours, others): (Vec<_>, Vec<_>) =
        all.items.into_iter().partition(|policy| is_ours(policy, encryption));
    let ours = ours.pop();
    if ours.is_none() && !others.iter().any(shuts) {
        return Ok(false);
    }
    let pods = labels_of_pods(ctx, encryption).await?;
    if pods.is_empty() {
        // Whether they are shut will be seen when there are any.
        return Ok(ours.is_some());
    }
    let selects_all = |policy: &&NetworkPolicy| {
        let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref());
        pods.iter().all(|labels| selector.is_none_or(|selector| selects(selector, labels)))
    };
    let shut: Vec<&NetworkPolicy> =
        others.iter().filter(|policy| shuts(policy)).filter(selects_all).collect();
    if shut.is_empty() {
        if ours.is_some() {
            delete(&api, namespace).await?;
        }
        return Ok(false);
    }
    let wanted = policy(ctx, encryption, &shut);
    if ours.is_some_and(|ours| says(&ours, &wanted)) {
        return Ok(true);
    }
    if others.iter().any(|policy| policy.name_any() == names::SHIM_POLICY) {
        return Err(taken(encryption, namespace));
    }
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    let applied = api.patch(names::SHIM_POLICY, &parameters, &Patch::Apply(&wanted)).await;
    let what = || format!("cannot apply NetworkPolicy {namespace}/{}", names::SHIM_POLICY);
    applied.map(|_| true).map_err(|error| refused(what(), error))
}

/// Takes it away, where there are no shims to ask any more. Costs one call where it is not there.
pub(super) async fn remove(ctx: &Context, encryption: &SecretEncryption) -> Result<(), Error> {
    let namespace = namespace(encryption)?;
    let api: Api<NetworkPolicy> = Api::namespaced(ctx.client.clone(), namespace);
    let what = || format!("cannot read NetworkPolicy {namespace}/{}", names::SHIM_POLICY);
    let found = api.get_opt(names::SHIM_POLICY).await.map_err(|error| refused(what(), error))?;
    match found {
        Some(policy) if is_ours(&policy, encryption) => delete(&api, namespace).await?,
        _ => {}
    }
    ctx.quiet.set_policy(namespace, false);
    Ok(())
}

async fn delete(api: &Api<NetworkPolicy>, namespace: &str) -> Result<(), Error> {
    delete_with(api, namespace, &DeleteParams::default()).await
}

async fn delete_with(
    api: &Api<NetworkPolicy>,
    namespace: &str,
    parameters: &DeleteParams,
) -> Result<(), Error> {
    match api.delete(names::SHIM_POLICY, parameters).await {
        Ok(_) => Ok(()),
        // With conditions: it is another one by now.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => {
            let name = names::SHIM_POLICY;
            Err(refused(format!("cannot delete NetworkPolicy {namespace}/{name}"), error))
        }
    }
}

/// The labels of every pod of kube-apiserver.
async fn labels_of_pods(
    ctx: &Context,
    encryption: &SecretEncryption,
) -> Result<Vec<BTreeMap<String, String>>, Error> {
    let namespace = namespace(encryption)?;
    let selector = &encryption.spec.control_plane.selector;
    let selector: Vec<String> = selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    let which = ListParams::default().labels(&selector.join(","));
    let what = || format!("cannot list the pods {} of {namespace}", selector.join(","));
    let pods = api.list_metadata(&which).await.map_err(|error| refused(what(), error))?;
    Ok(pods.items.into_iter().map(|pod| pod.metadata.labels.unwrap_or_default()).collect())
}

/// The operator's pods, and nobody else, may come to the port of the shims' `adminTls`.
fn policy(ctx: &Context, encryption: &SecretEncryption, shut: &[&NetworkPolicy]) -> NetworkPolicy {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let selector = |labels| LabelSelector { match_labels: Some(labels), match_expressions: None };
    let operator = NetworkPolicyPeer {
        namespace_selector: Some(selector(labels(&[(NAMESPACE_LABEL, &ctx.options.namespace)]))),
        pod_selector: Some(selector(labels(&[OPERATOR_LABEL]))),
        ip_block: None,
    };
    let port = NetworkPolicyPort {
        port: Some(IntOrString::Int(names::SHIM_ADMIN_TLS_PORT.into())),
        protocol: Some("TCP".to_owned()),
        end_port: None,
    };
    let of = (names::LABEL_ENCRYPTION, encryption.name.as_str());
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(names::SHIM_POLICY.to_owned()),
            namespace: encryption.namespace.clone(),
            labels: Some(labels(&[names::MANAGED_BY, of])),
            owner_references: Some(shut.iter().filter_map(|policy| owner(policy)).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector(encryption.spec.control_plane.selector.clone())),
            policy_types: Some(vec![INGRESS.to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![operator]),
                ports: Some(vec![port]),
            }]),
            egress: None,
        }),
    }
}

fn owner(policy: &NetworkPolicy) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: "networking.k8s.io/v1".to_owned(),
        kind: "NetworkPolicy".to_owned(),
        name: policy.metadata.name.clone()?,
        uid: policy.metadata.uid.clone()?,
        ..OwnerReference::default()
    })
}

fn is_ours(policy: &NetworkPolicy, encryption: &SecretEncryption) -> bool {
    policy.name_any() == names::SHIM_POLICY
        && policy.labels().get(names::LABEL_ENCRYPTION) == Some(&encryption.name)
}

fn taken(encryption: &SecretEncryption, namespace: &str) -> Error {
    let (name, of) = (names::SHIM_POLICY, &encryption.name);
    let text = format!(
        "NetworkPolicy {namespace}/{name} is there already, and not of SecretEncryption {of}"
    );
    Error::refused(text).hint("rename or delete it: the operator needs its name to reach the shims")
}

/// Whether the policy of now says just what it should.
fn says(live: &NetworkPolicy, wanted: &NetworkPolicy) -> bool {
    let owners = |policy: &NetworkPolicy| {
        let mut uids: Vec<String> =
            policy.owner_references().iter().map(|owner| owner.uid.clone()).collect();
        uids.sort_unstable();
        uids
    };
    let labelled =
        wanted.labels().iter().all(|(name, value)| live.labels().get(name) == Some(value));
    live.spec == wanted.spec && labelled && owners(live) == owners(wanted)
}

/// Whether a policy shuts the pods that it selects to whoever it does not name. One that does not
/// say what it is for is for what comes in.
fn shuts(policy: &NetworkPolicy) -> bool {
    let types = policy.spec.as_ref().and_then(|spec| spec.policy_types.as_ref());
    types.is_none_or(|types| types.is_empty() || types.iter().any(|kind| kind == INGRESS))
}

/// Whether a selector has a pod with these labels.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut pairs = selector.match_labels.iter().flatten();
    let meets = |one: &LabelSelectorRequirement| {
        let value = labels.get(&one.key);
        let named = value.is_some_and(|value| one.values.iter().flatten().any(|v| v == value));
        match one.operator.as_str() {
            "In" => named,
            "NotIn" => !named,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            // Better shut out than to shut others out.
            _ => false,
        }
    };
    pairs.all(|(name, value)| labels.get(name) == Some(value))
        && selector.match_expressions.iter().flatten().all(meets)
}

#[cfg(test)]
mod tests;
