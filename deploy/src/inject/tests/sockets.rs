//! Who can do what with whose sockets.

use super::*;

fn spec(text: &str, number: usize) -> Value {
    let whole = nth(text, number);
    let template = &whole["spec"]["template"]["spec"];
    if template.is_null() { whole["spec"].clone() } else { template.clone() }
}

/// Every mount of a volume of sockets: container, volume, path, and whether it can write there.
fn seen(spec: &Value) -> Vec<(&str, &str, &str, bool)> {
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.flat_map(|list| spec[list].as_array().into_iter().flatten());
    let mut seen = Vec::new();
    for container in containers {
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            let text = |name: &str| mount[name].as_str().unwrap();
            if text("name").starts_with("kms-sockets") {
                let writes = mount["readOnly"] != true;
                seen.push((
                    container["name"].as_str().unwrap(),
                    text("name"),
                    text("mountPath"),
                    writes,
                ));
            }
        }
    }
    seen.sort_unstable();
    seen
}

fn before(vendors: &[&str]) -> Wanted {
    let mut wanted = sidekey(vendors);
    if let Sidecars::Sidekey { layout, .. } = &mut wanted.sidecars {
        *layout = SocketLayout::Shared;
    }
    wanted
}

#[test]
fn every_container_can_make_and_rename_sockets_of_its_own_alone() {
    for (text, number) in [(KUBEADM, 0), (HOSTED, 1)] {
        let spec = spec(&injected(text, &sidekey(&["aws", "vault"])).text, number);
        assert_eq!(
            seen(&spec),
            [
                ("kube-apiserver", "kms-sockets", "/var/run/kmsplugin", false),
                ("sidekey-aws", "kms-sockets-aws", "/var/run/kmsplugin", true),
                ("sidekey-aws", "kms-sockets-aws", "/var/run/sidekey/aws", true),
                ("sidekey-shim", "kms-sockets", "/var/run/kmsplugin", true),
                ("sidekey-shim", "kms-sockets-aws", "/var/run/sidekey/aws", false),
                ("sidekey-shim", "kms-sockets-vault", "/var/run/sidekey/vault", false),
                ("sidekey-vault", "kms-sockets-vault", "/var/run/kmsplugin", true),
                ("sidekey-vault", "kms-sockets-vault", "/var/run/sidekey/vault", true),
            ]
        );
        let own = BTreeSet::from(["aws".to_owned(), "vault".to_owned()]);
        assert!(!shares_sockets(&spec, &own));
        assert!(shares_sockets(&spec, &BTreeSet::from(["gcp".to_owned()])), "the shim lacks it");
    }
}

#[test]
fn sidecars_of_before_are_known_and_what_must_come_first_is_said_of_them() {
    for (text, number) in [(KUBEADM, 0), (HOSTED, 1)] {
        let old = inject(text, &before(&["aws", "vault"])).unwrap();
        let pod = spec(&old.text, number);
        let shared = ["kube-apiserver", "sidekey-aws", "sidekey-shim", "sidekey-vault"];
        let all: Vec<&str> = seen(&pod).iter().map(|(container, ..)| *container).collect();
        assert_eq!(all, shared);
        assert!(seen(&pod).iter().all(|(_, volume, ..)| *volume == "kms-sockets"));
        assert!(shares_sockets(&pod, &BTreeSet::new()));
        let said = |injected: &Injected| {
            injected
                .warnings
                .iter()
                .filter(|text| text.contains("publish with this version"))
                .count()
        };
        assert_eq!(said(&old), 0);
        let new = inject(&old.text, &sidekey(&["aws", "vault"])).unwrap();
        assert_eq!(said(&new), 1, "{:?}", new.warnings);
        assert_eq!(new.text, inject(text, &sidekey(&["aws", "vault"])).unwrap().text);
        assert_eq!(said(&inject(&new.text, &sidekey(&["aws"])).unwrap()), 0);
        assert_eq!(uninject(&old.text).unwrap().text, text);
    }
}
