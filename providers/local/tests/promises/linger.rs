//! The end of a process whose clients are told to end at the same moment.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Home, Process, until};

/// What the log says when a process serves on.
const SERVES_ON: &str = "ending: serving on until clients have left";

#[tokio::test]
async fn it_serves_in_full_until_the_last_client_has_left_and_then_ends_by_itself() {
    let home = Home::new();
    let mut process = home.serve(&["--linger", "1h"]).await;
    let mut old = home.kms("kms.sock").await;
    let sealed = old.encrypt().await.unwrap();
    process.signal(Signal::TERM);
    process.logs(SERVES_ON).await;

    old.decrypt(&sealed).await.unwrap();
    let mut new = home.kms("kms.sock").await;
    new.decrypt(&sealed).await.unwrap();
    assert_eq!(new.status().await.unwrap(), sealed.key_id);
    new.encrypt().await.unwrap();
    // The connection by which it was found healthy may be counted for a moment more.
    until("two are connected", async || {
        let ready = process.get("/readyz").await;
        let text = "ending: serving on for 2 open connections\n";
        ((ready.code, ready.body.as_str()) == (503, text)).then_some(())
    })
    .await;
    assert_eq!((process.get("/livez").await.code, process.get("/healthz").await.code), (200, 200));

    drop(old);
    until("one has left", async || {
        process.get("/readyz").await.body.contains("for 1 open").then_some(())
    })
    .await;
    new.decrypt(&sealed).await.unwrap();
    drop(new);
    assert_eq!(process.end().await.code(), Some(0), "{}", process.log());
    assert!(process.log().contains("no client is connected"), "{}", process.log());
    assert!(!home.path("kms.sock").exists());
}

#[tokio::test]
async fn without_a_client_it_ends_at_once() {
    let home = Home::new();
    let mut flags = home.flags();
    flags.extend(["--linger", "1h"].map(str::to_owned));
    let mut process = Process::start(&flags);
    process.logs("key is served").await;
    process.signal(Signal::TERM);
    assert_eq!(process.end().await.code(), Some(0));
    assert!(!process.log().contains(SERVES_ON), "{}", process.log());
}

#[tokio::test]
async fn clients_that_stay_are_not_waited_for_beyond_the_limit() {
    let home = Home::new();
    let mut process = home.serve(&["--linger", "100ms"]).await;
    let mut kms = home.kms("kms.sock").await;
    kms.status().await.unwrap();
    process.signal(Signal::TERM);
    assert_eq!(process.end().await.code(), Some(0), "{}", process.log());
    process.logs("clients have not left within the limit connections=1").await;
    kms.status().await.unwrap_err();
}

#[tokio::test]
async fn it_waits_for_nobody_unless_it_is_told_to() {
    let home = Home::new();
    let mut process = home.serve(&[]).await;
    let mut kms = home.kms("kms.sock").await;
    kms.status().await.unwrap();
    process.signal(Signal::TERM);
    assert_eq!(process.end().await.code(), Some(0));
    assert!(!process.log().contains(SERVES_ON), "{}", process.log());
}

#[tokio::test]
async fn a_person_who_ends_it_does_not_wait_for_clients() {
    let home = Home::new();
    let mut process = home.serve(&["--linger", "1h"]).await;
    let mut kms = home.kms("kms.sock").await;
    kms.status().await.unwrap();
    process.signal(Signal::INT);
    assert_eq!(process.end().await.code(), Some(0));
    assert!(!process.log().contains(SERVES_ON), "{}", process.log());
}

#[tokio::test]
async fn a_second_order_ends_the_waiting_at_once() {
    for second in [Signal::TERM, Signal::INT] {
        let home = Home::new();
        let mut process = home.serve(&["--linger", "1h", "--drain", "1h"]).await;
        let mut kms = home.kms("kms.sock").await;
        kms.status().await.unwrap();
        process.signal(Signal::TERM);
        process.logs(SERVES_ON).await;
        process.signal(second);
        assert_eq!(process.end().await.code(), Some(0));
        process.logs("second signal").await;
        assert!(!home.path("kms.sock").exists(), "a socket that leads nowhere is left");
    }
}

#[tokio::test]
async fn the_time_to_linger_and_new_keys_are_taken_over_while_it_runs_and_while_it_ends() {
    let home = Home::new();
    for key in ["key-1", "key-2"] {
        home.make_key(key);
    }
    let key = |id: u32| {
        let socket = home.at(&format!("{id}.sock"));
        json!({"id": id, "listen": socket, "credentials": {"keyFile": home.at(&format!("key-{id}"))}})
    };
    let mut document = json!({"admin": "127.0.0.1:0", "keys": [key(1)]});
    home.write("config.yaml", &document.to_string());
    let mut process = Process::start(&["--config", &home.at("config.yaml")]);
    home.healthy("1.sock").await;
    document["linger"] = "1h".into();
    home.write("config.yaml", &document.to_string());
    process.logs("new configuration is in use").await;
    let mut kms = home.kms("1.sock").await;
    let sealed = kms.encrypt().await.unwrap();
    process.signal(Signal::TERM);
    process.logs(SERVES_ON).await;

    document["keys"] = json!([key(1), key(2)]);
    home.write("config.yaml", &document.to_string());
    home.healthy("2.sock").await;
    kms.decrypt(&sealed).await.unwrap();
    drop(kms);
    assert_eq!(process.end().await.code(), Some(0), "{}", process.log());
}
