//! Promise: `sidekey migrate` brings every stored object under the write key, and nothing else
//! about it changes; killed at any moment it goes on where it was; a busy server is respected;
//! and what cannot be rewritten is named, with the reason.

mod busy;
mod killed;
mod refused;
mod svm;
mod world;

use std::collections::BTreeMap;

use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::Kind;
use world::World;

/// What an empty patch might have trouble with.
const SPECIAL: [&str; 4] = ["immutable", "token", "finalizing", "plain"];

#[tokio::test]
async fn everything_is_migrated_whatever_is_in_the_way() {
    // One step begins a request that takes its time.
    let mut world = World::start("migrate", &["--request-timeout=10m"]).await;
    svm::a_cluster_without_a_migrator_says_so(&world).await;
    every_object_is_brought_under_the_new_key_and_nothing_else_changes(&mut world).await;
    busy::a_server_that_says_wait_is_waited_for(&mut world).await;
    refused::what_cannot_be_rewritten_is_named_with_the_reason_and_tried_again(&mut world).await;
}

/// The other plane has what the cluster's own migrator needs.
#[tokio::test]
async fn whoever_migrates_leaves_nothing_out_and_nothing_behind() {
    let mut world = World::start("migrate-svm", &svm::FLAGS).await;
    svm::the_clusters_own_migrator_is_put_to_work_and_leaves_nothing_behind(&mut world).await;
    killed::killed_again_and_again_it_leaves_nothing_out_and_load_does_not_notice(&mut world).await;
}

async fn every_object_is_brought_under_the_new_key_and_nothing_else_changes(world: &mut World) {
    create_special(world).await;
    create_widgets(world, 30).await;
    for namespace in ["a", "a-b"] {
        world.create_namespace(namespace).await;
        world.create(Kind::Secret, namespace, "s", 40).await;
    }
    world.create(Kind::ConfigMap, "default", "c", 20).await;
    let before = metadata(world).await;
    let hash = world.promote().await;

    a_key_that_kube_apiserver_does_not_have_is_waited_for_in_vain(world).await;
    let counted = world.migrate(&["--dry-run"]).await;
    assert_eq!(counted.code, Some(0), "{counted:?}");
    assert_eq!(world.keys().await, BTreeMap::from([(1, world.objects().await)]), "still all old");

    let done = world.migrate(&["--require-key-id-hash", &hash, "--wait", "3m"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(answer["complete"], true);
    let of = |name: &str| {
        let all = answer["resources"].as_array().unwrap();
        all.iter().find(|one| one["resource"] == name).unwrap().clone()
    };
    assert_eq!(of("widgets.example.com")["rewritten"], 30, "{answer}");
    assert_eq!(of("secrets")["rewritten"], 80 + SPECIAL.len(), "{answer}");
    assert_eq!(answer["skipped"][0]["resource"], "gadgets.example.com", "{answer}");
    world.all_is_new().await;
    assert_eq!(metadata(world).await, before, "but for resourceVersion nothing has changed");

    let stored = world.entries().await;
    let again = world.migrate(&[]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    let answer: Value = serde_json::from_str(&again.stdout).unwrap();
    assert!(answer["resources"].as_array().unwrap().iter().all(|one| one["rewritten"] == 0));
    assert_eq!(world.entries().await, stored, "what is under the write key is not written again");
}

async fn a_key_that_kube_apiserver_does_not_have_is_waited_for_in_vain(world: &World) {
    let unknown = format!("sha256:{}", "0".repeat(64));
    let refused = world.migrate(&["--require-key-id-hash", &unknown, "--wait", "0s"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stdout.contains("does not write under the key"), "{refused:?}");
}

async fn create_special(world: &World) {
    let secrets = "/api/v1/namespaces/default/secrets";
    let mut made = vec![
        json!({"metadata": {"name": "immutable"}, "immutable": true, "data": {"a": "YQ=="}}),
        json!({"metadata": {"name": "finalizing", "finalizers": ["example.com/x"]}}),
        json!({"metadata": {"name": "plain"}, "data": {"a": "YQ=="}}),
    ];
    let account = json!({"metadata": {"name": "robot"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    world.client.send(Method::POST, accounts, Some(&account)).await.unwrap();
    made.push(json!({
        "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "type": "kubernetes.io/service-account-token",
    }));
    for secret in &made {
        world.client.send(Method::POST, secrets, Some(secret)).await.unwrap();
    }
    let finalizing = format!("{secrets}/finalizing");
    let deleted = world.client.send(Method::DELETE, &finalizing, None).await.unwrap();
    assert!(deleted["metadata"]["deletionTimestamp"].is_string(), "{deleted}");
}

async fn create_widgets(world: &World, count: usize) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "versions": [version],
            "names": {"plural": "widgets", "kind": "Widget"},
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    world.client.send(Method::POST, definitions, Some(&definition)).await.unwrap();
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    world.wait_for(widgets).await;
    for number in 0..count {
        let widget = json!({
            "apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": format!("w-{number}")}, "spec": {"word": "x"},
        });
        world.client.send(Method::POST, widgets, Some(&widget)).await.unwrap();
    }
}

/// All but the version of everything that is encrypted.
async fn metadata(world: &World) -> Vec<Value> {
    let mut all = Vec::new();
    for path in ["/api/v1/secrets", "/api/v1/configmaps", "/apis/example.com/v1/widgets"] {
        let list = world.client.get(path).await.unwrap();
        for mut item in list["items"].as_array().unwrap().iter().cloned() {
            let metadata = item["metadata"].as_object_mut().unwrap();
            metadata.remove("resourceVersion").unwrap();
            all.push(item);
        }
    }
    all
}
