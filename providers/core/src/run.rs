//! The life of a provider process: read, log, bind, serve, drain.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::Value;

use crate::command::{
    CommandLine, CommonCommand, EXIT_USAGE, Output, ProcessFlags, execute, mistakes, parse_file,
    print, usage,
};
use crate::config::{self, Problems, ProcessConfig};
use crate::files::{Digest, Files, Watcher};
use crate::metrics::Outcome;
use crate::process::{FixedFields, Signals, arguments, no_core_dumps, start_admin, start_health};
use crate::reload::ConfigFile;
use crate::supervisor::Supervisor;
use crate::telemetry::{self, LevelHandle};
use crate::{Ending, Error, Farewell, Kind};

#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct CommandTree<P: CommandLine> {
    #[command(flatten)]
    process: ProcessFlags,
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

/// The whole of a provider's `main`.
pub fn run<P: CommandLine>() -> ExitCode {
    no_core_dumps();
    let name = format!("sidekey-{}", P::NAME);
    let command = CommandTree::<P>::command()
        .name(name.clone())
        .bin_name(name.clone())
        .about(P::ABOUT)
        .after_help(P::EXAMPLES)
        .version(crate::VERSION);
    let tree = command
        .try_get_matches_from(arguments(std::env::args_os()))
        .and_then(|matches| CommandTree::<P>::from_arg_matches(&matches));
    match tree {
        Err(error) if is_unable_to_rotate(&error) => usage(&format!(
            "{name} cannot ask its KMS for a new version of a key: rotate the key at the KMS itself, or give the control plane a new key"
        )),
        Err(error) => {
            // Nothing more can be done if the terminal is gone.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
        }
        Ok(CommandTree { command: Some(Commands::Common(command)), .. }) => execute::<P>(command),
        Ok(CommandTree { command: Some(Commands::Own(command)), .. }) => {
            let output = P::output(&command);
            print(P::execute(command), output)
        }
        Ok(CommandTree { process, flags, command: None }) => serve::<P>(process, flags),
    }
}

/// Whether the command line asks for `rotate`, which this provider has not: whoever asks the same
/// of all of them must understand the answer.
fn is_unable_to_rotate(error: &clap::Error) -> bool {
    let asked = error.get(ContextKind::InvalidSubcommand);
    matches!(asked, Some(ContextValue::String(name)) if name == "rotate")
}

/// Reads the configuration and runs until told to stop.
fn serve<P: CommandLine>(process: ProcessFlags, flags: P::Flags) -> ExitCode {
    let keys = match P::keys(&flags) {
        Ok(keys) => keys,
        Err(error) => return print(Err(error), Output::Text),
    };
    let (source, document) = match (&process.config, keys) {
        (Some(_), Some(_)) => {
            return usage("--config and flags that describe keys exclude each other");
        }
        (None, None) => {
            return usage("nothing to serve: give --config or the flags of a key; see --help");
        }
        (Some(path), None) => (path.display().to_string(), first(path)),
        (None, Some(keys)) => {
            let mut document = P::process(&flags);
            document["keys"] = keys;
            ("the command line".to_owned(), Ok((document, None)))
        }
    };
    let config = document.and_then(|(mut document, known)| {
        process.lay_over(&mut document);
        Ok((config::parse::<P>(&document)?, known))
    });
    let (config, known) = match config {
        Ok(config) => config,
        Err(problems) => return usage(&mistakes(&source, &problems)),
    };
    if let Err(error) = P::prepare(&flags) {
        return print(Err(error), Output::Text);
    }
    let level = telemetry::start(config.log);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = Error::new(Kind::Bug, "cannot start the runtime").with_source(error);
            return print(Err(error), Output::Text);
        }
    };
    let file = process.config.clone().zip(known);
    let result = runtime.block_on(live::<P>(config, file, process, source, level));
    // A second signal must not wait for anything that still runs.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %error.report(), "cannot go on");
            ExitCode::FAILURE
        }
    }
}

/// The configuration to start with, and what tells it from a later one.
fn first(path: &Path) -> Result<(Value, Option<Digest>), Problems> {
    let files = Files::read([path]).map_err(|error| Problems::one("", &error.report()))?;
    Ok((parse_file(path, &files)?, Some(files.digest())))
}

async fn live<P: CommandLine>(
    config: ProcessConfig,
    file: Option<(PathBuf, Digest)>,
    process: ProcessFlags,
    source: String,
    level: LevelHandle,
) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    tracing::info!(provider = P::NAME, version = crate::VERSION, config = %config.shown, "starting");
    let watcher = Arc::new(Watcher::new(config.file_poll));
    let mut supervisor = Supervisor::new(P::NAME, source, watcher.clone());
    let admin =
        start_admin(&config.admin, &config.socket, supervisor.shared.clone(), level.clone())
            .await?;
    let health = start_health(&config.health, supervisor.shared.clone(), level.clone()).await?;
    let drain = config.drain;
    let mut linger = config.linger;
    let mut start = FixedFields::new(fixed(&config), config.log, level);
    tokio::select! {
        applied = supervisor.apply(config) => applied?,
        _ = signals.next() => return Ok(()),
    }
    let mut file = file.map(|(path, known)| ConfigFile::watch_since(&watcher, &path, known));
    let mut ending = Ending::new(supervisor.shared.clients.clone());
    let farewell = loop {
        tokio::select! {
            farewell = ending.wait(&mut signals, linger) => break farewell,
            document = next(&mut file) => {
                let result = take_over::<P>(document, &process, &mut supervisor, &mut start);
                if let (Ok(new), Some(file)) = (result.await, &mut file) {
                    linger = new;
                    file.accepted();
                }
            }
        }
    };
    if farewell == Farewell::AtOnce {
        return Ok(());
    }
    tracing::info!(?drain, "stopping: waiting for open requests");
    tokio::select! {
        () = supervisor.end() => tracing::info!("stopped"),
        _ = signals.next() => tracing::warn!("second signal: stopping at once"),
    }
    drop((admin, health));
    Ok(())
}

/// Never ends where there is no file to watch.
async fn next(file: &mut Option<ConfigFile>) -> Result<Value, String> {
    match file {
        Some(file) => file.next().await,
        None => std::future::pending().await,
    }
}

/// Makes a changed document the configuration in use, or says why not. Returns how long to linger.
async fn take_over<P: CommandLine>(
    document: Result<Value, String>,
    process: &ProcessFlags,
    supervisor: &mut Supervisor,
    start: &mut FixedFields,
) -> Result<Duration, ()> {
    let result = match document {
        Ok(document) => load::<P>(document, process, supervisor, start).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(linger) => {
            supervisor.shared.metrics.config_reload(Outcome::Success);
            Ok(linger)
        }
        Err(error) => {
            supervisor.refuse(&error);
            tracing::warn!(error, "new configuration refused, the last good one stays in use");
            Err(())
        }
    }
}

async fn load<P: CommandLine>(
    mut document: Value,
    process: &ProcessFlags,
    supervisor: &mut Supervisor,
    start: &mut FixedFields,
) -> Result<Duration, String> {
    process.lay_over(&mut document);
    let mut config = config::parse::<P>(&document)
        .map_err(|problems| mistakes("the new configuration", &problems))?;
    config.warnings.extend(start.warning(&fixed(&config), config.log));
    let (shown, log, linger) = (config.shown.clone(), config.log, config.linger);
    supervisor.apply(config).await.map_err(|error| error.report())?;
    tracing::info!(config = %shown, "new configuration is in use");
    start.follow_level(log);
    Ok(linger)
}

/// What is taken from the configuration once.
fn fixed(config: &ProcessConfig) -> Vec<(&'static str, String)> {
    let ProcessConfig { admin, health, drain, file_poll, .. } = config;
    vec![
        ("admin", format!("{:?}", admin.address)),
        ("adminSocket", format!("{:?}", admin.socket)),
        ("health", format!("{health:?}")),
        ("drain", format!("{drain:?}")),
        ("filePoll", format!("{file_poll:?}")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scripted;

    #[test]
    fn a_provider_that_cannot_rotate_is_told_from_a_word_that_nobody_knows() {
        let refusal = |word: &str| {
            let line = ["x", word, "--config=y", "--key=1"];
            CommandTree::<Scripted>::command().try_get_matches_from(line).unwrap_err()
        };
        assert!(is_unable_to_rotate(&refusal("rotate")));
        assert!(!is_unable_to_rotate(&refusal("rotated")));
        assert!(refusal("rotated").use_stderr(), "both are bad usage");
    }
}
