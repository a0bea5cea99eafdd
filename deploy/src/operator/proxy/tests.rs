use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use super::write::says;
use super::*;
use crate::model::{PodToken, Token, TokenSource};
use crate::operator::roll::fake::Fake;

const APPS: &str = "/apis/apps/v1/namespaces/clusters-a/deployments";
const CORE: &str = "/api/v1/namespaces/clusters-a";

fn encryption(keys: &[(u64, &str)]) -> SecretEncryption {
    let keys: Vec<Value> = keys
        .iter()
        .enumerate()
        .map(|(index, (id, vendor))| {
            let role = if index == 0 { "write" } else { "read" };
            let mut key = json!({"id": id, "type": vendor, "role": role, "kek": {"key": "k"}});
            if *vendor == "external" {
                key["endpoints"] = json!(["https://plugin.example:8443"]);
            }
            key
        })
        .collect();
    let document = json!({
        "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
        "metadata": {"name": "cluster-a", "namespace": "clusters-a"},
        "spec": {"placement": "Proxy", "keys": keys, "images": {"proxy": "mirror/proxy:1"}},
    });
    SecretEncryption::from_document(&document).unwrap()
}

/// A hosted kube-apiserver with one pod.
fn hosted() -> Fake {
    let fake = Fake::default();
    fake.put("/api", json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "10.9.9.9:6443"}],
    }));
    let labels = json!({"app": "kube-apiserver"});
    let spec = json!({
        "containers": [{"name": "kube-apiserver"}], "priorityClassName": "api-critical",
        "tolerations": [{"key": "hosted", "operator": "Exists"}],
    });
    fake.put(
        &format!("{APPS}/kube-apiserver"),
        json!({
            "metadata": {"name": "kube-apiserver"},
            "spec": {"replicas": 1, "template": {"metadata": {"labels": labels}, "spec": spec}},
        }),
    );
    fake.put(
        &format!("{CORE}/pods/kas-a"),
        json!({
            "metadata": {"name": "kas-a", "labels": labels}, "spec": spec,
            "status": {"phase": "Running", "podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}]},
        }),
    );
    fake
}

fn settle(fake: &Fake) {
    let path = format!("{APPS}/sidekey-providers");
    let mut deployment = fake.at(&path);
    deployment["metadata"]["generation"] = 1.into();
    deployment["status"] = json!({
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
    });
    fake.put(&path, deployment);
}

fn config(fake: &Fake, file: &str) -> Value {
    let data = fake.at(&format!("{CORE}/secrets/sidekey-proxy"))["data"][file].clone();
    let text = STANDARD.decode(data.as_str().unwrap()).unwrap();
    sidekey_core::config::document(std::str::from_utf8(&text).unwrap()).unwrap()
}

#[test]
fn every_key_of_ours_is_led_to_its_own_port() {
    let mut all = encryption(&[(2, "vault"), (1, "aws"), (7, "external")]);
    lead(&mut all);
    let endpoints: Vec<_> = all.spec.keys.iter().map(|key| key.endpoints(false)).collect();
    assert_eq!(endpoints[0], ["https://sidekey-providers.clusters-a.svc:10002"]);
    assert_eq!(endpoints[1], ["https://sidekey-providers.clusters-a.svc:10001"]);
    assert_eq!(endpoints[2], ["https://plugin.example:8443"]);
    // Whatever other keys there are.
    let mut alone = encryption(&[(2, "vault")]);
    lead(&mut alone);
    assert_eq!(alone.spec.keys[0].endpoints(false), endpoints[0]);
}

#[test]
fn ports_stay_in_their_range_and_keys_that_would_share_one_are_refused() {
    for id in [1, 9_999, 10_000, u64::MAX] {
        assert!((FIRST_PORT..FIRST_PORT + PORTS).contains(&port(KeyNumber(id))), "{id}");
    }
    assert_eq!(crowded(&encryption(&[(1, "aws"), (2, "aws")])), None);
    let text = crowded(&encryption(&[(1, "aws"), (10_001, "aws")])).unwrap();
    assert!(text.contains("keys 1 and 10001"), "{text}");
    let many: Vec<(u64, &str)> = (1..=101).map(|id| (id, "aws")).collect();
    assert!(crowded(&encryption(&many)).unwrap().contains("101 keys"));
}

#[tokio::test]
async fn what_is_applied_is_applied_once() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault"), (1, "aws")]));
    let ctx = fake.context();
    let waits = ensure(&ctx, &wish).await.unwrap();
    assert_eq!(waits, ["Deployment sidekey-providers has a change that nobody has taken up yet"]);
    assert_eq!(fake.written().len(), 5);
    settle(&fake);
    assert_eq!(ensure(&ctx, &wish).await.unwrap(), [""; 0]);
    assert!(fake.written().is_empty());
    // Credentials and settings are in heads.
    let mut other = wish.clone();
    other.spec.keys[0].settings = json!({"address": "https://elsewhere"});
    lead(&mut other);
    assert_eq!(ensure(&ctx, &other).await.unwrap(), [""; 0]);
    assert!(fake.written().is_empty());
    // Somebody has scaled it.
    let path = format!("{APPS}/sidekey-providers");
    let mut scaled = fake.at(&path);
    scaled["spec"]["replicas"] = 1.into();
    fake.put(&path, scaled);
    ensure(&ctx, &wish).await.unwrap();
    assert_eq!(fake.written(), [format!("PATCH {path}")]);
    assert_eq!(fake.at(&path)["spec"]["replicas"], 2);
}

#[tokio::test]
async fn nothing_goes_with_a_secret_encryption_that_somebody_deletes() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault"), (1, "aws")]));
    let ctx = fake.context();
    crate::operator::pki::ensure(&ctx.client, "clusters-a", "cluster-a", true).await.unwrap();
    ensure(&ctx, &wish).await.unwrap();
    let written = fake.written();
    assert_eq!(written.len(), 8, "{written:?}");
    let secrets = ["sidekey-ca", "sidekey-shim-tls", "sidekey-proxy-tls"];
    let secrets = secrets.map(|name| format!("{CORE}/secrets/{name}"));
    let applied = written.iter().filter_map(|line| line.strip_prefix("PATCH "));
    for path in applied.chain(secrets.iter().map(String::as_str)) {
        let metadata = &fake.at(path)["metadata"];
        assert_eq!(metadata["labels"][names::LABEL_ENCRYPTION], "cluster-a", "{path}");
        assert!(metadata["ownerReferences"].is_null(), "{path}: {metadata}");
    }
    // Those of an older version were owned.
    for path in &secrets {
        let mut secret = fake.at(path);
        let owner = json!({"apiVersion": "v1", "kind": "X", "name": "a", "uid": "u"});
        secret["metadata"]["ownerReferences"] = json!([owner]);
        fake.put(path, secret);
    }
    crate::operator::pki::ensure(&ctx.client, "clusters-a", "cluster-a", true).await.unwrap();
    assert_eq!(fake.written().len(), 3);
    for path in &secrets {
        assert!(fake.at(path)["metadata"]["ownerReferences"].is_null(), "{path}");
    }
    crate::operator::pki::ensure(&ctx.client, "clusters-a", "cluster-a", true).await.unwrap();
    assert!(fake.written().is_empty());
}

#[tokio::test]
async fn a_new_key_adds_a_proxy_and_a_retired_one_takes_it_away() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault")]));
    ensure(&fake.context(), &wish).await.unwrap();
    let names = |fake: &Fake, list: &str| -> Vec<String> {
        let spec =
            fake.at(&format!("{APPS}/sidekey-providers"))["spec"]["template"]["spec"].clone();
        let items = spec[list].as_array().unwrap().clone();
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&fake, "containers"), ["proxy-2"]);
    let more = encryption(&[(3, "aws"), (2, "vault")]);
    ensure(&fake.context(), &more).await.unwrap();
    assert_eq!(names(&fake, "containers"), ["proxy-3", "proxy-2"]);
    assert_eq!(names(&fake, "initContainers"), ["sidekey-aws", "sidekey-vault"]);
    let ports = fake.at(&format!("{CORE}/services/sidekey-providers"))["spec"]["ports"].clone();
    assert_eq!(ports.as_array().unwrap().len(), 2);
    fake.written();
    ensure(&fake.context(), &encryption(&[(3, "aws")])).await.unwrap();
    assert_eq!(names(&fake, "containers"), ["proxy-3"]);
    // The budget alone knows nothing of keys.
    assert_eq!(fake.written().len(), 4);
}

#[tokio::test]
async fn a_pod_is_restricted_lingers_and_runs_where_kube_apiserver_may() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault"), (1, "aws")]));
    ensure(&fake.context(), &wish).await.unwrap();
    let deployment = fake.at(&format!("{APPS}/sidekey-providers"));
    let _: Deployment = serde_json::from_value(deployment.clone()).unwrap();
    let rolling = &deployment["spec"]["strategy"]["rollingUpdate"];
    assert_eq!(*rolling, json!({"maxUnavailable": 0, "maxSurge": 1}));
    let spec = &deployment["spec"]["template"]["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["priorityClassName"], "api-critical");
    assert_eq!(spec["tolerations"][0]["key"], "hosted");
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array().unwrap() {
            let context = &container["securityContext"];
            assert_eq!(context["readOnlyRootFilesystem"], true);
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
            let sidecar = if list == "initContainers" { json!("Always") } else { Value::Null };
            assert_eq!(container["restartPolicy"], sidecar, "{container}");
        }
    }
    assert_eq!(spec["containers"][0]["image"], "mirror/proxy:1");
    let command = &spec["containers"][0]["startupProbe"]["exec"]["command"];
    assert_eq!(command[2], "--config=/etc/sidekey/key-2.yaml");
    let volumes = spec["volumes"].to_string();
    for secret in ["sidekey-provider-aws", "sidekey-provider-vault", "sidekey-proxy-tls"] {
        assert_eq!(volumes.matches(&format!("\"{secret}\"")).count(), 1, "{secret}");
    }
    assert_eq!(volumes.matches("kms-sockets").count(), 2);
    let file = config(&fake, "key-2.yaml");
    assert_eq!(file["listen"], "0.0.0.0:10002");
    assert_eq!(file["plugin"], "unix:///var/run/sidekey/vault/kms-2.sock");
    assert_eq!(file["linger"], "15s");
    assert_eq!(
        file["clients"],
        json!([
            {"san": "shim.sidekey", "allow": ["status", "encrypt", "decrypt"]},
        ])
    );
}

#[tokio::test]
async fn no_container_but_a_provider_and_its_proxies_sees_its_sockets() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault"), (3, "vault"), (1, "aws")]));
    ensure(&fake.context(), &wish).await.unwrap();
    let deployment = fake.at(&format!("{APPS}/sidekey-providers"));
    let spec = &deployment["spec"]["template"]["spec"];
    let mut seen = Vec::new();
    for container in
        ["initContainers", "containers"].iter().flat_map(|list| spec[*list].as_array().unwrap())
    {
        for mount in container["volumeMounts"].as_array().unwrap() {
            let volume = mount["name"].as_str().unwrap();
            if volume.contains("sockets") {
                let writes = mount["readOnly"] != true;
                let path = mount["mountPath"].as_str().unwrap();
                seen.push((container["name"].as_str().unwrap(), volume, path, writes));
            }
        }
    }
    seen.sort_unstable();
    // Who renames a socket over another's, or makes one in its place, does so among its own.
    // Each under two names, for keys of today and of before.
    let mut expected = Vec::new();
    for (container, vendor, writes) in [
        ("proxy-1", "aws", false),
        ("proxy-2", "vault", false),
        ("proxy-3", "vault", false),
        ("sidekey-aws", "aws", true),
        ("sidekey-vault", "vault", true),
    ] {
        for path in ["/var/run/kmsplugin".to_owned(), format!("/var/run/sidekey/{vendor}")] {
            expected.push((container, format!("kms-sockets-{vendor}"), path, writes));
        }
    }
    let seen: Vec<_> = seen
        .into_iter()
        .map(|(container, volume, path, writes)| {
            (container, volume.to_owned(), path.to_owned(), writes)
        })
        .collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn only_kube_apiservers_pods_come_in() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault")]));
    ensure(&fake.context(), &wish).await.unwrap();
    let path = "/apis/networking.k8s.io/v1/namespaces/clusters-a/networkpolicies/sidekey-providers";
    let policy = fake.at(path);
    let _: NetworkPolicy = serde_json::from_value(policy.clone()).unwrap();
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
    let rule = json!([{
        "from": [{"podSelector": {"matchLabels": {"app": "kube-apiserver"}}}],
        "ports": [{"port": 10002, "protocol": "TCP"}],
    }]);
    assert_eq!(policy["spec"]["ingress"], rule);
    let service = fake.at(&format!("{CORE}/services/sidekey-providers"));
    let _: Service = serde_json::from_value(service).unwrap();
    let path = "/apis/policy/v1/namespaces/clusters-a/poddisruptionbudgets/sidekey-providers";
    let _: PodDisruptionBudget = serde_json::from_value(fake.at(path)).unwrap();
}

#[tokio::test]
async fn where_the_service_has_ipv6_so_do_the_proxies() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault")]));
    fake.put(&format!("{CORE}/services/sidekey-providers"), json!({
        "metadata": {"name": "sidekey-providers", "labels": {names::LABEL_ENCRYPTION: "cluster-a"}},
        "spec": {"ipFamilies": ["IPv6"]},
    }));
    ensure(&fake.context(), &wish).await.unwrap();
    assert_eq!(config(&fake, "key-2.yaml")["listen"], "[::]:10002");
}

#[tokio::test]
async fn a_pod_that_does_not_start_is_named() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault")]));
    ensure(&fake.context(), &wish).await.unwrap();
    settle(&fake);
    fake.put(
        &format!("{CORE}/pods/providers-a"),
        json!({
            "metadata": {"name": "providers-a", "labels": {SELECTOR.0: SELECTOR.1}}, "spec": {},
            "status": {"phase": "Pending", "initContainerStatuses": [{
                "name": "sidekey-vault", "state": {"waiting": {"reason": "ErrImagePull"}},
            }]},
        }),
    );
    let waits = ensure(&fake.context(), &wish).await.unwrap();
    assert_eq!(waits, ["pod providers-a is not ready: sidekey-vault: ErrImagePull"]);
}

#[tokio::test]
async fn nothing_of_others_is_written_or_deleted() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault")]));
    let theirs = json!({"metadata": {"name": "sidekey-providers"}, "spec": {"a": 1}});
    fake.put(&format!("{CORE}/services/sidekey-providers"), theirs);
    let error = ensure(&fake.context(), &wish).await.unwrap_err();
    assert!(error.report().contains("Service clusters-a/sidekey-providers is there already"));
    assert!(fake.written().is_empty());
}

#[tokio::test]
async fn what_is_removed_is_gone_and_costs_nothing_more() {
    let (fake, wish) = (hosted(), encryption(&[(2, "vault")]));
    ensure(&fake.context(), &wish).await.unwrap();
    fake.written();
    // Nobody of ours is left: the same.
    ensure(&fake.context(), &encryption(&[(7, "external")])).await.unwrap();
    let written = fake.written();
    assert_eq!(written.len(), 5, "{written:?}");
    assert_eq!(written[4], format!("DELETE {APPS}/sidekey-providers"));
    remove(&fake.context(), &wish).await.unwrap();
    assert!(fake.written().is_empty());
}

#[tokio::test]
async fn a_cluster_that_may_be_its_own_is_refused() {
    let wish = encryption(&[(2, "vault")]);
    let fake = hosted();
    assert_eq!(refused(&fake.context(), &wish).await.unwrap(), None);
    let mut pod = fake.at(&format!("{CORE}/pods/kas-a"));
    pod["status"]["hostIP"] = "10.9.9.9".into();
    fake.put(&format!("{CORE}/pods/kas-a"), pod.clone());
    let text = refused(&fake.context(), &wish).await.unwrap().unwrap();
    assert!(text.contains("pod kas-a is the API server of this cluster"), "{text}");
    let plane = Plane::read(&fake.context().client, &wish).await.unwrap();
    assert!(standalone(&plane, &["[10.9.9.9]:443".to_owned()]).is_some());
    assert_eq!(standalone(&plane, &["10.9.9.90:443".to_owned()]), None);
    pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    fake.put(&format!("{CORE}/pods/kas-a"), pod);
    let text = refused(&fake.context(), &wish).await.unwrap().unwrap();
    assert!(text.contains("static pod"), "{text}");
    fake.lock().objects.retain(|path, _| path == "/api");
    let text = refused(&fake.context(), &wish).await.unwrap().unwrap();
    assert!(text.contains("no Deployment or StatefulSet"), "{text}");
}

#[test]
fn defaults_and_additions_of_others_are_no_difference() {
    let wanted = json!({"a": 1, "list": [{"name": "x", "b": [1, 2]}], "empty": []});
    let live = json!({
        "a": 1, "more": 2,
        "list": [{"name": "theirs"}, {"name": "x", "b": [1, 2], "default": true}],
    });
    assert!(says(&live, &wanted));
    for other in [
        json!({"a": 2, "list": live["list"]}),
        json!({"a": 1, "list": [{"name": "x", "b": [1]}]}),
        json!({"a": 1, "list": []}),
        json!({"list": live["list"]}),
    ] {
        assert!(!says(&other, &wanted), "{other}");
    }
}

#[tokio::test]
async fn minters_ask_kube_apiservers_that_are_not_ready_too() {
    let (fake, mut wish) = (hosted(), encryption(&[(2, "vault"), (1, "aws")]));
    wish.spec.tokens = vec![Token::of("aws")];
    let ctx = fake.context();
    ensure(&ctx, &wish).await.unwrap();
    let servers = fake.at(&format!("{CORE}/services/sidekey-apiservers"));
    let _: Service = serde_json::from_value(servers.clone()).unwrap();
    assert_eq!(servers["spec"]["publishNotReadyAddresses"], true);
    assert_eq!(servers["spec"]["selector"], json!({"app": "kube-apiserver"}));
    assert_eq!(servers["spec"]["ports"][0]["port"], 6443);
    let deployment = fake.at(&format!("{APPS}/sidekey-providers"));
    let spec = &deployment["spec"]["template"]["spec"];
    let minter = &spec["initContainers"][0];
    assert_eq!(minter["name"], "sidekey-token-aws");
    assert!(minter["startupProbe"].is_null());
    let args = minter["args"].to_string();
    assert!(args.contains("--server=https://sidekey-apiservers.clusters-a.svc:6443"), "{args}");
    let provider = spec["initContainers"][1].to_string();
    assert!(provider.contains("kms-token-aws") && !provider.contains("kubeconfig"), "{provider}");
    let volumes = spec["volumes"].to_string();
    assert!(volumes.contains(r#""secretName":"service-network-admin-kubeconfig""#), "{volumes}");
    // It is applied once, and goes with the others.
    settle(&fake);
    fake.written();
    assert_eq!(ensure(&ctx, &wish).await.unwrap(), [""; 0]);
    assert!(fake.written().is_empty());
    remove(&ctx, &wish).await.unwrap();
    let deleted = fake.written();
    assert!(deleted.contains(&format!("DELETE {CORE}/services/sidekey-apiservers")), "{deleted:?}");
}

#[tokio::test]
async fn a_token_that_kubelet_gives_needs_no_minter_and_no_way_to_kube_apiservers() {
    let (fake, mut wish) = (hosted(), encryption(&[(2, "vault"), (1, "aws")]));
    let pod_token = PodToken { audience: None, expiry: "15m".to_owned() };
    let mut token = Token::of("aws");
    token.source = TokenSource::Pod { pod_token };
    wish.spec.tokens = vec![token];
    ensure(&fake.context(), &wish).await.unwrap();
    let deployment = fake.at(&format!("{APPS}/sidekey-providers"));
    let spec = &deployment["spec"]["template"]["spec"];
    assert_eq!(spec["initContainers"][0]["name"], "sidekey-aws");
    let volumes = spec["volumes"].to_string();
    assert!(volumes.contains(r#""serviceAccountToken":{"#), "{volumes}");
    let written = fake.written();
    assert!(!written.iter().any(|line| line.contains("sidekey-apiservers")), "{written:?}");
}

#[tokio::test]
async fn without_minters_their_way_to_kube_apiservers_goes_once_no_pod_needs_it() {
    let (fake, mut wish) = (hosted(), encryption(&[(2, "vault"), (1, "aws")]));
    wish.spec.tokens = vec![Token::of("aws")];
    let ctx = fake.context();
    ensure(&ctx, &wish).await.unwrap();
    wish.spec.tokens.clear();
    fake.written();
    let deletion = format!("DELETE {CORE}/services/sidekey-apiservers");

    assert_ne!(ensure(&ctx, &wish).await.unwrap(), [""; 0]);
    assert!(!fake.written().contains(&deletion), "pods with minters may still run");
    settle(&fake);
    assert_eq!(ensure(&ctx, &wish).await.unwrap(), [""; 0]);
    assert_eq!(fake.written(), [deletion]);

    let others = format!("{CORE}/services/sidekey-apiservers");
    fake.put(&others, json!({"metadata": {"name": "sidekey-apiservers"}}));
    fake.written();
    assert_eq!(ensure(&ctx, &wish).await.unwrap(), [""; 0]);
    assert!(fake.written().is_empty(), "it is somebody else's");
}
