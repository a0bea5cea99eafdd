//! `providers/README.md` shows a whole provider: what it shows is what is compiled and tested.

use std::collections::BTreeMap;

use crate::assert_none;
use crate::layout::root;

/// Files of `providers/example` that the guide shows from their first line to their last.
const SHOWN: [&str; 4] = ["Cargo.toml", "src/lib.rs", "src/main.rs", "tests/conformance.rs"];

/// The blocks of a text that name a file after their language, joined by file.
fn blocks(text: &str) -> BTreeMap<&str, String> {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some((_, file)) = info.split_once(' ') {
            found.entry(file).or_default().push(block.join("\n"));
        }
    }
    found.into_iter().map(|(file, blocks)| (file, blocks.join("\n\n"))).collect()
}

/// The first line in which two texts differ, by number.
fn difference(shown: &str, real: &str) -> Option<String> {
    let (shown, real) = (shown.trim_end(), real.trim_end());
    let both = shown.lines().zip(real.lines()).enumerate();
    let first = both.into_iter().find(|(_, (shown, real))| shown != real);
    let first =
        first.map(|(at, (shown, real))| format!("line {}: {shown:?}, not {real:?}", at + 1));
    first.or_else(|| (shown != real).then(|| "one of them ends earlier".to_owned()))
}

#[test]
fn the_guide_shows_the_provider_that_is_compiled_and_tested() {
    let guide = std::fs::read_to_string(root().join("providers/README.md")).unwrap();
    let shown = blocks(&guide);
    let mut wrong = Vec::new();
    for file in SHOWN {
        let real = std::fs::read_to_string(root().join("providers/example").join(file)).unwrap();
        let text = shown.get(file).map(String::as_str).unwrap_or_default();
        wrong.extend(difference(text, &real).map(|what| format!("{file}: {what}")));
    }
    let others = shown.keys().filter(|file| !SHOWN.contains(file));
    wrong.extend(others.map(|file| format!("{file} is shown, and compared with nothing")));
    assert_none("providers/README.md shows providers/example as it is", &wrong);
}

#[test]
fn a_guide_that_shows_something_else_is_found() {
    let text =
        "a\n```rust src/x.rs\none\n\ntwo\n```\n```console\n$ x\n```\n```rust src/x.rs\nthree\n```";
    let shown = blocks(text);
    assert_eq!(shown.keys().copied().collect::<Vec<_>>(), ["src/x.rs"]);
    assert_eq!(difference(&shown["src/x.rs"], "one\n\ntwo\n\nthree\n"), None);
    for other in ["one\n\n2\n\nthree\n", "one\n\ntwo\n", "one\n\ntwo\n\nthree\nfour\n", ""] {
        assert!(difference(&shown["src/x.rs"], other).is_some(), "{other:?}");
    }
}
