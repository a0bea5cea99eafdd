//! What is installed and what is served must agree.

use std::net::SocketAddr;

use super::*;
use crate::operator::api::LABEL_INJECT;

fn base(file: &str) -> Vec<Value> {
    let path = format!("{}/kustomize/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn of_kind(file: &str, kind: &str) -> Value {
    base(file).into_iter().find(|document| document["kind"] == kind).unwrap()
}

#[test]
fn the_api_server_asks_where_the_webhook_answers() {
    let configuration = base("webhook.yaml").remove(0);
    let service = of_kind("deployment.yaml", "Service");
    let webhook = &configuration["webhooks"][0];
    let asked = &webhook["clientConfig"]["service"];
    assert_eq!(asked["path"], PATH);
    assert_eq!(asked["name"], service["metadata"]["name"]);
    assert_eq!(asked["namespace"], service["metadata"]["namespace"]);
    let ports = service["spec"]["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["port"] == asked["port"]).unwrap();
    assert_eq!(port["targetPort"], "webhook");
    assert_eq!(webhook["namespaceSelector"]["matchLabels"][LABEL_INJECT], "enabled");
    assert_eq!(webhook["failurePolicy"], "Fail");
    assert_eq!(webhook["sideEffects"], "None");
    // Nothing but kube-apiserver may hang on the operator: not etcd, not the operator itself.
    assert_eq!(webhook["objectSelector"]["matchLabels"], json!({"app": "kube-apiserver"}));
}

#[test]
fn a_pod_is_asked_about_its_images_where_its_namespace_says_so_and_never_waits_for_the_answer() {
    let configuration = base("webhook.yaml").remove(0);
    for (index, path, value) in [(1, NATIVE_PATH, "enabled"), (2, NATIVE_TEXT_PATH, "text")] {
        let webhook = &configuration["webhooks"][index];
        assert_eq!(webhook["clientConfig"]["service"]["path"], path);
        let labels = &webhook["namespaceSelector"]["matchLabels"];
        assert_eq!(labels, &json!({"sidekey.dev/native-image": value}));
        assert_eq!(webhook["failurePolicy"], "Ignore");
        assert_eq!(webhook["objectSelector"]["matchLabels"], json!({"app": "kube-apiserver"}));
    }
}

#[test]
fn the_pod_has_the_ports_that_the_process_opens_by_itself() {
    let deployment = of_kind("deployment.yaml", "Deployment");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let port = |name: &str| {
        let ports = container["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].as_u64()
    };
    for (name, address) in crate::operator::run::default_addresses() {
        let address: SocketAddr = address.parse().unwrap();
        assert_eq!(port(name), Some(address.port().into()), "{name}");
        assert!(address.ip().is_unspecified(), "{name}");
    }
}

#[test]
fn the_operator_may_keep_its_certificate_and_no_other_secret_of_its_namespace() {
    let role = of_kind("rbac.yaml", "Role");
    let rules = role["rules"].as_array().unwrap();
    let secrets: Vec<&Value> =
        rules.iter().filter(|rule| rule["resources"] == json!(["secrets"])).collect();
    assert_eq!(secrets[0]["resourceNames"], json!([certificate::SECRET]));
    assert_eq!(secrets[1]["verbs"], json!(["create"]));
    assert_eq!(secrets.len(), 2);
}
