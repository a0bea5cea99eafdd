//! What each request costs at Google.

use crate::support::{PLAINTEXT, Stage, calm};

#[tokio::test]
async fn encrypt_costs_one_call_and_its_verification_decrypt_one_status_none() {
    let stage = Stage::new("calls").await;
    let document = calm(&[stage.key(1, &stage.backend.key)]);
    let mut served = stage.serve_document(&document, &[]).await;
    served.wait_ok().await;
    let sealed = served.round_trip().await;
    let fake = stage.fake();
    let count = || (fake.calls("encrypt"), fake.calls("decrypt"), fake.gateway().requests());
    let before = count();
    for _ in 0..10 {
        served.kms.encrypt(PLAINTEXT).await.unwrap();
    }
    let after = count();
    let cost = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    assert_eq!(cost, (10, 10, 20), "encrypts, their verifications, everything");
    for _ in 0..10 {
        served.reads(&sealed).await;
    }
    let later = count();
    let cost = (later.0 - after.0, later.1 - after.1, later.2 - after.2);
    assert_eq!(cost, (0, 10, 10), "decrypts cost one call each");
    for _ in 0..100 {
        served.kms.status().await.unwrap();
    }
    assert_eq!(count(), later, "Status costs nothing");
    assert_eq!(fake.calls("token"), 1, "one token for all of it");
    let metrics = served.plugin.metrics().await.unwrap();
    for (operation, requests) in [("encrypt", 11), ("decrypt", 22)] {
        let counted = |purpose: &str| {
            let labels = [("operation", operation), ("purpose", purpose)];
            metrics.sum("kms_backend_calls_total", &labels) as u64
        };
        assert_eq!(counted("request"), requests, "{operation}");
        assert_eq!(counted("probe") + requests, fake.calls(operation), "{operation}");
    }
}

#[tokio::test]
async fn a_key_that_only_reads_needs_no_right_to_encrypt_and_is_asked_nothing_else() {
    let stage = Stage::new("reader").await;
    let sealed = stage.serve().await.round_trip().await;
    let decrypt = [sidekey_e2e::fakes::gcp::DECRYPT];
    stage.fake().service().allow(sidekey_e2e::gcp::ACCOUNT, &decrypt);
    let mut key = stage.key(1, &stage.backend.key);
    key["role"] = "read".into();
    let served = stage.spawn(&calm(&[key]), &[]).await;
    let kms = served.kms.clone();
    let read = sidekey_e2e::eventually("it reads", sidekey_e2e::wait::PATIENCE, async || {
        Ok(kms.decrypt(&sealed).await?)
    });
    assert_eq!(&read.await.unwrap()[..], PLAINTEXT);
}
