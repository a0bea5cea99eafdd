use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A server that counts connections and requests.
struct Server {
    url: String,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Answers `each` requests on every connection and then closes it without a word.
async fn server(each: usize) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (connections, requests): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let counted = (connections.clone(), requests.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.0.fetch_add(1, Ordering::SeqCst);
            let requests = counted.1.clone();
            tokio::spawn(async move { serve(&mut stream, each, &requests).await });
        }
    });
    Server { url, connections, requests }
}

async fn serve(stream: &mut TcpStream, each: usize, requests: &AtomicUsize) {
    for _ in 0..each {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        requests.fetch_add(1, Ordering::SeqCst);
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
    }
    // The next request finds a connection that is already gone.
}

fn http() -> Http {
    Http::new(Ways::new(tls::client(None).unwrap(), Duration::from_secs(5), None))
}

async fn get(http: &Http, url: &str) -> Result<HttpResponse, ConnectorError> {
    http.call(HttpRequest::get(url).unwrap(), None).await
}

#[tokio::test]
async fn one_connection_serves_one_call_after_another() {
    let (server, http) = (server(usize::MAX).await, http());
    for _ in 0..5 {
        let answer = get(&http, &server.url).await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        assert_eq!(answer.body().bytes(), Some(&b"ok"[..]));
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_call_that_meets_a_closed_connection_is_sent_once_more() {
    let (server, http) = (server(1).await, http());
    for _ in 0..20 {
        assert!(get(&http, &server.url).await.is_ok());
    }
    assert_eq!(server.requests.load(Ordering::SeqCst), 20);
}

#[tokio::test]
async fn calls_at_the_same_time_wait_for_nobody_and_leave_a_bounded_number_behind() {
    let (server, http) = (server(usize::MAX).await, http());
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let (http, url) = (http.clone(), server.url.clone());
            tokio::spawn(async move { get(&http, &url).await.is_ok() })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap());
    }
    assert!(http.0.idle.lock().unwrap().len() <= MAX_IDLE);
}

#[tokio::test]
async fn kept_connections_that_swallow_requests_cost_one_try_and_not_one_each() {
    // Each connection answers one request, and then takes the next ones without a word.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                serve(&mut stream, 1, &AtomicUsize::new(0)).await;
                while stream.read_u8().await.is_ok() {}
            });
        }
    });
    let http = http();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (http, url) = (http.clone(), url.clone());
            tokio::spawn(async move { get(&http, &url).await.is_ok() })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap());
    }
    assert!(http.0.idle.lock().unwrap().len() > 1);
    let first = timeout(Duration::from_millis(50), get(&http, &url)).await;
    assert!(first.is_err(), "it is swallowed");
    assert!(get(&http, &url).await.is_ok(), "the next try takes a fresh connection");
}

#[tokio::test]
async fn what_cannot_be_reached_is_told_with_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = get(&http(), &format!("http://{address}/")).await.unwrap_err();
    assert!(error.is_io(), "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains(&address.to_string()), "{cause}");
}

#[test]
fn the_host_is_told_as_it_is_signed() {
    let host = |url: &str| Origin::of(&url.parse().unwrap()).unwrap().host_header();
    assert_eq!(host("https://kms.us-east-1.amazonaws.com/"), "kms.us-east-1.amazonaws.com");
    assert_eq!(host("https://kms.us-east-1.amazonaws.com:443/"), "kms.us-east-1.amazonaws.com");
    assert_eq!(host("http://127.0.0.1:5000/"), "127.0.0.1:5000");
    assert_eq!(host("http://[fd00:ec2::254]/"), "[fd00:ec2::254]");
    assert!(Origin::of(&"ftp://x/".parse().unwrap()).is_none());
}

#[test]
fn a_bundle_without_certificates_is_refused() {
    for text in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"] {
        let error = tls::client(Some(&Secret::new(text.into()))).unwrap_err();
        assert_eq!(error.kind(), sidekey_core::Kind::Config, "{text:?}");
    }
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_never_passed_by_in_silence() {
    let proxy = proxy::Proxy::unusable("near.example");
    assert!(!proxy.serves("near.example", 443), "what is near needs none");
    let ways = Ways::new(tls::client(None).unwrap(), Duration::from_secs(5), Some(proxy));
    let error = get(&Http::new(ways), "https://kms.example/").await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("HTTPS_PROXY"), "{cause}");
}
