use std::collections::BTreeMap;

use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::*;

mod limits;
mod manifests;
mod native;
mod review;
mod secret;

fn encryption(change: impl FnOnce(&mut Value)) -> Value {
    let mut document = json!({
        "apiVersion": "sidekey.dev/v1alpha1",
        "kind": "SecretEncryption",
        "metadata": {"name": "a", "namespace": "clusters-a", "uid": "1", "generation": 3},
        "spec": {
            "controlPlane": {"injection": "Webhook"},
            "images": {"aws": "mirror/aws:7"},
            "keys": [{"id": 1, "type": "aws", "role": "write", "kek": {"key": "arn:aws:kms:x"}}],
        },
        "status": {
            "observedGeneration": 3,
            "revision": 4,
            "isolatedSockets": true,
            "keys": [{"id": 1, "type": "aws", "role": "write", "fingerprint": "abcd"}],
        },
    });
    change(&mut document);
    document
}

/// As HyperShift's Deployment makes it, by way of the API server's defaults.
fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "kube-apiserver-7d9c-",
            "labels": {"app": "kube-apiserver", "pod-template-hash": "7d9c"},
            "annotations": {"hash": "x", "quote": "\"<&>\\u0000\n'"},
        },
        "spec": {
            "securityContext": {"runAsUser": 1001, "fsGroup": 1001},
            "containers": [
                {
                    "name": "kube-apiserver", "image": "kas:1",
                    "args": ["--secure-port=6443", "--encryption-provider-config-automatic-reload=false"],
                    "volumeMounts": [{"name": "certs", "mountPath": "/certs"}],
                    "terminationMessagePath": "/dev/termination-log",
                },
                {"name": "konnectivity", "image": "k:1"},
            ],
            "volumes": [{"name": "certs", "secret": {"secretName": "certs", "defaultMode": 420}}],
            "serviceAccountName": "default",
        },
    })
}

fn options() -> Options {
    let images = BTreeMap::from([("shim".to_owned(), "mirror/shim:7".to_owned())]);
    Options { images, ..Options::default() }
}

fn about(pod: &Value, encryptions: &[Value]) -> Decision {
    let objects: Vec<Arc<DynamicObject>> = encryptions
        .iter()
        .map(|document| Arc::new(serde_json::from_value(document.clone()).unwrap()))
        .collect();
    decide("clusters-a", pod, &objects, &options())
}

/// The pod as the API server makes it of the patch.
fn patched(pod: &Value, decision: Decision) -> Value {
    let Decision::Changed { patch, .. } = decision else { panic!("{decision:?}") };
    let mut pod = pod.clone();
    for step in patch.as_array().unwrap() {
        match step["path"].as_str().unwrap() {
            "/spec" => pod["spec"] = step["value"].clone(),
            "/metadata/annotations" => pod["metadata"]["annotations"] = step["value"].clone(),
            path => panic!("{path}"),
        }
    }
    pod
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|item| item["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

fn refusal(decision: Decision) -> String {
    match decision {
        Decision::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_gets_native_sidecars_that_mount_secrets_and_keeps_all_that_it_had() {
    let (before, decision) = (pod(), about(&pod(), &[encryption(|_| {})]));
    let after = patched(&before, decision);
    let _: k8s_openapi::api::core::v1::Pod = serde_json::from_value(after.clone()).unwrap();
    let spec = &after["spec"];
    let (shim, aws) = (
        named(&spec["initContainers"], "sidekey-shim"),
        named(&spec["initContainers"], "sidekey-aws"),
    );
    assert_eq!(
        (&shim["restartPolicy"], &shim["image"]),
        (&json!("Always"), &json!("mirror/shim:7"))
    );
    assert_eq!(aws["image"], "mirror/aws:7");
    assert_eq!(aws["securityContext"]["runAsUser"], 1001);
    for (volume, secret) in [
        ("kms-shim", "sidekey-shim"),
        ("kms-encryption", "sidekey-encryption-config"),
        ("kms-provider-aws", "sidekey-provider-aws"),
    ] {
        let volume = named(&spec["volumes"], volume);
        assert_eq!(volume["secret"]["secretName"], secret);
        assert!(volume["hostPath"].is_null(), "{volume}");
    }
    let main = named(&spec["containers"], "kube-apiserver");
    let args: Vec<&str> =
        main["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(args.contains(&"--encryption-provider-config-automatic-reload=true"), "{args:?}");
    assert!(!args.contains(&"--encryption-provider-config-automatic-reload=false"), "{args:?}");
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    let quote = "quote";
    assert_eq!(after["metadata"]["annotations"][quote], before["metadata"]["annotations"][quote]);
    assert_eq!(
        named(&spec["containers"], "konnectivity"),
        &json!({"name": "konnectivity", "image": "k:1"})
    );
    assert_eq!(spec["serviceAccountName"], "default");
}

#[test]
fn a_pod_has_sockets_as_heads_know_them() {
    let shares = |told: bool| {
        let encryption = encryption(|document| document["status"]["isolatedSockets"] = told.into());
        let after = patched(&pod(), about(&pod(), std::slice::from_ref(&encryption)));
        assert_eq!(about(&after, &[encryption]), Decision::Untouched);
        crate::inject::shares_sockets(&after["spec"], &["aws".to_owned()].into())
    };
    assert!(shares(false), "nothing was published since the operator is of this version");
    assert!(!shares(true));
}

#[test]
fn a_pod_gets_a_minter_unless_hypershifts_own_is_in_it() {
    let minting = [encryption(|document| document["spec"]["tokens"] = json!([{"type": "aws"}]))];
    let after = patched(&pod(), about(&pod(), &minting));
    let minter = named(&after["spec"]["initContainers"], "sidekey-token-aws");
    assert_eq!(minter["securityContext"]["runAsUser"], 1001, "the provider's user");
    assert_eq!(about(&after, &minting), Decision::Untouched);
    let mut native = pod();
    let path = "/var/run/secrets/openshift/serviceaccount";
    let own = json!({
        "name": "aws-kms-token-minter", "image": "cpo:1",
        "volumeMounts": [{"name": "aws-kms-token", "mountPath": path}],
    });
    native["spec"]["containers"].as_array_mut().unwrap().push(own);
    let volume = json!({"name": "aws-kms-token", "emptyDir": {"medium": "Memory"}});
    native["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    let after = patched(&native, about(&native, &minting));
    assert!(!after["spec"].to_string().contains("sidekey-token-aws"));
    let aws = named(&after["spec"]["initContainers"], "sidekey-aws");
    assert_eq!(named(&aws["volumeMounts"], "aws-kms-token")["mountPath"], path);
    assert_eq!(about(&after, &minting), Decision::Untouched);
}

#[test]
fn a_pod_without_annotations_gets_them() {
    for none in [Value::Null, json!({})] {
        let mut before = pod();
        before["metadata"]["annotations"] = none;
        let after = patched(&before, about(&before, &[encryption(|_| {})]));
        assert!(after["metadata"]["annotations"]["sidekey.dev/injected"].is_string());
    }
}

#[test]
fn a_pod_of_the_wanted_form_is_left_as_it_is_whatever_defaults_it_has_got() {
    let objects = [encryption(|_| {})];
    let mut done = patched(&pod(), about(&pod(), &objects));
    assert_eq!(about(&done, &objects), Decision::Untouched);
    for container in done["spec"]["initContainers"].as_array_mut().unwrap() {
        container["terminationMessagePath"] = "/dev/termination-log".into();
        container["startupProbe"]["successThreshold"] = 1.into();
    }
    let others = done["spec"]["initContainers"].as_array_mut().unwrap();
    others.push(json!({"name": "mesh", "image": "m:1", "restartPolicy": "Always"}));
    assert_eq!(about(&done, &objects), Decision::Untouched);
}

#[test]
fn an_annotation_alone_is_not_believed() {
    let objects = [encryption(|_| {})];
    let done = patched(&pod(), about(&pod(), &objects));
    let cuts: [fn(&mut Value); 4] = [
        |spec| drop(spec["initContainers"].as_array_mut().unwrap().pop()),
        |spec| spec["initContainers"][0]["image"] = "somebody/else:1".into(),
        |spec| spec["containers"][0]["args"] = json!(["--secure-port=6443"]),
        |spec| drop(spec["volumes"].as_array_mut().unwrap().pop()),
    ];
    for (index, cut) in cuts.into_iter().enumerate() {
        let mut forged = done.clone();
        cut(&mut forged["spec"]);
        let mended = patched(&forged, about(&forged, &objects));
        let names = |pod: &Value| {
            let list = pod["spec"]["initContainers"].as_array().unwrap().clone();
            list.iter().map(|item| item["image"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&mended), names(&done), "cut {index}");
        assert_eq!(about(&mended, &objects), Decision::Untouched, "cut {index}");
    }
    let mut damaged = pod();
    damaged["metadata"]["annotations"]["sidekey.dev/injected"] = "{".into();
    let why = refusal(about(&damaged, &objects));
    assert!(why.contains("sidekey.dev/injected"), "{why}");
}

#[test]
fn another_image_or_vendor_changes_a_pod_that_was_made_for_the_one_before() {
    let done = patched(&pod(), about(&pod(), &[encryption(|_| {})]));
    let newer = encryption(|e| e["spec"]["images"]["aws"] = "mirror/aws:8".into());
    let after = patched(&done, about(&done, &[newer]));
    assert_eq!(named(&after["spec"]["initContainers"], "sidekey-aws")["image"], "mirror/aws:8");
    assert_eq!(after["spec"]["initContainers"].as_array().unwrap().len(), 2);
}

#[test]
fn without_knowing_what_is_published_no_pod_is_let_through() {
    for status in [Value::Null, json!({"observedGeneration": 1})] {
        let lost = encryption(|e| e["status"] = status);
        let why = refusal(about(&pod(), &[lost]));
        assert!(why.contains("its status does not say what is published"), "{why}");
    }
    let why = refusal(about(&pod(), &[]));
    assert!(why.contains("sidekey.dev/inject") && why.contains("bring the Secret"), "{why}");
}

#[test]
fn providers_are_those_of_the_keys_that_are_loaded() {
    // AWS has left the spec and is still needed; Vault has just come and is not published yet.
    let moving = encryption(|e| {
        e["spec"]["keys"] =
            json!([{"id": 2, "type": "vault", "role": "write", "kek": {"key": "k"}}]);
        e["spec"]["images"] = json!({});
    });
    let names = |decision| {
        let after = patched(&pod(), decision);
        let list = after["spec"]["initContainers"].as_array().unwrap().clone();
        list.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(about(&pod(), std::slice::from_ref(&moving))),
        ["sidekey-aws", "sidekey-shim"]
    );
    let mut both = moving;
    both["status"]["keys"] = json!([
        {"id": 2, "type": "vault", "role": "read", "fingerprint": "1"},
        {"id": 1, "type": "aws", "role": "write", "fingerprint": "2", "retained": true},
        {"id": 3, "type": "external", "role": "read", "fingerprint": "3"},
    ]);
    let all = ["sidekey-aws", "sidekey-vault", "sidekey-shim"];
    assert_eq!(names(about(&pod(), std::slice::from_ref(&both))), all);
    both["spec"]["placement"] = "Proxy".into();
    assert_eq!(names(about(&pod(), &[both])), ["sidekey-shim"]);
}

#[test]
fn without_a_key_there_is_nothing_to_put_in() {
    let none = encryption(|e| {
        e["spec"]["keys"] = json!([]);
        e["spec"]["images"] = json!({});
        e["status"]["keys"] = json!([]);
    });
    assert_eq!(about(&pod(), &[none]), Decision::Untouched);
}

#[test]
fn only_pods_that_are_asked_for_are_changed() {
    for injection in [json!("Template"), json!("None"), Value::Null] {
        let other = encryption(|e| e["spec"]["controlPlane"]["injection"] = injection);
        assert_eq!(about(&pod(), &[other]), Decision::Untouched);
    }
    let mut other = pod();
    other["metadata"]["labels"]["app"] = "etcd".into();
    assert_eq!(about(&other, &[encryption(|_| {})]), Decision::Untouched);
    let tier = encryption(|e| e["spec"]["controlPlane"]["selector"] = json!({"tier": "kas"}));
    assert_eq!(about(&pod(), std::slice::from_ref(&tier)), Decision::Untouched);
    let mut tiered = pod();
    tiered["metadata"]["labels"] = json!({"tier": "kas"});
    assert!(matches!(about(&tiered, &[tier]), Decision::Changed { .. }));
    let mut mirrored = pod();
    mirrored["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x".into();
    assert_eq!(about(&mirrored, &[encryption(|_| {})]), Decision::Untouched);
}

#[test]
fn what_cannot_be_done_is_refused_and_says_what_to_do() {
    let wrong = encryption(|e| e["spec"]["keys"][0]["role"] = "owner".into());
    let why = refusal(about(&pod(), &[wrong]));
    assert!(
        why.contains("clusters-a/a") && why.contains("spec.keys") && why.contains("mend"),
        "{why}"
    );
    let strange = encryption(|e| e["spec"]["controlPlane"]["selector"] = json!(7));
    assert!(refusal(about(&pod(), &[strange])).contains("selector"));
    let missing = encryption(|e| e["spec"]["controlPlane"]["container"] = "apiserver".into());
    assert!(refusal(about(&pod(), &[missing])).contains("no container has the name apiserver"));
    let mut taken = pod();
    taken["spec"]["volumes"][0]["name"] = "kms-shim".into();
    assert!(refusal(about(&taken, &[encryption(|_| {})])).contains("kms-shim"));
    let mut scripted = pod();
    scripted["spec"]["containers"][0]["args"] = json!(["--openshift-config=/config.json"]);
    let why = refusal(about(&scripted, &[encryption(|_| {})]));
    assert!(why.contains("--encryption-provider-config=/etc/kubernetes"), "{why}");
    let two = [encryption(|_| {}), encryption(|e| e["metadata"]["name"] = "b".into())];
    assert!(refusal(about(&pod(), &two)).contains("both ask"));
}

#[test]
fn flags_that_are_in_a_script_already_are_enough() {
    let mut scripted = pod();
    let script = "exec kube-apiserver \\\n --encryption-provider-config=/etc/kubernetes/encryption/encryption.yaml";
    scripted["spec"]["containers"][0]["args"] = Value::Null;
    scripted["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", script]);
    let decision = about(&scripted, &[encryption(|_| {})]);
    let Decision::Changed { warnings, .. } = &decision else { panic!("{decision:?}") };
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].chars().count() <= 256 && !warnings[0].contains('\n'));
}

#[test]
fn hostile_pods_are_answered_and_never_changed_by_half() {
    let objects = [encryption(|_| {})];
    let hostile: [fn(&mut Value); 10] = [
        |pod| pod["spec"] = Value::Null,
        |pod| pod["spec"] = json!([]),
        |pod| pod["spec"]["containers"] = json!({"name": "kube-apiserver"}),
        |pod| pod["spec"]["containers"][0]["args"] = json!("--x"),
        |pod| pod["spec"]["initContainers"] = json!("x"),
        |pod| pod["spec"]["volumes"] = json!({"a": 1}),
        |pod| pod["metadata"]["annotations"] = json!("x"),
        |pod| pod["metadata"]["annotations"] = json!({"sidekey.dev/injected": 7}),
        |pod| pod["metadata"]["generateName"] = json!("*&anchor: {}]\n---\nkind: Pod"),
        |pod| pod["spec"]["containers"][0]["name"] = json!({"kube-apiserver": null}),
    ];
    for (index, spoil) in hostile.into_iter().enumerate() {
        let mut pod = pod();
        spoil(&mut pod);
        if let Decision::Changed { patch, .. } = about(&pod, &objects) {
            let spec = &patch[0]["value"];
            named(&spec["initContainers"], "sidekey-shim");
            assert_eq!(
                named(&spec["volumes"], "kms-shim")["secret"]["secretName"],
                "sidekey-shim",
                "{index}"
            );
        }
    }
    assert_eq!(about(&Value::Null, &objects), Decision::Untouched);
}
