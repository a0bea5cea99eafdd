//! Builds that `--all` makes beside the shipped ones: with the oldest Rust that is promised.

use std::process::Command;

use crate::stages::Stages;

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
