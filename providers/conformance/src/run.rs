//! Carries the checks out, one after the other.

use std::time::{Duration, Instant};

use crate::check::{Check, checks};
use crate::report::{Finding, Report, Verdict};
use crate::trial::{Stop, Trial};
use crate::{Options, Plugin};

/// Judges the plugin. Whatever goes wrong is in the report.
pub async fn run(plugin: &Plugin, options: &Options) -> Report {
    let trial = Trial::new(plugin.clone(), options.clone());
    let unreachable = trial.connect().await.err().map(|fault| fault.to_string());
    let (mut findings, mut deselected) = (Vec::new(), Vec::new());
    let mut dead = None;
    for check in checks() {
        if !options.selection.includes(check) {
            deselected.push(check.id);
            continue;
        }
        findings.push(carry_out(check, &trial, &mut dead).await);
    }
    Report::new(&plugin.endpoint, unreachable, findings, deselected)
}

/// For tests: panics with the table unless every check was run and passed.
///
/// Time is generous here: a busy machine must not fail a test of what a plugin does.
#[track_caller]
pub fn assert_conforms(plugin: &Plugin) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let options = Options {
            deadline: Duration::from_secs(30),
            status_bound: Duration::from_secs(10),
            restart_deadline: Duration::from_secs(60),
            ..Options::default()
        };
        let report = run(plugin, &options).await;
        assert!(report.complete(), "called from {caller}, the plugin does not conform:\n{report}");
    }
}

async fn carry_out(check: &'static Check, trial: &Trial, dead: &mut Option<String>) -> Finding {
    let begin = Instant::now();
    let missing = check.needs.iter().find(|need| !trial.plugin.offers(**need));
    let (verdict, detail) = if let Some(reason) = dead {
        (Verdict::NotRun, reason.clone())
    } else if let Some(need) = missing {
        (Verdict::NotRun, format!("needs {need}"))
    } else {
        match (check.judge)(trial).await {
            Ok(seen) => (Verdict::Passed, seen),
            Err(Stop::NotRun(reason)) => (Verdict::NotRun, reason),
            Err(Stop::Broken(how)) => {
                (Verdict::Failed, format!("{how}{}", revive(check, trial, dead).await))
            }
        }
    };
    let millis = begin.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
    Finding { id: check.id, promise: check.promise, verdict, detail, millis }
}

/// A plugin that a check has killed is restarted if possible; otherwise the rest cannot be judged.
async fn revive(check: &Check, trial: &Trial, dead: &mut Option<String>) -> &'static str {
    if trial.answers().await {
        return "";
    }
    if trial.plugin.restart.is_some() && trial.restart(false).await.is_ok() {
        return " (the plugin stopped answering and was restarted to go on)";
    }
    *dead = Some(format!("the plugin stopped answering in {}", check.id));
    " (the plugin no longer answers)"
}
