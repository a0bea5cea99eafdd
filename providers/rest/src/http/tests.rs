use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper_util::client::legacy::connect::dns::Name;
use serde_json::json;
use sidekey_core::Files;
use sidekey_core::tls::Unusable;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tower::util::BoxCloneSyncService;

use super::*;
use crate::testing::{Fake, Reply};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server of our own that counts connections and requests.
struct Server {
    address: Address,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

/// Answers `each` requests on every connection. Then it closes it without a word, or with the next
/// request if `rude`, or never says anything any more if `mute`.
async fn server(each: usize, rude: bool, mute: bool) -> Server {
    server_for(1, each, rude, mute).await
}

/// The same, which answers nothing before there are `first` requests.
async fn server_for(first: usize, each: usize, rude: bool, mute: bool) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (connections, requests): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let counted = (connections.clone(), requests.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.0.fetch_add(1, Ordering::SeqCst);
            let requests = counted.1.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    if !take(&mut stream, &requests).await {
                        return;
                    }
                    while requests.load(Ordering::SeqCst) < first {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    stream.write_all(OK).await.unwrap_or_default();
                }
                if rude || mute {
                    take(&mut stream, &requests).await;
                }
                while mute && stream.read_u8().await.is_ok() {}
            });
        }
    });
    Server { address, connections, requests }
}

/// Reads a head.
async fn take(stream: &mut (impl AsyncRead + Unpin), requests: &AtomicUsize) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return false,
        }
    }
    requests.fetch_add(1, Ordering::SeqCst);
    true
}

fn trust() -> Trust {
    Trust::new(None, Unusable::Refuse, None, &Files::read([]).unwrap(), "settings.caBundle")
        .unwrap()
}

fn client(limits: Limits) -> Http {
    Http::new(&trust(), Proxy::default(), limits)
}

fn trusting(fake: &Fake, proxy: Proxy) -> Http {
    let dir = tempfile::tempdir().unwrap();
    let path = fake.write_ca(dir.path()).unwrap();
    let files = Files::read([path.as_path()]).unwrap();
    let trust = Trust::new(Some(&path), Unusable::Refuse, None, &files, "caBundle").unwrap();
    Http::new(&trust, proxy, Limits::default())
}

async fn get(http: &Http, address: &Address) -> Result<Answer, Error> {
    http.ask(address, Request::new(Method::GET, "/x"), soon(10)).await
}

fn soon(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

#[tokio::test]
async fn one_connection_serves_one_call_after_another() {
    let (server, http) = (server(usize::MAX, false, false).await, client(Limits::default()));
    for _ in 0..5 {
        let answer = get(&http, &server.address).await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"ok"[..]));
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_call_that_meets_a_stale_connection_is_sent_once_more() {
    for rude in [false, true] {
        let (server, http) = (server(1, rude, false).await, client(Limits::default()));
        for _ in 0..20 {
            assert!(get(&http, &server.address).await.is_ok(), "rude: {rude}");
        }
    }
}

#[tokio::test]
async fn a_new_connection_that_breaks_is_an_error_and_no_second_call() {
    let (server, http) = (server(0, true, false).await, client(Limits::default()));
    let error = get(&http, &server.address).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_must_be_sent_once_takes_a_new_connection_and_is_never_sent_again() {
    let (server, http) = (server(1, true, false).await, client(Limits::default()));
    assert!(get(&http, &server.address).await.is_ok());
    for _ in 0..5 {
        let request = Request { once: true, ..Request::new(Method::POST, "/x") };
        assert!(http.ask(&server.address, request, soon(10)).await.is_ok());
    }
    assert_eq!(server.requests.load(Ordering::SeqCst), 6);
    assert_eq!(server.connections.load(Ordering::SeqCst), 6);
}

#[tokio::test]
async fn no_more_calls_run_at_a_time_than_may() {
    let limits = Limits { calls: 3, ..Limits::default() };
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = (running.clone(), most.clone());
    let fake = Fake::http(move |_| {
        // Answers late, so that the others would be there too.
        counted.1.fetch_max(counted.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let counted = counted.0.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            counted.fetch_sub(1, Ordering::SeqCst);
        });
        Reply { delay: Duration::from_millis(20), ..Reply::json(200, &json!({})) }
    })
    .await;
    let (http, address) = (client(limits), Address::parse(&fake.url()).unwrap());
    let calls: Vec<_> = (0..30)
        .map(|_| {
            let (http, address) = (http.clone(), address.clone());
            tokio::spawn(async move { get(&http, &address).await.is_ok() })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap());
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn kept_connections_that_swallow_requests_cost_one_try_and_not_one_each() {
    // All at once, so that each has a connection of its own and none is given another's.
    let (server, http) = (server_for(8, 1, false, true).await, client(Limits::default()));
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (http, address) = (http.clone(), server.address.clone());
            tokio::spawn(async move { get(&http, &address).await.is_ok() })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap());
    }
    let late = http.ask(&server.address, Request::new(Method::GET, "/"), soon(1)).await;
    assert_eq!(late.err().unwrap().kind(), Kind::Timeout, "it is swallowed");
    assert!(get(&http, &server.address).await.is_ok(), "the next try takes a fresh connection");
}

#[tokio::test]
async fn the_wait_for_a_turn_is_within_the_deadline() {
    let limits = Limits { calls: 1, ..Limits::default() };
    let (server, http) = (server(0, false, true).await, client(limits));
    let (first, address) = (http.clone(), server.address.clone());
    let first = tokio::spawn(async move { get(&first, &address).await });
    while server.requests.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let deadline = Instant::now() + Duration::from_millis(50);
    let late = http.ask(&server.address, Request::new(Method::GET, "/"), deadline).await;
    assert_eq!(late.err().unwrap().kind(), Kind::Timeout);
    assert_eq!(server.requests.load(Ordering::SeqCst), 1, "it never had its turn");
    first.abort();
}

#[tokio::test]
async fn an_answer_is_read_up_to_its_bound_whether_its_length_is_told_or_not() {
    let limits = Limits { answer: 1000, ..Limits::default() };
    let http = client(limits);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
        let heads = [
            format!("content-length: 1000\r\n\r\n{}", "x".repeat(1000)),
            format!("content-length: 1001\r\n\r\n{}", "x".repeat(1001)),
            format!("transfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"),
            format!("transfer-encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"),
            "content-length: 1000\r\n\r\nx".to_owned(),
        ];
        for head in heads {
            let (mut stream, _) = listener.accept().await.unwrap();
            take(&mut stream, &AtomicUsize::new(0)).await;
            let text = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{head}");
            stream.write_all(text.as_bytes()).await.unwrap_or_default();
        }
    });
    for (what, good) in [
        ("told", true),
        ("told, too long", false),
        ("chunked", true),
        ("chunked, too long", false),
        ("broken off", false),
    ] {
        match get(&http, &address).await {
            Ok(answer) => assert!(good && answer.body.len() == 1000, "{what}"),
            Err(error) => assert!(!good && error.kind() == Kind::Unavailable, "{what}"),
        }
    }
}

#[tokio::test]
async fn a_unix_socket_is_spoken_to_like_any_other_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 1024];
        let length = stream.read(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..length]).to_lowercase();
        assert!(head.starts_with("get /x http/1.1\r\n") && head.contains("host: localhost\r\n"));
        stream.write_all(OK).await.unwrap();
    });
    let (http, address) = (client(Limits::default()), Address::Unix(path));
    assert_eq!(get(&http, &address).await.unwrap().status, 200);
    let gone = Address::Unix(dir.path().join("gone.sock"));
    let error = get(&http, &gone).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.report().contains("gone.sock") && error.report().contains("agent"));
}

/// Answers `each` requests on every connection, and closes it with the next one.
fn agent(path: &std::path::Path, each: usize) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(path).unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            for _ in 0..each {
                take(&mut stream, &counted).await;
                stream.write_all(OK).await.unwrap_or_default();
            }
            take(&mut stream, &counted).await;
        }
    });
    requests
}

#[tokio::test]
async fn a_call_that_meets_a_stale_unix_socket_is_sent_once_more_and_a_new_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let [stale, broken] = ["stale.sock", "broken.sock"].map(|name| dir.path().join(name));
    agent(&stale, 1);
    let (http, stale) = (client(Limits::default()), Address::Unix(stale));
    for _ in 0..20 {
        let answer = get(&http, &stale).await;
        assert!(answer.is_ok(), "{}", answer.err().unwrap().report());
    }
    let requests = agent(&broken, 0);
    let (http, broken) = (client(Limits::default()), Address::Unix(broken));
    assert_eq!(get(&http, &broken).await.err().unwrap().kind(), Kind::Unavailable);
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_a_fault_that_may_pass_with_a_hint_of_its_own() {
    let fake = Fake::https(|_| Reply::json(200, &json!({}))).await;
    let address = Address::parse(&fake.url()).unwrap();
    let error = get(&client(Limits::default()), &address).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.hint().unwrap().contains("set settings.caBundle"), "{}", error.report());
    assert!(fake.seen().is_empty());
    assert!(get(&trusting(&fake, Proxy::default()), &address).await.is_ok());
}

#[tokio::test]
async fn tls_goes_through_a_proxy_and_its_refusal_is_told_without_the_password() {
    let fake = Fake::https(|_| Reply::json(200, &json!({}))).await;
    let (upstream, port) = (fake.address(), fake.address().port());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move {
        let mut heads = Vec::new();
        for refuse in [false, true] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            heads.push(String::from_utf8(head).unwrap().to_lowercase());
            if refuse {
                let text = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
                stream.write_all(text).await.unwrap();
                continue;
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            tokio::spawn(async move {
                let mut upstream = TcpStream::connect(upstream).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut upstream).await;
            });
        }
        heads
    });
    // A name, because what is on this machine goes through no proxy; the certificate is for another.
    let dir = tempfile::tempdir().unwrap();
    let path = fake.write_ca(dir.path()).unwrap();
    let files = Files::read([path.as_path()]).unwrap();
    let trust = Trust::new(Some(&path), Unusable::Refuse, None, &files, "caBundle").unwrap();
    let trust = trust.with_name("localhost").unwrap();
    let http = || {
        let proxy = Proxy::of(&format!("http://user:hunter2@{proxy}"), "");
        Http::new(&trust, proxy, Limits::default())
    };
    let address = Address::parse(&format!("https://kms.example:{port}")).unwrap();
    assert!(get(&http(), &address).await.is_ok());
    let error = get(&http(), &address).await.err().unwrap().report();
    assert!(error.contains("proxy") && !error.contains("hunter2"), "{error}");
    let heads = asked.await.unwrap();
    assert!(heads[0].starts_with(&format!("connect kms.example:{port} http/1.1\r\n")));
    assert!(heads[0].contains("proxy-authorization: basic "), "{}", heads[0]);
}

/// An address that takes no connection and says nothing, as behind a firewall: its queue is full.
async fn black_hole(ip: &str, port: u16) -> Vec<TcpStream> {
    let address: SocketAddr = format!("{ip}:{port}").parse().unwrap();
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let listener = socket.listen(0).unwrap();
    let mut held = Vec::new();
    let limit = Duration::from_millis(100);
    while let Ok(Ok(stream)) = tokio::time::timeout(limit, TcpStream::connect(address)).await {
        held.push(stream);
        assert!(held.len() < 100, "the queue is never full");
    }
    std::mem::forget(listener);
    held
}

/// A client for which every name stands for these addresses.
fn resolving(ips: &'static [&'static str]) -> Http {
    let names = tower::service_fn(move |_: Name| async move {
        let addresses = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0));
        Ok(addresses.collect::<Vec<_>>().into_iter())
    });
    let names = BoxCloneSyncService::new(names);
    let limits = Limits::default();
    let transport = Transport::with(&trust(), Proxy::default(), limits, names);
    let transport = Arc::new(transport);
    Http::over(transport)
}

#[tokio::test]
async fn dead_addresses_before_a_good_one_cost_no_request() {
    let server = server(usize::MAX, false, false).await;
    let Address::Tcp { port, .. } = server.address else { panic!() };
    let mut held = black_hole("127.0.0.2", port).await;
    held.extend(black_hole("127.0.0.3", port).await);
    held.extend(black_hole("[::1]", port).await);
    let address = Address::parse(&format!("http://kms.example:{port}")).unwrap();
    for ips in [
        &["127.0.0.2", "127.0.0.3", "127.0.0.1"][..],
        &["::1", "127.0.0.1"],
        &["::1", "::1", "127.0.0.2", "127.0.0.3", "127.0.0.1"],
    ] {
        let asked = resolving(ips).ask(&address, Request::new(Method::GET, "/"), soon(3)).await;
        assert!(asked.is_ok(), "{ips:?}: {}", asked.err().unwrap().report());
    }
    drop(held);
}

#[tokio::test]
async fn a_slow_way_to_a_new_connection_costs_none_of_those_that_are_kept() {
    let (server, http) = (server(usize::MAX, false, false).await, client(Limits::default()));
    assert!(get(&http, &server.address).await.is_ok());
    let Address::Tcp { port, .. } = server.address else { panic!() };
    let held = black_hole("127.0.0.4", port).await;
    let nowhere = Address::parse(&format!("http://127.0.0.4:{port}")).unwrap();
    let late = http.ask(&nowhere, Request::new(Method::GET, "/"), soon(1)).await;
    assert_eq!(late.err().unwrap().kind(), Kind::Timeout);
    assert!(get(&http, &server.address).await.is_ok());
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    drop(held);
}

#[tokio::test]
async fn what_cannot_be_reached_is_told_with_its_address_and_what_to_check() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let error = get(&client(Limits::default()), &address).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.report().contains(&address.to_string()), "{}", error.report());
    assert!(error.hint().unwrap().contains("network"));
}

#[tokio::test]
async fn the_clock_of_the_servers_is_learned_from_their_answers() {
    let now = std::time::SystemTime::now() + Duration::from_secs(5 * 3600);
    let date = httpdate::fmt_http_date(now);
    let fake = Fake::https(move |_| Reply::json(503, &json!({})).with("date", date.clone())).await;
    let http = trusting(&fake, Proxy::default());
    assert_eq!(get(&http, &Address::parse(&fake.url()).unwrap()).await.unwrap().status, 503);
    let off = now.duration_since(http.clock().now()).unwrap_or_default();
    assert!(off < Duration::from_secs(60), "{off:?}");
}
