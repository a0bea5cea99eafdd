//! Promise: the AWS that the tests run against behaves as AWS documents it, in
//! moto's own parts, in those that are simulated on top of it and in local-kms.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sidekey_e2e::Scratch;
use sidekey_e2e::aws::{KmsFault, KmsOwner, LocalKms, Moto};
use sidekey_e2e::http::HttpClient;

const CONTEXT: &[(&str, &str)] = &[("cluster", "one")];

#[tokio::test]
async fn moto_with_its_gaps_closed_is_a_kms() {
    let scratch = Scratch::new("moto").unwrap();
    let moto = Moto::start(scratch.path()).await.unwrap();
    let owner = moto.owner();
    what_is_sealed_opens_under_its_key_and_context_alone(&owner, "IncorrectKeyException")
        .await
        .unwrap();
    a_key_opens_nothing_while_it_is_disabled_or_dying(&owner).await.unwrap();
    a_rotation_makes_new_material_and_keeps_the_old(&owner).await.unwrap();
    a_replica_in_another_region_opens_what_the_primary_sealed(&owner).await.unwrap();
    faults_hit_whom_they_are_meant_for(&moto).await.unwrap();
}

#[tokio::test]
async fn local_kms_is_a_kms_and_keeps_its_keys() {
    let scratch = Scratch::new("local-kms").unwrap();
    let mut kms = LocalKms::start(scratch.path()).await.unwrap();
    let owner = kms.owner();
    // AWS says IncorrectKeyException; either way it does not open.
    what_is_sealed_opens_under_its_key_and_context_alone(&owner, "InvalidCiphertextException")
        .await
        .unwrap();
    let key = owner.create_key().await.unwrap();
    let sealed = owner.encrypt(&key, b"kept", CONTEXT).await.unwrap();
    kms.process().restart().unwrap();
    let opened = sidekey_e2e::eventually("it is back", sidekey_e2e::wait::PATIENCE, async || {
        owner.decrypt(&key, &sealed, CONTEXT).await
    });
    assert_eq!(opened.await.unwrap(), b"kept");
}

async fn what_is_sealed_opens_under_its_key_and_context_alone(
    owner: &KmsOwner,
    wrong_key: &str,
) -> Result<()> {
    let (key, other) = (owner.create_key().await?, owner.create_key().await?);
    let sealed = owner.encrypt(&key, b"hello", CONTEXT).await?;
    ensure!(owner.decrypt(&key, &sealed, CONTEXT).await? == b"hello");
    let context = owner.decrypt(&key, &sealed, &[("cluster", "two")]).await;
    refused(context, "InvalidCiphertextException")?;
    refused(owner.decrypt(&other, &sealed, CONTEXT).await, wrong_key)?;
    let mut altered = sealed.clone();
    *altered.last_mut().unwrap() ^= 1;
    refused(owner.decrypt(&key, &altered, CONTEXT).await, "InvalidCiphertextException")
}

async fn a_key_opens_nothing_while_it_is_disabled_or_dying(owner: &KmsOwner) -> Result<()> {
    let key = owner.create_key().await?;
    let sealed = owner.encrypt(&key, b"hello", CONTEXT).await?;
    let states = [
        ("DisableKey", "DisabledException"),
        ("ScheduleKeyDeletion", "KMSInvalidStateException"),
        ("CancelKeyDeletion", "DisabledException"),
    ];
    for (operation, error) in states {
        owner.change_state(operation, &key).await?;
        refused(owner.encrypt(&key, b"x", CONTEXT).await, error)?;
        refused(owner.decrypt(&key, &sealed, CONTEXT).await, error)?;
    }
    owner.change_state("EnableKey", &key).await?;
    ensure!(owner.decrypt(&key, &sealed, CONTEXT).await? == b"hello");
    Ok(())
}

async fn a_rotation_makes_new_material_and_keeps_the_old(owner: &KmsOwner) -> Result<()> {
    let key = owner.create_key().await?;
    let first = owner.material_id(&key).await?;
    let old = owner.encrypt(&key, b"old", CONTEXT).await?;
    let second = owner.rotate(&key).await?;
    ensure!(first != second && second.len() == 64, "{first} became {second}");
    let new = owner.encrypt(&key, b"new", CONTEXT).await?;
    ensure!(owner.decrypt(&key, &old, CONTEXT).await? == b"old");
    ensure!(owner.decrypt(&key, &new, CONTEXT).await? == b"new");
    Ok(())
}

async fn a_replica_in_another_region_opens_what_the_primary_sealed(owner: &KmsOwner) -> Result<()> {
    let key = owner.create_key_with(json!({"MultiRegion": true})).await?;
    owner.call("ReplicateKey", json!({"KeyId": key, "ReplicaRegion": "eu-west-1"})).await?;
    let (there, replica) = (owner.in_region("eu-west-1"), key.replace("us-east-1", "eu-west-1"));
    let sealed = owner.encrypt(&key, b"hello", CONTEXT).await?;
    ensure!(there.decrypt(&replica, &sealed, CONTEXT).await? == b"hello");
    owner.rotate(&key).await?;
    ensure!(there.material_id(&replica).await? == owner.material_id(&key).await?);
    ensure!(there.decrypt(&replica, &sealed, CONTEXT).await? == b"hello");
    Ok(())
}

async fn faults_hit_whom_they_are_meant_for(moto: &Moto) -> Result<()> {
    let key = moto.owner().create_key().await?;
    moto.faults(&[KmsFault::error("ThrottlingException", "Rate exceeded").on("DescribeKey")])
        .await?;
    let asked = async |operation: &str| describe(moto, operation, &key).await;
    ensure!(asked("DescribeKey").await?.contains("ThrottlingException"));
    ensure!(asked("ListAliases").await?.contains("Aliases"));
    moto.owner().material_id(&key).await?;
    moto.faults(&[]).await?;
    moto.accept_access_keys(&["another"]).await?;
    ensure!(asked("DescribeKey").await?.contains("UnrecognizedClientException"));
    moto.accept_access_keys(&["somebody"]).await?;
    ensure!(asked("DescribeKey").await?.contains("CurrentKeyMaterialId"));
    ensure!(moto.calls("DescribeKey").await? == 3);
    Ok(())
}

/// A call by somebody who is not the owner.
async fn describe(moto: &Moto, operation: &str, key: &str) -> Result<String> {
    let target = format!("TrentService.{operation}");
    let scope = "AWS4-HMAC-SHA256 Credential=somebody/20260101/us-east-1/kms/aws4_request, x";
    let headers = [("x-amz-target", target.as_str()), ("authorization", scope)];
    let (http, body) = (HttpClient::plain(moto.address()), json!({"KeyId": key}));
    Ok(http.send_with(hyper::Method::POST, "/", &headers, Some(&body)).await?.text())
}

fn refused<T>(answer: Result<T>, error: &str) -> Result<()> {
    let said = format!("{:#}", answer.err().with_context(|| format!("no {error}"))?);
    ensure!(said.contains(error), "not {error}: {said}");
    Ok(())
}
