//! What a key must prove, what it serves before that, and what its probes cost.

use super::*;

/// A key whose token is in a file, and that file.
fn with_token(process: &Process, kms: &str) -> (Value, std::path::PathBuf) {
    let token = process.path("token");
    std::fs::write(&token, "good-1").unwrap();
    let mut key = process.key(1, kms);
    key["credentials"] = json!({"token": token});
    (key, token)
}

/// What `/status` shows of the first key.
fn shown(process: &Process, field: &str) -> Value {
    process.supervisor.shared.status()["keys"][0][field].clone()
}

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
    let kms = ScriptedKms::new("decrypt-only");
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
    let kms = ScriptedKms::new("decrypt-only-token");
    let old = Process::calm("decrypt-only-token").await.encrypt(1).await.unwrap();
    kms.set(|state| state.encrypt_fails = Some(Kind::Denied));
    let mut process = Process::new();
    let (key, token) = with_token(&process, "decrypt-only-token");
    process.apply(json!([key])).await.unwrap();
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
    let refused = |process: &Process| shown(process, "refused").to_string();
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
    let kms = ScriptedKms::new("reader");
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
    let kms = ScriptedKms::new("held");
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
    let kms = ScriptedKms::new("whole");
    let process = Process::calm("whole").await;
    kms.set(|state| (state.encrypts, state.decrypts, state.fails_times) = (0, 0, 2));
    process.encrypt(1).await.unwrap();
    let calls = kms.ask(|state| (state.encrypts, state.decrypts));
    assert_eq!(calls, (3, 1), "twice Encrypt failed, and no Decrypt of it was sent");
}

#[tokio::test(start_paused = true)]
async fn a_month_of_probes_costs_what_is_promised() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let (writes, reads) = (ScriptedKms::new("price-write"), ScriptedKms::new("price-read"));
    let mut process = Process::new();
    let keys = json!([process.key(1, "price-write")]);
    process.configure(keys, json!({})).await.unwrap();
    let old = process.encrypt(1).await.unwrap();
    let mut reader = process.key(2, "price-read");
    (reader["canary"], reader["role"]) = (canary(&old), "read".into());
    process.configure(json!([process.key(1, "price-write"), reader]), json!({})).await.unwrap();
    tokio::time::sleep(DAY).await;
    let calls =
        |kms: &ScriptedKms| kms.ask(|state| state.encrypts + state.decrypts + state.describes);
    let a_month = |kms: &ScriptedKms| calls(kms) * 30;
    assert!((80_000..100_000).contains(&a_month(&writes)), "{}", a_month(&writes));
    assert!((8_000..=10_000).contains(&a_month(&reads)), "{}", a_month(&reads));
    let encrypts = writes.ask(|state| state.encrypts);
    assert!((260..330).contains(&encrypts), "{encrypts} a day");
}

#[tokio::test(start_paused = true)]
async fn a_lost_kms_turns_status_bad_a_coast_after_the_last_proof() {
    for silent in [false, true] {
        let name = format!("lost-{silent}");
        let kms = ScriptedKms::new(&name);
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
        let about = Duration::from_secs(25)..Duration::from_secs(62);
        assert!(about.contains(&after), "{after:?}, silent: {silent}");
        kms.set(|state| state.fails = None);
        kms.release();
        process.until_healthy(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn anybodys_decrypt_stands_for_the_probe_and_heals_a_passing_failure() {
    let kms = ScriptedKms::new("traffic");
    let mut process = Process::new();
    process.configure(json!([process.key(1, "traffic")]), json!({})).await.unwrap();
    let sealed = process.encrypt(1).await.unwrap();
    let probed = kms.ask(|state| state.decrypts);
    for _ in 0..24 {
        process.decrypt(1, &sealed).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let decrypts = kms.ask(|state| state.decrypts) - probed;
    assert!(decrypts <= 24 + 2, "{decrypts} for 24 requests in four minutes");
    let coasting = |process: &Process| shown(process, "coasting_since");
    kms.set(|state| state.fails = Some(Kind::Unavailable));
    assert_eq!(code(process.decrypt(1, &sealed).await), Code::Unavailable);
    wait(|| coasting(&process).is_string()).await;
    let gauge = |process: &Process| {
        let metrics = process.supervisor.shared.metrics();
        metrics.contains("\nkms_coasting_since_timestamp_seconds{key=\"1\"} ")
    };
    assert!(gauge(&process));
    kms.set(|state| state.fails = None);
    process.decrypt(1, &sealed).await.unwrap();
    assert!(coasting(&process).is_null() && !gauge(&process));
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_the_key_is_asked_every_five_seconds() {
    let kms = ScriptedKms::new("soon");
    let mut process = Process::new();
    process.configure(json!([process.key(1, "soon")]), json!({})).await.unwrap();
    let sealed = process.encrypt(1).await.unwrap();
    kms.set(|state| state.fails = Some(Kind::KeyState));
    assert_eq!(code(process.decrypt(1, &sealed).await), Code::FailedPrecondition);
    process.until(1, Result::is_err).await;
    kms.set(|state| state.fails = None);
    let healed = Instant::now();
    process.until_healthy(1).await;
    assert!(healed.elapsed() <= Duration::from_secs(6), "{:?}", healed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_read_key_is_well_for_hours_with_and_without_requests() {
    const HOUR: Duration = Duration::from_secs(3600);
    ScriptedKms::new("hours");
    let mut process = Process::new();
    process.configure(json!([process.key(1, "hours")]), json!({})).await.unwrap();
    let old = process.encrypt(1).await.unwrap();
    let mut reads = process.key(2, "hours");
    (reads["canary"], reads["role"]) = (canary(&old), "read".into());
    process.configure(json!([process.key(1, "hours"), reads]), json!({})).await.unwrap();
    process.until(2, |status| key_id(status) == Some("1/1")).await;
    let end = Instant::now() + 2 * HOUR;
    let mut asks = [50, 140, 200, 290, 10].iter().cycle();
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_secs(*asks.next().unwrap())).await;
        for id in [1, 2] {
            process.status(id).await.unwrap();
        }
        process.decrypt(2, &old).await.unwrap();
    }
    while Instant::now() < end + HOUR {
        tokio::time::sleep(Duration::from_secs(20)).await;
        process.status(2).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_key_that_is_asked_to_encrypt_stays_well() {
    ScriptedKms::new("asked");
    let mut process = Process::new();
    let mut reads = process.key(1, "asked");
    reads["role"] = "read".into();
    process.configure(json!([reads]), json!({})).await.unwrap();
    process.until_healthy(1).await;
    process.encrypt(1).await.unwrap();
    let end = Instant::now() + Duration::from_secs(600);
    while Instant::now() < end {
        process.status(1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(7)).await;
    }
}

#[tokio::test]
async fn a_key_that_was_made_a_read_key_needs_no_right_to_encrypt_any_more() {
    let kms = ScriptedKms::new("demoted");
    let mut process = Process::new();
    let (mut key, token) = with_token(&process, "demoted");
    process.apply(json!([key])).await.unwrap();
    process.until_healthy(1).await;
    let old = process.encrypt(1).await.unwrap();
    kms.set(|state| state.encrypt_fails = Some(Kind::Denied));
    key["role"] = "read".into();
    process.apply(json!([key])).await.unwrap();
    wait(|| shown(&process, "encrypts") == false).await;
    let before = kms.ask(|state| state.connects);
    replace(&token, "good-2");
    wait(|| kms.ask(|state| state.connects) > before && shown(&process, "refused").is_null()).await;
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
    assert_eq!(process.status(1).await.unwrap(), "1/1");
}

#[tokio::test]
async fn a_read_key_with_nothing_to_read_yet_keeps_its_last_good_client() {
    let kms = ScriptedKms::new("untested");
    let old = Process::calm("untested").await.encrypt(1).await.unwrap();
    let mut process = Process::new();
    let (mut key, token) = with_token(&process, "untested");
    key["role"] = "read".into();
    process.apply(json!([key])).await.unwrap();
    process.until_healthy(1).await;
    replace(&token, "stolen");
    wait(|| shown(&process, "refused").is_object()).await;
    assert!(process.status(1).await.is_ok());
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
    assert!(kms.ask(|state| state.connects) > 1);
}

#[tokio::test]
async fn a_decrypt_only_key_that_has_served_is_not_exchanged_for_another_kek() {
    let kms = ScriptedKms::new("served-a");
    ScriptedKms::new("served-b");
    let old = Process::calm("served-a").await.encrypt(1).await.unwrap();
    kms.set(|state| state.encrypt_fails = Some(Kind::Denied));
    let mut process = Process::new();
    let (key, token) = with_token(&process, "served-a");
    process.apply(json!([key])).await.unwrap();
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
    let before = kms.ask(|state| state.connects);
    replace(&token, "good-2");
    wait(|| kms.ask(|state| state.connects) > before).await;
    let error = process.apply(json!([process.key(1, "served-b")])).await.unwrap_err();
    assert!(error.report().contains("new id"), "{}", error.report());
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
}

#[tokio::test]
async fn a_disabled_version_is_not_hidden_by_decrypts_of_older_ones() {
    let kms = ScriptedKms::new("newest");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "newest")])).await.unwrap();
    process.until_healthy(1).await;
    let old = process.encrypt(1).await.unwrap();
    kms.set(|state| state.version = 2);
    process.until(1, |status| key_id(status) == Some("1/2")).await;
    kms.set(|state| state.disabled = Some(2));
    process.until(1, Result::is_err).await;
    for _ in 0..20 {
        assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
        assert_eq!(code(process.status(1).await), Code::FailedPrecondition);
    }
    kms.set(|state| state.disabled = None);
    process.until_healthy(1).await;
}

#[tokio::test]
async fn status_tells_the_age_of_the_last_proof() {
    ScriptedKms::new("age");
    let process = Process::calm("age").await;
    let status = process.client(1).await.status(StatusRequest {}).await.unwrap();
    let age = status.metadata().get(crate::kms::PROOF_AGE).unwrap().to_str().unwrap();
    assert!(age.parse::<u64>().is_ok(), "{age}");
}

#[tokio::test]
async fn a_kek_that_was_made_anew_under_the_same_key_id_is_never_taken_for_the_old_one() {
    let kms = ScriptedKms::new("alike");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "alike")])).await.unwrap();
    process.until_healthy(1).await;
    let old = process.encrypt(1).await.unwrap();
    kms.set(|state| (state.alike, state.kek) = (true, 2));
    // What is new reads, and is read all the time: that must not hide that the rest does not.
    let new = process.encrypt(1).await;
    while process.status(1).await.is_ok() {
        if let Ok(new) = &new {
            assert_eq!(process.decrypt(1, new).await.unwrap(), [9; 32]);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // However often it encrypts and decrypts what is new: it cannot read what was written.
    let before = kms.ask(|state| state.encrypts);
    wait(|| kms.ask(|state| state.encrypts) > before + 2).await;
    assert_eq!(code(process.status(1).await), Code::FailedPrecondition);
    assert_eq!(process.encrypt(1).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(code(process.status(1).await), Code::FailedPrecondition);
    kms.set(|state| state.kek = 1);
    process.until_healthy(1).await;
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
}

#[tokio::test]
async fn an_encrypt_that_was_under_way_makes_no_key_well_that_has_another_kek_now() {
    let kms = ScriptedKms::new("overtaken");
    let process = Process::calm("overtaken").await;
    let old = process.encrypt(1).await.unwrap();
    let before = kms.ask(|state| state.encrypts);
    kms.hold_encrypt();
    let exchanged = async {
        wait(|| kms.ask(|state| state.encrypts) > before).await;
        kms.set(|state| (state.alike, state.kek) = (true, 2));
        while process.status(1).await.is_ok() {
            // What cannot be read makes the runtime look.
            assert!(process.decrypt(1, &old).await.is_err());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        kms.release();
    };
    let (encrypted, ()) = join(process.encrypt(1), exchanged).await;
    assert_eq!(encrypted.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(code(process.status(1).await), Code::FailedPrecondition);
}

#[tokio::test]
async fn what_a_key_encrypts_in_another_form_is_what_it_must_read_from_then_on() {
    let kms = ScriptedKms::new("forms");
    let mut process = Process::new();
    let (key, token) = with_token(&process, "forms");
    let probe = json!({"interval": "1h", "timeout": "10s", "coast": "2h"});
    process.configure(json!([key]), probe).await.unwrap();
    process.until_healthy(1).await;
    let load = async |to: &str| {
        let before = kms.ask(|state| (state.connects, state.decrypts));
        replace(&token, to);
        // It reads what it encrypts, and what was encrypted before.
        let proven = |state: &KmsState| state.connects > before.0 && state.decrypts > before.1 + 1;
        wait(|| kms.ask(proven)).await;
        assert!(process.encrypt(1).await.is_ok());
        assert_eq!(shown(&process, "refused").to_string(), "null", "{to}");
    };
    // As with a setting that is changed: first it writes in the new form, then it reads no other.
    kms.set(|state| state.form = 1);
    load("good-2").await;
    kms.set(|state| state.refused_form = Some(0));
    load("good-3").await;
    process.until_healthy(1).await;
}

#[tokio::test]
async fn a_key_that_has_read_its_canary_outlives_the_version_that_wrapped_it() {
    let kms = ScriptedKms::new("retired");
    let old = Process::calm("retired").await.encrypt(1).await.unwrap();
    let mut process = Process::new();
    let (mut key, token) = with_token(&process, "retired");
    key["canary"] = canary(&old);
    process.apply(json!([key])).await.unwrap();
    process.until(1, |status| key_id(status) == Some("1/1")).await;
    kms.set(|state| state.version = 2);
    process.until(1, |status| key_id(status) == Some("1/2")).await;
    kms.set(|state| (state.disabled, state.version) = (Some(1), 3));
    process.until(1, |status| key_id(status) == Some("1/3")).await;
    let refused = |process: &Process| shown(process, "refused").to_string();
    let before = kms.ask(|state| state.connects);
    replace(&token, "good-2");
    wait(|| kms.ask(|state| state.connects) > before).await;
    process.until_healthy(1).await;
    assert!(process.encrypt(1).await.is_ok());
    assert_eq!(refused(&process), "null");
    // Another KEK is refused as ever, and so is another canary that cannot be read.
    kms.set(|state| state.kek = 2);
    replace(&token, "good-3");
    wait(|| refused(&process).contains("another key")).await;
    kms.set(|state| state.kek = 1);
    replace(&token, "good-4");
    wait(|| refused(&process) == "null").await;
    let mut other = old;
    other.annotations.insert("other.example".to_owned(), vec![1].into());
    key["canary"] = canary(&other);
    process.apply(json!([key])).await.unwrap();
    wait(|| refused(&process).contains("the canary cannot be decrypted")).await;
}

#[tokio::test]
async fn an_encrypt_that_waits_for_its_proof_has_three_attempts_with_it() {
    let kms = ScriptedKms::new("waits-for-proof");
    let mut process = Process::new();
    let mut key = process.key(1, "waits-for-proof");
    key["role"] = "read".into();
    process.apply(json!([key])).await.unwrap();
    process.until_healthy(1).await;
    kms.set(|state| state.encrypt_fails = Some(Kind::Unavailable));
    assert_eq!(code(process.encrypt(1).await), Code::Unavailable);
    assert_eq!(kms.ask(|state| state.encrypts), 2, "one is left for itself");
}
