//! Finding what a step left running, by a variable that all its descendants inherit.
//!
//! Process groups are not enough: a test's servers have groups of their own. The kernel
//! shows each process's environment, so a value nobody else has finds all of them.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::Instant;

/// The variable that marks every process of a step.
pub(crate) const MARK: &str = "SIDEKEY_VERIFY_STEP";

/// A process that is still there.
#[derive(Debug)]
pub(crate) struct Leftover {
    pid: Pid,
    name: String,
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid.as_raw_nonzero())
    }
}

/// Running processes whose mark starts with `mark`.
pub(crate) fn find(mark: &str) -> Vec<Leftover> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| is_marked(*pid, wanted.as_bytes()))
        .filter_map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            Some(Leftover { pid: Pid::from_raw(pid)?, name: name.trim().to_owned() })
        })
        .collect()
}

/// A zombie has no environment any more, so it is not marked.
fn is_marked(pid: i32, wanted: &[u8]) -> bool {
    let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
    environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(wanted))
}

/// Waits until nothing with that mark runs; what is still there after `grace` is killed
/// and returned.
pub(crate) async fn settle(mark: &str, grace: Duration) -> Vec<Leftover> {
    let left = wait(mark, grace).await;
    for process in &left {
        // It may have ended by itself meanwhile.
        let _ = kill_process(process.pid, Signal::KILL);
    }
    left
}

/// Ends everything with that mark: politely, then not.
pub(crate) async fn end(mark: &str) {
    for process in find(mark) {
        let _ = kill_process(process.pid, Signal::TERM);
    }
    for process in wait(mark, Duration::from_secs(5)).await {
        let _ = kill_process(process.pid, Signal::KILL);
    }
    wait(mark, Duration::from_secs(5)).await;
}

async fn wait(mark: &str, limit: Duration) -> Vec<Leftover> {
    let deadline = Instant::now() + limit;
    loop {
        let left = find(mark);
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
