//! Who the plugin is at AWS, and how that changes while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::ensure;
use serde_json::{Value, json};
use sidekey_e2e::aws::{AwsPlugin, REGION};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::shim::publish;
use tonic::Code;

use crate::support::{ACCESS_KEY, Aws, PLAINTEXT, healthy, kms, launch, sick, until};

const ROLE: &str = "arn:aws:iam::123456789012:role/kms-provider";
const EXPIRED: &str = "ExpiredTokenException";

/// HyperShift's way: a credentials file that names a role and a token file.
struct HyperShift {
    aws: Aws,
    token: PathBuf,
    credentials: PathBuf,
}

impl HyperShift {
    async fn start(name: &str) -> Self {
        let aws = Aws::alone(name).await;
        let token = aws.scratch.path().join("token");
        let credentials = aws.scratch.path().join("credentials");
        fs::write(&token, "token-1").unwrap();
        aws.moto.accept_tokens(&["token-1"]).await.unwrap();
        aws.moto.accept_access_keys(&[]).await.unwrap();
        let text = format!(
            "[default]\nrole_arn = {ROLE}\nweb_identity_token_file = {}\n\
             sts_regional_endpoints = regional\nregion = {REGION}\n",
            token.display()
        );
        fs::write(&credentials, text).unwrap();
        Self { aws, token, credentials }
    }

    async fn serve(&self) -> AwsPlugin {
        let file = self.credentials.display().to_string();
        let env = [
            ("AWS_SHARED_CREDENTIALS_FILE", file.as_str()),
            ("AWS_SDK_LOAD_CONFIG", "true"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ];
        let mut plugin = self.aws.launch_bare(&self.aws.flags(&self.aws.key), &env).await;
        plugin.wait_ready().await.unwrap();
        plugin
    }

    /// A session that was opened with this token is the one in use.
    async fn uses(&self, token: &str) {
        until("the new token is in use", async || {
            let last = self.aws.moto.last().await?;
            let key = last["access_key"].as_str().unwrap_or_default();
            let used = self.aws.moto.sessions().await?.get(key).cloned();
            ensure!(used.as_deref() == Some(token), "it is {used:?}");
            Ok(())
        })
        .await;
    }
}

/// Asks for Status and Decrypt until `done`; not one call may fail.
async fn without_a_failure(client: &KmsClient, done: impl Future<Output = ()>) -> u32 {
    let sealed = client.encrypt(&PLAINTEXT).await.unwrap();
    let mut served = 0;
    tokio::pin!(done);
    loop {
        tokio::select! {
            () = &mut done => return served,
            answer = client.decrypt(&sealed) => {
                assert_eq!(answer.unwrap(), PLAINTEXT[..]);
                client.status().await.unwrap();
                served += 1;
            }
        }
    }
}

#[tokio::test]
async fn a_new_web_identity_token_is_taken_over_without_a_failed_call() {
    let scene = HyperShift::start("token").await;
    let plugin = scene.serve().await;
    let client = kms(&plugin, "kms").await;
    scene.uses("token-1").await;
    let moto = &scene.aws.moto;
    let change = async {
        moto.accept_tokens(&["token-1", "token-2"]).await.unwrap();
        // Not at once, as a careless writer does it.
        fs::write(&scene.token, "").unwrap();
        fs::write(&scene.token, "tok").unwrap();
        fs::write(&scene.token, "token-2").unwrap();
        scene.uses("token-2").await;
        moto.accept_tokens(&["token-2"]).await.unwrap();
        moto.revoke_sessions_of("token-1", EXPIRED).await.unwrap();
        let before = moto.calls("Decrypt").await.unwrap();
        until("calls after the revocation", async || {
            ensure!(moto.calls("Decrypt").await? > before + 60, "too few");
            Ok(())
        })
        .await;
    };
    let served = without_a_failure(&client, change).await;
    assert!(served >= 20, "only {served} calls");
}

#[tokio::test]
async fn a_broken_token_is_refused_and_the_session_in_use_goes_on() {
    let scene = HyperShift::start("broken").await;
    let mut plugin = scene.serve().await;
    let client = kms(&plugin, "kms").await;
    for broken in ["", "token-cut-in-ha", "\n"] {
        fs::write(&scene.token, broken).unwrap();
        plugin
            .wait_status("the refusal is shown", |status| {
                let refused = &status["keys"][0]["refused"];
                ensure!(refused.is_object(), "{status}");
                Ok(())
            })
            .await
            .unwrap();
        client.round_trip(&PLAINTEXT).await.unwrap();
        client.status().await.unwrap();
        fs::write(&scene.token, "token-1").unwrap();
        plugin
            .wait_status("the refusal is gone", |status| {
                ensure!(status["keys"][0]["refused"].is_null(), "{status}");
                Ok(())
            })
            .await
            .unwrap();
    }
    let metrics = plugin.metrics().await.unwrap();
    assert!(metrics.sum("kms_reloads_total", &[("result", "failure")]) >= 3.0);
    assert!(!plugin.process().log().unwrap().contains("token-cut"), "no token in the log");
}

#[tokio::test]
async fn a_token_whose_sessions_die_at_once_heals_as_soon_as_the_new_one_is_there() {
    let scene = HyperShift::start("dead").await;
    let plugin = scene.serve().await;
    let client = kms(&plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    scene.aws.moto.accept_tokens(&["token-2"]).await.unwrap();
    scene.aws.moto.revoke_sessions(EXPIRED).await.unwrap();
    let error = sick(&client).await;
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    fs::write(&scene.token, "token-2").unwrap();
    assert_eq!(healthy(&plugin, "kms").await, sealed.key_id);
    assert_eq!(client.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
}

#[tokio::test]
async fn sessions_are_renewed_before_they_end_and_their_end_is_a_metric() {
    let scene = HyperShift::start("renewed").await;
    let before = scene.aws.moto.sessions().await.unwrap().len();
    scene.aws.moto.limit_sessions(Duration::from_secs(12)).await.unwrap();
    let plugin = scene.serve().await;
    let client = kms(&plugin, "kms").await;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let name = "kms_credentials_expiry_timestamp_seconds";
    let expiry = plugin.metrics().await.unwrap().sum(name, &[]);
    assert!((now() - 12.0..now() + 13.0).contains(&expiry), "{expiry} at {}", now());
    let moto = &scene.aws.moto;
    let renewals = async {
        until("two renewals", async || {
            let sessions = moto.sessions().await?.len() - before;
            ensure!(sessions >= 3, "{sessions} sessions");
            Ok(())
        })
        .await;
        until("the metric follows", async || {
            let later = plugin.metrics().await?.sum(name, &[]);
            ensure!(later > expiry, "{later}");
            Ok(())
        })
        .await;
    };
    without_a_failure(&client, renewals).await;
}

#[tokio::test]
async fn a_role_of_the_service_account_works_as_eks_sets_it_up() {
    let scene = HyperShift::start("irsa").await;
    let token = scene.token.display().to_string();
    let env = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.as_str()),
        ("AWS_ROLE_ARN", ROLE),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let aws = &scene.aws;
    let mut plugin = aws.launch_bare(&aws.flags(&aws.key), &env).await;
    plugin.wait_ready().await.unwrap();
    scene.uses("token-1").await;
    aws.moto.accept_tokens(&["token-1", "token-2"]).await.unwrap();
    fs::write(&scene.token, "token-2").unwrap();
    scene.uses("token-2").await;
}

#[tokio::test]
async fn an_instance_gets_its_role_from_the_metadata_service() {
    let aws = Aws::alone("imds").await;
    let url = aws.moto.url();
    let env = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str())];
    let mut plugin = aws.launch_bare(&aws.flags(&aws.key), &env).await;
    plugin.wait_ready().await.unwrap();
    kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
    assert_eq!(aws.moto.last().await.unwrap()["access_key"], "test-key");
}

#[tokio::test]
async fn a_metadata_service_that_cannot_be_reached_is_a_fault_that_may_pass() {
    let aws = Aws::alone("imds-away").await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let url = format!("http://{address}");
    let env = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str())];
    let plugin = aws.launch_bare(&aws.flags(&aws.key), &env).await;
    let client = kms(&plugin, "kms").await;
    until("it says what is missing", async || {
        let error = client.status().await.expect_err("there are no credentials");
        ensure!(error.code() == Code::Unavailable, "{error}");
        for part in [address.to_string().as_str(), "see whether IMDS answers"] {
            ensure!(error.message().contains(part), "{error}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn with_the_metadata_service_disabled_it_is_never_asked() {
    let aws = Aws::fresh("no-imds").await;
    let url = aws.moto.url();
    let env = [
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str()),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let plugin = aws.launch_bare(&aws.flags(&aws.key), &env).await;
    let client = kms(&plugin, "kms").await;
    let error = until("the reason is told", async || {
        let error = client.status().await.expect_err("there are no credentials");
        ensure!(error.message().contains("credentials"), "{error}");
        Ok(error)
    })
    .await;
    let codes = [Code::PermissionDenied, Code::FailedPrecondition];
    assert!(codes.contains(&error.code()), "{error}");
    assert_eq!(aws.moto.calls("metadata").await.unwrap(), 0);
}

fn config(aws: &Aws, credentials: Value) -> Value {
    json!({
        "probe": {"interval": "1s", "timeout": "10s", "coast": "25s"},
        "keys": [{
            "id": 1, "listen": aws.dir().join("kms.sock"),
            "kek": {"key": aws.key, "region": REGION},
            "settings": {"endpoint": aws.url(), "stsEndpoint": aws.url()},
            "credentials": credentials,
        }],
    })
}

async fn configured(aws: &Aws, config: &Value) -> AwsPlugin {
    let path = AwsPlugin::write_config(&aws.dir(), config).unwrap();
    let flags = [format!("--config={}", path.display())];
    let mut plugin = launch(&aws.dir(), &flags, &[("AWS_EC2_METADATA_DISABLED", "true")]).await;
    plugin.wait_ready().await.unwrap();
    plugin
}

async fn called_by(aws: &Aws, access_key: &str) {
    until("the new key is in use", async || {
        let last = aws.moto.last().await?;
        ensure!(last["access_key"] == access_key, "{last}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn static_keys_in_a_mounted_secret_are_swapped_without_a_failed_call() {
    let aws = Aws::alone("static").await;
    let mount = aws.scratch.subdir("mount").unwrap();
    let mut swaps = 0;
    let mut swap = |id: &str| publish(&mount, &mut swaps, &[("id", id), ("secret", "s")]).unwrap();
    swap("AKIAFIRST\n");
    let credentials =
        json!({"accessKeyIdFile": mount.join("id"), "secretAccessKeyFile": mount.join("secret")});
    let plugin = configured(&aws, &config(&aws, credentials)).await;
    called_by(&aws, "AKIAFIRST").await;
    let client = kms(&plugin, "kms").await;
    let change = async {
        swap("AKIASECOND");
        called_by(&aws, "AKIASECOND").await;
        aws.moto.accept_access_keys(&["AKIASECOND"]).await.unwrap();
        // A wrong one is tried on a standby client and refused.
        swap("AKIAWRONG");
        until("the refusal is shown", async || {
            let status = plugin.status().await?;
            ensure!(status["keys"][0]["refused"].is_object(), "{status}");
            Ok(())
        })
        .await;
    };
    without_a_failure(&client, change).await;
    client.round_trip(&PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_wrong_secret_is_told_from_a_wrong_permission() {
    let aws = Aws::start("secret").await;
    let env = [("AWS_SECRET_ACCESS_KEY", "another"), ("AWS_ACCESS_KEY_ID", ACCESS_KEY)];
    let plugin = aws.launch_bare(&aws.flags(&aws.key), &env).await;
    let client = kms(&plugin, "kms").await;
    let error = until("the reason is told", async || {
        let error = client.status().await.expect_err("the signature is wrong");
        ensure!(error.message().contains("InvalidSignatureException"), "{error}");
        Ok(error)
    })
    .await;
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    assert!(error.message().contains("secret access key"), "what to do: {error}");
}

#[tokio::test]
async fn a_configured_role_with_a_token_file_is_assumed() {
    let aws = Aws::fresh("role").await;
    let token = aws.scratch.path().join("token");
    fs::write(&token, "token-1").unwrap();
    aws.moto.accept_tokens(&["token-1"]).await.unwrap();
    aws.moto.accept_access_keys(&[]).await.unwrap();
    let credentials =
        json!({"roleArn": ROLE, "webIdentityTokenFile": token, "sessionName": "control-plane-1"});
    let plugin = configured(&aws, &config(&aws, credentials)).await;
    kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
    assert_eq!(aws.moto.sessions().await.unwrap().len() as u64, opened(&aws).await);
}

async fn opened(aws: &Aws) -> u64 {
    aws.moto.calls("AssumeRoleWithWebIdentity").await.unwrap()
}

#[tokio::test]
async fn keys_in_a_shared_credentials_file_are_followed() {
    let aws = Aws::alone("shared").await;
    let file = aws.scratch.path().join("credentials");
    let write = |id: &str, to: &Path| {
        let text = format!("[prod]\naws_access_key_id = {id}\naws_secret_access_key = s\n");
        fs::write(to, text).unwrap();
    };
    write("AKIAFIRST", &file);
    let credentials = json!({"sharedCredentialsFile": file, "profile": "prod"});
    let plugin = configured(&aws, &config(&aws, credentials)).await;
    called_by(&aws, "AKIAFIRST").await;
    let renamed = aws.scratch.path().join("credentials.new");
    write("AKIASECOND", &renamed);
    fs::rename(&renamed, &file).unwrap();
    called_by(&aws, "AKIASECOND").await;
    kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
}
