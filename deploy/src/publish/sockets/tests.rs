#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::{Value, json};
use sidekey_core::Secret;
use sidekey_core::config::document;

use super::*;
use crate::inject::{Sidecars, SocketLayout, Wanted, inject};
use crate::model::KeyNumber;
use crate::publish::LivePart;
use crate::render::{PartName, Phase, ResolvedFiles, render};

const LAYOUTS: [SocketLayout; 2] = [SocketLayout::Own, SocketLayout::Shared];

fn encryption(keys: &[(u64, &str)]) -> SecretEncryption {
    let keys = keys.iter().enumerate().map(|(index, (id, vendor))| {
        let role = if index == 0 { "write" } else { "read" };
        json!({"id": id, "type": vendor, "role": role, "kek": {"key": id}})
    });
    let keys: Vec<Value> = keys.collect();
    SecretEncryption::from_document(&json!({
        "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
        "metadata": {"name": "a"}, "spec": {"keys": keys},
    }))
    .unwrap()
}

fn published(document: &SecretEncryption) -> Live {
    let rendered = render(document, 1, &ResolvedFiles::default(), Phase::Settled).unwrap();
    let parts = rendered.parts.into_iter();
    let parts = parts.map(|part| (part.name, LivePart { files: part.files, version: None }));
    Live { parts: parts.collect(), ..Live::default() }
}

/// Heads as they were before providers had directories of their own.
fn from_before(keys: &[(u64, &str)]) -> Live {
    let mut document = encryption(keys);
    for key in &mut document.spec.keys {
        key.listen = names::shared_key_socket(key.id);
    }
    let mut live = published(&document);
    let shim = live.parts.get_mut(&PartName::Shim).unwrap();
    let mut file = self::document(shim.files["config.yaml"].as_text().unwrap()).unwrap();
    for key in file["keys"].as_array_mut().unwrap() {
        key["endpoints"] =
            json!([names::shared_key_socket(KeyNumber(key["id"].as_u64().unwrap()))]);
    }
    shim.files.insert("config.yaml".into(), Secret::new(file.to_string().into_bytes()));
    live
}

/// What is published for these keys after that.
fn next(live: &Live, keys: &[(u64, &str)], before: bool) -> Live {
    let mut document = encryption(keys);
    live.keep_sockets(&mut document, before).unwrap();
    published(&document)
}

/// A pod of a layout with these vendors, as it is injected.
fn pod(layout: SocketLayout, vendors: &[&str]) -> Value {
    let vendors = vendors.iter().map(|vendor| (*vendor).to_owned()).collect();
    let wanted = Wanted {
        container: "kube-apiserver".to_owned(),
        sidecars: Sidecars::Sidekey { vendors, minters: Vec::new(), layout },
        images: Default::default(),
        static_pod: false,
        flags: true,
    };
    let bare = json!({"kind": "Deployment", "metadata": {"name": "kas"}, "spec": {"template": {
        "spec": {"containers": [{"name": "kube-apiserver", "args": ["--secure-port=6443"]}]},
    }}});
    let text = inject(&bare.to_string(), &wanted).unwrap().text;
    let object: Value = serde_json::from_str(&text).unwrap();
    object["spec"]["template"]["spec"].clone()
}

/// The volume and the name in it that a socket's path leads to in a container, and whether it can be
/// made there.
fn resolve(pod: &Value, container: &str, socket: &str) -> Option<(String, String, bool)> {
    let mut containers = pod["initContainers"].as_array().unwrap().iter();
    let container = containers.find(|one| one["name"] == container)?;
    let (directory, name) = socket.strip_prefix("unix://")?.rsplit_once('/')?;
    let mut mounts = container["volumeMounts"].as_array().unwrap().iter();
    let mount = mounts.find(|mount| mount["mountPath"] == directory)?;
    let volume = mount["name"].as_str().unwrap().to_owned();
    Some((volume, name.to_owned(), mount["readOnly"] != true))
}

fn file(live: &Live, part: &PartName) -> Value {
    document(live.parts[part].files["config.yaml"].as_text().unwrap()).unwrap()
}

/// The keys that a shim reaches in a pod; fails if a provider cannot start there.
fn reached(live: &Live, pod: &Value) -> Vec<u64> {
    let shim = file(live, &PartName::Shim);
    let mut reached = Vec::new();
    for key in shim["keys"].as_array().unwrap() {
        let vendor = key["type"].as_str().unwrap();
        let provider = file(live, &PartName::Provider(vendor.to_owned()));
        let container = format!("sidekey-{vendor}");
        let admin = resolve(pod, &container, provider["adminSocket"].as_str().unwrap());
        assert!(admin.is_some_and(|(_, _, writes)| writes), "{provider}");
        let own = provider["keys"].as_array().unwrap().iter().find(|own| own["id"] == key["id"]);
        let listen = own.unwrap()["listen"].as_str().unwrap();
        let (volume, name, writes) =
            resolve(pod, &container, listen).unwrap_or_else(|| panic!("{listen} in {pod}"));
        assert!(writes, "{listen}");
        let leads = |endpoint: &Value| {
            let found = resolve(pod, "sidekey-shim", endpoint.as_str().unwrap());
            found.is_some_and(|(there, file, _)| (there, file) == (volume.clone(), name.clone()))
        };
        if key["endpoints"].as_array().unwrap().iter().any(leads) {
            reached.push(key["id"].as_u64().unwrap());
        }
    }
    reached
}

fn endpoints(live: &Live, key: usize) -> Value {
    file(live, &PartName::Shim)["keys"][key]["endpoints"].clone()
}

#[test]
fn a_new_control_plane_has_each_providers_sockets_in_its_own_directory() {
    let live = next(&Live::default(), &[(1, "aws"), (2, "vault")], false);
    assert_eq!(endpoints(&live, 0), json!(["unix:///var/run/sidekey/aws/kms-1.sock"]));
    assert_eq!(endpoints(&live, 1), json!(["unix:///var/run/sidekey/vault/kms-2.sock"]));
    let vault = file(&live, &PartName::Provider("vault".into()));
    assert_eq!(vault["keys"][0]["listen"], "unix:///var/run/sidekey/vault/kms-2.sock");
    assert_eq!(vault["adminSocket"], "unix:///var/run/sidekey/vault/admin.sock");
    assert_eq!(reached(&live, &pod(SocketLayout::Own, &["aws", "vault"])), [1, 2]);
    assert!(live.shared_vendors().unwrap().is_empty());
    // Whoever does not know what pods there are publishes the same.
    let unknown = next(&Live::default(), &[(1, "aws"), (2, "vault")], true);
    assert_eq!(endpoints(&unknown, 0), endpoints(&live, 0));
}

#[test]
fn pods_of_both_forms_reach_every_key_while_a_control_plane_is_updated() {
    let vendors = ["aws", "vault"];
    let old = from_before(&[(1, "aws"), (2, "vault")]);
    assert_eq!(reached(&old, &pod(SocketLayout::Shared, &vendors)), [1, 2]);
    // This is why heads come before pods; the providers start there nevertheless.
    assert_eq!(reached(&old, &pod(SocketLayout::Own, &vendors)), [0; 0]);
    let bridge = next(&old, &[(1, "aws"), (2, "vault")], true);
    // A rotation in the midst of it, and another pass.
    let rotated = next(&bridge, &[(1, "aws"), (2, "vault"), (3, "vault")], true);
    let again = next(&rotated, &[(1, "aws"), (2, "vault"), (3, "vault")], true);
    for layout in LAYOUTS {
        let pod = pod(layout, &vendors);
        assert_eq!(reached(&bridge, &pod), [1, 2], "{layout:?}");
        assert_eq!(reached(&rotated, &pod), [1, 2, 3], "{layout:?}");
    }
    for part in rotated.parts.keys().filter(|part| **part != PartName::KubeApiserver) {
        assert_eq!(file(&rotated, part), file(&again, part));
    }
    // The own one first: the other is for those who cannot have it.
    let both = ["unix:///var/run/sidekey/aws/kms-1.sock", "unix:///var/run/kmsplugin/kms-1.sock"];
    assert_eq!(endpoints(&bridge, 0), json!(both));
}

#[test]
fn a_provider_never_hears_of_the_change() {
    let old = from_before(&[(1, "aws")]);
    let aws = PartName::Provider("aws".into());
    for before in [true, false] {
        assert_eq!(file(&next(&old, &[(1, "aws")], before), &aws), file(&old, &aws));
    }
}

#[test]
fn without_pods_of_before_nothing_is_looked_for_where_it_was_and_the_next_key_has_its_own_place() {
    let bridge = next(&from_before(&[(1, "aws")]), &[(1, "aws")], true);
    assert!(bridge.may_serve_pods_of_before().unwrap());
    let own = pod(SocketLayout::Own, &["aws"]);
    let alone = next(&bridge, &[(1, "aws")], false);
    assert_eq!(endpoints(&alone, 0), json!(["unix:///var/run/sidekey/aws/kms-1.sock"]));
    assert_eq!(reached(&alone, &own), [1]);
    assert!(!alone.may_serve_pods_of_before().unwrap(), "it is not forgotten");
    let rotated = next(&alone, &[(1, "aws"), (2, "aws")], false);
    assert_eq!(reached(&rotated, &own), [1, 2]);
    assert_eq!(endpoints(&rotated, 1), json!(["unix:///var/run/sidekey/aws/kms-2.sock"]));
    let aws = file(&rotated, &PartName::Provider("aws".into()));
    assert_eq!(aws["keys"][0]["listen"], "unix:///var/run/kmsplugin/kms-1.sock");
    assert_eq!(aws["keys"][1]["listen"], "unix:///var/run/sidekey/aws/kms-2.sock");
    // With the last key of before goes the last of it.
    let last = next(&rotated, &[(2, "aws")], false);
    assert!(last.shared_vendors().unwrap().is_empty());
    let admin = &file(&last, &PartName::Provider("aws".into()))["adminSocket"];
    assert_eq!(*admin, "unix:///var/run/sidekey/aws/admin.sock");
}

#[test]
fn a_new_vendor_has_its_own_place_also_beside_keys_of_before() {
    let old = from_before(&[(1, "aws")]);
    let live = next(&old, &[(1, "aws"), (2, "vault")], true);
    assert_eq!(endpoints(&live, 1), json!(["unix:///var/run/sidekey/vault/kms-2.sock"]));
    // Its sidecar comes with a pod of today.
    assert_eq!(reached(&live, &pod(SocketLayout::Own, &["aws", "vault"])), [1, 2]);
    assert_eq!(live.shared_vendors().unwrap(), BTreeSet::from(["aws".to_owned()]));
}

#[test]
fn a_document_that_says_where_sockets_are_of_before_is_reached_in_both_forms() {
    let mut document = encryption(&[(1, "aws")]);
    let old = names::shared_key_socket(KeyNumber(1));
    document.spec.keys[0].listen.clone_from(&old);
    for endpoints in [Vec::new(), vec![old]] {
        document.spec.keys[0].endpoints = endpoints;
        for layout in LAYOUTS {
            assert_eq!(reached(&published(&document), &pod(layout, &["aws"])), [1], "{layout:?}");
        }
    }
    // What is elsewhere stays where it is said to be.
    document.spec.keys[0].endpoints = vec!["https://proxy:1".to_owned()];
    assert_eq!(endpoints(&published(&document), 0), json!(["https://proxy:1"]));
}
