//! What is said at the end.

use std::collections::BTreeSet;

use anyhow::Result;
use serde::Serialize;
use sidekey_e2e::command::Format;

use crate::outcome::{Counts, Outcome};
use crate::runner::Runner;

/// The end of a run, for programs.
#[derive(Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    counts: Counts,
    seconds: f64,
    steps: Vec<Outcome>,
    not_run: Vec<String>,
}

/// Prints the names of the steps.
pub(crate) fn list(names: &[String], format: Format) -> Result<()> {
    match format {
        Format::Text => names.iter().for_each(|name| println!("{name}")),
        Format::Json => println!("{}", serde_json::to_string_pretty(names)?),
    }
    Ok(())
}

/// Prints where the time went and the closing line; says whether all is good: every planned
/// step was run, and no test failed.
pub(crate) fn summary(runner: &Runner, planned: &[String], format: Format) -> Result<bool> {
    let steps = runner.outcomes();
    let ran: BTreeSet<&str> = steps.iter().map(|outcome| outcome.step.as_str()).collect();
    let not_run: Vec<String> =
        planned.iter().filter(|name| !ran.contains(name.as_str())).cloned().collect();
    let mut counts = total(&steps);
    // What was not run because something before it failed has not passed.
    counts.failed += not_run.len() as u64;
    let good = counts.failed == 0;
    match format {
        Format::Text => {
            print!("{}", table(&steps, &not_run, runner.elapsed()));
            println!("{} passed, {} failed", counts.passed, counts.failed);
        }
        Format::Json => {
            let summary = Summary { counts, seconds: runner.elapsed(), steps, not_run };
            println!("{}", serde_json::to_string_pretty(&summary)?);
            eprintln!("{} passed, {} failed", counts.passed, counts.failed);
        }
    }
    Ok(good)
}

fn total(steps: &[Outcome]) -> Counts {
    steps.iter().fold(Counts::default(), |sum, step| Counts {
        passed: sum.passed + step.counts.passed,
        failed: sum.failed + step.counts.failed,
    })
}

/// Every step with its time, the longest first.
fn table(steps: &[Outcome], not_run: &[String], elapsed: f64) -> String {
    let mut sorted: Vec<&Outcome> = steps.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut text = String::from("\nWhere the time went:\n   seconds  passed  failed  step\n");
    for Outcome { step, counts, seconds, .. } in sorted {
        text += &format!("{seconds:10.1}  {:6}  {:6}  {step}\n", counts.passed, counts.failed);
    }
    let sum = steps.iter().fold(0.0, |sum, step| sum + step.seconds);
    text += &format!("{sum:10.1}  in all steps, {elapsed:.1} from start to end\n");
    for step in not_run {
        text += &format!("not run: {step}\n");
    }
    let failed: Vec<&Outcome> = steps.iter().filter(|step| step.counts.failed > 0).collect();
    for Outcome { step, log, .. } in failed {
        text += &format!("failed: {step}, see {}\n", log.display());
    }
    text + "\n"
}
