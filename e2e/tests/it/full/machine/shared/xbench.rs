//! `cargo xbench` measures what runs, and refuses to measure what does not work.

use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;
use sidekey_e2e::{LocalPlugin, Scratch};

/// The shortest possible measurement: what takes time is not judged. The pool is larger than the
/// highest concurrency, because equal Decrypts at the same time are sent to a backend only once.
const SHORT: [&str; 14] = [
    "--seconds",
    "0.05",
    "--pool",
    "128",
    "--starts",
    "2",
    "--concurrency",
    "1,64",
    "--calls",
    "2000",
    "--reloads",
    "4",
    "--objects",
    "300",
];

fn xbench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xbench"))
        .args(SHORT)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn measured(arguments: &[&str]) -> Vec<Value> {
    let output = xbench(&[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What is measured without arguments, once for all tests.
static ALL: LazyLock<Vec<Value>> = LazyLock::new(|| measured(&[]));

fn figures(subject: &str) -> &'static Value {
    ALL.iter().find(|figures| figures["subject"] == subject).unwrap()
}

#[test]
fn a_started_binary_gets_every_figure() {
    let figures = figures("sidekey-local");
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
    assert_all_measured(figures, 4, &["idle RSS", "binary size"]);
}

#[test]
fn the_shim_is_measured_in_turns_with_the_provider_behind_it() {
    let figures = figures("sidekey-shim");
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
    assert_met(figures, &["idle RSS with 3 keys", "binary size"]);
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
fn fifty_keys_cost_a_provider_and_the_shim_little_memory() {
    assert_all_measured(figures("sidekey-local with 50 keys"), 1, &["idle RSS"]);
    let shim = figures("sidekey-shim with 50 keys");
    assert_eq!(shim["beside"]["subject"], "sidekey-local");
    assert_all_measured(shim, 1, &["RSS after the load"]);
}

#[test]
fn the_proxy_is_measured_over_mutual_tls_in_turns_with_the_provider_behind_it() {
    let figures = figures("sidekey-proxy");
    assert_eq!(figures["beside"]["subject"], "sidekey-local");
    assert_all_measured(figures, 3, &["idle RSS", "binary size"]);
    assert_eq!(figures["load"].as_array().unwrap().len(), 6, "three operations, two concurrencies");
}

/// Calls to the fake backend for each call, at any concurrency. They are whole numbers, but for
/// what a probe in the background adds to the few calls of this measurement.
fn assert_backend_calls(figures: &Value, operation: &str, expected: &[(&str, f64)]) {
    let cells = figures["load"].as_array().unwrap().iter();
    let cells: Vec<&Value> = cells.filter(|cell| cell["operation"] == operation).collect();
    assert_eq!(cells.len(), 2, "{operation} at two concurrencies: {figures}");
    for cell in cells {
        for (name, count) in expected {
            let counted = cell["backend_operations"][name].as_f64().unwrap_or_default();
            assert!((counted - count).abs() < 0.5, "{name} for each {operation}: {cell}");
        }
    }
}

/// Every bar of a subject is judged by a value, and those are met that do not hang on how busy
/// the machine is, nor on how long the measurement was.
fn assert_all_measured(figures: &Value, bars: usize, steady: &[&str]) {
    let judged = figures["bars"].as_array().unwrap();
    assert_eq!(judged.len(), bars, "{figures}");
    assert!(judged.iter().all(|bar| bar["value"].is_number()), "{figures}");
    assert_met(figures, steady);
}

fn assert_met(figures: &Value, names: &[&str]) {
    let judged = figures["bars"].as_array().unwrap();
    for name in names {
        let bar = judged.iter().find(|bar| bar["bar"] == *name);
        let bar = bar.unwrap_or_else(|| panic!("there is no bar {name:?}: {figures}"));
        let subject = &figures["subject"];
        assert_eq!(bar["met"], true, "{subject}, which must be a release build: {bar}");
    }
}

/// The direct calls, at the subject's side.
fn assert_direct_decrypts(figures: &Value) {
    assert_eq!(figures["beside"]["subject"], "direct HTTP call");
    let direct = figures["beside"]["load"].as_array().unwrap();
    assert_eq!(direct.len(), 2, "Decrypt alone, at two concurrencies: {figures}");
    for cell in direct {
        assert_eq!(cell["operation"], "Decrypt");
        assert!(cell["calls"].as_u64().unwrap() > 0, "{cell}");
        assert_eq!(cell["backend_calls"], 1.0, "nothing but itself: {cell}");
    }
}

#[test]
fn the_aws_provider_is_measured_in_turns_with_direct_calls_to_the_fake_endpoint() {
    let figures = figures("sidekey-aws");
    assert_all_measured(figures, 9, &["idle RSS", "binary size"]);
    assert_direct_decrypts(figures);
    assert_backend_calls(figures, "Encrypt", &[("Encrypt", 1.0), ("Decrypt", 1.0)]);
    assert_backend_calls(figures, "Decrypt", &[("Encrypt", 0.0), ("Decrypt", 1.0)]);
    assert_backend_calls(figures, "Status", &[("Encrypt", 0.0), ("Decrypt", 0.0)]);
    for operation in ["DescribeKey", "Encrypt", "Decrypt"] {
        let calls = figures["start_calls"][operation].as_u64();
        assert!(calls.is_some_and(|calls| calls > 0), "a start has one {operation}: {figures}");
    }
}

#[test]
fn the_aws_provider_is_measured_with_a_kms_that_takes_as_long_as_a_real_one() {
    let figures = figures("sidekey-aws with a KMS of 5 ms");
    // A share of the direct call, which hangs on how busy the machine is.
    assert_all_measured(figures, 1, &[]);
    assert_direct_decrypts(figures);
    let (own, direct) = (&figures["load"], &figures["beside"]["load"]);
    let decrypts = own.as_array().unwrap().iter().filter(|cell| cell["operation"] == "Decrypt");
    for cell in decrypts.chain(direct.as_array().unwrap()) {
        assert!(cell["p50_us"].as_f64().unwrap() >= 5_000.0, "no sooner than its KMS: {cell}");
    }
}

#[test]
fn the_vault_provider_is_measured_in_turns_with_direct_calls_to_the_fake_endpoint() {
    let figures = figures("sidekey-vault");
    assert_all_measured(figures, 5, &["idle RSS"]);
    assert_direct_decrypts(figures);
    assert_backend_calls(figures, "Encrypt", &[("Encrypt", 1.0), ("Decrypt", 1.0)]);
    assert_backend_calls(figures, "Decrypt", &[("Encrypt", 0.0), ("Decrypt", 1.0)]);
    assert_backend_calls(figures, "Status", &[("Encrypt", 0.0), ("Decrypt", 0.0)]);
    for operation in ["Login", "ReadKey", "Encrypt", "Decrypt"] {
        let calls = figures["start_calls"][operation].as_u64();
        assert!(calls.is_some_and(|calls| calls > 0), "a start has one {operation}: {figures}");
    }
}

#[test]
fn the_shim_and_an_aws_provider_with_two_keys_are_measured_together() {
    let figures = figures("sidekey-shim+aws");
    assert_eq!(figures["beside"]["subject"], "sidekey-aws");
    assert_all_measured(figures, 1, &["idle RSS of both"]);
    let (own, both) = (&figures["idle"], &figures["idle_together"]);
    for kind in ["rss", "pss"] {
        assert!(both[kind].as_u64().unwrap() > own[kind].as_u64().unwrap(), "{kind}: {figures}");
    }
    assert_backend_calls(figures, "Decrypt", &[("Decrypt", 1.0)]);
}

#[test]
fn the_command_is_measured_by_its_start_and_by_a_census_of_a_real_etcd() {
    let command = figures("sidekey");
    assert_all_measured(command, 2, &["binary size"]);
    assert_eq!(command["start_ms"]["count"], 2);
    let census = figures("sidekey census");
    assert_eq!(census["work"]["objects"], 300);
    assert!(census["work"]["peak"].as_u64().unwrap() > 1000, "in KiB: {census}");
    for bar in census["bars"].as_array().unwrap() {
        assert_eq!(bar["met"], false, "a smaller census meets no bar: {bar}");
    }
}

#[test]
fn without_arguments_every_subject_is_measured() {
    let names: Vec<&str> = ALL.iter().map(|one| one["subject"].as_str().unwrap()).collect();
    let known = [
        "sidekey-local",
        "sidekey-local with 50 keys",
        "sidekey-shim",
        "sidekey-shim with 50 keys",
        "sidekey-proxy",
        "sidekey-aws",
        "sidekey-aws with a KMS of 5 ms",
        "sidekey-vault",
        "sidekey-shim+aws",
        "sidekey",
        "sidekey census",
    ];
    assert_eq!(names, known);
}

#[test]
fn a_subject_is_measured_by_its_name_alone() {
    let measured = measured(&["--bin", "sidekey-local"]);
    let names: Vec<&str> = measured.iter().map(|one| one["subject"].as_str().unwrap()).collect();
    assert_eq!(names, ["sidekey-local"]);
}

#[tokio::test]
async fn a_socket_that_is_there_already_is_driven() {
    let scratch = Scratch::new("xbench").unwrap();
    let plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let socket = plugin.socket().to_str().unwrap().to_owned();
    let measured = tokio::task::spawn_blocking(move || measured(&["--socket", &socket]));
    let figures = &measured.await.unwrap()[0];
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
    assert_eq!(xbench(&["--", "--listen", "/y"]).status.code(), Some(64), "of which binary?");
    let help = xbench(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8_lossy(&help.stdout);
    assert!(help.contains("cargo xbench --socket"), "{help}");
    assert!(help.contains("fake AWS KMS"), "what is not real is called fake: {help}");
}
