//! Every check is worth its name: there is a plugin that it, and nothing else, catches.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use sidekey_conformance::{Options, Report, Verdict, assert_conforms, checks, run};

use crate::clock::by_its_own_clock;
use crate::plugin::{Defect, TestPlugin};

fn options() -> Options {
    Options {
        deadline: Duration::from_secs(4),
        status_bound: Duration::from_secs(2),
        restart_deadline: Duration::from_secs(4),
        rotation_deadline: Duration::from_secs(4),
        ..Options::default()
    }
}

fn ids(report: &Report, verdict: Verdict) -> Vec<&'static str> {
    report.with(verdict).map(|finding| finding.id).collect()
}

#[tokio::test]
async fn a_sound_plugin_passes_every_check() {
    let plugin = TestPlugin::start(None);
    assert_conforms(&plugin.hooked()).await;
}

#[test]
fn checks_without_their_hook_are_not_run_and_everything_else_passes() {
    let report = by_its_own_clock(async {
        let plugin = TestPlugin::start(None);
        run(&plugin.bare(), &options()).await
    });
    let hookless: Vec<_> =
        checks().filter(|check| !check.needs.is_empty()).map(|check| check.id).collect();
    assert_eq!(ids(&report, Verdict::NotRun), hookless, "\n{report}");
    assert!(report.passed() && !report.complete(), "\n{report}");
}

#[test]
fn every_check_has_a_plugin_that_breaks_its_promise() {
    let caught: BTreeSet<_> = Defect::ALL.iter().map(|defect| defect.caught_by()).collect();
    let all: BTreeSet<_> = checks().map(|check| check.id).collect();
    assert_eq!(caught, all, "a check without a broken plugin, or the other way round");
}

/// Each plugin is judged on a thread and a runtime of its own.
#[test]
fn every_broken_plugin_is_caught_by_just_its_check() {
    let queue = Mutex::new(Defect::ALL.iter());
    let wrong = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(&defect) = { queue.lock().unwrap().next() } {
                    let report = judge(defect);
                    if ids(&report, Verdict::Failed) != [defect.caught_by()] {
                        let must = format!("{defect:?} must fail {}", defect.caught_by());
                        wrong.lock().unwrap().push(format!("{must} alone:\n{report}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn judge(defect: Defect) -> Report {
    by_its_own_clock(async {
        let plugin = TestPlugin::start(Some(defect));
        run(&plugin.hooked(), &options()).await
    })
}
