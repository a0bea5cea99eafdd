//! A program that ends by itself, and what it cost.

use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::memory;
use super::server::Killed;
use crate::watchdog::Watchdog;

/// Between two looks at the memory of what runs.
const LOOK: Duration = Duration::from_millis(2);

/// One that runs; killed when dropped.
pub(super) struct Watched {
    child: Killed,
    begin: Instant,
    what: &'static str,
}

/// What it cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// How long it took.
    pub(super) seconds: f64,
    /// The most memory that was resident, in KiB.
    pub(super) peak: u64,
}

impl Watched {
    /// Starts it; `what` says in messages which one it is. The command goes, and with it our end
    /// of a pipe: whoever writes to it learns when nobody reads any more.
    pub(super) fn start(mut command: Command, what: &'static str) -> Result<Self> {
        command.process_group(0);
        let watchdog = Watchdog::of_this_process()?;
        let begin = Instant::now();
        let child = Killed(command.spawn().with_context(|| format!("cannot run {what}"))?);
        watchdog.guard(child.0.id())?;
        Ok(Self { child, begin, what })
    }

    /// Its standard output, if that is a pipe.
    pub(super) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.0.stdout.take()
    }

    /// Waits until it has ended well.
    pub(super) async fn end(mut self) -> Result<Ended> {
        let (what, mut peak) = (self.what, 0);
        let status = loop {
            // It never shrinks; once the process has ended it cannot be asked any more.
            peak = memory::peak(self.child.0.id()).unwrap_or(peak);
            if let Some(status) = self.child.0.try_wait()? {
                break status;
            }
            tokio::time::sleep(LOOK).await;
        };
        let seconds = self.begin.elapsed().as_secs_f64();
        ensure!(status.success(), "{what} ended with {status}");
        Ok(Ended { seconds, peak })
    }
}
