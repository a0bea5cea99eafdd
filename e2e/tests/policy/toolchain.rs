//! The oldest Rust that builds this: true, and the same wherever it is written.

use crate::assert_none;
use crate::layout::root;
use crate::metadata::{Metadata, Package};

/// Files that tell people or machines which Rust it takes.
const TOLD: [&str; 2] = ["images/README.md", ".github/workflows/ci.yml"];

/// A version in numbers, so that 1.100 is newer than 1.99.
fn numbers(version: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).collect();
    numbers.resize(3, 0);
    numbers
}

/// What the workspace promises.
fn ours() -> &'static str {
    let mut members = Metadata::load().members();
    let core = members.find(|member| member.name == "sidekey-core").expect("core is a member");
    core.rust_version.as_deref().expect("the workspace says which Rust it takes")
}

#[test]
fn every_member_promises_the_same_rust() {
    let wrong: Vec<String> = Metadata::load()
        .members()
        .filter(|member| member.rust_version.as_deref() != Some(ours()))
        .map(|member| format!("{}: add rust-version.workspace = true", member.name))
        .collect();
    assert_none("one workspace, one Rust", &wrong);
}

/// `cargo verify --all` builds everything with it; this finds an update that raises it at once.
#[test]
fn no_crate_needs_a_newer_rust_than_we_promise() {
    let newer = |package: &&Package| {
        let needs = package.rust_version.as_deref().map(numbers);
        needs.is_some_and(|needs| needs > numbers(ours()))
    };
    let say = |package: &Package| {
        let needs = package.rust_version.as_deref().unwrap_or_default();
        format!("{} {} needs Rust {needs}, we promise {}", package.name, package.version, ours())
    };
    let wrong: Vec<String> = Metadata::load().packages.iter().filter(newer).map(say).collect();
    assert_none("raise rust-version, or keep the older crate", &wrong);
}

#[test]
fn the_same_rust_is_written_everywhere() {
    let told = |file: &&&str| {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        !text.contains(ours())
    };
    let wrong: Vec<String> =
        TOLD.iter().filter(told).map(|file| format!("{file} does not say {}", ours())).collect();
    assert_none("rust-version of Cargo.toml is told where it matters", &wrong);
}

#[test]
fn versions_are_compared_as_numbers() {
    assert!(numbers("1.100") > numbers("1.99.9"));
    assert!(numbers("1.94.1") > numbers("1.94"));
    assert_eq!(numbers("1.94"), numbers("1.94.0"));
}
