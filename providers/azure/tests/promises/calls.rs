//! What each request costs the vault, by the fake's own count.

use serde_json::json;

use crate::support::{PLAINTEXT, Stage, calm};

#[tokio::test]
async fn encrypt_costs_one_call_and_its_verification_decrypt_one_status_none() {
    let stage = Stage::new("calls").await;
    let mut served = stage.serve_document(&calm(&[stage.key(1, &stage.by_secret())])).await;
    served.wait_ok().await;
    let sealed = served.round_trip().await;
    let count = || ["encrypt", "decrypt"].map(|name| stage.fake.calls(name));
    let before = (count(), stage.fake.all_calls());
    for _ in 0..10 {
        served.kms.encrypt(PLAINTEXT).await.unwrap();
    }
    let after = (count(), stage.fake.all_calls());
    assert_eq!([after.0[0] - before.0[0], after.0[1] - before.0[1]], [10, 10]);
    assert_eq!(after.1 - before.1, 20, "encrypts, their verifications, nothing else");
    for _ in 0..10 {
        served.reads(&sealed).await;
    }
    assert_eq!(stage.fake.all_calls() - after.1, 10, "decrypts cost one call each");
    let later = stage.fake.all_calls();
    for _ in 0..100 {
        served.kms.status().await.unwrap();
    }
    assert_eq!(stage.fake.all_calls(), later, "Status costs nothing");
    assert_eq!(stage.fake.calls("token"), 1, "one login for all of it");
    assert_eq!(stage.fake.calls("challenge"), 0, "the SDK's first request is answered here");
    let metrics = served.plugin.metrics().await.unwrap();
    for (operation, requests) in [("encrypt", 11), ("decrypt", 22)] {
        let counted = |purpose: &str| {
            let labels = [("operation", operation), ("purpose", purpose)];
            metrics.sum("kms_backend_calls_total", &labels) as u64
        };
        assert_eq!(counted("request"), requests, "{operation}");
        assert_eq!(counted("probe") + requests, stage.fake.calls(operation), "{operation}");
    }
}

#[tokio::test]
async fn keys_with_the_same_credentials_share_one_login() {
    let stage = Stage::new("together").await;
    stage.fake.service().make("other", sidekey_e2e::fakes::azure::KeyKind::Rsa(3072)).unwrap();
    let first = stage.key(1, &stage.by_secret());
    let mut second = stage.key(2, &stage.by_secret());
    second["kek"]["key"] = json!("other");
    let served = stage.serve_document(&calm(&[first, second])).await;
    let other = stage.kms(2).await;
    let (ours, theirs) = (served.round_trip().await, other.round_trip(PLAINTEXT).await.unwrap());
    assert_ne!(ours.key_id, theirs.key_id);
    let error = other.decrypt(&ours).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::FailedPrecondition, "a key reads another's data");
    assert_eq!(stage.fake.calls("token"), 1);
}
