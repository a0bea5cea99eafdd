//! Builds that `--all` makes beside the shipped ones: with the oldest Rust that is promised, and
//! with the FIPS module, whose providers pass the same conformance suite.

use std::process::Command;

use sidekey_verify::{BIN_DIR, link_dynamically};

use crate::outcome::Counting;
use crate::runner::Step;
use crate::stages::{Stages, TEST_LIMIT, artifacts};
use crate::suite::{Executable, Test};
use crate::workspace::cargo;

/// What the steps of the FIPS module begin with.
const FIPS: &str = "FIPS";

/// The tests that every provider has, by the name of their executable.
const CONFORMANCE: &str = "conformance";

/// The module of the same for the shim, which looks at the gauges of both too.
const SHIM_CONFORMANCE: &str = "::shim_conformance::";

/// Where the binaries with the FIPS module stay.
const BINARIES: &str = "fips";

impl Stages<'_> {
    /// Checks everything with the Rust that `rust-version` names, in a directory of its own.
    pub(crate) async fn oldest_rust(self) {
        let version = &self.workspace.rust_version;
        let name = oldest_step(version);
        if !self.chosen(&name) {
            return;
        }
        let mut present = tokio::process::Command::from(with(version));
        let present = present.arg("--version").output().await;
        if !present.is_ok_and(|output| output.status.success()) {
            let mut install = Command::new("rustup");
            install.args(["toolchain", "install", version, "--profile", "minimal"]);
            self.step(&format!("install Rust {version}"), install, false).await;
        }
        let mut command = with(version);
        command.args(["check", "--locked", "--workspace", "--target-dir"]);
        command.arg(self.workspace.target.join("oldest-rust"));
        self.step(&name, command, false).await;
    }

    /// Builds the providers and the shim with the FIPS module, and runs them through conformance. Says
    /// whether any of that was chosen.
    pub(crate) async fn fips(self, executables: &[Executable]) -> bool {
        let suites: Vec<Test> = self.fips_suites(executables);
        if suites.is_empty() {
            return false;
        }
        let mut build = fips_cargo("build");
        let mut builds = Vec::new();
        for provider in self.workspace.providers() {
            if provider.is_dynamic() {
                let mut alone = cargo();
                alone.args(["build", "--locked", "--features", "fips"]);
                alone.args(["--bins", "--package", &provider.name]);
                link_dynamically(&mut alone);
                builds.push((format!("{FIPS} build of {}", provider.name), alone));
            } else {
                build.args(["--bin", &provider.name]);
            }
        }
        // With a test among the targets crates have the features of the tests' build, and what knows
        // nothing of cryptography need not be compiled again.
        build.args(["--bin", "sidekey-shim", "--test", "usage"]);
        builds.push((format!("{FIPS} build"), build));
        for (name, mut build) in builds {
            build.arg("--message-format=json-render-diagnostics");
            let Some(output) = self.step(&name, build, true).await else { return true };
            for artifact in artifacts(&output).filter(|artifact| !artifact.profile.test) {
                artifact.executable.and_then(|path| self.keep(&path, BINARIES));
            }
        }
        let mut tests = fips_cargo("test");
        tests.args(["--lib", "fips"]);
        self.step(&format!("{FIPS} tests"), tests, false).await;
        for suite in suites {
            let mut command = suite.command();
            command.env(BIN_DIR, self.runner.place().join(BINARIES));
            let (name, counting) = (suite.name, Counting::Libtest);
            let step = Step { name, command, counting, capture: false, limit: TEST_LIMIT };
            self.runner.run(step).await;
        }
        true
    }

    /// The conformance tests of all providers and of the shim, for binaries with the FIPS module.
    pub(crate) fn fips_suites(&self, executables: &[Executable]) -> Vec<Test> {
        let providers: Vec<&str> =
            self.workspace.providers().map(|provider| provider.name.as_str()).collect();
        let suites = executables.iter().filter(|executable| is_suite(executable, &providers));
        let suites = suites.filter(|_| self.all).filter_map(|executable| {
            let is_one = |name: &str| !executable.is_end_to_end || name.contains(SHIM_CONFORMANCE);
            let mut tests = executable.tests(true, is_one).ok()?;
            tests.iter_mut().for_each(|test| test.name = format!("{FIPS} {}", test.name));
            Some(tests)
        });
        suites.flatten().filter(|test| self.chosen(&test.name)).collect()
    }
}

/// Whether conformance tests are in it.
fn is_suite(executable: &Executable, providers: &[&str]) -> bool {
    let is_providers = providers.contains(&executable.package.as_str());
    executable.is_end_to_end || (executable.target == CONFORMANCE && is_providers)
}

fn fips_cargo(subcommand: &str) -> Command {
    let mut command = cargo();
    command.args([subcommand, "--locked", "--workspace", "--features", "fips"]);
    command
}

/// Name of the step that checks everything with the oldest Rust.
pub(crate) fn oldest_step(version: &str) -> String {
    format!("check with Rust {version}")
}

/// The cargo of a toolchain.
fn with(version: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", version, "cargo"]);
    command
}
