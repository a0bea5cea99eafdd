//! What the developer programs of this repository have in common: the command line, and what
//! `cargo verify` and the harness that it runs must agree on.
//!
//! The program beside it is `cargo verify`; see `main.rs`.

pub mod command;

use std::process::Command;

/// Programs that load libraries cannot be static: they are built in a directory of their own, below
/// that of the others.
pub const DYNAMIC_TARGET: &str = "target/dynamic";

/// The variable with a directory of our binaries, ready to be run.
pub const BIN_DIR: &str = "SIDEKEY_BIN_DIR";

/// The variable with a directory of their images.
pub const IMAGE_DIR: &str = "SIDEKEY_IMAGE_DIR";

/// The variable with the time, in seconds, for which tests of parsers make up input; without it they
/// make a fixed number.
pub const FUZZ: &str = "SIDEKEY_FUZZ_SECONDS";

/// The variable with the file in which a test process writes how late its own clock ticks.
pub const WITNESS: &str = "SIDEKEY_WITNESS";

/// Begins what is said of wrong or unreadable data, and of a secret that is shown: no busy machine
/// can cause it, so that `cargo verify` never forgives it.
pub const BROKEN: &str = "BROKEN: ";

/// Begins what is said of a program of ours that ended by a signal that nobody sent, or that
/// panicked: `cargo verify` never forgives it.
pub const CRASHED: &str = "CRASHED: ";

/// Begins the last lines of a log, whose other lines are further in.
pub const QUOTED: &str = "--- last lines of ";

/// Ends them.
pub const UNQUOTED: &str = "---";

/// Makes a build one of programs that load libraries; cargo must run at the top of the repository.
/// The variable takes the place of all flags of `.cargo/config.toml`.
pub fn link_dynamically(cargo: &mut Command) -> &mut Command {
    cargo.env("RUSTFLAGS", "-Ctarget-feature=-crt-static").args(["--target-dir", DYNAMIC_TARGET])
}

/// Whether a package of cargo's metadata says that its programs load libraries.
pub fn is_dynamic(metadata: &serde_json::Value) -> bool {
    metadata["sidekey"]["dynamic"] == true
}
