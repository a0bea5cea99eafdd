//! `cargo up`: the whole product, running, with one command.
//!
//! It builds and starts the local provider and the shim before it, proves them with a round
//! trip through the shim's socket, says how to use them and stays until Ctrl-C; with a cluster,
//! or with a kube-apiserver alone, it also shows a rotation. It is for trying things out: keys lie in files of the build
//! directory. Its one invariant: nothing that it started outlives it.

mod cluster;
mod files;
mod show;
mod stack;
mod trial;
mod view;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use sidekey_e2e::binaries;
use sidekey_e2e::command::{self, Format};
use tokio::signal::unix::{SignalKind, signal};

use crate::show::Progress;
use crate::stack::{Extent, Stack};

/// Runs Sidekey here until Ctrl-C.
#[derive(Debug, Parser)]
#[command(
    name = "cargo up",
    bin_name = "cargo up",
    after_help = "Examples:\n  cargo up\n  cargo up -- --apiserver\n  cargo up -- --cluster\n  cargo up -- --once -o json\n\nExit codes: 0 ended by Ctrl-C, SIGTERM or --once, 1 something failed or died, 64 bad usage"
)]
struct Arguments {
    /// Also run a whole cluster that encrypts through Sidekey, and show a rotation to a new key:
    /// control plane, kubelet on containerd, Services, cluster DNS. Takes root. Its data goes away
    /// at the end; the first run builds and installs it, which takes some fifteen minutes
    #[arg(long, conflicts_with = "apiserver")]
    cluster: bool,
    /// The same with etcd and a kube-apiserver alone, on which no pods run. Takes no root; the
    /// first run builds both, which takes some minutes
    #[arg(long)]
    apiserver: bool,
    /// Where keys, sockets, configurations and logs lie [default: target/up]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// End after the round trip, and with a kube-apiserver after the rotation, instead of staying
    #[arg(long)]
    once: bool,
    /// How to print what is up: with json, one object when all is ready
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Arguments {
    fn extent(&self) -> Extent {
        match (self.cluster, self.apiserver) {
            (true, _) => Extent::Cluster,
            (false, true) => Extent::Apiserver,
            (false, false) => Extent::Sidekey,
        }
    }
}

fn main() -> ExitCode {
    let arguments = match command::arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    binaries::build_shipped();
    command::block_on(up(&arguments))
}

async fn up(arguments: &Arguments) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    cluster::check(arguments.extent())?;
    let dir = arguments.dir.clone().unwrap_or_else(default_directory);
    let mut stack = tokio::select! {
        started = Stack::start(&dir, arguments.extent()) => started?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    let shown = tokio::select! {
        shown = present(&mut stack, arguments) => Some(shown),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    match shown {
        None => return stack.stop().await,
        Some(shown) => shown?,
    }
    if !arguments.once {
        tokio::select! {
            died = stack.watch() => return Err(died),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        eprintln!("ending");
    }
    stack.stop().await
}

/// Says what is up and, where there is a kube-apiserver, shows a rotation.
async fn present(stack: &mut Stack, arguments: &Arguments) -> Result<()> {
    let text = arguments.output == Format::Text;
    if text {
        print!("{}", view::text(stack)?);
    }
    let rotation = match arguments.extent() {
        Extent::Sidekey => None,
        _ => Some(show::rotate(stack, &Progress::new(!text)).await?),
    };
    match text {
        false => println!("{}", view::json(stack, rotation.as_ref())?),
        true if arguments.once => {}
        true => print!("{}", view::next(stack)?),
    }
    Ok(())
}

/// In the build directory: `cargo clean` removes it, key and all.
fn default_directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.unwrap_or_else(|| Path::new(".")).join("target/up")
}
