//! Policies whose SecretEncryption is gone. Nobody asks these shims any more; and should the policies
//! that shut the pods before be narrowed, nobody would look, and ours alone would cut kube-apiserver
//! off.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::Preconditions;
use kube::core::PartialObjectMeta;
use tokio::time::sleep;

use super::*;
use crate::operator::api;
use crate::operator::run::{Name, Shelf};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(300);
/// Until the SecretEncryptions are known.
const SOON: Duration = Duration::from_secs(5);

type Found = PartialObjectMeta<NetworkPolicy>;

/// Looks for them now and then, until `stop` is over.
pub(in crate::operator) async fn sweep_until(
    stop: impl Future<Output = ()>,
    ctx: &Context,
    shelf: &Shelf,
) {
    let mut seen = BTreeSet::new();
    let sweeping = async {
        loop {
            if !shelf.is_synced() {
                sleep(SOON).await;
                continue;
            }
            if let Err(error) = sweep(ctx, shelf, &mut seen).await {
                let error = error.report();
                tracing::warn!(error, "NetworkPolicies that nobody needs cannot be looked for");
            }
            sleep(sidekey_core::jitter(PAUSE)).await;
        }
    };
    tokio::select! {
        () = stop => {}
        () = sweeping => {}
    }
}

/// Deletes them, wherever the operator may look; at least where it has `seen` SecretEncryptions.
async fn sweep(ctx: &Context, shelf: &Shelf, seen: &mut BTreeSet<String>) -> Result<(), Error> {
    seen.extend(shelf.all().iter().filter_map(|object| object.namespace()));
    for policy in everywhere(ctx, seen).await? {
        let Some(name) = whose(&policy) else { continue };
        if shelf.find(&name).is_some() {
            continue;
        }
        // One namespace that is closed to us must not keep those after it from being looked at.
        if let Err(error) = sweep_one(ctx, &name, &policy).await {
            let (namespace, error) = (&name.namespace, error.report());
            tracing::warn!(namespace, error, "a NetworkPolicy that nobody needs cannot be deleted");
        }
    }
    Ok(())
}

async fn sweep_one(ctx: &Context, name: &Name, policy: &Found) -> Result<(), Error> {
    if is_there(ctx, name).await? {
        return Ok(());
    }
    let alone = Preconditions { uid: policy.uid(), resource_version: None };
    let api = Api::namespaced(ctx.client.clone(), &name.namespace);
    delete_with(&api, &name.namespace, &DeleteParams::default().preconditions(alone)).await?;
    tracing::info!(
        namespace = name.namespace,
        encryption = name.name,
        "the NetworkPolicy of a SecretEncryption that is gone was deleted"
    );
    Ok(())
}

/// The policies for shims in all namespaces; where that may not be asked, in those.
async fn everywhere(ctx: &Context, seen: &BTreeSet<String>) -> Result<Vec<Found>, Error> {
    let (managed, by) = names::MANAGED_BY;
    let which =
        ListParams::default().labels(&format!("{managed}={by},{}", names::LABEL_ENCRYPTION));
    let what = || "cannot list NetworkPolicies".to_owned();
    match Api::<NetworkPolicy>::all(ctx.client.clone()).list_metadata(&which).await {
        Ok(found) => return Ok(found.items),
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        Err(error) => return Err(refused(what(), error)),
    }
    let mut all = Vec::new();
    for namespace in seen {
        let api: Api<NetworkPolicy> = Api::namespaced(ctx.client.clone(), namespace);
        match api.list_metadata(&which).await {
            Ok(found) => all.extend(found.items),
            // It may have been taken from us with its control plane.
            Err(kube::Error::Api(status)) if status.code == 403 => {}
            Err(error) => return Err(refused(what(), error)),
        }
    }
    Ok(all)
}

/// The SecretEncryption that a policy for shims was made for.
fn whose(policy: &Found) -> Option<Name> {
    let name = policy.labels().get(names::LABEL_ENCRYPTION)?.clone();
    let namespace = policy.namespace()?;
    (policy.name_any() == names::SHIM_POLICY).then_some(Name { namespace, name })
}

/// What is kept in memory may be older than the policy: the API server knows.
async fn is_there(ctx: &Context, name: &Name) -> Result<bool, Error> {
    let api = api::encryptions(&ctx.client, &name.namespace);
    let found = api.get_metadata_opt(&name.name).await;
    let what = || format!("cannot read SecretEncryption {name}");
    Ok(found.map_err(|error| refused(what(), error))?.is_some())
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::operator::roll::fake::Fake;

    const OURS: &str =
        "/apis/networking.k8s.io/v1/namespaces/clusters-a/networkpolicies/sidekey-shims";
    const ENCRYPTION: &str =
        "/apis/sidekey.dev/v1alpha1/namespaces/clusters-a/secretencryptions/cluster-a";

    fn encryption() -> Value {
        json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "cluster-a", "namespace": "clusters-a"}, "spec": {},
        })
    }

    /// A policy of ours, and one that somebody else has made.
    fn cluster() -> Fake {
        let fake = Fake::default();
        let (managed, by) = names::MANAGED_BY;
        let ours = json!({managed: by, names::LABEL_ENCRYPTION: "cluster-a"});
        let metadata = json!({"name": "sidekey-shims", "namespace": "clusters-a", "labels": ours});
        fake.put(OURS, json!({"metadata": metadata}));
        for (name, labels) in [("sidekey-shims", json!({})), ("sidekey-providers", ours)] {
            let metadata = json!({"name": name, "namespace": "clusters-b", "labels": labels});
            let path =
                format!("/apis/networking.k8s.io/v1/namespaces/clusters-b/networkpolicies/{name}");
            fake.put(&path, json!({"metadata": metadata}));
        }
        fake
    }

    async fn swept(fake: &Fake, shelf: &Shelf, seen: &[&str]) -> Vec<String> {
        let mut seen = seen.iter().map(|name| (*name).to_owned()).collect();
        sweep(&fake.context(), shelf, &mut seen).await.unwrap();
        fake.written()
    }

    #[tokio::test]
    async fn a_policy_goes_with_its_encryption_and_no_other_goes() {
        let (fake, shelf) = (cluster(), Shelf::whole());
        fake.put(ENCRYPTION, encryption());
        assert_eq!(swept(&fake, &shelf, &[]).await, [""; 0], "it is not in memory yet");
        fake.lock().objects.remove(ENCRYPTION);
        assert_eq!(swept(&fake, &shelf, &[]).await, [format!("DELETE {OURS}")]);
        assert_eq!(swept(&fake, &shelf, &[]).await, [""; 0]);
    }

    #[tokio::test]
    async fn what_is_known_to_be_there_costs_no_further_request() {
        let (fake, shelf) = (cluster(), Shelf::whole());
        let object: DynamicObject = serde_json::from_value(encryption()).unwrap();
        shelf.take(Event::Apply(object));
        assert_eq!(swept(&fake, &shelf, &[]).await, [""; 0]);
        assert_eq!(fake.lock().reads.len(), 1, "{:?}", fake.lock().reads);
    }

    #[tokio::test]
    async fn where_all_namespaces_may_not_be_asked_those_of_before_are() {
        let (fake, shelf) = (cluster(), Shelf::whole());
        fake.lock().forbidden = vec!["/apis/networking.k8s.io/v1/networkpolicies".to_owned()];
        assert_eq!(swept(&fake, &shelf, &["clusters-b"]).await, [""; 0]);
        assert_eq!(swept(&fake, &shelf, &["clusters-a"]).await, [format!("DELETE {OURS}")]);
    }
}
