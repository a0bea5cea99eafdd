//! The verdicts of a run, as a table and as JSON.

use std::fmt;

use serde::Serialize;
use sidekey_core::Endpoint;

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which plugin.
    pub endpoint: String,
    /// Whether no check failed and at least one passed.
    pub passed: bool,
    /// Set where nobody could be reached at all: what happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
    /// One for each selected check, in the order of the run.
    pub checks: Vec<Finding>,
    /// The checks that the caller left out.
    pub deselected: Vec<&'static str>,
}

/// What one check found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The check.
    pub id: &'static str,
    /// What a conforming plugin does.
    pub promise: &'static str,
    /// How it was judged.
    pub verdict: Verdict,
    /// What was seen, what went wrong, or why it was not run.
    pub detail: String,
    /// How long it took, in milliseconds.
    pub millis: u64,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The promise was kept.
    Passed,
    /// The promise was broken.
    Failed,
    /// The promise could not be judged.
    NotRun,
}

impl Report {
    pub(crate) fn new(
        endpoint: &Endpoint,
        unreachable: Option<String>,
        checks: Vec<Finding>,
        deselected: Vec<&'static str>,
    ) -> Self {
        let any = |verdict| checks.iter().any(|finding| finding.verdict == verdict);
        let passed = unreachable.is_none() && any(Verdict::Passed) && !any(Verdict::Failed);
        Self { endpoint: endpoint.to_string(), passed, unreachable, checks, deselected }
    }

    /// Whether no check failed and at least one passed. Checks that were not run do not count.
    pub fn passed(&self) -> bool {
        self.passed
    }

    /// Whether, moreover, every check was run.
    pub fn complete(&self) -> bool {
        self.passed && self.deselected.is_empty() && self.with(Verdict::NotRun).next().is_none()
    }

    /// The findings with that verdict.
    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Finding> {
        self.checks.iter().filter(move |finding| finding.verdict == verdict)
    }
}

/// The table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: fn(&Finding) -> &str, least: &str| {
            let texts = self.checks.iter().map(|finding| text(finding).chars().count());
            texts.max().unwrap_or(0).max(least.len())
        };
        let id = width(|finding| finding.id, "CHECK");
        let promise = width(|finding| finding.promise, "PROMISE");
        writeln!(f, "{:id$}  {:promise$}  VERDICT  {:>9}  DETAIL", "CHECK", "PROMISE", "TIME")?;
        for finding in &self.checks {
            let Finding { id: name, promise: what, verdict, detail, millis } = finding;
            let time = format!("{millis} ms");
            let row = format!("{name:id$}  {what:promise$}  {verdict:7}  {time:>9}  {detail}");
            writeln!(f, "{}", row.trim_end())?;
        }
        let count = |verdict| self.with(verdict).count();
        let (passed, failed) = (count(Verdict::Passed), count(Verdict::Failed));
        write!(f, "\n{}: {passed} passed, {failed} failed", self.endpoint)?;
        match count(Verdict::NotRun) {
            0 => {}
            unjudged => write!(f, ", {unjudged} NOT RUN and therefore not judged")?,
        }
        match self.deselected.len() {
            0 => writeln!(f),
            left_out => writeln!(f, ", {left_out} left out by --only or --skip"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::NotRun => "NOT RUN",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdicts: &[Verdict]) -> Report {
        let findings = verdicts.iter().map(|&verdict| Finding {
            id: "status.version",
            promise: "Status reports a version",
            verdict,
            detail: "seen".into(),
            millis: 7,
        });
        let endpoint: Endpoint = "/tmp/kms.sock".parse().unwrap();
        Report::new(&endpoint, None, findings.collect(), Vec::new())
    }

    #[test]
    fn one_failure_fails_the_run_and_nothing_judged_does_not_pass_it() {
        use Verdict::{Failed, NotRun, Passed};
        assert!(report(&[Passed, Passed]).passed());
        assert!(!report(&[Passed, Failed]).passed());
        assert!(report(&[Passed, NotRun]).passed());
        assert!(!report(&[NotRun]).passed());
        assert!(!report(&[]).passed());
    }

    #[test]
    fn a_run_is_complete_only_if_everything_was_judged() {
        use Verdict::{NotRun, Passed};
        assert!(report(&[Passed]).complete());
        assert!(!report(&[Passed, NotRun]).complete());
        let left_out = Report { deselected: vec!["status.key-id"], ..report(&[Passed]) };
        assert!(!left_out.complete());
    }

    #[test]
    fn the_table_is_loud_about_what_was_not_run() {
        let table = report(&[Verdict::Passed, Verdict::NotRun]).to_string();
        assert!(table.contains("status.version  Status reports a version  passed "), "{table}");
        assert!(
            table.contains("1 passed, 0 failed, 1 NOT RUN and therefore not judged"),
            "{table}"
        );
    }

    #[test]
    fn json_spells_verdicts_in_lower_case() {
        let json = serde_json::to_value(report(&[Verdict::NotRun])).unwrap();
        assert_eq!(json["checks"][0]["verdict"], "not-run");
        assert_eq!(json["passed"], false);
        assert_eq!(json["endpoint"], "unix:///tmp/kms.sock");
        assert!(json.get("unreachable").is_none());
    }
}
