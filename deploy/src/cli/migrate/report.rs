//! How a migration is shown.

use std::time::Duration;

use serde::Serialize;

use crate::migrate::{Outcome, ResourceOutcome, State, gate};
use crate::{Console, Report, Table};

/// Failures that are shown to people; programs get all that are kept.
const SHOWN_FAILURES: usize = 20;

/// What was waited for has come.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Awaited {
    pub(super) kind: &'static str,
    pub(super) key_id_hash: Option<String>,
    pub(super) config_hash: Option<String>,
    /// Every kube-apiserver that was asked.
    pub(super) servers: Vec<String>,
}

impl Awaited {
    pub(super) fn new(gate: &gate::Gate, servers: Vec<String>) -> Self {
        Self {
            kind: "Gate",
            key_id_hash: gate.key_id_hash.clone(),
            config_hash: gate.config_hash.clone(),
            servers,
        }
    }
}

impl Report for Awaited {
    fn text(&self, console: &Console) -> String {
        console.good(&format!("so it is at {}", self.servers.join(", ")))
    }
}

/// The outcome, and how it is to be told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    pub(super) complete: bool,
    pub(super) dry_run: bool,
    #[serde(skip)]
    pub(super) via_svm: bool,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

impl Report for Answer {
    fn text(&self, console: &Console) -> String {
        let mut parts = vec![self.table(console)];
        parts.extend(self.outcome.resources.iter().filter_map(|done| failures(done, console)));
        for skipped in &self.outcome.skipped {
            parts.push(format!("{}: {}", skipped.resource, skipped.reason));
        }
        parts.push(self.verdict(console));
        parts.join("\n")
    }
}

impl Answer {
    fn table(&self, console: &Console) -> String {
        if self.dry_run || self.via_svm {
            let mut table = Table::new(["resource", "objects", "state"]);
            for done in &self.outcome.resources {
                table.row([
                    done.resource.clone(),
                    done.counts.objects.to_string(),
                    state(done, console),
                ]);
            }
            return table.render();
        }
        let mut table = Table::new([
            "resource",
            "objects",
            "rewritten",
            "already fine",
            "deleted meanwhile",
            "failed",
            "state",
        ]);
        for done in &self.outcome.resources {
            let counts = &done.counts;
            let numbers =
                [counts.objects, counts.rewritten, counts.unchanged, counts.deleted, counts.failed];
            let [objects, rewritten, unchanged, deleted, failed] = numbers.map(|n| n.to_string());
            let resource = done.resource.clone();
            table.row([
                resource,
                objects,
                rewritten,
                unchanged,
                deleted,
                failed,
                state(done, console),
            ]);
        }
        table.render()
    }

    fn verdict(&self, console: &Console) -> String {
        let objects: u64 = self.outcome.resources.iter().map(|done| done.counts.objects).sum();
        let checkpoint = self.outcome.checkpoint.as_ref();
        let again = checkpoint.map_or_else(String::new, |path| {
            format!("; run it again to go on from {}", path.display())
        });
        if self.dry_run {
            return format!("{objects} objects would be looked at; nothing was written");
        }
        if self.complete {
            let seconds = Duration::from_secs_f64(self.outcome.seconds.round());
            let time = humantime::format_duration(seconds);
            return console
                .good(&format!("all {objects} objects are under the write key, after {time}"));
        }
        let what = if self.outcome.interrupted {
            "stopped before the end"
        } else {
            "not everything is under the write key"
        };
        console.bad(&format!("{what}{again}"))
    }
}

fn state(done: &ResourceOutcome, console: &Console) -> String {
    match done.state {
        _ if done.reason.is_some() => console.bad("failed"),
        State::Done if done.counts.failed > 0 => console.bad("failed"),
        State::Done => console.good("done"),
        State::Partial => console.bad("stopped"),
        State::Pending => console.bad("not begun"),
        State::Counted => "counted".to_owned(),
    }
}

fn failures(done: &ResourceOutcome, _console: &Console) -> Option<String> {
    let mut lines = Vec::new();
    if let Some(reason) = &done.reason {
        lines.push(format!("{}: {reason}", done.resource));
    }
    for failure in done.failures.iter().take(SHOWN_FAILURES) {
        lines.push(format!("{} {}: {}", done.resource, failure.object, failure.reason));
    }
    let more = done.counts.failed.saturating_sub(SHOWN_FAILURES as u64);
    if more > 0 {
        lines.push(format!("{}: {more} more have failed; -o json names them", done.resource));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}
