//! The command line: exit codes and what it says.

use std::os::unix::net::UnixListener;
use std::process::Stdio;

use crate::support::{Home, binary, complaint, json, run};

#[test]
fn bad_usage_exits_with_64_and_says_why() {
    let home = Home::new();
    let (key, nowhere) = (home.at("key"), home.at("nowhere.yaml"));
    let cases: [(&[&str], &str); 14] = [
        (&[], "nothing to serve"),
        (&["--bogus"], "--bogus"),
        (&["frobnicate"], "frobnicate"),
        (&["--listen", "/x/y.sock"], "--listen needs --key-file"),
        (&["--create-key"], "--key-file"),
        (&["--config", &nowhere], "does not exist"),
        (&["--config", &nowhere, "--key-file", &key, "--create-key"], "exclude each other"),
        (&["--key-file", &key, "--create-key", "--listen", "tcp://x"], "keys[0].listen"),
        (&["--key-file", &key, "--create-key", "--admin", "here"], "admin: \"here\""),
        (&["--key-file", &key, "--create-key", "--coast", "60"], "probe.coast"),
        (&["--key-file", &key, "--create-key", "--socket-mode", "4777"], "socket.mode"),
        (&["rotate"], "--key-file"),
        (&["probe"], "--socket"),
        (&["probe", "--socket", "relative.sock"], "relative.sock"),
    ];
    for (args, why) in cases {
        let output = run(args);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
    assert!(home.names().is_empty(), "a command that was refused made {:?}", home.names());
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in ["check", "probe", "canary", "create", "rotate", "activate", "show"] {
        let output = run(&[command, "--help"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(said.contains("Example") && said.contains("--output"), "{command}: {said}");
    }
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    let version = String::from_utf8(run(&["--version"]).stdout).unwrap();
    assert_eq!(version.trim(), format!("sidekey-local {}", env!("CARGO_PKG_VERSION")));
    // As Go's flags are written.
    assert_eq!(run(&["-version"]).status.code(), Some(0));
}

const MISTAKES: &str = "
admin: nowhere
drain: soon
log: {level: loud}
socket: {mode: 0999}
surprise: 1
keys:
- {id: 1, type: aws, kek: {lineage: short}, credentials: {keyFile: relative}}
- {id: 1, credentials: {keyFile: /etc/x, token: hunter2}}
- {credentials: {}}
";

const PATHS: [&str; 12] = [
    "admin",
    "drain",
    "keys[0].credentials.keyFile",
    "keys[0].kek.lineage",
    "keys[0].type",
    "keys[1].credentials.token",
    "keys[1].id",
    "keys[1].listen",
    "keys[2].credentials.keyFile",
    "keys[2].id",
    "log.level",
    "socket.mode",
];

#[test]
fn check_lists_every_mistake_with_its_path_and_so_does_a_start() {
    let home = Home::new();
    home.write("bad.yaml", MISTAKES);
    let bad = home.at("bad.yaml");
    let checked = run(&["check", "--config", &bad, "-o", "json"]);
    assert_eq!(checked.status.code(), Some(64));
    let answer = json(&checked);
    assert_eq!(answer["ok"], false);
    let mut paths: Vec<_> = answer["mistakes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["path"].as_str().unwrap())
        .collect();
    paths.sort_unstable();
    let mut expected = PATHS.to_vec();
    expected.push("surprise");
    assert_eq!(paths, expected);
    for args in [&["check", "--config", &bad][..], &["--config", &bad]] {
        let output = run(args);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(64), "{said}");
        for path in &expected {
            assert!(said.contains(&format!("  {path}: ")), "{args:?} without {path}: {said}");
        }
        assert!(said.contains("13 mistakes") && !said.contains("hunter2"), "{said}");
    }
}

#[test]
fn check_looks_for_the_files_too() {
    let home = Home::new();
    home.make_key("key");
    let config = |key: &str| format!("keys: [{{id: 1, credentials: {{keyFile: {key}}}}}]");
    home.write("good.yaml", &config(&home.at("key")));
    home.write("bad.yaml", &config(&home.at("missing")));
    let good = run(&["check", "--config", &home.at("good.yaml"), "-o", "json"]);
    assert_eq!((good.status.code(), &json(&good)["ok"]), (Some(0), &true.into()));
    let bad = run(&["check", "--config", &home.at("bad.yaml"), "-o", "json"]);
    assert_eq!(bad.status.code(), Some(64));
    let mistake = &json(&bad)["mistakes"][0];
    assert_eq!(mistake["path"], "keys[0]");
    assert!(mistake["message"].as_str().unwrap().contains("does not exist"), "{mistake}");
}

#[tokio::test]
async fn probe_tells_by_its_exit_code() {
    let home = Home::new();
    let socket = home.at("kms.sock");
    let probe = |more: &[&str]| run(&[&["probe", "--socket", &socket][..], more].concat());
    let nobody = probe(&["-o", "json"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert_eq!(json(&nobody)["kind"], "unavailable");
    // A key that is not there yet: the socket listens, and Status is not ok.
    let flags: Vec<_> = home.flags().into_iter().filter(|flag| flag != "--create-key").collect();
    let process = crate::support::Process::start(&flags);
    process.logs("probe of the key failed").await;
    assert_eq!(probe(&[]).status.code(), Some(0));
    let sick = probe(&["--healthy"]);
    assert_eq!(sick.status.code(), Some(1));
    assert!(complaint(&sick).contains("does not exist"), "{}", complaint(&sick));
    home.make_key("key");
    home.healthy("kms.sock").await;
    let healthy = probe(&["--healthy", "-o", "json"]);
    assert_eq!(healthy.status.code(), Some(0));
    let hash = json(&healthy)["key_id_hash"].clone();
    assert_eq!(process.status().await["keys"][0]["key_id_hash"], hash);
    assert_eq!(probe(&["--timeout", "3"]).status.code(), Some(64));
    process.stop().await;
    // Somebody who listens and never answers.
    let _mute = UnixListener::bind(home.path("kms.sock")).unwrap();
    let mute = probe(&["--healthy", "--timeout", "200ms"]);
    assert_eq!(mute.status.code(), Some(1));
    assert!(complaint(&mute).contains("did not answer in 200ms"), "{}", complaint(&mute));
}

#[test]
fn an_answer_that_nobody_reads_is_no_crash() {
    let home = Home::new();
    home.make_key("key");
    let key = home.at("key");
    let cases: [(&[&str], i32); 3] = [
        (&["show", "--key-file", &key], 0),
        (&["check", "--config", "/nowhere"], 64),
        (&["--config", "/nowhere"], 64),
    ];
    for (args, expected) in cases {
        let mut child = binary();
        child.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(expected), "{args:?}");
    }
}
