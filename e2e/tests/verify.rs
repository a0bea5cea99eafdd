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
fn it_lists_every_step_as_text_and_as_json() {
    let text = verify(&["--list"]);
    assert_eq!(text.status.code(), Some(0));
    let lines: Vec<String> =
        String::from_utf8(text.stdout).unwrap().lines().map(str::to_owned).collect();
    assert!(lines.contains(&"sidekey-e2e test verify".to_owned()), "{lines:?}");
    let json = verify(&["--list", "-o", "json"]);
    assert_eq!(serde_json::from_slice::<Vec<String>>(&json.stdout).unwrap(), lines);
}

#[test]
fn bad_usage_is_exit_code_64_and_help_has_an_example() {
    assert_eq!(verify(&["--jobs", "0"]).status.code(), Some(64));
    let nothing = verify(&["--only", "no such step"]);
    assert_eq!(nothing.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("--list"));
    let help = verify(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("cargo verify --only"));
}
