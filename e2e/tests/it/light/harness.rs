//! The harness itself: what it promises to the tests that stand on it.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::process::Spec;
use sidekey_e2e::wait::{CRASHED, PATIENCE};
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, Scratch, Stanza, eventually,
};

/// Set, `a_killed_harness_…` plays the one that is killed.
const VICTIM: &str = "SIDEKEY_E2E_VICTIM";

#[tokio::test]
async fn a_killed_harness_leaves_neither_process_nor_directory() {
    if std::env::var_os(VICTIM).is_some() {
        return be_the_victim().await;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::a_killed_harness_leaves_neither_process_nor_directory");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut said = lines.map_while(Result::ok).filter_map(|line| {
        let (_, rest) = line.split_once("victim:")?;
        Some(rest.to_owned())
    });
    let process = PathBuf::from(format!("/proc/{}", said.next().unwrap()));
    let dir = PathBuf::from(said.next().unwrap());
    assert!(process.exists() && dir.exists());

    victim.kill().unwrap();
    victim.wait().unwrap();
    eventually("process and directory are gone", PATIENCE, async || {
        ensure!(!process.exists(), "{} is there", process.display());
        ensure!(!dir.exists(), "{} is there", dir.display());
        Ok(())
    })
    .await
    .unwrap();
}

async fn be_the_victim() {
    let scratch = Scratch::new("victim").unwrap();
    let spec = Spec::new("sleep", "sleep", scratch.path().join("log")).arg("600");
    let mut process = spec.start().unwrap();
    println!("\nvictim:{}", process.pid().unwrap());
    println!("victim:{}", scratch.path().display());
    let forever =
        process.wait_until("to be killed", Duration::from_secs(600), async || -> Result<()> {
            bail!("not yet")
        });
    forever.await.unwrap();
}

/// `cargo verify` never forgives a failure with such a word.
#[tokio::test]
async fn a_program_of_ours_that_crashed_or_panicked_is_told_when_a_test_fails() {
    if std::env::var_os(VICTIM).is_some() {
        return fail_beside_crashed_programs().await;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = "a_program_of_ours_that_crashed_or_panicked_is_told_when_a_test_fails";
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", &format!("{module}::{test}"), "--nocapture"]).env(VICTIM, "1");
    let output = victim.output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    let told: Vec<&str> = said.lines().filter(|line| line.starts_with(CRASHED)).collect();
    let wanted =
        ["crashing was ended by signal 11", "panicking: thread 'main' panicked at x.rs:1:"];
    assert_eq!(told, wanted.map(|text| format!("{CRASHED}{text}")), "{said}");
}

async fn fail_beside_crashed_programs() {
    let scratch = Scratch::new("victim").unwrap();
    let start = |name: &str, script: &str| {
        let program = scratch.path().join(format!("sidekey-{name}"));
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Spec::new(name, program, scratch.path().join(format!("{name}.log"))).start().unwrap()
    };
    let mut killed = start("killed", "sleep 600");
    killed.kill().unwrap();
    let mut crashing = start("crashing", "kill -SEGV $$");
    let ended = eventually("it has crashed", PATIENCE, async || crashing.ended()?.context("no"));
    ended.await.unwrap();
    // Long before the last lines.
    let lines = "i=0; while [ $i -lt 100 ]; do i=$((i + 1)); echo $i; done; echo end; sleep 600";
    let script = format!("echo \"thread 'main' panicked at x.rs:1:\"; {lines}");
    let mut panicking = start("panicking", &script);
    let end = |line: &str| (line == "end").then_some(());
    panicking.wait_for_log("the end", PATIENCE, end).await.unwrap();
    panic!("waited in vain");
}

#[tokio::test]
async fn a_wait_for_a_process_that_ends_fails_at_once_with_its_log() {
    let scratch = Scratch::new("ends").unwrap();
    let script = ["-c", "echo the reason why; exit 3"];
    let mut process =
        Spec::new("short", "sh", scratch.path().join("log")).args(script).start().unwrap();
    let wait =
        process.wait_until("it listens", Duration::from_secs(3600), async || -> Result<()> {
            bail!("it does not")
        });
    let error = format!("{:#}", wait.await.unwrap_err());
    for part in ["short", "exit status: 3", "the reason why"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[tokio::test]
async fn a_process_can_be_paused_resumed_killed_and_restarted() {
    let scratch = Scratch::new("signals").unwrap();
    let script = ["-c", "echo started; while read -r line; do :; done; sleep 600 & wait"];
    let mut process =
        Spec::new("child", "sh", scratch.path().join("log")).args(script).start().unwrap();
    let state = async |pid: u32, wanted: char| {
        eventually(format!("{pid} is in state {wanted}"), PATIENCE, async || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            ensure!(state == Some(wanted), "{state:?}");
            Ok(())
        })
        .await
    };
    let first = process.pid().unwrap();
    process.pause().unwrap();
    state(first, 'T').await.unwrap();
    process.resume().unwrap();
    state(first, 'S').await.unwrap();
    process.kill().unwrap();
    assert!(process.pid().is_none());
    let error = process.check_running().unwrap_err().to_string();
    assert!(error.contains("signal: 9"), "{error}");

    process.start().unwrap();
    process.start().expect_err("it runs already");
    let started = |line: &str| line.contains("started").then_some(());
    process.wait_for_log("it started", PATIENCE, started).await.unwrap();
    assert_ne!(process.pid(), Some(first));
    process.terminate(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_plain_cluster_stores_in_clear_and_its_load_counts_failures() {
    let plane = ControlPlane::start("plain").await.unwrap();
    let identity = EncryptionConfiguration::new().stanza(Stanza::new(["secrets"]).identity());
    let mut server =
        KubeApiserver::start(&plane, Options::new("a").encryption(identity)).await.unwrap();
    let client = server.client();

    // What is read from etcd is what is there: in clear, it must be seen.
    client.create(Kind::Secret, "default", "plain", &[("word", "xyzzy")]).await.unwrap();
    let raw = plane.etcd.raw("/registry/secrets/default/plain").await.unwrap();
    assert!(raw.windows(5).any(|bytes| bytes == b"xyzzy"));
    sidekey_e2e::Stored::parse(&raw).expect_err("it is not encrypted");
    let listed = plane.etcd.list("/registry/secrets/default/").await.unwrap();
    assert_eq!(listed.len(), 1);
    plane.etcd.raw("/registry/secrets/default/other").await.expect_err("no such key");
    plane.etcd.compact().await.unwrap();

    let load = Load::start(vec![client], LoadOptions::default()).unwrap();
    load.more(100).await.unwrap();
    assert_eq!(load.report().failures, 0, "{}", load.report());
    server.process().kill().unwrap();
    load.more(20).await.unwrap();
    let report = load.stop().await.unwrap();
    assert!(report.failures >= 10 && !report.first_failures.is_empty(), "{report}");
    report.without_failures().expect_err("a failure is an error");
}
