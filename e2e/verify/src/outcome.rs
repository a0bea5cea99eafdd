//! How a step ended, and how many tests that is.

use std::path::PathBuf;

use serde::Serialize;

/// Tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// How a step's tests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// The step is one test.
    One,
    /// The step is an executable of libtest, which counts itself.
    Libtest,
}

/// What became of one step.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Outcome {
    pub(crate) step: String,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    pub(crate) seconds: f64,
    /// CPU time of its process and of all that this has waited for.
    pub(crate) core_seconds: f64,
    /// How late the clock of a test's own process has ticked at worst, in milliseconds.
    pub(crate) late_ms: u64,
    pub(crate) log: PathBuf,
    /// Why it failed, where the log alone does not say so.
    pub(crate) problem: Option<String>,
    /// The statements in which tests failed.
    pub(crate) failed_in: Vec<String>,
    /// It failed on a starved machine, and passed alone.
    pub(crate) flaky: bool,
}

impl Counting {
    /// Counts from the output and from whether the process ended with success. A failure
    /// that the output does not count (a crash, a time limit) is one failed test more.
    pub(crate) fn count(self, output: &str, success: bool) -> Counts {
        let mut counts = match self {
            Self::One => Counts { passed: u64::from(success), failed: 0 },
            Self::Libtest => libtest(output, success),
        };
        if !success && counts.failed == 0 {
            counts.failed = 1;
        }
        counts
    }
}

/// The totals of the last `test result:` line; without one (it crashed, or it is no libtest
/// executable) the single lines.
fn libtest(output: &str, success: bool) -> Counts {
    let result = output.lines().rev().find_map(|line| line.strip_prefix("test result: "));
    let Some(result) = result else {
        let ended = |how: &str| {
            let lines = output.lines();
            lines.filter(|line| line.starts_with("test ") && line.ends_with(how)).count() as u64
        };
        let counts = Counts { passed: ended("... ok"), failed: ended("... FAILED") };
        return if counts == Counts::default() && success {
            Counts { passed: 1, failed: 0 }
        } else {
            counts
        };
    };
    let number = |what: &str| {
        let before = result.split(what).next().unwrap_or_default().trim_end();
        let digits = before.rsplit([' ', '.', ';']).next().unwrap_or_default();
        digits.parse::<u64>().unwrap_or_default()
    };
    // A test that is left out proves nothing, so it counts as failed.
    Counts { passed: number(" passed"), failed: number(" failed") + number(" ignored") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(output: &str, success: bool) -> (u64, u64) {
        let counts = Counting::Libtest.count(output, success);
        (counts.passed, counts.failed)
    }

    #[test]
    fn totals_come_from_the_last_result_line() {
        let good = "running 2 tests\ntest a ... ok\ntest b ... ok\n\ntest result: ok. 2 passed; 0 failed; \
                    0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        assert_eq!(count(good, true), (2, 0));
        let bad = "test result: ok. 9 passed; 0 failed; 0 ignored\n\
                   test result: FAILED. 14 passed; 5 failed; 0 ignored; 0 measured; 1 filtered out\n";
        assert_eq!(count(bad, false), (14, 5));
    }

    #[test]
    fn an_ignored_test_counts_as_failed() {
        assert_eq!(
            count("test result: ok. 2 passed; 0 failed; 3 ignored; 0 measured\n", true),
            (2, 3)
        );
    }

    #[test]
    fn a_crash_counts_what_was_seen_and_one_failure() {
        assert_eq!(count("test a ... ok\ntest b ... ", false), (1, 1));
        assert_eq!(count("test a ... ok\ntest b ... FAILED\n", false), (1, 1));
        assert_eq!(count("", false), (0, 1));
        // It printed success and died afterwards.
        assert_eq!(count("test result: ok. 2 passed; 0 failed; 0 ignored\n", false), (2, 1));
    }

    #[test]
    fn what_does_not_count_itself_is_one_test() {
        assert_eq!(count("hello", true), (1, 0));
        assert_eq!(Counting::One.count("", true), Counts { passed: 1, failed: 0 });
        assert_eq!(Counting::One.count("", false), Counts { passed: 0, failed: 1 });
    }

    #[test]
    fn an_executable_without_tests_counts_nothing() {
        assert_eq!(count("test result: ok. 0 passed; 0 failed; 0 ignored\n", true), (0, 0));
    }
}
