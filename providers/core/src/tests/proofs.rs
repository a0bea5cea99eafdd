//! What a key must prove, what it serves before that, and what its probes cost.

use super::*;

/// A canary of KEK 1 as it would stand in the configuration.
fn canary(sealed: &EncryptResponse) -> Value {
    let sealed = crate::Sealed {
        key_id: crate::KeyId::new(&sealed.key_id).unwrap(),
        ciphertext: sealed.ciphertext.clone(),
        annotations: sealed.annotations.clone(),
    };
    crate::Canary::new(sealed, &crate::Secret::new(vec![9; 32])).document()
}

#[tokio::test]
async fn a_key_that_may_not_encrypt_is_served_for_decrypt_with_a_canary_and_without() {
    let kms = Kms::new("decrypt-only");
    let old = Process::calm("decrypt-only").await.encrypt(1).await.unwrap();
    kms.set(|state| state.encrypt_fails = Some(Kind::Denied));
    let mut process = Process::new();
    let mut with_canary = process.key(2, "decrypt-only");
    with_canary["canary"] = canary(&old);
    let mut reads = process.key(3, "decrypt-only");
    (reads["canary"], reads["role"]) = (canary(&old), "read".into());
    let keys = json!([process.key(1, "decrypt-only"), with_canary, reads]);
    process.apply(keys).await.unwrap();
    for id in [1, 2, 3] {
        assert_eq!(process.decrypt(id, &old).await.unwrap(), [9; 32], "key {id}");
        assert_eq!(code(process.encrypt(id).await), Code::PermissionDenied, "key {id}");
    }
    process.until(1, |s| matches!(s, Err(e) if e.code() == Code::PermissionDenied)).await;
    // Whoever is known to read is well as long as it reads.
    process.until(3, |status| key_id(status) == Some("1/1")).await;
}

#[tokio::test]
async fn a_decrypt_only_key_takes_new_credentials_over_and_never_another_kek() {
    let kms = Kms::new("decrypt-only-token");
    let old = Process::calm("decrypt-only-token").await.encrypt(1).await.unwrap();
    kms.set(|state| state.encrypt_fails = Some(Kind::Denied));
    let mut process = Process::new();
    let token = process.path("token");
    std::fs::write(&token, "good-1").unwrap();
    let mut key = process.key(1, "decrypt-only-token");
    key["credentials"] = json!({"token": token});
    process.apply(json!([key])).await.unwrap();
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
    let refused =
        |process: &Process| process.supervisor.shared.status()["keys"][0]["refused"].to_string();
    let before = kms.ask(|state| state.connects);
    replace(&token, "good-2");
    wait(|| kms.ask(|state| state.connects) > before && refused(&process) == "null").await;
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
    // What it has decrypted once tells another KEK from its own.
    kms.set(|state| state.kek = 2);
    replace(&token, "good-3");
    wait(|| refused(&process).contains("another key")).await;
}

#[tokio::test]
async fn a_read_key_encrypts_for_no_probe_and_yet_when_it_is_asked_to() {
    let kms = Kms::new("reader");
    let old = Process::calm("reader").await.encrypt(1).await.unwrap();
    kms.set(|state| (state.encrypts, state.decrypts) = (0, 0));
    let mut process = Process::new();
    let mut reads = process.key(1, "reader");
    (reads["canary"], reads["role"]) = (canary(&old), "read".into());
    process.apply(json!([reads])).await.unwrap();
    process.until(1, |status| key_id(status) == Some("1/1")).await;
    wait(|| kms.ask(|state| state.decrypts) >= 3).await;
    assert_eq!(kms.ask(|state| state.encrypts), 0);
    let sealed = process.encrypt(1).await.unwrap();
    assert_eq!(process.decrypt(1, &sealed).await.unwrap(), [9; 32]);
}

#[tokio::test]
async fn requests_that_come_before_the_first_proof_are_held_and_served() {
    let kms = Kms::new("held");
    let old = Process::calm("held").await.encrypt(1).await.unwrap();
    kms.set(|state| state.fails = Some(Kind::Unavailable));
    let mut process = Process::new();
    process.apply(json!([process.key(1, "held")])).await.unwrap();
    process.until(1, Result::is_err).await;
    let tried = kms.ask(|state| state.connects);
    let heals = async {
        wait(|| kms.ask(|state| state.connects) > tried + 1).await;
        kms.set(|state| state.fails = None);
    };
    let (read, ()) = join(process.decrypt(1, &old), heals).await;
    assert_eq!(read.unwrap(), [9; 32]);
    assert!(process.encrypt(1).await.is_ok());
}

#[tokio::test]
async fn an_attempt_to_encrypt_is_repeated_whole() {
    let kms = Kms::new("whole");
    let process = Process::calm("whole").await;
    kms.set(|state| (state.encrypts, state.decrypts, state.fails_times) = (0, 0, 2));
    process.encrypt(1).await.unwrap();
    let calls = kms.ask(|state| (state.encrypts, state.decrypts));
    assert_eq!(calls, (3, 1), "twice Encrypt failed, and no Decrypt of it was sent");
}

#[tokio::test(start_paused = true)]
async fn a_month_of_probes_costs_what_is_promised() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let (writes, reads) = (Kms::new("price-write"), Kms::new("price-read"));
    let mut process = Process::new();
    let keys = json!([process.key(1, "price-write")]);
    process.configure(keys, json!({})).await.unwrap();
    let old = process.encrypt(1).await.unwrap();
    let mut reader = process.key(2, "price-read");
    (reader["canary"], reader["role"]) = (canary(&old), "read".into());
    process.configure(json!([process.key(1, "price-write"), reader]), json!({})).await.unwrap();
    tokio::time::sleep(DAY).await;
    let calls = |kms: &Kms| kms.ask(|state| state.encrypts + state.decrypts + state.describes);
    let a_month = |kms: &Kms| calls(kms) * 30;
    assert!((80_000..100_000).contains(&a_month(&writes)), "{}", a_month(&writes));
    assert!((8_000..10_500).contains(&a_month(&reads)), "{}", a_month(&reads));
    let encrypts = writes.ask(|state| state.encrypts);
    assert!((260..330).contains(&encrypts), "{encrypts} a day");
}

#[tokio::test(start_paused = true)]
async fn a_lost_kms_turns_status_bad_a_coast_after_the_last_proof() {
    for silent in [false, true] {
        let name = format!("lost-{silent}");
        let kms = Kms::new(&name);
        let mut process = Process::new();
        process.configure(json!([process.key(1, &name)]), json!({})).await.unwrap();
        process.until_healthy(1).await;
        match silent {
            true => kms.hold(),
            false => kms.set(|state| state.fails = Some(Kind::Unavailable)),
        }
        let lost = Instant::now();
        process.until(1, Result::is_err).await;
        let after = lost.elapsed();
        assert!(after <= Duration::from_secs(61), "{after:?}, silent: {silent}");
        kms.set(|state| state.fails = None);
        kms.release();
        process.until_healthy(1).await;
    }
}

#[tokio::test]
async fn a_decrypt_of_anybodys_heals_and_stands_for_the_probe() {
    let kms = Kms::new("traffic");
    let process = Process::calm("traffic").await;
    let sealed = process.encrypt(1).await.unwrap();
    kms.set(|state| state.fails = Some(Kind::Denied));
    assert_eq!(code(process.decrypt(1, &sealed).await), Code::PermissionDenied);
    wait(|| process.supervisor.shared.status()["keys"][0]["last_error"].is_object()).await;
    kms.set(|state| state.fails = None);
    assert_eq!(process.decrypt(1, &sealed).await.unwrap(), [9; 32]);
    assert!(process.status(1).await.is_ok());
}

#[tokio::test]
async fn status_tells_the_age_of_the_last_proof() {
    Kms::new("age");
    let process = Process::calm("age").await;
    let status = process.client(1).await.status(StatusRequest {}).await.unwrap();
    let age = status.metadata().get(crate::PROOF_AGE).unwrap().to_str().unwrap();
    assert!(age.parse::<u64>().is_ok(), "{age}");
}
