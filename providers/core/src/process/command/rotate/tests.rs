use std::sync::Arc;

use clap::FromArgMatches;
use tempfile::TempDir;

use super::*;
use crate::testing::{Scripted, ScriptedKms};
use crate::{Canary, Sealed, Secret};

/// A key 1 at a KMS of this name.
struct Stage {
    kms: Arc<ScriptedKms>,
    directory: TempDir,
}

impl Stage {
    fn new(kms: &str) -> Self {
        let stage = Self { kms: ScriptedKms::new(kms), directory: tempfile::tempdir().unwrap() };
        stage.write(&json!({"keys": [{"id": 1, "kek": {"kms": kms}}]}));
        stage
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn write(&self, document: &Value) {
        std::fs::write(self.path("config"), document.to_string()).unwrap();
    }

    fn args(&self, more: &[&str]) -> RotateArgs {
        let config = self.path("config");
        let mut line = vec!["rotate", "--config", &config];
        line.extend(more);
        let RotateCommand::Rotate(args) = command(&line).unwrap();
        args
    }

    async fn ask(&self, more: &[&str]) -> Result<Value, Error> {
        ask::<Scripted>(&self.args(more)).await.map(|answer| answer.json)
    }

    fn rotations(&self) -> u32 {
        self.kms.ask(|state| state.rotations)
    }
}

fn command(line: &[&str]) -> Result<RotateCommand, clap::Error> {
    let tree = RotateCommand::augment_subcommands(clap::Command::new("x").no_binary_name(true));
    RotateCommand::from_arg_matches(&tree.try_get_matches_from(line)?)
}

fn hash_of(key_id: &str) -> String {
    KeyId::new(key_id).unwrap().hash()
}

#[tokio::test(start_paused = true)]
async fn it_asks_once_and_waits_until_the_kms_reports_the_new_version() {
    let stage = Stage::new("rotate-once");
    stage.kms.set(|state| state.lags = 7);
    let said = stage.ask(&["--key=1"]).await.unwrap();
    assert_eq!(said["rotated"], true);
    assert_eq!((&said["before"], &said["after"]), (&hash_of("1/1").into(), &hash_of("1/2").into()));
    assert_eq!(stage.rotations(), 1);
    assert_eq!(stage.kms.ask(|state| state.closes), 1, "what was taken is given back");
}

#[tokio::test(start_paused = true)]
async fn run_again_with_the_hash_of_before_it_does_nothing() {
    let stage = Stage::new("rotate-again");
    let before = hash_of("1/1");
    let words = ["--key=1", "--if-key-id-hash", &before];
    assert_eq!(stage.ask(&words).await.unwrap()["rotated"], true);
    let said = stage.ask(&words).await.unwrap();
    assert_eq!((&said["rotated"], &said["before"]), (&false.into(), &before.into()));
    assert_eq!(said["after"], hash_of("1/2"));
    assert_eq!(stage.rotations(), 1);
}

#[tokio::test(start_paused = true)]
async fn hashes_are_those_that_the_shim_announces_where_it_is_told_so() {
    let stage = Stage::new("rotate-shim");
    let before = hash_of("sidekey/4-0a1b2c3d/1/1");
    let words = ["--key=1", "--shim-key=4-0a1b2c3d", "--if-key-id-hash", &before];
    let said = stage.ask(&words).await.unwrap();
    assert_eq!(said["rotated"], true);
    assert_eq!(said["after"], hash_of("sidekey/4-0a1b2c3d/1/2"));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_does_not_come_in_time_is_a_passing_failure_that_tells_how_to_go_on() {
    let stage = Stage::new("rotate-late");
    stage.kms.set(|state| state.lags = 1000);
    let error = stage.ask(&["--key=1", "--timeout=10s"]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(error.report().contains(&hash_of("1/1")), "{}", error.report());
    assert_eq!(stage.rotations(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_kek_than_that_of_the_canary_is_never_asked() {
    let stage = Stage::new("rotate-canary");
    let sealed = Sealed {
        key_id: KeyId::new("9/1").unwrap(),
        ciphertext: vec![9, 0, 0].into(),
        annotations: Default::default(),
    };
    let canary = Canary::new(sealed, &Secret::new(vec![1; 32])).document();
    stage.write(&json!({"keys": [{"id": 1, "kek": {"kms": "rotate-canary"}, "canary": canary}]}));
    let error = stage.ask(&["--key=1"]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::KeyState, "{}", error.report());
    assert_eq!(stage.rotations(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_usage_is_told_from_a_kms_that_refuses() {
    let stage = Stage::new("rotate-usage");
    let error = stage.ask(&["--key=2"]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.report().contains("has no key 2, only 1"), "{}", error.report());
    for kind in [Kind::Denied, Kind::Invalid] {
        stage.kms.set(|state| state.fails = Some(kind));
        assert_ne!(stage.ask(&["--key=1"]).await.unwrap_err().kind(), Kind::Invalid);
    }
    stage.write(&json!({"keys": [{"id": 1, "kek": {}}]}));
    let error = stage.ask(&["--key=1"]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.report().contains("keys[0].kek.kms"), "{}", error.report());
    for bad in ["--if-key-id-hash=sha256:12", "--if-key-id-hash=x", "--shim-key=4", "--timeout=5"] {
        assert!(command(&["rotate", "--config=x", "--key=1", bad]).is_err(), "{bad}");
    }
}

#[test]
fn the_answer_or_why_there_is_none_goes_into_the_result_file() {
    let stage = Stage::new("rotate-result");
    let file = stage.path("result");
    let run = || {
        let args = stage.args(&["--key=1", "--result-file", &file]);
        let result = rotate::<Scripted>(RotateCommand::Rotate(args));
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(written.len() < 4096);
        (result.is_ok(), serde_json::from_str::<Value>(&written).unwrap())
    };
    let (done, written) = run();
    assert_eq!((done, &written["after"]), (true, &hash_of("1/2").into()));
    stage.kms.set(|state| state.fails = Some(Kind::Denied));
    let (done, written) = run();
    assert_eq!((done, &written["kind"]), (false, &"denied".into()));
    assert!(written["error"].is_string());
}
