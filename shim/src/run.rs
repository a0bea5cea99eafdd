//! The command line of the shim, and how it starts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use sidekey_core::app::{App, Begun, ConfigState, Given, Program, Surroundings, serve};
use sidekey_core::config::{Problems, overlay};
use sidekey_core::process::command_line;
use sidekey_core::server::Stopper;
use sidekey_core::telemetry::LevelHandle;
use sidekey_core::{
    Connections, Error, Output, ProbeArgs, ProcessFlags, Source, ask, mistakes, print, read_file,
    report, usage,
};

use crate::admin_tls::{AllowList, serve_admin_tls};
use crate::config::{self, ShimConfig};
use crate::engine::{Engine, Kept, Proof};
use crate::lastgood::LastGood;
use crate::proxy::probe::{Probe, probe};

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

#[derive(Debug, Default, clap::Args)]
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
    /// The uids that may serve plugins' sockets, for keys that name none (default: our own, root)
    #[arg(long, value_name = "UID", value_delimiter = ',')]
    server_uids: Vec<u32>,
    #[command(flatten)]
    process: ProcessFlags,
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
    Probe(ProbeArgs),
    /// Ask a socket proxy, as `sidekey-proxy probe` does
    ProbeProxy(Probe),
}

/// The shim, as its flags have set it up.
struct ShimProgram {
    flags: Flags,
    file: Option<PathBuf>,
    /// What is on disk of the runs before this one.
    stored: Option<LastGood>,
    /// The configuration in it, if it may take the place of the given one.
    fallback: Option<ShimConfig>,
}

/// A running shim.
struct ShimApp {
    engine: Engine,
    fallback: Option<ShimConfig>,
    /// Who may call `adminTls`.
    allow: Arc<AllowList>,
    /// It is served as long as this is kept.
    admin_tls: Option<Stopper>,
    level: LevelHandle,
}

/// The whole of the shim's `main`.
pub fn run() -> ExitCode {
    match command_line::<CommandTree>() {
        Err(code) => code,
        Ok(CommandTree { command: Some(Command::Check { config, listen, output }), .. }) => {
            let source = config.display().to_string();
            let flags = Flags { config: Some(config), listen, ..Flags::default() };
            let read = flags.file().and_then(|file| match file {
                Some(file) => read_file(&file),
                None => flags.forwarding(),
            });
            let checked = read.and_then(|document| flags.parse(document));
            report(&source, &checked.err().unwrap_or_default(), output)
        }
        Ok(CommandTree { command: Some(Command::Probe(asked)), .. }) => ask(&asked),
        Ok(CommandTree { command: Some(Command::ProbeProxy(asked)), .. }) => {
            let output = asked.output;
            print(probe(asked), output)
        }
        Ok(CommandTree { flags, command: None }) => {
            let given = flags.file().and_then(|file| match file {
                Some(file) => Ok(Given::File(file)),
                None => flags.forwarding().map(Given::CommandLine),
            });
            let given = match given {
                Ok(given) => given,
                Err(problems) => {
                    let path = flags.config.as_deref().map(|path| path.display().to_string());
                    let source = path.unwrap_or_else(|| "the command line".to_owned());
                    return usage(&mistakes(&source, &problems));
                }
            };
            let file = if let Given::File(file) = &given { Some(file.clone()) } else { None };
            serve(ShimProgram { flags, file, stored: None, fallback: None }, given)
        }
    }
}

impl Flags {
    /// The file to read and to watch.
    fn file(&self) -> Result<Option<PathBuf>, Problems> {
        match &self.config {
            Some(path) if path.is_dir() => config::directory(path).map(Some),
            other => Ok(other.clone()),
        }
    }

    /// The document that `--forward` stands for.
    fn forwarding(&self) -> Result<Value, Problems> {
        let Some(endpoint) = &self.forward else {
            return Err(Problems::one("", "give --config or --forward; see --help"));
        };
        let key = json!({"id": "1", "role": "write", "endpoints": [endpoint]});
        Ok(json!({"mode": "forward", "keys": [key]}))
    }

    /// Reads a document, whatever layout it came in, with the flags laid over it.
    fn parse(&self, document: Value) -> Result<ShimConfig, Problems> {
        let mut document = config::from_encryption_configuration(document)?;
        if !document.is_object() {
            return Err(Problems::one("", "is not a mapping"));
        }
        self.process.lay_over(&mut document);
        overlay(&mut document, &["listen"], self.listen.clone());
        config::parse(&document, &self.server_uids)
    }
}

impl Program for ShimProgram {
    const NAME: &'static str = "shim";
    type Config = ShimConfig;
    type App = ShimApp;

    fn parse(&self, document: Value) -> Result<ShimConfig, Problems> {
        self.flags.parse(document)
    }

    fn fallback(&mut self, loaded: Option<&ShimConfig>) -> Option<ShimConfig> {
        self.stored = stored(&self.flags, self.file.as_deref(), loaded);
        // A command line is not tried again, so nothing takes its place either.
        let stored = self.stored.as_ref().filter(|_| self.file.is_some());
        let fallback =
            stored.and_then(|stored| config::parse(&stored.document, &self.flags.server_uids).ok());
        let Some(loaded) = loaded else { return fallback };
        self.fallback = fallback.filter(|fallback| fallback.document != loaded.document);
        None
    }

    async fn start(
        &mut self,
        config: &ShimConfig,
        surroundings: Surroundings,
    ) -> Result<ShimApp, Error> {
        let Surroundings { source, watcher, level } = surroundings;
        let stored = self.stored.take();
        let kept = Kept { stored, beside: self.file.as_deref().and_then(LastGood::beside) };
        let engine = Engine::new(config.clone(), source, watcher, kept)?;
        let allow = Arc::new(AllowList::new(config));
        Ok(ShimApp { engine, fallback: self.fallback.take(), allow, admin_tls: None, level })
    }
}

impl App for ShimApp {
    type Config = ShimConfig;

    fn source(&self) -> Arc<dyn Source> {
        self.engine.shared.clone()
    }

    fn connections(&self) -> Connections {
        self.engine.shared.metrics.connections.clone()
    }

    fn state(&self) -> &ConfigState {
        &self.engine.shared.config
    }

    /// The given configuration if it proves itself in time, else the last good one on disk, else
    /// the given one as it is, because what is reachable is better than nothing.
    async fn begin(&mut self, config: ShimConfig) -> Result<Begun, Error> {
        let admin_tls = config.admin_tls.clone();
        let mut refused = None;
        match self.fallback.take() {
            None => self.engine.apply(config, Proof::Cold).await?,
            Some(other) => {
                if let Err(error) = self.engine.apply(config, Proof::Within(START_PROOF)).await {
                    self.engine.apply(other, Proof::Cold).await?;
                    refused = Some(error.report());
                }
            }
        }
        self.allow.follow(self.engine.config());
        if let Some(tls) = admin_tls {
            let (level, allow) = (self.level.clone(), self.allow.clone());
            self.admin_tls = Some(serve_admin_tls(&tls, &mut self.engine, level, allow).await?);
        }
        Ok(Begun { options: self.engine.config().options.clone(), refused })
    }

    async fn apply(&mut self, config: ShimConfig) -> Result<(), Error> {
        self.engine.apply(config, Proof::Required).await?;
        self.allow.follow(self.engine.config());
        Ok(())
    }

    /// A key has written or read something that is to be kept on disk. The cache, which another
    /// configuration empties, is looked after meanwhile.
    async fn due(&self) {
        tokio::select! {
            () = self.engine.remembered() => {}
            () = self.engine.shared.expire() => {}
        }
    }

    async fn work(&mut self) {
        self.engine.store().await;
    }

    async fn end(self) {
        self.engine.end().await;
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
