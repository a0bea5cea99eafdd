//! The command line of a provider process.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::Value;

use crate::Error;
use crate::config::{self, Problems, ProcessConfig};
use crate::process::app::{Given, Program, Surroundings, serve};
use crate::process::command::{
    CommandLine, CommonCommand, Output, ProviderFlags, execute, print, usage,
};
use crate::process::{arguments, bad_usage, no_core_dumps, start_health};
use crate::provider::supervisor::Supervisor;

#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct ProviderCommandTree<P: CommandLine> {
    #[command(flatten)]
    process: ProviderFlags,
    #[command(flatten)]
    flags: P::Flags,
    #[command(subcommand)]
    command: Option<Commands<P>>,
}

#[derive(clap::Subcommand)]
enum Commands<P: CommandLine> {
    #[command(flatten)]
    Common(CommonCommand),
    #[command(flatten)]
    Own(P::Command),
}

/// A provider, as its flags have set it up.
struct ProviderProgram<P: CommandLine> {
    process: ProviderFlags,
    flags: P::Flags,
}

/// The whole of a provider's `main`.
pub fn run<P: CommandLine>() -> ExitCode {
    no_core_dumps();
    let name = format!("sidekey-{}", P::NAME);
    let command = ProviderCommandTree::<P>::command()
        .name(name.clone())
        .bin_name(name.clone())
        .about(P::ABOUT)
        .after_help(P::EXAMPLES)
        .version(crate::VERSION);
    let tree = command
        .try_get_matches_from(arguments(std::env::args_os()))
        .and_then(|matches| ProviderCommandTree::<P>::from_arg_matches(&matches));
    match tree {
        Err(error) if is_unable_to_rotate(&error) => usage(&format!(
            "{name} cannot ask its KMS for a new version of a key: rotate the key at the KMS itself, or give the control plane a new key"
        )),
        Err(error) => bad_usage(&error),
        Ok(ProviderCommandTree { command: Some(Commands::Common(command)), .. }) => {
            execute::<P>(command)
        }
        Ok(ProviderCommandTree { command: Some(Commands::Own(command)), .. }) => {
            let output = P::output(&command);
            print(P::execute(command), output)
        }
        Ok(ProviderCommandTree { process, flags, command: None }) => {
            let given = match (process.config.clone(), P::keys(&flags)) {
                (_, Err(error)) => return print(Err(error), Output::Text),
                (Some(_), Ok(Some(_))) => {
                    return usage("--config and flags that describe keys exclude each other");
                }
                (None, Ok(None)) => {
                    return usage(
                        "nothing to serve: give --config or the flags of a key; see --help",
                    );
                }
                (Some(path), Ok(None)) => Given::File(path),
                (None, Ok(Some(keys))) => {
                    let mut document = P::process(&flags);
                    document["keys"] = keys;
                    Given::CommandLine(document)
                }
            };
            serve(ProviderProgram::<P> { process, flags }, given)
        }
    }
}

/// Whether the command line asks for `rotate`, which this provider has not: whoever asks the same
/// of all of them must understand the answer.
fn is_unable_to_rotate(error: &clap::Error) -> bool {
    let asked = error.get(ContextKind::InvalidSubcommand);
    matches!(asked, Some(ContextValue::String(name)) if name == "rotate")
}

impl<P: CommandLine> Program for ProviderProgram<P> {
    const NAME: &'static str = P::NAME;
    type Config = ProcessConfig;
    type App = Supervisor;

    fn parse(&self, mut document: Value) -> Result<ProcessConfig, Problems> {
        self.process.lay_over(&mut document);
        config::parse::<P>(&document)
    }

    fn prepare(&self, _: &ProcessConfig) -> Result<(), Error> {
        P::prepare(&self.flags)
    }

    async fn start(
        &mut self,
        config: &ProcessConfig,
        surroundings: Surroundings,
    ) -> Result<Supervisor, Error> {
        let Surroundings { source, watcher, level } = surroundings;
        let mut supervisor = Supervisor::new(P::NAME, source, watcher);
        let health = start_health(&config.health, supervisor.shared.clone(), level).await?;
        supervisor.health = Some(health);
        Ok(supervisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scripted;

    #[test]
    fn a_provider_that_cannot_rotate_is_told_from_a_word_that_nobody_knows() {
        let refusal = |word: &str| {
            let line = ["x", word, "--config=y", "--key=1"];
            ProviderCommandTree::<Scripted>::command().try_get_matches_from(line).unwrap_err()
        };
        assert!(is_unable_to_rotate(&refusal("rotate")));
        assert!(!is_unable_to_rotate(&refusal("rotated")));
        assert!(refusal("rotated").use_stderr(), "both are bad usage");
    }
}
