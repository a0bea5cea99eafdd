//! Processes under test: started, hurt and ended by pid, never by name.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use sidekey_verify::{CRASHED, QUOTED, UNQUOTED};

use crate::wait::{Pace, eventually};
use crate::watchdog::Watchdog;

/// How many of a log's last lines go into an error.
const TAIL_LINES: usize = 30;

/// How the names of our own programs begin.
const OURS: &str = "sidekey";

/// What the standard library says of a panic.
const PANICKED: &str = "panicked at ";

/// The child becomes the program only when told to: by then the watchdog knows
/// its pid, so there is no moment in which it could be left behind.
const LAUNCH: &str = r#"read -r go && exec "$@" </dev/null"#;

/// What to start: kept, so that a restart uses the very same arguments.
#[derive(Clone, Debug)]
pub struct Spec {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    env_clear: bool,
    log: PathBuf,
}

impl Spec {
    /// `name` is for messages; stdout and stderr are appended to `log`.
    pub fn new(
        name: impl Into<String>,
        program: impl Into<PathBuf>,
        log: impl Into<PathBuf>,
    ) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            env_clear: false,
            log: log.into(),
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable on top of the inherited environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Lets it inherit no variables, so that it has those of [`env`](Self::env) alone.
    pub fn env_clear(mut self) -> Self {
        self.env_clear = true;
        self
    }

    /// Starts it in a process group of its own.
    pub fn start(self) -> Result<Process> {
        let mut process = Process {
            spec: self,
            child: None,
            status: ExitStatus::default(),
            log_start: 0,
            signalled: false,
        };
        process.start()?;
        Ok(process)
    }
}

/// A started process, killed with everything it forked when this is dropped.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    child: Option<Child>,
    /// How it ended last, while there is no child.
    status: ExitStatus,
    log_start: u64,
    /// Whether we have sent it a signal that may end it.
    signalled: bool,
}

impl Process {
    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its pid while it has not been seen to end.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The arguments of the next start, to be changed before a restart.
    pub fn spec_mut(&mut self) -> &mut Spec {
        &mut self.spec
    }

    /// Starts it again after it was killed, terminated or ended by itself.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.ended()?.is_some(), "{} runs already", self.name());
        let spec = &self.spec;
        ensure!(
            spec.program.components().count() == 1 || spec.program.is_file(),
            "cannot start {}: there is no {}",
            spec.name,
            spec.program.display()
        );
        let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
        let log = open(&spec.log).with_context(|| format!("cannot open {}", spec.log.display()))?;
        self.log_start = log.metadata()?.len();
        let watchdog = Watchdog::of_this_process()?;
        let mut command = Command::new("sh");
        if spec.env_clear {
            command.env_clear();
        }
        let mut child = command
            .args(["-c", LAUNCH, "launch"])
            .arg(&spec.program)
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", spec.name))?;
        watchdog.guard(child.id())?;
        let gate = child.stdin.take();
        self.child = Some(child);
        self.signalled = false;
        let mut gate = gate.context("the child has no stdin")?;
        gate.write_all(b"go\n").with_context(|| format!("cannot launch {}", self.spec.name))
    }

    /// Kills it with SIGKILL and starts it again with the same arguments.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.start()
    }

    /// kill -9: no chance to close connections or to remove sockets.
    pub fn kill(&mut self) -> Result<()> {
        self.tell_of_a_crash();
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = child.id();
        let killed = signal_group(pid, Signal::KILL);
        self.status = child.wait().with_context(|| format!("cannot wait for {}", self.name()))?;
        Watchdog::of_this_process()?.release(pid)?;
        killed.with_context(|| format!("cannot kill {}", self.name()))
    }

    /// SIGSTOP: it is there, its sockets are open, and it answers nothing.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT: the end of a pause.
    pub fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM, and its exit status; an error if it is still there at the limit.
    pub async fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let what = format!("{} ends after SIGTERM", self.name());
        let ended = eventually(what, limit, async || self.ended()?.context("it still runs")).await;
        ended.map_err(|error| anyhow!("{error:#}\n{}", self.log_tail()))
    }

    /// Sends any signal.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.check_running()?;
        let pid = self.pid().context("not running")?;
        self.signalled |= ![Signal::STOP, Signal::CONT].contains(&signal);
        signal_group(pid, signal).with_context(|| format!("cannot signal {}", self.name()))
    }

    /// Its exit status if it has ended, `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.tell_of_a_crash();
        let Some(child) = &mut self.child else {
            return Ok(Some(self.status));
        };
        let status = child.try_wait().context("cannot wait for a child")?;
        if let Some(status) = status {
            self.status = status;
            Watchdog::of_this_process()?.release(child.id())?;
            self.child = None;
        }
        Ok(status)
    }

    /// Says so if it is a program of ours and a signal has ended it that we have not sent; that
    /// it has ended is left for others to see.
    fn tell_of_a_crash(&mut self) {
        let Some(pid) = self.pid().filter(|_| !self.signalled && self.is_ours()) else { return };
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(ended)) = waitid(WaitId::Pid(pid), look)
            && let Some(signal) = ended.terminating_signal()
        {
            self.signalled = true;
            eprintln!("{CRASHED}{} was ended by signal {signal}", self.name());
        }
    }

    fn is_ours(&self) -> bool {
        let name = self.spec.program.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(OURS)
    }

    /// An error with the end of its log if it does not run any more.
    pub fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} does not run ({status})\n{}", self.name(), self.log_tail());
        }
        Ok(())
    }

    /// Waits until `probe` is happy; fails at once when the process ends, and
    /// at the limit, both times with the last lines of its log.
    pub async fn wait_until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut probe: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let what = format!("{}: {what}", self.name());
        let mut pace = Pace::new(limit);
        loop {
            self.check_running().with_context(|| what.clone())?;
            let reason = match probe().await {
                Ok(value) => return Ok(value),
                Err(reason) => reason,
            };
            pace.next(&what, reason).await.map_err(|e| anyhow!("{e:#}\n{}", self.log_tail()))?;
        }
    }

    /// Waits for a line of its log since the last start.
    pub async fn wait_for_log<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let (path, start) = (self.spec.log.clone(), self.log_start);
        self.wait_until(what, limit, async || {
            let text = read_from(&path, start)?;
            text.lines().find_map(&mut find).context("no such line in the log")
        })
        .await
    }

    /// Its log since the last start.
    pub fn log(&self) -> Result<String> {
        read_from(&self.spec.log, self.log_start)
    }

    /// The last lines of its log, ready to be shown.
    pub fn log_tail(&self) -> String {
        let text = read_from(&self.spec.log, 0).unwrap_or_else(|error| format!("{error:#}"));
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ");
        let (name, path) = (self.name(), self.spec.log.display());
        format!("{QUOTED}{name}, {path}:\n    {tail}\n{UNQUOTED}")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
            // However long ago: what is quoted may begin after it.
            if self.is_ours() {
                tell_of_panics(self.name(), &read_from(&self.spec.log, 0).unwrap_or_default());
            }
        }
        if let Err(error) = self.kill() {
            eprintln!("{error:#}");
        }
    }
}

/// Says so if a program of ours has panicked, as its whole log tells.
pub(crate) fn tell_of_panics(name: &str, log: &str) {
    for line in log.lines().filter(|line| line.contains(PANICKED)) {
        eprintln!("{CRASHED}{name}: {line}");
    }
}

fn signal_group(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such pid")?;
    kill_process_group(pid, signal).map_err(Into::into)
}

fn read_from(path: &Path, start: u64) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
