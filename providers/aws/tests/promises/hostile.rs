//! Answers that AWS would not give: a proxy in between, a defect, a lie. All are simulated.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::aws::{AwsPlugin, KmsFault};
use sidekey_e2e::gateway::{Answer, Fault};
use sidekey_e2e::kms::KmsClient;
use tonic::Code;

use crate::support::{Aws, PLAINTEXT, healthy, kms};

struct Scene {
    client: KmsClient,
    plugin: AwsPlugin,
    sealed: EncryptResponse,
    aws: Aws,
}

impl Scene {
    async fn start(aws: Aws) -> Self {
        let plugin = aws.serve().await;
        let client = kms(&plugin, "kms").await;
        let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
        Self { client, plugin, sealed, aws }
    }

    /// Nothing was believed, the process lives, and the truth heals it.
    async fn heals(&mut self) {
        self.plugin.process().check_running().unwrap();
        assert_eq!(healthy(&self.plugin, "kms").await, self.sealed.key_id);
        assert_eq!(self.client.decrypt(&self.sealed).await.unwrap(), PLAINTEXT[..]);
    }
}

#[tokio::test]
async fn what_is_no_answer_of_kms_is_an_error_and_nothing_worse() {
    let mut scene = Scene::start(Aws::start("no-answer").await).await;
    let html = "<html>Service Unavailable</html>".to_owned();
    let answers = [
        (200, "text/html", html.clone()),
        (200, "application/x-amz-json-1.1", "{".to_owned()),
        (200, "application/x-amz-json-1.1", "{}".to_owned()),
        (200, "application/x-amz-json-1.1", r#"{"Plaintext": 7, "KeyId": []}"#.to_owned()),
        (200, "application/x-amz-json-1.1", r#"{"Plaintext": "not base64!"}"#.to_owned()),
        (200, "application/x-amz-json-1.1", "[".repeat(100_000)),
        (200, "application/x-amz-json-1.1", "x".repeat(2 << 20)),
        (400, "application/x-amz-json-1.1", "{}".to_owned()),
        (403, "text/html", html.clone()),
        (302, "text/html", html.clone()),
        (503, "text/html", html),
    ];
    for (status, content_type, body) in answers {
        let what = format!("{status} {content_type} {}", &body[..body.len().min(40)]);
        scene.aws.gateway.inject(Fault::Answer(Answer { status, content_type, body }));
        let opened = scene.client.decrypt(&scene.sealed).await.expect_err(&what);
        let codes = [Code::Unavailable, Code::Internal, Code::PermissionDenied];
        assert!(codes.contains(&opened.code()), "{what}: {opened}");
        assert!(opened.message().len() < 1100, "{what}: {opened}");
        scene.client.encrypt(&PLAINTEXT).await.expect_err(&what);
        scene.aws.gateway.heal();
        scene.heals().await;
    }
}

#[tokio::test]
async fn what_is_not_even_http_is_an_error_and_nothing_worse() {
    let mut scene = Scene::start(Aws::start("no-http").await).await;
    let sound = format!(r#"{{"Plaintext": "{}"}}"#, STANDARD.encode(PLAINTEXT));
    let long = "x".repeat(1 << 20);
    let answers = [
        String::new(),
        "\0\0\0".to_owned(),
        "220 mail ESMTP\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\n".to_owned(),
        "HTTP/1.1 100 Continue\r\n\r\n".to_owned(),
        format!("HTTP/1.1 999999 OK\r\ncontent-length: 2\r\n\r\n{sound}"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{sound}"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{sound}"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n{sound}"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 9\r\n\r\n{sound}"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{sound}"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n{sound}"),
        format!("HTTP/1.1 200 OK\r\nx: {long}\r\ncontent-length: 0\r\n\r\n"),
        "HTTP/1.1 200 OK\r\n".to_owned() + &"a: b\r\n".repeat(100_000),
        long,
    ];
    for answer in answers {
        let what = answer[..answer.len().min(60)].to_owned();
        scene.aws.gateway.inject(Fault::Raw(answer));
        let opened = scene.client.decrypt(&scene.sealed).await.expect_err(&what);
        let codes = [Code::Unavailable, Code::Internal];
        assert!(codes.contains(&opened.code()), "{what:?}: {opened}");
        assert!(opened.message().len() < 1100, "{what:?}: {opened}");
        scene.aws.gateway.heal();
        scene.heals().await;
    }
}

#[tokio::test]
async fn an_encrypt_that_cannot_be_read_back_is_never_answered() {
    let mut scene = Scene::start(Aws::alone("lies").await).await;
    let owner = &scene.aws.owner;
    let (key, other) = (scene.aws.key.clone(), owner.create_key().await.unwrap());
    let elsewhere = STANDARD.encode(owner.encrypt(&other, &PLAINTEXT, &[]).await.unwrap());
    let lies = [
        // Other bytes come back, or none, or from another key.
        KmsFault::answer(json!({"Plaintext": STANDARD.encode([7; 32]), "KeyId": key}))
            .on("Decrypt"),
        KmsFault::answer(json!({"Plaintext": "", "KeyId": key})).on("Decrypt"),
        KmsFault::answer(json!({"Plaintext": STANDARD.encode(PLAINTEXT), "KeyId": other}))
            .on("Decrypt"),
        // What was wrapped cannot be unwrapped, or another key has wrapped it.
        KmsFault::answer(json!({"CiphertextBlob": "AAAA", "KeyId": key})).on("Encrypt"),
        KmsFault::answer(json!({"CiphertextBlob": "", "KeyId": key})).on("Encrypt"),
        KmsFault::answer(json!({"CiphertextBlob": elsewhere, "KeyId": other})).on("Encrypt"),
        KmsFault::answer(json!({"CiphertextBlob": elsewhere, "KeyId": key})).on("Encrypt"),
        KmsFault::answer(json!({"CiphertextBlob": "A".repeat(4096), "KeyId": key})).on("Encrypt"),
    ];
    for lie in lies {
        scene.aws.moto.faults(std::slice::from_ref(&lie)).await.unwrap();
        let answer = scene.client.encrypt(&PLAINTEXT).await;
        assert!(answer.is_err(), "{lie:?} was believed");
        scene.aws.moto.faults(&[]).await.unwrap();
        scene.heals().await;
    }
}
