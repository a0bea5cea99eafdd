//! `cargo verify`: proves every promise, and installs what that takes.
//!
//! Formatting, one build of everything, what the tests need from outside, then the tests, and
//! lints beside them. What there is to build and to test is asked of cargo and of the test executables; no
//! list is kept here. An end-to-end test runs alone in its process, and its module path says
//! what it takes, so never more is begun than the machine bears (`schedule`). `--all` adds
//! what users get: release builds, full sizes, the long ways, the oldest Rust and the FIPS
//! module (`variants`).
//!
//! A test that leaves a process behind has failed. What failed only because the machine gave
//! it no time has one second chance, by strict rules (`verdict`). The whole run has a deadline.
//! Every run leaves its table as JSON. The last line is `N passed, N failed`, and the exit
//! code is 0 only if none failed.

mod crowd;
mod leftover;
mod outcome;
mod report;
mod runner;
mod schedule;
mod stages;
mod suite;
mod usage;
mod variants;
mod verdict;
mod workspace;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use sidekey_verify::command::{self, Format};
use tokio::signal::unix::{SignalKind, signal};

use crate::crowd::Crowd;
use crate::runner::Runner;
use crate::stages::Stages;
use crate::workspace::Workspace;

/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Proves every promise of this repository.
#[derive(Debug, Parser)]
#[command(
    name = "cargo verify",
    bin_name = "cargo verify",
    after_help = "Examples:\n  cargo verify\n  cargo verify --all\n  cargo verify --only clippy\n  cargo verify --only planes::rotation\n  cargo verify --only shim_faults --times 20 --crowd\n  cargo verify -o json > summary.json\n\nThe summary of the last run is in target/verify/summary.json.\nExit codes: 0 all passed, 1 something failed, 64 bad usage, 130 interrupted"
)]
struct Arguments {
    /// Also what takes long: release builds, the shipped binaries, full sizes
    #[arg(long)]
    all: bool,
    /// Run only the steps, or else only the tests, whose name contains this; see --list
    #[arg(long, value_name = "SUBSTRING")]
    only: Option<String>,
    /// Run the chosen tests so many times
    #[arg(long, value_name = "N", default_value = "1")]
    times: std::num::NonZeroUsize,
    /// Run beside one process for each core that never rests
    #[arg(long)]
    crowd: bool,
    /// How much may run at once, in units of a control plane; five for each core if absent
    #[arg(long, value_name = "N")]
    capacity: Option<std::num::NonZeroUsize>,
    /// End the run, as failed, after so many minutes; 80, or 160 with --all, if absent
    #[arg(long, value_name = "MINUTES")]
    deadline: Option<std::num::NonZeroU32>,
    /// Print the names of the steps and do nothing but what that takes (the tests are built)
    #[arg(long)]
    list: bool,
    /// How to print the summary; progress goes to standard error
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

fn main() -> ExitCode {
    let arguments = match command::arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    command::block_on(verify(&arguments))
}

/// Why a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Late,
    Interrupted,
}

async fn verify(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let runner = Runner::new(workspace.target.join("verify"))?;
    let stages = Stages {
        workspace: &workspace,
        runner: &runner,
        all: arguments.all,
        only: arguments.only.as_deref(),
        times: arguments.times.get(),
        capacity: arguments.capacity.map_or_else(|| 5 * cores(), Into::into),
    };
    if arguments.list {
        report::list(&stages.list().await?, arguments.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let deadline = arguments.deadline.map_or(if arguments.all { 160 } else { 80 }, Into::into);
    let _crowd = arguments.crowd.then(|| Crowd::start(cores())).transpose()?;
    let limit = Duration::from_secs(60 * u64::from(deadline));
    let end = supervise(stages.run(), &runner, limit).await?;
    if end == End::Done && runner.is_empty() {
        let hint = "no step and no test has that in its name; --list prints them all";
        return Ok(command::bad_usage(hint));
    }
    let good = report::summary(&runner, arguments.output)?;
    Ok(match (end, good) {
        (End::Interrupted, _) => ExitCode::from(INTERRUPTED),
        (End::Done, true) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Runs it until it is done, or there is a reason to end it: what still runs then has failed.
async fn supervise(run: impl Future<Output = ()>, runner: &Runner, limit: Duration) -> Result<End> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let end = tokio::select! {
        () = run => End::Done,
        never = runner.heartbeat() => match never {},
        () = tokio::time::sleep(limit) => End::Late,
        _ = interrupt.recv() => End::Interrupted,
        _ = terminate.recv() => End::Interrupted,
    };
    match end {
        End::Done => {}
        End::Late => {
            let minutes = limit.as_secs() / 60;
            runner.say(&format!("the run may take {minutes} minutes: ending what still runs"));
            runner.interrupt("the whole run had no time left").await;
        }
        End::Interrupted => {
            runner.say("interrupted: ending what still runs");
            runner.interrupt("interrupted").await;
        }
    }
    Ok(end)
}

/// How much runs at once where it is work and not waiting.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, Into::into)
}
