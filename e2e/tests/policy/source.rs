//! What may not stand in any file of the repository.

use std::collections::BTreeMap;

use crate::assert_none;
use crate::layout::{files, providers, root};

/// Longest Rust file: what does not fit wants to be two modules.
const MAX_LINES: usize = 600;

/// Texts that are never right, with the reason. They are put together from two halves
/// so that this file does not contain them itself.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("#[", "ignore"), "a test that never runs proves nothing"),
    (concat!("todo", "!("), "finish it, or leave it out"),
    (concat!("unimplemented", "!("), "finish it, or leave it out"),
    (concat!("FIX", "ME"), "fix it, or describe the limit in the crate's documentation"),
    (concat!("crates", ".io"), "where packages come from is the user's setting"),
    (concat!("proxy.", "golang.org"), "where packages come from is the user's setting"),
    (concat!("sum.", "golang.org"), "where packages come from is the user's setting"),
    (concat!("pypi", ".org"), "where packages come from is the user's setting"),
    (concat!("pythonhosted", ".org"), "where packages come from is the user's setting"),
    (concat!("npmjs", ".org"), "where packages come from is the user's setting"),
    (concat!("/ho", "me/"), "a path of somebody's machine"),
    (concat!("/ro", "ot/"), "a path of somebody's machine"),
    (concat!("/Use", "rs/"), "a path of somebody's machine"),
    (concat!("/wo", "rk/"), "a path of somebody's machine"),
];

/// Files that tools write and that must name their sources.
const GENERATED: &[&str] = &["Cargo.lock"];

#[test]
fn no_file_contains_forbidden_text() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|file| !GENERATED.contains(&file.as_str())) {
        let bytes = std::fs::read(root().join(file)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        for (number, line) in text.lines().enumerate() {
            for (forbidden, reason) in FORBIDDEN.iter().filter(|(text, _)| line.contains(text)) {
                wrong.push(format!("{file}:{}: {forbidden:?}: {reason}", number + 1));
            }
        }
    }
    assert_none("forbidden text", &wrong);
}

#[test]
fn no_rust_file_is_too_long() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|file| file.ends_with(".rs")) {
        let lines = std::fs::read_to_string(root().join(file)).unwrap().lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{file} has {lines} lines, more than {MAX_LINES}"));
        }
    }
    assert_none("split what is too long", &wrong);
}

#[test]
fn no_crate_allows_unsafe_code() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("unsafe_code = \"forbid\""), "the workspace forbids unsafe code");
}

/// The type that a line of code defines, if it does. Types that belong to a trait are indented.
fn defined(line: &str) -> Option<&str> {
    if line.trim_start().starts_with("//") {
        return None;
    }
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
    let mut words = words.skip_while(|word| ["pub", "crate", "super"].contains(word));
    match words.next()? {
        "struct" | "enum" | "trait" => words.next(),
        "type" if !line.starts_with(' ') => words.next(),
        _ => None,
    }
}

#[test]
fn a_type_name_means_one_thing_in_core_and_shim() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let sources = |file: &&String| {
        ["providers/core/src/", "shim/src/"].iter().any(|folder| file.starts_with(folder))
            && file.ends_with(".rs")
    };
    for file in files().iter().filter(sources) {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = defined(line) {
                places.entry(name.to_owned()).or_default().push(format!("{file}:{}", number + 1));
            }
        }
    }
    assert!(places.len() > 100, "sources not found: {places:?}");
    let twice = places.iter().filter(|(_, places)| places.len() > 1);
    let wrong: Vec<String> =
        twice.map(|(name, places)| format!("{name}: {}", places.join(", "))).collect();
    assert_none("one name, one thing: say which of them it is", &wrong);
}

#[test]
fn definitions_of_types_are_told_from_their_uses() {
    let lines = ["pub(crate) struct A<T>(T);", "    enum B {", "type C = u8;", "pub trait D: E {"];
    assert_eq!(lines.map(defined), ["A", "B", "C", "D"].map(Some));
    for line in ["    type Peer = SocketAddr;", "use a::B;", "/// struct A", "let a = A {};"] {
        assert_eq!(defined(line), None, "{line}");
    }
}

#[test]
fn the_shim_names_no_provider() {
    let providers = providers();
    let all = files();
    let product = |file: &&String| file.starts_with("shim/src/") || *file == "shim/Cargo.toml";
    let shim: Vec<&String> = all.iter().filter(product).collect();
    assert!(shim.len() > 5 && !providers.is_empty(), "sources not found: {shim:?}");
    let mut wrong = Vec::new();
    for file in shim {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        for name in &providers {
            if text.contains(&format!("sidekey-{name}"))
                || text.contains(&format!("sidekey_{name}"))
            {
                wrong.push(format!("{file} names the provider {name}"));
            }
        }
    }
    assert_none("the shim speaks KMS v2 to anybody", &wrong);
}
