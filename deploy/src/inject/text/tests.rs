use serde_json::json;

use super::*;

fn path(keys: &[&str]) -> Path {
    Path::default().index(0).keys(keys)
}

/// Appends to `list` of the root, gives the text, takes the item out again, and wants to see
/// just the bytes that were there.
fn there_and_back(text: &str, item: &serde_json::Value) -> String {
    let mut draft = Draft::read(text).unwrap();
    let origin = draft.append(&path(&[]), "list", item).unwrap();
    let changed = draft.text().to_owned();
    let last = draft.at(&path(&["list"])).unwrap().items().len() - 1;
    match origin {
        Origin::There => draft.remove_item(&path(&["list"]), last).unwrap(),
        Origin::Absent => draft.remove(&path(&[]), "list").unwrap(),
        Origin::Null(raw) => draft.restore(&path(&[]), "list", &raw).unwrap(),
    }
    assert_eq!(draft.text(), text);
    changed
}

#[test]
fn an_item_goes_behind_the_last_one_and_before_the_comment_of_what_follows() {
    let text = "list: # ours\n  # first\n  - a   # one\n  # about other\nother: 1 # x\n";
    assert_eq!(
        there_and_back(text, &json!("b")),
        "list: # ours\n  # first\n  - a   # one\n  - b\n  # about other\nother: 1 # x\n"
    );
}

#[test]
fn every_way_to_write_a_list_is_changed_and_restored() {
    for text in [
        "list:\n- a\n",
        "list:\n- a",
        "list:\r\n- a\r\nb: 1\r\n",
        "list:\n    -   a\n    -\n        - nested\nb: 2\n",
        "list: [a, b]\n",
        "list: [a, b,]\n",
        "list: [ ]\n",
        "list: []\n",
        "list: [\n  a,   # one\n  b    # two\n]\n",
        "list:\nother: x\n",
        "list: null # nothing\nother: x\n",
        "list: ~\n",
        "list: \"\"\n...\n",
        "other: {list: x}\n",
        "other: x",
        "{}",
        "{list: []}\n",
        "{list: [a], other: [b]}\n",
        "---\nlist: [a]\n---\nlist: [b]\n",
        "--- # first\nlist:\n- a\n...\n# end\n---\nlist: [b]\n",
        "list:\n- |\n  ---\n  list:\n  - not: this\n\nother: 1\n",
        "list:\n- |+\n  kept\n\n\n# comment\nother: 1\n",
        "list:\n- >-\n  folded\n\n  more\n   \nother: 1\n",
        "list:\n- k: |\n    tab\there\n      deeper\n  # less\n# none\nother: 1\n",
        "list:\n- plain over\n  two lines\n- 'it''s # no comment'\n",
        "list:\n- a: 1\n  b:\n- &named c: 2\nother: *named\n",
        "list:\n- &x !!str\n  a\n- # comment\n  - b\n",
        "list:\n- \"ünï\u{1F600}\"\nöther: ü\n",
        "list:\n- a:\n",
        "list:\n-\n",
        "list: !!seq\n- a\n",
        "# only\n\n\nlist:   \n\n  - a\n\n\n\n",
    ] {
        if text.starts_with("list: \"\"") {
            // Text is no list.
            assert!(Draft::read(text).unwrap().append(&path(&[]), "list", &json!("x")).is_err());
            continue;
        }
        there_and_back(text, &json!({"name": "x", "args": ["--a=b", "- c: #d", "yes", "1.5", ""]}));
        there_and_back(text, &json!("x: y"));
    }
}

#[test]
fn json_stays_json_however_it_is_written() {
    for text in [
        "{\"list\":[1,2],\"a\":\"\\u00e9\\ud83d\\ude00\\/ \\\"x\\\\\"}",
        "{\n    \"list\": [\n        \"a\"\n    ],\n    \"b\": {}\n}\n",
        "{\n\t\"b\": [],\n\t\"list\": null\n}",
        "{\"b\": 1.50}\n{\"list\": [3]}\n",
        "{ }",
    ] {
        let changed = there_and_back(text, &json!({"name": "x", "list": [1, {}], "empty": []}));
        let read = serde_json::Deserializer::from_str(&changed).into_iter::<serde_json::Value>();
        assert!(read.into_iter().all(|document| document.is_ok()), "{changed}");
    }
    let pretty = "{\n    \"list\": [\n        \"a\"\n    ]\n}\n";
    assert_eq!(
        there_and_back(pretty, &json!({"name": "x"})),
        "{\n    \"list\": [\n        \"a\",\n        {\n            \"name\": \"x\"\n        }\n    ]\n}\n"
    );
}

#[test]
fn what_means_something_elsewhere_too_is_refused() {
    for (text, reason) in [
        ("list: &l [a]\nother: *l\n", "is referred to from elsewhere"),
        ("other: &l [a]\nlist: *l\n", "refers to another part"),
        ("base: &b {x: 1}\n<<: *b\nlist: [a]\n", "merges another map"),
    ] {
        let mut draft = Draft::read(text).unwrap();
        let error = draft.append(&path(&[]), "list", &json!("x")).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert_eq!(draft.text(), text);
    }
}

#[test]
fn what_would_say_something_else_afterwards_is_refused() {
    // Brackets in the place of the item would become part of the comment.
    let text = "list: # comment\n- a\n";
    let mut draft = Draft::read(text).unwrap();
    let error = draft.remove_item(&path(&["list"]), 0).unwrap_err();
    assert!(error.contains("list (line 1) is written in a way"), "{error}");
    assert_eq!(draft.text(), text);
}

#[test]
fn texts_that_are_wrong_are_told_so() {
    for (text, reason) in [
        ("a: [", "not YAML"),
        ("a: 1\na: 2\n", "line 1 has the key a twice"),
        ("{\"a\": 1, \"a\": 2}", "the key a twice"),
        ("a:\n\t- b\n", "not YAML"),
        ("a: *b\n", "not YAML"),
    ] {
        let error = Draft::read(text).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn an_entry_leaves_as_it_came_also_from_behind_a_dash() {
    let text = "items:\n- args: [a]\n  name: x\n- name: y\n";
    let mut draft = Draft::read(text).unwrap();
    draft.remove(&path(&["items"]).index(0), "args").unwrap();
    assert_eq!(draft.text(), "items:\n- name: x\n- name: y\n");
    draft.insert(&path(&["items"]).index(0), "args", &json!(["b"])).unwrap();
    assert_eq!(draft.text(), "items:\n- name: x\n  args:\n  - b\n- name: y\n");
    draft.remove(&path(&["items"]).index(1), "name").unwrap();
    assert_eq!(draft.text(), "items:\n- name: x\n  args:\n  - b\n- {}\n");
}

#[test]
fn a_rewritten_text_can_be_put_back_as_it_was_written() {
    let text = "a: ['it''s' , x]\n";
    let mut draft = Draft::read(text).unwrap();
    let first = path(&["a"]).index(0);
    let raw = draft.raw(&first).unwrap().to_owned();
    draft.rewrite(&first, "--flag=1", None).unwrap();
    assert_eq!(draft.text(), "a: [--flag=1 , x]\n");
    draft.rewrite(&first, "it's", Some(&raw)).unwrap();
    assert_eq!(draft.text(), text);
    // What is no longer true is not put back.
    draft.rewrite(&first, "other", Some("]")).unwrap();
    assert_eq!(draft.text(), "a: [other , x]\n");
}
