//! Callers who mean no good.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use sidekey_core::proto::v2::{DecryptRequest, EncryptRequest};
use tonic::Code;

use crate::support::h2::{ABUSES, HEADERS, MOST, RST_STREAM, Raw, message, peak};
use crate::support::{Home, code, until};

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
        // As many as there may be at a time.
        for _ in live.len()..128 {
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
    let before = peak(process.pid());
    for (length, least) in [(4_000_000, 1), (90_000, 1 << 20)] {
        let sent = flood(&home, length);
        assert!(sent >= least, "no flood at all: {sent} bytes");
        let grown = peak(process.pid()) - before;
        assert!(grown < 40 * 1024, "{grown} KiB more for {sent} bytes of requests");
    }
    home.kms("kms.sock").await.encrypt().await.unwrap();
    process.stop().await;
}

#[tokio::test]
async fn no_abuse_takes_more_than_its_share_or_disturbs_an_honest_client() {
    for (name, abuse) in ABUSES {
        let home = Home::new();
        let process = home.serve(&[]).await;
        let mut before = home.kms("kms.sock").await;
        let sealed = before.encrypt().await.unwrap();
        let socket = home.path("kms.sock");
        let abusing = tokio::task::spawn_blocking(move || abuse(&|| Raw::hasty(&socket)));
        let mut rounds = 0;
        while rounds < 20 || !abusing.is_finished() {
            before.decrypt(&sealed).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            // A newcomer in a crowd may have to come again before it is heard, as gRPC does.
            until("a newcomer is served", async || home.kms("kms.sock").await.encrypt().await.ok())
                .await;
            rounds += 1;
        }
        let crowd = abusing.await.unwrap();
        before.decrypt(&sealed).await.unwrap_or_else(|error| panic!("{name}, after: {error}"));
        let most = peak(process.pid());
        println!("{name}: {most} KiB");
        assert!(most < MOST, "{name} takes it to {most} KiB");
        assert!(process.log().matches("too many").count() <= 20, "{name} floods the log");
        drop(crowd);
        drop(before);
        until("nothing is left of it", async || {
            let left = async |name| process.metric(name).await;
            (left("kms_unfinished_requests ").await == Some(0.0)
                && left("kms_connections ").await == Some(0.0))
            .then_some(())
        })
        .await;
        process.stop().await;
    }
}

#[tokio::test]
async fn idle_connections_keep_nobody_out_and_the_longest_idle_makes_room() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    // Each has asked, and is kept.
    let mut idle = Vec::new();
    for _ in 0..300 {
        let mut one = home.kms("kms.sock").await;
        one.status().await.unwrap();
        idle.push(one);
    }
    idle[0].status().await.expect_err("the longest idle has made room");
    idle[299].status().await.expect("the others have not");
    let mut late = home.kms("kms.sock").await;
    late.encrypt().await.unwrap();
    assert!(process.metric("kms_closed_connections_total ").await.unwrap() >= 44.0);
    process.stop().await;
}

#[tokio::test]
async fn a_socket_that_somebody_removes_is_made_anew_and_counted() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let mut old = home.kms("kms.sock").await;
    for round in 1..=2_u32 {
        std::fs::remove_file(home.path("kms.sock")).unwrap();
        if round == 2 {
            // Somebody else's, who has gone.
            drop(std::os::unix::net::UnixListener::bind(home.path("kms.sock")).unwrap());
        }
        home.healthy("kms.sock").await;
        old.encrypt().await.expect("open connections stay");
        assert_eq!(process.metric("kms_sockets_remade_total ").await, Some(round.into()));
        assert_eq!(process.status().await["connections"]["sockets_remade"], round);
        assert!(process.log().contains("the socket was gone and is made anew"));
    }
    // What another process serves there is not taken from it.
    std::fs::remove_file(home.path("kms.sock")).unwrap();
    let theirs = std::os::unix::net::UnixListener::bind(home.path("kms.sock")).unwrap();
    until("it is told", async || {
        let lost = process.status().await["connections"]["sockets_lost"][0].clone();
        lost.as_str().is_some_and(|why| why.contains("answers there")).then_some(())
    })
    .await;
    drop(theirs);
    home.healthy("kms.sock").await;
    assert_eq!(process.status().await["connections"]["sockets_lost"].as_array().unwrap().len(), 0);
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
