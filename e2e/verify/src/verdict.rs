//! Where a test failed, and whether the machine is to blame.
//!
//! A failure is forgiven, after a second run alone that passed, only if all of this is true:
//! the process itself was starved (its own clock ticked late by more than a second), what it
//! said itself, in each of its panics, is that something came too late, it left no process, no program
//! of ours crashed, and nothing that it read was wrong or could not be read. A quiet machine
//! forgives nothing: real races must not hide.

use std::path::Path;

use sidekey_verify::{BROKEN, CRASHED, QUOTED, UNQUOTED};

use crate::outcome::Outcome;

/// A test process that was not scheduled for longer than this was starved.
const STARVED_MS: u64 = 1_000;

/// How waits and deadlines say that something was late.
const LATE: &[&str] =
    &["in vain", "DeadlineExceeded", "deadline", "timed out", "Timeout", "too late"];

/// What is said somewhere if data is wrong or cannot be read, or a program of ours crashed.
/// kube-apiserver has its own words for it.
const NEVER: &[&str] = &[BROKEN, CRASHED, "unable to transform", "failed to decrypt"];

/// What ends the message of a panic: another panic, or what the standard library and libtest say.
const ENDS: &[&str] = &["thread '", "note: ", "test ", "failures:", "---- "];

/// What libtest prints for a panic.
const PANICKED: &str = "panicked at ";

/// The places where tests panicked: the statement, which names the step, and its file and line.
pub(crate) fn places(output: &str, root: &Path) -> Vec<String> {
    let mut places = Vec::new();
    for line in output.lines().filter(|line| line.starts_with("thread '")) {
        let Some((_, place)) = line.split_once(PANICKED) else { continue };
        let mut parts = place.trim_end_matches(':').splitn(3, ':');
        let (Some(file), Some(number)) = (parts.next(), parts.next()) else { continue };
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let number: usize = number.parse().unwrap_or_default();
        let place = match statement(&text, number) {
            Some(statement) => format!("{statement} ({file}:{number})"),
            None => format!("{file}:{number}"),
        };
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// The whole statement that ends on or contains a line: rustfmt breaks long ones.
fn statement(text: &str, number: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).take(number).collect();
    if lines.len() < number {
        return None;
    }
    let ends = |line: &&str| line.is_empty() || line.ends_with([';', '{', '}']);
    let before = lines.iter().rev().skip(1).take_while(|line| !ends(line)).count();
    let joined = lines[number - 1 - before..].concat();
    Some(joined.chars().take(160).collect())
}

/// The test that failed, as libtest names it.
pub(crate) fn failed_test(output: &str) -> Option<&str> {
    // With other output in between, the name stands in the list at the end alone.
    let after = output.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    after.lines().map(str::trim).next().filter(|name| !name.is_empty() && !name.contains(' '))
}

/// The name of a test's second run.
pub(crate) fn second_chance(test: &str) -> String {
    format!("{test} (second chance)")
}

/// Whether a failure may be forgiven if the test passes alone.
pub(crate) fn may_be_forgiven(outcome: &Outcome, output: &str) -> bool {
    let panics_elsewhere = output
        .lines()
        .any(|line| line.split_once(PANICKED).is_some_and(|(_, place)| !is_of_a_test(place)));
    let messages = messages(output);
    let is_late = |message: &String| LATE.iter().any(|word| message.contains(word));
    outcome.late_ms > STARVED_MS
        && outcome.counts.failed == 1
        && outcome.problem.as_deref().is_none_or(|problem| problem.contains("exit status: 101"))
        && !messages.is_empty()
        && messages.iter().all(is_late)
        && !NEVER.iter().any(|word| output.contains(word))
        && !panics_elsewhere
}

/// Whether a place is in a test of whole programs: in the harness and what it tests with, or in the
/// tests beside the sources of a provider.
fn is_of_a_test(place: &str) -> bool {
    let mut parts = place.split('/');
    match parts.next() {
        Some("e2e") => true,
        Some("providers") => parts.nth(1) == Some("tests"),
        _ => false,
    }
}

/// What the test said in each of its panics, without the logs that it quotes.
fn messages(output: &str) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    let (mut is_message, mut quoted) = (false, None);
    for line in output.lines() {
        if line.starts_with("thread '") && line.contains(PANICKED) {
            messages.push(String::new());
            (is_message, quoted) = (true, None);
            continue;
        }
        if quoted.is_none() && ENDS.iter().any(|end| line.starts_with(end)) {
            is_message = false;
        }
        let Some(message) = messages.last_mut().filter(|_| is_message) else { continue };
        let (own, now) = step(quoted, line);
        message.push_str(own);
        message.push('\n');
        quoted = now;
    }
    messages
}

/// Where in the quoted lines of a log we are.
#[derive(Clone, Copy)]
enum Quote {
    /// At the first.
    Begun,
    /// After it: so far in are all of them.
    SetIn(usize),
}

/// What of a line is the test's own, and whether the next one is quoted. The first quoted line
/// tells how far in all of them are: the end stands further out.
fn step(quoted: Option<Quote>, line: &str) -> (&str, Option<Quote>) {
    let ends = match quoted {
        None => true,
        Some(Quote::Begun) => line.trim() == UNQUOTED,
        Some(Quote::SetIn(by)) => line.trim().starts_with(UNQUOTED) && indent(line) < by,
    };
    match (line.split_once(QUOTED), quoted) {
        (Some((own, _)), _) if ends => (own, Some(Quote::Begun)),
        (None, None) => (line, None),
        (_, Some(Quote::Begun)) if !ends => ("", Some(Quote::SetIn(indent(line)))),
        _ => ("", quoted.filter(|_| !ends)),
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Counts;

    const LATE_OUTPUT: &str = "thread 'plane::x' panicked at e2e/tests/it/plane/x.rs:3:9:\n\
                               called `Result::unwrap()`: waited 180 s in vain: a thing";

    fn failed(late_ms: u64, problem: &str) -> Outcome {
        let counts = Counts { passed: 0, failed: 1 };
        let problem = Some(problem.to_owned());
        Outcome { counts, late_ms, problem, ..Outcome::default() }
    }

    #[test]
    fn only_a_starved_process_that_was_late_is_forgiven() {
        let starved = failed(2_000, "ended with exit status: 101");
        assert!(may_be_forgiven(&starved, LATE_OUTPUT));
        let quiet = failed(200, "ended with exit status: 101");
        assert!(!may_be_forgiven(&quiet, LATE_OUTPUT), "the machine was quiet");
        let crashed = failed(2_000, "ended with signal: 11 (SIGSEGV)");
        assert!(!may_be_forgiven(&crashed, LATE_OUTPUT), "it crashed");
        let littered = failed(2_000, "left running: etcd (pid 7)");
        assert!(!may_be_forgiven(&littered, LATE_OUTPUT), "it left a process");
        assert!(!may_be_forgiven(&starved, "assertion failed: 1 == 2"), "nothing was late");
        let broken = format!("{LATE_OUTPUT}\nBROKEN: s-3 reads \"b\", not \"a\"");
        assert!(!may_be_forgiven(&starved, &broken), "data was wrong");
        let unreadable = format!("{LATE_OUTPUT}; last seen: failed to decrypt DEK");
        assert!(!may_be_forgiven(&starved, &unreadable), "data could not be read");
        let crashed = format!("{LATE_OUTPUT}\nCRASHED: shim ended with signal: 9 (SIGKILL)");
        assert!(!may_be_forgiven(&starved, &crashed), "a program of ours was killed");
        let product = format!("{LATE_OUTPUT}\nthread 'main' panicked at shim/src/run.rs:9:1:");
        assert!(!may_be_forgiven(&starved, &product), "a program of ours panicked");
        let provider = LATE_OUTPUT.replace("e2e/tests/it/plane", "providers/x/tests/promises");
        assert!(may_be_forgiven(&starved, &provider));
        let within = LATE_OUTPUT.replace("e2e/tests/it/plane", "providers/x/src/tests");
        assert!(!may_be_forgiven(&starved, &within), "no test of whole programs");
        let suite = LATE_OUTPUT.replace("e2e/tests/it/plane/x", "providers/conformance/src/run");
        assert!(!may_be_forgiven(&starved, &suite), "the table of all checks was cited");
    }

    #[test]
    fn what_a_log_says_of_time_forgives_nothing() {
        let starved = failed(2_000, "ended with exit status: 101");
        let quoting = |own: &str, after: &str| {
            format!(
                "thread 'plane::x' (7) panicked at e2e/tests/it/plane/x.rs:3:9:\n{own}\n\nCaused by:\n    \
                 0: it failed\n       --- last lines of shim, /x.log:\n           1 == 2\n           \
                 --- in vain\n           DeadlineExceeded\n       ---\n    1: {after}\nnote: timed out\n"
            )
        };
        assert!(!may_be_forgiven(&starved, &quoting("1 == 2", "no")));
        assert!(may_be_forgiven(&starved, &quoting("waited in vain", "no")));
        assert!(may_be_forgiven(&starved, &quoting("no", "too late")), "said after the log");
        let beside =
            "--- last lines of shim, /x.log:\n    timed out\n---\ntest x ... FAILED\nin vain";
        let other = "thread 'x' panicked at e2e/tests/x.rs:3:9:\n1 == 2: ";
        assert!(!may_be_forgiven(&starved, &format!("{other}{beside}")));
        let two = format!("{LATE_OUTPUT}\n{other}\n");
        assert!(!may_be_forgiven(&starved, &two), "one of two panics was not late");
    }

    #[test]
    fn the_failed_test_is_the_one_that_libtest_lists() {
        let output = "test a::b ... ok\n\nfailures:\n\n---- a::c stdout ----\nx\n\n\
                      failures:\n    a::c\n\ntest result: FAILED. 1 passed; 1 failed";
        assert_eq!(failed_test(output), Some("a::c"));
        assert_eq!(failed_test(&output.replace("a::c", "c")), Some("c"), "at the top of its file");
        assert_eq!(failed_test("test a ... "), None);
    }

    #[test]
    fn the_step_is_the_statement_that_panicked() {
        let dir = tempfile::tempdir().unwrap();
        let source = "async fn t() {\n    let scene = start().await.unwrap();\n    \
                      a_key_is_lost(&scene)\n        .await\n        .unwrap();\n}\n";
        std::fs::write(dir.path().join("t.rs"), source).unwrap();
        let output = "thread 't' panicked at t.rs:5:10:\nno\nthread 't' panicked at t.rs:2:3:\n";
        let places = places(output, dir.path());
        assert_eq!(
            places,
            [
                "a_key_is_lost(&scene).await.unwrap(); (t.rs:5)",
                "let scene = start().await.unwrap(); (t.rs:2)"
            ]
        );
    }

    #[test]
    fn a_place_without_its_source_is_named_by_file_and_line() {
        let output = "thread 't' panicked at gone.rs:7:10:\n";
        assert_eq!(places(output, Path::new("/nowhere")), ["gone.rs:7"]);
    }
}
