//! What mints tokens beside providers.

use super::*;
use crate::model::{ControlPlane, PodToken, Token, TokenSource};

const DIRECTORY: &str = "/var/run/secrets/openshift/serviceaccount";

fn minting(vendors: &[&str]) -> Wanted {
    with_token(vendors, Token::of("aws"))
}

fn with_token(vendors: &[&str], token: Token) -> Wanted {
    let mut wanted = sidekey(vendors);
    let kubeconfig = ControlPlane::default().local_kubeconfig;
    let minter = Minter { token, kubeconfig, server: None };
    if let Sidecars::Sidekey { minters, .. } = &mut wanted.sidecars {
        minters.push(minter);
    }
    wanted
}

fn template(text: &str) -> Value {
    nth(text, 0)["spec"]["template"]["spec"].clone()
}

fn deployment(containers: Value, volumes: Value) -> String {
    let spec = json!({"containers": containers, "volumes": volumes});
    json!({
        "kind": "Deployment", "metadata": {"name": "kube-apiserver"},
        "spec": {"template": {"spec": spec}},
    })
    .to_string()
}

fn mount<'a>(spec: &'a Value, container: &str, path: &str) -> Option<&'a Value> {
    let list = spec["initContainers"].as_array()?;
    let container = list.iter().find(|item| item["name"] == container)?;
    container["volumeMounts"].as_array()?.iter().find(|mount| mount["mountPath"] == path)
}

#[test]
fn a_minter_comes_before_its_provider_and_holds_no_start_up() {
    let text = deployment(json!([{"name": "kube-apiserver", "args": ["--x"]}]), json!([]));
    let spec = template(&injected(&text, &minting(&["aws", "vault"])).text);
    assert_eq!(
        names(&spec["initContainers"]),
        ["sidekey-token-aws", "sidekey-aws", "sidekey-vault", "sidekey-shim"]
    );
    let minter = &spec["initContainers"][0];
    assert_eq!(minter["image"], format!("localhost/sidekey:{VERSION}"));
    assert_eq!(minter["restartPolicy"], "Always");
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert!(minter[probe].is_null(), "{probe}");
    }
    assert_eq!(
        minter["args"],
        json!([
            "token",
            "--kubeconfig=/etc/sidekey-kubeconfig/kubeconfig",
            "--service-account-namespace=kube-system",
            "--service-account-name=kms-provider",
            "--token-audience=openshift",
            format!("--token-file={DIRECTORY}/token"),
            "--expiry=1h",
        ])
    );
    let args = minter["args"].as_array().unwrap().iter();
    let args = args.map(|arg| arg.as_str().unwrap().to_owned());
    crate::cli::check(["sidekey".to_owned()].into_iter().chain(args)).unwrap();
    let memory = json!({"name": "kms-token-aws", "emptyDir": {"medium": "Memory"}});
    let volumes = spec["volumes"].as_array().unwrap();
    assert!(volumes.contains(&memory), "{volumes:?}");
    let secret = json!({
        "secretName": "localhost-kubeconfig", "optional": true,
        "items": [{"key": "kubeconfig", "path": "kubeconfig"}],
    });
    assert!(volumes.iter().any(|volume| volume["secret"] == secret), "{volumes:?}");
    let read = json!({"name": "kms-token-aws", "mountPath": DIRECTORY, "readOnly": true});
    assert_eq!(mount(&spec, "sidekey-aws", DIRECTORY), Some(&read));
    for other in ["sidekey-vault", "sidekey-shim"] {
        assert_eq!(mount(&spec, other, DIRECTORY), None, "{other} sees the token");
    }
}

#[test]
fn a_token_that_kubelet_or_a_secrets_store_gives_is_a_volume_of_that_provider_alone() {
    let text = deployment(json!([{"name": "kube-apiserver", "args": ["--x"]}]), json!([]));
    let class = "managed-azure-kms".to_owned();
    let pod_token = PodToken { audience: Some("iam".to_owned()), expiry: "15m".to_owned() };
    let cases = [
        (
            "azure",
            "/mnt/certs/kms",
            TokenSource::SecretsStore { secret_provider_class: class.clone() },
            json!({"name": "kms-token-azure", "csi": {
                "driver": "secrets-store.csi.k8s.io", "readOnly": true,
                "volumeAttributes": {"secretProviderClass": class},
            }}),
        ),
        (
            "ibmcloud",
            "/etc/pod-identity-token/pod-identity-token",
            TokenSource::Pod { pod_token },
            json!({"name": "kms-token-ibmcloud", "projected": {"sources": [{"serviceAccountToken": {
                "path": "pod-identity-token", "expirationSeconds": 900, "audience": "iam",
            }}]}}),
        ),
    ];
    for (vendor, file, source, volume) in cases {
        let token = Token { vendor: vendor.to_owned(), file: file.to_owned(), source };
        let spec = template(&injected(&text, &with_token(&[vendor, "vault"], token.clone())).text);
        let provider = format!("sidekey-{vendor}");
        assert_eq!(names(&spec["initContainers"]), [&provider, "sidekey-vault", "sidekey-shim"]);
        let volumes = spec["volumes"].as_array().unwrap();
        assert!(volumes.contains(&volume), "{volumes:?}");
        let read =
            json!({"name": volume["name"], "mountPath": token.directory(), "readOnly": true});
        assert_eq!(mount(&spec, &provider, token.directory()), Some(&read));
        assert_eq!(mount(&spec, "sidekey-shim", token.directory()), None);
        assert!(!spec.to_string().contains("kubeconfig"), "{spec}");
    }
}

#[test]
fn nothing_mints_for_a_vendor_that_is_not_there_or_unless_it_is_asked_for() {
    let text = deployment(json!([{"name": "kube-apiserver"}]), json!([]));
    for wanted in [minting(&["vault"]), sidekey(&["aws"])] {
        let spec = template(&injected(&text, &wanted).text);
        assert!(!spec.to_string().contains("token"), "{spec}");
    }
    assert_eq!(form(&minting(&["vault"])), form(&sidekey(&["vault"])));
    assert_ne!(form(&minting(&["aws"])), form(&sidekey(&["aws"])));
}

#[test]
fn what_hypershifts_own_minter_writes_is_read_and_no_other_is_put_in() {
    let native = json!({
        "name": "aws-kms-token-minter",
        "volumeMounts": [{"name": "aws-kms-token", "mountPath": DIRECTORY}],
    });
    let volumes = json!([{"name": "aws-kms-token", "emptyDir": {"medium": "Memory"}}]);
    let text = deployment(json!([{"name": "kube-apiserver"}, native]), volumes);
    let spec = template(&injected(&text, &minting(&["aws"])).text);
    assert_eq!(names(&spec["initContainers"]), ["sidekey-aws", "sidekey-shim"]);
    let read = json!({"name": "aws-kms-token", "mountPath": DIRECTORY, "readOnly": true});
    assert_eq!(mount(&spec, "sidekey-aws", DIRECTORY), Some(&read));
    assert!(!spec.to_string().contains("kms-token-aws"), "{spec}");
    // One that writes elsewhere is of no use.
    let elsewhere = text.replace(DIRECTORY, "/elsewhere");
    let spec = template(&injected(&elsewhere, &minting(&["aws"])).text);
    assert_eq!(names(&spec["initContainers"])[0], "sidekey-token-aws");
}

#[test]
fn a_static_pod_which_has_no_secrets_is_refused() {
    let error = inject(KUBEADM, &minting(&["aws"])).unwrap_err();
    assert!(error.report().contains("mints the token of aws"), "{}", error.report());
}

#[test]
fn a_document_with_tokens_asks_for_minters_and_one_without_does_not() {
    let document = |tokens: Value| {
        let key = json!({"id": 1, "type": "aws", "role": "write", "kek": {"key": "k"}});
        let mut spec = json!({"keys": [key], "tokens": tokens});
        spec["controlPlane"] = json!({"localKubeconfig": {"name": "mine"}});
        let metadata = json!({"name": "a"});
        let kind = crate::model::KIND;
        json!({"apiVersion": crate::model::API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
    };
    let minters = |tokens: Value| {
        let text = document(tokens).to_string();
        let described = described(&text, Profile::Sidekey, "a.yaml").unwrap();
        let Sidecars::Sidekey { minters, .. } = described.sidecars else { panic!() };
        minters
    };
    assert!(minters(json!([])).is_empty());
    let found = minters(json!([{"type": "aws", "audience": "sts"}]));
    assert_eq!(found[0].token.minted().unwrap().audience, "sts");
    assert_eq!(found[0].kubeconfig.name, "mine");
    assert_eq!(found[0].kubeconfig.key, "kubeconfig");
}
