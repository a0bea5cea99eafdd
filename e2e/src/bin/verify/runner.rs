//! Running steps: each with a log, a time limit and a line when it starts and ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;

use crate::leftover::{self, MARK};
use crate::outcome::{Counting, Counts, Outcome};

/// After so long without news the running steps are named.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// What a test executable started may take so long to end after it: control groups are busy for a
/// while, and scratch directories are large.
const GRACE: Duration = Duration::from_secs(90);

/// How many lines of a failed step's log are shown; the whole log stays in its file.
const SHOWN_LINES: usize = 400;

/// Something to run.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) command: Command,
    pub(crate) counting: Counting,
    /// Standard output is for us to read; otherwise it goes to the log.
    pub(crate) capture: bool,
    pub(crate) limit: Duration,
}

/// Runs steps, says what happens and remembers how each ended.
#[derive(Debug)]
pub(crate) struct Runner {
    logs: PathBuf,
    /// Marks every process of this run.
    mark: String,
    /// How long what a test started may take to end after it.
    grace: Duration,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    running: BTreeMap<String, (Instant, PathBuf)>,
    last_news: Option<Instant>,
    outcomes: Vec<Outcome>,
}

impl Runner {
    /// Logs go to `logs`, which is emptied first.
    pub(crate) fn new(logs: PathBuf) -> Result<Self> {
        if logs.exists() {
            std::fs::remove_dir_all(&logs)
                .with_context(|| format!("cannot empty {}", logs.display()))?;
        }
        std::fs::create_dir_all(&logs)
            .with_context(|| format!("cannot create {}", logs.display()))?;
        let moment = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mark = format!("{}-{}/", std::process::id(), moment.unwrap_or_default().as_nanos());
        Ok(Self { logs, mark, grace: GRACE, started: Instant::now(), state: Mutex::default() })
    }

    /// Runs a step to its end and returns its output (see [`Step::capture`]); `None` if it failed.
    pub(crate) async fn run(&self, step: Step) -> Option<String> {
        let name = step.name.clone();
        let log = self.logs.join(file_name(&name));
        let number = {
            let mut state = self.state();
            state.count += 1;
            state.running.insert(name.clone(), (Instant::now(), log.clone()));
            state.count
        };
        self.say(&format!("start   {name}"));
        let begin = Instant::now();
        let mark = format!("{}{number}/", self.mark);
        let ran = execute(step, &log, &mark, self.grace).await;
        let seconds = begin.elapsed().as_secs_f64();
        let (counts, problem, output) = match ran {
            Ok(ran) => (ran.counts, ran.problem, ran.output),
            Err(error) => {
                (Counts { passed: 0, failed: 1 }, Some(format!("{error:#}")), String::new())
            }
        };
        let good = counts.failed == 0;
        self.report_end(Outcome { step: name, counts, seconds, log, problem });
        good.then_some(output)
    }

    /// Notes a step that could not be run because what it needs has failed.
    pub(crate) fn not_run(&self, name: &str, reason: &str) {
        self.say(&format!("NOT RUN {name}: {reason}"));
    }

    /// Ends everything that still runs.
    pub(crate) async fn interrupt(&self) {
        leftover::end(&self.mark).await;
    }

    /// How every step ended, in the order in which they did.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        self.state().outcomes.clone()
    }

    /// Seconds since the beginning.
    pub(crate) fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Names the running steps whenever there was no news for a while.
    pub(crate) async fn heartbeat(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(HEARTBEAT / 6).await;
            let running = {
                let state = self.state();
                if state.last_news.is_some_and(|news| news.elapsed() < HEARTBEAT) {
                    continue;
                }
                state.running.clone()
            };
            for (name, (since, log)) in running {
                let line = last_line(&log).map(|line| format!(": {line}")).unwrap_or_default();
                self.say(&format!(
                    "running {name} for {:.0} s{line}",
                    since.elapsed().as_secs_f64()
                ));
            }
        }
    }

    /// A line of progress on standard error.
    pub(crate) fn say(&self, message: &str) {
        self.state().last_news = Some(Instant::now());
        eprintln!("[{:7.1}s] {message}", self.elapsed());
    }

    fn report_end(&self, outcome: Outcome) {
        let Outcome { step, counts, seconds, log, problem } = &outcome;
        let verdict = if counts.failed == 0 { "ok     " } else { "FAILED " };
        self.say(&format!(
            "{verdict} {step} ({} passed, {} failed, {seconds:.1} s)",
            counts.passed, counts.failed
        ));
        if counts.failed > 0 {
            let problem = problem.as_ref().map(|text| format!("{text}\n")).unwrap_or_default();
            eprintln!("----- {step}: {}\n{}{problem}-----", log.display(), tail(log));
        }
        let mut state = self.state();
        state.running.remove(step);
        state.outcomes.push(outcome);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an executed step left.
struct Ran {
    counts: Counts,
    problem: Option<String>,
    output: String,
}

async fn execute(step: Step, log: &Path, mark: &str, grace: Duration) -> Result<Ran> {
    let Step { mut command, counting, capture, limit, .. } = step;
    let output = if capture { log.with_extension("out") } else { log.to_owned() };
    command.env(MARK, mark).stdin(Stdio::null()).stdout(create(&output)?).stderr(create(log)?);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let what = command.get_program().to_string_lossy().into_owned();
    let mut child = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {what}"))?;
    let ended = tokio::time::timeout(limit, child.wait()).await;
    let mut problem = match ended {
        Ok(status) => explain(status.context("cannot wait for the process")?),
        Err(_) => {
            leftover::end(mark).await;
            Some(format!("ended by force: it took more than {} s", limit.as_secs()))
        }
    };
    if counting == Counting::Libtest {
        let left = leftover::settle(mark, grace).await;
        if !left.is_empty() {
            let names: Vec<String> = left.iter().map(ToString::to_string).collect();
            problem = Some(format!("left running: {}", names.join(", ")));
        }
    }
    let text = read(&output)?;
    Ok(Ran { counts: counting.count(&text, problem.is_none()), problem, output: text })
}

fn explain(status: ExitStatus) -> Option<String> {
    (!status.success()).then(|| format!("ended with {status}"))
}

fn create(path: &Path) -> Result<File> {
    // Appending, so that standard output and standard error may share the file.
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn tail(log: &Path) -> String {
    let text = read(log).unwrap_or_else(|error| format!("{error:#}\n"));
    let skipped = text.lines().count().saturating_sub(SHOWN_LINES);
    text.lines().skip(skipped).map(|line| format!("{line}\n")).collect()
}

fn last_line(log: &Path) -> Option<String> {
    let text = read(log).ok()?;
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(100).collect())
}

/// A step's name as a file's.
fn file_name(step: &str) -> String {
    let safe: String =
        step.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    format!("{safe}.log")
}

#[cfg(test)]
mod tests;
