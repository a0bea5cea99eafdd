//! The README tells of the checks that there are.

use std::fmt::Write;

use sidekey_conformance::checks;

#[test]
fn the_readme_lists_every_check_with_its_promise_and_reason() {
    let readme = include_str!("../../README.md");
    let mut expected = String::new();
    for check in checks() {
        let needs: Vec<_> = check.needs.iter().map(|need| format!(" Needs {need}.")).collect();
        let (id, promise, why) = (check.id, check.promise, check.why);
        writeln!(expected, "| `{id}` | {promise} | {why}{} |", needs.concat()).unwrap();
    }
    let (_, section) = readme.split_once("\n## The checks\n").unwrap();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<_> = expected.lines().collect();
    assert!(rows == expected, "the table of the README must be:\n{}", expected.join("\n"));
}
