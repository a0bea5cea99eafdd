//! Start, sockets, stop.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;
use sidekey_core::Endpoint;
use tonic::Code;

use crate::support::h2::{DATA, Raw, message};
use crate::support::{Home, Kms, PLAINTEXT, Process, code, complaint, run, until};

#[tokio::test]
async fn a_second_start_decrypts_what_the_first_encrypted() {
    let home = Home::new();
    let first = home.serve(&[]).await;
    let key = std::fs::read(home.path("key")).unwrap();
    let sealed = home.kms("kms.sock").await.encrypt().await.unwrap();
    first.stop().await;
    let second = home.serve(&[]).await;
    home.kms("kms.sock").await.decrypt(&sealed).await.unwrap();
    assert_eq!(home.kms("kms.sock").await.status().await.unwrap(), sealed.key_id);
    assert_eq!(std::fs::read(home.path("key")).unwrap(), key, "the key was touched");
    second.stop().await;
}

#[tokio::test]
async fn a_key_id_written_through_the_shim_is_read_without_it() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let mut kms = home.kms("kms.sock").await;
    let mut sealed = kms.encrypt().await.unwrap();
    let own = sealed.key_id.clone();
    sealed.key_id = format!("sidekey/12-0a1b2c3d/{own}");
    kms.decrypt(&sealed).await.unwrap();
    sealed.key_id = format!("sidekey/x-0a1b2c3d/{own}");
    assert_eq!(code(kms.decrypt(&sealed).await), Code::FailedPrecondition);
    process.stop().await;
}

/// An Encrypt of which the second half is still to come, and that half.
fn open_request(home: &Home) -> (Raw, Vec<u8>) {
    // Field 1, length-delimited: the plaintext.
    let request = [&[0x0a, 32][..], &PLAINTEXT].concat();
    let whole = message(request.len(), &request);
    let mut raw = Raw::open(&home.path("kms.sock"));
    raw.request(1, "Encrypt");
    raw.body(1, &whole[..10], false);
    assert!(raw.settle().is_some(), "the request must be known before the signal comes");
    (raw, whole[10..].to_vec())
}

#[tokio::test]
async fn sigterm_lets_open_requests_end_and_then_exits_with_0() {
    let home = Home::new();
    let mut process = home.serve(&["--drain", "1h"]).await;
    let (mut raw, rest) = open_request(&home);
    process.signal(Signal::TERM);
    process.logs("stopping").await;
    until("the socket is gone", async || (!home.path("kms.sock").exists()).then_some(())).await;
    raw.body(1, &rest, true);
    let answer = std::iter::from_fn(|| raw.next()).find(|frame| frame.kind == DATA);
    assert!(answer.is_some_and(|frame| frame.stream == 1 && frame.body.len() > 32), "no answer");
    drop(raw);
    assert_eq!(process.end().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let home = Home::new();
    let mut process = home.serve(&["--drain", "1h"]).await;
    let (_raw, _rest) = open_request(&home);
    process.signal(Signal::TERM);
    process.logs("stopping").await;
    process.signal(Signal::INT);
    assert!(process.end().await.code().is_some(), "ended by the signal itself");
    process.logs("second signal").await;
    assert!(!home.path("kms.sock").exists());
}

#[tokio::test]
async fn a_drain_does_not_outlast_its_deadline() {
    let home = Home::new();
    let mut process = home.serve(&["--drain", "100ms"]).await;
    let (_raw, _rest) = open_request(&home);
    process.signal(Signal::TERM);
    assert_eq!(process.end().await.code(), Some(0));
    process.logs("cut off").await;
}

#[tokio::test]
async fn a_crash_leaves_no_core() {
    let home = Home::new();
    let mut process = home.serve(&[]).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    let numbers: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
    // 1 is the kernel's word for "no dump, not even to a pipe".
    assert!(numbers.iter().all(|limit| ["0", "1"].contains(limit)), "{core}");
    process.signal(Signal::ABORT);
    let status = process.end().await;
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false));
}

#[tokio::test]
async fn a_socket_has_the_mode_and_group_that_were_asked_for() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let meta = home.path("kms.sock").metadata().unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o660);
    process.stop().await;
    let group = home.path("key").metadata().unwrap().gid().to_string();
    let process = home.serve(&["--socket-mode", "0600", "--socket-group", &group]).await;
    let meta = home.path("kms.sock").metadata().unwrap();
    assert_eq!((meta.permissions().mode() & 0o7777, meta.gid().to_string()), (0o600, group));
    process.stop().await;
}

#[tokio::test]
async fn a_user_who_is_not_on_the_list_is_refused_and_counted() {
    let home = Home::new();
    let own = home.path(".").metadata().unwrap().uid();
    let mut flags = home.flags();
    flags.extend(["--allow-uid".to_owned(), (own + 4242).to_string()]);
    let process = Process::start(&flags);
    process.logs("key is served").await;
    for attempt in 1..=3 {
        let refused = match Kms::try_open(&home.path("kms.sock")).await {
            Ok(mut kms) => kms.status().await.is_err(),
            Err(_) => true,
        };
        assert!(refused);
        let count = f64::from(attempt);
        until("the refusal is counted", async || {
            let counted = process.metric("kms_refused_connections_total").await;
            (counted == Some(count)).then_some(())
        })
        .await;
    }
    assert!(process.log().contains("its uid is not allowed"), "{}", process.log());
    process.stop().await;
}

#[tokio::test]
async fn an_abstract_socket_serves_and_has_one_owner() {
    let home = Home::new();
    let name = format!("unix:///@sidekey-local-{}", std::process::id());
    let endpoint: Endpoint = name.parse().unwrap();
    let key = home.at("key");
    let flags = ["--listen", &name, "--key-file", &key, "--create-key"];
    let first = Process::start(&flags);
    first.logs("key is served").await;
    let sealed = Kms::at(&endpoint).await.unwrap().encrypt().await.unwrap();
    let second = run(&flags);
    assert_eq!(second.status.code(), Some(1));
    assert!(complaint(&second).contains("answers there"), "{}", complaint(&second));
    first.kill().await;
    let third = Process::start(&flags);
    third.logs("key is served").await;
    Kms::at(&endpoint).await.unwrap().decrypt(&sealed).await.unwrap();
    assert_eq!(home.names(), ["key"], "an abstract socket leaves nothing in the file system");
    third.stop().await;
}

#[tokio::test]
async fn a_socket_in_use_is_left_alone_and_a_stale_one_replaced() {
    let home = Home::new();
    let first = home.serve(&[]).await;
    let second = run(&home.flags());
    assert_eq!(second.status.code(), Some(1));
    let said = complaint(&second);
    assert!(said.contains(&format!("process {}", first.pid())), "{said}");
    home.kms("kms.sock").await.status().await.unwrap();
    first.kill().await;
    assert!(home.path("kms.sock").exists(), "a killed process leaves its socket");
    let third = home.serve(&[]).await;
    third.stop().await;
    assert_eq!(home.names(), ["key"]);
}

#[tokio::test]
async fn a_start_that_fails_says_what_failed_on_what_and_what_to_do() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let taken = process.admin().await;
    let (key, socket) = (home.at("key"), home.at("other.sock"));
    let (nowhere, file) = (home.at("nowhere/kms.sock"), home.at("key"));
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--listen", &socket, "--admin", &taken], &[&taken, "in use", "another admin address"]),
        (&["--listen", &nowhere], &[&nowhere, "No such file", "mkdir"]),
        (&["--listen", &file], &[&file, "a file is in its place", "left as it is"]),
        (&["--listen", &socket, "--admin-socket", &nowhere], &[&nowhere, "mkdir"]),
    ];
    for (flags, expected) in cases {
        let failed = run(&[flags, &["--key-file", &key][..]].concat());
        let said = complaint(&failed);
        assert_eq!(failed.status.code(), Some(1), "{flags:?}: {said}");
        for part in expected {
            assert!(said.contains(part), "{flags:?} without {part:?}: {said}");
        }
    }
    assert!(!home.path("other.sock").exists(), "a failed start leaves no socket");
    process.stop().await;
}
