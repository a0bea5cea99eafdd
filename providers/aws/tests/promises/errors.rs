//! Every error of KMS has its kind: gRPC code, words, metric and health follow from it.

use std::time::Instant;

use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::aws::{AwsPlugin, KmsFault};
use sidekey_e2e::kms::KmsClient;
use tonic::{Code, Status};

use crate::support::{Aws, COAST, PLAINTEXT, healthy, kms, sick, until};

/// An error as KMS words it (simulated), and what it must become.
struct Case {
    name: &'static str,
    status: u16,
    message: &'static str,
    code: Code,
    kind: &'static str,
}

const fn case(
    name: &'static str,
    status: u16,
    message: &'static str,
    code: Code,
    kind: &'static str,
) -> Case {
    Case { name, status, message, code, kind }
}

const PROXY: &str =
    "The external key store proxy did not respond to the request in the allotted time.";
const EXPIRED: &str = "The security token included in the request is expired";

const CASES: &[Case] = &[
    case(
        "AccessDeniedException",
        400,
        "User: arn:aws:sts::123456789012:assumed-role/x/y is not authorized to perform: kms:Decrypt",
        Code::PermissionDenied,
        "denied",
    ),
    case("ExpiredTokenException", 400, EXPIRED, Code::PermissionDenied, "denied"),
    case(
        "UnrecognizedClientException",
        400,
        "The security token included in the request is invalid.",
        Code::PermissionDenied,
        "denied",
    ),
    case(
        "NotFoundException",
        400,
        "Key 'arn:aws:kms:…' does not exist",
        Code::FailedPrecondition,
        "key_state",
    ),
    case("KeyUnavailableException", 500, "", Code::Unavailable, "unavailable"),
    case("KMSInternalException", 500, "", Code::Unavailable, "unavailable"),
    case("DependencyTimeoutException", 500, "", Code::Unavailable, "unavailable"),
    case("ServiceUnavailableException", 503, "", Code::Unavailable, "unavailable"),
    case("KMSInvalidStateException", 400, PROXY, Code::Unavailable, "unavailable"),
    case("KMSInternalException", 500, PROXY, Code::Unavailable, "unavailable"),
    case("ThrottlingException", 400, "Rate exceeded", Code::ResourceExhausted, "throttled"),
    case("LimitExceededException", 400, "", Code::ResourceExhausted, "throttled"),
];

#[tokio::test]
async fn every_error_has_its_code_its_words_and_its_metric() {
    let aws = Aws::alone("errors").await;
    let plugin = aws.serve().await;
    let client = kms(&plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    for Case { name, status, message, code, kind } in CASES {
        let before = errors(&plugin, kind).await;
        let fault = KmsFault::error(name, message).status(*status);
        aws.moto.faults(&[fault]).await.unwrap();
        let opened = client.decrypt(&sealed).await.unwrap_err();
        check(&opened, name, message, *code, &aws.key);
        let wrapped = client.encrypt(&PLAINTEXT).await.unwrap_err();
        check(&wrapped, name, message, *code, &aws.key);
        assert!(errors(&plugin, kind).await >= before + 2.0, "{name} is not counted as {kind}");
        aws.moto.faults(&[]).await.unwrap();
        until("it heals by itself", async || {
            client.status().await?;
            Ok(client.decrypt(&sealed).await?)
        })
        .await;
    }
}

fn check(error: &Status, name: &str, message: &str, code: Code, key: &str) {
    assert_eq!(error.code(), code, "{name}: {error}");
    let said = error.message();
    assert!(said.contains(name), "the error of KMS is named: {said}");
    assert!(said.contains(message), "{name}: what KMS said is told: {said}");
    assert!(said.contains(key), "{name}: the key is named: {said}");
}

async fn errors(plugin: &AwsPlugin, kind: &str) -> f64 {
    plugin.metrics().await.unwrap().sum("kms_errors_total", &[("kind", kind)])
}

#[tokio::test]
async fn a_disabled_or_dying_key_fails_status_at_once_and_heals_by_itself() {
    let aws = Aws::start("states").await;
    let plugin = aws.serve().await;
    let client = kms(&plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    for (operation, state) in
        [("DisableKey", "is disabled"), ("ScheduleKeyDeletion", "is pending deletion")]
    {
        aws.owner.change_state(operation, &aws.key).await.unwrap();
        let error = sick_with(&client, Code::FailedPrecondition, state).await;
        assert!(error.message().contains(&aws.key), "the key is named: {error}");
        let opened = client.decrypt(&sealed).await.unwrap_err();
        assert_eq!(opened.code(), Code::FailedPrecondition, "{opened}");
        is_shown(&plugin, "key_state").await;
        if operation == "ScheduleKeyDeletion" {
            aws.owner.change_state("CancelKeyDeletion", &aws.key).await.unwrap();
        }
        aws.owner.change_state("EnableKey", &aws.key).await.unwrap();
        assert_eq!(healthy(&plugin, "kms").await, sealed.key_id);
        assert_eq!(client.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    }
}

#[tokio::test]
async fn a_key_that_is_dying_at_the_start_says_when_and_heals_by_itself() {
    let aws = Aws::start("dying").await;
    aws.owner.change_state("ScheduleKeyDeletion", &aws.key).await.unwrap();
    let plugin = aws.launch(&aws.flags(&aws.key), &[]).await;
    let client = kms(&plugin, "kms").await;
    until("the state is told", async || {
        let error = client.status().await.expect_err("the key is dying");
        anyhow::ensure!(error.code() == Code::FailedPrecondition, "{error}");
        Ok(())
    })
    .await;
    let gauge = async || {
        let metrics = plugin.metrics().await?;
        anyhow::Ok(metrics.sum("kms_key_deletion_timestamp_seconds", &[]))
    };
    until("the day is told", async || {
        let day = gauge().await?;
        anyhow::ensure!(day > 1.7e9, "it is {day}");
        Ok(())
    })
    .await;
    aws.owner.change_state("CancelKeyDeletion", &aws.key).await.unwrap();
    aws.owner.change_state("EnableKey", &aws.key).await.unwrap();
    healthy(&plugin, "kms").await;
    until("there is no such day any more", async || {
        let day = gauge().await?;
        anyhow::ensure!(day == 0.0, "it is {day}");
        Ok(())
    })
    .await;
}

/// Waits until Status fails so. A probe that came too late on a busy machine says something else,
/// until the next one.
async fn sick_with(client: &KmsClient, code: Code, text: &str) -> Status {
    until(&format!("Status fails with {text:?}"), async || match client.status().await {
        Err(error) if error.code() == code && error.message().contains(text) => Ok(error),
        other => anyhow::bail!("{other:?}"),
    })
    .await
}

async fn is_shown(plugin: &AwsPlugin, kind: &str) {
    until(&format!("{kind} is shown"), async || {
        let status = plugin.status().await?;
        let key = &status["keys"][0];
        anyhow::ensure!(key["healthy"] == false && key["last_error"]["kind"] == kind, "{status}");
        let healthy = plugin.metrics().await?.sum("kms_plugin_status_healthy", &[]);
        anyhow::ensure!(healthy == 0.0, "the metric says {healthy}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn damaged_data_is_data_loss_and_says_nothing_of_the_key() {
    let aws = Aws::start("damaged").await;
    let plugin = aws.serve().await;
    let client = kms(&plugin, "kms").await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = sealed.ciphertext.to_vec();
        change(&mut bytes);
        EncryptResponse { ciphertext: bytes.into(), ..sealed.clone() }
    };
    let cases = [
        damaged(&|bytes| *bytes.last_mut().unwrap() ^= 1),
        damaged(&|bytes| bytes[1] ^= 1),
        damaged(&|bytes| bytes[0] = b'2'),
        damaged(&|bytes| bytes.truncate(1)),
        damaged(&|bytes| bytes.truncate(20)),
    ];
    for broken in &cases {
        refused(&client, broken).await;
    }
    assert_eq!(client.status().await.unwrap().key_id, sealed.key_id);
    assert_eq!(client.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
}

async fn refused(client: &KmsClient, broken: &EncryptResponse) {
    let error = client.decrypt(broken).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
}

#[tokio::test]
async fn passing_faults_are_borne_for_the_coast_and_no_longer() {
    let aws = Aws::alone("coast").await;
    let plugin = aws.serve().await;
    let client = kms(&plugin, "kms").await;
    let key_id = client.status().await.unwrap().key_id;
    // It counts from the last proof, which is this one or a later one.
    let began = Instant::now();
    client.round_trip(&PLAINTEXT).await.unwrap();
    aws.moto.faults(&[KmsFault::error("ThrottlingException", "Rate exceeded")]).await.unwrap();
    let error = sick(&client).await;
    let borne = began.elapsed();
    assert!(borne >= COAST, "only {borne:?} were borne: {error}");
    sick_with(&client, Code::ResourceExhausted, "Rate exceeded").await;
    aws.moto.faults(&[]).await.unwrap();
    assert_eq!(healthy(&plugin, "kms").await, key_id);
}
