//! The stages of a run, in an order that keeps the cores busy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use sidekey_e2e::{binaries, golang};
use tokio::sync::Semaphore;

use crate::outcome::Counting;
use crate::plan::{BUILD_TESTS, CLUSTER, FORMAT, LINT, Plan, alone_step, release_step};
use crate::runner::{Runner, Step};
use crate::workspace::{TestTarget, Workspace, cargo};

/// A build that takes longer hangs.
const BUILD_LIMIT: Duration = Duration::from_secs(45 * 60);

/// A test executable that takes longer hangs.
const TEST_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Everything that a run needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Stages<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) plan: &'a Plan,
    pub(crate) runner: &'a Runner,
    pub(crate) jobs: usize,
}

/// A test executable that cargo has built.
struct Executable {
    target: TestTarget,
    path: PathBuf,
}

/// Builds the servers of a cluster into the harness's cache.
pub(crate) async fn prepare_cluster() -> Result<()> {
    let cluster = [golang::NODE, golang::COREDNS, golang::POD, golang::KUBECTL];
    for server in [golang::ETCD, golang::KUBE_APISERVER, golang::OPENBAO].into_iter().chain(cluster)
    {
        server.build_async().await?;
    }
    Ok(())
}

impl Stages<'_> {
    /// Runs the whole plan.
    pub(crate) async fn run(self) {
        // The last minute of a release build keeps one core busy, so checks go beside it;
        // cargo locks the two profiles' directories apart. Go builds use every core.
        let (released, built) = tokio::join!(self.release(), self.checks());
        let cluster = self.cluster().await;
        let ready = released.is_some() && cluster;
        let (mut end_to_end, unit): (Vec<Executable>, Vec<Executable>) =
            built.into_iter().partition(|executable| executable.target.is_end_to_end());
        end_to_end.sort_by_key(|one| (!one.target.is_long(), one.target.name.clone()));
        self.tests(unit, crate::cores(), released.as_deref()).await;
        if ready {
            let (crowd, others) = end_to_end.into_iter().partition(|one| one.target.is_crowd());
            self.tests(others, self.jobs, released.as_deref()).await;
            self.tests(crowd, 1, released.as_deref()).await;
        } else {
            for executable in end_to_end {
                self.runner.not_run(&executable.target.to_string(), "what it needs was not built");
            }
        }
    }

    /// Release binaries, each crate alone as it is shipped. Gives their directory, which is
    /// empty where nothing was to be built; `None` if a build failed.
    async fn release(self) -> Option<PathBuf> {
        let mut directory = Some(PathBuf::new());
        for package in &self.plan.release {
            let mut command = cargo();
            command.args(["build", "--locked", "--release", "--bins", "--package", package]);
            command.arg("--message-format=json-render-diagnostics");
            let output = self.build(release_step(package), command, true).await;
            let built = output.as_deref().and_then(|text| artifacts(text).next());
            let parent = built.and_then(|artifact| Some(artifact.executable?.parent()?.to_owned()));
            directory = directory.and(parent);
        }
        directory
    }

    /// Formatting, lints, each crate alone, and the build of the tests.
    async fn checks(self) -> Vec<Executable> {
        if self.plan.format {
            let mut command = cargo();
            command.args(["fmt", "--all", "--", "--check"]);
            self.with_component("fmt", "rustfmt").await;
            self.build(FORMAT.to_owned(), command, false).await;
        }
        if self.plan.lint {
            let mut command = cargo();
            command.args([
                "clippy",
                "--locked",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ]);
            self.with_component("clippy", "clippy").await;
            self.build(LINT.to_owned(), command, false).await;
        }
        for package in &self.plan.alone {
            let mut command = cargo();
            command.args(["check", "--locked", "--package", package]);
            self.build(alone_step(package), command, false).await;
        }
        if self.plan.tests.is_empty() { Vec::new() } else { self.build_tests().await }
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
        self.build(format!("install {component}"), command, false).await;
    }

    async fn build_tests(self) -> Vec<Executable> {
        let mut command = cargo();
        command.args(["test", "--locked", "--workspace", "--no-run"]);
        command.arg("--message-format=json-render-diagnostics");
        if self.plan.partial {
            let mut selectors: Vec<Vec<String>> =
                self.plan.tests.iter().map(TestTarget::selector).collect();
            selectors.sort();
            selectors.dedup();
            command.args(selectors.concat());
        }
        let output = self.build(BUILD_TESTS.to_owned(), command, true).await.unwrap_or_default();
        artifacts(&output)
            .filter_map(|artifact| {
                let package = self.package_of(&artifact.manifest_path)?;
                let target = TestTarget::new(package, &artifact.target.kind, &artifact.target.name);
                let path = artifact.executable.filter(|_| artifact.profile.test)?;
                self.plan.tests.contains(&target).then_some(Executable { target, path })
            })
            .collect()
    }

    fn package_of(&self, manifest: &Path) -> Option<&str> {
        let members = &self.workspace.members;
        members.iter().find(|member| member.manifest_path == manifest).map(|m| m.name.as_str())
    }

    /// kube-apiserver and etcd, built by the harness's own code in a process of its own.
    async fn cluster(self) -> bool {
        if !self.plan.cluster {
            return true;
        }
        // By this name it is found even when the build of the tests has replaced the file.
        let mut command = Command::new("/proc/self/exe");
        command.arg("--prepare-cluster");
        self.build(CLUSTER.to_owned(), command, false).await.is_some()
    }

    async fn build(self, name: String, mut command: Command, capture: bool) -> Option<String> {
        command.current_dir(&self.workspace.root);
        let step = Step { name, command, counting: Counting::One, capture, limit: BUILD_LIMIT };
        self.runner.run(step).await
    }

    /// Runs test executables, at most `limit` at the same time.
    async fn tests(self, executables: Vec<Executable>, limit: usize, binaries: Option<&Path>) {
        let slots = Arc::new(Semaphore::new(limit));
        let runs: Vec<_> = executables
            .into_iter()
            .map(|executable| {
                let slots = slots.clone();
                async move {
                    // The semaphore is never closed.
                    let _slot = slots.acquire_owned().await.ok();
                    self.runner.run(self.test_step(executable, binaries)).await;
                }
            })
            .collect();
        all(runs).await;
    }

    /// A test executable, run as `cargo test` runs it.
    fn test_step(&self, executable: Executable, binaries: Option<&Path>) -> Step {
        let Executable { target, path } = executable;
        let folder = self.workspace.folder(&target.package);
        let mut command = Command::new(path);
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
        // What a test says of its failure is enough; frames would push it out of what is shown.
        command.env("RUST_BACKTRACE", "0");
        if let Some(directory) = binaries.filter(|directory| !directory.as_os_str().is_empty()) {
            command.env(binaries::BIN_DIR, directory);
        }
        let name = target.to_string();
        Step { name, command, counting: Counting::Libtest, capture: false, limit: TEST_LIMIT }
    }
}

/// Drives all futures to their end at the same time, on this task: the runner is borrowed.
async fn all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut open: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        open.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if open.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// One of cargo's messages about something that it has built.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: ArtifactTarget,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct ArtifactTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The executables among cargo's messages.
fn artifacts(output: &str) -> impl Iterator<Item = Artifact> {
    output
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.executable.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_among_cargos_messages() {
        let text = concat!(
            r#"{"reason":"build-script-executed","package_id":"x"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/x/Cargo.toml","target":{"name":"a","kind":["lib"]},"profile":{"test":false},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/x/Cargo.toml","target":{"name":"b","kind":["test"]},"profile":{"test":true},"executable":"/t/b"}"#,
            "\nnot json\n",
        );
        let found: Vec<Artifact> = artifacts(text).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].target.name, "b");
        assert!(found[0].profile.test);
    }
}
