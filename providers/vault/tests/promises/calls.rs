//! What each request costs the server, by its own audit log.

use crate::support::{PLAINTEXT, Stage, calm};

#[tokio::test]
async fn encrypt_costs_one_call_and_its_verification_decrypt_one_status_none() {
    let stage = Stage::new("counted").await;
    let mut served = stage.serve_document(&calm(&[stage.app_role_key(1, &stage.key)])).await;
    served.wait_ok().await;
    let sealed = served.round_trip().await;
    let all = async || {
        let audit = crate::support::shared().await.audit();
        let here = |path: &str| path.starts_with("counted/") || path.starts_with("auth/counted/");
        audit.all().unwrap().iter().filter(|asked| here(&asked.path)).count()
    };
    let count = async || (stage.asked("encrypt").await, stage.asked("decrypt").await, all().await);

    let before = count().await;
    for _ in 0..10 {
        served.kms.encrypt(PLAINTEXT).await.unwrap();
    }
    let after = count().await;
    let cost = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    assert_eq!(cost, (10, 10, 20), "encrypts, their verifications, everything");

    for _ in 0..10 {
        served.reads(&sealed).await;
    }
    let later = count().await;
    let cost = (later.0 - after.0, later.1 - after.1, later.2 - after.2);
    assert_eq!(cost, (0, 10, 10), "decrypts cost one call each");

    for _ in 0..100 {
        served.kms.status().await.unwrap();
    }
    assert_eq!(count().await, later, "Status costs nothing");
    assert_eq!(stage.logins().await, 1, "one login for all of it");
}

#[tokio::test]
async fn keys_with_the_same_credentials_share_one_login_and_equal_decrypts_one_call() {
    let stage = Stage::new("together").await;
    let other = stage.bao.make_key(&stage.name, "other").await.unwrap();
    let keys = [stage.app_role_key(1, &stage.key), stage.app_role_key(2, &other)];
    let mut served = stage.serve_document(&calm(&keys)).await;
    served.wait_ok().await;
    assert_eq!(stage.logins().await, 1);
    let sealed = served.round_trip().await;
    let second = stage.kms(2).await;
    let theirs = second.round_trip(PLAINTEXT).await.unwrap();
    assert_ne!(sealed.key_id, theirs.key_id);
    assert!(second.decrypt(&sealed).await.is_err(), "a key reads another's data");

    let before = stage.asked("decrypt").await;
    let calls = (0..32).map(|_| {
        let (kms, sealed) = (served.kms.clone(), sealed.clone());
        tokio::spawn(async move { kms.decrypt(&sealed).await })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        assert_eq!(&call.await.unwrap().unwrap()[..], PLAINTEXT);
    }
    let cost = stage.asked("decrypt").await - before;
    assert!((1..16).contains(&cost), "32 equal decrypts cost {cost} calls");
}
