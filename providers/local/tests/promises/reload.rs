//! The configuration file, changed under a running process.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use tonic::Code;

use crate::support::{Home, Process, complaint, run, until};

/// How a file is changed.
#[derive(Clone, Copy, Debug)]
enum Way {
    InPlace,
    Rename,
    /// As kubelet does it: all files behind one link, which is swapped.
    Swap,
}

/// A configuration with these keys, each with a key file and a socket of its own.
fn keys(home: &Home, ids: &[u64]) -> Value {
    let keys: Vec<Value> = ids.iter().map(|id| key(home, *id)).collect();
    json!({"admin": "127.0.0.1:0", "probe": {"interval": "1s"}, "keys": keys})
}

fn key(home: &Home, id: u64) -> Value {
    let name = format!("key-{id}");
    if !home.path(&name).exists() {
        home.make_key(&name);
    }
    let credentials = json!({"keyFile": home.path(&name)});
    json!({"id": id, "listen": home.path(&format!("{id}.sock")), "credentials": credentials})
}

fn publish(home: &Home, way: Way, text: &str) {
    match way {
        Way::InPlace => home.write("config.yaml", text),
        Way::Rename => {
            home.write("config.new", text);
            std::fs::rename(home.path("config.new"), home.path("config.yaml")).unwrap();
        }
        Way::Swap => {
            let old = std::fs::read_link(home.path("..data")).ok();
            let number = home.names().iter().filter(|name| name.starts_with("..rev")).count();
            let mut new = format!("..rev-{number}");
            if old.as_deref().is_some_and(|old| old.as_os_str() == new.as_str()) {
                new.push('b');
            }
            std::fs::create_dir(home.path(&new)).unwrap();
            home.write(&format!("{new}/config.yaml"), text);
            symlink(&new, home.path("..data_tmp")).unwrap();
            std::fs::rename(home.path("..data_tmp"), home.path("..data")).unwrap();
            match old {
                Some(old) => std::fs::remove_dir_all(home.path(old.to_str().unwrap())).unwrap(),
                None => symlink("..data/config.yaml", home.path("config.yaml")).unwrap(),
            }
        }
    }
}

fn start(home: &Home) -> Process {
    Process::start(&["--config", &home.at("config.yaml")])
}

/// Why the newest configuration is not in use.
async fn refusal(process: &Process) -> Option<String> {
    let status = process.status().await;
    status["config"]["refused"]["error"].as_str().map(str::to_owned)
}

async fn keys_come_and_go_by(way: Way) {
    let home = Home::new();
    publish(&home, way, &keys(&home, &[1]).to_string());
    let process = start(&home);
    home.healthy("1.sock").await;
    let mut kms = home.kms("1.sock").await;
    let sealed = kms.encrypt().await.unwrap();
    for round in 1..=2_u8 {
        publish(&home, way, &keys(&home, &[1, 2, 3]).to_string());
        home.healthy("2.sock").await;
        home.healthy("3.sock").await;
        let mut document = keys(&home, &[1, 3]);
        document["revision"] = format!("r{round}").into();
        document["keys"][1]["listen"] = home.at("moved.sock").into();
        publish(&home, way, &document.to_string());
        home.healthy("moved.sock").await;
        until("2 and the old 3 are gone", async || {
            (!home.path("2.sock").exists() && !home.path("3.sock").exists()).then_some(())
        })
        .await;
        assert_eq!(process.status().await["config"]["revision"], format!("r{round}"));
        // Whatever happened to the others: the first key's connection has not noticed.
        kms.decrypt(&sealed).await.unwrap();
    }
    assert_eq!(process.metric("kms_config_reloads_total{result=\"failure\"}").await, Some(0.0));
    process.stop().await;
}

#[tokio::test]
async fn keys_come_and_go_by_a_rewrite_in_place() {
    keys_come_and_go_by(Way::InPlace).await;
}

#[tokio::test]
async fn keys_come_and_go_by_a_rename() {
    keys_come_and_go_by(Way::Rename).await;
}

#[tokio::test]
async fn keys_come_and_go_by_a_swap_of_the_directory() {
    keys_come_and_go_by(Way::Swap).await;
}

#[tokio::test]
async fn a_configuration_that_is_no_good_leaves_the_last_good_one_in_use() {
    let home = Home::new();
    let good = keys(&home, &[1]).to_string();
    home.write("config.yaml", &good);
    let process = start(&home);
    home.healthy("1.sock").await;
    let mut kms = home.kms("1.sock").await;
    let unknown = json!({"keys": [{"id": 1, "surprise": true}], "adimn": 1}).to_string();
    let cases = [
        ("", "is empty"),
        (&good[..good.len() / 2], "YAML"),
        ("\u{1}\u{2}garbage: [", "YAML"),
        ("keys: []", "at least one key"),
        (&unknown, "adimn"),
    ];
    for (text, why) in cases {
        let failures = process.metric("kms_config_reloads_total{result=\"failure\"}").await;
        home.write("config.yaml", text);
        let said = until(why, async || refusal(&process).await.filter(|said| said.contains(why)));
        let said = said.await;
        assert!(said.contains("config.yaml") || said.contains("the new configuration"), "{said}");
        assert!(process.metric("kms_config_reloads_total{result=\"failure\"}").await > failures);
        kms.encrypt().await.unwrap();
        // What is mended is taken over without being asked.
        home.write("config.yaml", &good);
        until("it heals", async || refusal(&process).await.is_none().then_some(())).await;
    }
    std::fs::remove_file(home.path("config.yaml")).unwrap();
    until("missing", async || refusal(&process).await.filter(|why| why.contains("not exist")))
        .await;
    kms.encrypt().await.unwrap();
    assert!(process.metric("kms_config_reloads_total{result=\"success\"}").await >= Some(5.0));
    process.stop().await;
}

#[tokio::test]
async fn a_configuration_that_cannot_be_applied_changes_nothing_and_is_tried_again() {
    let home = Home::new();
    home.write("config.yaml", &keys(&home, &[1]).to_string());
    let process = start(&home);
    home.healthy("1.sock").await;
    // The socket of key 2 is in another's hands for a while.
    home.write("2.sock", "not a socket");
    home.write("config.yaml", &keys(&home, &[1, 2, 3]).to_string());
    until("the reason", async || refusal(&process).await.filter(|why| why.contains("2.sock")))
        .await;
    assert!(!home.path("3.sock").exists(), "half of it was applied");
    assert_eq!(process.status().await["keys"].as_array().unwrap().len(), 1);
    std::fs::remove_file(home.path("2.sock")).unwrap();
    home.healthy("2.sock").await;
    home.healthy("3.sock").await;
    process.stop().await;
}

#[tokio::test]
async fn another_kek_or_another_key_on_a_used_socket_is_refused() {
    let home = Home::new();
    let document = keys(&home, &[1]);
    home.write("config.yaml", &document.to_string());
    let process = start(&home);
    home.healthy("1.sock").await;
    let mut changed = document.clone();
    changed["keys"][0]["kek"] = json!({"lineage": "0".repeat(32)});
    home.write("config.yaml", &changed.to_string());
    let why = until("the kek", async || refusal(&process).await).await;
    assert!(why.contains("kek of key 1") && why.contains("new id"), "{why}");
    let mut renumbered = document.clone();
    renumbered["keys"][0]["id"] = 2.into();
    home.write("config.yaml", &renumbered.to_string());
    let said = async || refusal(&process).await.filter(|why| why.contains("served for key 1"));
    until("the socket", said).await;
    home.kms("1.sock").await.encrypt().await.unwrap();
    process.stop().await;
}

#[tokio::test]
async fn a_key_that_is_not_the_one_its_canary_was_made_with_is_not_served() {
    let home = Home::new();
    let mut document = keys(&home, &[1, 2]);
    home.write("config.yaml", &document.to_string());
    let process = start(&home);
    home.healthy("1.sock").await;
    home.healthy("2.sock").await;
    let canary = |socket: &str| {
        let made = run(&["canary", "--socket", &home.at(socket), "-o", "json"]);
        assert!(made.status.success(), "{}", complaint(&made));
        serde_json::from_slice::<Value>(&made.stdout).unwrap()
    };
    document["keys"][0]["canary"] = canary("1.sock");
    document["keys"][1]["canary"] = canary("1.sock");
    home.write("config.yaml", &document.to_string());
    // A running key keeps what works, and says what does not.
    until("the canary is refused", async || {
        let status = process.status().await;
        let why = status["keys"][1]["refused"]["error"].to_string();
        (why.contains("canary") && status["keys"][0]["refused"].is_null()).then_some(())
    })
    .await;
    home.kms("2.sock").await.encrypt().await.unwrap();
    process.stop().await;
    // At a start there is nothing to keep.
    let process = start(&home);
    home.healthy("1.sock").await;
    until("not served", async || {
        let mut kms = home.kms("2.sock").await;
        let status = kms.status().await.unwrap_err();
        let refused = status.code() == Code::FailedPrecondition;
        (refused && status.message().contains("canary")).then_some(())
    })
    .await;
    assert!(home.kms("2.sock").await.encrypt().await.is_err());
    assert!(process.get("/readyz").await.body.contains("key 2"));
    process.stop().await;
}

#[tokio::test]
async fn a_key_that_moves_keeps_its_gauges() {
    let home = Home::new();
    let mut document = keys(&home, &[1]);
    home.write("config.yaml", &document.to_string());
    let process = start(&home);
    let key_id = home.healthy("1.sock").await;
    let open = home.kms("1.sock").await;
    document["keys"][0]["listen"] = home.at("moved.sock").into();
    home.write("config.yaml", &document.to_string());
    assert_eq!(home.healthy("moved.sock").await, key_id);
    drop(open);
    until("the old socket is gone", async || (!home.path("1.sock").exists()).then_some(())).await;
    let metrics = process.get("/metrics").await.body;
    assert!(metrics.contains("kms_plugin_key_id_hash_info{key=\"1\""), "{metrics}");
    let healthy: Vec<_> =
        metrics.lines().filter(|line| line.starts_with("kms_plugin_status_healthy{")).collect();
    assert!(healthy.len() == 1 && healthy[0].contains("moved.sock"), "{healthy:?}");
    process.stop().await;
}

#[tokio::test]
async fn what_only_a_restart_can_change_is_said_and_the_log_level_follows() {
    let home = Home::new();
    let mut document = keys(&home, &[1]);
    home.write("config.yaml", &document.to_string());
    let process = start(&home);
    home.healthy("1.sock").await;
    document["drain"] = "20s".into();
    document["log"] = json!({"level": "debug"});
    home.write("config.yaml", &document.to_string());
    process.logs("new configuration is in use config=").await;
    process.logs("drain: this field changed, which the next start takes over").await;
    home.kms("1.sock").await.encrypt_as("seen-by-debug").await.unwrap();
    process.logs("seen-by-debug").await;
    process.stop().await;
}
