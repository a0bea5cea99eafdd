//! The provider's own binary: its judgement of the file, and its process for the trial.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, Command};

use super::private::Place;
use super::{Outcome, Step};
use crate::Error;

/// For a judgement of the file: nothing is asked over a network.
const CHECK: Duration = Duration::from_secs(30);
/// To give back what it holds at the KMS.
const GOODBYE: Duration = Duration::from_secs(5);

/// Where the binary of a provider is.
pub fn find_binary(vendor: &str, directory: Option<&Path>) -> Result<PathBuf, Error> {
    let name = format!("sidekey-{vendor}");
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = match directory {
        Some(directory) => vec![directory.to_owned()],
        None => std::env::split_paths(&path).chain(beside).collect(),
    };
    let found = places.iter().map(|place| place.join(&name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let place =
            directory.map_or_else(|| "on $PATH".to_owned(), |dir| format!("in {}", dir.display()));
        Error::failed(format!("there is no {name} {place}"))
            .hint("give the directory of the provider's binary with --bin-dir")
    })
}

/// Has the provider judge its file.
pub(super) async fn check(binary: &Path, place: &Place) -> Result<Option<Step>, Error> {
    let name = binary.display();
    let failed = |error| Error::failed(format!("cannot run {name}")).because(error);
    let mut command = Command::new(binary);
    command.args(["check", "-o", "json", "--config"]).arg(place.config_file());
    command.current_dir(place.path()).stdin(Stdio::null()).kill_on_drop(true);
    let ran = tokio::time::timeout(CHECK, command.output()).await.map_err(|_| {
        Error::failed(format!("{name} check did not end in {}", humantime::format_duration(CHECK)))
    })?;
    let ran = ran.map_err(failed)?;
    let said: Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
    let step = |result, detail| Some(Step { check: "configuration", result, detail });
    let here = format!("{}/", place.path().display());
    Ok(match ran.status.code() {
        Some(0) => step(Outcome::Ok, "its file is sound".to_owned()),
        Some(64) => step(Outcome::Terminal, mistakes(&said).replace(&here, "/etc/sidekey/")),
        other => {
            let text = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
            return Err(Error::failed(format!("{name} check ended with {other:?}: {text}")));
        }
    })
}

/// What the provider lists, on one line.
fn mistakes(said: &Value) -> String {
    let list = said["mistakes"].as_array().into_iter().flatten();
    let lines: Vec<String> = list
        .map(|one| {
            let [path, message] = ["path", "message"].map(|name| one[name].as_str().unwrap_or(""));
            // There is one key here; whoever reads this knows which.
            let path = path.strip_prefix("keys[0].").unwrap_or(path);
            if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") }
        })
        .collect();
    if lines.is_empty() { "its file has mistakes".to_owned() } else { lines.join("; ") }
}

/// A running provider; it ends with this at the latest.
pub(super) struct Running {
    child: Child,
}

impl Running {
    pub(super) fn start(binary: &Path, place: &Place) -> Result<Self, Error> {
        let failed =
            |error| Error::failed(format!("cannot start {}", binary.display())).because(error);
        let mut log = OpenOptions::new();
        let log = log.create(true).append(true).mode(0o600).open(place.log_file());
        let log = log.map_err(failed)?;
        let mut command = Command::new(binary);
        command.arg("--config").arg(place.config_file()).current_dir(place.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        // Ctrl-C is for us: we end it.
        command.process_group(0).kill_on_drop(true);
        Ok(Self { child: command.spawn().map_err(failed)? })
    }

    /// Waits for an end that nobody has asked for.
    pub(super) async fn ended(&mut self) -> Step {
        let detail = match self.child.wait().await {
            Ok(status) => format!("the provider ended by itself: {status}"),
            Err(error) => format!("the provider is gone: {error}"),
        };
        Step { check: "start", result: Outcome::Terminal, detail }
    }

    /// Lets it end in order, or ends it.
    pub(super) async fn end(mut self) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(GOODBYE, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}
