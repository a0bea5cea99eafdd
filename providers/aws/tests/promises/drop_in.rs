//! In the place of kubernetes-sigs/aws-encryption-provider: its flags, its probes, its data.

use std::net::{Ipv4Addr, SocketAddr};

use sidekey_e2e::aws::{KmsFault, REGION};
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::ports::Port;
use tonic::Code;

use crate::support::{
    ACCESS_KEY, Aws, PLAINTEXT, SECRET_KEY, healthy, kms, until, written_by_the_go_plugin,
};

fn probes(port: &Port) -> HttpClient {
    HttpClient::plain(SocketAddr::from((Ipv4Addr::LOCALHOST, port.number())))
}

#[tokio::test]
async fn its_command_line_works_as_it_stands() {
    let aws = Aws::start("as-it-stands").await;
    let port = Port::free().unwrap();
    let flags = [
        format!("--key={}", aws.key),
        format!("--region={REGION}"),
        format!("--listen={}", aws.dir().join("a.sock").display()),
        format!("--health-port=:{}", port.number()),
    ];
    let plugin = aws.serve_with(&flags).await;
    let key_id = healthy(&plugin, "a").await;
    assert!(key_id.starts_with(&aws.key), "{key_id}");
    let sealed = kms(&plugin, "a").await.round_trip(&PLAINTEXT).await.unwrap();
    assert_eq!(sealed.key_id, key_id);
    for path in ["/healthz", "/livez"] {
        assert_eq!(probes(&port).get(path).await.unwrap().status, 200, "{path}");
    }
}

#[tokio::test]
async fn lists_of_keys_and_sockets_are_served_by_one_process() {
    let aws = Aws::start("lists").await;
    let other = aws.owner.create_key().await.unwrap();
    let at = |name: &str| aws.dir().join(name).display().to_string();
    let flags = [
        format!("--key={},{other}", aws.key),
        format!("--region={REGION}"),
        format!("--listen={},{}", at("a.sock"), at("b.sock")),
        "--health-port=127.0.0.1:0".to_owned(),
    ];
    let plugin = aws.serve_with(&flags).await;
    let (a, b) = (kms(&plugin, "a").await, kms(&plugin, "b").await);
    let first = a.round_trip(&PLAINTEXT).await.unwrap();
    let second = b.round_trip(&PLAINTEXT).await.unwrap();
    assert!(first.key_id.starts_with(&aws.key), "{}", first.key_id);
    assert!(second.key_id.starts_with(&other), "{}", second.key_id);
    let crossed = b.decrypt(&first).await.unwrap_err();
    assert_eq!(crossed.code(), Code::FailedPrecondition, "{crossed}");
}

#[tokio::test]
async fn all_of_its_flags_are_taken() {
    let aws = Aws::alone("all-flags").await;
    let port = Port::free().unwrap();
    let mut flags = aws.flags(&aws.key);
    flags.extend([
        format!("--health-port=:{}", port.number()),
        "--healthz-path=/ready".to_owned(),
        "--livez-path=/alive".to_owned(),
        "--health-kms-version=v2".to_owned(),
        format!("--kms-endpoint={}", aws.url()),
        "--encryption-context=cluster=one,stage=test".to_owned(),
        "--source-arn=arn:aws:eks:us-east-1:123456789012:cluster/one".to_owned(),
        "--retry-token-capacity=100".to_owned(),
    ]);
    let plugin = crate::support::launch(
        &aws.dir(),
        &flags,
        &[("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)],
    )
    .await;
    healthy(&plugin, "kms").await;
    for path in ["/ready", "/alive"] {
        assert_eq!(probes(&port).get(path).await.unwrap().status, 200, "{path}");
    }
    let context = [("cluster", "one"), ("stage", "test")];
    let sealed = kms(&plugin, "kms").await.encrypt(&PLAINTEXT).await.unwrap();
    let last = aws.moto.last().await.unwrap();
    assert_eq!(last["x-amz-source-arn"], "arn:aws:eks:us-east-1:123456789012:cluster/one");
    assert_eq!(last["x-amz-source-account"], "123456789012", "{last}");
    let opened = aws.owner.decrypt(&aws.key, &sealed.ciphertext[1..], &context).await.unwrap();
    assert_eq!(opened, PLAINTEXT);
}

#[tokio::test]
async fn its_data_opens_here_and_ours_opens_there() {
    let aws = Aws::start("data").await;
    let context = [("cluster", "one")];
    let mut flags = aws.flags(&aws.key);
    flags.push("--encryption-context=cluster=one".to_owned());
    let plugin = aws.serve_with(&flags).await;
    let client = kms(&plugin, "kms").await;
    // Its key_id is what its --key said: an ARN, a bare id or an alias.
    let id = aws.key.rsplit('/').next().unwrap();
    for name in [aws.key.as_str(), id, "alias/etcd"] {
        let old = written_by_the_go_plugin(&aws.owner, &aws.key, name, &context).await;
        assert_eq!(client.decrypt(&old).await.unwrap(), PLAINTEXT[..], "{name}");
    }
    // It takes off its format byte and asks KMS with its context, and without a KeyId.
    let ours = client.encrypt(&PLAINTEXT).await.unwrap();
    assert_eq!(ours.ciphertext[0], b'1');
    assert!(ours.annotations.is_empty(), "it would keep none: {:?}", ours.annotations);
    let opened = aws.owner.decrypt(&aws.key, &ours.ciphertext[1..], &context).await.unwrap();
    assert_eq!(opened, PLAINTEXT);
}

#[tokio::test]
async fn another_encryption_context_opens_nothing() {
    let aws = Aws::start("context").await;
    let mut flags = aws.flags(&aws.key);
    flags.push("--encryption-context=cluster=one".to_owned());
    let plugin = aws.serve_with(&flags).await;
    let client = kms(&plugin, "kms").await;
    for context in [&[("cluster", "two")][..], &[], &[("cluster", "one"), ("a", "b")]] {
        let old = written_by_the_go_plugin(&aws.owner, &aws.key, &aws.key, context).await;
        let refused = client.decrypt(&old).await.unwrap_err();
        assert_eq!(refused.code(), Code::DataLoss, "{context:?}: {refused}");
        assert!(
            refused.message().contains("encryptionContext"),
            "say what may be wrong: {refused}"
        );
    }
    healthy(&plugin, "kms").await;
}

#[tokio::test]
async fn its_probes_tell_a_lost_key_from_a_hung_process() {
    let aws = Aws::alone("probes").await;
    let port = Port::free().unwrap();
    let mut flags = aws.flags(&aws.key);
    flags.push(format!("--health-port=:{}", port.number()));
    let _plugin = aws.serve_with(&flags).await;
    let denied = KmsFault::error("AccessDeniedException", "no permission");
    aws.moto.faults(&[denied]).await.unwrap();
    let probes = probes(&port);
    let said = until("/healthz is bad", async || {
        let answer = probes.get("/healthz").await?;
        anyhow::ensure!(answer.status >= 500, "{}", answer.status);
        Ok(answer.text())
    })
    .await;
    assert!(said.contains("no permission"), "the reason is told: {said}");
    assert_eq!(probes.get("/livez").await.unwrap().status, 200, "a restart mends nothing");
    aws.moto.faults(&[]).await.unwrap();
    until("/healthz is good again", async || probes.get("/healthz").await?.ok()).await;
}
