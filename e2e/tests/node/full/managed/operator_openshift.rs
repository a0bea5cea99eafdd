//! Promise: editing OpenShift's APIServer is all it takes: from clear to a cipher, to a KMS, and back
//! to clear, with no failed request.

use serde_json::json;
use sidekey_e2e::operator::{BETWEEN_STEPS, run};

use crate::managed::operator_openshift::Scene;

#[test]
fn an_api_server_goes_through_every_kind_of_encryption() {
    run(scene()).unwrap();
}

async fn scene() {
    let scene = Scene::start().await.unwrap();
    let load = scene.managed.load_on_service().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    scene.everything_is("").await.unwrap();
    scene.becomes(&json!({"type": "aescbc"}), "aescbc", "k8s:enc:aescbc:v1:", &load).await.unwrap();
    scene.a_missing_reference_is_named_on_the_api_server(&load).await.unwrap();
    scene.becomes_vault(&load).await.unwrap();
    scene.becomes(&json!({"type": "identity"}), "identity", "", &load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout three changes, through the balancer: {report}");
}
