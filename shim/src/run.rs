//! The life of the shim process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use sidekey_core::config::{self as core_config, LogFormat, Problems};
use sidekey_core::process::{FixedFields, Signals, arguments, no_core_dumps, start_admin};
use sidekey_core::telemetry::{self, LevelHandle};
use sidekey_core::{
    ConfigFile, Digest, EXIT_USAGE, Ending, Endpoint, Error, Farewell, Files, Output, Watcher, ask,
    mistakes, print, read_file, usage,
};

use crate::admin_tls::{AllowList, serve_admin_tls};
use crate::config::{self, ShimConfig};
use crate::engine::{Engine, Kept, Proof};
use crate::lastgood::LastGood;

/// At a start the configuration is given this long to prove itself before the last good one on
/// disk is used instead.
const START_PROOF: Duration = Duration::from_secs(3);

/// Routes kube-apiserver's KMS v2 calls: Encrypt and Status to the write key, Decrypt to the key
/// that wrote.
#[derive(Debug, Parser)]
#[command(
    name = "sidekey-shim",
    version = sidekey_core::VERSION,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = "Examples:
  sidekey-shim --config /etc/sidekey/shim.yaml
  sidekey-shim --config /var/run/secrets/kms-plugin --listen /var/run/kmsplugin/kms.sock   # OpenShift's layout
  sidekey-shim --forward unix:///var/run/kmsplugin/kms-1.sock --listen /var/run/kmsplugin/kms.sock

Exit codes: 0 success, 1 failure, 64 bad usage or configuration."
)]
struct CommandTree {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Args)]
struct Flags {
    /// Configuration: a YAML file, an EncryptionConfiguration, or a directory that holds one
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// One endpoint behind one socket, key_ids untouched
    #[arg(long, value_name = "ENDPOINT", conflicts_with = "config", requires = "listen")]
    forward: Option<String>,
    /// Socket for kube-apiserver; wins over the file's
    #[arg(long, value_name = "SOCKET")]
    listen: Option<String>,
    /// Address of the admin server (/livez /readyz /healthz /metrics /status /); port 0 picks one
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
    /// How long to serve on after SIGTERM while kube-apiserver is connected, where it is told to
    /// end at the same moment
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
    /// Check a configuration and list every mistake in it
    #[command(
        after_help = "Example:\n  sidekey-shim check --config shim.yaml -o json\n\nExit codes: 0 sound, 64 mistakes."
    )]
    Check {
        /// What to check
        #[arg(long, value_name = "PATH")]
        config: PathBuf,
        /// The socket, for layouts that do not name it
        #[arg(long, value_name = "SOCKET")]
        listen: Option<String>,
        /// How to answer
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Ask a running shim, for exec probes in images without a shell
    #[command(
        after_help = "Examples:\n  sidekey-shim probe --socket unix:///var/run/kmsplugin/kms.sock            # listens (startup probe)\n  sidekey-shim probe --socket unix:///var/run/kmsplugin/kms.sock --healthy  # Status is ok\n\nExit codes: 0 yes, 1 no."
    )]
    Probe {
        /// Socket of the shim
        #[arg(long, value_name = "SOCKET")]
        socket: Endpoint,
        /// Ask for more than a listening socket: Status must be ok
        #[arg(long)]
        healthy: bool,
        /// How long to wait for an answer
        #[arg(long, value_name = "TIME", default_value = "3s")]
        timeout: String,
        /// How to answer
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
}

/// The whole of the shim's `main`.
pub fn run() -> ExitCode {
    no_core_dumps();
    match CommandTree::try_parse_from(arguments(std::env::args_os())) {
        Err(error) => {
            // Nothing more can be done if the terminal is gone.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
        }
        Ok(CommandTree { command: Some(Command::Check { config, listen, output }), .. }) => {
            let flags = Flags { config: Some(config), listen, ..Flags::none() };
            check(&flags, output)
        }
        Ok(CommandTree {
            command: Some(Command::Probe { socket, healthy, timeout, output }),
            ..
        }) => match core_config::parse_duration(&timeout) {
            Ok(limit) => print(ask(&socket, healthy, limit), output),
            Err(text) => usage(&format!("--timeout: {text}")),
        },
        Ok(CommandTree { flags, command: None }) => serve(flags),
    }
}

impl Flags {
    fn none() -> Self {
        Self {
            config: None,
            forward: None,
            listen: None,
            admin: None,
            linger: None,
            log_format: None,
            log_level: None,
        }
    }

    /// Lays the flags over a document, whatever layout it came in; flags win.
    fn finish(&self, document: Value) -> Result<Value, Problems> {
        let mut document = config::from_encryption_configuration(document)?;
        if !document.is_object() {
            return Err(Problems::one("", "is not a mapping"));
        }
        let format = self.log_format.map(|format| match format {
            LogFormat::Text => "text".to_owned(),
            LogFormat::Json => "json".to_owned(),
        });
        for (path, value) in [
            ("/listen", &self.listen),
            ("/admin", &self.admin),
            ("/linger", &self.linger),
            ("/log/format", &format),
            ("/log/level", &self.log_level),
        ] {
            let Some(value) = value else { continue };
            let mut node = &mut document;
            for part in path.split('/').skip(1) {
                if !node.is_object() {
                    *node = json!({});
                }
                node = &mut node[part];
            }
            *node = value.clone().into();
        }
        Ok(document)
    }

    /// The file to read and to watch.
    fn file(&self) -> Result<Option<PathBuf>, Problems> {
        match &self.config {
            Some(path) if path.is_dir() => config::directory(path).map(Some),
            other => Ok(other.clone()),
        }
    }

    fn load(&self, file: Option<&Path>) -> Result<ShimConfig, Problems> {
        let document = match (file, &self.forward) {
            (Some(file), _) => read_file(file)?,
            (None, Some(endpoint)) => {
                json!({"mode": "forward", "keys": [{"id": "1", "role": "write", "endpoints": [endpoint]}]})
            }
            (None, None) => {
                return Err(Problems::one("", "give --config or --forward; see --help"));
            }
        };
        config::parse(&self.finish(document)?)
    }
}

fn check(flags: &Flags, output: Output) -> ExitCode {
    let source =
        flags.config.as_deref().map_or_else(String::new, |path| path.display().to_string());
    let result = flags.file().and_then(|file| flags.load(file.as_deref()));
    let problems = result.err().unwrap_or_default();
    if output == Output::Json {
        let list: Vec<_> = problems
            .iter()
            .map(|problem| json!({"path": problem.path, "message": problem.message}))
            .collect();
        println!("{:#}", json!({"file": source, "ok": problems.is_empty(), "mistakes": list}));
    } else if problems.is_empty() {
        println!("{source} is sound");
    } else {
        eprintln!("error: {}", mistakes(&source, &problems));
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) }
}

fn serve(flags: Flags) -> ExitCode {
    let source = match (&flags.config, &flags.forward) {
        (Some(path), _) => path.display().to_string(),
        _ => "the command line".to_owned(),
    };
    let file = match flags.file() {
        Ok(file) => file,
        Err(problems) => return usage(&mistakes(&source, &problems)),
    };
    // Before the reading: what changes after it is told, at worst twice.
    let known = file.as_deref().and_then(|path| Files::read([path]).ok()).map(|read| read.digest());
    let loaded = flags.load(file.as_deref());
    let stored = stored(&flags, file.as_deref(), loaded.as_ref().ok());
    // A command line is not tried again, so nothing takes its place either.
    let fallback = stored.as_ref().filter(|_| file.is_some());
    let fallback = fallback.and_then(|stored| config::parse(&stored.document).ok());
    let (config, refused) = match (loaded, &fallback) {
        (Ok(config), _) => (config, None),
        (Err(problems), Some(fallback)) => (fallback.clone(), Some(mistakes(&source, &problems))),
        (Err(problems), None) => return usage(&mistakes(&source, &problems)),
    };
    let level = telemetry::start(config.log);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return usage(&format!("cannot start the runtime: {error}")),
    };
    let start = Start { config, fallback, stored, refused, source, flags, file, known };
    let result = runtime.block_on(live(start, level));
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

/// The last good configuration on disk, which lies beside the socket. Where the configuration
/// cannot be read and the command line does not name the socket, it is looked for beside the
/// configuration and beside the default socket.
fn stored(flags: &Flags, file: Option<&Path>, config: Option<&ShimConfig>) -> Option<LastGood> {
    let at = |listen: &str| LastGood::path(&listen.parse().ok()?);
    let places = match (config, flags.listen.as_deref()) {
        (Some(config), _) => {
            let listener = config.listeners.first();
            let socket = listener.and_then(|spec| LastGood::path(&spec.endpoint));
            vec![socket, file.and_then(LastGood::beside)]
        }
        (None, Some(listen)) => vec![at(listen)],
        (None, None) => vec![file.and_then(LastGood::beside), at(DEFAULT_SOCKET)],
    };
    places.iter().flatten().find_map(|path| LastGood::load(path))
}

/// Where the shim listens by default, and so where the last good configuration is looked for
/// when the configuration cannot say.
const DEFAULT_SOCKET: &str = "unix:///var/run/kmsplugin/kms.sock";

struct Start {
    config: ShimConfig,
    fallback: Option<ShimConfig>,
    stored: Option<LastGood>,
    refused: Option<String>,
    source: String,
    flags: Flags,
    file: Option<PathBuf>,
    known: Option<Digest>,
}

/// What a start leaves behind for later configurations.
struct AtStart {
    fields: FixedFields,
    /// Who may call `adminTls`.
    allow: Arc<AllowList>,
}

async fn live(start: Start, level: LevelHandle) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let Start { config, fallback, stored, refused, source, flags, file, known } = start;
    tracing::info!(version = sidekey_core::VERSION, config = %config.document, "starting");
    let watcher = Arc::new(Watcher::new(config.file_poll));
    let (admin, admin_tls, sockets) =
        (config.admin.clone(), config.admin_tls.clone(), config.socket.clone());
    let mut at_start = AtStart {
        fields: FixedFields::new(fixed(&config), config.log, level.clone()),
        allow: Arc::new(AllowList::new(&config)),
    };
    let kept = Kept { stored, beside: file.as_deref().and_then(LastGood::beside) };
    let mut engine = Engine::new(config.clone(), source, watcher.clone(), kept)?;
    let _admin = start_admin(&admin, &sockets, engine.shared.clone(), level.clone()).await?;
    let refused = first(&mut engine, config, fallback, refused).await?;
    at_start.allow.follow(engine.config());
    if let Some(tls) = admin_tls {
        serve_admin_tls(&tls, &mut engine, level, at_start.allow.clone()).await?;
    }
    let mut file = file.map(|path| match known {
        Some(known) => ConfigFile::watch_since(&watcher, &path, known),
        None => ConfigFile::watch(&watcher, &path),
    });
    if let (Some(error), Some(file)) = (&refused, &mut file) {
        engine.refuse(error);
        tracing::warn!(
            error,
            "configuration refused at the start, the last good one on disk is in use"
        );
        file.retry_current();
    }
    let mut ending = Ending::new(engine.shared.clients.clone());
    let farewell = loop {
        let linger = engine.linger();
        tokio::select! {
            // Keys that hang while they are to prove themselves must not delay the end.
            farewell = ending.wait(&mut signals, linger) => break farewell,
            () = step(&mut file, &flags, &mut engine, &mut at_start) => {}
        }
    };
    if farewell == Farewell::AtOnce {
        return Ok(());
    }
    tracing::info!("stopping: waiting for open requests");
    tokio::select! {
        () = engine.end() => tracing::info!("stopped"),
        _ = signals.next() => tracing::warn!("second signal: stopping at once"),
    }
    Ok(())
}

/// The first configuration: the given one if it proves itself in time, else the last good one on
/// disk, else the given one as it is, because what is reachable is better than nothing. Returns
/// why the given one is not in use.
async fn first(
    engine: &mut Engine,
    config: ShimConfig,
    fallback: Option<ShimConfig>,
    refused: Option<String>,
) -> Result<Option<String>, Error> {
    let other = fallback.filter(|fallback| fallback.document != config.document);
    let (None, Some(other)) = (&refused, other) else {
        engine.apply(config, Proof::Cold).await?;
        return Ok(refused);
    };
    let Err(error) = engine.apply(config, Proof::Within(START_PROOF)).await else {
        return Ok(None);
    };
    engine.apply(other, Proof::Cold).await.map(|()| Some(error.report()))
}

/// Takes a changed document over, or keeps on disk what a key has written or read.
async fn step(
    file: &mut Option<ConfigFile>,
    flags: &Flags,
    engine: &mut Engine,
    start: &mut AtStart,
) {
    tokio::select! {
        document = next(file) => {
            if let (true, Some(file)) = (take_over(document, flags, engine, start).await, file) {
                file.accepted();
            }
        }
        () = engine.remembered() => engine.store().await,
    }
}

/// Never ends where there is no file to watch.
async fn next(file: &mut Option<ConfigFile>) -> Result<Value, String> {
    match file {
        Some(file) => file.next().await,
        None => std::future::pending().await,
    }
}

/// Makes a changed document the configuration in use, or says why not.
async fn take_over(
    document: Result<Value, String>,
    flags: &Flags,
    engine: &mut Engine,
    start: &mut AtStart,
) -> bool {
    let result = match document {
        Ok(document) => load(document, flags, engine, start).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => {
            engine.shared.metrics.reload(true);
            let revision = engine.shared.info().revision.clone();
            tracing::info!(revision, "new configuration is in use");
            true
        }
        Err(error) => {
            engine.refuse(&error);
            tracing::warn!(error, "new configuration refused, the last good one stays in use");
            false
        }
    }
}

async fn load(
    document: Value,
    flags: &Flags,
    engine: &mut Engine,
    start: &mut AtStart,
) -> Result<(), String> {
    let mut config = flags
        .finish(document)
        .and_then(|document| config::parse(&document))
        .map_err(|problems| mistakes("the new configuration", &problems))?;
    config.warnings.extend(start.fields.warning(&fixed(&config), config.log));
    let log = config.log;
    engine.apply(config, Proof::Required).await.map_err(|error| error.report())?;
    start.fields.follow_level(log);
    start.allow.follow(engine.config());
    Ok(())
}

/// What is taken from the configuration once.
fn fixed(config: &ShimConfig) -> Vec<(&'static str, String)> {
    let ShimConfig { admin, admin_tls, socket, drain, file_poll, .. } = config;
    let admin_tls = admin_tls.as_ref().map(|tls| (tls.listen, &tls.files));
    vec![
        ("admin", format!("{:?}", admin.address)),
        ("adminSocket", format!("{:?}", admin.socket)),
        ("adminTls", format!("{admin_tls:?}")),
        ("socket", format!("{socket:?}")),
        ("drain", format!("{drain:?}")),
        ("filePoll", format!("{file_poll:?}")),
    ]
}
