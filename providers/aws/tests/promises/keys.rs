//! Which key, which version of it, and what key_id says of both.

use serde_json::{Value, json};
use sidekey_e2e::aws::{AwsPlugin, KmsFault};
use tonic::Code;

use crate::support::{Aws, PLAINTEXT, healthy, kms, until, written_by_the_go_plugin};

/// A fault that lasts: somebody forgot a line of the policy.
fn may_not_describe() -> KmsFault {
    let said =
        "User: arn:aws:iam::123456789012:user/x is not authorized to perform: kms:DescribeKey";
    KmsFault::error("AccessDeniedException", said).on("DescribeKey")
}

async fn key_id_is(plugin: &AwsPlugin, wanted: &str) {
    let client = kms(plugin, "kms").await;
    until("key_id moves", async || {
        let now = client.status().await?.key_id;
        anyhow::ensure!(now == wanted, "it is {now}, not {wanted}");
        Ok(())
    })
    .await;
}

async fn note(plugin: &AwsPlugin) -> String {
    let status = plugin.status().await.unwrap();
    status["keys"][0]["note"].as_str().unwrap_or_default().to_owned()
}

/// Two more probes have come and gone.
async fn two_probes(aws: &Aws) {
    let before = aws.moto.calls("Encrypt").await.unwrap();
    until("two probes", async || {
        let now = aws.moto.calls("Encrypt").await?;
        anyhow::ensure!(now >= before + 2, "{now} after {before}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn rotation_behind_the_same_arn_moves_key_id_and_old_data_stays_readable() {
    let aws = Aws::start("material").await;
    let plugin = aws.serve().await;
    let client = kms(&plugin, "kms").await;
    let mut generations = Vec::new();
    for _ in 0..3 {
        let material = aws.owner.material_id(&aws.key).await.unwrap();
        key_id_is(&plugin, &format!("{}/{material}", aws.key)).await;
        let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
        assert!(sealed.key_id.ends_with(&material), "{}", sealed.key_id);
        generations.push(sealed);
        aws.owner.rotate(&aws.key).await.unwrap();
    }
    for sealed in &generations {
        assert_eq!(client.decrypt(sealed).await.unwrap(), PLAINTEXT[..]);
    }
    let mut ids: Vec<_> = generations.iter().map(|sealed| &sealed.key_id).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
}

#[tokio::test]
async fn an_encrypt_right_after_a_rotation_never_wears_the_old_key_id() {
    let aws = Aws::start("at-once").await;
    // No probe comes by itself: only the call can notice.
    let mut flags = aws.flags(&aws.key);
    flags.retain(|flag| !flag.starts_with("--probe-interval"));
    flags.push("--probe-interval=1h".to_owned());
    let plugin = aws.serve_with(&flags).await;
    let client = kms(&plugin, "kms").await;
    let old = client.status().await.unwrap().key_id;
    let material = aws.owner.rotate(&aws.key).await.unwrap();
    // Either it is refused, or it names the material that did it.
    if let Ok(sealed) = client.encrypt(&PLAINTEXT).await {
        assert!(sealed.key_id.ends_with(&material), "{} after {old}", sealed.key_id);
    }
    key_id_is(&plugin, &format!("{}/{material}", aws.key)).await;
    let sealed = client.round_trip(&PLAINTEXT).await.unwrap();
    assert!(sealed.key_id.ends_with(&material), "{}", sealed.key_id);
}

#[tokio::test]
async fn without_the_permission_to_describe_the_arn_alone_is_used_and_nothing_flaps() {
    let aws = Aws::alone("no-describe").await;
    aws.moto.faults(&[may_not_describe()]).await.unwrap();
    let mut plugin = aws.serve().await;
    key_id_is(&plugin, &aws.key).await;
    let told = note(&plugin).await;
    assert!(told.contains("DescribeKey"), "/status tells it: {told:?}");
    let old = kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
    // The permission comes: as long as this configuration is loaded nothing changes.
    aws.moto.faults(&[]).await.unwrap();
    aws.owner.rotate(&aws.key).await.unwrap();
    two_probes(&aws).await;
    key_id_is(&plugin, &aws.key).await;
    let log = plugin.process().log().unwrap();
    let lines = log.lines().filter(|line| line.contains("DescribeKey")).count();
    assert_eq!(lines, 1, "it is said once:\n{log}");
    // Loaded anew it follows the material, and reads what was written before.
    plugin.restart().await.unwrap();
    let material = aws.owner.material_id(&aws.key).await.unwrap();
    key_id_is(&plugin, &format!("{}/{material}", aws.key)).await;
    assert_eq!(kms(&plugin, "kms").await.decrypt(&old).await.unwrap(), PLAINTEXT[..]);
}

#[tokio::test]
async fn where_kms_tells_no_material_the_arn_alone_is_used_and_nothing_flaps() {
    let aws = Aws::alone("no-material").await;
    aws.moto.tell_material_ids(false).await.unwrap();
    let plugin = aws.serve().await;
    key_id_is(&plugin, &aws.key).await;
    assert!(!note(&plugin).await.is_empty(), "/status tells it");
    aws.moto.tell_material_ids(true).await.unwrap();
    two_probes(&aws).await;
    key_id_is(&plugin, &aws.key).await;
    kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
}

#[tokio::test]
async fn a_permission_that_is_lost_later_does_not_move_key_id_back() {
    let aws = Aws::alone("lost").await;
    let plugin = aws.serve().await;
    let key_id = healthy(&plugin, "kms").await;
    assert_ne!(key_id, aws.key);
    aws.moto.faults(&[may_not_describe()]).await.unwrap();
    two_probes(&aws).await;
    let client = kms(&plugin, "kms").await;
    match client.status().await {
        Ok(status) => assert_eq!(status.key_id, key_id),
        Err(error) => assert_eq!(error.code(), Code::PermissionDenied, "{error}"),
    }
    assert_eq!(plugin.status().await.unwrap()["keys"][0]["key_id"], key_id.as_str());
    aws.moto.faults(&[]).await.unwrap();
    assert_eq!(healthy(&plugin, "kms").await, key_id);
}

#[tokio::test]
async fn an_alias_is_resolved_and_followed_and_old_data_stays_readable() {
    let aws = Aws::start("alias").await;
    aws.owner.alias("alias/followed", &aws.key).await.unwrap();
    let plugin = aws.serve_with(&aws.flags("alias/followed")).await;
    let material = aws.owner.material_id(&aws.key).await.unwrap();
    key_id_is(&plugin, &format!("{}/{material}", aws.key)).await;
    let client = kms(&plugin, "kms").await;
    let ours = client.round_trip(&PLAINTEXT).await.unwrap();
    let its = written_by_the_go_plugin(&aws.owner, &aws.key, "alias/followed", &[]).await;
    assert_eq!(client.decrypt(&its).await.unwrap(), PLAINTEXT[..]);

    let other = aws.owner.create_key().await.unwrap();
    aws.owner.alias("alias/followed", &other).await.unwrap();
    let material = aws.owner.material_id(&other).await.unwrap();
    key_id_is(&plugin, &format!("{other}/{material}")).await;
    client.round_trip(&PLAINTEXT).await.unwrap();
    assert_eq!(client.decrypt(&ours).await.unwrap(), PLAINTEXT[..], "what we wrote before");
    assert_eq!(client.decrypt(&its).await.unwrap(), PLAINTEXT[..], "what it wrote before");
}

#[tokio::test]
async fn a_replica_in_another_region_reads_what_the_primary_wrote() {
    let aws = Aws::start("replica").await;
    let key = aws.owner.create_key_with(json!({"MultiRegion": true})).await.unwrap();
    let there = json!({"KeyId": key, "ReplicaRegion": "eu-west-1"});
    aws.owner.call("ReplicateKey", there).await.unwrap();
    let replica = key.replace("us-east-1", "eu-west-1");
    let mut flags = aws.flags(&key);
    let plugin = aws.serve_with(&flags).await;
    let sealed = kms(&plugin, "kms").await.round_trip(&PLAINTEXT).await.unwrap();
    drop(plugin);

    flags = aws.flags(&replica);
    flags.retain(|flag| !flag.starts_with("--region"));
    flags.push("--region=eu-west-1".to_owned());
    let plugin = aws.serve_with(&flags).await;
    let client = kms(&plugin, "kms").await;
    assert_eq!(client.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    let here = client.round_trip(&PLAINTEXT).await.unwrap();
    assert!(here.key_id.starts_with(&replica), "{}", here.key_id);
}

#[tokio::test]
async fn data_of_another_key_is_refused_by_name_without_asking_kms() {
    let aws = Aws::start("another").await;
    let other = aws.owner.create_key().await.unwrap();
    let plugin = aws.serve().await;
    let client = kms(&plugin, "kms").await;
    let foreign = written_by_the_go_plugin(&aws.owner, &other, &other, &[]).await;
    let refused = client.decrypt(&foreign).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    // Forged: it says it is ours, and KMS says that it is not.
    let forged = written_by_the_go_plugin(&aws.owner, &other, &aws.key, &[]).await;
    let refused = client.decrypt(&forged).await.unwrap_err();
    assert!(matches!(refused.code(), Code::FailedPrecondition | Code::DataLoss), "{refused}");
    assert_eq!(healthy(&plugin, "kms").await, client.status().await.unwrap().key_id);
    let status: Value = plugin.status().await.unwrap();
    assert_eq!(status["keys"][0]["healthy"], true, "{status}");
}

#[tokio::test]
async fn keys_come_and_go_with_the_configuration_and_the_others_do_not_notice() {
    let aws = Aws::start("several").await;
    let other = aws.owner.create_key().await.unwrap();
    let key = |id: u64, name: &str, key: &str| {
        let listen = aws.dir().join(format!("{name}.sock"));
        json!({"id": id, "listen": listen, "kek": {"key": key}, "settings": {"endpoint": aws.url()}})
    };
    let write = |keys: Vec<Value>| {
        AwsPlugin::write_config(&aws.dir(), &json!({"probe": {"interval": "1s"}, "keys": keys}))
    };
    let path = write(vec![key(1, "a", &aws.key)]).unwrap();
    let mut plugin = aws.launch(&[format!("--config={}", path.display())], &[]).await;
    plugin.wait_ready().await.unwrap();
    let first = kms(&plugin, "a").await;
    let sealed = first.round_trip(&PLAINTEXT).await.unwrap();
    write(vec![key(1, "a", &aws.key), key(2, "b", &other)]).unwrap();
    until("the second key is served", async || Ok(plugin.socket("b").metadata()?)).await;
    assert!(healthy(&plugin, "b").await.starts_with(&other));
    kms(&plugin, "b").await.round_trip(&PLAINTEXT).await.unwrap();
    assert_eq!(first.decrypt(&sealed).await.unwrap(), PLAINTEXT[..], "on the same connection");
    write(vec![key(1, "a", &aws.key)]).unwrap();
    until("the second key is gone", async || {
        anyhow::ensure!(!plugin.socket("b").exists(), "it is there");
        Ok(())
    })
    .await;
    assert_eq!(first.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    assert_eq!(first.status().await.unwrap().key_id, sealed.key_id);
}
