//! The command line that every provider has, and the commands that need no provider.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::config::{self, LogFormat, Problems, mistakes, overlay, parse_duration, read_file};
use crate::key::canary::Canary;
use crate::kms::StatusReport;
use crate::proto::v2::{EncryptRequest, StatusRequest};
use crate::{Endpoint, Error, Kind, Provider, Secret, client};

mod rotate;
mod trial;

pub use rotate::{Rotate, RotateArgs, RotateCommand, rotate};
use trial::Trial;

/// Bad usage or configuration (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;

/// What a provider adds to the common command line.
pub trait CommandLine: Provider {
    /// One line for `--help`.
    const ABOUT: &'static str;
    /// Examples for the end of `--help`.
    const EXAMPLES: &'static str;
    /// Flags that describe keys, those of the plugin that it replaces included.
    type Flags: Args;
    /// Commands of its own; [`NoCommand`] if it has none.
    type Command: Subcommand;

    /// The `keys` section that the flags describe, or `None` if they describe none. It must not
    /// change anything: the command line may yet turn out to be wrong.
    fn keys(flags: &Self::Flags) -> Result<Option<Value>, Error>;

    /// Fields of the process that the flags of the replaced plugin describe (`health`, say). They
    /// count only where [`keys`](CommandLine::keys) finds some.
    fn process(_flags: &Self::Flags) -> Value {
        json!({})
    }

    /// What the flags ask to be done before the first key is served, once the whole configuration
    /// has been found sound.
    fn prepare(_flags: &Self::Flags) -> Result<(), Error> {
        Ok(())
    }

    /// The form in which a command of its own answers.
    fn output(command: &Self::Command) -> Output;

    /// Runs a command of its own; the answer is printed in the form that was asked for.
    fn execute(command: Self::Command) -> Result<Answer, Error>;
}

/// For providers without commands of their own.
#[derive(Debug, Subcommand)]
pub enum NoCommand {}

/// What a command has to say, for people and for machines.
pub struct Answer {
    /// For people.
    pub text: String,
    /// For machines.
    pub json: Value,
}

/// How a command answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Flags that every process has; given beside `--config` they win over the file.
#[derive(Debug, Default, Args)]
pub struct ProcessFlags {
    /// Address of the admin server (/livez /readyz /healthz /metrics /status); port 0 picks one
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
    /// Unix socket of the admin server, for calls that change state too
    #[arg(long, value_name = "PATH")]
    admin_socket: Option<String>,
    /// Time for open requests after the order to stop
    #[arg(long, value_name = "TIME")]
    drain: Option<String>,
    /// How long to serve on after SIGTERM while clients are connected, where they are told to end
    /// at the same moment
    #[arg(long, value_name = "TIME")]
    linger: Option<String>,
    /// Log lines for people or for machines
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

/// Flags of a provider beside those that describe keys.
#[derive(Debug, Args)]
pub(crate) struct ProviderFlags {
    /// Configuration file (YAML); it is watched and reloaded
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    process: ProcessFlags,
    /// Mode of the sockets, in octal
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
    /// Group (gid) of the sockets
    #[arg(long, value_name = "GID")]
    socket_group: Option<u32>,
    /// User (uid) who may connect; may be repeated [default: own uid and root]
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<u32>,
    /// Time between two probes of a key
    #[arg(long, value_name = "TIME")]
    probe_interval: Option<String>,
    /// Time for one probe
    #[arg(long, value_name = "TIME")]
    probe_timeout: Option<String>,
    /// How long Status stays ok while the KMS cannot be reached
    #[arg(long, value_name = "TIME")]
    coast: Option<String>,
}

/// What is asked of a running plugin.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Socket of the plugin
    #[arg(long, value_name = "SOCKET")]
    socket: Endpoint,
    /// Ask for more than a listening socket: Status must be ok
    #[arg(long)]
    healthy: bool,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    timeout: Duration,
    /// How to answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Commands that every provider has.
#[derive(Debug, Subcommand)]
pub(crate) enum CommonCommand {
    /// Check a configuration file and list every mistake in it
    #[command(
        after_help = "Examples:\n  check --config provider.yaml -o json\n  check --config provider.yaml --connect   # and try every key at its KMS\n\nExit codes: 0 sound, 64 mistakes, 1 a key that does not work."
    )]
    Check {
        /// The file to check
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Try every key at its KMS too: log in, read the canary, wrap and unwrap
        #[arg(long)]
        connect: bool,
        /// How to answer
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Ask a running plugin, for exec probes in images without a shell
    #[command(
        after_help = "Examples:\n  probe --socket unix:///var/run/kmsplugin/kms-1.sock            # listens (startup probe)\n  probe --socket unix:///var/run/kmsplugin/kms-1.sock --healthy  # Status is ok\n\nExit codes: 0 yes, 1 no."
    )]
    Probe(ProbeArgs),
    /// Make a canary with a running plugin: the `canary` of its key's configuration
    #[command(
        after_help = "Example:\n  canary --socket unix:///var/run/kmsplugin/kms-1.sock\n\nThe answer holds no secret. Put it into the key's configuration as `canary`."
    )]
    Canary {
        /// Socket of the plugin
        #[arg(long, value_name = "SOCKET")]
        socket: Endpoint,
        /// How to answer
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
}

impl ProcessFlags {
    /// Lays the flags over a document; flags win.
    pub fn lay_over(&self, document: &mut Value) {
        overlay(document, &["admin"], self.admin.clone());
        overlay(document, &["adminSocket"], self.admin_socket.clone());
        overlay(document, &["drain"], self.drain.clone());
        overlay(document, &["linger"], self.linger.clone());
        overlay(document, &["log", "format"], self.log_format.map(LogFormat::label));
        overlay(document, &["log", "level"], self.log_level.clone());
    }
}

impl ProviderFlags {
    /// Lays the flags over a document; flags win.
    pub(crate) fn lay_over(&self, document: &mut Value) {
        self.process.lay_over(document);
        let uids = (!self.allow_uid.is_empty()).then(|| self.allow_uid.clone());
        overlay(document, &["socket", "mode"], self.socket_mode.clone());
        overlay(document, &["socket", "group"], self.socket_group);
        overlay(document, &["socket", "allowedUids"], uids);
        overlay(document, &["probe", "interval"], self.probe_interval.clone());
        overlay(document, &["probe", "timeout"], self.probe_timeout.clone());
        overlay(document, &["probe", "coast"], self.coast.clone());
    }
}

/// Runs a command that every provider has.
pub(crate) fn execute<P: Provider>(command: CommonCommand) -> ExitCode {
    match command {
        CommonCommand::Check { config, connect, output } => check::<P>(&config, connect, output),
        CommonCommand::Probe(asked) => ask(&asked),
        CommonCommand::Canary { socket, output } => print(answer(canary(&socket)), output),
    }
}

/// Prints an answer or an error, and gives the exit code.
pub fn print(result: Result<Answer, Error>, output: Output) -> ExitCode {
    match (result, output) {
        (Ok(answer), Output::Text) => {
            say(&answer.text);
            ExitCode::SUCCESS
        }
        (Ok(answer), Output::Json) => {
            say(&format!("{:#}", answer.json));
            ExitCode::SUCCESS
        }
        (Err(error), output) => {
            if output == Output::Json {
                let json = json!({"error": error.report(), "kind": error.kind().label()});
                say(&format!("{json:#}"));
            } else {
                complain(&format!("error: {}", error.report()));
            }
            let bad_usage = error.kind() == Kind::Invalid;
            if bad_usage { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// Says what is wrong with a command line or configuration, and gives the exit code.
pub fn usage(text: &str) -> ExitCode {
    complain(&format!("error: {text}"));
    ExitCode::from(EXIT_USAGE)
}

/// Prints a line; that nobody reads it is no reason to fail, as `println!` would.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a line where errors go; that nobody reads it is no reason to fail, as `eprintln!` would.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn check<P: Provider>(path: &std::path::Path, connect: bool, output: Output) -> ExitCode {
    let source = path.display().to_string();
    let result = read_file(path).and_then(|document| config::parse::<P>(&document));
    let problems = match result {
        Ok(config) => match config.check_files() {
            sound if sound.is_empty() && connect => return print(try_out(&config), output),
            problems => problems,
        },
        Err(problems) => problems,
    };
    report(&source, &problems, output)
}

/// Says what is wrong with a configuration, if anything is, and gives the exit code.
pub fn report(source: &str, problems: &Problems, output: Output) -> ExitCode {
    if output == Output::Json {
        let list: Vec<_> = problems
            .iter()
            .map(|problem| json!({"path": problem.path, "message": problem.message}))
            .collect();
        let json = json!({"file": source, "ok": problems.is_empty(), "mistakes": list});
        say(&format!("{json:#}"));
    } else if problems.is_empty() {
        say(&format!("{source} is sound"));
    } else {
        complain(&format!("error: {}", mistakes(source, problems)));
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) }
}

/// Tries every key at its KMS; the error names each one that does not work.
fn try_out(config: &config::ProcessConfig) -> Result<Answer, Error> {
    answer(async {
        let (mut works, mut fails, mut kind) = (Vec::new(), Vec::new(), Kind::Bug);
        for Trial { id, result } in trial::try_out(config).await {
            match result {
                Ok((key_id, note)) => works.push((id, key_id, note)),
                Err(error) => {
                    kind = error.kind();
                    fails.push(format!("key {id}: {}: {}", error.kind(), error.report()));
                }
            }
        }
        if !fails.is_empty() {
            // Not "invalid": that is for bad usage, and the file is sound.
            let kind = if kind == Kind::Invalid { Kind::Bug } else { kind };
            return Err(Error::new(kind, fails.join("; ")));
        }
        let lines = works.iter().map(|(id, key_id, note)| {
            let note = note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
            format!("key {id} works, key_id {key_id}{note}")
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let keys = works.iter().map(|(id, key_id, note)| {
            json!({"id": id, "keyId": key_id.as_str(), "keyIdHash": key_id.hash(), "note": note})
        });
        Ok(Answer { text, json: json!({"ok": true, "keys": keys.collect::<Vec<_>>()}) })
    })
}

/// Asks a running plugin whether it listens or, if that is asked for, whether its Status is ok.
pub fn ask(asked: &ProbeArgs) -> ExitCode {
    let ProbeArgs { socket, healthy, timeout, output } = asked;
    print(answer(probe(socket, *healthy, *timeout)), *output)
}

async fn probe(socket: &Endpoint, healthy: bool, limit: Duration) -> Result<Answer, Error> {
    let asking = async {
        let mut client = connect(socket).await?;
        if !healthy {
            let text = format!("{socket} listens");
            return Ok(Answer { json: json!({"listens": true}), text });
        }
        let status = client.status(StatusRequest {}).await.map_err(refused)?;
        let key_id_hash = StatusReport::passed_on(status).key_id()?.hash();
        let json = json!({"listens": true, "healthy": true, "key_id_hash": key_id_hash});
        Ok(Answer { text: format!("{socket} is healthy, key_id {key_id_hash}"), json })
    };
    tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| {
        Err(Error::new(Kind::Timeout, format!("{socket} did not answer in {limit:?}")))
    })
}

async fn canary(socket: &Endpoint) -> Result<Answer, Error> {
    let plaintext = Secret::random(32)?;
    let request = EncryptRequest { plaintext: plaintext.to_bytes(), uid: "canary".into() };
    let sealed = connect(socket).await?.encrypt(request).await.map_err(refused)?.into_inner();
    let json = Canary::new(sealed.try_into()?, &plaintext).document();
    // JSON is YAML: it can be pasted as it is.
    Ok(Answer { text: format!("canary: {json}"), json })
}

async fn connect(
    socket: &Endpoint,
) -> Result<
    crate::proto::v2::key_management_service_client::KeyManagementServiceClient<client::Connection>,
    Error,
> {
    client::connect(socket).await.map_err(|error| {
        Error::new(Kind::Unavailable, format!("no plugin answers on {socket}")).with_source(error)
    })
}

fn refused(status: tonic::Status) -> Error {
    let text = format!("the plugin answered {:?}: {}", status.code(), status.message());
    Error::new(Kind::Unavailable, text)
}

/// Runs a short conversation of a command to its end.
pub fn answer(asking: impl Future<Output = Result<Answer, Error>>) -> Result<Answer, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime
        .map_err(|error| Error::new(Kind::Bug, "cannot start the runtime").with_source(error))?
        .block_on(asking)
}
