//! Promise: `sidekey publish` brings a cluster to the next revision in an order that is safe, writes
//! nothing that has not changed, and refuses whatever could make data unreadable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::KubeApiserver;
use sidekey_e2e::apiserver::Options;
use sidekey_e2e::binaries::{self, Outcome};
use sidekey_e2e::kube::{Kind, KubeClient};
use sidekey_e2e::plane::ControlPlane;

const NO: Option<i32> = Some(3);
const FAILED: Option<i32> = Some(1);

/// Dropped, and so ended, in this order.
struct World {
    server: KubeApiserver,
    plane: ControlPlane,
}

/// A control plane's namespace on the cluster, and a document to publish to it.
struct Bench {
    client: KubeClient,
    kubeconfig: PathBuf,
    document: PathBuf,
    dir: PathBuf,
    namespace: String,
    /// The path of the namespace's Secrets.
    secrets: String,
}

/// One cluster for all of it; each step has a namespace of its own.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_to_a_cluster_is_safe_and_true() {
    let plane = ControlPlane::start("publish").await.unwrap();
    let server = KubeApiserver::start(&plane, Options::new("management")).await.unwrap();
    let world = World { server, plane };
    a_cluster_gets_each_change_once_and_no_secret_is_shown(&world).await;
    what_could_make_data_unreadable_is_refused_and_changes_nothing(&world).await;
    history_is_pruned_and_the_work_of_others_is_not_overwritten(&world).await;
    of_several_who_publish_at_once_nobody_believes_in_what_is_not_there(&world).await;
    shim_and_provider_accept_what_is_rendered_and_missing_secrets_are_named(&world).await;
    kube_apiserver_encrypts_by_what_is_rendered_of_a_hosted_cluster(&world).await;
}

impl Bench {
    async fn start(world: &World, name: &str) -> Self {
        let (client, namespace) = (world.server.client(), format!("clusters-{name}"));
        let object = json!({"metadata": {"name": namespace}});
        client.send(Method::POST, "/api/v1/namespaces", Some(&object)).await.unwrap();
        client
            .create(Kind::Secret, &namespace, "approle", &[("secret-id", "hunter2")])
            .await
            .unwrap();
        let dir = world.plane.scratch.subdir(name).unwrap();
        let (kubeconfig, document) = (dir.join("kubeconfig"), dir.join("encryption.yaml"));
        std::fs::write(&kubeconfig, world.server.kubeconfig()).unwrap();
        let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
        Self { client, kubeconfig, document, dir, namespace, secrets }
    }

    /// What describes the control plane of this namespace.
    fn encryption(&self, keys: &[Value]) -> Value {
        json!({
            "apiVersion": "sidekey.dev/v1alpha1",
            "kind": "SecretEncryption",
            "metadata": {"name": "a", "namespace": self.namespace},
            "spec": {"keys": keys},
        })
    }

    fn describe(&self, keys: &[Value]) {
        std::fs::write(&self.document, self.encryption(keys).to_string()).unwrap();
    }

    async fn sidekey(&self, command: &str, more: &[&str]) -> Outcome {
        let mut args = vec![command, "-o", "json", "-f"];
        args.push(self.document.to_str().unwrap());
        args.extend(["--kubeconfig", self.kubeconfig.to_str().unwrap()]);
        args.extend(more);
        binaries::run("sidekey", &args).await.unwrap()
    }

    /// Publishes, and tells what was done.
    async fn publish(&self, more: &[&str]) -> Value {
        let outcome = self.sidekey("publish", more).await.ok().unwrap();
        serde_json::from_str(&outcome.stdout).unwrap()
    }

    async fn secret(&self, name: &str) -> Value {
        self.client.get(&format!("{}/{name}", self.secrets)).await.unwrap()
    }

    /// A file of a revision.
    async fn revision(&self, number: u64, file: &str) -> String {
        entry(&self.secret(&format!("sidekey-revision-{number}")).await, file)
    }

    async fn names(&self) -> Vec<String> {
        let list = self.client.get(&self.secrets).await.unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn key(id: u32, role: &str) -> Value {
    json!({
        "id": id,
        "type": "vault",
        "role": role,
        "kek": {"key": format!("kms-{id}")},
        "settings": {"addresses": ["https://vault.example:8200"]},
        "credentials": {"appRole": {"roleId": "role", "secretIdFile": "/etc/sidekey/secret-id"}},
        "files": [{"name": "secret-id", "secret": {"name": "approle", "key": "secret-id"}}],
    })
}

/// A file of a Secret, as text.
fn entry(secret: &Value, name: &str) -> String {
    let text = secret["data"][name].as_str().unwrap_or_else(|| panic!("no {name}"));
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

/// The revision that a head carries.
fn number(head: &Value) -> u64 {
    head["metadata"]["annotations"]["sidekey.dev/revision"].as_str().unwrap().parse().unwrap()
}

fn version(secret: &Value) -> String {
    secret["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

async fn a_cluster_gets_each_change_once_and_no_secret_is_shown(world: &World) {
    let bench = Bench::start(world, "publish").await;
    bench.describe(&[key(1, "write")]);
    let done = bench.publish(&[]).await;
    assert_eq!((&done["revision"], &done["changed"]), (&json!(1), &json!(true)), "{done}");
    let order = [
        "sidekey-revision-1",
        "sidekey-provider-vault",
        "sidekey-shim",
        "sidekey-encryption-config",
    ];
    assert_eq!(done["written"], json!(order));
    let head = bench.secret("sidekey-provider-vault").await;
    assert_eq!(entry(&head, "secret-id"), "hunter2");
    assert_eq!(head["metadata"]["labels"]["sidekey.dev/encryption"], "a");
    assert_eq!(head["metadata"]["annotations"]["sidekey.dev/revision"], "1");
    let revision = bench.secret("sidekey-revision-1").await;
    assert_eq!(revision["immutable"], true);
    assert_eq!(
        entry(&revision, "shim_config.yaml"),
        entry(&bench.secret("sidekey-shim").await, "config.yaml")
    );

    let again = bench.publish(&[]).await;
    assert_eq!((&again["revision"], &again["changed"]), (&json!(1), &json!(false)), "{again}");
    let same = bench.secret("sidekey-provider-vault").await;
    assert_eq!(version(&same), version(&head), "nothing was written");
    assert_eq!(bench.sidekey("diff", &[]).await.code, Some(0));

    bench
        .client
        .update(Kind::Secret, &bench.namespace, "approle", &[("secret-id", "swordfish")])
        .await
        .unwrap();
    let diff = bench.sidekey("diff", &[]).await;
    assert_eq!(diff.code, NO, "{diff:?}");
    for secret in ["hunter2", "swordfish"] {
        assert!(!diff.stdout.contains(secret), "{}", diff.stdout);
        assert!(!diff.stdout.contains(&STANDARD.encode(secret)), "{}", diff.stdout);
    }
    let told: Value = serde_json::from_str(&diff.stdout).unwrap();
    assert_eq!(told["parts"][0]["changes"][0]["path"], "secret-id", "{told}");
    assert_eq!(bench.publish(&[]).await["revision"], 2);
    assert_eq!(entry(&bench.secret("sidekey-provider-vault").await, "secret-id"), "swordfish");
}

async fn what_could_make_data_unreadable_is_refused_and_changes_nothing(world: &World) {
    let bench = Bench::start(world, "refused").await;
    bench.describe(&[key(1, "write")]);
    bench.publish(&[]).await;
    let before = version(&bench.secret("sidekey-shim").await);

    // A key that nobody could read with until now.
    bench.describe(&[key(1, "read"), key(2, "write")]);
    let refused = bench.sidekey("publish", &[]).await;
    assert_eq!(refused.code, NO, "{refused:?}");
    assert!(refused.stdout.contains("sidekey rotate"), "{}", refused.stdout);
    // Another KEK under the same number.
    let mut other = key(1, "write");
    other["kek"] = json!({"key": "another"});
    bench.describe(&[other]);
    assert_eq!(bench.sidekey("publish", &["--force-drop", "1"]).await.code, NO);
    assert_eq!(version(&bench.secret("sidekey-shim").await), before);
    assert!(!bench.names().await.contains(&"sidekey-revision-2".to_owned()));

    // In order it goes: first to read, then to write.
    bench.describe(&[key(1, "write"), key(2, "read")]);
    bench.publish(&[]).await;
    bench.describe(&[key(1, "read"), key(2, "write")]);
    assert_eq!(bench.publish(&[]).await["revision"], 3);

    // The old key goes only if it is proven unused, or by force.
    bench.describe(&[key(2, "write")]);
    let refused = bench.sidekey("publish", &[]).await;
    assert_eq!(refused.code, NO, "{refused:?}");
    assert!(refused.stdout.contains("key 1 would go"), "{}", refused.stdout);
    let proof = bench.dir.join("census.json");
    let answer = |key: u32, may: &str| {
        let finished = sidekey_core::time(std::time::SystemTime::now());
        json!({"mayDrop": may, "subject": {"key": key}, "finished": finished, "counted": 9})
            .to_string()
    };
    let with = ["--census", proof.to_str().unwrap()];
    for (key, may) in [(1, "not-yet"), (2, "yes")] {
        std::fs::write(&proof, answer(key, may)).unwrap();
        assert_eq!(bench.sidekey("publish", &with).await.code, NO);
    }
    std::fs::write(&proof, answer(1, "yes")).unwrap();
    assert_eq!(bench.publish(&with).await["revision"], 4);

    // A file of somebody else's EncryptionConfiguration counts too, if it is given.
    let live = bench.dir.join("live.yaml");
    std::fs::write(&live, "kind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: [{kms: {name: other}}, {identity: {}}]}]").unwrap();
    let refused = bench.sidekey("publish", &["--check-against", live.to_str().unwrap()]).await;
    assert_eq!(refused.code, NO, "{refused:?}");
}

async fn history_is_pruned_and_the_work_of_others_is_not_overwritten(world: &World) {
    let bench = Bench::start(world, "prune").await;
    let mut last = Value::Null;
    for number in 1..=5 {
        let mut key = key(1, "write");
        key["settings"]["addresses"] = json!([format!("https://vault-{number}.example:8200")]);
        bench.describe(std::slice::from_ref(&key));
        bench.publish(&["--keep", "2"]).await;
        last = key;
    }
    let names = bench.names().await;
    let kept: Vec<&String> = names.iter().filter(|name| name.contains("revision")).collect();
    assert_eq!(kept, ["sidekey-revision-4", "sidekey-revision-5"]);

    // Somebody edits our head.
    let patch = json!({"data": {"config.yaml": STANDARD.encode("keys: []")}});
    let path = format!("{}/sidekey-shim?fieldManager=kubectl-edit", bench.secrets);
    let merge = "application/merge-patch+json";
    bench.client.send_as(Method::PATCH, &path, merge, &patch).await.unwrap();
    let conflict = bench.sidekey("publish", &[]).await;
    assert_eq!(conflict.code, FAILED, "{conflict:?}");
    assert!(conflict.stdout.contains("kubectl-edit"), "{}", conflict.stdout);
    assert!(conflict.stdout.contains("--force-conflicts"), "{}", conflict.stdout);
    // What the edit took out of the head is still known from the revision.
    bench.describe(&[key(2, "write")]);
    assert_eq!(bench.sidekey("publish", &["--force-conflicts"]).await.code, NO);
    bench.describe(&[last]);
    let done = bench.publish(&["--force-conflicts"]).await;
    assert_eq!(done["revision"], 5, "it is what was published last: {done}");
    assert_eq!(bench.sidekey("diff", &[]).await.code, Some(0));

    // A namespace is one control plane's.
    let mut other = bench.encryption(&[key(1, "write")]);
    other["metadata"]["name"] = "b".into();
    std::fs::write(&bench.document, other.to_string()).unwrap();
    assert_eq!(bench.sidekey("publish", &[]).await.code, NO);
}

async fn of_several_who_publish_at_once_nobody_believes_in_what_is_not_there(world: &World) {
    let bench = Bench::start(world, "race").await;
    bench.describe(&[key(1, "write")]);
    bench.publish(&[]).await;
    let mut files = Vec::new();
    for number in 0..4 {
        let mut key = key(1, "write");
        key["settings"]["addresses"] = json!([format!("https://vault-{number}.example:8200")]);
        let path = bench.dir.join(format!("{number}.yaml"));
        std::fs::write(&path, bench.encryption(&[key]).to_string()).unwrap();
        files.push(path);
    }
    let runs = files.iter().map(|file| {
        let args: Vec<PathBuf> =
            ["publish", "-o", "json", "--kubeconfig"].iter().map(PathBuf::from).collect();
        let args = [args, vec![bench.kubeconfig.clone(), "-f".into(), file.clone()]].concat();
        tokio::spawn(async move { binaries::run("sidekey", &args).await.unwrap() })
    });
    let runs: Vec<_> = runs.collect();
    let (mut done, mut said_no) = (BTreeMap::new(), Vec::new());
    for (number, run) in runs.into_iter().enumerate() {
        let outcome = run.await.unwrap();
        assert!([Some(0), FAILED].contains(&outcome.code), "{outcome:?}");
        if outcome.code == Some(0) {
            let said: Value = serde_json::from_str(&outcome.stdout).unwrap();
            let other = done.insert(said["revision"].as_u64().unwrap(), number);
            assert_eq!(other, None, "two have published one revision: {said}");
        } else {
            said_no.push(outcome);
        }
    }
    // Who says that it is done is really there.
    for (revision, publisher) in &done {
        let config = bench.revision(*revision, "provider-vault_config.yaml").await;
        let address = format!("https://vault-{publisher}.example:8200");
        assert!(config.contains(&address), "revision {revision} has no {address}: {config}");
    }
    let mut carried = BTreeSet::new();
    for (head, file, kept) in [
        ("sidekey-provider-vault", "config.yaml", "provider-vault_config.yaml"),
        ("sidekey-shim", "config.yaml", "shim_config.yaml"),
        ("sidekey-encryption-config", "encryption.yaml", "kube-apiserver_encryption.yaml"),
    ] {
        let head = bench.secret(head).await;
        let revision = number(&head);
        assert_eq!(entry(&head, file), bench.revision(revision, kept).await, "{head}");
        carried.insert(revision);
    }
    // Two may have written by turns, and each is told so. Where all is of one, that one knows it.
    let one = carried.first().filter(|_| carried.len() == 1);
    let knows = one.is_none_or(|revision| done.contains_key(revision));
    assert!(knows, "revision {carried:?} came last; {done:?} said they did, others: {said_no:#?}");
    // Whatever the others left, one more brings all to one revision.
    bench.publish(&[]).await;
    assert_eq!(bench.sidekey("diff", &[]).await.code, Some(0));
    let shim = bench.secret("sidekey-shim").await;
    assert_eq!(number(&shim), number(&bench.secret("sidekey-provider-vault").await));
    eprintln!("{} of 4 who published at once went through", done.len());
}

async fn shim_and_provider_accept_what_is_rendered_and_missing_secrets_are_named(world: &World) {
    let bench = Bench::start(world, "render").await;
    bench.describe(&[key(2, "write"), key(1, "read")]);
    let out = bench.dir.join("out");
    bench.sidekey("render", &["--to-dir", out.to_str().unwrap()]).await.ok().unwrap();
    let check = async |program: &'static str, file: &Path| {
        let file = file.to_str().unwrap();
        binaries::run(program, &["check", "--config", file]).await.unwrap()
    };
    check("sidekey-shim", &out.join("sidekey-shim/config.yaml")).await.ok().unwrap();
    let provider = out.join("sidekey-provider-vault/config.yaml");
    // Its files are where the pod mounts them, not here: put the paths of here in.
    let text = std::fs::read_to_string(&provider).unwrap();
    let here = format!("{}/", provider.parent().unwrap().display());
    std::fs::write(&provider, text.replace("/etc/sidekey/", &here)).unwrap();
    check("sidekey-vault", &provider).await.ok().unwrap();

    let (file, kubeconfig) = (bench.document.to_str(), bench.kubeconfig.to_str());
    let args = ["render", "-f", file.unwrap(), "--kubeconfig", kubeconfig.unwrap()];
    let shown = binaries::run("sidekey", &args).await.unwrap().ok().unwrap();
    assert!(shown.stdout.contains("secret-id"), "{}", shown.stdout);
    assert!(!shown.stdout.contains(&STANDARD.encode("hunter2")), "{}", shown.stdout);
    assert!(!shown.stdout.contains("hunter2"), "{}", shown.stdout);
    bench.client.delete(Kind::Secret, &bench.namespace, "approle").await.unwrap();
    let missing = bench.sidekey("render", &[]).await;
    assert_eq!(missing.code, FAILED, "{missing:?}");
    assert!(
        missing.stdout.contains("Secret approle, key secret-id: not found"),
        "{}",
        missing.stdout
    );
}

/// A HostedCluster of HyperShift's with keys that kube-apiserver holds itself.
const AESCBC: &str = "
apiVersion: hypershift.openshift.io/v1beta1
kind: HostedCluster
metadata: {name: a, namespace: clusters}
spec: {secretEncryption: {type: aescbc, aescbc: {activeKey: {name: new}, backupKey: {name: old}}}}
";

async fn kube_apiserver_encrypts_by_what_is_rendered_of_a_hosted_cluster(world: &World) {
    let World { plane, .. } = world;
    let dir = plane.scratch.subdir("hosted").unwrap();
    let at = |name: &str| dir.join(name);
    for (name, byte) in [("new", 1), ("old", 2)] {
        std::fs::create_dir_all(at("refs").join(name)).unwrap();
        std::fs::write(at("refs").join(name).join("key"), [byte; 32]).unwrap();
    }
    std::fs::write(at("hosted.yaml"), AESCBC).unwrap();
    let (file, refs, out) = (at("hosted.yaml"), at("refs"), at("out"));
    for (profile, config) in [
        ("hypershift", "kas-secret-encryption-config/config.yaml"),
        ("sidekey", "sidekey-encryption-config/encryption.yaml"),
    ] {
        let out = out.join(profile);
        let paths = [&file, &refs, &out].map(|path| path.to_str().unwrap());
        let args = [
            "render",
            "--profile",
            profile,
            "-f",
            paths[0],
            "--from-dir",
            paths[1],
            "--to-dir",
            paths[2],
        ];
        binaries::run("sidekey", &args).await.unwrap().ok().unwrap();
        let flag = format!("--encryption-provider-config={}", out.join(config).display());
        let options = Options::new(profile).arg(flag);
        let server = KubeApiserver::start(plane, options).await.unwrap();
        server.client().create(Kind::Secret, "default", profile, &[("a", "b")]).await.unwrap();
        let stored = plane.etcd.raw(&Kind::Secret.etcd_key("default", profile)).await.unwrap();
        // The name is HyperShift's hash of the key: FNV-1 of 32 bytes of 1.
        let prefix = b"k8s:enc:aescbc:v1:key-3593115045:";
        let found = String::from_utf8_lossy(&stored[..prefix.len()]).into_owned();
        assert!(stored.starts_with(prefix), "{profile}: {found}");
    }
}
