//! A program on a machine: nsenter here, and its child over there.
//!
//! A process cannot move to another process namespace, only its children are
//! born there. So nsenter stays behind and waits; what is to be hurt is the child.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::Process;
use crate::wait::{PATIENCE, eventually};

/// A program on a machine, ended when this is dropped.
#[derive(Debug)]
pub struct Inside {
    process: Process,
}

impl Inside {
    pub(super) fn new(process: Process) -> Self {
        Self { process }
    }

    /// nsenter, which ends as the program ends: for waits, logs and messages.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The program's pid, as this host sees it.
    pub async fn pid(&self) -> Result<u32> {
        let outer = self.process.pid().with_context(|| format!("{} ended", self.process.name()))?;
        let what = format!("{} has started", self.process.name());
        eventually(what, PATIENCE, async || child_of(outer)).await
    }

    /// kill -9, and waits until it is gone.
    pub async fn kill(&mut self) -> Result<()> {
        self.end(Signal::KILL, PATIENCE).await
    }

    /// SIGTERM, and waits until it is gone.
    pub async fn terminate(&mut self, limit: Duration) -> Result<()> {
        self.end(Signal::TERM, limit).await
    }

    /// Starts it again after it was ended.
    pub fn start(&mut self) -> Result<()> {
        self.process.start()
    }

    async fn end(&mut self, signal: Signal, limit: Duration) -> Result<()> {
        if self.process.ended()?.is_some() {
            return Ok(());
        }
        let pid = self.pid().await?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such pid")?;
        let name = self.process.name().to_owned();
        kill_process(pid, signal).with_context(|| format!("cannot signal {name}"))?;
        let ended = eventually(format!("{name} ends"), limit, async || {
            self.process.ended()?.context("it still runs")
        });
        ended.await?;
        Ok(())
    }
}

/// The only child of a process.
pub(super) fn child_of(pid: u32) -> Result<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let first = text.split_whitespace().next();
    first.and_then(|pid| pid.parse().ok()).with_context(|| format!("{pid} has no child"))
}
