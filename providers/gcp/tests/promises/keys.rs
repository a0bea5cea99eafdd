//! Rotation, and keys that are shut off.

use tonic::Code;

use crate::support::{PLAINTEXT, Stage, failed, quick};

#[tokio::test]
async fn a_rotation_is_announced_by_itself_and_old_data_reads() {
    let stage = Stage::new("rotation").await;
    let mut served = stage.serve().await;
    let old = served.round_trip().await;
    stage.rotate();
    let moved = served.wait_moved(&old.key_id).await;
    let new = served.round_trip().await;
    assert_eq!(new.key_id, moved);
    served.reads(&old).await;
    // Another replica comes to the same.
    served.plugin.restart().await.unwrap();
    served.kms = stage.kms(1).await;
    assert_eq!(served.wait_ok().await, moved);
    served.reads(&old).await;
}

#[tokio::test]
async fn a_version_that_is_disabled_or_to_be_destroyed_is_told_at_once_and_comes_back() {
    let stage = Stage::new("states").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    for state in ["DISABLED", "DESTROY_SCHEDULED"] {
        stage.fake().service().key(&stage.backend.key).set_state(1, state);
        served.wait_bad(Code::FailedPrecondition, state).await;
        failed(served.kms.decrypt(&sealed).await, Code::FailedPrecondition, &[state, "restore"]);
        stage.fake().service().key(&stage.backend.key).set_state(1, "ENABLED");
        assert_eq!(served.wait_ok().await, sealed.key_id);
        served.reads(&sealed).await;
    }
}

#[tokio::test]
async fn a_planned_destruction_is_a_gauge() {
    let stage = Stage::new("planned").await;
    let mut served = stage.serve().await;
    let gauge = async |served: &crate::support::Served| {
        let metrics = served.plugin.metrics().await.unwrap();
        metrics.sum("kms_key_deletion_timestamp_seconds", &[])
    };
    assert_eq!(gauge(&served).await, 0.0);
    drop(served);
    // The description tells it: at the start, and hourly.
    stage.fake().service().key(&stage.backend.key).set_state(1, "DESTROY_SCHEDULED");
    served = stage.spawn(&stage.document(), &[]).await;
    served.wait_bad(Code::FailedPrecondition, "nothing is lost yet").await;
    let admin = served.plugin.admin();
    let told =
        sidekey_e2e::eventually("the time is told", sidekey_e2e::wait::PATIENCE, async || {
            let text = admin.get("/metrics").await?.ok()?.text();
            anyhow::ensure!(text.contains("kms_key_deletion_timestamp_seconds"), "{text}");
            Ok(())
        });
    told.await.unwrap();
    assert_eq!(gauge(&served).await, 1_935_817_689.0, "2031-05-06T07:08:09Z");
}

#[tokio::test]
async fn a_key_that_is_missing_is_said_to_be_and_not_made() {
    let stage = Stage::new("missing").await;
    let ghost = stage.backend.key.replace("/kms", "/ghost");
    let mut served = stage.spawn(&quick(&[stage.key(1, &ghost)]), &[]).await;
    served.wait_bad(Code::FailedPrecondition, "never made").await;
    assert_eq!(stage.fake().service().keys.len(), 1);
    failed(served.kms.encrypt(PLAINTEXT).await, Code::FailedPrecondition, &[&ghost]);
}

#[tokio::test]
async fn each_key_of_a_process_reads_its_own_data_alone() {
    let stage = Stage::new("several").await;
    let other = stage.fake().service().create_key("other");
    let keys = [stage.key(1, &stage.backend.key), stage.key(2, &other)];
    let served = stage.serve_document(&quick(&keys), &[]).await;
    let (one, second) = (served.round_trip().await, stage.kms(2).await);
    let two = second.round_trip(PLAINTEXT).await.unwrap();
    assert_ne!(one.key_id, two.key_id);
    failed(second.decrypt(&one).await, Code::FailedPrecondition, &["another key"]);
    failed(served.kms.decrypt(&two).await, Code::FailedPrecondition, &["another key"]);
    assert_eq!(stage.fake().calls("token"), 1, "they share one login");
}
