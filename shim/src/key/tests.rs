#![allow(clippy::unwrap_used)]

use serde_json::json;
use sidekey_core::{Canary, NO_FINGERPRINT};

use super::*;
use crate::lastgood::LastGood;
use crate::store::Contents;

const SECOND: Duration = Duration::from_secs(1);

fn key(external: bool) -> Arc<RoutedKey> {
    let options = ProbeOptions { interval: 3 * SECOND, timeout: 10 * SECOND, coast: 60 * SECOND };
    let spec = UpstreamSpec {
        fingerprint: NO_FINGERPRINT.to_owned(),
        endpoints: Vec::new(),
        canary: None,
        tls: None,
        server_uids: Vec::new(),
        external,
    };
    let (upstream, duty) = (Upstream::new(Vec::new()), (KeyRole::Write, options));
    let none = Inherited::default();
    RoutedKey::new(KeyNumber(1), spec, upstream, Mode::Route, duty, none, Arc::default())
}

fn sealed(ciphertext: &str) -> Sealed {
    let (key_id, ciphertext) = (KeyId::new("v/2").unwrap(), ciphertext.to_owned().into());
    Sealed { key_id, ciphertext, annotations: Default::default() }
}

#[tokio::test]
async fn a_key_id_is_announced_when_what_was_written_under_it_is_on_disk_and_not_before() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("last-good");
    let key = key(false);
    let contents =
        Contents { document: json!({}).into(), path: Some(path.clone()), ..Default::default() };
    key.store.replace(contents).await;
    // In use, as far as that goes without an endpoint.
    let options = key.duty.lock().1;
    key.watch(KeyRole::Write, options);
    let sample = Canary::new(sealed("sample"), &Secret::new(vec![7; 32]));
    let sample = Memory::written(&sample, None, true);

    let disk = key.store.hang().await;
    let key_id = KeyId::new("v/2").unwrap();
    let mut announcing = std::pin::pin!(key.announce(&key_id, sample.clone()));
    let waits = tokio::time::timeout(Duration::from_millis(100), &mut announcing).await;
    assert!(waits.is_err() && key.announced().is_none());
    drop(disk);
    announcing.await.unwrap();
    assert_eq!(key.announced().unwrap().inner, key_id);
    let stored = LastGood::load(&path).unwrap().memory();
    assert_eq!(stored[&key.id].written_under(), Some(&key_id));
}

#[test]
fn once_too_much_was_written_to_be_known_nothing_counts_as_older() {
    let written = Written::default();
    for number in 0..1023 {
        written.note(&sealed(&number.to_string()));
        assert!(written.knows(&sealed(&number.to_string())));
    }
    assert!(!written.knows(&sealed("older")));
    written.note(&sealed("one more"));
    assert!(written.knows(&sealed("older")));
}

fn error(kind: Kind) -> Error {
    Error::new(kind, "no")
}

fn status(key: &RoutedKey) -> Result<(), Kind> {
    key.health.verdict().map_err(|trouble| trouble.kind)
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_cannot_be_reached_coasts_from_the_last_proof_of_the_provider() {
    tokio::time::advance(100 * SECOND).await;
    for external in [false, true] {
        let key = key(external);
        key.note_proof(50 * SECOND);
        key.note_failure(&CallFailure::Unanswered(error(Kind::Timeout)));
        tokio::time::advance(9 * SECOND).await;
        assert_eq!(status(&key), Ok(()));
        tokio::time::advance(SECOND).await;
        assert_eq!(status(&key), Err(Kind::Unavailable));
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_provider_says_ok_its_coast_decides_and_ours_adds_five_seconds_at_most() {
    tokio::time::advance(1000 * SECOND).await;
    let key = key(false);
    for _ in 0..10 {
        key.note_proof(300 * SECOND);
        tokio::time::advance(4 * SECOND).await;
        assert_eq!(status(&key), Ok(()));
    }
    tokio::time::advance(SECOND).await;
    assert_eq!(status(&key), Err(Kind::Unavailable));
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_is_passed_on_at_once_and_a_foreign_plugins_failure_coasts() {
    for kind in [Kind::Unavailable, Kind::Denied, Kind::KeyState, Kind::Bug] {
        let ours = key(false);
        ours.note_proof(Duration::ZERO);
        ours.note_failure(&CallFailure::Answered(error(kind)));
        assert_eq!(status(&ours), Err(kind));
        let foreign = key(true);
        foreign.note_proof(Duration::ZERO);
        foreign.note_failure(&CallFailure::Answered(error(kind)));
        assert_eq!(status(&foreign), Ok(()));
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(status(&foreign), Err(Kind::Unavailable));
    }
    let wrong = key(true);
    wrong.note_proof(Duration::ZERO);
    wrong.note_failure(&CallFailure::Answered(error(Kind::KeyState).lasting()));
    assert_eq!(status(&wrong), Err(Kind::KeyState), "another KEK does not pass");
}
