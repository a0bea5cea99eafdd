//! `cargo up -- --cluster` brings up a cluster with a node, and nothing of it outlives it.

use std::path::Path;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::json;
use sidekey_e2e::cluster::POD_IMAGE;
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Kind, Scratch, eventually};

use crate::plane::up::{client, gone, up};

#[tokio::test]
async fn a_cluster_runs_pods_on_secrets_that_sidekey_encrypts() {
    let scratch = Scratch::new("up").unwrap();
    let (mut process, ready) = up(&scratch.path().join("cluster"), &["--cluster"]).await.unwrap();
    assert!(ready.rotation.is_some(), "a cluster shows a rotation");
    println!("cluster up in {:.1} s", ready.cluster_seconds.expect("it was timed"));
    let node = ready.node.expect("there is a node");
    assert!(Path::new(&format!("/proc/{node}")).exists());
    let client = client(&std::fs::read_to_string(ready.kubeconfig.as_deref().unwrap()).unwrap());
    client.create(Kind::Secret, "default", "hello", &[("a", "b")]).await.unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hello"},
        "spec": {
            "containers": [{
                "name": "hello", "image": POD_IMAGE, "imagePullPolicy": "Never",
                "args": ["serve", ":8080"],
                "volumeMounts": [{"name": "hello", "mountPath": "/hello"}],
            }],
            "volumes": [{"name": "hello", "secret": {"secretName": "hello"}}],
        },
    });
    client.apply(&pod).await.unwrap();
    let pod = client.wait_pod_ready("default", "hello").await.unwrap();
    let http = HttpClient::plain((pod.address.unwrap(), 8080).into());
    eventually("the pod reads the Secret", PATIENCE, async || {
        let text = http.get("/file?path=/hello/a").await?.ok()?.text();
        ensure!(text == "b", "{text}");
        Ok(())
    })
    .await
    .unwrap();
    process.signal(Signal::INT).unwrap();
    let ended = eventually("up ends", PATIENCE, async || process.ended()?.context("it still runs"));
    assert_eq!(ended.await.unwrap().code(), Some(0), "{}", process.log_tail());
    // The node too.
    gone(&ready).await.unwrap();
}
