#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::{Value, json};

use crate::model::SecretEncryption;
use crate::operator::schedule::{Refusal, Version};
use crate::operator::status::{
    Condition, HealthReport, KeyState, Moved, ReplicaState, Retired, Rotation, Status,
};
use crate::rotate::{Past, Stage, Turn};

/// Every field that there is; `..Spec::default()` and the like have no place here.
const FULL: &str = r#"
apiVersion: sidekey.dev/v1alpha1
kind: SecretEncryption
metadata: {name: a, namespace: clusters-a}
spec:
  controlPlane:
    selector: {app: kube-apiserver}
    container: kube-apiserver
    injection: Webhook
    port: 6443
    kubeconfig: {name: admin-kubeconfig, key: kubeconfig}
    localKubeconfig: {name: localhost-kubeconfig, key: kubeconfig}
    etcd:
      endpoints: ["https://etcd-client:2379"]
      tls:
        ca: {configMap: {name: etcd-ca, key: ca.crt}}
        cert: {secret: {name: etcd-client-tls, key: etcd-client.crt}}
        key: {secret: {name: etcd-client-tls, key: etcd-client.key}}
  resources: [secrets]
  stanzas: [{name: maps, resources: [configmaps]}]
  timeout: 5s
  placement: Sidecar
  images: {shim: "localhost/shim:1"}
  shim: {log: {level: info}}
  shimFiles: [{name: ca.crt, configMap: {name: ca, key: ca.crt}}, {name: tls.key, secret: {name: tls, key: tls.key}}]
  legacyKey: 1
  ciphers: [{name: c, type: aescbc, secret: {name: c, key: key}}, {name: d, type: aesgcm, configMap: {name: d, key: key}}]
  write: keys
  convergence: 5m
  autoRotation: {every: 30d}
  tokens:
  - {type: aws, file: /run/t/token, audience: sts, serviceAccount: {namespace: kube-system, name: kms}, expiry: 1h}
  - {type: azure, file: /mnt/certs/kms, secretProviderClass: managed-azure-kms}
  - {type: ibmcloud, file: /run/pod/token, podToken: {audience: iam, expiry: 15m}}
  keys:
  - id: 1
    type: vault
    role: write
    kek: {mount: transit, key: kms}
    settings: {addresses: ["https://vault:8200"]}
    credentials: {appRole: {roleIdFile: /etc/sidekey/role-id, secretIdFile: /etc/sidekey/secret-id}}
    files: [{name: role-id, configMap: {name: r, key: id}}, {name: secret-id, secret: {name: r, key: id}}]
    canary: {ciphertext: "AA==", keyId: x, sha256: "0000000000000000000000000000000000000000000000000000000000000000"}
    fingerprint: abcdabcd
    listen: unix:///var/run/kmsplugin/kms-1.sock
    endpoints: ["unix:///var/run/kmsplugin/kms-1.sock"]
  - {id: 2, type: external, role: read, endpoints: ["unix:///run/foreign.sock"], serverUids: [7]}
"#;

/// What cannot go together in one document, all the same.
fn full() -> SecretEncryption {
    let stanzas = "stanzas: [{name: maps, resources: [configmaps]}]";
    let adopt = r#"adopt: [{name: old, listen: "unix:///var/run/kmsplugin/old.sock", key: 1}]"#;
    let mut full = SecretEncryption::parse(FULL).unwrap();
    full.spec.adopt = SecretEncryption::parse(&FULL.replace(stanzas, adopt)).unwrap().spec.adopt;
    full
}

fn base(file: &str) -> Vec<Value> {
    let path = format!("{}/kustomize/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

fn schema() -> Value {
    let crd = base("secretencryptions.yaml").remove(0);
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn full_status() -> Status {
    let turn = || Turn { id: 1, vendor: "aws".into(), fingerprint: "abcdabcd".into() };
    let time = || "2026-01-01T00:00:00Z".to_owned();
    Status {
        observed_generation: 1,
        revision: Some(1),
        isolated_sockets: true,
        conditions: vec![Condition {
            kind: "SecretEncryptionHealthy".into(),
            status: "True".into(),
            reason: "AsExpected".into(),
            message: "all is well".into(),
            last_transition_time: time(),
            observed_generation: 1,
        }],
        active_key: Some(turn()),
        target_key: Some(turn()),
        rotation: Some(Rotation {
            stage: Stage::Migrating,
            started_time: time(),
            progress: Some("1 of 2".into()),
            waiting_for: vec!["kas-0".into()],
        }),
        history: vec![Past {
            from: turn(),
            to: turn(),
            state: Stage::Completed,
            started_time: time(),
            completion_time: time(),
        }],
        keys: vec![KeyState {
            id: 1,
            vendor: "aws".into(),
            role: "read".into(),
            fingerprint: "abcdabcd".into(),
            retained: true,
        }],
        tokens: full().spec.tokens,
        retired: vec![Retired {
            id: "1".into(),
            vendor: "aws".into(),
            fingerprint: "abcdabcd".into(),
            retired_time: time(),
            advice: "keep it".into(),
            left: true,
        }],
        replicas: vec![ReplicaState {
            name: "kas-0".into(),
            revision: Some("1".into()),
            healthy: true,
            key_id_hash: Some("sha256:00".into()),
            reason: Some("none".into()),
        }],
        health_reports: vec![HealthReport {
            node_name: "kas-0".into(),
            key_id: "1".into(),
            status: "Healthy".into(),
            remote_key_id: Some("sha256:00".into()),
            detail: Some("none".into()),
        }],
        encrypted_under: Some("sha256:00".into()),
        encrypted_resources: vec!["secrets".into()],
        moved: Some(Moved { key_id_hash: "sha256:00".into(), since: time() }),
        auto_rotation: Some(Version {
            key_id_hash: "sha256:00".into(),
            since: time(),
            refused: Some(Refusal { time: time(), terminal: true, reason: "denied".into() }),
        }),
    }
}

/// A document as the schema sees it: metadata is the API server's own.
fn misfits_of(document: &Value) -> Vec<String> {
    let mut document = document.clone();
    document["metadata"] = json!({});
    let mut found = Vec::new();
    misfits("", &schema(), &document, &mut found);
    found
}

/// What the API server would drop of `value`, or refuse for its type.
fn misfits(path: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    let kind = schema["type"].as_str().unwrap_or_default();
    match value {
        Value::Object(map) if kind == "object" => {
            for (name, inner) in map {
                let path = format!("{path}.{name}");
                let inner_schema = match &schema["properties"][name] {
                    Value::Null => &schema["additionalProperties"],
                    known => known,
                };
                let kept = schema["x-kubernetes-preserve-unknown-fields"] == true;
                match inner_schema {
                    Value::Null if kept => {}
                    Value::Null => found.push(format!("{path} is not in the schema")),
                    known => misfits(&path, known, inner, found),
                }
            }
            for name in schema["required"].as_array().into_iter().flatten() {
                if !map.contains_key(name.as_str().unwrap()) {
                    found.push(format!("{path}.{name} is required there"));
                }
            }
        }
        Value::Array(items) if kind == "array" => {
            for item in items {
                misfits(&format!("{path}[]"), &schema["items"], item, found);
            }
        }
        Value::String(text) if kind == "string" => {
            let known = schema["enum"].as_array();
            if known.is_some_and(|known| !known.contains(&json!(text))) {
                found.push(format!("{path}: {text} is not in its enum"));
            }
        }
        Value::Number(_) if kind == "integer" => {}
        Value::Bool(_) if kind == "boolean" => {}
        other => found.push(format!("{path}: {other} is no {kind}")),
    }
}

/// Every leaf of the schema that no document of ours ever fills.
fn unused(path: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let samples: Vec<&Value> = match value {
            Value::Array(items) => items.iter().map(|item| &item[name]).collect(),
            one => vec![&one[name]],
        };
        let path = format!("{path}.{name}");
        match samples.into_iter().find(|sample| !sample.is_null()) {
            // One of the two; lists have samples of both.
            None if ["secret", "configMap"].contains(&name.as_str()) && value.is_object() => {}
            None => found.push(format!("{path} is in the schema alone")),
            Some(sample) if inner["type"] == "array" => {
                unused(&path, &inner["items"], sample, found);
            }
            Some(sample) => unused(&path, inner, sample, found),
        }
    }
}

#[test]
fn the_schema_has_every_field_of_the_model_and_no_other() {
    let mut document = full().document();
    document["status"] = serde_json::to_value(full_status()).unwrap();
    let mut found = misfits_of(&document);
    unused("", &schema(), &document, &mut found);
    assert_eq!(found, [""; 0]);
}

#[test]
fn the_full_document_leaves_nothing_of_a_spec_out() {
    let full = full();
    let default = crate::model::Spec::default();
    // Taken apart, so that a new field does not compile until it is in the document above.
    let crate::model::Spec {
        control_plane: _,
        resources,
        stanzas,
        // Never in a document.
        unread: _,
        sockets_apart: _,
        timeout: _,
        placement: _,
        images,
        shim,
        shim_files,
        legacy_key,
        adopt,
        ciphers,
        write: _,
        convergence: _,
        auto_rotation,
        tokens,
        keys,
    } = full.spec;
    assert_ne!(resources, default.resources);
    assert!(legacy_key.is_some() && auto_rotation.is_some());
    let filled = [stanzas.len(), images.len(), shim.len(), shim_files.len(), adopt.len()];
    assert!(!filled.contains(&0) && !ciphers.is_empty() && !tokens.is_empty() && !keys.is_empty());
}

#[test]
fn every_stage_and_setting_is_one_that_the_schema_takes() {
    for injection in ["Template", "Webhook", "None"] {
        let text = FULL.replace("injection: Webhook", &format!("injection: {injection}"));
        let document = SecretEncryption::parse(&text).unwrap().document();
        assert_eq!(misfits_of(&document), [""; 0]);
    }
    let proxy = FULL.replace("placement: Sidecar", "placement: Proxy");
    let document = SecretEncryption::parse(&proxy).unwrap().document();
    assert_eq!(misfits_of(&document), [""; 0]);
}

#[test]
fn the_operators_image_is_of_this_version() {
    let deployment = base("deployment.yaml").remove(0);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let expected = format!("localhost/sidekey-operator:{}", crate::VERSION);
    assert_eq!(container["image"], expected.as_str());
}

#[test]
fn the_operator_asks_for_no_wildcard_and_for_no_way_into_pods() {
    let roles = base("rbac.yaml");
    let rules = roles.iter().flat_map(|role| role["rules"].as_array().into_iter().flatten());
    let mut seen = 0;
    for rule in rules {
        seen += 1;
        let text = rule.to_string();
        for wrong in ["*", "exec", "attach", "portforward", "escalate", "bind", "impersonate"] {
            assert!(!text.contains(&format!("{wrong}\"")), "{text}");
        }
        let watches = text.contains("\"watch\"");
        assert!(!(watches && text.contains("\"secrets\"")), "{text}");
    }
    assert!(seen > 20, "only {seen} rules were found");
}
