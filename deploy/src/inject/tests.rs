//! Whole manifests: in, out, and back again.

mod compat;
mod hypershift;
mod mistakes;
mod random;
mod sockets;
mod tokens;

use serde_json::{Value, json};
use sidekey_core::config::document;

use super::*;

const KUBEADM: &str = include_str!("tests/kubeadm.yaml");
const HOSTED: &str = include_str!("tests/hosted.yaml");
const OPENSHIFT: &str = include_str!("tests/openshift.yaml");

fn sidekey(vendors: &[&str]) -> Wanted {
    let vendors = vendors.iter().map(|vendor| (*vendor).to_owned()).collect();
    Wanted {
        container: "kube-apiserver".to_owned(),
        sidecars: Sidecars::Sidekey { vendors, minters: Vec::new(), layout: SocketLayout::Own },
        images: BTreeMap::new(),
        static_pod: false,
        flags: true,
    }
}

/// Injects, and proves that it is the same when done twice and nothing when undone.
fn injected(text: &str, wanted: &Wanted) -> Injected {
    let once = inject(text, wanted).unwrap_or_else(|error| panic!("{}", error.report()));
    let twice = inject(&once.text, wanted).unwrap();
    assert_eq!(once.text, twice.text, "a second time");
    assert_eq!(uninject(&once.text).unwrap().text, text, "and back");
    once
}

/// The document of this number among those of a text.
fn nth(text: &str, number: usize) -> Value {
    let separator = if text.contains("\r\n") { "\r\n---\r\n" } else { "\n---\n" };
    document(text.split(separator).nth(number).unwrap()).unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

#[test]
fn a_static_pod_gets_sidecars_with_files_of_the_node() {
    let injected = injected(KUBEADM, &sidekey(&["vault"]));
    assert!(injected.warnings.is_empty(), "{:?}", injected.warnings);
    let pod = nth(&injected.text, 0);
    let spec = &pod["spec"];
    assert_eq!(names(&spec["initContainers"]), ["sidekey-vault", "sidekey-shim"]);
    assert_eq!(
        spec["initContainers"][0],
        json!({
            "name": "sidekey-vault",
            "restartPolicy": "Always",
            "image": format!("localhost/sidekey-vault:{VERSION}"),
            "imagePullPolicy": "IfNotPresent",
            "args": [
                "--config=/etc/sidekey/config.yaml",
                "--admin-socket=/var/run/sidekey/vault/admin.sock",
            ],
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "startupProbe": {
                "exec": {"command": [
                    "/sidekey-vault", "probe",
                    "--socket=unix:///var/run/sidekey/vault/admin.sock",
                ]},
                "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 60,
            },
            "livenessProbe": {
                "exec": {"command": [
                    "/sidekey-vault", "probe",
                    "--socket=unix:///var/run/sidekey/vault/admin.sock",
                ]},
                "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6,
            },
            "resources": {
                "requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "128Mi"},
            },
            "volumeMounts": [
                {"name": "kms-sockets-vault", "mountPath": "/var/run/sidekey/vault"},
                {"name": "kms-sockets-vault", "mountPath": "/var/run/kmsplugin"},
                {"name": "kms-provider-vault", "mountPath": "/etc/sidekey", "readOnly": true},
            ],
        })
    );
    let path = |name: &str| json!({"path": format!("/etc/sidekey/{name}"), "type": "Directory"});
    assert_eq!(
        spec["volumes"].as_array().unwrap()[1..],
        [
            json!({"name": "kms-sockets", "emptyDir": {"medium": "Memory"}}),
            json!({"name": "kms-encryption", "hostPath": path("kube-apiserver")}),
            json!({"name": "kms-shim", "hostPath": path("shim")}),
            json!({"name": "kms-sockets-vault", "emptyDir": {"medium": "Memory"}}),
            json!({"name": "kms-provider-vault", "hostPath": path("vault")}),
        ]
    );
    assert_eq!(
        spec["containers"][0]["command"],
        json!([
            "kube-apiserver",
            "--advertise-address=10.0.0.1",
            "--encryption-provider-config=/etc/kubernetes/encryption/encryption.yaml",
            "--secure-port=6443",
            "--encryption-provider-config-automatic-reload=true",
        ])
    );
}

#[test]
fn everything_else_stays_as_it_is_written() {
    let text = injected(KUBEADM, &sidekey(&["vault"])).text;
    let mut lines = text.lines();
    for line in KUBEADM.lines() {
        // The one line that has another value now, and its comment still.
        let line = line.replace(
            "'--encryption-provider-config=/etc/kubernetes/old.yaml'",
            "--encryption-provider-config=/etc/kubernetes/encryption/encryption.yaml",
        );
        assert!(lines.any(|other| other == line), "{line:?} is gone or has moved");
    }
}

#[test]
fn a_deployment_among_others_gets_sidecars_with_secrets_and_its_own_user() {
    let text = injected(HOSTED, &sidekey(&["aws", "vault"])).text;
    assert_eq!(nth(&text, 0), nth(HOSTED, 0));
    assert_eq!(nth(&text, 2), nth(HOSTED, 2));
    let deployment = nth(&text, 1);
    let template = &deployment["spec"]["template"];
    let spec = &template["spec"];
    assert_eq!(names(&spec["initContainers"]), ["sidekey-aws", "sidekey-vault", "sidekey-shim"]);
    let security = &spec["initContainers"][2]["securityContext"];
    assert_eq!(security["runAsUser"], 1_000_650_000);
    assert_eq!(security["runAsGroup"], Value::Null);
    assert_eq!(
        spec["volumes"],
        json!([
            {"name": "kms-sockets", "emptyDir": {"medium": "Memory"}},
            {"name": "kms-encryption", "secret": {"secretName": "sidekey-encryption-config"}},
            {"name": "kms-shim", "secret": {"secretName": "sidekey-shim"}},
            {"name": "kms-sockets-aws", "emptyDir": {"medium": "Memory"}},
            {"name": "kms-provider-aws", "secret": {"secretName": "sidekey-provider-aws"}},
            {"name": "kms-sockets-vault", "emptyDir": {"medium": "Memory"}},
            {"name": "kms-provider-vault", "secret": {"secretName": "sidekey-provider-vault"}},
        ])
    );
    assert!(template["metadata"]["annotations"]["sidekey.dev/injected"].is_string());
    assert_eq!(deployment["metadata"], nth(HOSTED, 1)["metadata"]);
    assert_eq!(deployment["status"], nth(HOSTED, 1)["status"]);
}

#[test]
fn another_list_of_vendors_leaves_nothing_of_the_first() {
    for text in [KUBEADM, HOSTED] {
        let first = inject(text, &sidekey(&["aws", "vault"])).unwrap();
        let second = inject(&first.text, &sidekey(&["local"])).unwrap();
        assert_eq!(second.text, inject(text, &sidekey(&["local"])).unwrap().text);
        assert!(!second.text.contains("sidekey-aws"));
    }
}

#[test]
fn what_went_through_a_cluster_can_still_be_taken_out() {
    // As the API server gives it: JSON, in another order, with defaults.
    let text = injected(KUBEADM, &sidekey(&["vault"])).text;
    let mut live = nth(&text, 0);
    live["spec"]["initContainers"][0]["terminationMessagePath"] = "/dev/termination-log".into();
    live["spec"]["volumes"][2]["hostPath"]["type"] = "Directory".into();
    live["status"] = json!({"phase": "Running"});
    let mut original = nth(KUBEADM, 0);
    original["status"] = live["status"].clone();
    let compact = live.to_string();
    let pretty = serde_json::to_string_pretty(&live).unwrap();
    let yaml = crate::report::yaml(&live).unwrap();
    for text in [compact, pretty, yaml] {
        let out = uninject(&text).unwrap().text;
        assert_eq!(document(&out).unwrap(), original, "{out}");
        injected(&out, &sidekey(&["vault"]));
    }
}

#[test]
fn json_and_lists_keep_their_form() {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        nth(HOSTED, 0), nth(HOSTED, 1), nth(KUBEADM, 0), {"kind": "DaemonSet", "spec": {}},
    ]});
    let pretty = serde_json::to_string_pretty(&list).unwrap();
    let yaml = crate::report::yaml(&list).unwrap();
    for text in [list.to_string(), pretty, yaml, format!("{list}\n{list}\n")] {
        let injected = injected(&text, &sidekey(&["aws"]));
        let first = text.starts_with('{').then_some(injected.text.as_str());
        if let Some(json) = first {
            let mut stream = serde_json::Deserializer::from_str(json).into_iter::<Value>();
            assert!(stream.all(|document| document.is_ok()));
        }
        assert!(injected.changes.len().is_multiple_of(2) && !injected.changes.is_empty());
        assert_eq!(injected.changes[0].object, "Deployment kube-apiserver");
        assert_eq!(injected.changes[1].object, "Pod kube-apiserver");
    }
}

#[test]
fn flags_in_all_their_forms_are_set_and_given_back() {
    let wanted = "--encryption-provider-config=/etc/kubernetes/encryption/encryption.yaml";
    let reload = "--encryption-provider-config-automatic-reload=true";
    let path = "/etc/kubernetes/encryption/encryption.yaml";
    for (container, expected) in [
        ("{name: kube-apiserver}", json!({"args": [wanted, reload]})),
        ("{name: kube-apiserver, args: }", json!({"args": [wanted, reload]})),
        ("{name: kube-apiserver, args: [start]}", json!({"args": ["start", wanted, reload]})),
        (
            "{name: kube-apiserver, command: [kube-apiserver], args: []}",
            json!({"command": ["kube-apiserver", wanted, reload], "args": []}),
        ),
        (
            "{name: kube-apiserver, command: [a, --encryption-provider-config, \"/x y\"], args: [b]}",
            json!({"command": ["a", "--encryption-provider-config", path], "args": ["b", reload]}),
        ),
        (
            "{name: kube-apiserver, args: [--encryption-provider-config-automatic-reload, --v=1]}",
            json!({"args": [reload, "--v=1", wanted]}),
        ),
    ] {
        let text = format!("kind: Pod\nspec:\n  containers:\n  - {container}\n");
        let pod = nth(&injected(&text, &sidekey(&["local"])).text, 0);
        for field in ["command", "args"] {
            assert_eq!(pod["spec"]["containers"][0][field], expected[field], "{container}");
        }
    }
}

#[test]
fn flags_that_are_not_in_sight_are_named_and_not_guessed() {
    let config = "{kind: Deployment, spec: {template: {spec: {containers: [{name: openshift-apiserver, \
                  args: [start, --config=/var/run/configmaps/config/config.yaml]}]}}}}";
    for (text, container) in [(OPENSHIFT, "kube-apiserver"), (config, "openshift-apiserver")] {
        let wanted = Wanted { container: container.to_owned(), ..sidekey(&["vault"]) };
        let injected = injected(text, &wanted);
        let [warning] = injected.warnings.as_slice() else { panic!("{:?}", injected.warnings) };
        assert!(warning.contains("--encryption-provider-config=/etc/kubernetes/encryption/"));
        assert!(warning.contains("--encryption-provider-config-automatic-reload=true"));
        assert!(!injected.text.contains("automatic-reload"));
    }
    let wanted = Wanted { flags: false, ..sidekey(&["vault"]) };
    let injected = injected(KUBEADM, &wanted);
    assert!(injected.text.contains("/etc/kubernetes/old.yaml"));
    assert!(injected.warnings[0].contains("its flags were left alone"));
}

#[test]
fn a_flag_that_somebody_has_changed_since_is_not_touched() {
    let text = injected(KUBEADM, &sidekey(&["vault"])).text;
    let ours = "- --encryption-provider-config=/etc/kubernetes/encryption/encryption.yaml";
    let text = text.replace(ours, &ours.replace("/encryption.yaml", "/mine.yaml"));
    let out = uninject(&text).unwrap();
    assert!(out.text.contains("/etc/kubernetes/encryption/mine.yaml"));
    assert!(out.warnings[0].contains("--encryption-provider-config was changed since"));
    assert!(!out.text.contains("sidekey-shim"));
}

#[test]
fn keys_of_kube_apiservers_own_need_its_file_and_no_sidecar() {
    let wanted = Wanted { sidecars: Sidecars::Configuration, ..sidekey(&[]) };
    let injected = injected(HOSTED, &wanted);
    let before = nth(HOSTED, 1)["spec"]["template"]["spec"].clone();
    let spec = nth(&injected.text, 1)["spec"]["template"]["spec"].clone();
    assert_eq!(spec["initContainers"], before["initContainers"]);
    let added: Vec<&str> = names(&spec["volumes"])
        .into_iter()
        .filter(|name| !names(&before["volumes"]).contains(name))
        .collect();
    assert_eq!(added, ["kms-encryption"]);
    assert!(injected.text.contains("--encryption-provider-config="), "{}", injected.text);
}
