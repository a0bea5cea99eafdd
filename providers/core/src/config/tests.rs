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
    assert_eq!(config.map(|config| config.options.socket.mode), Some(0o660));
}

#[test]
fn inline_credentials_are_not_shown() {
    let document = json!({"keys": [{"credentials": {"token": "s.abc", "file": "/run/t", "n": 5}}]});
    let shown = redacted(&document).to_string();
    assert!(!shown.contains("s.abc") && !shown.contains('5'), "{shown}");
    assert!(shown.contains("/run/t"));
}

#[test]
fn no_message_quotes_what_stands_in_the_place_of_a_credential() {
    for text in
        ["credentials: hunter2", "credentials: {token: {a: hunter2}}", "credentials: 7hunter2"]
    {
        let text = format!("keys: [{{id: 1, kek: {{kms: a}}, {text}}}]");
        let problems = document(&text).and_then(|document| parse::<Scripted>(&document)).err();
        let shown = problems.unwrap_or_default().to_string();
        assert!(shown.contains("keys[0].credentials"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn the_ciphertext_of_a_canary_is_not_shown() {
    let canary =
        json!({"keyId": "k/1", "ciphertext": "c2VhbGVk", "annotations": {"a.b": "bm90ZQ=="}});
    let shown = redacted(&json!({"keys": [{"canary": canary}]})).to_string();
    assert!(!shown.contains("c2VhbGVk") && !shown.contains("bm90ZQ"), "{shown}");
    assert!(shown.contains("k/1"));
}

#[test]
fn a_number_in_the_place_of_text_is_told_what_it_lacks() {
    let text = "drain: 10\nsocket: {mode: 0660}\nprobe: {coast: 5}\nkeys: [{id: 1, kek: {kms: a}}]";
    let problems = document(text).and_then(|document| parse::<Scripted>(&document)).err();
    let shown = problems.unwrap_or_default().to_string();
    for part in ["drain: \"10\" is no duration", "\"0660\"", "probe.coast: \"5\" is no duration"] {
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn no_document_costs_more_than_it_may() {
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for pair in ["ab", "bc", "cd", "de", "ef", "fg", "gh"] {
        let (from, to) = pair.split_at(1);
        bomb.push_str(&format!("{to}: &{to} [{}]\n", format!("*{from}, ").repeat(9)));
    }
    for text in [deep(40), deep(100_000), "- ".repeat(100_000), bomb, "x".repeat(2 << 20)] {
        assert!(document(&text).is_err(), "{} bytes were accepted", text.len());
    }
    // Each mistake costs another reading: without an end of them this would take hours.
    let ones = format!("keys: [{}]", "1, ".repeat(50_000));
    assert_eq!(mistakes(&ones).len(), 100);
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
