//! `cargo verify` answers without running anything where it is not asked to.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Command, Output, Stdio};

fn verify(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_verify"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn bad_usage_is_exit_code_64_and_help_has_an_example() {
    assert_eq!(verify(&["--capacity", "0"]).status.code(), Some(64));
    assert_eq!(verify(&["--no-such-flag"]).status.code(), Some(64));
    let help = verify(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("cargo verify --only"));
}
