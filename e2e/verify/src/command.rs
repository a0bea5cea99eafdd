//! What our developer programs have in common on the command line.

use std::ffi::OsString;
use std::process::{ExitCode, Termination};

use anyhow::Result;
use clap::{Parser, ValueEnum};

/// Exit code for bad usage, the same as that of every Sidekey binary.
const BAD_USAGE: u8 = 64;

/// How a program prints its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON document on standard output.
    Json,
}

/// Parses the command line; on `--help` and on mistakes says so and gives the exit code.
pub fn arguments<T: Parser>() -> Result<T, ExitCode> {
    T::try_parse_from(without_separator(std::env::args_os())).map_err(|answer| {
        let code = if answer.use_stderr() { BAD_USAGE } else { 0 };
        // Nobody is left to tell when the terminal is gone.
        let _ = answer.print();
        ExitCode::from(code)
    })
}

/// Does a program's work on one thread; what fails is said, and is exit code 1.
pub fn block_on<T: Termination>(work: impl Future<Output = Result<T>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(work)) {
        Ok(done) => done.report(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The cargo aliases end with `--`, so that arguments need none; whoever writes one all the
/// same, as in `cargo up -- --cluster`, means nothing by it.
fn without_separator(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.enumerate().filter(|(index, text)| *index != 1 || text != "--").map(|(_, text)| text)
}

/// Complains about a mistake that the parser cannot see.
pub fn bad_usage(message: impl std::fmt::Display) -> ExitCode {
    eprintln!("error: {message}");
    ExitCode::from(BAD_USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_separator_in_front_is_dropped() {
        let given = ["up", "--", "--dir", "x", "--", "y"].map(OsString::from);
        let left: Vec<OsString> = without_separator(given.into_iter()).collect();
        assert_eq!(left, ["up", "--dir", "x", "--", "y"]);
        let left: Vec<OsString> = without_separator([OsString::from("--")].into_iter()).collect();
        assert_eq!(left, ["--"], "the program's own name stays");
    }
}
