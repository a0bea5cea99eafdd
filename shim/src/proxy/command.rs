//! The command line of `sidekey-proxy`, and the life of its process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};
use sidekey_core::app::{Given, Program, Surroundings, serve};
use sidekey_core::config::{Problems, overlay};
use sidekey_core::process::command_line;
use sidekey_core::{
    Error, Kind, Output, ProcessFlags, VERSION, mistakes, print, read_file, report, time, usage,
};

use super::Proxy;
use super::config::ProxyConfig;
use super::probe::{Probe, probe};

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
struct ProxyCommandTree {
    #[command(flatten)]
    flags: ProxyFlags,
    #[command(subcommand)]
    command: Option<ProxyCommand>,
}

/// Flags beside `--config` win over the file.
#[derive(Debug, Args)]
struct ProxyFlags {
    /// Configuration file (YAML); it is watched and reloaded
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Loopback address for plaintext, without a configuration file
    #[arg(long, value_name = "IP:PORT", conflicts_with = "config", requires = "socket_path")]
    listen_addr: Option<String>,
    /// Socket of the plugin, without a configuration file
    #[arg(long, value_name = "SOCKET", conflicts_with = "config", requires = "listen_addr")]
    socket_path: Option<String>,
    /// The uids that may serve the plugin's socket (default: our own, root)
    #[arg(long, value_name = "UID", value_delimiter = ',')]
    server_uids: Vec<u32>,
    #[command(flatten)]
    process: ProcessFlags,
}

#[derive(Debug, Subcommand)]
enum ProxyCommand {
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

/// The proxy, as its flags have set it up.
struct ProxyProgram(ProxyFlags);

/// The whole of `main`.
pub fn run() -> ExitCode {
    match command_line::<ProxyCommandTree>() {
        Err(code) => code,
        Ok(ProxyCommandTree { command: Some(ProxyCommand::Check { config, output }), .. }) => {
            check(&config, output)
        }
        Ok(ProxyCommandTree { command: Some(ProxyCommand::Probe(asked)), .. }) => {
            let output = asked.output;
            print(probe(asked), output)
        }
        Ok(ProxyCommandTree { flags, command: None }) => {
            let file = flags.config.clone().map(Given::File);
            match file.or_else(|| flags.plaintext().map(Given::CommandLine)) {
                Some(given) => serve(ProxyProgram(flags), given),
                None => {
                    usage("nothing to serve: give --config, or --listen-addr and --socket-path")
                }
            }
        }
    }
}

fn check(path: &Path, output: Output) -> ExitCode {
    let checked = read_file(path)
        .and_then(|document| ProxyConfig::parse(&document))
        .and_then(|config| config.check_files());
    let problems = match checked {
        // The proxy would start all the same, so that it can be mended while it runs.
        Ok(Some(expiry)) if expiry <= SystemTime::now() => {
            Problems::one("tls.cert", &format!("has expired ({})", time(expiry)))
        }
        Ok(_) => Problems::default(),
        Err(problems) => problems,
    };
    report(&path.display().to_string(), &problems, output)
}

impl ProxyFlags {
    /// The document that the two flags of the enhancement text stand for.
    fn plaintext(&self) -> Option<Value> {
        let (listen, plugin) = (self.listen_addr.as_ref()?, self.socket_path.as_ref()?);
        Some(json!({"listen": listen, "plugin": plugin, "plaintext": true}))
    }
}

impl Program for ProxyProgram {
    const NAME: &'static str = "proxy";
    type Config = ProxyConfig;
    type App = Proxy;

    fn parse(&self, mut document: Value) -> Result<ProxyConfig, Problems> {
        self.0.process.lay_over(&mut document);
        let uids = Some(self.0.server_uids.clone()).filter(|uids| !uids.is_empty());
        overlay(&mut document, &["serverUids"], uids);
        ProxyConfig::parse(&document)
    }

    fn prepare(&self, config: &ProxyConfig) -> Result<(), Error> {
        let path = self.0.config.as_deref().unwrap_or_else(|| Path::new("the command line"));
        config.check_files().map(|_| ()).map_err(|problems| {
            Error::new(Kind::Invalid, mistakes(&path.display().to_string(), &problems))
        })
    }

    async fn start(
        &mut self,
        config: &ProxyConfig,
        surroundings: Surroundings,
    ) -> Result<Proxy, Error> {
        Proxy::start(config.clone(), &surroundings.source, &surroundings.watcher).await
    }
}
