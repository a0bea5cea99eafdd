use http::Method;
use serde_json::json;
use sidekey_core::Files;
use sidekey_core::tls::Unusable;

use super::*;
use crate::http::{Limits, Proxy};
use crate::testing::{Fake, Reply};
use crate::tls::Trust;

fn client(calls: usize) -> Http {
    let files = Files::read([]).unwrap();
    let trust = Trust::new(None, Unusable::Refuse, None, &files, "caFile").unwrap();
    Http::new(&trust, Proxy::default(), Limits { calls, ..Limits::default() })
}

/// 503 is of the server; a redirect is followed to configured servers alone.
fn servers(urls: &[String], calls: usize) -> Servers {
    let addresses: Vec<_> = urls.iter().map(|url| Address::parse(url).unwrap()).collect();
    let known = addresses.clone();
    let judge = move |address: &Address, _: &Request, answer: &Answer| {
        let location = answer.headers.get("location").and_then(|to| to.to_str().ok());
        match (answer.status.as_u16(), location.and_then(|to| Address::parse(to).ok())) {
            (307, Some(to)) if known.contains(&to) => Verdict::Redirect(to),
            (307 | 503, _) => Verdict::Next(Error::new(Kind::Unavailable, address.to_string())),
            _ => Verdict::Final,
        }
    };
    Servers::new(client(calls), addresses, Duration::from_secs(2), Box::new(judge))
}

fn get() -> Request {
    Request::new(Method::GET, "/")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(6)
}

async fn fake(status: u16, delay: Duration) -> Fake {
    Fake::http(move |_| Reply { delay, ..Reply::json(status, &json!({})) }).await
}

#[tokio::test]
async fn a_server_that_cannot_serve_is_passed_over_and_the_good_one_is_asked_first_from_then_on() {
    let (sealed, good) = (fake(503, Duration::ZERO).await, fake(200, Duration::ZERO).await);
    let gone = "http://127.0.0.1:1".to_owned();
    let servers = servers(&[gone, sealed.url(), good.url()], 4);
    for _ in 0..3 {
        assert_eq!(servers.ask(get(), soon()).await.unwrap().status, 200);
    }
    assert_eq!((sealed.seen().len(), good.seen().len()), (1, 3));
    assert_eq!(servers.first().unwrap().to_string(), good.url());
}

#[tokio::test]
async fn a_server_that_hangs_gets_its_share_of_the_deadline_and_no_more() {
    let hang = Duration::from_secs(3600);
    let (silent, good) = (fake(200, hang).await, fake(200, Duration::ZERO).await);
    let servers = servers(&[silent.url(), good.url()], 4);
    let deadline = Instant::now() + Duration::from_secs(2);
    assert_eq!(servers.ask(get(), deadline).await.unwrap().status, 200);
    assert!(Instant::now() < deadline);
}

#[tokio::test]
async fn the_wait_for_a_turn_is_not_taken_for_a_silent_server() {
    // Each call takes far less than a server is waited for, which is 2 s, and the last of them waits
    // for longer than that until the others are done.
    let slow = fake(200, Duration::from_millis(250)).await;
    let spare = fake(200, Duration::ZERO).await;
    let servers = servers(&[slow.url(), spare.url()], 1);
    let deadline = Instant::now() + Duration::from_secs(60);
    let calls: Vec<_> = (0..12)
        .map(|_| {
            let servers = servers.clone();
            tokio::spawn(async move { servers.ask(get(), deadline).await.is_ok() })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap());
    }
    assert_eq!(spare.seen().len(), 0, "nobody failed over");
}

#[tokio::test]
async fn a_redirect_is_followed_where_the_vendor_allows_it_and_never_for_ever() {
    let active = fake(200, Duration::ZERO).await;
    let to = active.url();
    let standby =
        Fake::http(move |_| Reply::json(307, &json!({})).with("location", to.clone())).await;
    let group = servers(&[standby.url(), active.url()], 4);
    for _ in 0..3 {
        assert_eq!(group.ask(get(), soon()).await.unwrap().status, 200);
    }
    assert_eq!(standby.seen().len(), 1, "the active one is asked first from then on");
    // To itself.
    let (sender, receiver) = std::sync::mpsc::channel::<String>();
    let receiver = Mutex::new((receiver, None::<String>));
    let circle = Fake::http(move |_| {
        let mut known = receiver.lock().unwrap();
        if known.1.is_none() {
            known.1 = known.0.recv().ok();
        }
        Reply::json(307, &json!({})).with("location", known.1.clone().unwrap())
    })
    .await;
    sender.send(circle.url()).unwrap();
    let error = servers(&[circle.url()], 4).ask(get(), soon()).await.err().unwrap();
    assert!(error.to_string().contains("without end"), "{error}");
}

#[tokio::test]
async fn what_must_be_sent_once_goes_to_one_server() {
    let (sealed, good) = (fake(503, Duration::ZERO).await, fake(200, Duration::ZERO).await);
    let servers = servers(&[sealed.url(), good.url()], 4);
    let request = Request { once: true, ..get() };
    assert!(servers.ask(request, soon()).await.is_err());
    assert_eq!((sealed.seen().len(), good.seen().len()), (1, 0));
}

#[test]
fn of_several_failures_the_one_that_can_be_mended_is_told() {
    let error = |kind| Error::new(kind, "no");
    let told = |kinds: &[Kind]| {
        let told = kinds.iter().fold(None, |old, kind| Some(worse(old, error(*kind))));
        told.unwrap().kind()
    };
    assert_eq!(told(&[Kind::Config, Kind::Unavailable]), Kind::Config);
    assert_eq!(told(&[Kind::Unavailable, Kind::Denied]), Kind::Denied);
    assert_eq!(told(&[Kind::Unavailable, Kind::Timeout]), Kind::Unavailable);
}
