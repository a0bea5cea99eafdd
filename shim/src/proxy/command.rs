//! The command line of `sidekey-proxy`, and the life of its process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};
use sidekey_core::config::{self, LogFormat, Problems};
use sidekey_core::process::{Signals, arguments, no_core_dumps, start_admin};
use sidekey_core::telemetry::{self, LevelHandle};
use sidekey_core::{
    ConfigFile, EXIT_USAGE, Error, Farewell, Output, VERSION, Watcher, mistakes, print, read_file,
    time, usage,
};

use super::config::Config;
use super::probe::{Probe, probe};
use super::{Access, Proxy};

const EXAMPLES: &str = "\
Examples:
  sidekey-proxy --config /etc/sidekey/proxy.yaml
  sidekey-proxy --listen-addr=127.0.0.1:8080 --socket-path=/socket/kms.sock   # plaintext, loopback only
  sidekey-proxy check --config /etc/sidekey/proxy.yaml -o json
  sidekey-proxy probe --config /etc/sidekey/proxy.yaml --healthy

Exit codes: 0 ok, 1 failure, 64 bad usage or configuration.";

/// Lets the shim reach a KMS v2 plugin in another pod or on another node, over mutual TLS
#[derive(Debug, Parser)]
#[command(name = "sidekey-proxy", version = VERSION, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct CommandTree {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Flags beside `--config` win over the file.
#[derive(Debug, Args)]
struct Flags {
    /// Configuration file (YAML); it is watched and reloaded
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Loopback address for plaintext, without a configuration file
    #[arg(long, value_name = "IP:PORT", conflicts_with = "config", requires = "socket_path")]
    listen_addr: Option<String>,
    /// Socket of the plugin, without a configuration file
    #[arg(long, value_name = "SOCKET", conflicts_with = "config", requires = "listen_addr")]
    socket_path: Option<String>,
    /// Address of the admin server (/livez /readyz /healthz /metrics /status); port 0 picks one
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
    /// Unix socket of the admin server, for calls that change state too
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<String>,
    /// Time for open requests after the order to stop
    #[arg(long, value_name = "TIME")]
    drain: Option<String>,
    /// How long to serve on after SIGTERM while clients are connected
    #[arg(long, value_name = "TIME")]
    linger: Option<String>,
    /// Log lines for people or for machines
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a configuration file and the certificates it names, and list every mistake
    #[command(
        after_help = "Example:\n  sidekey-proxy check --config proxy.yaml -o json\n\nExit codes: 0 sound, 64 mistakes."
    )]
    Check {
        /// The file to check
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// How to answer
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Ask a running proxy, for exec probes in images without a shell, or as a client would
    Probe(Probe),
}

/// The whole of `main`.
pub fn run() -> ExitCode {
    no_core_dumps();
    match CommandTree::try_parse_from(arguments(std::env::args_os())) {
        Err(error) => {
            // Nothing more can be done if the terminal is gone.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
        }
        Ok(CommandTree { command: Some(Command::Check { config, output }), .. }) => {
            check(&config, output)
        }
        Ok(CommandTree { command: Some(Command::Probe(asked)), .. }) => {
            let output = asked.output;
            print(probe(asked), output)
        }
        Ok(CommandTree { flags, command: None }) => serve(&flags),
    }
}

fn check(path: &Path, output: Output) -> ExitCode {
    let source = path.display().to_string();
    let checked = read_file(path)
        .and_then(|document| Config::parse(&document))
        .and_then(|config| config.check_files());
    let problems = match checked {
        // The proxy would start all the same, so that it can be mended while it runs.
        Ok(Some(expiry)) if expiry <= SystemTime::now() => {
            Problems::one("tls.cert", &format!("has expired ({})", time(expiry)))
        }
        Ok(_) => Problems::default(),
        Err(problems) => problems,
    };
    let sound = problems.is_empty();
    if output == Output::Json {
        let list: Vec<_> = problems
            .iter()
            .map(|problem| json!({"path": problem.path, "message": problem.message}))
            .collect();
        println!("{:#}", json!({"file": source, "ok": sound, "mistakes": list}));
    } else if sound {
        println!("{source} is sound");
    } else {
        return usage(&mistakes(&source, &problems));
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) }
}

fn serve(flags: &Flags) -> ExitCode {
    let (source, document) = match (&flags.config, flags.plaintext()) {
        (Some(path), _) => (path.display().to_string(), read_file(path)),
        (None, Some(document)) => ("the command line".to_owned(), Ok(document)),
        (None, None) => {
            return usage("nothing to serve: give --config, or --listen-addr and --socket-path");
        }
    };
    let read = document.and_then(|document| Ok((flags.parse(document.clone())?, document)));
    let (config, document) = match read {
        Ok(read) => read,
        Err(problems) => return usage(&mistakes(&source, &problems)),
    };
    if let Err(problems) = config.check_files() {
        return usage(&mistakes(&source, &problems));
    }
    let level = telemetry::start(config.log);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return usage(&format!("cannot start the runtime: {error}")),
    };
    let result = runtime.block_on(live(config, &document, flags, &source, level));
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

async fn live(
    config: Config,
    document: &Value,
    flags: &Flags,
    source: &str,
    level: LevelHandle,
) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    tracing::info!(version = VERSION, plugin = %config.plugin, listen = %config.listen,
        tls = config.access != Access::Plaintext, "starting");
    let watcher = Watcher::new(config.file_poll);
    let mut file = flags.config.as_deref().map(|path| ConfigFile::watch(&watcher, path));
    // What changed between the reading and the watching would go unnoticed.
    let mut missed = flags.config.as_deref().and_then(|path| read_file(path).ok());
    missed.take_if(|again| again == document);
    let (admin, socket) = (config.admin.clone(), config.socket.clone());
    let mut proxy = Proxy::start(config, source, &watcher).await?;
    let _admin = start_admin(&admin, &socket, proxy.source(), level.clone()).await?;
    let mut ending = proxy.ending();
    let farewell = loop {
        let document = tokio::select! {
            farewell = ending.wait(&mut signals, proxy.config.linger) => break farewell,
            document = next(&mut missed, &mut file) => document,
        };
        let result = take_over(document, flags, &mut proxy, &level).await;
        proxy.note(&result);
        match (result, &mut file) {
            (Ok(()), Some(file)) => {
                tracing::info!("new configuration is in use");
                file.accepted();
            }
            (Err(error), _) => {
                tracing::warn!(error, "new configuration refused, the last good one stays in use");
            }
            (Ok(()), None) => {}
        }
    };
    if farewell == Farewell::AtOnce {
        return Ok(());
    }
    tracing::info!("stopping: waiting for open requests");
    tokio::select! {
        () = proxy.stop() => tracing::info!("stopped"),
        _ = signals.next() => tracing::warn!("second signal: stopping at once"),
    }
    Ok(())
}

/// Never ends where there is no file to watch.
async fn next(missed: &mut Option<Value>, file: &mut Option<ConfigFile>) -> Result<Value, String> {
    if let Some(document) = missed.take() {
        return Ok(document);
    }
    match file {
        Some(file) => file.next().await,
        None => std::future::pending().await,
    }
}

async fn take_over(
    document: Result<Value, String>,
    flags: &Flags,
    proxy: &mut Proxy,
    level: &LevelHandle,
) -> Result<(), String> {
    let config =
        flags.parse(document?).map_err(|problems| mistakes("the new configuration", &problems))?;
    let wanted = config.log.level;
    let changed = wanted != proxy.config.log.level;
    proxy.apply(config).await.map_err(|error| error.report())?;
    // Only what the file changes: the level may have been set through the admin socket.
    if changed {
        level.change(wanted.as_str());
    }
    Ok(())
}

impl Flags {
    /// The document that the two flags of the enhancement text stand for.
    fn plaintext(&self) -> Option<Value> {
        let (listen, plugin) = (self.listen_addr.as_ref()?, self.socket_path.as_ref()?);
        Some(json!({"listen": listen, "plugin": plugin, "plaintext": true}))
    }

    /// Lays the flags over a document and reads it.
    fn parse(&self, mut document: Value) -> Result<Config, Problems> {
        let format = self.log_format.map(|format| match format {
            LogFormat::Text => "text".to_owned(),
            LogFormat::Json => "json".to_owned(),
        });
        let fields = [
            (None, "admin", self.admin.clone()),
            (None, "adminSocket", self.admin_socket.clone()),
            (None, "drain", self.drain.clone()),
            (None, "linger", self.linger.clone()),
            (Some("log"), "format", format),
            (Some("log"), "level", self.log_level.clone()),
        ];
        for (parent, name, value) in fields {
            let Some(value) = value else { continue };
            let mut node = &mut document;
            for part in parent.into_iter().chain([name]) {
                if !node.is_object() {
                    *node = json!({});
                }
                node = &mut node[part];
            }
            *node = value.into();
        }
        Config::parse(&document)
    }
}

/// Reads a duration flag.
pub(super) fn duration(flag: &str, text: &str) -> Result<std::time::Duration, Error> {
    config::parse_duration(text)
        .map_err(|text| Error::new(sidekey_core::Kind::Invalid, format!("{flag}: {text}")))
}
