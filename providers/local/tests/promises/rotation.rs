//! Rotation under running processes.

use rustix::process::Signal;
use sidekey_core::proto::v2::EncryptResponse;

use crate::support::{Home, Kms, Process, complaint, json, until};

/// Another process on the same key file, with a socket of its own.
async fn beside(home: &Home, socket: &str) -> Process {
    let process = Process::start(&["--listen", &home.at(socket), "--key-file", &home.at("key")]);
    home.healthy(socket).await;
    process
}

/// Waits until Status announces another key_id than `old`.
async fn moved(kms: &mut Kms, old: &str) -> String {
    until("key_id moves", async || kms.status().await.ok().filter(|key_id| key_id != old)).await
}

fn on_key(home: &Home, command: &[&str]) {
    let output = home.on_key(command);
    assert!(output.status.success(), "{command:?}: {}", complaint(&output));
}

#[tokio::test]
async fn rotate_with_activate_is_picked_up_by_a_running_process() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let mut kms = home.kms("kms.sock").await;
    let old = kms.encrypt().await.unwrap();
    on_key(&home, &["rotate", "--activate"]);
    let key_id = moved(&mut kms, &old.key_id).await;
    let new = kms.encrypt().await.unwrap();
    assert_eq!(new.key_id, key_id);
    for sealed in [&old, &new] {
        kms.decrypt(sealed).await.unwrap();
    }
    process.stop().await;
}

#[tokio::test]
async fn rotate_alone_changes_nothing_that_is_written() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let mut kms = home.kms("kms.sock").await;
    let before = kms.status().await.unwrap();
    on_key(&home, &["rotate"]);
    process.logs("new files or settings are in use").await;
    assert_eq!(kms.status().await.unwrap(), before);
    assert_eq!(kms.encrypt().await.unwrap().key_id, before);
    on_key(&home, &["activate"]);
    moved(&mut kms, &before).await;
    process.stop().await;
}

#[tokio::test]
async fn two_processes_read_each_other_throughout_a_rotation() {
    let home = Home::new();
    let (first, second) = (home.serve(&[]).await, beside(&home, "second.sock").await);
    let mut sockets = [home.kms("kms.sock").await, home.kms("second.sock").await];
    let mut written: Vec<EncryptResponse> = Vec::new();
    for step in
        [&["rotate"][..], &["activate"], &["rotate", "--activate"], &["rotate"], &["activate"]]
    {
        let old = sockets[0].status().await.unwrap();
        on_key(&home, step);
        let moves = step.last() != Some(&"rotate");
        // Read each other without a pause until both have moved, and once more.
        loop {
            let mut at = Vec::new();
            for (writer, reader) in [(0, 1), (1, 0)] {
                let sealed = sockets[writer].encrypt().await.unwrap();
                sockets[reader].decrypt(&sealed).await.unwrap();
                at.push(sealed.key_id.clone());
                written.push(sealed);
            }
            if !moves || at.iter().all(|key_id| *key_id != old) {
                break;
            }
        }
    }
    let versions: std::collections::BTreeSet<_> =
        written.iter().map(|sealed| &sealed.key_id).collect();
    assert_eq!(versions.len(), 4);
    for sealed in &written {
        for kms in &mut sockets {
            kms.decrypt(sealed).await.unwrap();
        }
    }
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn calls_that_meet_a_new_version_at_the_same_time_all_get_it() {
    let home = Home::new();
    let (first, second) = (home.serve(&[]).await, beside(&home, "second.sock").await);
    let mut writer = home.kms("kms.sock").await;
    let reader = home.kms("second.sock").await;
    let old = writer.status().await.unwrap();
    // The reader sleeps through the rotation, and wakes up to many calls for what it does not know.
    second.signal(Signal::STOP);
    on_key(&home, &["rotate", "--activate"]);
    moved(&mut writer, &old).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let (sealed, mut reader) = (writer.encrypt().await.unwrap(), reader.share());
        calls.spawn(async move { reader.decrypt(&sealed).await });
    }
    second.signal(Signal::CONT);
    while let Some(answer) = calls.join_next().await {
        answer.unwrap().unwrap();
    }
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a_file_that_lost_a_version_or_is_another_key_never_takes_over() {
    let home = Home::new();
    let process = home.serve(&[]).await;
    let mut kms = home.kms("kms.sock").await;
    let first = std::fs::read(home.path("key")).unwrap();
    let old = kms.encrypt().await.unwrap();
    on_key(&home, &["rotate", "--activate"]);
    let key_id = moved(&mut kms, &old.key_id).await;
    let second = std::fs::read(home.path("key")).unwrap();
    home.make_key("foreign");
    let foreign = std::fs::read(home.path("foreign")).unwrap();
    let damaged = &second[..second.len() / 2];
    let cases = [
        (first.as_slice(), "is missing or altered"),
        (foreign.as_slice(), "another key"),
        (damaged, "damaged"),
        (b"", "is empty"),
    ];
    for (content, why) in cases {
        std::fs::write(home.path("key"), content).unwrap();
        until(why, async || {
            let refused = process.status().await["keys"][0]["refused"]["error"].to_string();
            refused.contains(why).then_some(())
        })
        .await;
        assert_eq!(kms.status().await.unwrap(), key_id, "the loaded key stays in use");
        kms.decrypt(&old).await.unwrap();
    }
    assert!(process.metric("kms_reloads_total{key=\"1\",result=\"failure\"}").await >= Some(4.0));
    std::fs::write(home.path("key"), &second).unwrap();
    until("it heals by itself", async || {
        process.status().await["keys"][0]["refused"].is_null().then_some(())
    })
    .await;
    process.stop().await;
}

#[tokio::test]
async fn the_write_version_never_goes_back() {
    let home = Home::new();
    home.make_key("key");
    on_key(&home, &["rotate", "--activate"]);
    let back = home.on_key(&["activate", "--version", "1"]);
    assert_eq!(back.status.code(), Some(64));
    assert!(complaint(&back).contains("never come back"), "{}", complaint(&back));
    let unknown = home.on_key(&["activate", "--version", "3", "-o", "json"]);
    assert_eq!(unknown.status.code(), Some(64));
    assert_eq!(json(&unknown)["kind"], "invalid");
    let shown = json(&home.on_key(&["show", "-o", "json"]));
    assert_eq!((&shown["active"], &shown["versions"]), (&2.into(), &serde_json::json!([1, 2])));
}

#[tokio::test]
async fn a_rotation_behind_a_link_keeps_the_link_and_is_noticed() {
    let home = Home::new();
    home.make_key("key");
    // Behind a link in another directory: the way of a mounted volume.
    std::fs::create_dir(home.path("volume")).unwrap();
    std::fs::rename(home.path("key"), home.path("volume/key")).unwrap();
    std::os::unix::fs::symlink("volume/key", home.path("key")).unwrap();
    let process = home.serve(&[]).await;
    let mut kms = home.kms("kms.sock").await;
    let old = kms.status().await.unwrap();
    on_key(&home, &["rotate", "--activate"]);
    assert!(home.path("key").is_symlink(), "the link must stay a link");
    moved(&mut kms, &old).await;
    process.stop().await;
}
