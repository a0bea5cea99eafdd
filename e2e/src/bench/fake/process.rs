//! A fake in a process of its own, so that its CPU time is nobody else's.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::FakeKind;
use crate::bench::server::Killed;
use crate::watchdog::Watchdog;

/// The hidden flag of `cargo xbench` that makes it a fake.
const SERVE: &str = "--serve-fake";

/// One running fake; killed when dropped.
#[derive(Debug)]
pub struct Fake {
    process: Killed,
    address: SocketAddr,
}

impl Fake {
    /// Starts this very program as a fake. It says on standard output where it listens.
    pub fn start(kind: FakeKind) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program itself")?;
        let watchdog = Watchdog::of_this_process()?;
        let child = Command::new(program)
            .args([SERVE, kind.name()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut process = Killed(child.context("cannot start the fake endpoint")?);
        watchdog.guard(process.0.id())?;
        let output = process.0.stdout.take().context("the fake has no stdout")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("cannot read from the fake")?;
        let address = line.trim().parse();
        let address = address.with_context(|| format!("the fake says {line:?}, no address"))?;
        Ok(Self { process, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }
}
