//! AWS behind TLS with a CA of one's own, as private endpoints have it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;
use serde_json::{Value, json};
use sidekey_e2e::Scratch;
use sidekey_e2e::aws::{AwsPlugin, REGION};
use sidekey_e2e::gateway::Gateway;
use sidekey_e2e::pki::Authority;
use tonic::Code;

use crate::support::{
    ACCESS_KEY, Aws, PLAINTEXT, SECRET_KEY, binary, healthy, kms, launch, sick, until,
};

struct Scene {
    plugin: AwsPlugin,
    gateway: Gateway,
    bundle: PathBuf,
    dir: PathBuf,
    config: PathBuf,
    _aws: Aws,
}

const ENVIRONMENT: [(&str, &str); 2] =
    [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];

async fn start(name: &str, authority: &Authority, bundle: &str) -> Scene {
    let aws = Aws::start(name).await;
    let dir = aws.scratch.subdir("pki").unwrap();
    let certificate = authority.server(&dir, "first").unwrap();
    let gateway = Gateway::tls(aws.moto.address(), &certificate).await.unwrap();
    let path = dir.join("bundle.pem");
    fs::write(&path, bundle).unwrap();
    let config = json!({
        "probe": {"interval": "1s", "timeout": "10s", "coast": "25s"},
        "keys": [{
            "id": 1, "listen": aws.dir().join("kms.sock"),
            "kek": {"key": aws.key, "region": REGION},
            "settings": {"endpoint": format!("https://{}", gateway.address()), "caBundle": path},
        }],
    });
    let config = AwsPlugin::write_config(&aws.dir(), &config).unwrap();
    let flags = [format!("--config={}", config.display())];
    let plugin = launch(&aws.dir(), &flags, &ENVIRONMENT).await;
    Scene { plugin, gateway, bundle: path, dir, config, _aws: aws }
}

impl Scene {
    /// What `check --connect` says of the configuration.
    async fn check(&self) -> Value {
        let mut command = Command::new(binary());
        command.args(["check", "--connect", "-o", "json", "--config"]).arg(&self.config);
        command.env_clear().envs(ENVIRONMENT);
        let ran = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        serde_json::from_slice(&ran.stdout).unwrap()
    }
}

/// Waits until a bundle has been taken over, which is one more reload.
async fn replace(plugin: &AwsPlugin, bundle: &Path, text: &str) {
    let reloads = async || {
        let metrics = plugin.metrics().await?;
        anyhow::Ok(metrics.sum("kms_reloads_total", &[("result", "success")]))
    };
    let before = reloads().await.unwrap();
    fs::write(bundle, text).unwrap();
    until("the bundle is in use", async || {
        ensure!(reloads().await? > before, "not yet");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_ca_is_replaced_while_it_runs_without_a_failed_call() {
    let [old, new] = ["old", "new"].map(|name| Authority::new(name).unwrap());
    let scene = start("ca", &old, &old.pem()).await;
    healthy(&scene.plugin, "kms").await;
    let client = kms(&scene.plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    let both = format!("{}{}", old.pem(), new.pem());
    replace(&scene.plugin, &scene.bundle, &both).await;
    client.decrypt(&sealed).await.unwrap();
    scene.gateway.present(&new.server(&scene.dir, "second").unwrap()).unwrap();
    client.decrypt(&sealed).await.unwrap();
    replace(&scene.plugin, &scene.bundle, &new.pem()).await;
    client.round_trip(&PLAINTEXT).await.unwrap();
    // It is really verified: the old one is trusted no more.
    scene.gateway.present(&old.server(&scene.dir, "third").unwrap()).unwrap();
    let refused = client.decrypt(&sealed).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("not trusted"), "{refused}");
}

#[tokio::test]
async fn an_unknown_ca_is_refused_by_name_and_healed_by_the_right_bundle() {
    let [own, other] = ["own", "other"].map(|name| Authority::new(name).unwrap());
    let scene = start("unknown-ca", &own, &other.pem()).await;
    let client = kms(&scene.plugin, "kms").await;
    let error = until("the reason is told", async || {
        let error = sick(&client).await;
        ensure!(error.message().to_lowercase().contains("certificate"), "{error}");
        Ok(error)
    })
    .await;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let checked = scene.check().await;
    assert_eq!(checked["kind"], "unavailable", "{checked}");
    let text = checked["error"].as_str().unwrap();
    assert!(text.contains("not trusted: set settings.caBundle"), "{text}");
    fs::write(&scene.bundle, own.pem()).unwrap();
    healthy(&scene.plugin, "kms").await;
    // A bundle without a certificate in it is refused; the last good one stays.
    fs::write(&scene.bundle, "no certificate").unwrap();
    until("the refusal is shown", async || {
        let status = scene.plugin.status().await?;
        ensure!(status["keys"][0]["refused"].is_object(), "{status}");
        Ok(())
    })
    .await;
    client.round_trip(&PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_is_swapped_before_our_bundle_is_borne_for_the_coast() {
    let [old, new] = ["old", "new"].map(|name| Authority::new(name).unwrap());
    let scene = start("ca-early", &old, &old.pem()).await;
    healthy(&scene.plugin, "kms").await;
    let client = kms(&scene.plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    scene.gateway.present(&new.server(&scene.dir, "second").unwrap()).unwrap();
    let refused = client.decrypt(&sealed).await.unwrap_err();
    assert!(refused.message().contains("not trusted"), "{refused}");
    client.status().await.unwrap();
    replace(&scene.plugin, &scene.bundle, &new.pem()).await;
    client.decrypt(&sealed).await.unwrap();
}

#[test]
fn plain_http_to_another_machine_is_refused_whoever_names_it() {
    const URL: &str = "http://kms.invalid:4566";
    let scratch = Scratch::new("plain").unwrap();
    let file = |name: &str, text: &str| {
        let path = scratch.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let text = format!(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\nendpoint_url = {URL}\n"
    );
    let profile = json!({"configFile": file("profile", &text)});
    let keys =
        json!({"accessKeyIdFile": file("id", "a"), "secretAccessKeyFile": file("secret", "b")});
    let mut role = keys.clone();
    role["roleArn"] = "arn:aws:iam::123456789012:role/kms".into();
    let cases = [
        ("AWS_ENDPOINT_URL", &keys),
        ("AWS_ENDPOINT_URL_KMS", &keys),
        ("AWS_ENDPOINT_URL_STS", &role),
        ("NOTHING_BUT_THE_PROFILE", &profile),
    ];
    for (variable, credentials) in cases {
        let check = |settings: Value| {
            let key = json!({
                "id": 1, "kek": {"key": "alias/a", "region": REGION},
                "settings": settings, "credentials": credentials,
            });
            let config = file("config.yaml", &json!({"keys": [key]}).to_string());
            let mut command = Command::new(binary());
            command.args(["check", "--connect", "-o", "json", "--config"]).arg(config);
            let ran = command.env_clear().env(variable, URL).output().unwrap();
            serde_json::from_slice::<Value>(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
        };
        let refused = check(json!({}));
        assert_eq!(refused["kind"], "config", "{variable}: {refused}");
        let text = refused["error"].as_str().unwrap();
        for part in [URL, "plain HTTP", "settings.allowPlaintext"] {
            assert!(text.contains(part), "{variable}: no {part} in {text}");
        }
        let tried = check(json!({"allowPlaintext": true}));
        assert_eq!(tried["kind"], "unavailable", "there is no such machine: {tried}");
    }
}
