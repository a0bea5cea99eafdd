//! The stages of a run: checks, one build, what comes from outside, tests.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use sidekey_verify::{BIN_DIR, FUZZ, IMAGE_DIR, link_dynamically};

use crate::outcome::{Counting, Outcome};
use crate::runner::{Runner, Step};
use crate::schedule::{self, Job, Takes};
use crate::suite::{self, Executable, Test};
use crate::variants::oldest_step;
use crate::verdict;
use crate::workspace::{Workspace, cargo, nice};

const FORMAT: &str = "rustfmt";
const LINT: &str = "clippy";
const BUILD: &str = "build";
const PREPARE: &str = "prepare";

/// The harness's own program that fetches and builds what tests need.
const PREPARER: &str = "prepare";

/// A build that takes longer hangs.
const BUILD_LIMIT: Duration = Duration::from_secs(45 * 60);

/// The same for what is fetched and built before the first test. With empty caches that is more
/// than any other build; how long the rest of the run may take then, its deadline says.
const PREPARE_LIMIT: Duration = Duration::from_secs(70 * 60);

/// A test that takes longer hangs.
pub(crate) const TEST_LIMIT: Duration = Duration::from_secs(25 * 60);

/// The same for tests that share a process.
const GROUP_LIMIT: Duration = Duration::from_secs(45 * 60);

/// For how long each test of a parser makes up input with `--all`.
const FUZZ_SECONDS: &str = "30";

/// CPU time that a provider's own tests may take in the first tier: with nine of them, more would
/// crowd out what all of them share.
const PROVIDER_CORE_SECONDS: f64 = 60.0;

/// Everything that a run needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Stages<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) runner: &'a Runner,
    /// Whether release builds and full sizes are wanted too.
    pub(crate) all: bool,
    /// What must be in a step's name, or else in a test's.
    pub(crate) only: Option<&'a str>,
    /// How often each test runs.
    pub(crate) times: usize,
    /// How much runs at once; see [`schedule`].
    pub(crate) capacity: usize,
}

/// What the build made.
struct Built {
    executables: Vec<Executable>,
    /// The program that prepares, and beside it all binaries.
    preparer: PathBuf,
}

impl Stages<'_> {
    /// Runs everything that is chosen.
    pub(crate) async fn run(self) {
        // What is shipped is linked on one core for most of the time, in a directory of its own:
        // checks and tests are built beside it, where it is known that it will be needed.
        let (built, released) = match self.all && self.only.is_none() {
            true => {
                let (built, released) = tokio::join!(self.check_and_build(), self.release());
                (built, Some(released))
            }
            false => (self.check_and_build().await, None),
        };
        let Some(built) = built else { return };
        let tests = match self.tests(&built.executables) {
            Ok(tests) => tests,
            Err(error) => return self.runner.failed(BUILD, &format!("{error:#}")),
        };
        if tests.is_empty() {
            if !self.fips(&built.executables).await {
                self.runner.forget(BUILD);
            }
            return;
        }
        self.runner.plan(tests.iter().map(|test| test.name.clone()));
        let released = match released {
            Some(released) => released,
            None if self.all => self.release().await,
            None => Some(None),
        };
        let proofs = async {
            self.prove(&tests, &built.preparer, released).await;
            self.fips(&built.executables).await;
        };
        match self.only {
            // Nobody waits for its answer.
            None => drop(tokio::join!(proofs, self.lint())),
            Some(_) => proofs.await,
        }
        if !self.all && self.times == 1 {
            self.check_costs();
        }
        self.second_chance(&tests).await;
    }

    /// Runs the tests. Those that need what is prepared wait for it, others run beside it.
    /// `released` says where the release binaries are, if there are any and all were built.
    async fn prove(self, tests: &[Test], preparer: &Path, released: Option<Option<PathBuf>>) {
        let needs_more = tests.iter().any(|test| test.needs_servers);
        let ready = Cell::new(None);
        let prepare = Box::pin(async {
            ready.set(Some(match released {
                Some(directory) if needs_more => self.prepare(preparer, directory.as_deref()).await,
                other => other.is_some(),
            }));
        });
        // The first of the heaviest, so that it begins before all others.
        let takes = Takes::Managed;
        let mut first =
            Some(Job { takes, is_long: true, may_begin: Box::new(|| true), work: prepare });
        for _ in 0..self.times {
            self.run_tests(tests, &ready, first.take()).await;
        }
    }

    /// Nothing, if checks were all that was asked for, or the build failed.
    async fn check_and_build(self) -> Option<Built> {
        self.checks().await;
        if self.only.is_some() && !self.runner.is_empty() {
            return None;
        }
        self.build().await
    }

    /// The names of all steps that are chosen; the tests are built for that.
    pub(crate) async fn list(self) -> Result<Vec<String>> {
        let mut names = vec![FORMAT.to_owned(), LINT.to_owned(), BUILD.to_owned()];
        if self.all {
            names.extend(self.workspace.libraries().map(|member| alone_step(&member.name)));
            names.push(oldest_step(&self.workspace.rust_version));
            names.extend(self.workspace.products().map(|member| release_step(&member.name)));
        }
        names.push(PREPARE.to_owned());
        names.retain(|name| self.chosen(name));
        let built = self.build().await.context("the tests could not be built, see above")?;
        for executable in &built.executables {
            let tests = executable.tests(self.all, |name| self.chosen(name))?;
            names.extend(tests.into_iter().map(|test| test.name));
        }
        names.extend(self.fips_suites(&built.executables).into_iter().map(|test| test.name));
        Ok(names)
    }

    pub(crate) fn chosen(&self, name: &str) -> bool {
        self.only.is_none_or(|part| name.contains(part))
    }

    /// Formatting, lints if they alone are asked for, and with `--all` each crate alone: a build of the workspace unifies
    /// features, and so hides a missing one.
    async fn checks(self) {
        if self.chosen(FORMAT) {
            let mut command = cargo();
            command.args(["fmt", "--all", "--", "--check"]);
            self.with_component("fmt", "rustfmt").await;
            self.step(FORMAT, command, false).await;
        }
        if self.only.is_some() && self.chosen(LINT) {
            self.lint().await;
        }
        for member in self.workspace.libraries().filter(|_| self.all) {
            let name = alone_step(&member.name);
            if self.chosen(&name) {
                let mut command = cargo();
                command.args(["check", "--locked", "--package", &member.name]);
                self.step(&name, command, false).await;
            }
        }
        if self.all {
            self.oldest_rust().await;
        }
    }

    /// Has what time the tests leave.
    async fn lint(self) {
        let mut command = cargo();
        command.args(["clippy", "--locked", "--workspace", "--all-targets"]);
        command.args(["--", "-D", "warnings"]);
        self.with_component("clippy", "clippy").await;
        self.step(LINT, nice(&command), false).await;
    }

    /// Installs a part of the toolchain where it is missing and rustup can help.
    async fn with_component(self, subcommand: &str, component: &str) {
        let present =
            tokio::process::Command::from(cargo()).args([subcommand, "--version"]).output();
        if present.await.is_ok_and(|output| output.status.success()) {
            return;
        }
        let mut command = Command::new("rustup");
        command.args(["component", "add", component]);
        self.step(&format!("install {component}"), command, false).await;
    }

    /// Every binary and every test, in one profile and with one set of features.
    async fn build(self) -> Option<Built> {
        let mut command = cargo();
        command.args(["build", "--locked", "--workspace", "--all-targets"]);
        command.arg("--message-format=json-render-diagnostics");
        let output = self.step(BUILD, command, true).await?;
        let mut built = Built { executables: Vec::new(), preparer: PathBuf::new() };
        for artifact in artifacts(&output) {
            let Artifact { manifest_path, target, profile, executable } = artifact;
            let (Some(path), Some(member)) = (executable, self.workspace.member(&manifest_path))
            else {
                continue;
            };
            let kind = target.kind.first().map_or("lib", String::as_str);
            if !profile.test {
                if target.name == PREPARER {
                    built.preparer = path;
                }
                continue;
            }
            let folder = member.folder().to_owned();
            let path = self.keep(&path, "tests").unwrap_or(path);
            let root = &self.workspace.root;
            built.executables.push(Executable {
                is_end_to_end: suite::is_end_to_end(&folder, root, kind, &target.name),
                // What a crate tests within itself starts nothing.
                needs_servers: member.needs_servers() && kind == "test",
                package: member.name.clone(),
                target: suite::target_name(kind, &target.name, &member.name),
                path,
                folder,
            });
        }
        built.executables.sort_by(|a, b| (&a.package, &a.target).cmp(&(&b.package, &b.target)));
        Some(built)
    }

    /// Another name for an executable, under which it stays as it is while somebody builds again.
    pub(crate) fn keep(&self, path: &Path, folder: &str) -> Option<PathBuf> {
        let place = self.runner.place().join(folder);
        std::fs::create_dir_all(&place).ok()?;
        let kept = place.join(path.file_name()?);
        // Of the run before.
        let _ = std::fs::remove_file(&kept);
        std::fs::hard_link(path, &kept).ok().map(|()| kept)
    }

    fn tests(&self, executables: &[Executable]) -> Result<Vec<Test>> {
        let mut tests = Vec::new();
        for executable in executables {
            tests.extend(executable.tests(self.all, |name| self.chosen(name))?);
        }
        Ok(tests)
    }

    /// Release binaries, each crate alone as it is shipped; gives their directory.
    async fn release(self) -> Option<Option<PathBuf>> {
        let mut directory = None;
        for member in self.workspace.products() {
            let mut command = cargo();
            command.args(["build", "--locked", "--release", "--bins", "--package", &member.name]);
            command.arg("--message-format=json-render-diagnostics");
            if member.is_dynamic() {
                // What prepares finds it there by itself.
                link_dynamically(&mut command);
                self.step(&release_step(&member.name), command, false).await?;
                continue;
            }
            let output = self.step(&release_step(&member.name), command, true).await?;
            let built = artifacts(&output).next().and_then(|artifact| artifact.executable);
            directory = built.and_then(|path| Some(path.parent()?.to_owned())).or(directory);
        }
        Some(directory)
    }

    /// Servers, packages and images, before the first test: nobody waits for a download, or
    /// for a build, within the time of a test.
    async fn prepare(self, preparer: &Path, released: Option<&Path>) -> bool {
        let place = self.prepared();
        let mut command = Command::new(preparer);
        let binaries = released.or_else(|| preparer.parent()).unwrap_or(&place);
        command.arg("--binaries").arg(binaries).arg("--into").arg(&place);
        if released.is_some() {
            command.arg("--shipped");
        }
        if self.all {
            command.arg("--all");
        }
        self.step_within(PREPARE_LIMIT, PREPARE, command, false).await.is_some()
    }

    /// Where binaries and images are that tests use. What is shipped and what is built with the
    /// tests never share a directory: files are made anew there only if what they come from is newer.
    fn prepared(&self) -> PathBuf {
        self.runner.place().join(if self.all { "shipped" } else { "built" })
    }

    pub(crate) async fn step(self, name: &str, command: Command, capture: bool) -> Option<String> {
        self.step_within(BUILD_LIMIT, name, command, capture).await
    }

    async fn step_within(
        self,
        limit: Duration,
        name: &str,
        mut command: Command,
        capture: bool,
    ) -> Option<String> {
        command.current_dir(&self.workspace.root);
        let name = name.to_owned();
        let step = Step { name, command, counting: Counting::One, capture, limit };
        self.runner.run(step).await
    }

    /// `ready` says whether what end-to-end tests need is there, once that is known; `first` finds
    /// it out.
    async fn run_tests<'a>(
        self,
        tests: &'a [Test],
        ready: &'a Cell<Option<bool>>,
        first: Option<Job<'a>>,
    ) where
        Self: 'a,
    {
        let mut jobs = Vec::from_iter(first);
        for test in tests {
            let work = Box::pin(async move {
                if test.is_end_to_end && ready.get() != Some(true) {
                    self.runner.not_run(&test.name, "what it needs was not built");
                    return;
                }
                self.runner.run(self.test_step(test, test.name.clone())).await;
            });
            let is_long = test.name.contains("::long::");
            // With `--all` all of them may run what was prepared.
            let waits = test.needs_servers || self.all;
            let may_begin = Box::new(move || !waits || ready.get().is_some());
            jobs.push(Job { takes: test.takes, is_long, may_begin, work });
        }
        schedule::run(jobs, self.capacity).await;
    }

    /// With `--all`, the providers' own tests are run on what is shipped too.
    fn test_step(&self, test: &Test, name: String) -> Step {
        let mut command = test.command();
        if test.is_end_to_end || self.all {
            let place = self.prepared();
            command.env(BIN_DIR, place.join("bin")).env(IMAGE_DIR, place.join("images"));
        }
        if self.all {
            command.env(FUZZ, FUZZ_SECONDS);
        }
        let limit = if test.is_group() { GROUP_LIMIT } else { TEST_LIMIT };
        Step { name, command, counting: Counting::Libtest, capture: false, limit }
    }

    /// Fails the dearest tests of each provider whose tests take too much CPU time.
    fn check_costs(&self) {
        let outcomes = self.runner.outcomes();
        for provider in self.workspace.providers() {
            if let Some((step, sum)) = too_dear(&provider.name, &outcomes) {
                let problem = format!(
                    "the tests of {} took {sum:.0} core-seconds, {PROVIDER_CORE_SECONDS} are allowed; \
                     this step took most of them",
                    provider.name
                );
                self.runner.failed(&step, &problem);
            }
        }
    }

    /// Runs the one test that failed once more, alone, if the machine may be to blame. Whoever has
    /// tests run many times looks for just that.
    async fn second_chance(self, tests: &[Test]) {
        if self.times > 1 {
            return;
        }
        let Some(outcome) = self.runner.only_failure() else { return };
        let Some(test) = tests.iter().find(|test| test.name == outcome.step) else { return };
        let output = std::fs::read_to_string(&outcome.log).unwrap_or_default();
        // What starts no server has nothing to wait for.
        if !test.needs_servers || !verdict::may_be_forgiven(&outcome, &output) {
            return;
        }
        let Some(failed) = verdict::failed_test(&output) else { return };
        let again = verdict::second_chance(&test.name);
        self.runner.say(&format!("{failed} was starved: it runs once more, alone"));
        let step = self.test_step(&test.alone(failed), again.clone());
        self.runner.run(step).await;
        self.runner.forgive(&test.name, &again);
    }
}

/// The dearest step of a crate and the CPU time of all, if that is more than a provider may take.
fn too_dear(package: &str, outcomes: &[Outcome]) -> Option<(String, f64)> {
    let own = |outcome: &&Outcome| outcome.step.split(' ').next() == Some(package);
    let sum = outcomes.iter().filter(own).map(|outcome| outcome.core_seconds).sum();
    let dearest =
        outcomes.iter().filter(own).max_by(|a, b| a.core_seconds.total_cmp(&b.core_seconds))?;
    (sum > PROVIDER_CORE_SECONDS).then(|| (dearest.step.clone(), sum))
}

/// Name of the step that checks a crate alone.
fn alone_step(package: &str) -> String {
    format!("check {package} alone")
}

/// Name of the step that builds a crate as it is shipped.
fn release_step(package: &str) -> String {
    format!("release build {package}")
}

/// One of cargo's messages about something that it has built.
#[derive(Deserialize)]
pub(crate) struct Artifact {
    manifest_path: PathBuf,
    target: ArtifactTarget,
    pub(crate) profile: Profile,
    pub(crate) executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
pub(crate) struct Profile {
    pub(crate) test: bool,
}

/// The executables among cargo's messages.
pub(crate) fn artifacts(output: &str) -> impl Iterator<Item = Artifact> {
    output
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.executable.is_some())
}

#[cfg(test)]
mod tests;
