//! `cargo xbench`: measures a KMS v2 plugin as kube-apiserver meets it.
//!
//! It starts one of our binaries, or drives a socket that is there already, and prints start
//! time, memory, binary size, and latency and rate of each operation, beside the bars that
//! the project has set itself. It measures and does not judge a build: a missed bar is
//! printed, not an exit code.
//!
//! Providers of a KMS elsewhere are measured against a fake one, which this very program serves
//! in a second process.

mod measure;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;
use sidekey_core::Endpoint;
use sidekey_e2e::Scratch;
use sidekey_e2e::bench::command as command_line;
use sidekey_e2e::bench::fake::{self, FakeKind};
use sidekey_e2e::bench::{Bar, Figures, Judgement, judge, subject, table};
use sidekey_e2e::binaries;
use sidekey_e2e::command::{self, Format};
use tokio::net::TcpListener;

use measure::{drive_socket, measure};

/// Measures a KMS v2 plugin as kube-apiserver meets it.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xbench",
    bin_name = "cargo xbench",
    after_help = "Without --bin, everything that is known here is measured: sidekey-local, sidekey-shim and sidekey-proxy before it,\nsidekey-aws and sidekey-vault against a fast fake AWS KMS and a fast fake Vault that this command\nserves itself (no real KMS is measured; one fake AWS KMS takes 5 ms, as a real one does), and sidekey-shim+aws: the shim before sidekey-aws; the start of the\nsidekey command, and \"sidekey census\" of a real etcd.\n\nOnly by its name, because it takes some minutes: \"sidekey migrate\" on a real control plane, in turns with\nkubectl get secrets -A -o json | kubectl replace -f - on 3,000 Secrets, and then alone on all --objects.\n\nExamples:\n  cargo xbench\n  cargo xbench --bin sidekey-aws\n  cargo xbench --bin sidekey-shim -o json\n  cargo xbench --bin \"sidekey migrate\"\n  cargo xbench --socket /var/run/kmsplugin/kms.sock\n  cargo xbench --bin ./my-plugin -- --listen unix://{dir}/kms.sock\n\nExit codes: 0 measured, 1 failed, 64 bad usage"
)]
struct Arguments {
    /// Binary to start and to measure, by name or path; may be repeated, to compare [default: all]
    #[arg(long, value_name = "NAME", conflicts_with = "socket")]
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
    /// Objects that a census counts and a migration rewrites
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    objects: u64,
    /// How to print the figures
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Be a fake KMS, say where, and nothing else
    #[arg(long, value_name = "KIND", hide = true)]
    serve_fake: Option<FakeKind>,
    /// Arguments of the binary, in which {dir} is a directory of the run; it must listen on
    /// {dir}/kms.sock
    #[arg(last = true, requires = "bin")]
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
    binaries::build_shipped();
    if !(0.01..=3600.0).contains(&arguments.seconds) {
        return command::bad_usage("--seconds must lie between 0.01 and 3600");
    }
    // One thread: the client takes one core and leaves the others to the plugin.
    command::block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Result<()> {
    if let Some(kind) = arguments.serve_fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen")?;
        println!("{}", listener.local_addr()?);
        return fake::serve(kind, listener).await;
    }
    if cfg!(debug_assertions) {
        eprintln!("warning: the client is a debug build; compare no figures of it");
    }
    let scratch = Scratch::new("xbench")?;
    let mut measured = Vec::new();
    if let Some(endpoint) = &arguments.socket {
        measured.push((drive_socket(endpoint, arguments).await?, Default::default()));
    } else {
        let names: Vec<&str> = match arguments.bin.as_slice() {
            [] => subject::names().chain([command_line::PROGRAM, command_line::CENSUS]).collect(),
            given => given.iter().map(String::as_str).collect(),
        };
        for (number, name) in names.into_iter().enumerate() {
            let dir = scratch.subdir(&number.to_string())?;
            if arguments.arguments.is_empty()
                && let (starts, objects) = (arguments.starts.get(), arguments.objects)
                && let Some(found) = command_line::measure(name, &dir, starts, objects).await?
            {
                measured.push(found);
                continue;
            }
            let subject = match arguments.arguments.as_slice() {
                [] => subject::named(name, &dir)?,
                given => subject::given(name, given, &dir)?,
            };
            measured.push((measure(&subject, arguments).await?, subject.bars));
        }
    }
    print(measured, arguments.output)
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
