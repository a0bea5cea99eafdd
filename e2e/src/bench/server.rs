//! A plugin in a process of its own, started with nothing between us and it.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sidekey_core::client::Connection;
use sidekey_core::proto::v2::StatusRequest;
use sidekey_core::proto::v2::key_management_service_client::KeyManagementServiceClient;

use super::subject::Launch;
use crate::sidecar::admin_address;
use crate::watchdog::Watchdog;

/// A start that takes longer has failed.
const START_LIMIT: Duration = Duration::from_secs(30);

/// One running plugin; killed when dropped.
#[derive(Debug)]
pub struct Server {
    process: Killed,
    log: PathBuf,
    start: Duration,
}

/// A child that does not outlive this.
#[derive(Debug)]
pub(super) struct Killed(pub(super) Child);

impl Server {
    /// Starts a plugin and asks for its Status without a pause until it is healthy.
    pub async fn start(launch: &Launch) -> Result<Self> {
        let log = launch.log.clone();
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(&launch.program);
        if launch.isolated {
            command.env_clear();
        }
        command.args(&launch.args).stdin(Stdio::null()).process_group(0);
        command.stdout(file.try_clone()?).stderr(file);
        let watchdog = Watchdog::of_this_process()?;
        let begin = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", launch.program.display()))?;
        let mut process = Killed(child);
        watchdog.guard(process.0.id())?;
        let outcome = wait_healthy(&mut process, launch, begin).await;
        let start = begin.elapsed();
        outcome.with_context(|| {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            format!("{} did not start; it logged:\n{text}", launch.program.display())
        })?;
        Ok(Self { process, log, start })
    }

    /// From just before the start to the first healthy Status.
    pub fn start_time(&self) -> Duration {
        self.start
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Its admin server, found by its log; `None` if it has not logged one.
    pub fn admin(&self) -> Option<SocketAddr> {
        std::fs::read_to_string(&self.log).ok()?.lines().find_map(admin_address)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // Whoever has ended already cannot be killed, which is just as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
        if let Ok(watchdog) = Watchdog::of_this_process() {
            let _ = watchdog.release(self.0.id());
        }
    }
}

async fn wait_healthy(process: &mut Killed, launch: &Launch, begin: Instant) -> Result<()> {
    loop {
        // A tight loop: every pause would be part of the figure.
        let reason = match launch.reach.connect().await {
            Ok(client) => match healthy(client).await {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            },
            Err(error) => error,
        };
        if let Some(status) = process.0.try_wait()? {
            bail!("it ended with {status}");
        }
        if begin.elapsed() > START_LIMIT {
            return Err(reason.context(format!("not healthy within {} s", START_LIMIT.as_secs())));
        }
        tokio::task::yield_now().await;
    }
}

async fn healthy(mut client: KeyManagementServiceClient<Connection>) -> Result<()> {
    let status = client.status(StatusRequest {}).await?.into_inner();
    anyhow::ensure!(status.healthz == "ok", "Status says {:?}", status.healthz);
    Ok(())
}
