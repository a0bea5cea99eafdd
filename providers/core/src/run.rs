//! The life of a provider process: read, log, bind, serve, drain.

use std::ffi::OsString;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::{Admin, Reach};
use crate::command::{
    CommandLine, CommonCommand, EXIT_USAGE, Output, ProcessFlags, execute, mistakes, print,
    read_file, usage,
};
use crate::config::{self, ProcessConfig};
use crate::files::{Files, Subscription, Watcher};
use crate::metrics::Outcome;
use crate::server::{Stopper, serve_admin, serve_admin_socket, stopper};
use crate::supervisor::{Supervisor, bind};
use crate::telemetry::{self, LevelHandle};
use crate::{Error, Kind, jitter};

/// The wait before a refused configuration is tried again; it doubles up to [`LAST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

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
        .bin_name(name)
        .about(P::ABOUT)
        .after_help(P::EXAMPLES)
        .version(crate::VERSION);
    let tree = command
        .try_get_matches_from(arguments(std::env::args_os()))
        .and_then(|matches| CommandTree::<P>::from_arg_matches(&matches));
    match tree {
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

/// Go's flag package takes `-flag` for `--flag`, and so do the manifests written for it.
fn arguments(all: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    all.map(|argument| {
        let go_style =
            argument.to_str().and_then(|text| text.strip_prefix('-')).is_some_and(|name| {
                name.len() > 1 && name.starts_with(|c: char| c.is_ascii_alphabetic())
            });
        if !go_style {
            return argument;
        }
        let mut full = OsString::from("-");
        full.push(&argument);
        full
    })
}

/// Reads the configuration and runs until told to stop.
fn serve<P: CommandLine>(process: ProcessFlags, flags: P::Flags) -> ExitCode {
    let keys = match P::keys(flags) {
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
        (Some(path), None) => (path.display().to_string(), read_file(path)),
        (None, Some(keys)) => ("the command line".to_owned(), Ok(json!({"keys": keys}))),
    };
    let config = document.and_then(|mut document| {
        process.lay_over(&mut document);
        config::parse::<P>(&document)
    });
    let config = match config {
        Ok(config) => config,
        Err(problems) => return usage(&mistakes(&source, &problems)),
    };
    let level = telemetry::start(config.log);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return usage(&format!("cannot start the runtime: {error}")),
    };
    let result = runtime.block_on(live::<P>(config, process, source, level));
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

async fn live<P: CommandLine>(
    config: ProcessConfig,
    process: ProcessFlags,
    source: String,
    level: LevelHandle,
) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    tracing::info!(provider = P::NAME, version = crate::VERSION, config = %config.shown, "starting");
    let watcher = Arc::new(Watcher::new(config.file_poll));
    let mut supervisor = Supervisor::new(P::NAME, source, watcher.clone());
    let (admin_stopper, drain) =
        (start_admin(&config, &supervisor, P::NAME, level).await?, config.drain);
    supervisor.apply(config).await?;
    let mut reloader =
        process.config.as_deref().map(|path| Reloader::<P>::new(&watcher, path, &process));
    loop {
        tokio::select! {
            () = signals.next() => break,
            () = reload(&mut reloader, &mut supervisor) => {}
        }
    }
    tracing::info!(?drain, "stopping: waiting for open requests");
    tokio::select! {
        () = supervisor.end() => tracing::info!("stopped"),
        () = signals.next() => tracing::warn!("second signal: stopping at once"),
    }
    drop(admin_stopper);
    Ok(())
}

/// Never ends where there is no file to watch.
async fn reload<P: CommandLine>(
    reloader: &mut Option<Reloader<'_, P>>,
    supervisor: &mut Supervisor,
) {
    match reloader {
        Some(reloader) => reloader.next(supervisor).await,
        None => std::future::pending().await,
    }
}

/// Takes over a changed configuration file, and tries a refused one again.
struct Reloader<'a, P> {
    path: &'a Path,
    process: &'a ProcessFlags,
    subscription: Subscription,
    refused: Option<(Files, Duration)>,
    provider: std::marker::PhantomData<P>,
}

impl<'a, P: CommandLine> Reloader<'a, P> {
    fn new(watcher: &Watcher, path: &'a Path, process: &'a ProcessFlags) -> Self {
        let mut subscription = watcher.subscribe([path.to_owned()].into());
        // What is there now has just been taken; if it changed in between, it is told again.
        let _ = subscription.read();
        Self { path, process, subscription, refused: None, provider: std::marker::PhantomData }
    }

    /// One attempt, when there is something to attempt.
    async fn next(&mut self, supervisor: &mut Supervisor) {
        let pause = self.refused.as_ref().map_or(LAST_RETRY, |(_, pause)| *pause);
        let again = tokio::time::sleep(jitter(pause));
        let files = tokio::select! {
            files = self.subscription.changed() => files,
            () = again, if self.refused.is_some() => match &self.refused {
                Some((files, _)) => Ok(files.clone()),
                None => return,
            },
        };
        let (files, result) = match files {
            Ok(files) => {
                let result = self.load(&files, supervisor).await;
                (Some(files), result)
            }
            Err(error) => (None, Err(error.report())),
        };
        match result {
            Ok(()) => {
                self.refused = None;
                supervisor.shared.metrics.config_reload(Outcome::Success);
                tracing::info!(file = %self.path.display(), "new configuration is in use");
            }
            Err(error) => {
                supervisor.refuse(&error);
                tracing::warn!(file = %self.path.display(), error, "new configuration refused, the last good one stays in use");
                let pause = (pause * 2).clamp(FIRST_RETRY, LAST_RETRY);
                self.refused = files.map(|files| (files, pause));
            }
        }
    }

    async fn load(&self, files: &Files, supervisor: &mut Supervisor) -> Result<(), String> {
        let source = self.path.display().to_string();
        let secret = files.secret(self.path).map_err(|error| error.report())?;
        let text =
            std::str::from_utf8(secret.expose()).map_err(|_| format!("{source} is not UTF-8"))?;
        let mut document: Value =
            config::document(text).map_err(|problems| mistakes(&source, &problems))?;
        self.process.lay_over(&mut document);
        let config =
            config::parse::<P>(&document).map_err(|problems| mistakes(&source, &problems))?;
        supervisor.apply(config).await.map_err(|error| error.report())
    }
}

async fn start_admin(
    config: &ProcessConfig,
    supervisor: &Supervisor,
    provider: &'static str,
    level: LevelHandle,
) -> Result<Stopper, Error> {
    let mut registry = Registry::default();
    supervisor.shared.metrics.register(&mut registry, provider);
    let registry = Arc::new(registry);
    let admin = |reach| {
        let (shared, registry) = (supervisor.shared.clone(), registry.clone());
        Arc::new(Admin { shared, registry, level: level.clone(), reach })
    };
    let (stopper, stop) = stopper();
    if let Some(address) = config.admin {
        let listener = listen(address).await?;
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, "admin listening");
        tokio::spawn(serve_admin(listener, admin(Reach::of(address.ip())), stop.clone()));
    }
    if let Some(endpoint) = &config.admin_socket {
        let listener = bind(endpoint, &config.socket).await?;
        tracing::info!(socket = %endpoint, "admin listening");
        tokio::spawn(serve_admin_socket(listener, admin(Reach::Socket), stop));
    }
    Ok(stopper)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::new(Kind::Config, format!("cannot listen on admin address {address}"))
            .with_source(error)
            .with_hint("choose another --admin address; port 0 picks a free one")
    })
}

/// The signals that end the process.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Error::new(Kind::Bug, "cannot listen for signals").with_source(error)
            })
        };
        let terminate = listen(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: listen(SignalKind::interrupt())? })
    }

    fn next(&mut self) -> impl Future<Output = ()> + '_ {
        async {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
        }
    }
}

/// A core dump would hold keys.
fn no_core_dumps() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        eprintln!("warning: core dumps cannot be turned off: {error}");
    }
}
