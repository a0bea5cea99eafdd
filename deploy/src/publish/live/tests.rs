#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::render::{Phase, ResolvedFiles, render};

fn encryption() -> SecretEncryption {
    let text = "
apiVersion: sidekey.dev/v1alpha1
kind: SecretEncryption
metadata: {name: a}
spec:
  keys:
  - id: 1
    type: vault
    role: write
    kek: {key: k}
    fingerprint: abcd
    credentials: {appRole: {secretIdFile: /etc/sidekey/secret-id}}
    files: [{name: secret-id, secret: {name: approle, key: id}}, {name: other, file: other}]
  - {id: 2, type: external, role: read, listen: 'unix:///foreign.sock', serverUids: [7, 0]}
";
    SecretEncryption::parse(text).unwrap()
}

fn resolved(encryption: &SecretEncryption) -> ResolvedFiles {
    let mut files = ResolvedFiles::default();
    for source in encryption.sources() {
        files.insert(source.clone(), Secret::new(vec![1]));
    }
    files
}

fn rendered(revision: u64) -> Rendered {
    let encryption = encryption();
    render(&encryption, revision, &resolved(&encryption), Phase::Settled).unwrap()
}

fn live(revision: u64, revisions: &[u64]) -> Live {
    let rendered = rendered(revision);
    let summary = rendered.summary("now").to_string().into_bytes();
    let part = |part: Part| (part.name, LivePart { files: part.files, version: None });
    Live {
        parts: rendered.parts.into_iter().map(part).collect(),
        revisions: revisions.to_vec(),
        newest: [(names::REVISION_FILE.to_owned(), Secret::new(summary))].into(),
        source: Source::Cluster,
    }
}

#[test]
fn what_is_there_already_is_recognized_whatever_its_number() {
    assert_eq!(live(3, &[2, 3]).holds(&rendered(0)), Some(3));
    assert_eq!(live(3, &[2]).holds(&rendered(0)), None, "its history is missing");
    let mut half = live(3, &[2, 3]);
    half.parts.insert(PartName::Shim, live(2, &[]).parts.remove(&PartName::Shim).unwrap());
    assert_eq!(half.holds(&rendered(0)), None);
    let mut changed = live(3, &[3]);
    let vault = PartName::Provider("vault".into());
    changed.parts.get_mut(&vault).unwrap().files.insert("secret-id".into(), Secret::new(vec![2]));
    assert_eq!(changed.holds(&rendered(0)), None);
}

#[test]
fn the_next_number_is_the_highest_and_one_unless_that_was_left_half_done() {
    let digest = rendered(0).digest;
    assert_eq!(Live::default().next(&digest), 1);
    assert_eq!(live(3, &[2, 3]).next("other"), 4);
    assert_eq!(live(3, &[2, 3, 4]).next(&digest), 4, "4 was written and never turned to");
    let mut lost = live(7, &[2]);
    lost.newest.clear();
    assert_eq!(lost.next(&digest), 8, "heads count too");
}

#[test]
fn no_revision_goes_that_a_head_carries() {
    let live = live(3, &[1, 2, 3, 4, 5]);
    assert_eq!(prunable(&live, 6, 3), [2, 1]);
    assert_eq!(prunable(&live, 6, 0), [5, 4, 2, 1]);
    assert_eq!(prunable(&live, 6, 10), [0; 0]);
}

#[test]
fn published_keys_come_back_with_their_files() {
    let keys = live(3, &[3]).keys().unwrap();
    let [key, foreign] = keys.as_slice() else { panic!("{keys:?}") };
    assert_eq!((key.id, key.role, key.fingerprint()), (KeyNumber(1), Role::Write, "abcd".into()));
    assert_eq!(key.kek, serde_json::json!({"key": "k"}));
    let source = ObjectKey { name: "sidekey-provider-vault".into(), key: "secret-id".into() };
    let file = FileRef { name: "secret-id".into(), source: FileSource::Secret(source) };
    assert_eq!(key.files, [file], "what nothing names is not taken along");
    assert!(key.server_uids.is_empty());
    assert_eq!(
        (foreign.listen.as_str(), &foreign.server_uids[..]),
        ("unix:///foreign.sock", &[7, 0][..])
    );
}

#[test]
fn a_document_without_a_canary_keeps_the_published_one_of_the_same_kek() {
    let canary =
        serde_json::json!({"keyId": "v/1", "ciphertext": "AAAA", "sha256": "0".repeat(64)});
    let bare = encryption();
    let mut published = bare.clone();
    published.spec.keys[0].canary = Some(canary.clone());
    let mut live = live(1, &[1]);
    let rendered = render(&published, 1, &resolved(&published), Phase::Settled).unwrap();
    for part in rendered.parts {
        live.parts.insert(part.name, LivePart { files: part.files, version: None });
    }
    let mut again = bare.clone();
    live.keep_canaries(&mut again).unwrap();
    assert_eq!(again.spec.keys[0].canary, Some(canary));
    let mut other = bare;
    other.spec.keys[0].given_fingerprint = Some("beef".to_owned());
    live.keep_canaries(&mut other).unwrap();
    assert_eq!(other.spec.keys[0].canary, None, "it is of another KEK");
}
