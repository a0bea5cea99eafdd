#![allow(clippy::unwrap_used, clippy::expect_used)]
use super::*;
use crate::http::HttpClient;
use crate::pki::Authority;

/// A backend that answers each request with `ok`, its connections kept alive.
async fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn what_passes_is_counted_and_faults_reach_open_connections() {
    let gateway = Gateway::start(backend().await).await.unwrap();
    let client = HttpClient::plain(gateway.address());
    for _ in 0..3 {
        assert_eq!(client.get("/").await.unwrap().text(), "ok");
    }
    assert_eq!((gateway.requests(), gateway.connections()), (3, 1));

    let (status, body) = (429, "slow down".to_owned());
    gateway.inject(Fault::Answer(Answer { status, content_type: "text/plain", body }));
    let answer = client.get("/").await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (429, "slow down"));
    assert_eq!(gateway.requests(), 3, "the backend was not asked");

    gateway.inject(Fault::Cut);
    client.get("/").await.unwrap_err();
    gateway.inject(Fault::Hang);
    let hung = tokio::spawn({
        let client = client.clone();
        async move { client.get("/").await }
    });
    let before = gateway.connections();
    while gateway.connections() == before {
        tokio::task::yield_now().await;
    }
    assert!(!hung.is_finished());
    gateway.heal();
    assert_eq!(hung.await.unwrap().unwrap().text(), "ok", "what was late arrives");
    assert_eq!(gateway.requests(), 4);

    let delay = Duration::from_millis(50);
    gateway.inject(Fault::Slow(delay));
    let began = tokio::time::Instant::now();
    client.get("/").await.unwrap();
    assert!(began.elapsed() >= delay);
}

#[tokio::test]
async fn tls_ends_here_and_its_certificate_can_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| Authority::new(name).unwrap());
    let certificate = old.server(dir.path(), "old").unwrap();
    let gateway = Gateway::tls(backend().await, &certificate).await.unwrap();
    let client = |authority: &Authority| {
        HttpClient::tls(gateway.address(), authority.connector().unwrap(), None)
    };
    let (trusts_old, trusts_new) = (client(&old), client(&new));
    assert_eq!(trusts_old.get("/").await.unwrap().text(), "ok");
    trusts_new.get("/").await.unwrap_err();
    gateway.present(&new.server(dir.path(), "new").unwrap()).unwrap();
    trusts_old.get("/").await.unwrap_err();
    assert_eq!(trusts_new.get("/").await.unwrap().text(), "ok");
}
