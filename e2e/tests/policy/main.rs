//! The rules that hold for the whole repository, each enforced by one test.
//!
//! Whoever breaks one reads here, in the failure, which file to change and why
//! the rule exists. An exception is possible only where a table asks for its
//! reason; an exception that nothing needs any more fails too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod conformance;
mod corpus;
mod crates;
mod guide;
mod layout;
mod licences;
mod lines;
mod manifests;
mod metadata;
mod promises;
mod source;
mod toolchain;

/// Fails with every violation at once, each on a line of its own.
#[track_caller]
fn assert_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}
