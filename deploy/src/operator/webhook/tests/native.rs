//! The image of a plugin that HyperShift runs itself.

use base64::Engine;

use super::review::{body_of, review};
use super::*;
use crate::operator::webhook::native::{Format, NativeImages};

const DIGEST: &str = "sha256:d04b98f48e8f8bcc15c6ae5ac050801cd6dcfd428fb5f9e65c4e16e7807340fa";

fn ours() -> String {
    format!("registry.example/sidekey-azure@{DIGEST}")
}

fn images(wanted: &[(&str, &str)], listed: &[(&str, &str)]) -> Result<NativeImages, crate::Error> {
    let owned = |(vendor, image): &(&str, &str)| ((*vendor).to_owned(), (*image).to_owned());
    let wanted: Vec<_> = wanted.iter().map(owned).collect();
    NativeImages::new(&wanted, &listed.iter().map(owned).collect())
}

/// As HyperShift renders it.
fn plugin(role: &str, port: u16) -> Value {
    json!({
        "name": format!("azure-kms-provider-{role}"),
        "image": "payload/azure-kms-encryption-provider:4.22",
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "--keyvault-name=v", "--key-name=k", "--key-version=1",
            format!("--listen-addr=unix:///opt/azurekms{role}.socket"),
            format!("--healthz-port={port}"), "--metrics-addr=8095", "--healthz-path=/healthz",
            "--config-file-path=/etc/kubernetes/azure.json", "-v=1",
        ],
        "env": [{"name": "AZURE_CLIENT_ID", "value": "c"}],
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": port, "scheme": "HTTP"}},
    })
}

fn native_pod() -> Value {
    let mut pod = pod();
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    containers.extend([plugin("active", 8787), plugin("backup", 8788)]);
    pod
}

#[test]
fn both_plugins_get_our_image_and_nothing_else_of_the_pod_changes() {
    let images = images(&[("azure", &ours())], &[]).unwrap();
    let before = native_pod();
    let Decision::Changed { patch, warnings } = images.decide(&before, Format::Binary) else {
        panic!()
    };
    assert_eq!(
        patch,
        json!([
            {"op": "replace", "path": "/spec/containers/2/image", "value": ours()},
            {"op": "replace", "path": "/spec/containers/3/image", "value": ours()},
        ])
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    let mut after = before;
    for index in [2, 3] {
        after["spec"]["containers"][index]["image"] = ours().into();
    }
    assert_eq!(images.decide(&after, Format::Binary), Decision::Untouched, "asked again");
}

#[test]
fn beside_a_payload_that_reads_text_alone_our_image_writes_text() {
    let images = images(&[("azure", &ours())], &[]).unwrap();
    let before = native_pod();
    let Decision::Changed { patch, warnings } = images.decide(&before, Format::Text) else {
        panic!()
    };
    let written = |index: usize| {
        let container = format!("/spec/containers/{index}");
        [
            json!({"op": "replace", "path": format!("{container}/image"), "value": ours()}),
            json!({"op": "add", "path": format!("{container}/args/-"), "value": "--format=text"}),
        ]
    };
    assert_eq!(patch, json!([written(2), written(3)].concat()));
    assert!(warnings.is_empty(), "{warnings:?}");
    let mut after = before;
    for index in [2, 3] {
        let container = &mut after["spec"]["containers"][index];
        container["image"] = ours().into();
        container["args"].as_array_mut().unwrap().push("--format=text".into());
    }
    assert_eq!(images.decide(&after, Format::Text), Decision::Untouched, "asked again");
}

#[test]
fn no_image_is_exchanged_unless_the_command_line_names_one() {
    assert_eq!(options().native_images.decide(&native_pod(), Format::Binary), Decision::Untouched);
    assert_eq!(images(&[], &[]).unwrap(), NativeImages::default());
}

#[test]
fn what_is_not_hypershifts_plugin_stays_as_it_is() {
    let images = images(&[("azure", &ours())], &[]).unwrap();
    assert_eq!(images.decide(&pod(), Format::Binary), Decision::Untouched);
    for change in [
        |pod: &mut Value| pod["metadata"]["annotations"][decide::MIRROR] = "x".into(),
        |pod: &mut Value| pod["spec"]["containers"] = Value::Null,
        |pod: &mut Value| {
            for index in [2, 3] {
                pod["spec"]["containers"][index]["args"] = json!(["serve"]);
            }
        },
        |pod: &mut Value| {
            for index in [2, 3] {
                pod["spec"]["containers"][index]["name"] = format!("azure-{index}").into();
            }
        },
    ] {
        let mut other = native_pod();
        change(&mut other);
        assert_eq!(images.decide(&other, Format::Binary), Decision::Untouched, "{other}");
    }
    let mut commanded = native_pod();
    commanded["spec"]["containers"][2]["command"] = json!(["/usr/bin/kubernetes-kms"]);
    let Decision::Changed { patch, warnings } = images.decide(&commanded, Format::Binary) else {
        panic!()
    };
    assert_eq!(patch.as_array().unwrap().len(), 1, "the other one alone");
    assert!(warnings[0].contains("azure-kms-provider-active"), "{warnings:?}");
}

#[test]
fn an_image_is_pinned_by_its_digest_or_is_one_that_the_operator_is_told_of_already() {
    let tagged = "registry.example/sidekey-azure:1";
    assert!(images(&[("azure", tagged)], &[("azure", tagged)]).is_ok());
    let wrong = [
        ("azure", tagged, &[][..]),
        ("azure", tagged, &[("azure", "registry.example/sidekey-azure:2")]),
        ("azure", tagged, &[("shim", tagged)]),
        ("azure", "registry.example/sidekey-azure@sha256:d04b", &[]),
        ("azure", "@sha256:d04b98f48e8f8bcc15c6ae5ac050801cd6dcfd428fb5f9e65c4e16e7807340fa", &[]),
        ("gcp", "registry.example/sidekey-gcp:1", &[]),
    ];
    for (vendor, image, listed) in wrong {
        let error = images(&[(vendor, image)], listed).unwrap_err();
        assert!(error.report().contains("--native-image"), "{image}: {}", error.report());
    }
    let error = images(&[("aws", &ours())], &[]).unwrap_err();
    let hint = error.advice().unwrap();
    assert!(hint.contains("hypershift.openshift.io/aws-kms-provider-image"), "{hint}");
}

#[tokio::test]
async fn a_review_of_an_image_is_answered_before_any_secret_encryption_is_known() {
    let native_images = images(&[("azure", &ours())], &[]).unwrap();
    let webhook = Webhook::new(Shelf::whole(), Options { native_images, ..options() });
    let question = review(&native_pod()).to_string().into();
    let (status, answer) = body_of(webhook.review_native(question, Format::Binary).await).await;
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)));
    let patch = answer["response"]["patch"].as_str().unwrap();
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(patch[0]["path"], "/spec/containers/2/image");
    let mut changed = review(&native_pod());
    changed["request"]["operation"] = "UPDATE".into();
    let (_, answer) =
        body_of(webhook.review_native(changed.to_string().into(), Format::Binary).await).await;
    assert!(answer["response"]["patch"].is_null() && answer["response"]["allowed"] == true);
}
