//! Running steps: each with a log, a time limit and a line when it starts and ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use sidekey_verify::WITNESS;
use tokio::time::Instant;

use crate::leftover::{self, MARK};
use crate::outcome::{Counting, Counts, Outcome};
use crate::{usage, verdict};

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
    /// Where the summary goes, and the logs below it.
    place: PathBuf,
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
    /// Steps that have not begun yet.
    planned: Vec<String>,
    running: BTreeMap<String, (Instant, PathBuf)>,
    last_news: Option<Instant>,
    outcomes: Vec<Outcome>,
    /// How often each log's name was taken.
    logs: BTreeMap<String, usize>,
}

impl Runner {
    /// Logs go to a folder of `place`, which is emptied first.
    pub(crate) fn new(place: PathBuf) -> Result<Self> {
        let logs = place.join("logs");
        if logs.exists() {
            std::fs::remove_dir_all(&logs)
                .with_context(|| format!("cannot empty {}", logs.display()))?;
        }
        std::fs::create_dir_all(&logs)
            .with_context(|| format!("cannot create {}", logs.display()))?;
        let moment = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mark = format!("{}-{}/", std::process::id(), moment.unwrap_or_default().as_nanos());
        let (started, state) = (Instant::now(), Mutex::default());
        Ok(Self { place, logs, mark, grace: GRACE, started, state })
    }

    /// Runs a step to its end and returns its output (see [`Step::capture`]); `None` if it failed.
    pub(crate) async fn run(&self, step: Step) -> Option<String> {
        let name = step.name.clone();
        let (number, log) = {
            let mut state = self.state();
            state.count += 1;
            let log = self.logs.join(state.log_name(&name));
            state.running.insert(name.clone(), (Instant::now(), log.clone()));
            (state.count, log)
        };
        self.say(&format!("start   {name}"));
        let begin = Instant::now();
        let mark = format!("{}{number}/", self.mark);
        let ran = execute(step, &log, &mark, self.grace).await.unwrap_or_else(|error| Ran {
            counts: Counts { passed: 0, failed: 1 },
            problem: Some(format!("{error:#}")),
            ..Ran::default()
        });
        let Ran { counts, problem, output, core_seconds, late_ms } = ran;
        let seconds = begin.elapsed().as_secs_f64();
        let failed_in = match counts.failed {
            0 => Vec::new(),
            _ => verdict::places(&read(&log).unwrap_or_default(), repository()),
        };
        let step = name;
        let ended = Outcome {
            step,
            counts,
            seconds,
            core_seconds,
            late_ms,
            log,
            problem,
            failed_in,
            flaky: false,
        };
        self.report_end(ended);
        (counts.failed == 0).then_some(output)
    }

    /// Names what is going to run: what never does has not passed.
    pub(crate) fn plan(&self, names: impl Iterator<Item = String>) {
        self.state().planned.extend(names);
    }

    /// Planned steps that have not ended.
    pub(crate) fn not_ended(&self) -> Vec<String> {
        let state = self.state();
        let ended = |name: &String| state.outcomes.iter().any(|outcome| outcome.step == *name);
        state.planned.iter().filter(|name| !ended(name)).cloned().collect()
    }

    /// Whether nothing has run.
    pub(crate) fn is_empty(&self) -> bool {
        self.state().outcomes.is_empty()
    }

    /// Takes a step out of the summary.
    pub(crate) fn forget(&self, name: &str) {
        self.state().outcomes.retain(|outcome| outcome.step != name);
    }

    /// Notes that a step which seemed good was not.
    pub(crate) fn failed(&self, name: &str, problem: &str) {
        self.say(&format!("FAILED  {name}: {problem}"));
        let mut state = self.state();
        for outcome in state.outcomes.iter_mut().filter(|outcome| outcome.step == name) {
            outcome.counts = Counts { passed: 0, failed: 1 };
            outcome.problem = Some(problem.to_owned());
        }
    }

    /// The failed step, if it is the only one.
    pub(crate) fn only_failure(&self) -> Option<Outcome> {
        let state = self.state();
        let mut failed = state.outcomes.iter().filter(|outcome| outcome.counts.failed > 0);
        failed.next().filter(|_| failed.next().is_none()).cloned()
    }

    /// Counts a failed step as passed if its one test has passed in its second run, in the open: it
    /// is marked in every summary, and the log of the run that passed is shown as the other was.
    pub(crate) fn forgive(&self, name: &str, again: &str) {
        let second = self.outcomes().into_iter().find(|outcome| outcome.step == again);
        let Some(second) = second.filter(|ran| ran.counts == Counts { passed: 1, failed: 0 })
        else {
            return;
        };
        eprintln!("{}", shown(&second));
        let mut state = self.state();
        let is_failed = |outcome: &&mut Outcome| outcome.step == name && outcome.counts.failed > 0;
        for outcome in state.outcomes.iter_mut().filter(is_failed) {
            let Counts { passed, failed } = outcome.counts;
            outcome.counts = Counts { passed: passed + failed, failed: 0 };
            outcome.flaky = true;
        }
        // The second run is the same test.
        for outcome in state.outcomes.iter_mut().filter(|outcome| outcome.step == again) {
            outcome.counts = Counts::default();
        }
    }

    /// Notes a step that could not be run because what it needs has failed.
    pub(crate) fn not_run(&self, name: &str, reason: &str) {
        self.say(&format!("NOT RUN {name}: {reason}"));
    }

    /// Ends everything that still runs: it has failed, for this reason.
    pub(crate) async fn interrupt(&self, reason: &str) {
        leftover::end(&self.mark).await;
        let running = std::mem::take(&mut self.state().running);
        for (step, (since, log)) in running {
            let counts = Counts { passed: 0, failed: 1 };
            let seconds = since.elapsed().as_secs_f64();
            let problem = Some(format!("ended by force: {reason}"));
            self.report_end(Outcome { step, counts, seconds, log, problem, ..Outcome::default() });
        }
    }

    /// Where the summary of a run is kept.
    pub(crate) fn place(&self) -> &Path {
        &self.place
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
        let Outcome { step, counts, seconds, .. } = &outcome;
        let verdict = if counts.failed == 0 { "ok     " } else { "FAILED " };
        self.say(&format!(
            "{verdict} {step} ({} passed, {} failed, {seconds:.1} s)",
            counts.passed, counts.failed
        ));
        if counts.failed > 0 {
            eprintln!("{}", shown(&outcome));
        }
        let mut state = self.state();
        state.running.remove(step);
        state.outcomes.push(outcome);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A log has one run in it: a verdict must not be of an earlier one.
    fn log_name(&mut self, step: &str) -> String {
        let name = file_name(step);
        let run = self.logs.entry(name.clone()).or_default();
        *run += 1;
        if *run == 1 { format!("{name}.log") } else { format!("{name}.{run}.log") }
    }
}

/// What an executed step left.
#[derive(Default)]
struct Ran {
    counts: Counts,
    problem: Option<String>,
    output: String,
    core_seconds: f64,
    late_ms: u64,
}

async fn execute(step: Step, log: &Path, mark: &str, grace: Duration) -> Result<Ran> {
    let Step { mut command, counting, capture, limit, .. } = step;
    let output = if capture { log.with_extension("out") } else { log.to_owned() };
    let witness = log.with_extension("late");
    command.env(MARK, mark).env(WITNESS, &witness).stdin(Stdio::null());
    command.stdout(create(&output)?).stderr(create(log)?);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let what = command.get_program().to_string_lossy().into_owned();
    let mut child = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {what}"))?;
    let pid = child.id().unwrap_or_default();
    let mut used = tokio::task::spawn_blocking(move || usage::of_ended(pid));
    let (used, in_time) = match tokio::time::timeout(limit, &mut used).await {
        Ok(used) => (used, true),
        Err(_) => {
            leftover::end(mark).await;
            (used.await, false)
        }
    };
    let status = child.wait().await.context("cannot wait for the process")?;
    let mut problem = match in_time {
        true => explain(status),
        false => Some(format!("ended by force: it took more than {} s", limit.as_secs())),
    };
    if counting == Counting::Libtest {
        let left = leftover::settle(mark, grace).await;
        if !left.is_empty() {
            let names: Vec<String> = left.iter().map(ToString::to_string).collect();
            problem = Some(format!("left running: {}", names.join(", ")));
        }
    }
    let text = read(&output)?;
    let late = std::fs::read_to_string(witness).unwrap_or_default();
    Ok(Ran {
        counts: counting.count(&text, problem.is_none()),
        problem,
        output: text,
        core_seconds: used.unwrap_or_default(),
        late_ms: late.trim().parse().unwrap_or_default(),
    })
}

/// The top of the repository, from which paths in panics are told.
fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
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

/// The log of a step that has ended, ready to be printed, and what is to be said of it.
fn shown(outcome: &Outcome) -> String {
    let Outcome { step, log, problem, failed_in, .. } = outcome;
    let mut notes: Vec<String> =
        failed_in.iter().map(|place| format!("failed in: {place}")).collect();
    notes.extend(problem.clone());
    format!("----- {step}: {}\n{}{}\n-----", log.display(), tail(log), notes.join("\n"))
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

/// A step's name as a file's, without its end.
fn file_name(step: &str) -> String {
    step.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests;
