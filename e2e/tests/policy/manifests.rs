//! What containers are made from and how the shipped pods run them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sidekey_e2e::binaries;
use sidekey_e2e::cluster::manifest;
use sidekey_e2e::images;

use crate::assert_none;
use crate::layout::{files, root};
use crate::metadata::Metadata;

/// Where the static pods are.
const PODS: &str = "deploy/static-pods/";

fn text(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// The static pods of the repository, and what is added to kube-apiserver's own.
fn pods() -> Vec<(String, Value)> {
    let all = files();
    let shipped = all.iter().filter(|file| file.starts_with(PODS) && file.ends_with(".yaml"));
    let documents = shipped.flat_map(|file| {
        let documents = manifest(&text(file)).unwrap();
        documents.into_iter().map(move |document| (file.clone(), document))
    });
    let pods: Vec<_> = documents.filter(|(_, document)| document["spec"].is_object()).collect();
    assert!(pods.len() > 5, "the pods were not found: {pods:?}");
    pods
}

/// The containers of a pod that run our images.
fn ours(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainers", "containers"].map(|list| pod["spec"][list].as_array());
    let all = lists.into_iter().flatten().flatten();
    all.filter(|one| one["image"].as_str().is_some_and(|image| image.contains("/sidekey-")))
}

/// Whatever is not as wanted, by its path.
fn differences(at: &str, found: &Value, wanted: &[(&str, Value)]) -> Vec<String> {
    let wrong = wanted.iter().filter(|(path, value)| found.pointer(path) != Some(value));
    wrong.map(|(path, value)| format!("{at}: {path} is not {value}")).collect()
}

#[test]
fn static_pods_need_no_kube_apiserver_and_stay() {
    let wanted = [
        ("/spec/hostNetwork", json!(true)),
        ("/spec/priorityClassName", json!("system-node-critical")),
        ("/spec/automountServiceAccountToken", json!(false)),
        ("/spec/securityContext/runAsNonRoot", json!(true)),
        ("/spec/securityContext/runAsUser", json!(65532)),
        ("/spec/securityContext/seccompProfile/type", json!("RuntimeDefault")),
    ];
    let mut wrong = Vec::new();
    for (file, pod) in pods() {
        if pod["kind"] == "Pod" {
            wrong.extend(differences(&file, &pod, &wanted));
        }
        for volume in pod["spec"]["volumes"].as_array().unwrap() {
            let path = volume.get("hostPath");
            if path.is_none() && volume.get("emptyDir").is_none() {
                wrong.push(format!("{file}: {volume} comes from kube-apiserver"));
            }
            if path.is_some_and(|path| path["type"] != "Directory") {
                wrong.push(format!("{file}: {volume} would be made, and belong to root"));
            }
        }
    }
    assert_none("what kube-apiserver waits for must not wait for it", &wrong);
}

#[test]
fn our_containers_may_do_nothing_and_are_restarted_for_no_kms() {
    let context = "/securityContext";
    let wanted = [
        (format!("{context}/readOnlyRootFilesystem"), json!(true)),
        (format!("{context}/allowPrivilegeEscalation"), json!(false)),
        (format!("{context}/capabilities/drop"), json!(["ALL"])),
    ];
    let wanted: Vec<_> =
        wanted.iter().map(|(path, value)| (path.as_str(), value.clone())).collect();
    let version = format!(":{}", env!("CARGO_PKG_VERSION"));
    let mut wrong = Vec::new();
    for (file, pod) in pods() {
        for container in ours(&pod) {
            let at = format!("{file}, {}", container["name"]);
            wrong.extend(differences(&at, container, &wanted));
            if !container["image"].as_str().unwrap().ends_with(&version) {
                wrong.push(format!("{at}: {} is not {version}", container["image"]));
            }
            for probe in ["startupProbe", "livenessProbe"] {
                let command = &container[probe]["exec"]["command"];
                let healthy =
                    command.as_array().is_some_and(|all| all.contains(&json!("--healthy")));
                if command[1] != "probe" || healthy {
                    wrong.push(format!(
                        "{at}: {probe} asks more than whether it listens: {command}"
                    ));
                }
            }
            let mounts = container["volumeMounts"].as_array().unwrap();
            let parts = mounts.iter().filter(|mount| mount.get("subPath").is_some());
            wrong.extend(parts.map(|mount| format!("{at}: a swap is not seen in {mount}")));
        }
    }
    assert_none("our containers", &wrong);
}

/// The directories of a pod's host that its containers can write to.
fn writable(pod: &Value) -> BTreeSet<String> {
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let lists = ["initContainers", "containers"].map(|list| pod["spec"][list].as_array());
    let mounts = lists.into_iter().flatten().flatten();
    let mounts = mounts.flat_map(|one| one["volumeMounts"].as_array()).flatten();
    let written = mounts.filter(|mount| mount["readOnly"] != true);
    let written = written.filter_map(|mount| {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"])?;
        volume["hostPath"]["path"].as_str().map(str::to_owned)
    });
    written.collect()
}

#[test]
fn no_static_pod_can_put_a_socket_in_the_place_of_anothers() {
    let pods: Vec<_> = pods().into_iter().map(|(file, pod)| (file, writable(&pod))).collect();
    assert!(pods.iter().filter(|(_, paths)| !paths.is_empty()).count() > 3, "{pods:?}");
    let mut wrong = Vec::new();
    for (file, paths) in &pods {
        for (other, theirs) in pods.iter().filter(|(other, _)| other != file) {
            let below = |path: &&String| theirs.iter().any(|their| their.starts_with(*path));
            let taken = paths.iter().filter(below);
            wrong.extend(taken.map(|path| format!("{file} writes to {path}, as {other} does")));
        }
    }
    assert_none("each has directories of its own", &wrong);
}

/// The build from source is for those who have a builder image; its names must be right.
#[test]
fn every_image_is_made_alike_and_can_be_built_from_source() {
    let metadata = Metadata::load();
    let (mut wrong, mut forms) = (Vec::new(), BTreeSet::new());
    let dynamic = binaries::dynamic().unwrap();
    for file in files().iter().filter(|file| file.ends_with("/Containerfile")) {
        let folder = file.split('/').nth(1).unwrap();
        let (text, binary) = (text(file), images::binary(folder));
        let word = |flag: &str| {
            let (_, rest) = text.split_once(flag).unwrap_or_default();
            rest.split_whitespace().next().unwrap_or_default().to_owned()
        };
        let (package, bin) = (word("--package "), word("--bin "));
        let builds = metadata.members().filter(|member| member.name == package);
        let mut targets = builds.flat_map(|member| &member.targets);
        let is_bin = |kinds: &[String]| kinds.iter().any(|kind| kind == "bin");
        let known = targets.any(|target| target.name == binary && is_bin(&target.kind));
        if bin != binary || !known {
            wrong.push(format!("{file} builds {bin} of {package}, not {binary}"));
        }
        // What loads libraries has a base of its own.
        if dynamic.contains(&binary) {
            continue;
        }
        let form = text.replace(&format!("--package {package} "), "--package PACKAGE ");
        forms.insert(form.replace(&binary, "BINARY"));
    }
    assert_none("an image is the binary of its folder's name", &wrong);
    assert_eq!(forms.len(), 1, "the Containerfiles differ in more than names: {forms:#?}");
}
