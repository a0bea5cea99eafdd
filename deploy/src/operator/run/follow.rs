//! Keeps a [`Shelf`] as the API server has it.

use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Config};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, Error as KubeError};
use tokio::time::sleep;

use super::shelf::Shelf;
use crate::Error;
use crate::cluster::refused;

/// Objects in one answer: a long list is not in memory as a whole.
const PAGE: u32 = 50;
/// Pause between two questions that nobody has answered.
const PAUSE: Duration = Duration::from_secs(5);

/// Whether the API server knows a kind.
pub(super) async fn is_served(client: &Client, resource: &ApiResource) -> Result<bool, Error> {
    let ApiResource { group, version, plural, .. } = resource;
    match client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => Ok(list.resources.iter().any(|served| served.name == *plural)),
        Err(KubeError::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => {
            Err(refused(format!("cannot ask whether there is {plural}.{group}/{version}"), error))
        }
    }
}

/// Waits until the API server answers, and gives whether it knows a kind.
pub(super) async fn ask_until_answered(client: &Client, resource: &ApiResource) -> bool {
    loop {
        match is_served(client, resource).await {
            Ok(served) => return served,
            Err(error) => {
                let hint = error.advice().unwrap_or_default();
                tracing::warn!(error = %error.report(), hint, "the API server gives no answer");
            }
        }
        sleep(sidekey_core::jitter(PAUSE)).await;
    }
}

/// Follows every object of a kind, in every namespace. Ends when the API server knows the kind
/// no more; what it had is forgotten then.
pub(super) async fn follow(client: Client, resource: &ApiResource, shelf: &Shelf) {
    let api: Api<DynamicObject> = Api::all_with(client, resource);
    let stream = watch(api, Config::default().page_size(PAGE)).default_backoff();
    let mut stream = std::pin::pin!(stream);
    let kind = &resource.kind;
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => shelf.take(event),
            Err(error) if is_gone(&error) => {
                tracing::warn!(kind, "the API server does not know this kind any more");
                break;
            }
            Err(error) => {
                let error = Error::failed(format!("cannot watch {kind}s")).because(error);
                tracing::warn!(error = %error.report(), "watching goes on in a moment");
            }
        }
    }
    shelf.clear();
}

fn is_gone(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    let (InitialListFailed(KubeError::Api(status)) | WatchStartFailed(KubeError::Api(status))) =
        error
    else {
        return false;
    };
    status.code == 404
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};

    use super::super::fake;
    use super::*;
    use crate::operator::api;

    fn served(names: &[&str]) -> (u16, Value) {
        let resource = |name: &&str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "X", "verbs": []});
        let resources: Vec<Value> = names.iter().map(resource).collect();
        (200, json!({"kind": "APIResourceList", "groupVersion": "x/v1", "resources": resources}))
    }

    #[tokio::test]
    async fn a_kind_is_there_if_its_version_has_it_and_nothing_else_is_a_no() {
        let resource = api::hosted_cluster();
        for (answer, expected) in [
            (served(&["hostedclusters", "nodepools"]), Some(true)),
            (served(&["nodepools", "hostedclusters/status"]), Some(false)),
            (fake::absent(), Some(false)),
            ((403, json!({"kind": "Status", "code": 403, "message": "no"})), None),
        ] {
            let client = fake::client(move |_, path, _| {
                assert_eq!(path, "/apis/hypershift.openshift.io/v1beta1");
                answer.clone()
            });
            assert_eq!(is_served(&client, &resource).await.ok(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_yet_is_asked_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let client = fake::client({
            let asked = asked.clone();
            move |_, _, _| match asked.fetch_add(1, Ordering::SeqCst) {
                0..3 => (503, json!({"kind": "Status", "code": 503, "message": "starting"})),
                _ => served(&["secretencryptions"]),
            }
        });
        assert!(ask_until_answered(&client, &api::secret_encryption()).await);
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_kind_goes_what_was_known_of_it_goes() {
        let asked = Arc::new(AtomicUsize::new(0));
        let object = json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "a", "namespace": "n", "resourceVersion": "1"},
        });
        let client = fake::client({
            let asked = asked.clone();
            move |_, _, _| match asked.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    let metadata = json!({"resourceVersion": "7"});
                    (200, json!({"kind": "List", "metadata": metadata, "items": [object]}))
                }
                _ => fake::absent(),
            }
        });
        let shelf = Shelf::whole();
        let mut changes = shelf.changes();
        follow(client, &api::secret_encryption(), &shelf).await;
        assert!(shelf.all().is_empty() && !shelf.is_synced());
        assert_eq!(changes.recv().await.unwrap().name.to_string(), "n/a");
        assert_eq!(changes.recv().await.unwrap().what, super::super::shelf::What::Gone);
    }
}
