use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::testing::Scripted;

fn paths(problems: &Problems) -> Vec<&str> {
    problems.iter().map(|problem| problem.path.as_str()).collect()
}

fn mistakes(text: &str) -> Vec<String> {
    match document(text).and_then(|document| parse::<Scripted>(&document)) {
        Ok(_) => Vec::new(),
        Err(problems) => paths(&problems).into_iter().map(str::to_owned).collect(),
    }
}

#[test]
fn every_mistake_is_reported_at_once_with_its_path() {
    let text = "
admin: nowhere
adminSocket: http://x
log: {format: yaml, level: loud}
socket: {mode: rw, group: staff}
probe: {interval: 30, timeout: 0s}
drain: soon
surprise: 1
keys:
- {id: one, type: other, listen: tcp://x, kek: {kms: 7, extra: 1}}
- {id: 2, kek: {kms: a}}
- {id: '2', listen: /var/run/kmsplugin/kms-2.sock}
";
    let mut found = mistakes(text);
    found.sort();
    let expected = [
        "admin",
        "adminSocket",
        "drain",
        "keys[0].id",
        "keys[0].kek.extra",
        "keys[0].kek.kms",
        "keys[0].kek.kms",
        "keys[0].listen",
        "keys[0].type",
        "keys[2].id",
        "keys[2].kek.kms",
        "keys[2].listen",
        "log.format",
        "log.level",
        "probe.interval",
        "probe.timeout",
        "socket.group",
        "socket.mode",
        "surprise",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_document_that_is_no_document_is_one_clear_mistake() {
    for text in ["", "  \n", "- a: [", "just text", "keys: {}", "\u{0}"] {
        assert!(!mistakes(text).is_empty(), "{text:?} was accepted");
    }
}

#[test]
fn the_same_field_twice_is_refused() {
    let text = "keys:\n- {id: 1, kek: {kms: a}}\nkeys:\n- {id: 2, kek: {kms: a}}\n";
    assert!(document(text).is_err());
}

#[test]
fn defaults_are_those_of_the_design() {
    let document = document("keys: [{id: 7, kek: {kms: a}}]").unwrap_or_default();
    let config = parse::<Scripted>(&document).ok();
    let config = config.as_ref();
    let endpoint = config.map(|config| config.keys[0].endpoint.to_string());
    assert_eq!(endpoint.as_deref(), Some("unix:///var/run/kmsplugin/kms-7.sock"));
    assert_eq!(config.map(|config| config.probe.interval.as_secs()), Some(30));
    assert_eq!(config.map(|config| config.probe.coast.as_secs()), Some(60));
    assert_eq!(config.map(|config| config.socket.mode), Some(0o660));
}

#[test]
fn inline_credentials_are_not_shown() {
    let document = json!({"keys": [{"credentials": {"token": "s.abc", "file": "/run/t", "n": 5}}]});
    let shown = redacted(&document).to_string();
    assert!(!shown.contains("s.abc") && !shown.contains('5'), "{shown}");
    assert!(shown.contains("/run/t"));
}

#[test]
fn a_field_of_the_wrong_type_does_not_hide_the_next() {
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        a: Option<u32>,
        b: Option<bool>,
        list: Option<Vec<Option<u32>>>,
    }
    let mut problems = Problems::default();
    let value = json!({"a": "x", "b": 3, "list": [1, "two", 3], "c": null});
    let inner: Option<Inner> = read(&value, &mut problems);
    assert_eq!(paths(&problems), ["a", "b", "list[1]", "c"]);
    assert_eq!(inner.and_then(|inner| inner.list), Some(vec![Some(1), None, Some(3)]));
}

proptest! {
    #[test]
    fn no_text_panics(text in "[-a-z0-9:{}\\[\\]'\", \n&*!|>#%@`]{0,120}") {
        let _ = mistakes(&text);
    }

    #[test]
    fn no_tree_panics(text in "keys:\n- (id|kek|canary|listen|settings): [0-9a-z{}:, ]{0,30}\n") {
        let _ = mistakes(&text);
    }
}
