//! `cargo verify`: runs every test there is, and installs what they need.
//!
//! Formatting, lints, each crate alone, the binaries as they are shipped, then every test
//! executable: unit tests first, end-to-end tests several side by side, because they mostly
//! wait. What there is to build and to test is asked of cargo; no list is kept here. Nothing
//! is retried, and a test that leaves a process behind has failed. The last line is
//! `N passed, N failed`, and the exit code is 0 only if none failed.

mod leftover;
mod outcome;
mod plan;
mod report;
mod runner;
mod stages;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use sidekey_e2e::command::{self, Format};
use tokio::signal::unix::{SignalKind, signal};

use crate::plan::Plan;
use crate::runner::Runner;
use crate::stages::Stages;
use crate::workspace::Workspace;

/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Runs every test there is.
#[derive(Debug, Parser)]
#[command(
    name = "cargo verify",
    bin_name = "cargo verify",
    after_help = "Examples:\n  cargo verify\n  cargo verify --only clippy\n  cargo verify --only 'test policy'\n  cargo verify -o json > summary.json\n\nExit codes: 0 all passed, 1 something failed, 64 bad usage, 130 interrupted"
)]
struct Arguments {
    /// Run only steps whose name contains this, and what they need; see --list
    #[arg(long, value_name = "SUBSTRING")]
    only: Option<String>,
    /// End-to-end test executables that run side by side; twice the cores if absent
    #[arg(long, value_name = "N")]
    jobs: Option<std::num::NonZeroUsize>,
    /// Print the names of the steps and do nothing
    #[arg(long)]
    list: bool,
    /// Only build kube-apiserver and etcd: the step that does so is this program again
    #[arg(long, hide = true)]
    prepare_cluster: bool,
    /// How to print the summary; progress goes to standard error
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

fn main() -> ExitCode {
    let arguments = match command::arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended =
        runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(verify(&arguments)));
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

async fn verify(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.prepare_cluster {
        stages::prepare_cluster().await?;
        return Ok(ExitCode::SUCCESS);
    }
    let workspace = Workspace::load()?;
    let plan = Plan::new(&workspace, arguments.only.as_deref());
    let names = plan.names();
    if names.is_empty() {
        return Ok(command::bad_usage("no step has that in its name; --list prints them all"));
    }
    if arguments.list {
        report::list(&names, arguments.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let runner = Runner::new(workspace.target.join("verify"))?;
    let jobs = arguments.jobs.map_or_else(|| 2 * cores(), Into::into);
    let stages = Stages { workspace: &workspace, plan: &plan, runner: &runner, jobs };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let interrupted = tokio::select! {
        () = stages.run() => false,
        never = runner.heartbeat() => match never {},
        _ = interrupt.recv() => true,
        _ = terminate.recv() => true,
    };
    if interrupted {
        runner.say("interrupted: ending what still runs");
        runner.interrupt().await;
    }
    let good = report::summary(&runner, &names, arguments.output)?;
    Ok(match (interrupted, good) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

/// How much runs at once where it is work and not waiting.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, Into::into)
}
