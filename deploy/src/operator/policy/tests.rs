#![allow(clippy::unwrap_used, clippy::expect_used)]

use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::*;
use crate::operator::reconcile::reconcile;
use crate::operator::roll::fake::Fake;
use crate::render::{Created, Phase, ResolvedFiles, render};

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/clusters-a/networkpolicies";
const OURS: &str = "/apis/networking.k8s.io/v1/namespaces/clusters-a/networkpolicies/sidekey-shims";
const POD: &str = "/api/v1/namespaces/clusters-a/pods/kas-0";

fn object(keys: Value) -> Value {
    json!({
        "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
        "metadata": {
            "name": "a", "namespace": "clusters-a", "uid": "u", "generation": 1,
            "resourceVersion": "0",
        },
        "spec": {"keys": keys, "write": "keys", "controlPlane": {"injection": "None"}},
    })
}

fn encryption() -> SecretEncryption {
    let key = json!({"id": 1, "type": "vault", "role": "write", "kek": {"key": "k"}});
    SecretEncryption::from_document(&object(json!([key]))).unwrap()
}

fn put(fake: &Fake, name: &str, spec: Value) {
    let metadata = json!({"name": name, "namespace": "clusters-a", "uid": format!("of-{name}")});
    fake.put(&format!("{POLICIES}/{name}"), json!({"metadata": metadata, "spec": spec}));
}

fn add_pod(fake: &Fake) {
    let labels = json!({"app": "kube-apiserver", "pod-template-hash": "5df7"});
    let spec = json!({"containers": [{"name": "kube-apiserver"}]});
    fake.put(POD, json!({"metadata": {"name": "kas-0", "labels": labels}, "spec": spec}));
}

/// The namespace of a control plane with one pod and with these policies.
fn plane(policies: &[(&str, Value)]) -> Fake {
    let fake = Fake::default();
    add_pod(&fake);
    for (name, spec) in policies {
        put(&fake, name, spec.clone());
    }
    fake
}

fn same_namespace() -> Value {
    json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]})
}

/// As HyperShift has every control plane.
fn hosted() -> Fake {
    let api = json!({
        "podSelector": {"matchLabels": {"app": "kube-apiserver"}}, "policyTypes": ["Ingress"],
        "ingress": [{"from": [], "ports": [{"port": 6443, "protocol": "TCP"}]}],
    });
    plane(&[("same-namespace", same_namespace()), ("kas", api)])
}

/// What was written; the cheap look is to follow policies while ours stands, and only then.
async fn ensured(fake: &Fake) -> Vec<String> {
    let ctx = fake.context();
    ensure(&ctx, &encryption()).await.unwrap();
    assert_eq!(ctx.quiet.has_policy("clusters-a"), !fake.at(OURS).is_null());
    fake.written()
}

#[tokio::test]
async fn where_others_shut_the_pods_the_operator_and_nobody_else_comes_to_the_shims_port() {
    let fake = hosted();
    assert_eq!(ensured(&fake).await, [format!("PATCH {OURS}")]);
    let made: NetworkPolicy = serde_json::from_value(fake.at(OURS)).unwrap();
    let spec = serde_json::to_value(made.spec.as_ref().unwrap()).unwrap();
    let operator = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "sidekey-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "sidekey-operator"}},
    });
    let port = json!({"port": 8094, "protocol": "TCP"});
    let expected = json!({
        "podSelector": {"matchLabels": {"app": "kube-apiserver"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [operator], "ports": [port]}],
    });
    assert_eq!(spec, expected);
    assert_eq!(made.labels()["sidekey.dev/encryption"], "a");
    assert_eq!(made.labels()["app.kubernetes.io/managed-by"], "sidekey");
    assert_eq!(ensured(&fake).await, [""; 0], "once");
}

#[tokio::test]
async fn pods_that_nobody_shuts_stay_open() {
    let of = |spec: Value| plane(&[("theirs", spec)]);
    let etcd = json!({"matchLabels": {"app": "etcd"}});
    let but = |key: &str, operator: &str| {
        let one = json!({"key": key, "operator": operator, "values": ["kube-apiserver"]});
        json!({"matchExpressions": [one]})
    };
    for (what, fake) in [
        ("no policy", plane(&[])),
        ("one of other pods", of(json!({"podSelector": etcd, "policyTypes": ["Ingress"]}))),
        ("all but these", of(json!({"podSelector": but("app", "NotIn")}))),
        ("those without it", of(json!({"podSelector": but("app", "DoesNotExist")}))),
        ("those with another", of(json!({"podSelector": but("role", "Exists")}))),
        ("an operator of a later version", of(json!({"podSelector": but("app", "Like")}))),
        ("what goes out", of(json!({"podSelector": {}, "policyTypes": ["Egress"]}))),
    ] {
        assert_eq!(ensured(&fake).await, [""; 0], "{what}");
    }
    for (what, spec) in [
        ("one that does not say what for", json!({"podSelector": {}})),
        ("by an expression", json!({"podSelector": but("app", "In")})),
        ("both ways", json!({"podSelector": {}, "policyTypes": ["Egress", "Ingress"]})),
    ] {
        assert_eq!(ensured(&of(spec)).await.len(), 1, "{what}");
    }
}

#[tokio::test]
async fn it_goes_with_the_last_policy_that_shuts_the_pods() {
    let fake = hosted();
    ensured(&fake).await;
    // The garbage collector does so at once.
    let owners = fake.at(OURS)["metadata"]["ownerReferences"].clone();
    let owners: Vec<&str> =
        owners.as_array().unwrap().iter().map(|owner| owner["uid"].as_str().unwrap()).collect();
    assert_eq!(owners, ["of-kas", "of-same-namespace"]);
    fake.lock().objects.remove(&format!("{POLICIES}/kas"));
    assert_eq!(ensured(&fake).await, [format!("PATCH {OURS}")]);
    // And where it does not, because it was only edited, the next whole look does.
    put(&fake, "same-namespace", json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    assert_eq!(ensured(&fake).await, [format!("DELETE {OURS}")]);
    assert_eq!(ensured(&fake).await, [""; 0]);
}

#[tokio::test]
async fn while_there_are_no_pods_it_stays_as_it_is() {
    let fake = hosted();
    fake.lock().objects.remove(POD);
    assert_eq!(ensured(&fake).await, [""; 0]);
    add_pod(&fake);
    ensured(&fake).await;
    fake.lock().objects.remove(POD);
    fake.lock().objects.remove(&format!("{POLICIES}/kas"));
    assert_eq!(ensured(&fake).await, [""; 0]);
}

#[tokio::test]
async fn what_another_hand_changes_in_it_is_put_right() {
    for (field, value) in [
        ("/spec/ingress/0/from", json!([])),
        ("/spec/podSelector", json!({"matchLabels": {"app": "etcd"}})),
        ("/metadata/ownerReferences", json!([])),
    ] {
        let fake = hosted();
        ensured(&fake).await;
        let right = fake.at(OURS);
        let mut wrong = right.clone();
        *wrong.pointer_mut(field).unwrap() = value;
        fake.put(OURS, wrong);
        assert_eq!(ensured(&fake).await, [format!("PATCH {OURS}")], "{field}");
        assert_eq!(fake.at(OURS)["spec"], right["spec"]);
    }
}

#[tokio::test]
async fn a_policy_of_another_with_its_name_is_not_touched() {
    let fake = hosted();
    put(&fake, "sidekey-shims", json!({"podSelector": {"matchLabels": {"app": "etcd"}}}));
    let error = ensure(&fake.context(), &encryption()).await.unwrap_err();
    assert!(error.report().contains("clusters-a/sidekey-shims is there already"));
    remove(&fake.context(), &encryption()).await.unwrap();
    assert_eq!(fake.written(), [""; 0]);
}

#[tokio::test]
async fn without_shims_it_is_taken_away() {
    let fake = hosted();
    ensured(&fake).await;
    remove(&fake.context(), &encryption()).await.unwrap();
    assert_eq!(fake.written(), [format!("DELETE {OURS}")]);
    remove(&fake.context(), &encryption()).await.unwrap();
    assert_eq!(fake.written(), [""; 0]);
}

#[tokio::test]
async fn it_is_there_before_the_shims_are_asked() {
    let (fake, encryption) = (hosted(), encryption());
    let rendered = render(&encryption, 1, &ResolvedFiles::default(), Phase::Settled).unwrap();
    for secret in rendered.objects(&Created::now()) {
        let name = secret["metadata"]["name"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/clusters-a/secrets/{name}");
        fake.put(&path, secret.clone());
    }
    let mut object: DynamicObject = serde_json::from_value(encryption.document()).unwrap();
    object.metadata.resource_version = Some("1".into());
    reconcile(&object, &fake.context()).await.unwrap();
    let written = fake.written();
    assert!(written.contains(&format!("PATCH {OURS}")), "{written:?}");
}

fn base(file: &str) -> Vec<Value> {
    let path = format!("{}/kustomize/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn it_speaks_of_the_operator_as_it_is_installed() {
    let (name, value) = OPERATOR_LABEL;
    let deployment = base("deployment.yaml").remove(0);
    assert_eq!(deployment["spec"]["template"]["metadata"]["labels"][name], value);
    assert_eq!(deployment["metadata"]["namespace"], "sidekey-system");
    let own = base("networkpolicy.yaml").remove(0);
    let out = own["spec"]["egress"].to_string();
    assert!(out.contains(&format!("\"port\":{}", names::SHIM_ADMIN_TLS_PORT)), "{out}");
}

#[test]
fn the_operator_may_do_what_it_takes_and_no_more() {
    let roles = base("rbac.yaml");
    let rules = roles.iter().flat_map(|role| role["rules"].as_array().into_iter().flatten());
    let of: Vec<&Value> =
        rules.filter(|rule| rule["resources"] == json!(["networkpolicies"])).collect();
    assert_eq!(of.len(), 1);
    assert_eq!(of[0]["verbs"], json!(["get", "list", "create", "patch", "delete"]));
}
