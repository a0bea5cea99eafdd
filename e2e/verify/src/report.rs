//! What is said at the end.

use anyhow::{Context, Result};
use serde::Serialize;
use sidekey_verify::command::Format;

use crate::outcome::{Counts, Outcome};
use crate::runner::Runner;
use crate::verdict;

/// The end of a run, for programs.
#[derive(Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    counts: Counts,
    seconds: f64,
    core_seconds: f64,
    /// Steps whose failure was forgiven.
    flaky: Vec<String>,
    steps: Vec<Outcome>,
    not_run: Vec<String>,
}

/// Prints the names of the steps.
pub(crate) fn list(names: &[String], format: Format) -> Result<()> {
    println!("{}", listed(names, format)?);
    Ok(())
}

fn listed(names: &[String], format: Format) -> Result<String> {
    Ok(match format {
        Format::Text => names.join("\n"),
        Format::Json => serde_json::to_string_pretty(names)?,
    })
}

/// Prints where the time went and the closing line, and keeps both as JSON; says whether all is
/// good: every planned step was run, and no test failed.
pub(crate) fn summary(runner: &Runner, format: Format) -> Result<bool> {
    let steps = runner.outcomes();
    let not_run = runner.not_ended();
    let mut counts = total(&steps);
    // What was not run because something before it failed has not passed.
    counts.failed += not_run.len() as u64;
    let flaky = steps.iter().filter(|step| step.flaky).map(|step| step.step.clone()).collect();
    let core_seconds = steps.iter().map(|step| step.core_seconds).sum();
    let summary =
        Summary { counts, seconds: runner.elapsed(), core_seconds, flaky, steps, not_run };
    let json = serde_json::to_string_pretty(&summary)?;
    let kept = runner.place().join("summary.json");
    std::fs::write(&kept, &json).with_context(|| format!("cannot write {}", kept.display()))?;
    let closing = format!("{} passed, {} failed", counts.passed, counts.failed);
    match format {
        Format::Text => println!("{}{closing}", table(&summary)),
        Format::Json => {
            println!("{json}");
            eprintln!("{closing}");
        }
    }
    Ok(counts.failed == 0)
}

fn total(steps: &[Outcome]) -> Counts {
    steps.iter().fold(Counts::default(), |sum, step| Counts {
        passed: sum.passed + step.counts.passed,
        failed: sum.failed + step.counts.failed,
    })
}

/// Every step with its time, the longest first, and what went wrong.
fn table(summary: &Summary) -> String {
    let mut sorted: Vec<&Outcome> = summary.steps.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut text =
        String::from("\nWhere the time went:\n   seconds  core-seconds  passed  failed  step\n");
    for Outcome { step, counts, seconds, core_seconds, .. } in sorted {
        let Counts { passed, failed } = counts;
        text += &format!("{seconds:10.1}  {core_seconds:12.1}  {passed:6}  {failed:6}  {step}\n");
    }
    let sum = summary.steps.iter().fold(0.0, |sum, step| sum + step.seconds);
    let (core_seconds, seconds) = (summary.core_seconds, summary.seconds);
    text +=
        &format!("{sum:10.1}  {core_seconds:12.1}  in all steps, {seconds:.1} from start to end\n");
    for step in &summary.not_run {
        text += &format!("not run: {step}\n");
    }
    for Outcome { step, log, failed_in, late_ms, .. } in &summary.steps {
        let log = log.display();
        let places: String = failed_in.iter().map(|place| format!("\n  in: {place}")).collect();
        if summary.flaky.contains(step) {
            let again = verdict::second_chance(step);
            let again = summary.steps.iter().find(|one| one.step == again);
            let again = again.map(|one| one.log.display().to_string()).unwrap_or_default();
            text += &format!(
                "FLAKY {step}: starved for {late_ms} ms, passed alone; {log} and {again}{places}\n"
            );
        } else if summary.steps.iter().any(|one| one.step == *step && one.counts.failed > 0) {
            text += &format!("failed: {step}, see {log}{places}\n");
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_listed_as_text_and_as_json() {
        let names = ["clippy", "it plane::x"].map(str::to_owned);
        assert_eq!(listed(&names, Format::Text).unwrap(), "clippy\nit plane::x");
        let json = listed(&names, Format::Json).unwrap();
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), names);
    }
}
