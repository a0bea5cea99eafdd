//! Where AWS runs something, it hands out credentials there: ECS, EKS Pod Identity, another role.

use std::fs;
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use serde_json::{Value, json};
use sidekey_e2e::aws::{AwsPlugin, REGION};
use sidekey_rest::testing::{Fake, Reply, Seen};

use crate::support::{Aws, PLAINTEXT, kms, launch, until};

const ROLE: &str = "arn:aws:iam::123456789012:role/kms-provider";

fn keys(id: &str, seconds: u64) -> Value {
    let end = SystemTime::now() + Duration::from_secs(seconds);
    json!({
        "AccessKeyId": id, "SecretAccessKey": "a secret with spaces", "Token": "session",
        "Expiration": sidekey_core::time(end),
    })
}

async fn called_by(aws: &Aws, access_key: &str) {
    until("these credentials are in use", async || {
        let last = aws.moto.last().await?;
        ensure!(last["access_key"] == access_key, "{last}");
        Ok(())
    })
    .await;
}

fn authorization(seen: &Seen) -> &str {
    seen.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[tokio::test]
async fn a_container_gets_the_credentials_of_its_task_and_new_ones_before_they_end() {
    let aws = Aws::alone("container").await;
    let count = std::sync::atomic::AtomicU32::new(0);
    let agent = Fake::http(move |_| {
        let next = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Reply::json(200, &keys(&format!("ASIATASK{next}"), 12))
    })
    .await;
    let url = format!("{}/v2/credentials/x", agent.url());
    let env = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "task-token"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let mut plugin = aws.launch_bare(&aws.flags(&aws.key), &env).await;
    plugin.wait_ready().await.unwrap();
    kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
    // The second ones, or later ones: they do not last longer than it takes to look on a busy machine.
    until("new credentials are in use", async || {
        let last = aws.moto.last().await?;
        let number = last["access_key"].as_str().and_then(|id| id.strip_prefix("ASIATASK"));
        ensure!(number.is_some_and(|number| number != "0"), "{last}");
        Ok(())
    })
    .await;
    let seen = agent.seen();
    assert!(seen.iter().all(|seen| authorization(seen) == "task-token"));
    assert_eq!(seen[0].path, "/v2/credentials/x");
}

#[tokio::test]
async fn pod_identity_asks_with_the_token_of_its_file_and_follows_it() {
    let aws = Aws::alone("pod-identity").await;
    let agent = Fake::http(|seen| match authorization(seen) {
        "pod-token-1" => Reply::json(200, &keys("ASIAPOD1", 3600)),
        "pod-token-2" => Reply::json(200, &keys("ASIAPOD2", 3600)),
        _ => Reply::json(403, &json!({"message": "no"})),
    })
    .await;
    let token = aws.scratch.path().join("pod-token");
    fs::write(&token, "pod-token-1").unwrap();
    let (url, file) = (format!("{}/v1/credentials", agent.url()), token.display().to_string());
    let env = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.as_str()),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let mut plugin = aws.launch_bare(&aws.flags(&aws.key), &env).await;
    plugin.wait_ready().await.unwrap();
    called_by(&aws, "ASIAPOD1").await;
    fs::write(&token, "pod-token-2").unwrap();
    called_by(&aws, "ASIAPOD2").await;
    kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn another_role_is_assumed_with_the_external_id_that_its_owner_asks_for() {
    let aws = Aws::alone("external-id").await;
    let sts = Fake::http(|seen| {
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        if !body.contains("ExternalId=tenant-7") {
            return Reply { status: 403, ..xml("<Error><Code>AccessDenied</Code></Error>") };
        }
        let end = sidekey_core::time(SystemTime::now() + Duration::from_secs(3600));
        xml(&format!(
            "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
             <AssumeRoleResult><Credentials><AccessKeyId>ASIAROLE</AccessKeyId>\
             <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
             <Expiration>{end}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ))
    })
    .await;
    let file = |name: &str, text: &str| {
        let path = aws.scratch.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let config = json!({
        "probe": {"interval": "1s", "timeout": "10s", "coast": "25s"},
        "keys": [{
            "id": 1, "listen": aws.dir().join("kms.sock"),
            "kek": {"key": aws.key, "region": REGION},
            "settings": {"endpoint": aws.url(), "stsEndpoint": sts.url()},
            "credentials": {
                "accessKeyIdFile": file("id", "AKIABASE"), "secretAccessKeyFile": file("key", "s"),
                "roleArn": ROLE, "externalId": "tenant-7", "sessionName": "control-plane-7",
            },
        }],
    });
    let path = AwsPlugin::write_config(&aws.dir(), &config).unwrap();
    let flags = [format!("--config={}", path.display())];
    let mut plugin = launch(&aws.dir(), &flags, &[("AWS_EC2_METADATA_DISABLED", "true")]).await;
    plugin.wait_ready().await.unwrap();
    called_by(&aws, "ASIAROLE").await;
    let seen = sts.seen();
    let body = String::from_utf8_lossy(&seen[0].body);
    assert!(body.contains("RoleSessionName=control-plane-7"), "{body}");
    assert!(authorization(&seen[0]).contains("AKIABASE"));
    assert_eq!(seen.len(), 1, "one session serves all calls");
}

fn xml(text: &str) -> Reply {
    let headers = vec![("content-type", "text/xml".to_owned())];
    Reply { status: 200, headers, body: text.to_owned().into(), delay: Duration::ZERO }
}

#[tokio::test]
async fn a_profile_that_runs_a_program_is_refused_and_nothing_is_run() {
    let aws = Aws::start("process").await;
    let (trace, file) = (aws.scratch.path().join("trace"), aws.scratch.path().join("config"));
    let command = format!("/bin/sh -c 'echo run > {}'", trace.display());
    fs::write(&file, format!("[default]\ncredential_process = {command}\n")).unwrap();
    let path = file.display().to_string();
    let env = [("AWS_CONFIG_FILE", path.as_str()), ("AWS_EC2_METADATA_DISABLED", "true")];
    let plugin = aws.launch_bare(&aws.flags(&aws.key), &env).await;
    let client = kms(&plugin, "kms").await;
    until("the reason is told", async || {
        let error = client.status().await.expect_err("there are no credentials");
        ensure!(error.message().contains("credentials-process"), "{error}");
        Ok(())
    })
    .await;
    assert!(!trace.exists());
}
