use sidekey_core::NO_FINGERPRINT;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn key(external: bool) -> Arc<Key> {
    let options = ProbeOptions { interval: 3 * SECOND, timeout: 10 * SECOND, coast: 60 * SECOND };
    let spec = UpstreamSpec {
        fingerprint: NO_FINGERPRINT.to_owned(),
        endpoints: Vec::new(),
        canary: None,
        tls: None,
        server_uids: Vec::new(),
        external,
    };
    let (upstream, duty) = (Upstream::new(Vec::new()), (Role::Write, options));
    let none = Inherited::default();
    Key::new(KeyNumber(1), spec, upstream, Mode::Route, duty, none, Arc::default())
}

fn error(kind: Kind) -> Error {
    Error::new(kind, "no")
}

fn status(key: &Key) -> Result<(), Kind> {
    key.health.verdict().map_err(|trouble| trouble.kind)
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_cannot_be_reached_coasts_from_the_last_proof_of_the_provider() {
    tokio::time::advance(100 * SECOND).await;
    for external in [false, true] {
        let key = key(external);
        key.note_proof(50 * SECOND);
        key.note_failure(&Failure::Unanswered(error(Kind::Timeout)));
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
        ours.note_failure(&Failure::Answered(error(kind)));
        assert_eq!(status(&ours), Err(kind));
        let foreign = key(true);
        foreign.note_proof(Duration::ZERO);
        foreign.note_failure(&Failure::Answered(error(kind)));
        assert_eq!(status(&foreign), Ok(()));
        tokio::time::advance(60 * SECOND).await;
        assert_eq!(status(&foreign), Err(Kind::Unavailable));
    }
    let wrong = key(true);
    wrong.note_proof(Duration::ZERO);
    wrong.note_failure(&Failure::Answered(error(Kind::KeyState).lasting()));
    assert_eq!(status(&wrong), Err(Kind::KeyState), "another KEK does not pass");
}
