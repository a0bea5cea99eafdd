//! How much code there is: lines without documentation, comments, blanks and tests. It is printed
//! for each crate (`cargo test --test policy lines -- --nocapture`); core and shim have a limit.

use std::collections::{BTreeMap, BTreeSet};

use crate::assert_none;
use crate::layout::{files, root};

const CORE: &str = "providers/core";
const SHIM: &str = "shim";

/// Code lines of core and shim together. The goal is 10,803; what they gained since they had that
/// many is one table of connections with a budget for the process, TLS and certificates (once in the
/// shim, a provider and deploy), canaries that are remembered, backend calls by purpose, and a start
/// that certificates which cannot be used do not prevent.
const MAX_CODE: usize = 12_335;

/// All lines of a file of core or shim.
const MAX_FILE: usize = 450;

const TEST: &str = "#[cfg(test)]";

/// What is left of a source file without documentation, comments, blanks and tests, and the
/// modules in other files that it declares for tests alone. The text is as rustfmt leaves it: what
/// begins at some depth ends at the same depth.
fn code(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut lines, mut tests) = (Vec::new(), Vec::new());
    let mut skipped_depth = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let depth = line.len() - trimmed.len();
        if skipped_depth == Some(depth) && !trimmed.is_empty() && !trimmed.starts_with('#') {
            tests.extend(trimmed.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')));
            if trimmed.ends_with([';', '}']) {
                skipped_depth = None;
            }
        } else if skipped_depth.is_some() || trimmed.is_empty() || trimmed.starts_with("//") {
        } else if trimmed == TEST {
            skipped_depth = Some(depth);
        } else {
            lines.push(line);
        }
    }
    (lines, tests)
}

/// The crate that a file belongs to, of those at the top and under `providers/`.
fn crate_of(file: &str) -> &str {
    let depth = if file.starts_with("providers/") { 2 } else { 1 };
    let end = file.match_indices('/').nth(depth - 1).map_or(file.len(), |(at, _)| at);
    &file[..end]
}

/// Code lines of each crate; those of a provider that are there for the sake of the plugins that it
/// replaces are counted apart.
fn code_lines() -> BTreeMap<String, usize> {
    let (mut counts, mut tests) = (Vec::new(), BTreeSet::new());
    for file in files() {
        let Some(module) = file.strip_suffix(".rs") else { continue };
        // Files of integration tests.
        if module.contains("/tests/") && !module.contains("/src/") {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let (lines, declared) = code(&text);
        let folder = ["/lib", "/main", "/mod"].iter().find_map(|name| module.strip_suffix(name));
        tests.extend(declared.iter().map(|name| format!("{}/{name}", folder.unwrap_or(module))));
        counts.push((module.to_owned(), lines.len()));
    }
    let is_test = |module: &str| {
        let ends = module.match_indices('/').map(|(at, _)| at).chain([module.len()]);
        ends.into_iter().any(|end| tests.contains(&module[..end]))
    };
    let mut sums = BTreeMap::new();
    for (module, lines) in counts.iter().filter(|(module, _)| !is_test(module)) {
        let replaces = module.split('/').any(|part| part == "dropin");
        let what = if replaces { ", for drop-in use" } else { "" };
        *sums.entry(format!("{}{what}", crate_of(module))).or_default() += lines;
    }
    sums
}

#[test]
fn core_and_shim_do_not_grow() {
    let sums = code_lines();
    for (name, lines) in &sums {
        println!("{lines:>7} {name}");
    }
    println!("{:>7} in all", sums.values().sum::<usize>());
    let (core, shim) = (sums[CORE], sums[SHIM]);
    assert!(core > 1000 && shim > 1000, "sources not found: {sums:?}");
    let sum = core + shim;
    assert!(
        sum <= MAX_CODE,
        "{CORE} has {core} code lines, {SHIM} {shim}: {sum} in all, more than {MAX_CODE}. \
         What one of them gains the other must lose: look for what is written twice"
    );
}

#[test]
fn no_file_of_core_or_shim_is_too_long() {
    let mut wrong = Vec::new();
    for file in files().iter().filter(|file| file.ends_with(".rs")) {
        if ![CORE, SHIM].contains(&crate_of(file)) || !file.contains("/src/") {
            continue;
        }
        let lines = std::fs::read_to_string(root().join(file)).unwrap().lines().count();
        if lines > MAX_FILE {
            wrong.push(format!("{file} has {lines} lines, more than {MAX_FILE}"));
        }
    }
    assert_none("split what is too long along its responsibilities", &wrong);
}

#[test]
fn documentation_comments_blanks_and_tests_are_no_code() {
    let text = "\
//! Docs.

use a::B; // Counted.

/// Docs.
fn one() {
    // Why.
    two();
    #[cfg(test)]
    three();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing;
#[cfg(test)]
use c::D;

fn four() {}

#[cfg(test)]
mod tests {
    fn five() {}

    mod six {
    }
}

fn seven() {}
";
    let (lines, tests) = code(text);
    assert_eq!(
        lines,
        ["use a::B; // Counted.", "fn one() {", "    two();", "}", "fn four() {}", "fn seven() {}"]
    );
    assert_eq!(tests, ["testing"]);
    assert_eq!(crate_of("providers/core/src/key.rs"), CORE);
    assert_eq!(crate_of("shim/src/key.rs"), SHIM);
}
