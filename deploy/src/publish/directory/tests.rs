#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::model::SecretEncryption;
use crate::publish::{Target, publish};
use crate::render::{Phase, ResolvedFiles};

struct Bench {
    _root: tempfile::TempDir,
    directory: Directory,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        // Whoever runs the tests may give files to their own group.
        let group = Some(root.path().metadata().unwrap().gid());
        let directory = Directory { path: root.path().join("sidekey"), group };
        Self { _root: root, directory }
    }

    /// Publishes with this content of the one file.
    fn publish(&self, name: &str, content: &[u8], keep: usize) -> Result<Outcome, Error> {
        self.publish_with(name, content, &Options { keep, ..Options::default() })
    }

    fn publish_with(
        &self,
        name: &str,
        content: &[u8],
        options: &Options,
    ) -> Result<Outcome, Error> {
        let text = format!(
            "apiVersion: sidekey.dev/v1alpha1\nkind: SecretEncryption\nmetadata: {{name: a}}\nspec: {{keys: [{{id: 1, type: local, role: write, credentials: {{keyFile: /etc/sidekey/{name}}}, files: [{{name: {name}, file: x}}]}}]}}"
        );
        let encryption = SecretEncryption::parse(&text).unwrap();
        let mut files = ResolvedFiles::default();
        files.insert(encryption.sources()[0].clone(), Secret::new(content.to_vec()));
        let target = Target::Directory(self.directory.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(publish(&target, &encryption, &files, Phase::Settled, options))
    }

    fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.directory.path.join(path)).unwrap()
    }

    fn entries(&self, path: &str) -> Vec<String> {
        list(&self.directory.path.join(path)).unwrap()
    }
}

#[test]
fn each_part_lies_in_its_directory_behind_one_link() {
    let bench = Bench::new();
    let outcome = bench.publish("key", b"one", 10).unwrap();
    assert_eq!((outcome.revision, outcome.changed), (1, true));
    assert_eq!(outcome.written, ["revisions/1", "local", "shim", "kube-apiserver"]);
    assert_eq!(bench.read("local/key"), b"one");
    let link = std::fs::read_link(bench.directory.path.join("local/key")).unwrap();
    assert_eq!(link, Path::new("..data/key"));
    let mode = |path: &str| {
        bench.directory.path.join(path).metadata().unwrap().permissions().mode() & 0o7777
    };
    assert_eq!((mode("local"), mode("local/..data"), mode("local/key")), (0o750, 0o750, 0o640));
    assert_eq!(
        (mode("revisions"), mode("revisions/1"), mode("revisions/1/revision.json")),
        (0o700, 0o700, 0o600)
    );
}

#[test]
fn nothing_is_written_if_nothing_changed() {
    let bench = Bench::new();
    bench.publish("key", b"one", 10).unwrap();
    let before = std::fs::read_link(bench.directory.path.join("shim/..data")).unwrap();
    let outcome = bench.publish("key", b"one", 10).unwrap();
    assert_eq!((outcome.revision, outcome.changed), (1, false));
    assert_eq!(std::fs::read_link(bench.directory.path.join("shim/..data")).unwrap(), before);
}

#[test]
fn a_change_takes_old_files_away_and_keeps_history() {
    let bench = Bench::new();
    bench.publish("key", b"one", 10).unwrap();
    bench.publish("other", b"two", 10).unwrap();
    let entries = bench.entries("local");
    assert_eq!(entries.iter().filter(|name| !name.starts_with("..")).count(), 2, "{entries:?}");
    assert_eq!(entries.len(), 4, "{entries:?}");
    assert_eq!(bench.read("revisions/1/provider-local_key"), b"one");
    let shim = String::from_utf8(bench.read("shim/config.yaml")).unwrap();
    assert!(shim.contains("revision: 2"), "{shim}");
    for content in [b"3", b"4"] {
        bench.publish("other", content, 2).unwrap();
    }
    assert_eq!(bench.entries("revisions"), ["3", "4"]);
}

#[test]
fn links_are_there_before_the_rename_that_makes_them_lead_somewhere() {
    let bench = Bench::new();
    // A directory in the place of the link: the rename fails, and nothing after it is done.
    std::fs::create_dir_all(bench.directory.path.join("local/..data")).unwrap();
    let error = bench.publish("key", b"one", 10).unwrap_err();
    assert!(error.report().contains("cannot turn"), "{}", error.report());
    let link = bench.directory.path.join("local/key");
    assert_eq!(std::fs::read_link(link).unwrap(), Path::new("..data/key"));
}

#[test]
fn a_relative_path_is_as_good_as_another() {
    let mut bench = Bench::new();
    let up =
        std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect::<PathBuf>();
    let absolute = bench.directory.path.clone();
    bench.directory.path = up.join(absolute.strip_prefix("/").unwrap());
    for content in [b"one", b"two"] {
        bench.publish("key", content, 10).unwrap();
        assert_eq!(std::fs::read(absolute.join("local/key")).unwrap(), content);
    }
    assert_eq!(bench.entries("local").len(), 4);
}

#[test]
fn remains_of_a_killed_publisher_are_taken_up_and_tidied_away() {
    let bench = Bench::new();
    bench.publish("key", b"one", 10).unwrap();
    let local = bench.directory.path.join("local");
    std::fs::create_dir(local.join("..2020_01_01_00_00_00.abc")).unwrap();
    std::fs::create_dir(bench.directory.path.join("revisions/.new-1")).unwrap();
    symlink("nowhere", local.join(NEXT)).unwrap();
    symlink("..data/gone", local.join("gone")).unwrap();
    bench.publish("key", b"two", 10).unwrap();
    assert_eq!(bench.entries("local").len(), 4, "{:?}", bench.entries("local"));
    assert_eq!(bench.entries("revisions"), ["1", "2"]);
    // The history was written, the heads were not: the same revision is taken up.
    let shim = bench.directory.path.join("shim");
    let old = format!("{}", std::fs::read_link(shim.join(DATA)).unwrap().display());
    let text = String::from_utf8(bench.read("shim/config.yaml")).unwrap();
    std::fs::write(shim.join(old).join("config.yaml"), text.replace("revision: 2", "revision: 1"))
        .unwrap();
    let outcome = bench.publish("key", b"two", 10).unwrap();
    assert_eq!((outcome.revision, outcome.changed), (2, true));
}

#[test]
fn files_of_others_are_left_alone_and_so_is_a_directory_in_use() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.directory.path.join("local")).unwrap();
    std::fs::write(bench.directory.path.join("local/key"), "mine").unwrap();
    let error = bench.publish("key", b"one", 10).unwrap_err();
    assert!(error.report().contains("is a file"), "{}", error.report());
    assert_eq!(bench.read("local/key"), b"mine");
    assert!(!bench.directory.path.join("shim").exists());
    std::fs::remove_file(bench.directory.path.join("local/key")).unwrap();
    let held = bench.directory.lock().unwrap();
    let error = bench.publish("key", b"one", 10).unwrap_err();
    assert!(error.report().contains("somebody else is publishing"), "{}", error.report());
    drop(held);
    bench.publish("key", b"one", 10).unwrap();
}

#[test]
fn what_is_there_already_becomes_another_revision_where_that_is_asked_for() {
    let bench = Bench::new();
    bench.publish("key", b"one", 10).unwrap();
    // One of another change, which was left half done.
    let [first, second] =
        [1, 2].map(|number| bench.directory.path.join(format!("revisions/{number}")));
    std::fs::create_dir(&second).unwrap();
    for name in list(&first).unwrap() {
        std::fs::copy(first.join(&name), second.join(&name)).unwrap();
    }
    std::fs::write(second.join(crate::model::names::REVISION_FILE), r#"{"sha256": "another"}"#)
        .unwrap();
    assert!(!bench.publish("key", b"one", 10).unwrap().changed);
    let options = Options { anew: true, ..Options::default() };
    let outcome = bench.publish_with("key", b"one", &options).unwrap();
    assert_eq!((outcome.revision, outcome.changed), (3, true));
    assert_eq!(bench.read("local/key"), b"one");
}
