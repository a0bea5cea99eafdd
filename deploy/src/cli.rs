//! The `sidekey` command: arguments, and how results are shown. What is done is in the library.
//!
//! Each command is a module with its `Args` and a function `run`, which answers through the
//! [`Console`] and gives the exit code.

mod census;
mod completion;
mod diff;
mod doctor;
mod fleet;
mod inject;
mod migrate;
mod preflight;
mod publish;
mod render;
mod rotate;
mod source;
mod status;
mod token;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{Console, Error, Exit, Output};

const EXAMPLES: &str = "Examples:
  sidekey inject -f kube-apiserver.yaml --provider vault --in-place
  sidekey publish -f cluster-a.yaml
  sidekey rotate -f cluster-a.yaml --hosted-kubeconfig hosted.kubeconfig
  sidekey census --endpoints https://127.0.0.1:2379 --cacert ca.crt --cert client.crt --key client.key
  sidekey migrate --encryption-config encryption.yaml
  sidekey completion bash > /etc/bash_completion.d/sidekey

Exit codes: 0 done or yes, 1 failed or unknown, 3 no, 64 bad usage or configuration.";

/// Manages the encryption of Kubernetes control planes
#[derive(Debug, Parser)]
#[command(name = "sidekey", version = crate::VERSION, after_help = EXAMPLES)]
struct Sidekey {
    /// How to answer
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Output,
    /// Write the answer, or why there is none, to this file too: JSON of at most 4 KiB
    #[arg(long, global = true, value_name = "FILE")]
    result_file: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Census(Box<census::Args>),
    Completion(completion::Args),
    Diff(diff::Args),
    Doctor(Box<doctor::Args>),
    Inject(inject::Args),
    Preflight(preflight::Args),
    Publish(publish::Args),
    Render(render::Args),
    Rotate(rotate::Args),
    Status(Box<status::Args>),
    Migrate(Box<migrate::Args>),
    Token(Box<token::Args>),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let line = match Sidekey::command().try_get_matches() {
        Ok(matches) => Sidekey::from_arg_matches(&matches),
        Err(error) => Err(error),
    };
    let exit = match line {
        Ok(Sidekey { output, result_file, command }) => {
            let console = Console::new(output).result_file(result_file.as_deref());
            run(command, &console).unwrap_or_else(|error| console.fail(&error))
        }
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { Exit::Usage } else { Exit::Success }
        }
    };
    exit.into()
}

fn run(command: Command, console: &Console) -> Result<Exit, Error> {
    match command {
        Command::Census(args) => census::run(&args, console),
        Command::Completion(args) => completion::run(&args, console),
        Command::Diff(args) => diff::run(&args, console),
        Command::Doctor(args) => doctor::run(&args, console),
        Command::Inject(args) => inject::run(&args, console),
        Command::Preflight(args) => preflight::run(&args, console),
        Command::Publish(args) => publish::run(&args, console),
        Command::Render(args) => render::run(&args, console),
        Command::Rotate(args) => rotate::run(&args, console),
        Command::Status(args) => status::run(&args, console),
        Command::Migrate(args) => block_on(migrate::run(&args, console)),
        Command::Token(args) => block_on(token::run(&args, console)),
    }
}

/// Runs what waits for others: one thread is enough.
fn block_on<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Error::failed("cannot start the runtime").because(error))?;
    runtime.block_on(work)
}

/// The whole command line, for completion and for tests.
fn command() -> clap::Command {
    Sidekey::command()
}

/// Whether the command takes this line; for those that make one.
#[cfg(test)]
pub(crate) fn check(line: impl Iterator<Item = String>) -> Result<(), clap::Error> {
    Sidekey::try_parse_from(line).map(drop)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    #[test]
    fn every_command_shows_an_example_and_its_exit_codes() {
        let command = super::command();
        command.clone().debug_assert();
        for command in command.get_subcommands() {
            let (name, help) = (command.get_name(), command.get_after_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{name} shows no example");
            assert!(help.contains("Exit codes: 0 "), "{name} tells no exit codes");
        }
    }

    #[test]
    fn the_readme_shows_every_command() {
        let readme = include_str!("../README.md");
        for command in super::command().get_subcommands() {
            let name = command.get_name();
            assert!(readme.contains(&format!("sidekey {name}")), "{name} is not in the README");
        }
    }

    #[test]
    fn every_shell_completes_every_command_and_its_flags() {
        for shell in clap_complete::Shell::value_variants() {
            let script = super::completion::script(*shell);
            let script = String::from_utf8(script).unwrap();
            for command in super::command().get_subcommands() {
                let name = command.get_name();
                assert!(script.contains(name), "{shell} does not know {name}");
            }
            assert!(script.contains("may-drop"), "{shell} does not know the flags");
        }
    }
}
