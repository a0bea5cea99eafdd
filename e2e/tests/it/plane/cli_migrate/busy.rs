//! A server that takes one write at a time.

use std::collections::BTreeMap;

use serde_json::Value;
use sidekey_e2e::{Kind, binaries};

use super::world::World;

#[tokio::test]
async fn a_server_that_says_wait_is_waited_for() {
    let flags = ["--enable-priority-and-fairness=false", "--max-mutating-requests-inflight=1"];
    let mut world = World::start("migrate-busy", &flags).await;
    world.create(Kind::Secret, "default", "s", 80).await;
    let hash = world.promote().await;
    let ordinary = world.ordinary_kubeconfig().await;
    let mut args = world.arguments();
    let at = args.iter().position(|arg| arg == "--kubeconfig").unwrap();
    args[at + 1] = ordinary.display().to_string();
    args.extend(["--target".to_owned(), hash]);
    let done = binaries::run("sidekey", &args).await.unwrap();
    assert_eq!(done.code, Some(0), "{done:?}");
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(answer["resources"][1]["rewritten"], 80, "{answer}");
    let metrics = world.server.metrics().await.unwrap();
    let refused = metrics.sum("apiserver_request_total", &[("code", "429")]);
    assert!(refused > 0.0, "it was never told to wait, and so this has shown nothing");
    assert_eq!(world.keys().await, BTreeMap::from([(2, world.objects().await)]), "all new");
}
