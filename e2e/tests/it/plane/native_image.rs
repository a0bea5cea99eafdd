//! Promise: where HyperShift has no annotation for the image of a plugin that it runs, the webhook
//! exchanges that image, where a namespace asks for it, and nothing else of the pod; with no operator
//! there, pods are made as they were to be.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::apiserver::Options;
use sidekey_e2e::binaries;
use sidekey_e2e::cluster::manifest;
use sidekey_e2e::operator::{OPERATOR, OPERATOR_NAMESPACE, crds};
use sidekey_e2e::plane::ControlPlane;
use sidekey_e2e::ports::Port;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{KubeApiserver, KubeClient, eventually};

const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kustomize");
const OURS: &str = "registry.example/sidekey-azure@sha256:d04b98f48e8f8bcc15c6ae5ac050801cd6dcfd428fb5f9e65c4e16e7807340fa";
const PAYLOAD: &str = "registry.example/payload/azure-kms-encryption-provider:4.22";
/// A control plane that asks for our image, one whose payload reads the older format alone, and one
/// that does not ask; and what their labels say.
const NAMESPACES: [(&str, Option<&str>); 3] =
    [("clusters-asks", Some("enabled")), ("clusters-old", Some("text")), ("clusters-other", None)];

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_that_hypershift_runs_for_azure_has_our_image_where_it_is_asked_for() {
    let plane = ControlPlane::start("native-image").await.unwrap();
    let server = KubeApiserver::start(&plane, Options::new("management")).await.unwrap();
    let client = server.client();
    let port = Port::free().unwrap();
    install(&client, port.number()).await.unwrap();
    let operator = operator(&server, plane.scratch.path(), &port).await.unwrap();
    let [asks, old, other] = NAMESPACES.map(|(name, _)| name);
    eventually("the image is exchanged", PATIENCE, async || {
        let made = made(&client, asks).await?;
        ensure!(made["spec"]["containers"][1]["image"] == OURS, "{made}");
        Ok(())
    })
    .await
    .with_context(|| operator.log_tail())
    .unwrap();
    // Containers as the API server makes them of what was asked for, each with our image.
    let (asked, plain) = (made(&client, asks).await.unwrap(), made(&client, other).await.unwrap());
    let mut expected = plain["spec"]["containers"].clone();
    for index in [1, 2] {
        assert_eq!(expected[index]["image"], PAYLOAD, "nobody has asked for it there");
        expected[index]["image"] = OURS.into();
    }
    assert_eq!(asked["spec"]["containers"], expected);
    for index in [1, 2] {
        expected[index]["args"].as_array_mut().unwrap().push("--format=text".into());
    }
    let asked = made(&client, old).await.unwrap();
    assert_eq!(asked["spec"]["containers"], expected, "it writes what the payload reads");
    drop(operator);
    let made = made(&client, asks).await.unwrap();
    assert_eq!(made["spec"]["containers"], plain["spec"]["containers"], "nobody is there to ask");
}

/// What is installed, and what leads kube-apiserver to a process of this host.
async fn install(client: &KubeClient, port: u16) -> Result<()> {
    crds(client).await?;
    for file in ["namespace.yaml", "secretencryptions.yaml", "webhook.yaml"] {
        let text = std::fs::read_to_string(Path::new(BASE).join(file))?;
        for mut object in manifest(&text)? {
            let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
            for webhook in webhooks.into_iter().flatten() {
                webhook["clientConfig"]["service"]["port"] = port.into();
            }
            client.apply(&object).await.with_context(|| file.to_owned())?;
        }
    }
    let spec = json!({"type": "ExternalName", "externalName": "localhost"});
    let metadata = json!({"name": OPERATOR, "namespace": OPERATOR_NAMESPACE});
    client
        .apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}))
        .await?;
    for (name, label) in NAMESPACES {
        let mut metadata = json!({"name": name});
        if let Some(label) = label {
            metadata["labels"] = json!({"sidekey.dev/native-image": label});
        }
        client
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
            .await?;
        // No controller makes it here, and no pod is made without it.
        let metadata = json!({"name": "default", "namespace": name});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
        client.apply(&account).await?;
    }
    Ok(())
}

async fn operator(server: &KubeApiserver, dir: &Path, port: &Port) -> Result<Process> {
    let kubeconfig = dir.join("operator.kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig())?;
    let program = binaries::path_async("sidekey-operator").await?;
    let others = [Port::free()?, Port::free()?];
    Spec::new("sidekey-operator", program, dir.join("operator.log"))
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .args(["--namespace", OPERATOR_NAMESPACE])
        .arg(format!("--webhook-listen={}", port.address()))
        .arg(format!("--page-listen={}", others[0].address()))
        .arg(format!("--probe-listen={}", others[1].address()))
        .arg(format!("--native-image=azure={OURS}"))
        .start()
}

/// The pod as the API server would make it; nothing is kept.
async fn made(client: &KubeClient, namespace: &str) -> Result<Value> {
    let plugin = |role: &str, health: u16| {
        json!({
            "name": format!("azure-kms-provider-{role}"),
            "image": PAYLOAD,
            "args": [
                "--keyvault-name=v", "--key-name=k", "--key-version=1",
                format!("--listen-addr=unix:///opt/azurekms{role}.socket"),
                format!("--healthz-port={health}"),
                "--config-file-path=/etc/kubernetes/azure.json", "-v=1",
            ],
            "env": [{"name": "AZURE_CLIENT_ID", "value": "c"}],
            "ports": [{"name": "http", "containerPort": health, "protocol": "TCP"}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": health}},
            "volumeMounts": [{"name": "kms-socket", "mountPath": "/opt"}],
        })
    };
    let main = json!({"name": "kube-apiserver", "image": "registry.example/hyperkube:1"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "kube-apiserver-0", "labels": {"app": "kube-apiserver"}},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [main, plugin("active", 8787), plugin("backup", 8788)],
            "volumes": [{"name": "kms-socket", "emptyDir": {}}],
        },
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
    client.send(Method::POST, &path, Some(&pod)).await
}
