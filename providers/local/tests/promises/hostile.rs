//! Callers who mean no good.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest};
use tonic::Code;

use crate::support::h2::{HEADERS, RST_STREAM, Raw, message};
use crate::support::{Home, Process, code};

/// The most memory that the process has had so far, in KiB.
fn peak(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn a_request_beyond_the_limits_is_an_invalid_argument_whatever_its_size() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let endpoint = format!("unix://{}", home.at("kms.sock")).parse().unwrap();
    let mut client = sidekey_core::client::connect(&endpoint).await.unwrap();
    for size in [0, 1025, 100_000, 1 << 20, 5 << 20] {
        let request = EncryptRequest { plaintext: vec![7; size].into(), uid: "big".into() };
        assert_eq!(code(client.encrypt(request).await), Code::InvalidArgument, "{size} bytes");
    }
    let sealed = home.kms("kms.sock").await.encrypt().await.unwrap();
    let request = |key_id: &str, uid: &str| DecryptRequest {
        ciphertext: sealed.ciphertext.clone(),
        uid: uid.into(),
        key_id: key_id.into(),
        annotations: Default::default(),
    };
    let long = "k".repeat(1025);
    for (key_id, uid) in [("", "u"), (&long, "u"), ("a\nb", "u"), (&sealed.key_id, "u\u{7}")] {
        let answer = client.decrypt(request(key_id, uid)).await;
        assert_eq!(code(answer), Code::InvalidArgument, "{key_id:?} {uid:?}");
    }
    let mut annotated = request(&sealed.key_id, "u");
    annotated.annotations.insert("a.b".into(), vec![0; 40_000].into());
    assert_eq!(code(client.decrypt(annotated).await), Code::InvalidArgument);
    // The connection has survived all of it, and so has the key's health.
    client.decrypt(request(&sealed.key_id, "u")).await.unwrap();
    home.kms("kms.sock").await.status().await.unwrap();
    process.stop().await;
}

/// Opens ever more requests that promise a message of `length` and never end, and sends as much of
/// them as it is let, 96 MiB at most.
fn flood(home: &Home, length: usize) -> usize {
    let first = message(length, &[0; 16_384]);
    let mut raw = Raw::open(&home.path("kms.sock"));
    raw.settle();
    let (mut next, mut live, mut sent) = (1, BTreeMap::new(), 0);
    // What was sent is taken in a little after it was read.
    let mut idle = 0;
    while idle < 100 && sent < 96 << 20 {
        for _ in live.len()..1000 {
            raw.request(next, "Decrypt");
            live.insert(next, 0);
            next += 2;
        }
        let before = sent;
        for (stream, done) in &mut live {
            let part = raw.room(*stream).min(length - *done);
            if part > 0 {
                raw.body(*stream, &first[..part], false);
                *done += part;
                sent += part;
            }
        }
        let Some(frames) = raw.settle() else { break };
        for frame in frames.iter().filter(|frame| [HEADERS, RST_STREAM].contains(&frame.kind)) {
            live.remove(&frame.stream);
        }
        idle = if sent == before { idle + 1 } else { 0 };
    }
    sent
}

#[tokio::test]
async fn many_long_requests_at_once_cost_no_more_than_they_may() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let before = peak(&process);
    for length in [4_000_000, 120_000] {
        let sent = flood(&home, length);
        assert!(sent >= 1 << 20, "no flood at all: {sent} bytes");
        let grown = peak(&process) - before;
        assert!(grown < 40 * 1024, "{grown} KiB more for {sent} bytes of requests");
    }
    home.kms("kms.sock").await.encrypt().await.unwrap();
    process.stop().await;
}

#[tokio::test]
async fn many_connections_leave_the_key_serving() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let mut kms = home.kms("kms.sock").await;
    let began = Instant::now();
    for _ in 0..10 {
        let crowd: Vec<_> = (0..300).map(|_| UnixStream::connect(home.path("kms.sock"))).collect();
        kms.encrypt().await.unwrap();
        drop(crowd);
    }
    home.healthy("kms.sock").await;
    let lines = process.log().matches("too many connections").count() as u64;
    assert!(lines <= 1 + began.elapsed().as_secs() / 10, "more than one in ten seconds: {lines}");
    process.stop().await;
}

#[tokio::test]
async fn what_is_no_http2_and_no_kms_is_turned_away() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff",
    ] {
        let mut stream = UnixStream::connect(home.path("kms.sock")).unwrap();
        stream.write_all(garbage).unwrap();
        let mut answer = Vec::new();
        // Closed, with or without a last word.
        let _ = stream.read_to_end(&mut answer);
    }
    let mut raw = Raw::open(&home.path("kms.sock"));
    raw.request(1, "Destroy");
    raw.body(1, &message(0, &[]), true);
    let answered = std::iter::from_fn(|| raw.next()).find(|frame| frame.kind == HEADERS);
    assert!(answered.is_some_and(|frame| frame.stream == 1), "an unknown method is answered");
    drop(raw);
    home.kms("kms.sock").await.encrypt().await.unwrap();
    process.stop().await;
}
