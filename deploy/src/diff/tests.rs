#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::model::SecretEncryption;
use crate::publish::LivePart;
use crate::render::{Phase, ResolvedFiles, render};

fn rendered(keys: &str, content: &[u8]) -> Rendered {
    let text = format!(
        "apiVersion: sidekey.dev/v1alpha1\nkind: SecretEncryption\nmetadata: {{name: a}}\nspec: {{keys: [{keys}]}}"
    );
    let encryption = SecretEncryption::parse(&text).unwrap();
    let mut files = ResolvedFiles::default();
    for source in encryption.sources() {
        files.insert(source.clone(), Secret::new(content.to_vec()));
    }
    render(&encryption, 1, &files, Phase::Settled).unwrap()
}

fn between(old: &Rendered, new: &Rendered) -> Diff {
    let parts = old.parts.iter();
    let parts = parts
        .map(|part| (part.name.clone(), LivePart { files: part.files.clone(), version: None }));
    let mut live = Live::default();
    live.parts.extend(parts);
    Diff::between(&live, new).unwrap()
}

fn key(kek: &str, more: &str) -> String {
    format!(
        "{{id: 1, type: vault, role: write, kek: {{key: {kek}}}, credentials: {{token: hunter2, file: /etc/sidekey/id}}, files: [{{name: id, file: id}}]{more}}}"
    )
}

#[test]
fn the_same_is_no_difference() {
    let one = rendered(&key("k", ""), b"one");
    assert!(between(&one, &one).is_empty());
}

#[test]
fn settings_and_credentials_change_in_place_and_nothing_secret_is_shown() {
    let old = rendered(&key("k", ""), b"one");
    let new = rendered(
        &key("k", ", settings: {address: 'https://b'}").replace("hunter2", "swordfish"),
        b"two",
    );
    let diff = between(&old, &new);
    let text = serde_json::to_string(&diff).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("swordfish"), "{text}");
    assert_eq!(diff.keys.len(), 1);
    assert_eq!(diff.keys[0].what, KeyFate::InPlace);
    assert_eq!(diff.keys[0].sections, ["settings", "credentials"]);
    let paths: Vec<&str> =
        diff.parts[0].changes.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(
        paths,
        ["config.yaml: keys[1].credentials.token", "config.yaml: keys[1].settings.address", "id"]
    );
    assert_eq!(diff.parts[0].changes[1].new.as_deref(), Some("https://b"));
    assert!(diff.parts[0].changes[2].old.as_deref().unwrap().starts_with("sha256 "));
    assert_eq!(diff.refused, [""; 0]);
}

#[test]
fn another_kek_under_the_same_number_is_called_so() {
    let diff = between(&rendered(&key("k", ""), b"1"), &rendered(&key("other", ""), b"1"));
    assert_eq!(diff.keys[0].what, KeyFate::AnotherKek);
    assert_eq!(diff.refused.len(), 1);
}

#[test]
fn keys_come_turn_and_go() {
    let pair = |one: &str, two: &str| {
        rendered(
            &format!(
                "{{id: 1, type: vault, role: {one}, kek: {{key: a}}}}, {{id: 2, type: vault, role: {two}, kek: {{key: b}}}}"
            ),
            b"x",
        )
    };
    let one = rendered("{id: 1, type: vault, role: write, kek: {key: a}}", b"x");
    let fates = |old: &Rendered, new: &Rendered| -> Vec<(u64, KeyFate)> {
        between(old, new).keys.iter().map(|key| (key.id, key.what)).collect()
    };
    assert_eq!(fates(&one, &pair("write", "read")), [(2, KeyFate::New)]);
    assert_eq!(
        fates(&pair("write", "read"), &pair("read", "write")),
        [(1, KeyFate::Demoted), (2, KeyFate::Promoted)]
    );
    assert_eq!(fates(&pair("write", "read"), &one), [(2, KeyFate::Gone)]);
    assert_eq!(between(&pair("write", "read"), &one).refused.len(), 1);
}
