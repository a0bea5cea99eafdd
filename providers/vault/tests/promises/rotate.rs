//! `rotate`: a new version on demand.

use serde_json::Value;
use sidekey_core::KeyId;

use crate::support::{Stage, run};

/// Runs `rotate` on the stage's key; tells its exit code and its answer.
async fn rotate(stage: &Stage, more: &[&str]) -> (Option<i32>, Value) {
    let file = stage.path("rotate.yaml").display().to_string();
    std::fs::write(&file, stage.document().to_string()).unwrap();
    let words = ["rotate", "--config", &file, "--key=1", "-o", "json"];
    let words: Vec<String> = words.iter().chain(more).map(|word| (*word).to_owned()).collect();
    let ran = tokio::task::spawn_blocking(move || run(&words)).await.unwrap();
    let said = serde_json::from_slice(&ran.stdout);
    (ran.status.code(), said.unwrap_or_else(|error| panic!("{error}: {ran:?}")))
}

fn hash(key_id: &str) -> String {
    KeyId::new(key_id).unwrap().hash()
}

#[tokio::test]
async fn a_rotation_on_demand_moves_key_id_of_a_running_plugin_and_is_not_done_twice() {
    let stage = Stage::new("on-demand").await;
    let mut served = stage.serve().await;
    let (old, sealed) = (served.wait_ok().await, served.round_trip().await);
    stage.allow(&["read", "encrypt", "decrypt", "rotate"]).await.unwrap();
    let before = hash(&old);
    let words = ["--if-key-id-hash", before.as_str()];
    let (code, said) = rotate(&stage, &words).await;
    assert_eq!(
        (code, &said["rotated"], &said["before"]),
        (Some(0), &true.into(), &before.as_str().into())
    );
    let new = served.wait_moved(&old).await;
    assert_eq!(said["after"], hash(&new), "it is what the plugin announces");
    served.reads(&sealed).await;
    // As a Job that was killed before it could answer, and is run again.
    let result = stage.path("result").display().to_string();
    let (code, said) = rotate(&stage, &[&words[..], &["--result-file", &result]].concat()).await;
    assert_eq!(
        (code, &said["rotated"], &said["after"]),
        (Some(0), &false.into(), &hash(&new).into())
    );
    assert_eq!(served.kms.status().await.unwrap().key_id, new, "nothing was done");
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&result).unwrap()).unwrap();
    assert_eq!(written, said);
}

#[tokio::test]
async fn a_policy_that_does_not_allow_to_rotate_is_told_with_its_path() {
    let stage = Stage::new("no-rotate").await;
    let (code, said) = rotate(&stage, &[]).await;
    assert_eq!((code, &said["kind"]), (Some(1), &"denied".into()), "{said}");
    let error = said["error"].as_str().unwrap();
    assert!(error.contains("update on no-rotate/keys/kms/rotate"), "{error}");
}
