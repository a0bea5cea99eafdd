//! `shim/README.md` says which tests show each of its promises.

use std::fs::read_to_string;
use std::path::Path;

use crate::assert_none;
use crate::layout::root;

/// What the promise is called that begins on this line: it is an item of a list and begins in bold.
fn promise(line: &str) -> Option<&str> {
    let item = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let item = item.strip_prefix(". **").or_else(|| item.strip_prefix("- **"))?;
    Some(item.split_once("**")?.0)
}

fn promises(text: &str) -> Vec<&str> {
    text.lines().filter_map(promise).collect()
}

/// The rows of a text's table of promises: what each is called, and the tests that show it.
fn rows(text: &str) -> Vec<(&str, &str)> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.filter_map(|row| row.split_once(" | "))
        .filter(|(_, tests)| tests.contains(".rs`: `"))
        .collect()
}

/// What is wrong with a row's tests, which are names of functions after the file that has them.
fn missing(tests: &str, root: &Path) -> Vec<String> {
    let (mut file, mut source, mut missing) = ("", String::new(), Vec::new());
    for name in tests.split('`').skip(1).step_by(2) {
        if name.contains('/') {
            (file, source) = (name, read_to_string(root.join(name)).unwrap_or_default());
        } else if !source.contains(&format!("fn {name}()")) {
            missing.push(format!("{file} has no test {name}"));
        }
    }
    missing
}

#[test]
fn every_promise_of_the_shim_names_the_tests_that_show_it() {
    let readme = read_to_string(root().join("shim/README.md")).unwrap();
    let (promises, rows) = (promises(&readme), rows(&readme));
    assert!(promises.len() > 20, "promises not found: {promises:?}");
    let mut wrong: Vec<String> =
        rows.iter().flat_map(|(_, tests)| missing(tests, root())).collect();
    let untested = promises.iter().filter(|name| !rows.iter().any(|(row, _)| row == *name));
    wrong.extend(untested.map(|name| format!("{name:?} has no row in the table of promises")));
    let unknown = rows.iter().filter(|(row, _)| !promises.contains(row));
    wrong.extend(unknown.map(|(row, _)| format!("{row:?} is no promise of the text")));
    assert_none("shim/README.md says what shows its promises", &wrong);
}

#[test]
fn a_promise_without_a_test_is_found() {
    let text = "1. **One.** Text\n- **Two**, text\n   **Three**\n\
                | One. | `e2e/tests/policy/promises.rs`: `a_promise_without_a_test_is_found`, `b` |\n\
                | `kms` | a field |\n";
    assert_eq!(promises(text), ["One.", "Two"]);
    let rows = rows(text);
    assert_eq!(rows.iter().map(|(row, _)| *row).collect::<Vec<_>>(), ["One."]);
    let missing = missing(rows[0].1, root());
    assert_eq!(missing, ["e2e/tests/policy/promises.rs has no test b"]);
}
