//! `cargo xbench`: measures a KMS v2 plugin as kube-apiserver meets it.
//!
//! It starts one of our binaries, or drives a socket that is there already, and prints start
//! time, memory, binary size, and latency and rate of each operation, beside the bars that
//! the project has set itself. It measures and does not judge a build: a missed bar is
//! printed, not an exit code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;
use sidekey_core::Endpoint;
use sidekey_e2e::Scratch;
use sidekey_e2e::bench::subject::Launch;
use sidekey_e2e::bench::{
    Bar, Beside, Binary, Effort, Figures, Judgement, Memory, Server, Spread, Subject, Target,
    judge, measure_load, subject, table,
};
use sidekey_e2e::command::{self, Format};

/// Measures a KMS v2 plugin as kube-apiserver meets it.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xbench",
    bin_name = "cargo xbench",
    after_help = "Examples:\n  cargo xbench\n  cargo xbench --bin sidekey-shim -o json\n  cargo xbench --socket /var/run/kmsplugin/kms.sock\n  cargo xbench --bin ./my-plugin -- --listen unix://{dir}/kms.sock\n\nExit codes: 0 measured, 1 failed, 64 bad usage"
)]
struct Arguments {
    /// Binary to start and to measure, by name or path; may be repeated, to compare
    #[arg(long, value_name = "NAME", default_values = ["sidekey-local", "sidekey-shim"], conflicts_with = "socket")]
    bin: Vec<String>,
    /// Drive the plugin that listens here instead of starting one
    #[arg(long, value_name = "PATH")]
    socket: Option<Endpoint>,
    /// Calls in flight
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16,64")]
    concurrency: Vec<std::num::NonZeroUsize>,
    /// Measured seconds of each operation at each concurrency
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Different ciphertexts to decrypt
    #[arg(long, value_name = "N", default_value = "2000")]
    pool: std::num::NonZeroUsize,
    /// Starts to take the median of
    #[arg(long, value_name = "N", default_value = "20")]
    starts: std::num::NonZeroUsize,
    /// Calls to make at least before memory is looked at again
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    calls: u64,
    /// Changes of the configuration to measure, where there is one
    #[arg(long, value_name = "N", default_value = "200")]
    reloads: std::num::NonZeroUsize,
    /// How to print the figures
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Arguments of the binary, in which {dir} is a directory of the run; it must listen on
    /// {dir}/kms.sock
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// One subject's part of the report.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    figures: Figures,
    bars: Vec<Judgement>,
}

fn main() -> ExitCode {
    let arguments = match command::arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if !(0.01..=3600.0).contains(&arguments.seconds) {
        return command::bad_usage("--seconds must lie between 0.01 and 3600");
    }
    // One thread: the client takes one core and leaves the others to the plugin.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(&arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("warning: the client is a debug build; compare no figures of it");
    }
    let scratch = Scratch::new("xbench")?;
    let mut measured = Vec::new();
    if let Some(endpoint) = &arguments.socket {
        measured.push((drive_socket(endpoint, arguments).await?, Default::default()));
    } else {
        for (number, name) in arguments.bin.iter().enumerate() {
            let dir = scratch.subdir(&number.to_string())?;
            let subject = match arguments.arguments.as_slice() {
                [] => subject::named(name, &dir)?,
                given => subject::given(name, given, &dir)?,
            };
            measured.push((measure(&subject, arguments).await?, subject.bars));
        }
    }
    print(measured, arguments.output)
}

/// Starts a subject many times, loads it, and changes the configuration of a fresh one.
async fn measure(subject: &Subject, arguments: &Arguments) -> Result<Figures> {
    let mut behind = Vec::new();
    for launch in &subject.behind {
        behind.push(Server::start(launch).await?);
    }
    let name = subject.name.as_str();
    eprintln!("{name}: {} starts", arguments.starts);
    // The first one makes the key and warms the page cache; it is not counted.
    drop(Server::start(&subject.measured).await?);
    let mut starts = Vec::new();
    for _ in 0..arguments.starts.get() {
        starts.push(Server::start(&subject.measured).await?.start_time().as_secs_f64() * 1000.0);
    }
    let server = Server::start(&subject.measured).await?;
    // Whatever it still does after it has become healthy.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let measured = target(&subject.measured, &server)?;
    let beside = match (subject.behind.first(), behind.first()) {
        (Some(launch), Some(server)) if subject.beside => Some((launch, target(launch, server)?)),
        _ => None,
    };
    let mut figures = drive(name, &measured, beside.as_ref(), arguments).await?;
    figures.binary = Binary::read(&subject.measured.program).ok();
    figures.start_ms = Spread::of(starts);
    drop(server);
    if let Some(reload) = &subject.reload {
        eprintln!("{name}: {} reloads", arguments.reloads);
        let server = Server::start(&subject.measured).await?;
        figures.reloads = Some(reload.measure(&server, arguments.reloads.get()).await?);
    }
    Ok(figures)
}

fn target(launch: &Launch, server: &Server) -> Result<Target> {
    let endpoint = launch.socket.to_string_lossy().parse()?;
    Ok(Target { endpoint, pid: Some(server.pid()), admin: server.admin() })
}

/// Loads a plugin that somebody else has started; what it costs is seen if it is one of ours
/// or runs under our user.
async fn drive_socket(endpoint: &Endpoint, arguments: &Arguments) -> Result<Figures> {
    let stream =
        endpoint.connect().await.with_context(|| format!("cannot connect to {endpoint}"))?;
    let pid = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
    drop(stream);
    let program = pid.and_then(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok());
    let target = Target { endpoint: endpoint.clone(), pid, admin: None };
    let mut figures = drive(&endpoint.to_string(), &target, None, arguments).await?;
    figures.binary = program.and_then(|path| Binary::read(&path).ok());
    Ok(figures)
}

async fn drive(
    name: &str,
    target: &Target,
    beside: Option<&(&Launch, Target)>,
    arguments: &Arguments,
) -> Result<Figures> {
    let effort = Effort {
        concurrency: arguments.concurrency.iter().map(|number| number.get()).collect(),
        pool: arguments.pool.get(),
        time: Duration::from_secs_f64(arguments.seconds),
        calls: arguments.calls,
    };
    let memory = || target.pid.and_then(|pid| Memory::of(pid).ok());
    let idle = memory();
    eprintln!("{name}: load");
    let (load, beside) = match beside {
        None => {
            let [load] = measure_load([target], &effort).await?;
            (load, None)
        }
        Some((launch, alone)) => {
            let [load, alone] = measure_load([target, alone], &effort).await?;
            (load, Some(Beside { subject: launch.name(), load: alone.cells }))
        }
    };
    Ok(Figures {
        subject: name.to_owned(),
        binary: None,
        start_ms: None,
        idle,
        loaded: memory(),
        calls: load.calls,
        load: load.cells,
        beside,
        reloads: None,
    })
}

fn print(measured: Vec<(Figures, &'static [Bar])>, output: Format) -> Result<()> {
    let reports: Vec<Report> = measured
        .into_iter()
        .map(|(figures, bars)| Report { bars: judge(bars, &figures), figures })
        .collect();
    match output {
        Format::Text => {
            for Report { figures, bars } in &reports {
                println!("{}", table(figures, bars));
            }
        }
        Format::Json => println!("{}", serde_json::to_string_pretty(&reports)?),
    }
    Ok(())
}
