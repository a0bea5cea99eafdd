//! What is in a pod, as its annotation and its containers say.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::minter;
use super::record::{ANNOTATION, Profile, Record};
use crate::model::names;

/// Before the vendor in the name of a provider's sidecar.
const PREFIX: &str = "sidekey-";
/// The sidecar that is no provider's.
const SHIM: &str = "sidekey-shim";

/// The vendors whose sidecars were put into a pod with these annotations, in our own profile.
pub fn vendors_of(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let Some(record) = read(annotations) else { return Vec::new() };
    if record.profile != Profile::Sidekey {
        return Vec::new();
    }
    let provider = |name: &&String| *name != SHIM && !name.starts_with(minter::PREFIX);
    let sidecars = record.init_containers.iter().filter(provider);
    sidecars.filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned).collect()
}

/// Whether all that the annotations say was put into a pod is in its `spec` still. Who writes a
/// manifest anew, or a list in it, may take something out and leave the annotation.
pub fn is_whole(annotations: &BTreeMap<String, String>, spec: &Value) -> bool {
    let Some(record) = read(annotations) else { return false };
    let lists = [
        ("initContainers", &record.init_containers),
        ("containers", &record.containers),
        ("volumes", &record.volumes),
    ];
    let there = lists.into_iter().all(|(list, names)| {
        names.iter().all(|name| items(&spec[list]).any(|item| item["name"] == name.as_str()))
    });
    let main = items(&spec["containers"]).find(|item| item["name"] == record.container.as_str());
    let Some(main) = main.filter(|_| there) else { return false };
    let mounted = |path: &String| {
        items(&main["volumeMounts"]).any(|mount| mount["mountPath"] == path.as_str())
    };
    let given = |text: &str| {
        items(&main["command"]).chain(items(&main["args"])).any(|argument| argument == text)
    };
    record.mounts.iter().all(mounted) && record.flags.iter().all(|flag| given(&flag.set))
}

/// Whether a pod has its sockets in one directory, as pods were made before: a provider has none of
/// its own, or the shim does not see that of one of these vendors.
pub fn shares_sockets(spec: &Value, vendors: &BTreeSet<String>) -> bool {
    let mut containers = items(&spec["initContainers"]).chain(items(&spec["containers"]));
    containers.any(|container| {
        let mounts =
            |path: &str| items(&container["volumeMounts"]).any(|mount| mount["mountPath"] == path);
        let lacks = |vendor: &str| !mounts(&names::provider_sockets(vendor));
        match container["name"].as_str() {
            Some(SHIM) => vendors.iter().any(|vendor| lacks(vendor)),
            Some(name) => name.strip_prefix(PREFIX).is_some_and(lacks) && mounts(names::SOCKETS),
            None => false,
        }
    })
}

fn read(annotations: &BTreeMap<String, String>) -> Option<Record> {
    serde_json::from_str(annotations.get(ANNOTATION)?).ok()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inject::{Minter, Sidecars, SocketLayout, Wanted, inject};
    use crate::model::{ControlPlane, Token};

    fn template() -> (BTreeMap<String, String>, Value) {
        let wanted = Wanted {
            container: "kube-apiserver".to_owned(),
            sidecars: Sidecars::Sidekey {
                vendors: vec!["aws".into(), "vault".into()],
                minters: vec![Minter {
                    token: Token::of("aws"),
                    kubeconfig: ControlPlane::default().local_kubeconfig,
                    server: None,
                }],
                layout: SocketLayout::Own,
            },
            images: BTreeMap::new(),
            static_pod: false,
            flags: true,
        };
        let text = json!({"kind": "Deployment", "metadata": {"name": "kas"}, "spec": {"template": {
            "spec": {"containers": [{"name": "kube-apiserver", "args": ["--secure-port=6443"]}]},
        }}});
        let injected = inject(&text.to_string(), &wanted).unwrap();
        let object: Value = serde_json::from_str(&injected.text).unwrap();
        let template = &object["spec"]["template"];
        let annotations = template["metadata"]["annotations"].clone();
        (serde_json::from_value(annotations).unwrap(), template["spec"].clone())
    }

    #[test]
    fn vendors_are_those_of_the_record() {
        let (annotations, _) = template();
        assert_eq!(vendors_of(&annotations), ["aws", "vault"]);
        assert!(vendors_of(&BTreeMap::new()).is_empty());
    }

    #[test]
    fn whatever_is_taken_out_is_missed() {
        let (annotations, spec) = template();
        assert!(is_whole(&annotations, &spec));
        assert!(!is_whole(&BTreeMap::new(), &spec));
        let cuts: [fn(&mut Value); 4] = [
            |spec| drop(spec["initContainers"].as_array_mut().unwrap().pop()),
            |spec| drop(spec["volumes"].as_array_mut().unwrap().remove(0)),
            |spec| spec["containers"][0]["args"] = json!(["--secure-port=6443"]),
            |spec| spec["containers"][0]["volumeMounts"] = json!([]),
        ];
        for (index, cut) in cuts.into_iter().enumerate() {
            let mut spec = spec.clone();
            cut(&mut spec);
            assert!(!is_whole(&annotations, &spec), "cut {index}");
        }
    }
}
