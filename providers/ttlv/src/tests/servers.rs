//! Connections and servers: kept, broken, silent and exchanged.

use super::*;

#[tokio::test]
async fn one_connection_serves_call_after_call() {
    let fake = Fake::start(kms(4)).await;
    let client = fake.client();
    for _ in 0..3 {
        client.locate("kms", soon()).await.unwrap();
    }
    let (discover, locate) = (Operation::DiscoverVersions as u32, Operation::Locate as u32);
    assert_eq!(fake.operations(), [(0, discover), (0, locate), (0, locate), (0, locate)]);
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_costs_no_call() {
    let last = |request: &[u8]| match operation(request) {
        code if code == Operation::DiscoverVersions as u32 => kms(4)(request),
        _ => Reply::Last(answered(request, 4)),
    };
    let fake = Fake::start(last).await;
    let client = fake.client();
    for _ in 0..3 {
        client.locate("kms", soon()).await.unwrap();
    }
    let connections: Vec<_> = fake.operations().into_iter().map(|(number, _)| number).collect();
    assert_eq!(connections, [0, 0, 1, 1, 2, 2]);
}

#[tokio::test]
async fn a_new_connection_that_breaks_is_not_tried_again() {
    let broken = |request: &[u8]| Reply::Last(answered(request, 4)[..20].to_vec());
    let fake = Fake::start(broken).await;
    let error = fake.client().locate("kms", soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
    assert_eq!(fake.operations().len(), 1);
}

#[tokio::test]
async fn who_waits_in_vain_on_a_kept_connection_does_not_trust_the_others() {
    let encrypt = Operation::Encrypt as u32;
    let fake = Fake::start(move |request: &[u8]| match operation(request) {
        code if code == encrypt => Reply::Silence,
        _ => kms(4)(request),
    });
    let fake = fake.await;
    let client = fake.client();
    // Two connections are kept.
    let both = tokio::join!(client.locate("a", soon()), client.locate("b", soon()));
    both.0.unwrap();
    both.1.unwrap();
    let kept: Vec<_> = fake.operations().into_iter().map(|(number, _)| number).collect();
    let shortly = Instant::now() + Duration::from_millis(200);
    let error = client.encrypt("key-1", &GCM, b"x", shortly).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout, "{}", error.report());
    client.locate("c", soon()).await.unwrap();
    let (last, _) = *fake.operations().last().unwrap();
    assert!(!kept.contains(&last), "{kept:?}");
}

#[tokio::test]
async fn a_server_that_is_gone_or_silent_is_passed_over_and_the_good_one_is_asked_first_from_then()
{
    let silent = Fake::start(|_: &[u8]| Reply::Silence).await;
    let good = Fake::start(kms(4)).await;
    let gone = address("127.0.0.1:1").unwrap();
    // Whom to trust is one for all: the good one's.
    let addresses = [gone, silent.address.clone(), good.address.clone()];
    let client = Client::new(&good.trust(), addresses);
    for _ in 0..3 {
        client.locate("kms", soon()).await.unwrap();
    }
    assert_eq!(good.operations().len(), 4);
    assert!(silent.operations().len() <= 1);
}

#[tokio::test]
async fn all_servers_being_away_is_told_in_the_callers_time() {
    let silent = Fake::start(|_: &[u8]| Reply::Silence).await;
    let gone = address("127.0.0.1:1").unwrap();
    let client = Client::new(&silent.trust(), [silent.address.clone(), gone]);
    let deadline = Instant::now() + Duration::from_millis(400);
    let error = client.locate("kms", deadline).await.unwrap_err();
    assert!(error.kind().is_transient(), "{}", error.report());
    let nobody = Client::new(&silent.trust(), []);
    assert_eq!(nobody.locate("kms", soon()).await.unwrap_err().kind(), Kind::Config);
}

#[tokio::test]
async fn calls_that_hang_keep_later_ones_waiting_no_longer_than_they_can_wait() {
    let silent = Fake::start(|_: &[u8]| Reply::Silence).await;
    let client = silent.client();
    let long = Instant::now() + Duration::from_secs(600);
    let hanging = (0..8).map(|_| client.locate("kms", long));
    let mut hanging: Vec<_> = hanging.map(Box::pin).collect();
    let polled = std::future::poll_fn(|context| {
        for one in &mut hanging {
            assert!(one.as_mut().poll(context).is_pending());
        }
        std::task::Poll::Ready(())
    });
    polled.await;
    let shortly = Instant::now() + Duration::from_millis(50);
    let error = client.locate("kms", shortly).await.unwrap_err();
    assert!(error.report().contains("no turn in time"), "{}", error.report());
}

#[tokio::test]
async fn tls_of_both_versions_is_spoken_and_certificates_are_shown_and_checked() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let fake = Fake::speaking(&[version], kms(4)).await;
        fake.client().locate("kms", soon()).await.unwrap();
        let stranger = Client::new(&fake.trust_of("server"), [fake.address.clone()]);
        let error = stranger.locate("kms", soon()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{version:?}: {}", error.report());
        let other = Fake::speaking(&[version], kms(4)).await;
        let distrusting = Client::new(&fake.trust(), [other.address.clone()]);
        let error = distrusting.locate("kms", soon()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.report().contains("settings.caFile"), "{}", error.report());
    }
}
