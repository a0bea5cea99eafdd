//! What is logged, and what never is.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use serde_json::Value;
use sidekey_core::hex;

use crate::support::{Home, PLAINTEXT, Process, json, run, until};

#[tokio::test]
async fn json_lines_parse_and_every_request_has_its_uid() {
    let home = Home::new();
    let admin = home.at("admin.sock");
    let flags = ["--log-format", "json", "--log-level", "debug", "--admin-socket", &admin];
    let mut all = home.flags();
    all.truncate(all.len() - 2);
    all.extend(flags.map(str::to_owned));
    let process = Process::start(&all);
    home.healthy("kms.sock").await;
    let mut kms = home.kms("kms.sock").await;
    let mut sealed = kms.encrypt_as("uid-of-encrypt").await.unwrap();
    kms.decrypt_as("uid-of-decrypt", &sealed).await.unwrap();
    sealed.ciphertext = vec![1; 60].into();
    kms.decrypt_as("uid-of-failure", &sealed).await.unwrap_err();
    let change = "/log-level?level=info";
    crate::support::ask_socket(&home.path("admin.sock"), "PUT", change);
    process.logs("log level changed").await;
    let log = process.log();
    // Before the log begins, a new key is announced in plain words.
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let mut uids = Vec::new();
    for line in lines {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        for field in ["timestamp", "level", "message"] {
            assert_eq!(line.matches(&format!("\"{field}\":")).count(), 1, "{line}");
        }
        if event["message"].as_str().unwrap().starts_with("request ") {
            uids.push(event["uid"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(uids, ["uid-of-encrypt", "uid-of-decrypt", "uid-of-failure"]);
    assert!(log.lines().filter(|line| !line.starts_with('{')).count() <= 1, "{log}");
    process.stop().await;
}

/// The ways in which bytes find their way into a log.
fn forms(bytes: &[u8]) -> Vec<String> {
    let list = format!("{bytes:?}");
    let escaped: String = bytes.escape_ascii().to_string();
    // A part is as bad as the whole, and nothing shorter is there by chance.
    let middle = |text: String| text[text.len() / 4..][..16].to_owned();
    let mut forms = vec![
        middle(hex(bytes)),
        middle(hex(bytes).to_uppercase()),
        middle(STANDARD.encode(bytes)),
        middle(URL_SAFE.encode(bytes)),
        middle(STANDARD_NO_PAD.encode(bytes)),
        middle(list.trim_matches(['[', ']']).to_owned()),
        middle(escaped),
    ];
    if let Ok(text) = std::str::from_utf8(bytes) {
        forms.push(middle(text.to_owned()));
    }
    forms
}

#[test]
fn the_forms_would_be_found() {
    let found = |text: String| forms(&PLAINTEXT).iter().any(|form| text.contains(form.as_str()));
    assert!(found(format!("x={}", hex(&PLAINTEXT))));
    assert!(found(format!("{PLAINTEXT:?}")));
    assert!(found(format!(
        "{:?}",
        sidekey_core::proto::v2::StatusResponse {
            healthz: String::from_utf8_lossy(&PLAINTEXT).into_owned(),
            ..Default::default()
        }
    )));
    assert!(found(STANDARD.encode(PLAINTEXT)));
    assert!(!found("a line like any other".to_owned()));
}

#[tokio::test]
async fn nothing_ever_shows_plaintext_ciphertext_or_key() {
    let home = Home::new();
    home.make_key("key");
    let flags = ["--listen", &home.at("first.sock"), "--key-file", &home.at("key")];
    let first = Process::start(&flags);
    home.healthy("first.sock").await;
    let canary = json(&run(&["canary", "--socket", &home.at("first.sock"), "-o", "json"]));
    first.stop().await;
    let config = serde_json::json!({
        "admin": "127.0.0.1:0",
        "log": {"level": "trace"},
        "keys": [{"id": 1, "listen": home.path("kms.sock"), "canary": canary,
                  "credentials": {"keyFile": home.path("key")}}],
    });
    home.write("config.yaml", &config.to_string());
    let process = Process::start(&["--config", &home.at("config.yaml")]);
    home.healthy("kms.sock").await;
    let mut kms = home.kms("kms.sock").await;
    let sealed = kms.encrypt().await.unwrap();
    kms.decrypt(&sealed).await.unwrap();
    // Everything that goes wrong goes through the log.
    let mut broken = sealed.clone();
    broken.ciphertext = sealed.ciphertext.iter().rev().copied().collect::<Vec<u8>>().into();
    kms.decrypt(&broken).await.unwrap_err();
    broken = sealed.clone();
    broken.key_id.push('9');
    kms.decrypt(&broken).await.unwrap_err();
    broken.annotations.insert("not a domain".into(), sealed.ciphertext.clone());
    kms.decrypt(&broken).await.unwrap_err();
    assert!(home.on_key(&["rotate", "--activate"]).status.success());
    let sound = std::fs::read_to_string(home.path("key")).unwrap();
    until("the rotation", async || {
        kms.status().await.ok().filter(|key_id| *key_id != sealed.key_id)
    })
    .await;
    home.write("key", &sound[..sound.len() - 20]);
    process.logs("new files or settings refused").await;
    let mut shown = process.log();
    // At the lowest level our own lines are all there; what other crates trace is not.
    assert!(shown.contains("DEBUG") && shown.contains("request served"), "no whole log: {shown}");
    assert!(!shown.contains("TRACE"), "another crate traces: {shown}");
    shown.push_str(&process.get("/status").await.body);
    shown.push_str(&process.get("/metrics").await.body);
    shown.push_str(&format!("{:?}", home.on_key(&["show"])));
    let file: Value = serde_json::from_str(&sound).unwrap();
    let keys = file["versions"].as_array().unwrap();
    assert_eq!(keys.len(), 2);
    let secrets = keys.iter().map(|version| STANDARD.decode(version["key"].as_str().unwrap()));
    let mut secrets: Vec<Vec<u8>> = secrets.map(Result::unwrap).collect();
    secrets.extend([PLAINTEXT.to_vec(), sealed.ciphertext.to_vec()]);
    secrets.push(STANDARD.decode(canary["ciphertext"].as_str().unwrap()).unwrap());
    for secret in secrets {
        for form in forms(&secret) {
            assert!(!shown.contains(&form), "{form} of {} bytes was shown", secret.len());
        }
    }
    process.stop().await;
}

#[tokio::test]
async fn the_configuration_in_use_is_logged() {
    let home = Home::new();
    let process = home.serve(&["--coast", "45s"]).await;
    let log = process.log();
    let line = log.lines().find(|line| line.contains("starting")).unwrap();
    for part in [home.at("key"), home.at("kms.sock"), "\"coast\":\"45s\"".to_owned()] {
        assert!(line.contains(&part), "no {part}: {line}");
    }
    process.stop().await;
}
