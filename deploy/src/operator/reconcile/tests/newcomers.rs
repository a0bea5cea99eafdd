//! Resources that are new beside others that are encrypted.

use super::super::super::roll::fake::Fake;
use super::*;
use crate::fleet::{Observation, ShimReport, ShimStatus};
use crate::operator::reason;
use crate::render::Created;
use crate::render::encryption::providers;

const NAMESPACE: &str = "/api/v1/namespaces/clusters-a";
const JOBS: &str = "/apis/batch/v1/namespaces/clusters-a/jobs";

/// The document of a mode with these resources.
fn with(mode: Mode, resources: &[&str]) -> SecretEncryption {
    let mut document = wanted(mode);
    document.spec.resources = resources.iter().map(|name| (*name).to_owned()).collect();
    document
}

/// The document, settled.
fn published(document: &SecretEncryption) -> Live {
    let stand = Stand::of(Writes::wanted(document));
    put(&Live::default(), &draft(document, &Live::default(), &stand).unwrap(), &[]).unwrap()
}

/// What a resource is read with, the writer first.
fn readers(live: &Live, resource: &str) -> Vec<String> {
    let stanzas = live.view().unwrap().stanzas.unwrap();
    let list = providers(&stanzas, resource).unwrap_or_default();
    list.iter().flat_map(|provider| provider.labels()).collect()
}

#[test]
fn a_new_resource_is_read_encrypted_by_all_before_one_encrypts_it() {
    for (mode, writer) in [(Mode::Key(1), "sidekey"), (Mode::Cipher, "aescbc/c1")] {
        let more = with(mode, &["secrets", "configmaps"]);
        let mut stand = Stand::of(Writes::wanted(&more));
        let mut live = published(&with(mode, &["secrets"]));
        // Whatever was proven before: nobody has seen it yet.
        for proven in [true, false, false] {
            stand.proven = proven;
            let made = draft(&more, &live, &stand).unwrap();
            assert_eq!(made.document.spec.unread, ["configmaps"]);
            assert_eq!(resources::encrypted(&made.document), ["secrets"]);
            live = put(&live, &made, &[]).unwrap();
            assert_eq!(readers(&live, "configmaps"), ["identity", writer, "identity"]);
            assert_eq!(readers(&live, "secrets"), [writer, "identity"], "they stay encrypted");
            assert_eq!(Writes::live(&live).unwrap(), Some(Writes::wanted(&more)));
        }
        stand.proven = true;
        let made = draft(&more, &live, &stand).unwrap();
        live = put(&live, &made, &[]).unwrap();
        assert_eq!(readers(&live, "configmaps"), [writer, "identity"]);
        stand.proven = false;
        let made = draft(&more, &live, &stand).unwrap();
        assert_eq!(made.document.spec.unread, [""; 0], "and it stays so");
        assert_eq!(resources::encrypted(&made.document), ["configmaps", "secrets"]);
    }
}

#[test]
fn a_new_resource_that_rides_on_a_rotation_is_not_encrypted_before_it_is_proven_either() {
    let more = |mode| with(mode, &["secrets", "configmaps"]);
    for (from, to) in [(Mode::Key(1), Mode::Key(2)), (Mode::Clear, Mode::Key(1))] {
        let state = State::begin(turn(from), turn(to), "now", None);
        // Edited before the rotation, and after it has turned the order.
        let start = published(&with(from, &["secrets"]));
        let mut live = put(&start, &staged(&state, &start, &more(to), false), &[]).unwrap();
        assert_eq!(readers(&live, "configmaps")[0], "identity", "{from:?}");
        live = put(&live, &staged(&state, &live, &more(to), true), &[]).unwrap();
        // From clear every kube-apiserver has said that it reads with the key.
        let expected = if from == Mode::Clear { "sidekey" } else { "identity" };
        assert_eq!(readers(&live, "configmaps")[0], expected, "{from:?}");

        let few = with(to, &["secrets"]);
        let mut live = put(&start, &staged(&state, &start, &few, false), &[]).unwrap();
        live = put(&live, &staged(&state, &live, &few, true), &[]).unwrap();
        for _ in 0..2 {
            live = put(&live, &staged(&state, &live, &more(to), true), &[]).unwrap();
            assert_eq!(readers(&live, "configmaps")[0], "identity", "{from:?}");
            assert_eq!(readers(&live, "secrets")[0], "sidekey", "{from:?}");
        }
    }
}

#[test]
fn a_wildcard_comes_along_in_a_stanza_of_its_own_alone() {
    let live = published(&with(Mode::Key(1), &["secrets", "configmaps"]));
    let mut stand = Stand::of(Writes::Key(KeyNumber(1)));
    for list in [vec!["*.*"], vec!["*."], vec!["secrets", "configmaps", "*.apps"]] {
        for proven in [false, true] {
            stand.proven = proven;
            let error = draft(&with(Mode::Key(1), &list), &live, &stand).unwrap_err();
            assert_eq!(error.exit(), Exit::No, "{list:?}");
            assert!(error.advice().unwrap().contains("stanzas: [{name: rest"), "{list:?}");
        }
    }
    let apart = document(json!({
        "keys": [key(1, "write")], "stanzas": [{"name": "rest", "resources": ["*.*"]}],
    }));
    stand.proven = false;
    let live = put(&live, &draft(&apart, &live, &stand).unwrap(), &[]).unwrap();
    assert_eq!(readers(&live, "pods"), ["identity", "sidekey-rest"]);
    assert_eq!(readers(&live, "secrets"), ["sidekey", "identity"]);
    assert_eq!(Writes::live(&live).unwrap(), Some(Writes::Key(KeyNumber(1))));
    stand.proven = true;
    let live = put(&live, &draft(&apart, &live, &stand).unwrap(), &[]).unwrap();
    assert_eq!(readers(&live, "pods"), ["sidekey-rest", "identity"]);
    // Where nothing is encrypted, nothing has to be proven.
    let clear = published(&with(Mode::Clear, &["secrets"]));
    let stand = Stand::of(Writes::Clear);
    assert!(draft(&with(Mode::Clear, &["*.*"]), &clear, &stand).is_ok());
}

/// A control plane of one kube-apiserver.
struct Plane {
    fake: Fake,
    ctx: Context,
    object: DynamicObject,
}

impl Plane {
    /// As `before` says, and settled; `status` is what was written down before.
    fn new(before: &SecretEncryption, status: Value) -> Self {
        let fake = Fake::default();
        let rendered = render(before, 1, &resolve(before, 7), Phase::Settled).unwrap();
        for secret in rendered.objects(&Created::now()) {
            let name = secret["metadata"]["name"].as_str().unwrap();
            fake.put(&format!("{NAMESPACE}/secrets/{name}"), secret.clone());
        }
        let content = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
        for name in ["cipher", "token-1"] {
            let data = json!({"key": content, "token": content});
            let secret = json!({"metadata": {"name": name}, "data": data});
            fake.put(&format!("{NAMESPACE}/secrets/{name}"), secret);
        }
        let metadata = json!({"name": "kas-0", "labels": {"app": "kube-apiserver"}});
        let spec = json!({"containers": [{"name": "kube-apiserver"}]});
        let ready = json!({"podIP": "10.0.0.1", "phase": "Running"});
        let pod = json!({"metadata": metadata, "spec": spec, "status": ready});
        fake.put(&format!("{NAMESPACE}/pods/kas-0"), pod);
        let mut object = DynamicObject::new("a", &crate::operator::api::secret_encryption());
        object.data = json!({"status": status});
        let ctx = fake.context();
        Self { fake, ctx, object }
    }

    /// What `settle` does about resources; gives how long it waits, and what it says.
    async fn look(&mut self, wanted: &SecretEncryption, seen: &Observation) -> Option<Duration> {
        let mut report = Report::of(&self.object);
        let client = self.ctx.client.clone();
        let namespace = "clusters-a".to_owned();
        let target = Target::Cluster { client: client.clone(), namespace: namespace.clone() };
        let live = target.live("a").await.unwrap();
        let store = Store::cluster(client, &namespace);
        let kept = store.load().await.unwrap();
        let mut pass = Pass {
            ctx: &self.ctx,
            report: &mut report,
            target,
            namespace,
            wanted: wanted.clone(),
            live,
            store,
            kept,
            pki: None,
            translated: false,
            left_out: Vec::new(),
            calm: None,
        };
        let writes = Writes::wanted(wanted);
        let done = async {
            let published = pass.publish(&Stand::of(writes.clone()), BTreeSet::new()).await?;
            match pass.take_in(&writes, &published).await? {
                Some(wait) => Ok(Some(wait)),
                None => pass.rewrite_new(&writes, &published, seen).await,
            }
        };
        let wait = match done.await {
            Ok(wait) => wait,
            Err(Halt::Failed(error)) => panic!("{}", error.report()),
            Err(Halt::Refused(reason, text)) => panic!("{reason}: {text}"),
        };
        self.object.data = json!({"status": report.now});
        wait
    }

    /// The Job has ended, and its answer is yes.
    fn finish(&self, job: &str) {
        let uid = self.fake.at(&format!("{JOBS}/{job}"))["metadata"]["uid"].clone();
        assert!(uid.is_string(), "there is no {job}");
        let answer = json!({"kind": "Gate", "complete": true, "dryRun": false});
        let ended = json!({"exitCode": 0, "message": answer.to_string()});
        let status = json!({"containerStatuses": [{
            "name": "sidekey", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": ended},
        }]});
        let labels = json!({"batch.kubernetes.io/controller-uid": uid});
        let pod = json!({"metadata": {"name": job, "labels": labels}, "status": status});
        self.fake.put(&format!("{NAMESPACE}/pods/{job}"), pod);
    }

    fn has(&self, job: &str) -> bool {
        self.fake.at(&format!("{JOBS}/{job}")).is_object()
    }

    fn up_to_date(&self) -> (String, String) {
        let conditions = Report::of(&self.object).now.conditions;
        let mut found = conditions.into_iter().filter(|c| c.kind == "EtcdDataEncryptionUpToDate");
        found.next().map(|found| (found.status, found.reason)).unwrap_or_default()
    }

    async fn readers(&self, resource: &str) -> Vec<String> {
        let client = self.ctx.client.clone();
        let target = Target::Cluster { client, namespace: "clusters-a".into() };
        readers(&target.live("a").await.unwrap(), resource)
    }
}

#[tokio::test(start_paused = true)]
async fn new_resources_are_proven_then_encrypted_then_rewritten() {
    let none = Observation::default();
    // With a status from before the list of resources was in it, and with it.
    for status in [json!({}), json!({"encryptedResources": ["secrets"]})] {
        let mut plane = Plane::new(&with(Mode::Cipher, &["secrets"]), status);
        let more = with(Mode::Cipher, &["secrets", "configmaps"]);
        for _ in 0..2 {
            assert!(plane.look(&more, &none).await.is_some());
            assert_eq!(plane.object.data["status"]["encryptedResources"], json!(["secrets"]));
        }
        assert_eq!(plane.readers("configmaps").await[0], "identity");
        assert!(plane.has("sidekey-gate"));
        let text = plane.fake.at(&format!("{JOBS}/sidekey-gate")).to_string();
        assert!(text.contains("--require-config-hash=") && text.contains("--await-only"), "{text}");
        let waits = ("False".to_owned(), reason::READ_ONLY.to_owned());
        assert_eq!(plane.up_to_date(), waits);
        assert!(plane.look(&more, &none).await.is_some());
        assert_eq!(plane.readers("configmaps").await[0], "identity", "the gate is not passed");

        plane.finish("sidekey-gate");
        assert_eq!(plane.look(&more, &none).await, Some(Duration::ZERO));
        assert_eq!(plane.readers("configmaps").await[0], "aescbc/c1");
        assert_eq!(plane.up_to_date(), waits);
        assert!(!plane.has("sidekey-migrate"));

        assert!(plane.look(&more, &none).await.is_some());
        assert!(plane.has("sidekey-migrate"));
        assert_eq!(plane.up_to_date(), ("False".to_owned(), reason::RE_ENCRYPTION.to_owned()));
        plane.finish("sidekey-migrate");
        assert_eq!(plane.look(&more, &none).await, Some(Duration::ZERO));
        assert_eq!(plane.up_to_date(), ("True".to_owned(), "ReEncryptionCompleted".to_owned()));
        assert_eq!(plane.look(&more, &none).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_it_was_written_down_is_not_rewritten() {
    let same = with(Mode::Cipher, &["secrets", "configmaps"]);
    let mut plane = Plane::new(&same, json!({"encryptedUnder": "sha256:1"}));
    assert_eq!(plane.look(&same, &Observation::default()).await, None);
    assert!(!plane.has("sidekey-gate") && !plane.has("sidekey-migrate"));
    let known = plane.object.data["status"]["encryptedResources"].clone();
    assert_eq!(known, json!(["configmaps", "secrets"]));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_all_announce_is_waited_for_before_new_resources_are_rewritten() {
    let both = with(Mode::Key(1), &["secrets", "configmaps"]);
    let status = json!({"encryptedUnder": "sha256:1", "encryptedResources": ["secrets"]});
    let mut plane = Plane::new(&both, status);
    assert!(plane.look(&both, &Observation::default()).await.is_some());
    assert!(!plane.has("sidekey-migrate"), "nobody announces anything");
    let said = ShimStatus { key_id_hash: Some("sha256:1".into()), ..ShimStatus::default() };
    let shim = ShimReport { name: "kas-0".into(), ending: false, status: Some(said), error: None };
    let seen = Observation { shims: vec![shim], ..Observation::default() };
    assert!(plane.look(&both, &seen).await.is_some());
    let text = plane.fake.at(&format!("{JOBS}/sidekey-migrate")).to_string();
    for part in ["--require-config-hash=", "--require-key-id-hash=sha256:1", "configmaps"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    plane.finish("sidekey-migrate");
    assert_eq!(plane.look(&both, &seen).await, Some(Duration::ZERO));
    assert_eq!(plane.up_to_date().0, "True");
}
