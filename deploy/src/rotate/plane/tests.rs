#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::model::Writer;
use crate::publish::Directory;
use crate::rotate::{Kept, Stage, Step, Store, abort, begin};

/// A host whose directories are published to.
struct Host {
    _root: tempfile::TempDir,
    directory: Directory,
    store: Store,
}

struct Silent;

impl migrate::Observer for Silent {
    fn begin(&mut self, _: u64) {}
    fn resource(&mut self, _: &migrate::Resource, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn note(&mut self, _: &str) {}
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        // Whoever runs the tests may give files to their own group.
        let group = Some(root.path().metadata().unwrap().gid());
        let path = root.path().join("sidekey");
        let store = Store::directory(&path);
        Self { _root: root, directory: Directory { path, group }, store }
    }

    fn target(&self) -> Target {
        Target::Directory(self.directory.clone())
    }

    /// What `sidekey publish` does with these keys, as `id role`.
    async fn publish(&self, keys: &[(u64, &str)]) {
        let (target, document) = (self.target(), document(keys));
        let (files, options) = (ResolvedFiles::default(), Options::default());
        publish::publish(&target, &document, &files, Phase::Settled, &options).await.unwrap();
    }

    /// Begins the rotation that `sidekey rotate` begins with these keys.
    async fn begin(&self, keys: &[(u64, &str)]) -> (Kept, State) {
        let wanted = document(keys);
        let live = self.target().live(&wanted.name).await.unwrap();
        let (from, to) = turns(&live, &wanted).unwrap();
        begin(&self.store, &live, from, to).await.unwrap()
    }

    fn plane(&self, keys: &[(u64, &str)]) -> Plane {
        Plane {
            target: self.target(),
            wanted: document(keys),
            files: ResolvedFiles::default(),
            fleet: Fleet::new(),
            preflight: None,
            api: kube::Config::new("http://127.0.0.1:1".parse().unwrap()),
            progress: Box::new(Silent),
        }
    }

    /// Lets every shim get the new key to read with.
    async fn deploy(&self, keys: &[(u64, &str)]) {
        let (kept, state) = self.begin(keys).await;
        let mut state = state.after(Step::Preflight, "now");
        state.read_revision = Some(self.plane(keys).publish(&state, false).await.unwrap());
        self.store.save(&kept, &state).await.unwrap();
    }

    /// Gives the rotation up; gives why its key stays.
    async fn abort(&self, keys: &[(u64, &str)]) -> Result<Option<String>, Error> {
        abort(&self.store, &mut self.plane(keys)).await.map(|(_, stays)| stays)
    }

    /// The keys that are published, as `id role`.
    async fn keys(&self) -> Vec<(u64, &'static str)> {
        let live = self.target().live("a").await.unwrap();
        let role = |key: &Key| if key.role == Role::Write { "write" } else { "read" };
        live.keys().unwrap().iter().map(|key| (key.id.0, role(key))).collect()
    }

    async fn stage(&self) -> Stage {
        self.store.load().await.unwrap().state.unwrap().stage
    }
}

fn document(keys: &[(u64, &str)]) -> SecretEncryption {
    let key = |(id, role): &(u64, &str)| serde_json::json!({"id": id, "type": "local", "role": role, "kek": {"key": format!("k{id}")}});
    let keys: Vec<Value> = keys.iter().map(key).collect();
    SecretEncryption::from_document(&serde_json::json!({
        "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
        "metadata": {"name": "a"}, "spec": {"keys": keys},
    }))
    .unwrap()
}

const FIRST: [(u64, &str); 1] = [(1, "write")];
const BEFORE: [(u64, &str); 2] = [(1, "write"), (2, "read")];
const AFTER: [(u64, &str); 2] = [(1, "read"), (2, "write")];

#[tokio::test]
async fn a_key_that_came_with_the_rotation_goes_with_it() {
    let host = Host::new();
    host.publish(&FIRST).await;
    host.deploy(&AFTER).await;
    assert_eq!(host.keys().await, BEFORE);
    assert_eq!(host.abort(&AFTER).await.unwrap(), None);
    assert_eq!((host.keys().await, host.stage().await), (FIRST.to_vec(), Stage::Interrupted));
}

#[tokio::test]
async fn a_key_that_wrote_before_stays_when_the_way_back_to_it_is_given_up() {
    for deployed in [false, true] {
        let host = Host::new();
        // By hand, and nothing is rewritten: everything is under key 1.
        host.publish(&FIRST).await;
        host.publish(&BEFORE).await;
        host.publish(&AFTER).await;
        match deployed {
            true => host.deploy(&BEFORE).await,
            false => drop(host.begin(&BEFORE).await),
        }
        let why = host.abort(&BEFORE).await.unwrap().unwrap();
        assert_eq!(why, "it was published before the rotation began");
        assert_eq!((host.keys().await, host.stage().await), (AFTER.to_vec(), Stage::Interrupted));
    }
}

#[tokio::test]
async fn a_key_that_somebody_let_write_beside_the_rotation_stays() {
    let host = Host::new();
    host.publish(&FIRST).await;
    host.deploy(&AFTER).await;
    host.publish(&AFTER).await;
    let refused = host.abort(&AFTER).await.unwrap_err();
    assert!(refused.report().contains("key 2 writes"), "{}", refused.report());
    assert_eq!((host.keys().await, host.stage().await), (AFTER.to_vec(), Stage::ReadOnlyDeploy));
    host.publish(&BEFORE).await;
    let why = host.abort(&AFTER).await.unwrap().unwrap();
    assert!(why.contains("revision 4 was published, and the rotation's own is 2"), "{why}");
    assert_eq!((host.keys().await, host.stage().await), (BEFORE.to_vec(), Stage::Interrupted));
}

#[tokio::test]
async fn a_key_that_data_from_before_the_shim_is_read_with_stays() {
    let host = Host::new();
    host.publish(&FIRST).await;
    let (kept, state) = host.begin(&AFTER).await;
    let mut plane = host.plane(&AFTER);
    plane.wanted.spec.legacy_key = Some(KeyNumber(2));
    let mut state = state.after(Step::Preflight, "now");
    state.read_revision = Some(plane.publish(&state, false).await.unwrap());
    host.store.save(&kept, &state).await.unwrap();
    let why = abort(&host.store, &mut plane).await.unwrap().1.unwrap();
    assert_eq!(why, "data from before the shim is read with it");
    assert_eq!(host.keys().await, BEFORE);
}

#[tokio::test]
async fn a_key_stays_if_nobody_wrote_down_that_it_was_not_there_before() {
    let host = Host::new();
    host.publish(&FIRST).await;
    host.deploy(&AFTER).await;
    let path = host.directory.path.join("rotation.json");
    let mut state: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(state.as_object_mut().unwrap().remove("publishedBefore"), Some(false.into()));
    std::fs::write(&path, state.to_string()).unwrap();
    assert!(host.abort(&AFTER).await.unwrap().is_some());
    assert_eq!(host.keys().await, BEFORE);
}

#[tokio::test]
async fn nothing_is_published_to_give_up_what_never_was() {
    let host = Host::new();
    host.publish(&FIRST).await;
    host.begin(&AFTER).await;
    assert_eq!(host.abort(&AFTER).await.unwrap(), None);
    let live = host.target().live("a").await.unwrap();
    assert_eq!((host.keys().await, live.revision()), (FIRST.to_vec(), Some(1)));
}

#[tokio::test]
async fn heads_of_a_backup_do_not_hide_what_was_published_since() {
    let host = Host::new();
    host.publish(&FIRST).await;
    host.deploy(&AFTER).await;
    let state = host.store.load().await.unwrap().state.unwrap();
    let mut restored = host.target().live("a").await.unwrap();
    assert_eq!(state.may_hold_data(&restored).unwrap(), None);
    host.publish(&AFTER).await;
    restored.revisions = host.target().live("a").await.unwrap().revisions;
    let why = state.may_hold_data(&restored).unwrap().unwrap();
    assert!(why.contains("revision 3 was published, and the rotation's own is 2"), "{why}");
}

#[tokio::test]
async fn a_key_does_not_write_while_kube_apiserver_writes_in_clear() {
    let host = Host::new();
    let (target, files, options) = (host.target(), ResolvedFiles::default(), Options::default());
    let mut document = document(&FIRST);
    let key = document.writer().unwrap().clone();
    let turn =
        |id, vendor: &str| Turn { id, vendor: vendor.into(), fingerprint: key.fingerprint() };
    let state = State::begin(turn(0, "identity"), turn(1, "local"), "now", None);
    for (writer, refused) in [(Writer::Identity, false), (Writer::Keys, true)] {
        document.spec.write = writer;
        publish::publish(&target, &document, &files, Phase::Settled, &options).await.unwrap();
        let live = target.live("a").await.unwrap();
        assert_eq!(state.refuse_if_it_writes(&live).is_err(), refused);
    }
}
