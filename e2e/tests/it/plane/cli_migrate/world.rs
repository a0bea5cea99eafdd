//! A control plane whose key is rotated, and `sidekey migrate` on it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::ensure;
use hyper::Method;
use serde_json::json;
use sidekey_e2e::apiserver::Options;
use sidekey_e2e::binaries::{self, Outcome};
use sidekey_e2e::etcd::Entry;
use sidekey_e2e::shim::replicas::{PROVIDER, key_number};
use sidekey_e2e::shim::{Shim, ShimConfig};
use sidekey_e2e::wait::{PATIENCE, eventually};
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, KubeApiserver, KubeClient, LocalPlugin, Stanza,
};

/// What is encrypted here, in etcd.
const PREFIXES: [&str; 3] =
    ["/registry/secrets/", "/registry/configmaps/", "/registry/example.com/widgets/"];

/// An administrator's name.
pub(crate) const MIGRATOR: &str = "migrator";

/// Dropped, and so ended, in this order.
pub(crate) struct World {
    pub(crate) client: KubeClient,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) encryption: PathBuf,
    pub(crate) server: KubeApiserver,
    shim: Shim,
    plugins: [LocalPlugin; 2],
    /// The key that writes.
    pub(crate) key: u64,
    pub(crate) plane: ControlPlane,
}

impl World {
    /// Everything is written with key 1. Keys with odd and even numbers have one KEK each.
    pub(crate) async fn start(name: &str, flags: &[&str]) -> Self {
        let plane = ControlPlane::start(name).await.unwrap();
        let one = LocalPlugin::start(&plane.scratch, "kek-1").await.unwrap();
        let two = LocalPlugin::start(&plane.scratch, "kek-2").await.unwrap();
        let config = ShimConfig::new(1).write(1, one.endpoint());
        let shim = Shim::start(&plane.scratch, "shim", &config).await.unwrap();
        // One of them is not there, as is usual in a file that is made for many clusters.
        let resources = ["secrets", "configmaps", "widgets.example.com", "gadgets.example.com"];
        let stanza = Stanza::new(resources).kms(PROVIDER, shim.endpoint()).identity();
        let encryption = EncryptionConfiguration::new().stanza(stanza);
        let options = Options::new("a").encryption(encryption);
        let options = flags.iter().fold(options, |options, flag| options.arg(*flag));
        let server = KubeApiserver::start(&plane, options).await.unwrap();
        let kubeconfig = plane.scratch.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).unwrap();
        let (client, encryption) = (server.client(), server.encryption_file().to_owned());
        Self { client, kubeconfig, encryption, server, shim, plugins: [one, two], key: 1, plane }
    }

    /// Lets the next key write, and waits until kube-apiserver does; tells its hash.
    pub(crate) async fn promote(&mut self) -> String {
        self.key += 1;
        for (step, write) in [(0, self.key - 1), (1, self.key)] {
            let mut config = ShimConfig::new(2 * self.key + step);
            for key in 1..=self.key {
                let plugin = &self.plugins[usize::from(key % 2 == 0)];
                config = match key == write {
                    true => config.write(key, plugin.endpoint()),
                    false => config.read(key, plugin.endpoint()),
                };
            }
            self.shim.load(&config).await.unwrap();
        }
        let hash = self.shim.key_id_hash().await.unwrap();
        self.server.wait_key_id(PROVIDER, &hash).await.unwrap();
        hash
    }

    /// The command line but for what is special.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let checkpoint = self.checkpoint();
        let paths = [
            ("--kubeconfig", &self.kubeconfig),
            ("--encryption-config", &self.encryption),
            ("--checkpoint", &checkpoint),
        ];
        let mut args = ["migrate", "-o", "json"].map(str::to_owned).to_vec();
        for (flag, path) in paths {
            args.extend([flag.to_owned(), path.display().to_string()]);
        }
        args
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.plane.scratch.path().join("checkpoint.json")
    }

    pub(crate) async fn migrate(&self, more: &[&str]) -> Outcome {
        let mut args = self.arguments();
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        binaries::run("sidekey", &args).await.unwrap()
    }

    pub(crate) async fn create_namespace(&self, name: &str) {
        let namespace = json!({"metadata": {"name": name}});
        self.client.send(Method::POST, "/api/v1/namespaces", Some(&namespace)).await.unwrap();
    }

    pub(crate) async fn create(&self, kind: Kind, namespace: &str, name: &str, count: usize) {
        for number in 0..count {
            let name = format!("{name}-{number:04}");
            self.client.create(kind, namespace, &name, &[("word", &name)]).await.unwrap();
        }
    }

    /// Waits until a path can be listed.
    pub(crate) async fn wait_for(&self, path: &str) {
        eventually(format!("{path} is served"), PATIENCE, async || {
            self.client.get(path).await?;
            Ok(())
        })
        .await
        .unwrap();
    }

    /// All that is stored encrypted.
    pub(crate) async fn entries(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        for prefix in PREFIXES {
            all.extend(self.plane.etcd.list(prefix).await.unwrap());
        }
        all
    }

    pub(crate) async fn objects(&self) -> usize {
        self.entries().await.len()
    }

    pub(crate) async fn count(&self, prefix: &str) -> usize {
        self.plane.etcd.list(prefix).await.unwrap().len()
    }

    /// Everything is under the key that writes.
    pub(crate) async fn all_is_new(&self) {
        let wanted = BTreeMap::from([(self.key, self.objects().await)]);
        assert_eq!(self.keys().await, wanted);
    }

    /// How many are stored under which key.
    pub(crate) async fn keys(&self) -> BTreeMap<u64, usize> {
        let mut keys = BTreeMap::new();
        for entry in self.entries().await {
            *keys.entry(key_number(&entry.value).unwrap()).or_default() += 1;
        }
        keys
    }

    /// The token of an administrator who is no member of `system:masters`, and so is told to wait
    /// like anybody else.
    pub(crate) async fn ordinary_token(&self) -> String {
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let account = json!({"metadata": {"name": MIGRATOR}});
        self.client.send(Method::POST, accounts, Some(&account)).await.unwrap();
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
        let subject = json!({"kind": "ServiceAccount", "namespace": "default", "name": MIGRATOR});
        let binding =
            json!({"metadata": {"name": MIGRATOR}, "roleRef": role, "subjects": [subject]});
        self.client.send(Method::POST, bindings, Some(&binding)).await.unwrap();
        let path = format!("{accounts}/{MIGRATOR}/token");
        let request = json!({"spec": {"expirationSeconds": 3600}});
        let answer = self.client.send(Method::POST, &path, Some(&request)).await.unwrap();
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// A kubeconfig of whoever has that token.
    pub(crate) fn kubeconfig_of(&self, token: &str) -> PathBuf {
        let text = self.server.kubeconfig();
        let (head, tail) = text.split_once("token: \"").unwrap();
        let (_, tail) = tail.split_once('"').unwrap();
        let path = self.plane.scratch.path().join("ordinary");
        std::fs::write(&path, format!("{head}token: \"{token}\"{tail}")).unwrap();
        path
    }

    /// Waits until the checkpoint says something else than before; tells it.
    pub(crate) async fn wait_checkpoint(&self, before: &str) -> String {
        eventually("the checkpoint moves", PATIENCE, async || {
            let now = std::fs::read_to_string(self.checkpoint())?;
            ensure!(now != before && now.contains("\"position\": \""), "it is {now}");
            Ok(now)
        })
        .await
        .unwrap()
    }
}
