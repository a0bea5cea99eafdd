//! `cargo xbench` measures what runs, and refuses to measure what does not work.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sidekey_e2e::{LocalPlugin, Scratch};

/// The shortest possible measurement: the figures are not looked at.
const SHORT: [&str; 12] = [
    "--seconds",
    "0.05",
    "--pool",
    "20",
    "--starts",
    "2",
    "--concurrency",
    "1,64",
    "--calls",
    "2000",
    "--reloads",
    "4",
];

fn xbench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xbench"))
        .args(SHORT)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn figures(arguments: &[&str]) -> Value {
    let output = xbench(&[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].take()
}

#[test]
fn a_started_binary_gets_every_figure() {
    let figures = figures(&["--bin", "sidekey-local"]);
    assert_eq!(figures["subject"], "sidekey-local");
    assert_eq!(figures["binary"]["is_static"], true);
    assert_eq!(figures["start_ms"]["count"], 2);
    assert!(figures["idle"]["rss"].as_u64().unwrap() > 0, "{figures}");
    assert!(figures["loaded"]["pss"].as_u64().unwrap() > 0, "{figures}");
    let load = figures["load"].as_array().unwrap();
    assert_eq!(load.len(), 6, "three operations at two concurrencies");
    for cell in load {
        assert!(cell["calls"].as_u64().unwrap() > 0 && cell["p50_us"].as_f64().unwrap() > 0.0);
        assert!(
            cell["backend_calls"].is_number(),
            "sidekey-local counts its backend calls: {cell}"
        );
    }
    assert!(!figures["bars"].as_array().unwrap().is_empty(), "{figures}");
}

#[test]
fn the_shim_is_measured_in_turns_with_the_provider_behind_it() {
    let figures = figures(&["--bin", "sidekey-shim"]);
    assert_eq!(figures["subject"], "sidekey-shim");
    assert_eq!(figures["beside"]["subject"], "sidekey-local");
    assert!(figures["calls"].as_u64().unwrap() >= 2000, "{figures}");
    let (shim, alone) = (&figures["load"], &figures["beside"]["load"]);
    assert_eq!(shim.as_array().unwrap().len(), 6, "three operations at two concurrencies");
    for (shim, alone) in shim.as_array().unwrap().iter().zip(alone.as_array().unwrap()) {
        assert_eq!(shim["operation"], alone["operation"]);
        assert_eq!(shim["concurrency"], alone["concurrency"]);
        assert!(shim["backend_calls"].is_null(), "the shim has no backend: {shim}");
        assert!(alone["backend_calls"].is_number(), "the provider has one: {alone}");
    }
    let reloads = &figures["reloads"];
    assert_eq!(reloads["live_ms"]["count"], 4);
    assert!(reloads["after"]["rss"].as_u64().unwrap() > 0, "{reloads}");
    let bars = figures["bars"].as_array().unwrap();
    let (values, unmeasured): (Vec<&Value>, Vec<&Value>) =
        bars.iter().partition(|bar| bar["value"].is_number());
    assert!(values.len() >= 6, "{figures}");
    for bar in unmeasured {
        // Too few calls, reloads and ticks of the CPU clock for these.
        assert_eq!(bar["met"], false, "what was not measured is not met: {bar}");
    }
}

#[test]
fn without_arguments_provider_and_shim_are_measured() {
    let output = xbench(&["-o", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> =
        all.as_array().unwrap().iter().map(|one| one["subject"].as_str().unwrap()).collect();
    assert_eq!(names, ["sidekey-local", "sidekey-shim"]);
}

#[tokio::test]
async fn a_socket_that_is_there_already_is_driven() {
    let scratch = Scratch::new("xbench").unwrap();
    let plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let socket = plugin.socket().to_str().unwrap().to_owned();
    let figures = tokio::task::spawn_blocking(move || figures(&["--socket", &socket]));
    let figures = figures.await.unwrap();
    assert_eq!(figures["load"].as_array().unwrap().len(), 6);
    assert!(figures["idle"]["rss"].as_u64().unwrap() > 0, "its process is found: {figures}");
    assert!(figures["start_ms"].is_null());
}

#[test]
fn what_does_not_start_is_an_error_that_quotes_its_log() {
    let output = xbench(&["--bin", "/bin/sh", "--", "-c", "echo no luck today; exit 7"]);
    assert_eq!(output.status.code(), Some(1));
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(problem.contains("no luck today") && problem.contains("exit status: 7"), "{problem}");
}

#[test]
fn bad_usage_is_exit_code_64_and_help_has_an_example() {
    assert_eq!(xbench(&["--bin", "x", "--socket", "/y"]).status.code(), Some(64));
    let help = xbench(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("cargo xbench --socket"));
}
