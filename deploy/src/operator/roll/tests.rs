use serde_json::{Value, json};

use super::fake::Fake;
use super::step::{by_eviction, by_others, by_template};
use super::*;
use crate::inject::{Sidecars, form};

mod elsewhere;
mod tokens;

const NAMESPACE: &str = "clusters-a";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/clusters-a/deployments/kube-apiserver";
const PODS: &str = "/api/v1/namespaces/clusters-a/pods";

fn encryption(injection: &str, vendors: &[&str]) -> SecretEncryption {
    let keys: Vec<Value> = vendors
        .iter()
        .zip(1..)
        .map(|(vendor, id)| {
            let role = if id == 1 { "write" } else { "read" };
            json!({"id": id, "type": vendor, "role": role, "kek": {"key": "k"}})
        })
        .collect();
    let document = json!({
        "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
        "metadata": {"name": "cluster-a", "namespace": NAMESPACE},
        "spec": {"controlPlane": {"injection": injection}, "keys": keys},
    });
    SecretEncryption::from_document(&document).unwrap()
}

/// A Deployment as an API server gives it, settled.
fn deployment(replicas: u64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "kube-apiserver", "namespace": NAMESPACE, "generation": 3},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "kube-apiserver"}},
            "fieldOfTomorrow": {"kept": true},
            "template": {
                "metadata": {"labels": {"app": "kube-apiserver"}},
                "spec": {"containers": [{
                    "name": "kube-apiserver", "image": "kas:1", "args": ["--secure-port=6443"],
                }]},
            },
        },
        "status": settled(3, replicas),
    })
}

fn settled(generation: u64, replicas: u64) -> Value {
    json!({"observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas})
}

fn injected(deployment: &Value, encryption: &SecretEncryption) -> Value {
    let wanted = wanted(encryption).unwrap();
    serde_json::from_str(&inject(&deployment.to_string(), &wanted).unwrap().text).unwrap()
}

/// A pod as this Deployment makes it.
fn pod(deployment: &Value, name: &str, created: u64) -> Value {
    let template = &deployment["spec"]["template"];
    let mut pod = json!({
        "metadata": template["metadata"], "spec": template["spec"],
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["uid"] = format!("uid-of-{name}").into();
    pod["metadata"]["creationTimestamp"] = format!("2026-01-01T00:00:{created:02}Z").into();
    pod
}

fn unready(pod: &mut Value, container: &str, reason: &str) {
    pod["status"]["conditions"][0]["status"] = "False".into();
    let waiting = json!({"waiting": {"reason": reason, "message": "why"}});
    pod["status"]["initContainerStatuses"] = json!([{"name": container, "state": waiting}]);
}

/// A cluster with a Deployment and these pods.
fn cluster(deployment: &Value, pods: &[Value]) -> Fake {
    let fake = Fake::default();
    fake.put(DEPLOYMENT, deployment.clone());
    fake.put(
        &format!("/api/v1/namespaces/{NAMESPACE}"),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
    );
    for pod in pods {
        fake.put(&format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap()), pod.clone());
    }
    fake
}

fn three(deployment: &Value) -> Vec<Value> {
    ["kas-a", "kas-b", "kas-c"].into_iter().zip(1..).map(|(n, c)| pod(deployment, n, c)).collect()
}

async fn plane(fake: &Fake, encryption: &SecretEncryption) -> Plane {
    Plane::read(&fake.context().client, encryption).await.unwrap()
}

async fn next(fake: &Fake, encryption: &SecretEncryption) -> Outlook {
    let (plane, goal) = (plane(fake, encryption).await, Goal::sidecars(encryption).unwrap());
    match encryption.spec.control_plane.injection {
        Injection::Template => by_template(&plane, &goal),
        Injection::Webhook => by_eviction(&plane, &goal),
        Injection::None => by_others(&plane, &goal),
    }
}

#[tokio::test]
async fn a_template_is_changed_once_and_then_waited_for() {
    let (wish, bare) = (encryption("Template", &["vault"]), deployment(3));
    let fake = cluster(&bare, &three(&bare));
    let ctx = fake.context();
    let waits = ensure(&ctx, &wish).await.unwrap();
    assert_eq!(waits, ["Deployment kube-apiserver has just been changed"]);
    assert_eq!(fake.written(), [format!("PUT {DEPLOYMENT}")]);
    let mut now = fake.at(DEPLOYMENT);
    assert_eq!(now["spec"]["replicas"], 3);
    assert_eq!(now["spec"]["fieldOfTomorrow"]["kept"], true);
    assert!(now["status"].is_null(), "{now}");
    // Nobody has taken it up: nothing more is written.
    now["metadata"]["generation"] = 4.into();
    now["status"] = settled(3, 3);
    fake.put(DEPLOYMENT, now.clone());
    let waits = ensure(&ctx, &wish).await.unwrap();
    assert!(waits[0].contains("nobody has taken up"), "{waits:?}");
    assert!(waits.iter().any(|wait| wait == "pod kas-a has no sidecars yet"), "{waits:?}");
    // All are replaced.
    now["status"] = settled(4, 3);
    fake.put(DEPLOYMENT, now.clone());
    for pod in three(&now) {
        fake.put(&format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap()), pod);
    }
    assert_eq!(ensure(&ctx, &wish).await.unwrap(), [""; 0]);
    assert!(fake.written().is_empty());
}

#[tokio::test]
async fn a_pod_that_is_unready_ending_or_missing_is_waited_for() {
    let wish = encryption("Template", &["vault"]);
    let with = injected(&deployment(3), &wish);
    let pods = three(&with);
    let mut ending = pods.clone();
    ending[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z".into();
    let mut sick = pods.clone();
    unready(&mut sick[2], "sidekey-vault", "ImagePullBackOff");
    let mut over = pods.clone();
    over[0]["status"]["phase"] = "Failed".into();
    let cases = [
        (pods.clone(), None),
        (ending, Some("pod kas-b is ending")),
        (sick, Some("pod kas-c is not ready: sidekey-vault: ImagePullBackOff: why")),
        (over, Some("there are 2 pods of kube-apiserver, 3 are wanted")),
        (pods[..2].to_vec(), Some("there are 2 pods of kube-apiserver, 3 are wanted")),
    ];
    for (pods, expected) in cases {
        let fake = cluster(&with, &pods);
        let waits = ensure(&fake.context(), &wish).await.unwrap();
        match expected {
            None => assert!(waits.is_empty(), "{waits:?}"),
            Some(text) => assert!(waits.iter().any(|wait| wait == text), "{text}: {waits:?}"),
        }
        assert!(fake.written().is_empty());
    }
}

#[tokio::test]
async fn no_template_is_changed_while_something_else_is_under_way() {
    let wish = encryption("Template", &["vault"]);
    let mut rolling = deployment(3);
    rolling["status"]["updatedReplicas"] = 1.into();
    let outlook = next(&cluster(&rolling, &three(&rolling)), &wish).await;
    assert_eq!(outlook.step, None);
    assert!(outlook.waits[0].contains("as soon as"), "{:?}", outlook.waits);
    let mut pods = three(&deployment(3));
    unready(&mut pods[0], "kube-apiserver", "CrashLoopBackOff");
    assert_eq!(next(&cluster(&deployment(3), &pods), &wish).await.step, None);
}

#[tokio::test]
async fn a_roll_out_that_is_stuck_on_our_sidecar_is_overtaken() {
    let mut old = encryption("Template", &["vault"]);
    old.spec.images.insert("vault".into(), "registry/typo:1".into());
    let mut with = injected(&deployment(3), &old);
    with["status"]["updatedReplicas"] = 1.into();
    let mut pods = three(&with);
    unready(&mut pods[2], "sidekey-vault", "ImagePullBackOff");
    let wish = encryption("Template", &["vault"]);
    assert_eq!(next(&cluster(&with, &pods), &wish).await.step, Some(Step::Write(0)));
    // The one that is wanted is not written again.
    assert_eq!(next(&cluster(&with, &pods), &old).await.step, None);
    let mut given_up = with.clone();
    given_up["status"]["conditions"] =
        json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
    unready(&mut pods[2], "kube-apiserver", "CrashLoopBackOff");
    assert_eq!(next(&cluster(&given_up, &pods), &wish).await.step, Some(Step::Write(0)));
}

#[tokio::test]
async fn a_template_that_others_have_cut_is_mended() {
    let wish = encryption("Template", &["vault"]);
    let mut cut = injected(&deployment(3), &wish);
    cut["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["--secure-port=6443"]);
    let fake = cluster(&cut, &three(&cut));
    ensure(&fake.context(), &wish).await.unwrap();
    let args = fake.at(DEPLOYMENT)["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(args.contains("--encryption-provider-config="), "{args}");
}

#[tokio::test]
async fn of_two_writers_one_tries_again() {
    let (wish, bare) = (encryption("Template", &["vault"]), deployment(3));
    let fake = cluster(&bare, &three(&bare));
    fake.lock().refusals.push_back(409);
    let waits = ensure(&fake.context(), &wish).await.unwrap();
    assert!(waits.iter().any(|wait| wait.contains("somebody else")), "{waits:?}");
}

#[tokio::test]
async fn of_two_deployments_one_is_changed_at_a_time() {
    let wish = encryption("Template", &["vault"]);
    let bare = deployment(3);
    let fake = cluster(&bare, &three(&bare));
    let mut other = deployment(0);
    other["metadata"]["name"] = "kube-apiserver-b".into();
    fake.put(&format!("{DEPLOYMENT}-b"), other);
    ensure(&fake.context(), &wish).await.unwrap();
    assert_eq!(fake.written(), [format!("PUT {DEPLOYMENT}")]);
    let mut now = fake.at(DEPLOYMENT);
    now["metadata"]["generation"] = 4.into();
    now["status"] = settled(3, 3);
    fake.put(DEPLOYMENT, now);
    ensure(&fake.context(), &wish).await.unwrap();
    assert!(fake.written().is_empty());
}

#[tokio::test]
async fn where_nothing_makes_the_pods_it_is_said_what_to_do() {
    for injection in ["Template", "Webhook"] {
        let mut wish = encryption(injection, &["vault"]);
        wish.spec.control_plane.container = "another".into();
        let fake = cluster(&deployment(3), &[]);
        let _ = ensure(&fake.context(), &wish).await;
        let error = ensure(&fake.context(), &wish).await.unwrap_err();
        assert!(error.report().contains("app=kube-apiserver"), "{}", error.report());
        assert!(error.advice().unwrap().contains("spec.controlPlane"));
    }
}

#[tokio::test]
async fn an_idle_vendor_causes_no_roll_out_and_goes_with_the_next() {
    let before = encryption("Template", &["aws", "vault"]);
    let with = injected(&deployment(3), &before);
    let fake = cluster(&with, &three(&with));
    let mut after = encryption("Template", &["aws", "vault"]);
    after.spec.keys.retain(|key| key.vendor == "vault");
    assert_ne!(form(&wanted(&after).unwrap()), form(&wanted(&before).unwrap()));
    assert_eq!(ensure(&fake.context(), &after).await.unwrap(), [""; 0]);
    // Nor does an image that nobody uses any more.
    after.spec.images.insert("aws".into(), "registry/aws:9".into());
    assert_eq!(ensure(&fake.context(), &after).await.unwrap(), [""; 0]);
    assert!(fake.written().is_empty());
    let idle = idle_vendors(&fake.context(), &after).await.unwrap();
    let users = ["Deployment kube-apiserver", "pod kas-a", "pod kas-b", "pod kas-c"];
    assert_eq!(idle, BTreeMap::from([("aws".to_owned(), users.map(str::to_owned).to_vec())]));
    // Another reason.
    after.spec.images.insert("shim".into(), "registry/shim:9".into());
    ensure(&fake.context(), &after).await.unwrap();
    let spec = fake.at(DEPLOYMENT)["spec"]["template"]["spec"].to_string();
    assert!(!spec.contains("sidekey-aws") && spec.contains("registry/shim:9"), "{spec}");
    // What is wanted and missing is not taken for idle.
    let only = injected(&deployment(3), &after);
    assert_eq!(next(&cluster(&only, &three(&only)), &before).await.step, Some(Step::Write(0)));
}

#[tokio::test]
async fn a_pod_with_all_sockets_in_one_directory_is_seen_until_it_is_gone() {
    let wish = encryption("Template", &["vault"]);
    let vendors = BTreeSet::from(["vault".to_owned()]);
    let mut old = wanted(&wish).unwrap();
    if let Sidecars::Sidekey { layout, .. } = &mut old.sidecars {
        *layout = inject::SocketLayout::Shared;
    }
    let before = inject::inject(&deployment(3).to_string(), &old).unwrap().text;
    let before: Value = serde_json::from_str(&before).unwrap();
    let now = injected(&deployment(3), &wish);
    let mut pods = three(&now);
    pods[1] = pod(&before, "kas-b", 2);
    pods[1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let fake = cluster(&now, &pods);
    assert!(shares_sockets(&fake.context(), &wish, &vendors).await.unwrap(), "kas-b ends");
    let fake = cluster(&now, &three(&now));
    assert!(!shares_sockets(&fake.context(), &wish, &vendors).await.unwrap());
    let fake = cluster(&before, &three(&now));
    assert!(shares_sockets(&fake.context(), &wish, &vendors).await.unwrap(), "the template");
    assert_eq!(next(&fake, &wish).await.step, Some(Step::Write(0)));
    // Shims that are led to proxies need no directory of a provider.
    let mut proxied = wish.clone();
    proxied.spec.placement = crate::model::Placement::Proxy;
    let alone = injected(&deployment(3), &proxied);
    let fake = cluster(&alone, &three(&alone));
    assert!(!shares_sockets(&fake.context(), &proxied, &vendors).await.unwrap());
}

#[tokio::test]
async fn to_move_providers_into_pods_of_their_own_replaces_no_pod() {
    let mut wish = encryption("Template", &["vault"]);
    let with = injected(&deployment(3), &wish);
    wish.spec.placement = crate::model::Placement::Proxy;
    let Sidecars::Sidekey { vendors, .. } = wanted(&wish).unwrap().sidecars else { panic!() };
    assert!(vendors.is_empty());
    let fake = cluster(&with, &three(&with));
    assert_eq!(ensure(&fake.context(), &wish).await.unwrap(), [""; 0]);
    // Its head is published for those pods, and so for these.
    assert!(idle_vendors(&fake.context(), &wish).await.unwrap().is_empty());
}

#[tokio::test]
async fn pods_of_others_are_evicted_one_at_a_time_the_oldest_first() {
    let (wish, bare) = (encryption("Webhook", &["vault"]), deployment(3));
    let with = injected(&bare, &wish);
    let mut pods = three(&bare);
    pods[2]["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z".into();
    let fake = cluster(&bare, &pods);
    let ctx = fake.context();
    let space = format!("/api/v1/namespaces/{NAMESPACE}");
    assert!(ensure(&ctx, &wish).await.unwrap()[0].contains("now get sidecars"));
    assert_eq!(fake.at(&space)["metadata"]["labels"][LABEL_INJECT], "enabled");
    assert_eq!(fake.written(), [format!("PATCH {space}")]);
    for name in ["kas-c", "kas-a", "kas-b"] {
        let waits = ensure(&ctx, &wish).await.unwrap();
        assert!(waits.contains(&format!("pod {name} has been evicted, and is made anew")));
        assert_eq!(fake.written(), [format!("POST {PODS}/{name}/eviction")]);
        // One is missing: nothing happens.
        ensure(&ctx, &wish).await.unwrap();
        assert!(fake.written().is_empty());
        // Its successor is there, and not ready: nothing happens.
        let mut new = pod(&with, &format!("new-{name}"), 30);
        new["status"]["conditions"][0]["status"] = "False".into();
        fake.put(&format!("{PODS}/new-{name}"), new.clone());
        let waits = ensure(&ctx, &wish).await.unwrap();
        assert!(waits.contains(&format!("pod new-{name} is not ready")), "{waits:?}");
        assert!(fake.written().is_empty());
        new["status"]["conditions"][0]["status"] = "True".into();
        fake.put(&format!("{PODS}/new-{name}"), new);
    }
    assert_eq!(ensure(&ctx, &wish).await.unwrap(), [""; 0]);
    assert!(fake.written().is_empty());
}

#[tokio::test]
async fn a_budget_is_never_overruled() {
    let (wish, bare) = (encryption("Webhook", &["vault"]), deployment(3));
    let fake = cluster(&bare, &three(&bare));
    ensure(&fake.context(), &wish).await.unwrap();
    fake.lock().refusals.push_back(429);
    let waits = ensure(&fake.context(), &wish).await.unwrap();
    assert!(waits.iter().any(|wait| wait.contains("may not be evicted now")), "{waits:?}");
    assert_eq!(plane(&fake, &wish).await.pods.len(), 3);
}

#[tokio::test]
async fn of_pods_without_sidecars_the_one_that_serves_nobody_goes_first() {
    let (wish, bare) = (encryption("Webhook", &["vault"]), deployment(3));
    let mut pods = three(&bare);
    unready(&mut pods[1], "kube-apiserver", "CrashLoopBackOff");
    assert_eq!(next(&cluster(&bare, &pods), &wish).await.step, Some(Step::Evict(1)));
    unready(&mut pods[2], "kube-apiserver", "CrashLoopBackOff");
    assert_eq!(next(&cluster(&bare, &pods), &wish).await.step, None);
    unready(&mut pods[2], "sidekey-vault", "ErrImagePull");
    assert_eq!(next(&cluster(&bare, &pods), &wish).await.step, Some(Step::Evict(2)));
    let mut ending = three(&bare);
    ending[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z".into();
    assert_eq!(next(&cluster(&bare, &ending), &wish).await.step, None);
}

#[tokio::test]
async fn where_others_put_them_in_it_is_only_said_who_lacks_them() {
    let (wish, bare) = (encryption("None", &["vault"]), deployment(3));
    let fake = cluster(&bare, &three(&bare));
    let waits = ensure(&fake.context(), &wish).await.unwrap();
    assert_eq!(waits.len(), 3);
    assert!(waits[0].contains("pod kas-a has no container sidekey-shim"), "{waits:?}");
    // In whatever form.
    let mut other = wish.clone();
    other.spec.images.insert("shim".into(), "mine/shim:1".into());
    let with = injected(&bare, &other);
    let fake = cluster(&with, &three(&with));
    assert_eq!(ensure(&fake.context(), &wish).await.unwrap(), [""; 0]);
    let more = encryption("None", &["vault", "aws"]);
    let waits = ensure(&fake.context(), &more).await.unwrap();
    assert!(waits[0].contains("no container sidekey-aws"), "{waits:?}");
    assert!(fake.written().is_empty());
}

#[tokio::test]
async fn what_was_put_in_is_taken_out_again() {
    let wish = encryption("Template", &["vault"]);
    let with = injected(&deployment(3), &wish);
    let fake = cluster(&with, &three(&with));
    remove(&fake.context(), &wish).await.unwrap();
    let now = fake.at(DEPLOYMENT);
    assert_eq!(now["spec"], deployment(3)["spec"]);
    let mut gone = now;
    gone["status"] = settled(3, 3);
    let fake = cluster(&gone, &three(&gone));
    assert_eq!(remove(&fake.context(), &wish).await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn the_webhook_is_turned_off_before_pods_are_evicted() {
    let (wish, bare) = (encryption("Webhook", &["vault"]), deployment(3));
    let with = injected(&bare, &wish);
    let fake = cluster(&bare, &three(&with));
    let space = format!("/api/v1/namespaces/{NAMESPACE}");
    fake.put(&space, json!({"metadata": {"name": NAMESPACE, "labels": {LABEL_INJECT: "enabled"}}}));
    remove(&fake.context(), &wish).await.unwrap();
    assert!(fake.at(&space)["metadata"]["labels"][LABEL_INJECT].is_null());
    fake.written();
    remove(&fake.context(), &wish).await.unwrap();
    assert_eq!(fake.written(), [format!("POST {PODS}/kas-a/eviction")]);
}
