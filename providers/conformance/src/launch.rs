//! Starts a provider's real binary for its tests, and ends it with them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sidekey_core::Endpoint;
use tokio::time::{Instant, sleep};

use crate::session::Session;
use crate::trial::POLL;
use crate::{Hook, Plugin};

/// How long a plugin may take from its start to a healthy Status.
const START: Duration = Duration::from_secs(30);

/// How long one look at Status may take while waiting.
const LOOK: Duration = Duration::from_secs(3);

/// How much of the log an error shows.
const TAIL: usize = 4096;

/// A directory with binaries as they are shipped, the same for all tests.
const BIN_DIR: &str = "SIDEKEY_BIN_DIR";

/// A plugin's process: started, waited for, restarted at will, killed with its last handle.
#[derive(Clone, Debug)]
pub struct Launched {
    process: Arc<Process>,
}

/// Why a plugin did not come up.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no such program, or it may not be run.
    #[error("cannot start {command}")]
    Spawn {
        /// The command line.
        command: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It ended before it was healthy.
    #[error("{command} ended with {status} before it was healthy; its output:\n{log}")]
    Ended {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it wrote.
        log: String,
    },
    /// It runs, but is not healthy.
    #[error("{command} is not healthy: {reason}; its output:\n{log}")]
    Unhealthy {
        /// The command line.
        command: String,
        /// What Status said last.
        reason: String,
        /// The end of what it wrote.
        log: String,
    },
}

#[derive(Debug)]
struct Process {
    endpoint: Endpoint,
    running: Mutex<Running>,
    log: File,
}

#[derive(Debug)]
struct Running {
    command: Command,
    child: Child,
}

impl Launched {
    /// Starts `command` and waits until the plugin at `endpoint` is healthy.
    ///
    /// What it writes goes to a file without a name; [`log`](Self::log) reads it.
    pub async fn start(mut command: Command, endpoint: Endpoint) -> Result<Self, LaunchError> {
        let started = tempfile::tempfile().and_then(|log| Ok((spawn(&mut command, &log)?, log)));
        let (child, log) = started
            .map_err(|source| LaunchError::Spawn { command: format!("{command:?}"), source })?;
        let running = Mutex::new(Running { command, child });
        let process = Arc::new(Process { endpoint, running, log });
        process.healthy().await?;
        Ok(Self { process })
    }

    /// Kills it with signal 9, starts it again and waits until it is healthy.
    pub async fn restart(&self) -> Result<(), LaunchError> {
        self.process.respawn()?;
        self.process.healthy().await
    }

    /// The plugin, with the restart hook in place.
    pub fn plugin(&self) -> Plugin {
        let launched = self.clone();
        let restart = Hook::new(move || {
            let launched = launched.clone();
            async move { launched.process.respawn() }
        });
        Plugin::new(self.process.endpoint.clone()).with_restart(restart)
    }

    /// The process id of the moment.
    pub fn pid(&self) -> u32 {
        self.process.running().child.id()
    }

    /// All that it has written to stdout and stderr since the first start.
    pub fn log(&self) -> String {
        self.process.log(usize::MAX)
    }
}

impl Process {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn respawn(&self) -> Result<(), LaunchError> {
        let running = &mut *self.running();
        let restarted =
            kill(&mut running.child).and_then(|()| spawn(&mut running.command, &self.log));
        running.child = restarted.map_err(|source| LaunchError::Spawn {
            command: format!("{:?}", running.command),
            source,
        })?;
        Ok(())
    }

    async fn healthy(&self) -> Result<(), LaunchError> {
        let mut waiting = std::pin::pin!(wait_until_healthy(&self.endpoint, START));
        loop {
            // An early end must not cost the whole deadline.
            let ended = tokio::time::timeout(POLL, waiting.as_mut()).await;
            let command = format!("{:?}", self.running().command);
            match ended {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(reason)) => {
                    return Err(LaunchError::Unhealthy { command, reason, log: self.log(TAIL) });
                }
                Err(_) => {}
            }
            if let Ok(Some(status)) = self.running().child.try_wait() {
                return Err(LaunchError::Ended { command, status, log: self.log(TAIL) });
            }
        }
    }

    fn log(&self, most: usize) -> String {
        let len = self.log.metadata().map_or(0, |file| file.len() as usize);
        let mut bytes = vec![0; len.min(most)];
        let start = len - bytes.len();
        match self.log.read_exact_at(&mut bytes, start as u64) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => format!("(the log cannot be read: {error})"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nothing is left to do where even this fails.
        let _ = kill(&mut running.child);
    }
}

fn spawn(command: &mut Command, log: &File) -> std::io::Result<Child> {
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).spawn()
}

/// Signal 9, to this process alone, and its end awaited.
fn kill(child: &mut Child) -> std::io::Result<()> {
    child.kill()?;
    child.wait().map(drop)
}

/// The program for a test to judge: the one of this name in `$SIDEKEY_BIN_DIR` if that is set, so
/// that what is shipped can be put through the same suite, else `built`, which cargo has made for
/// the test.
pub fn program(built: impl AsRef<Path>) -> PathBuf {
    choose(std::env::var_os(BIN_DIR).map(PathBuf::from), built.as_ref())
}

fn choose(shipped: Option<PathBuf>, built: &Path) -> PathBuf {
    match (shipped, built.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => built.to_owned(),
    }
}

/// Waits until the plugin answers Status with "ok"; the error says what it answered last.
pub async fn wait_until_healthy(endpoint: &Endpoint, deadline: Duration) -> Result<(), String> {
    answers_again(endpoint, true, deadline).await
}

/// Waits until Status answers and, where `healthy` is asked for, says "ok".
pub(crate) async fn answers_again(
    endpoint: &Endpoint,
    healthy: bool,
    deadline: Duration,
) -> Result<(), String> {
    let end = Instant::now() + deadline;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let reason = match look(endpoint, left.clamp(POLL, LOOK)).await {
            Ok(healthz) if !healthy || healthz == "ok" => return Ok(()),
            Ok(healthz) => format!("Status says {healthz:?}"),
            Err(fault) => fault,
        };
        if Instant::now() >= end {
            return Err(format!("not healthy within {deadline:?}: {reason}"));
        }
        sleep(POLL).await;
    }
}

async fn look(endpoint: &Endpoint, deadline: Duration) -> Result<String, String> {
    let session = Session::open(endpoint, deadline).await.map_err(|fault| fault.to_string())?;
    session.status().await.map(|status| status.healthz).map_err(|fault| fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_program_goes_before_the_one_that_cargo_built() {
        let built = Path::new("/target/debug/sidekey-aws");
        assert_eq!(choose(None, built), built);
        assert_eq!(choose(Some("/bin".into()), built), Path::new("/bin/sidekey-aws"));
    }
}
