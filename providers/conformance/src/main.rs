//! `sidekey-conformance`: judges the plugin behind a socket.

mod cli;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use sidekey_conformance::{Report, Selection, Verdict, checks, run, wait_until_healthy};

use crate::cli::{Cli, Output};

/// A check failed, or nobody could be judged.
const FAILED: u8 = 1;

/// The command line makes no sense.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to do where even this cannot be written.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    match Selection::new(cli.only.clone(), cli.skip.clone()) {
        Err(error) => {
            eprintln!("sidekey-conformance: {error}");
            ExitCode::from(USAGE)
        }
        Ok(selection) if cli.list => list(cli.output, &selection),
        Ok(selection) => judge(&cli, selection),
    }
}

fn judge(cli: &Cli, selection: Selection) -> ExitCode {
    let Some(plugin) = cli.plugin() else {
        eprintln!("sidekey-conformance: --socket is missing: say which plugin to judge");
        return ExitCode::from(USAGE);
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("sidekey-conformance: cannot start: {error}");
            return ExitCode::from(FAILED);
        }
    };
    let report = runtime.block_on(async {
        if let Some(patience) = cli.wait {
            // Whether it helped is for the checks to say.
            let _ = wait_until_healthy(&plugin.endpoint, patience).await;
        }
        run(&plugin, &cli.options(selection)).await
    });
    match cli.output {
        Output::Table => print(&report.to_string()),
        Output::Json => print(&json(&report)),
    }
    complain(&report);
    let unjudged = report.with(Verdict::NotRun).next().is_some();
    let passed = report.passed() && !(cli.strict && unjudged);
    if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// What must not be missed, also by those who read only the JSON.
fn complain(report: &Report) {
    if let Some(reason) = &report.unreachable {
        eprintln!("sidekey-conformance: nobody to judge: {reason}");
        eprintln!("Is the plugin running, and may this user open its socket?");
        return;
    }
    let unjudged: Vec<_> = report.with(Verdict::NotRun).map(|finding| finding.id).collect();
    if !unjudged.is_empty() {
        eprintln!("sidekey-conformance: NOT RUN, not judged: {}", unjudged.join(", "));
    }
}

fn list(output: Output, selection: &Selection) -> ExitCode {
    let chosen: Vec<_> = checks().filter(|check| selection.includes(check)).collect();
    if let Output::Json = output {
        print(&json(&chosen));
        return ExitCode::SUCCESS;
    }
    for check in chosen {
        print(&format!("{}\n    {}.\n    Why: {}\n", check.id, check.promise, check.why));
        for need in check.needs {
            print(&format!("    Needs {need}.\n"));
        }
    }
    ExitCode::SUCCESS
}

fn json(value: &impl serde::Serialize) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(text) => text + "\n",
        Err(error) => format!("{{\"error\": \"{error}\"}}\n"),
    }
}

/// As `print!`, but a reader that has gone away is no reason to panic.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
