#![allow(clippy::unwrap_used, clippy::expect_used)]

use rustls::RootCertStore;
use serde_json::{Value, json};
use sidekey_core::Secret as Content;

use super::super::super::roll::fake::Fake;
use super::super::reconcile;
use super::*;
use crate::fleet::{KeyStatus, Refusal, ShimReport, ShimStatus};
use crate::model::{API_VERSION, KIND};
use crate::render::{Created, PartName, Phase, ResolvedFiles, render};

const SECRETS: &str = "/api/v1/namespaces/clusters-a/secrets";
const PODS: &str = "/api/v1/namespaces/clusters-a/pods";
const POD: &str = "/api/v1/namespaces/clusters-a/pods/kas-0";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/clusters-a/deployments/kube-apiserver";
const BUNDLE: &str = "/api/v1/namespaces/clusters-a/secrets/ca-bundle";
const MAP: &str = "/api/v1/namespaces/clusters-a/configmaps/ca-map";
const STATUS: &str = "/apis/sidekey.dev/v1alpha1/namespaces/clusters-a/secretencryptions/a/status";

/// A control plane that is settled, in clear, and what the operator remembers of it.
struct World {
    fake: Fake,
    ctx: Context,
    object: Value,
}

fn files(refers: bool) -> Value {
    match refers {
        true => json!([
            {"name": "bundle", "secret": {"name": "ca-bundle", "key": "ca"}},
            {"name": "map", "configMap": {"name": "ca-map", "key": "ca"}},
        ]),
        false => json!([]),
    }
}

impl World {
    async fn new(refers: bool) -> Self {
        let fake = Fake::default();
        let object = json!({
            "apiVersion": API_VERSION, "kind": KIND,
            "metadata": {
                "name": "a", "namespace": "clusters-a", "uid": "u", "generation": 1,
                "resourceVersion": "0",
            },
            "spec": {"keys": [], "write": "identity", "shimFiles": files(refers)},
            "status": {"activeKey": {"id": 0, "vendor": "identity", "fingerprint": ""}},
        });
        let document = SecretEncryption::from_document(&object).unwrap();
        let mut resolved = ResolvedFiles::default();
        for source in document.sources() {
            resolved.insert(source.clone(), Content::new(b"pem".to_vec()));
        }
        let rendered = render(&document, 1, &resolved, Phase::Settled).unwrap();
        for secret in rendered.objects(&Created::now()) {
            let name = secret["metadata"]["name"].as_str().unwrap();
            fake.put(&format!("{SECRETS}/{name}"), secret.clone());
        }
        fake.put(BUNDLE, json!({"metadata": {"name": "ca-bundle"}, "data": {"ca": "cGVt"}}));
        fake.put(MAP, json!({"metadata": {"name": "ca-map"}, "data": {"ca": "pem"}}));
        let template = json!({
            "metadata": {"labels": {"app": "kube-apiserver"}},
            "spec": {"containers": [{"name": "kube-apiserver", "image": "kas:1"}]},
        });
        let status = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1});
        fake.put(
            DEPLOYMENT,
            json!({
                "metadata": {"name": "kube-apiserver", "generation": 1},
                "spec": {"replicas": 1, "template": template}, "status": status,
            }),
        );
        let ready =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
        pod["metadata"]["name"] = "kas-0".into();
        pod["status"] = ready;
        fake.put(POD, pod);
        let ctx = fake.context();
        let mut world = Self { fake, ctx, object };
        world.settle().await;
        world
    }

    /// Passes until nothing is written any more.
    async fn settle(&mut self) {
        for _ in 0..5 {
            self.look().await;
            if self.fake.written().is_empty() {
                self.fake.lock().reads.clear();
                return;
            }
            self.object["status"] = self.fake.at(STATUS)["status"].clone();
            self.edit();
        }
        panic!("it writes and writes: {}", self.object["status"]);
    }

    /// The API server gives another version with every change.
    fn edit(&mut self) {
        let version = &mut self.object["metadata"]["resourceVersion"];
        *version = format!("{}0", version.as_str().unwrap()).into();
    }

    /// Looks at it; gives how many requests that took.
    async fn look(&self) -> usize {
        self.fake.lock().reads.clear();
        let object: DynamicObject = serde_json::from_value(self.object.clone()).unwrap();
        reconcile(&object, &self.ctx).await.unwrap();
        self.fake.lock().reads.len()
    }

    fn touch(&self, path: &str) {
        let object = self.fake.at(path);
        self.fake.put(path, object);
    }
}

#[tokio::test(start_paused = true)]
async fn where_nothing_changes_a_look_takes_two_requests_and_one_for_each_that_it_refers_to() {
    let world = World::new(false).await;
    for _ in 0..3 {
        assert_eq!(world.look().await, 2);
        assert_eq!(world.fake.lock().reads, [SECRETS, PODS]);
    }
    let world = World::new(true).await;
    assert_eq!(world.look().await, 4);
    assert_eq!(world.fake.lock().reads, [SECRETS, PODS, MAP, BUNDLE]);
    assert!(world.fake.written().is_empty());
}

#[tokio::test(start_paused = true)]
async fn whatever_is_another_one_leads_to_a_whole_pass() {
    let head = format!("{SECRETS}/{}", PartName::KubeApiserver.secret());
    type Change = Box<dyn Fn(&mut World)>;
    let changes: [(&str, Change); 8] = [
        ("a head is written", Box::new(move |world| world.touch(&head))),
        ("what it refers to is written", Box::new(|world| world.touch(BUNDLE))),
        ("a ConfigMap that it refers to is written", Box::new(|world| world.touch(MAP))),
        ("a pod is in another state", Box::new(|world| world.touch(POD))),
        (
            "a pod is another one",
            Box::new(|world| {
                let mut pod = world.fake.at(POD);
                pod["metadata"]["uid"] = "another".into();
                world.fake.put(POD, pod);
            }),
        ),
        (
            "a Secret of ours is new",
            Box::new(|world| {
                let (managed, by) = names::MANAGED_BY;
                let metadata = json!({"name": "sidekey-x", "labels": {managed: by}});
                world.fake.put(&format!("{SECRETS}/sidekey-x"), json!({"metadata": metadata}));
            }),
        ),
        ("its own status or spec is another", Box::new(World::edit)),
        ("it cannot be told", Box::new(|world| world.fake.lock().fails = 1)),
    ];
    for (what, change) in changes {
        let mut world = World::new(true).await;
        assert_eq!(world.look().await, 4, "{what}");
        change(&mut world);
        assert!(world.look().await > 8, "{what}: {:?}", world.fake.lock().reads);
        world.settle().await;
        assert_eq!(world.look().await, 4, "{what}: and then it is quiet again");
    }
}

#[tokio::test(start_paused = true)]
async fn the_label_that_brings_sidecars_in_is_looked_at_where_it_counts() {
    let world = World::new(false).await;
    let mut object: DynamicObject = serde_json::from_value(world.object.clone()).unwrap();
    let label = |labels: Value| {
        let metadata = json!({"name": "clusters-a", "labels": labels});
        world.fake.put("/api/v1/namespaces/clusters-a", json!({"metadata": metadata}));
    };
    for (injection, counts) in [("Webhook", true), ("Template", false)] {
        object.data["spec"]["controlPlane"] = json!({"injection": injection});
        label(json!({"sidekey.dev/inject": "enabled"}));
        let before = note(&object, &world.ctx).await.unwrap();
        assert_eq!(note(&object, &world.ctx).await.unwrap(), before);
        label(json!({}));
        assert_eq!(note(&object, &world.ctx).await.unwrap() != before, counts, "{injection}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_network_policy_that_changes_is_noticed_where_one_of_ours_stands() {
    const POLICY: &str = "/apis/networking.k8s.io/v1/namespaces/clusters-a/networkpolicies/theirs";
    let world = World::new(false).await;
    let object: DynamicObject = serde_json::from_value(world.object.clone()).unwrap();
    let put = |selector: Value| {
        let spec = json!({"podSelector": selector});
        world.fake.put(POLICY, json!({"metadata": {"name": "theirs"}, "spec": spec}));
    };
    for stands in [true, false] {
        world.ctx.quiet.set_policy("clusters-a", stands);
        put(json!({}));
        let before = note(&object, &world.ctx).await.unwrap();
        assert_eq!(note(&object, &world.ctx).await.unwrap(), before);
        put(json!({"matchLabels": {"app": "etcd"}}));
        let narrowed = note(&object, &world.ctx).await.unwrap();
        assert_eq!(narrowed != before, stands, "narrowed");
        world.fake.lock().objects.remove(POLICY);
        assert_eq!(note(&object, &world.ctx).await.unwrap() != narrowed, stands, "gone");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_leads_to_a_whole_pass() {
    for path in [BUNDLE, POD] {
        let world = World::new(true).await;
        assert_eq!(world.look().await, 4);
        world.fake.lock().objects.remove(path);
        assert!(world.look().await > 4, "{path}: {:?}", world.fake.lock().reads);
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_pass_comes_after_some_minutes_though_nothing_has_changed() {
    let world = World::new(false).await;
    tokio::time::advance(std::time::Duration::from_secs(290)).await;
    assert_eq!(world.look().await, 2);
    tokio::time::advance(std::time::Duration::from_secs(311)).await;
    assert!(world.look().await > 8);
    assert_eq!(world.look().await, 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_remembered_while_a_rotation_is_under_way() {
    let world = World::new(false).await;
    let mut object: DynamicObject = serde_json::from_value(world.object.clone()).unwrap();
    assert!(note(&object, &world.ctx).await.is_some());
    object.data["status"]["rotation"] = json!({"stage": "Migrating", "startedTime": "x"});
    assert!(note(&object, &world.ctx).await.is_none());
    object.data["status"] = json!({});
    assert!(note(&object, &world.ctx).await.is_none(), "nor before the first one");
}

fn shim() -> ShimReport {
    let key = KeyStatus {
        id: "1".into(),
        role: "write".into(),
        fingerprint: "ab".into(),
        healthy: true,
        key_id_hash: Some("sha256:1".into()),
        ..KeyStatus::default()
    };
    let status = ShimStatus {
        revision: Some("7".into()),
        key_id_hash: Some("sha256:1".into()),
        healthy: true,
        keys: vec![key],
        ..ShimStatus::default()
    };
    ShimReport { name: "kas-0".into(), ending: false, status: Some(status), error: None }
}

fn status(change: impl Fn(&mut ShimStatus)) -> ShimReport {
    let mut shim = shim();
    change(shim.status.as_mut().unwrap());
    shim
}

#[test]
fn what_a_shim_says_is_the_same_only_if_a_pass_would_conclude_the_same() {
    let before = outlook::answers(&[shim()]);
    let later = status(|status| {
        status.keys[0].since = "2026-01-02T00:00:00Z".into();
        status.keys[0].last_success = Some("2026-01-02T00:00:00Z".into());
    });
    assert_eq!(outlook::answers(&[later]), before, "time passes");
    let silent = ShimReport { status: None, error: Some("no answer".into()), ..shim() };
    let refusal = Refusal { at: String::new(), error: "no such file".into() };
    for other in [
        vec![],
        vec![shim(), shim()],
        vec![silent],
        vec![status(|status| status.revision = Some("8".into()))],
        vec![status(|status| status.key_id_hash = Some("sha256:2".into()))],
        vec![status(|status| status.keys[0].key_id_hash = Some("sha256:2".into()))],
        vec![status(|status| status.keys[0].healthy = false)],
        vec![status(|status| status.keys[0].role = "read".into())],
        vec![status(|status| status.keys[0].fingerprint = "cd".into())],
        vec![status(|status| status.keys.clear())],
        vec![status(|status| status.healthy = false)],
        vec![status(|status| status.config.refused = Some(refusal.clone()))],
    ] {
        assert_ne!(outlook::answers(&other), before, "{other:?}");
    }
}

#[test]
fn with_a_shim_that_is_not_well_everything_is_looked_at_each_time() {
    let seen = |shim: ShimReport| Observation { shims: vec![shim], ..Observation::default() };
    assert!(Calm::new(&seen(shim()), Vec::new(), None).is_some());
    let bad = status(|status| status.healthy = false);
    assert!(Calm::new(&seen(bad), Vec::new(), None).is_none());
}

#[tokio::test]
async fn a_shim_that_does_not_answer_any_more_leads_to_a_whole_pass() {
    let world = World::new(false).await;
    let object: DynamicObject = serde_json::from_value(world.object.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let ip = Some("127.255.255.254".to_owned());
    let replica = Replica { name: "kas-0".into(), uid: None, ending: false, ip, trouble: None };
    let seen = Observation { shims: vec![shim()], ..Observation::default() };
    let calm = Calm::new(&seen, vec![replica], Some(Arc::new(tls))).unwrap();
    let versions = note(&object, &world.ctx).await.unwrap();
    let stood = Stood::new(&object, versions.clone(), calm);
    let (holds, found) = stood.holds(&object, &world.ctx).await;
    assert!(!holds);
    assert_eq!(found, Some(versions), "all else is as it was");
}
