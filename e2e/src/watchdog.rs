//! Nothing outlives a test: not after a failure, Ctrl-C or kill -9.
//!
//! One `sh` per harness process reads a pipe whose only writer is that process.
//! However the process ends, the kernel closes the pipe; the watchdog then
//! kills what is still registered, by pid, and removes the scratch directory
//! and the control groups that have its name: they can go only once the last
//! process in them is dead, which may be a moment later.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow};

use crate::witness;

/// Set to anything, scratch directories (logs, etcd data) stay for a look.
pub const KEEP: &str = "SIDEKEY_E2E_KEEP";

/// Lines are `+ PID` (a process group to end) and `- PID` (it has ended).
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT
pids=' '
while read -r op pid; do
  case $op in
    +) pids="$pids$pid " ;;
    -) case $pids in *" $pid "*) pids="${pids%% "$pid" *} ${pids#* "$pid" }" ;; esac ;;
  esac
done
for pid in $pids; do kill -s KILL -- "-$pid"; done
left=100
while [ "$left" -gt 0 ]; do
  groups=$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$2")
  if [ -z "$groups" ]; then break; fi
  find $groups -depth -type d -exec rmdir {} ';'
  left=$((left - 1))
  sleep 0.1
done
if [ -n "$1" ]; then rm -rf -- "$1"; fi
"#;

static WATCHDOG: OnceLock<Result<Watchdog, String>> = OnceLock::new();

/// The watchdog of this process, started on first use.
pub(crate) struct Watchdog {
    root: PathBuf,
    pipe: Mutex<ChildStdin>,
}

impl Watchdog {
    pub(crate) fn of_this_process() -> Result<&'static Self> {
        let watchdog = WATCHDOG.get_or_init(|| Self::start().map_err(|error| format!("{error:#}")));
        watchdog.as_ref().map_err(|error| anyhow!("{error}"))
    }

    fn start() -> Result<Self> {
        witness::start();
        let root = tempfile::Builder::new()
            .prefix("sidekey-e2e-")
            .tempdir()
            .context("cannot make a scratch directory; set TMPDIR to a writable one")?
            .keep();
        let doomed = match std::env::var_os(KEEP) {
            Some(_) => Path::new(""),
            None => root.as_path(),
        };
        // A process group of its own: Ctrl-C must not reach the one who cleans up.
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "sidekey-e2e-watchdog"])
            .arg(doomed)
            .arg(root.file_name().unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .context("cannot start sh, which ends the test's processes after it")?;
        let pipe = child.stdin.take().context("the watchdog has no stdin")?;
        Ok(Self { root, pipe: Mutex::new(pipe) })
    }

    /// The directory under which everything of this process lies.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// From now on this process group ends with this process.
    pub(crate) fn guard(&self, pid: u32) -> Result<()> {
        self.tell('+', pid)
    }

    /// The process group has ended: its number may soon be somebody else's.
    pub(crate) fn release(&self, pid: u32) -> Result<()> {
        self.tell('-', pid)
    }

    fn tell(&self, op: char, pid: u32) -> Result<()> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        pipe.write_all(format!("{op} {pid}\n").as_bytes())
            .context("the watchdog that ends the test's processes has died")
    }
}
