//! The program: what it prints and how it ends.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use sidekey_conformance::checks;
use tokio::process::Command;

use crate::launched::plugin_process;
use crate::plugin::{Defect, Store, TestPlugin, serve};

async fn runner(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidekey-conformance"));
    command.args(args).output().await.unwrap()
}

/// The verdict on a plugin, which may take its time: a busy machine is not its fault.
async fn judge(args: &[&str]) -> Output {
    runner(&[args, &["--timeout", "30s", "--status-bound", "30s"]].concat()).await
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn verdict<'a>(report: &'a Value, id: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    &checks.iter().find(|check| check["id"] == id).unwrap()["verdict"]
}

#[tokio::test]
async fn a_sound_plugin_ends_with_0_and_what_was_not_judged_is_said_aloud() {
    let plugin = TestPlugin::start(None);
    let socket = plugin.endpoint().to_string();
    let judged = judge(&["--socket", &socket]).await;
    let table = stdout(&judged);
    assert_eq!(judged.status.code(), Some(0), "{table}");
    assert!(table.starts_with("CHECK "), "{table}");
    assert!(table.contains(" 0 failed, 11 NOT RUN and therefore not judged"), "{table}");
    assert!(stderr(&judged).contains("NOT RUN, not judged: status.backend-calls, restart."));
}

#[tokio::test]
async fn strict_does_not_take_the_unjudged() {
    let plugin = TestPlugin::start(None);
    let socket = plugin.endpoint().to_string();
    let args = ["--socket", &socket, "--only", "restart", "--only", "status.version"];
    assert_eq!(judge(&args).await.status.code(), Some(0));
    assert_eq!(judge(&[&args[..], &["--strict"]].concat()).await.status.code(), Some(1));
}

#[tokio::test]
async fn a_broken_plugin_ends_with_1_and_json_says_which_check() {
    let plugin = TestPlugin::start(Some(Defect::LoudHealthz));
    let path = plugin.endpoint().path().unwrap().display().to_string();
    let args = ["--socket", &path, "-o", "json", "--only", "status", "--skip", "status.latency"];
    let judged = judge(&args).await;
    let report: Value = serde_json::from_slice(&judged.stdout).unwrap();
    assert_eq!(judged.status.code(), Some(1), "{report:#}");
    assert_eq!(report["passed"], false);
    assert_eq!(verdict(&report, "status.healthz"), "failed");
    assert_eq!(verdict(&report, "status.version"), "passed");
    assert_eq!(verdict(&report, "status.backend-calls"), "not-run");
    let deselected = report["deselected"].as_array().unwrap();
    assert!(
        deselected.contains(&"status.latency".into()) && deselected.contains(&"socket.mode".into())
    );
}

#[tokio::test]
async fn a_socket_on_which_nobody_listens_is_a_failed_run() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("left.sock");
    drop(UnixListener::bind(&left).unwrap());
    for socket in [left, dir.path().join("missing.sock")] {
        let socket = socket.display().to_string();
        let judged = runner(&["--socket", &socket, "-o", "json"]).await;
        let report: Value = serde_json::from_slice(&judged.stdout).unwrap();
        assert_eq!(judged.status.code(), Some(1));
        assert!(report["unreachable"].as_str().unwrap().contains(&socket), "{report:#}");
        assert_eq!(verdict(&report, "status.answers"), "failed");
        assert_eq!(verdict(&report, "encrypt.round-trip"), "not-run");
        let complaint = stderr(&judged);
        assert!(complaint.contains("nobody to judge: cannot connect to"), "{complaint}");
    }
}

#[tokio::test]
async fn bad_usage_ends_with_64() {
    let bad: [&[&str]; 7] = [
        &[],
        &["--socket", "tcp://127.0.0.1:1"],
        &["--socket", "relative.sock"],
        &["--socket", "/tmp/x.sock", "--only", "status.versoin"],
        &["--socket", "/tmp/x.sock", "--wait", "3"],
        &["--socket", "/tmp/x.sock", "-o", "yaml"],
        &["--no-such-flag"],
    ];
    for args in bad {
        let judged = runner(args).await;
        assert_eq!(judged.status.code(), Some(64), "{args:?}");
        assert!(!judged.stderr.is_empty(), "{args:?} must say what is wrong");
    }
}

#[tokio::test]
async fn help_has_examples_and_list_explains_every_check() {
    let help = runner(&["--help"]).await;
    assert_eq!(help.status.code(), Some(0));
    assert!(stdout(&help).contains("sidekey-conformance --socket /var/run/kmsplugin/kms.sock"));
    let list = stdout(&runner(&["--list"]).await);
    let json: Value =
        serde_json::from_slice(&runner(&["--list", "-o", "json"]).await.stdout).unwrap();
    assert_eq!(json.as_array().unwrap().len(), checks().count());
    for (check, listed) in checks().zip(json.as_array().unwrap()) {
        assert!(list.contains(check.id) && list.contains(check.why), "{}", check.id);
        assert_eq!(listed["id"], check.id);
        assert_eq!(listed["why"], check.why);
    }
}

#[tokio::test]
async fn abstract_sockets_are_judged_too() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("sidekey-conformance-test-{}", std::process::id());
    let listener =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::UnixListener::from_std(listener).unwrap();
    let serving = tokio::spawn(serve(listener, Store::open(dir.path().join("keys"))));
    let judged = judge(&["--socket", &format!("unix:///@{name}")]).await;
    assert_eq!(judged.status.code(), Some(0), "{}", stdout(&judged));
    serving.abort();
}

/// The process whose id is in a file, which the restart command writes anew.
struct ByPidFile<'a>(&'a Path);

impl Drop for ByPidFile<'_> {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(self.0).unwrap();
        let _ = std::process::Command::new("kill").args(["-9", pid.trim()]).status();
    }
}

/// A shell command line that starts the plugin in the background and writes its pid down.
fn start_script(dir: &Path) -> String {
    let command = plugin_process(dir);
    let args: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap()).collect();
    let (name, value) = command.get_envs().next().unwrap();
    let (name, value) = (name.to_str().unwrap(), value.unwrap().to_str().unwrap());
    let program = command.get_program().to_str().unwrap();
    format!("{name}='{value}' '{program}' {} & echo $! > '{value}/pid'", args.join(" "))
}

#[tokio::test]
async fn hooks_are_shell_commands_and_make_the_judgement_complete() {
    let dir = tempfile::tempdir().unwrap();
    let (at, start) = (dir.path().display(), start_script(dir.path()));
    let quiet = format!("{{ {start}; }} >/dev/null 2>&1");
    assert!(Command::new("sh").args(["-c", &quiet]).status().await.unwrap().success());
    let pid = dir.path().join("pid");
    let _guard = ByPidFile(&pid);
    let restart = format!("kill -9 $(cat {at}/pid); {start}");
    let key = "od -An -tx1 -N32 /dev/urandom | tr -d ' \\n'; echo";
    let rotate = format!("{{ cat {at}/keys; {key}; }} > {at}/new && mv {at}/new {at}/keys");
    let socket = format!("{at}/kms.sock");
    let mut args = vec!["--socket", &socket, "--wait", "30s", "--strict"];
    args.extend(["--restart-cmd", &restart, "--rotate-cmd", &rotate]);
    args.extend(["--backend-calls-cmd", "echo 0"]);
    let judged = judge(&args).await;
    assert_eq!(judged.status.code(), Some(0), "{}{}", stdout(&judged), stderr(&judged));
    assert!(stdout(&judged).contains(" 0 failed\n"), "{}", stdout(&judged));
}
