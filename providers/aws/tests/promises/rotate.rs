//! `rotate`: new key material on demand.

use std::process::Command;

use serde_json::{Value, json};
use sidekey_core::KeyId;
use sidekey_e2e::aws::KmsFault;

use crate::support::{ACCESS_KEY, Aws, PLAINTEXT, SECRET_KEY, binary, healthy, kms, until};

/// Runs `rotate` on the key; tells its exit code and its answer.
async fn rotate(aws: &Aws, more: &[&str]) -> (Option<i32>, Value) {
    let path = aws.scratch.path().join("rotate.yaml");
    let key = json!({"id": 1, "kek": {"key": aws.key}, "settings": {"endpoint": aws.url()}});
    std::fs::write(&path, json!({"keys": [key]}).to_string()).unwrap();
    let mut command = Command::new(binary());
    command.env_clear().env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
    command.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    command.args(["rotate", "--key=1", "--output=json", "--config"]).arg(path).args(more);
    let ran = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = serde_json::from_slice(&ran.stdout);
    (ran.status.code(), said.unwrap_or_else(|error| panic!("{error}: {ran:?}")))
}

fn hash(key_id: &str) -> String {
    KeyId::new(key_id).unwrap().hash()
}

#[tokio::test]
async fn a_rotation_on_demand_moves_key_id_of_a_running_plugin_and_is_not_done_twice() {
    let aws = Aws::alone("on-demand").await;
    let plugin = aws.serve().await;
    let old = healthy(&plugin, "kms").await;
    let client = kms(&plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    let rotations = aws.moto.calls("RotateKeyOnDemand").await.unwrap();
    let before = hash(&old);
    let words = ["--if-key-id-hash", before.as_str()];
    let (code, said) = rotate(&aws, &words).await;
    assert_eq!(
        (code, &said["rotated"], &said["before"]),
        (Some(0), &true.into(), &before.as_str().into())
    );
    let new = until("key_id moves", async || {
        let now = client.status().await?.key_id;
        anyhow::ensure!(now != old, "it is still {old}");
        Ok(now)
    })
    .await;
    assert_eq!(said["after"], hash(&new), "it is what the plugin announces");
    assert_eq!(client.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    // As a Job that was killed before it could answer, and is run again.
    let (code, said) = rotate(&aws, &words).await;
    assert_eq!(
        (code, &said["rotated"], &said["after"]),
        (Some(0), &false.into(), &hash(&new).into())
    );
    assert_eq!(aws.moto.calls("RotateKeyOnDemand").await.unwrap(), rotations + 1);
}

#[tokio::test]
async fn what_aws_refuses_for_good_is_told_with_what_to_do() {
    let aws = Aws::alone("no-rotate").await;
    let cases = [
        ("AccessDeniedException", "denied", "allow kms:RotateKeyOnDemand"),
        ("LimitExceededException", "key_state", "new key"),
    ];
    for (fault, kind, words) in cases {
        let fault = KmsFault::error(fault, "as the test wants it").on("RotateKeyOnDemand");
        aws.moto.faults(&[fault]).await.unwrap();
        let (code, said) = rotate(&aws, &[]).await;
        assert_eq!((code, &said["kind"]), (Some(1), &kind.into()), "{said}");
        assert!(said["error"].as_str().unwrap().contains(words), "{said}");
    }
}
