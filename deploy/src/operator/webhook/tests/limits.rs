//! Callers of every kind: too long, too slow, in the wrong place, without TLS.

use std::net::SocketAddr;

use http_body_util::Full;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use kube::runtime::watcher::Event;
use sidekey_core::server::{Stopper, stopper};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::review::review;
use super::*;
use crate::operator::run::Server;

async fn start(tls: bool) -> (SocketAddr, Stopper, tokio::task::JoinHandle<()>) {
    let shelf = Shelf::whole();
    shelf.take(Event::Init);
    shelf.take(Event::InitDone);
    let tls = tls.then(|| Certificate::default().server());
    let server = Server::bind("webhook", ([127, 0, 0, 1], 0).into(), tls).await.unwrap();
    let address = server.address(([0, 0, 0, 0], 0).into());
    let (stopper, stop) = stopper();
    let site = Arc::new(Webhook::new(shelf, options()));
    (address, stopper, tokio::spawn(server.serve(site, stop)))
}

async fn send(address: SocketAddr, method: &str, path: &str, body: Vec<u8>) -> u16 {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header("host", "x");
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    sender.send_request(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn what_is_too_long_or_in_the_wrong_place_is_refused() {
    let (address, _stopper, _server) = start(false).await;
    let review = review(&pod()).to_string().into_bytes();
    assert_eq!(send(address, "POST", "/mutate", review.clone()).await, 200);
    assert_eq!(send(address, "POST", "/mutate?timeout=10s", review.clone()).await, 200);
    assert_eq!(send(address, "POST", "/native-image", review.clone()).await, 200);
    assert_eq!(send(address, "POST", "/mutate", vec![b' '; MAX_REVIEW + 1]).await, 413);
    assert_eq!(send(address, "POST", "/", review).await, 404);
    assert_eq!(send(address, "GET", "/mutate", Vec::new()).await, 405);
    assert_eq!(send(address, "POST", "/mutate", b"{".to_vec()).await, 400);
}

#[tokio::test]
async fn many_who_connect_and_are_silent_keep_nobody_out() {
    let (address, _stopper, _server) = start(false).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let review = review(&pod()).to_string().into_bytes();
    assert_eq!(send(address, "POST", "/mutate", review).await, 200);
    // The oldest had to go.
    assert_eq!(silent[0].read(&mut [0; 16]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn without_tls_or_without_a_certificate_nobody_is_answered() {
    let (address, _stopper, _server) = start(true).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /mutate HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}

#[tokio::test]
async fn at_the_end_idle_connections_are_closed_and_nobody_is_waited_for() {
    let (address, stopper, server) = start(false).await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /mutate HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 405");
    stopper.stop();
    server.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "it listens no more");
}
