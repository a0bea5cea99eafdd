//! PINs: tokens lock after some wrong ones, so none is tried twice.

use sidekey_e2e::softhsm::PIN;
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, quick};

#[tokio::test]
async fn a_wrong_pin_is_tried_once_whatever_asks_and_a_new_one_is_taken_over() {
    let stage = Stage::new("pin").await;
    stage.write(&stage.hsm.pin_file(), "wrong-1");
    // Two keys on one token, and each of them asks again every 300 ms and for every request.
    let mut served = stage.launch(&quick(&[stage.spoilt(1), stage.spoilt(2)])).await;
    let other = stage.kms(2).await;
    let refused = served.wait_bad().await;
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    for _ in 0..5 {
        served.kms.encrypt(PLAINTEXT).await.unwrap_err();
        other.encrypt(PLAINTEXT).await.unwrap_err();
    }
    assert_eq!(stage.logins(), 1, "{}", stage.said());
    assert!(!stage.said().contains("wrong-1"), "a PIN is in the log");
    // The first that is wrong, too, in another file: it makes a new client, and is one more.
    stage.write(&stage.hsm.pin_file(), "wrong-2");
    let tried = || async {
        anyhow::ensure!(stage.logins() == 2);
        Ok(())
    };
    sidekey_e2e::eventually("the new PIN is tried", sidekey_e2e::wait::PATIENCE, tried)
        .await
        .unwrap();
    for _ in 0..5 {
        served.kms.encrypt(PLAINTEXT).await.unwrap_err();
    }
    assert_eq!(stage.logins(), 2);
    let pid = served.plugin.process().pid();
    stage.write(&stage.hsm.pin_file(), PIN);
    served.wait_ok().await;
    served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_eq!(stage.logins(), 3, "{}", stage.said());
    assert_eq!(served.plugin.process().pid(), pid);
}

#[tokio::test]
async fn a_login_that_fails_without_saying_why_is_not_tried_again_with_the_same_pin() {
    let stage = Stage::new("login").await;
    let entries = [stage.spoilt(1), stage.spoilt(2)];
    stage.spoil("login");
    let served = stage.launch(&quick(&entries)).await;
    let other = stage.kms(2).await;
    served.wait_bad().await;
    for _ in 0..5 {
        served.kms.encrypt(PLAINTEXT).await.unwrap_err();
        other.encrypt(PLAINTEXT).await.unwrap_err();
    }
    assert_eq!(stage.logins(), 1, "{}", stage.said());
    let refused = async || {
        let refused = served.wait_bad().await;
        anyhow::ensure!(refused.code() == Code::PermissionDenied, "{refused}");
        Ok(())
    };
    let told = sidekey_e2e::eventually("it is told", sidekey_e2e::wait::PATIENCE, refused).await;
    told.unwrap();
    stage.spoil("");
    stage.write(&stage.hsm.pin_file(), &format!("{PIN}\n"));
    served.wait_ok().await;
    assert_eq!(stage.logins(), 2, "{}", stage.said());
}

#[tokio::test]
async fn a_pin_that_was_changed_at_the_token_serves_on_and_logs_in_anew_from_its_file() {
    let stage = Stage::new("changed").await;
    let mut served = stage.serve(&quick(&[stage.entry(1)])).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    stage.hsm.change_pin(PIN, "dog-0042").await.unwrap();
    served.kms.reads(&sealed, PLAINTEXT).await.unwrap();
    stage.write(&stage.hsm.pin_file(), "dog-0042\n");
    served.plugin.restart().await.unwrap();
    stage.kms(1).await.reads(&sealed, PLAINTEXT).await.unwrap();
}
