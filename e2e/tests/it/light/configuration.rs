//! Promise: a broken configuration is refused with exit 64 and a list of every
//! mistake in it, each with its path, before anything is served.

use std::collections::BTreeSet;

use serde_json::Value;
use sidekey_e2e::binaries::{self, Outcome};
use sidekey_e2e::local::PROGRAM;
use sidekey_e2e::{LocalPlugin, Scratch};

const EXIT_USAGE: Option<i32> = Some(64);

/// One mistake a line; the paths are those of `MISTAKES`.
const BROKEN: &str = r#"
admin: 127.0.0.1:many
log: {format: xml, level: chatty}
socket: {mode: "0999"}
probe: {interval: 0s, timeout: soon}
colour: blue
keys:
- id: one
  type: aws
  listen: tcp://127.0.0.1:1
  shape: round
  kek: {lineage: unknown, arn: x}
- {id: "2", listen: "unix://DIR/never.sock", credentials: {keyFile: relative/path}}
- {id: "2", listen: "unix://DIR/never.sock", credentials: {keyFile: /k, pin: "1"}}
"#;

const MISTAKES: [&str; 17] = [
    "admin",
    "log.format",
    "log.level",
    "socket.mode",
    "probe.interval",
    "probe.timeout",
    "colour",
    "keys[0].id",
    "keys[0].type",
    "keys[0].listen",
    "keys[0].shape",
    "keys[0].kek.lineage",
    "keys[0].kek.arn",
    "keys[0].credentials.keyFile",
    "keys[1].credentials.keyFile",
    "keys[2].id",
    "keys[2].listen",
];

#[tokio::test]
async fn a_broken_configuration_is_refused_with_64_and_every_mistake_in_it() {
    let scratch = Scratch::new("broken").unwrap();
    let file = write(&scratch, BROKEN);

    let served = run(&["--config", &file]).await;
    assert_eq!(served.code, EXIT_USAGE, "{}", served.stderr);
    lists_every_mistake(&served.stderr);

    let checked = run(&["check", "--config", &file]).await;
    assert_eq!(checked.code, EXIT_USAGE, "{}", checked.stderr);
    lists_every_mistake(&checked.stderr);
    assert!(!scratch.path().join("never.sock").exists(), "something was served");
}

#[tokio::test]
async fn check_tells_machines_every_mistake_too() {
    let scratch = Scratch::new("broken").unwrap();
    let file = write(&scratch, BROKEN);
    let args = ["check", "--config", &file, "-o", "json"];
    let checked = run(&args).await;
    assert_eq!(checked.code, EXIT_USAGE, "{}", checked.stderr);
    let answer: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(answer["ok"], false);
    let found: BTreeSet<&str> = answer["mistakes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["path"].as_str().unwrap())
        .collect();
    let mut expected = BTreeSet::from(MISTAKES);
    expected.insert("keys[2].credentials.pin");
    assert_eq!(found, expected);
}

#[tokio::test]
async fn what_is_not_yaml_or_not_there_is_refused_with_64() {
    let scratch = Scratch::new("broken").unwrap();
    for text in ["keys: [", "", "keys: []", "just words"] {
        let file = write(&scratch, text);
        for args in [&["--config", file.as_str()][..], &["check", "--config", &file]] {
            let outcome = run(args).await;
            assert_eq!(outcome.code, EXIT_USAGE, "{text:?}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(&file), "{}", outcome.stderr);
        }
    }
    let missing = scratch.path().join("missing.yaml").display().to_string();
    for args in [&["--config", missing.as_str()][..], &["--listen", "tcp://x"], &["--no-such-flag"]]
    {
        let outcome = run(args).await;
        assert_eq!(outcome.code, EXIT_USAGE, "{args:?}: {}", outcome.stderr);
    }
}

#[tokio::test]
async fn a_sound_configuration_passes_the_check() {
    let scratch = Scratch::new("sound").unwrap();
    let plugin = LocalPlugin::start(&scratch, "plugin").await.unwrap();
    let keys = format!(
        "keys: [{{id: 1, listen: \"unix://DIR/other.sock\", credentials: {{keyFile: {}}}}}]",
        plugin.key_file().display()
    );
    let file = write(&scratch, &keys);
    run(&["check", "--config", &file]).await.ok().unwrap();
}

async fn run(args: &[&str]) -> Outcome {
    binaries::run(PROGRAM, args).await.unwrap()
}

/// Writes a configuration, in which `DIR` is the scratch directory.
fn write(scratch: &Scratch, text: &str) -> String {
    let path = scratch.path().join("config.yaml");
    std::fs::write(&path, text.replace("DIR", &scratch.path().display().to_string())).unwrap();
    path.display().to_string()
}

fn lists_every_mistake(text: &str) {
    for path in MISTAKES {
        let listed = text.lines().any(|line| line.trim_start().starts_with(&format!("{path}: ")));
        assert!(listed, "{path} is not listed in:\n{text}");
    }
}
