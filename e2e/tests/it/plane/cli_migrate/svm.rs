//! The cluster's own migrator.

use std::path::Path;

use serde_json::Value;
use sidekey_e2e::Kind;
use sidekey_e2e::golang;
use sidekey_e2e::ports::Port;
use sidekey_e2e::process::{Process, Spec};

use super::world::World;

const MIGRATIONS: &str = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations";
const GATE: &str = "--feature-gates=StorageVersionMigrator=true";

/// What kube-apiserver needs for it.
pub(super) const FLAGS: [&str; 2] = [GATE, "--runtime-config=storagemigration.k8s.io/v1beta1=true"];

pub(super) async fn the_clusters_own_migrator_is_put_to_work_and_leaves_nothing_behind(
    world: &mut World,
) {
    world.create(Kind::Secret, "default", "s", 40).await;
    world.create(Kind::ConfigMap, "default", "c", 10).await;
    let hash = world.promote().await;
    let dir = world.plane.scratch.subdir("kube-controller-manager").unwrap();
    let port = Port::free().unwrap();
    let _manager = manager(&dir, &world.kubeconfig, &port).await;

    let arguments = ["--via", "svm", "--target", &hash, "--patience", "3m"];
    let done = world.migrate(&arguments).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(answer["complete"], true, "{answer}");
    let left = world.client.get(MIGRATIONS).await.unwrap();
    assert_eq!(left["items"].as_array().unwrap().len(), 0, "{left}");
    world.all_is_new().await;
}

pub(super) async fn a_cluster_without_a_migrator_says_so(world: &World) {
    let refused = world.migrate(&["--via", "svm", "--target", "key-1"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stdout.contains("no StorageVersionMigration API"), "{refused:?}");
}

/// kube-controller-manager with just what a migration needs.
async fn manager(dir: &Path, kubeconfig: &Path, port: &Port) -> Process {
    let program = golang::NODE.build_async().await.unwrap();
    let name = "kube-controller-manager";
    Spec::new(name, program, dir.join("manager.log"))
        .arg(name)
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--secure-port={}", port.number()))
        .arg(format!("--cert-dir={}", dir.display()))
        .args(["--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false", GATE])
        .arg("--controllers=garbage-collector-controller,storage-version-migrator-controller")
        .start()
        .unwrap()
}
