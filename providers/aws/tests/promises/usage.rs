//! Command lines and configurations, good ones and bad ones.

use std::process::{Command, Output};

use serde_json::{Value, json};
use sidekey_e2e::Scratch;

use crate::support::{Aws, binary};

fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary());
    command.args(args).env_clear().envs(env.iter().copied());
    command.output().unwrap()
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

const BAD: &str = r#"
probe: {interval: 5}
keys:
- id: 1
  listen: /run/a.sock
  kek: {key: "not a key!", colour: blue}
  settings: {endpoint: "not a url", caBundle: relative.pem, sourceArn: nonsense}
  credentials: {webIdentityTokenFile: relative, accessKeyIdFile: /a}
- id: 1
  listen: /run/a.sock
  kek: {key: "arn:aws:kms:us-east-1:111122223333:key/abc", region: eu-west-1}
"#;

#[test]
fn every_mistake_of_a_configuration_is_told_at_once_and_nothing_starts() {
    let scratch = Scratch::new("bad").unwrap();
    let path = scratch.path().join("config.yaml");
    std::fs::write(&path, BAD).unwrap();
    let path = path.display().to_string();
    for args in [&["--config", &path][..], &["check", "--config", &path]] {
        let refused = run(args, &[]);
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
        let said = format!("{}{}", complaint(&refused), String::from_utf8_lossy(&refused.stdout));
        for mistake in [
            "keys[0].kek.key",
            "keys[0].kek.colour",
            "keys[0].settings.endpoint",
            "keys[0].settings.caBundle",
            "keys[0].settings.sourceArn",
            "keys[0].credentials.webIdentityTokenFile",
            "keys[0].credentials.roleArn",
            "keys[0].credentials.secretAccessKeyFile",
            "keys[1].id",
            "keys[1].listen",
            "keys[1].kek.region",
            "probe.interval",
        ] {
            assert!(said.contains(mistake), "{args:?}: no {mistake} in\n{said}");
        }
    }
}

#[test]
fn flags_that_make_no_sense_are_refused_by_name() {
    let key = "--key=arn:aws:kms:us-east-1:111122223333:key/abc";
    let (region, listen) = ("--region=us-east-1", "--listen=/tmp/never.sock");
    let cases: &[(&[&str], &str)] = &[
        (&[], "the flags of a key"),
        (&[key, region, "--listen=/a.sock,/b.sock"], "--listen"),
        (&["--key=a b", region, listen], "key"),
        (&[key, region, listen, "--health-port=nonsense"], "health"),
        (&[key, region, listen, "--encryption-context=nonsense"], "encryption-context"),
        (&[key, region, listen, "--no-such-flag"], "--no-such-flag"),
        (&[key, "--region=eu-west-1", listen], "region"),
    ];
    for (args, mistake) in cases {
        let refused = run(args, &[]);
        assert_eq!(refused.status.code(), Some(64), "{args:?}: {refused:?}");
        assert!(complaint(&refused).contains(mistake), "{args:?}: {}", complaint(&refused));
    }
    assert!(!std::path::Path::new("/tmp/never.sock").exists());
}

#[test]
fn help_shows_examples() {
    let help = run(&["--help"], &[]);
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    for part in ["--key", "--listen", "--health-port", "sidekey-aws --", "--config"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

#[tokio::test]
async fn a_configuration_is_checked_on_paper_and_at_aws() {
    let aws = Aws::start("check").await;
    let key = |id: u64, key: &str| {
        json!({
            "id": id, "listen": aws.dir().join(format!("{id}.sock")), "kek": {"key": key},
            "settings": {"endpoint": aws.url()},
        })
    };
    let write = |keys: Vec<Value>| {
        let path = aws.scratch.path().join("config.yaml");
        std::fs::write(&path, json!({"keys": keys}).to_string()).unwrap();
        path.display().to_string()
    };
    let env = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
    let path = write(vec![key(1, &aws.key)]);
    let sound = run(&["check", "--config", &path, "-o", "json"], &env);
    assert!(sound.status.success(), "{sound:?}");
    assert_eq!(json(&sound)["ok"], true);
    let connected = tokio::task::spawn_blocking(move || {
        run(&["check", "--config", &path, "--connect", "-o", "json"], &env)
    });
    let connected = connected.await.unwrap();
    assert!(connected.status.success(), "{connected:?}");
    let told = json(&connected);
    assert!(told["keys"][0]["keyId"].as_str().unwrap().starts_with(&aws.key), "{told}");
    let missing = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-4000-8000-000000000000";
    let path = write(vec![key(1, &aws.key), key(2, missing)]);
    let failed =
        tokio::task::spawn_blocking(move || run(&["check", "--config", &path, "--connect"], &env));
    let failed = failed.await.unwrap();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(complaint(&failed).contains("key 2"), "{}", complaint(&failed));
}

#[test]
fn a_health_port_that_is_taken_is_called_so() {
    let scratch = Scratch::new("busy").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (health, listen) = (
        format!("--health-port={address}"),
        format!("--listen={}/kms.sock", scratch.path().display()),
    );
    let failed = run(&["--key=alias/a", "--region=us-east-1", &listen, &health], &[]);
    let said = complaint(&failed);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    for part in [&format!("health port {address}"), "in use", "another by --health-port"] {
        assert!(said.contains(part), "without {part:?}: {said}");
    }
    assert!(!said.contains("admin"), "{said}");
}
