//! A key that gets another version at its KMS.

use super::*;

#[tokio::test]
async fn rotation_at_the_kms_moves_key_id_and_never_back() {
    let kms = ScriptedKms::new("rotation");
    let mut process = Process::new();
    process.apply(json!([process.key(1, "rotation")])).await.unwrap();
    process.until_healthy(1).await;
    let old = process.encrypt(1).await.unwrap();
    kms.set(|state| state.version = 2);
    process.until(1, |status| key_id(status) == Some("1/2")).await;
    assert_eq!(process.encrypt(1).await.unwrap().key_id, "1/2");
    assert_eq!(process.decrypt(1, &old).await.unwrap(), [9; 32]);
    // A lagging replica of the KMS names the old version again.
    let probes = kms.ask(|state| state.encrypts);
    kms.set(|state| state.version = 1);
    let deadline = Instant::now() + PATIENCE;
    while kms.ask(|state| state.encrypts) < probes + 3 {
        assert!(Instant::now() < deadline, "it does not probe any more");
        assert_eq!(process.status(1).await.unwrap(), "1/2");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(process.encrypt(1).await.unwrap().key_id, "1/2");
}

#[tokio::test(start_paused = true)]
async fn a_rotation_at_the_kms_is_announced_within_six_minutes_with_and_without_requests() {
    for busy in [false, true] {
        let name = format!("six-minutes-{busy}");
        let kms = ScriptedKms::new(&name);
        let mut process = Process::new();
        process.configure(json!([process.key(1, &name)]), json!({})).await.unwrap();
        process.until_healthy(1).await;
        let old = process.encrypt(1).await.unwrap();
        kms.set(|state| state.version = 2);
        let end = Instant::now() + Duration::from_secs(6 * 60);
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_secs(10)).await;
            if busy {
                process.decrypt(1, &old).await.unwrap();
            }
        }
        assert_eq!(process.status(1).await.unwrap(), "1/2", "busy: {busy}");
    }
}

#[tokio::test]
async fn an_unpinned_version_is_announced_before_it_is_used() {
    let kms = ScriptedKms::new("unpinned");
    let process = Process::calm("unpinned").await;
    kms.set(|state| state.wraps_with = Some(2));
    // No probe has seen the new version: the call that meets it is the first to know.
    assert_eq!(code(process.encrypt(1).await), Code::Unavailable);
    process.until(1, |status| key_id(status) == Some("1/2")).await;
    assert_eq!(process.encrypt(1).await.unwrap().key_id, "1/2");
}
