//! Promise: a kube-apiserver that starts in front of 2,000 distinct DEKs becomes
//! ready through the shim and reads them all, while the other replica serves as
//! ever. A shim that is killed with -9 under load is no outage for what
//! kube-apiserver knows; what it must ask for waits, and works again by itself.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, RandomizedNonceKey};
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::json;
use sidekey_core::client;
use sidekey_core::proto::v2::{EncryptRequest, EncryptResponse};
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::shim::replicas::{PROVIDER, Replica, Replicas};
use sidekey_e2e::stored::{EncryptedObject, KMS_V2};
use sidekey_e2e::wait::{BROKEN, PATIENCE};
use sidekey_e2e::{Kind, Load, LoadOptions, eventually};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Half of them under each of two keys.
const DEKS: usize = 2_000;

/// Where the planted objects are; no load goes there.
const NAMESPACE: &str = "storm";

/// Requests of the load around each event.
const BETWEEN_STEPS: u64 = 150;

#[tokio::test]
async fn a_start_storm_is_weathered_and_a_killed_shim_is_no_outage() {
    let first =
        |plugins: &[sidekey_e2e::LocalPlugin]| ShimConfig::new(1).write(1, plugins[0].endpoint());
    let mut replicas = Replicas::start("shim-storm", 2, first).await.unwrap();
    a_kube_apiserver_starts_in_front_of_2000_deks(&mut replicas).await.unwrap();
    a_shim_that_is_killed_and_started_again_fails_no_request(&mut replicas).await.unwrap();
    while_the_shim_is_gone_only_unknown_deks_cannot_be_read(&mut replicas).await.unwrap();
}

async fn a_kube_apiserver_starts_in_front_of_2000_deks(replicas: &mut Replicas) -> Result<()> {
    let calm = timed(replicas.restart_server(1)).await?;
    replicas.nodes[1].server.process().kill()?;
    plant(replicas, 0..DEKS / 2).await?;
    for promoted in [false, true] {
        for node in &mut replicas.nodes {
            let config = ShimConfig::new(2 + u64::from(promoted));
            let (one, two) = (node.kek(1), node.kek(2));
            let config = if promoted {
                config.read(1, one).write(2, two)
            } else {
                config.write(1, one).read(2, two)
            };
            node.shim.load(&config).await?;
        }
    }
    plant(replicas, DEKS / 2..DEKS).await?;

    let clients = vec![replicas.nodes[0].server.client()];
    let options = LoadOptions { namespace: "kube-public".to_owned(), ..LoadOptions::default() };
    let load = Load::start(clients, options)?;
    load.more(BETWEEN_STEPS).await?;
    let before = decrypts(&replicas.nodes[1]).await?;
    let stormy = timed(replicas.restart_server(1)).await?;
    let read = timed(all_planted_objects_are_listed(&replicas.nodes[1])).await?;
    load.more(BETWEEN_STEPS).await?;
    let report = load.stop().await?.without_failures()?;
    let after = decrypts(&replicas.nodes[1]).await?;
    let asked = after.0 - before.0;
    ensure!(asked >= DEKS as f64, "only {asked} DEKs were unwrapped");
    all_planted_objects_are_listed(&replicas.nodes[0]).await?;
    let mean = (after.1 - before.1) / asked * 1e6;
    println!(
        "ready after {stormy:.1?} with {DEKS} DEKs, {calm:.1?} with none; listed {read:.1?} later\n\
         {asked} DEKs unwrapped, {mean:.0} µs each in the shim; on the other replica {report}"
    );
    Ok(())
}

async fn a_shim_that_is_killed_and_started_again_fails_no_request(
    replicas: &mut Replicas,
) -> Result<()> {
    let load = replicas.load()?;
    load.more(BETWEEN_STEPS).await?;
    let began = Instant::now();
    replicas.nodes[0].shim.restart().await?;
    let ready = began.elapsed();
    // The other replica's shim makes a DEK that this kube-apiserver must ask for.
    plant(replicas, DEKS..DEKS + 1).await?;
    let failed = wait_readable(&replicas.nodes[0], DEKS).await?;
    let whole = began.elapsed();
    load.more(BETWEEN_STEPS).await?;
    let report = load.stop().await?.without_failures()?;
    println!(
        "killed and started again: shim ready after {ready:.1?}, an unknown DEK read after \
         {whole:.1?}, {failed} attempts failed\nmeanwhile {report}"
    );
    replicas.servers_have_not_restarted()
}

async fn while_the_shim_is_gone_only_unknown_deks_cannot_be_read(
    replicas: &mut Replicas,
) -> Result<()> {
    let clients = replicas.nodes.iter().map(|node| node.server.client()).collect();
    let options = LoadOptions { namespace: "kube-system".to_owned(), ..LoadOptions::default() };
    let load = Load::start(clients, options)?;
    load.more(BETWEEN_STEPS).await?;
    replicas.nodes[0].shim.kill()?;
    let unknown = DEKS + 1;
    plant(replicas, unknown..unknown + 1).await?;
    let client = replicas.nodes[0].server.client();
    let read = client.read(Kind::Secret, NAMESPACE, &name(unknown)).await;
    let error = read.err().context("kube-apiserver has read what only the shim can unwrap")?;
    ensure!(format!("{error:#}").contains("failed to decrypt DEK"), "{error:#}");
    load.more(BETWEEN_STEPS).await?;
    let began = Instant::now();
    replicas.nodes[0].shim.restart().await?;
    let ready = began.elapsed();
    let failed = wait_readable(&replicas.nodes[0], unknown).await?;
    let whole = began.elapsed();
    load.more(BETWEEN_STEPS).await?;
    let report = load.stop().await?.without_failures()?;
    println!(
        "started after an outage: shim ready after {ready:.1?}, an unknown DEK read after \
         {whole:.1?}, {failed} attempts failed\nmeanwhile {report}"
    );
    replicas.servers_have_not_restarted()
}

/// Stores Secrets as a kube-apiserver does that has made a DEK of its own for
/// each: wrapped by the second replica's shim, AES-256-GCM bound to the key in etcd.
async fn plant(replicas: &Replicas, range: std::ops::Range<usize>) -> Result<()> {
    const TASKS: usize = 8;
    let endpoint = replicas.nodes[1].shim.endpoint().parse()?;
    let client = client::connect(&endpoint).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let numbers: Vec<usize> = range.clone().skip(task).step_by(TASKS).collect();
        let mut client = client.clone();
        tasks.spawn(async move {
            let mut puts = Vec::new();
            for number in numbers {
                let mut dek = [0; 32];
                rand::fill(&mut dek).ok().context("no randomness")?;
                let plaintext = dek.to_vec().into();
                let request = EncryptRequest { plaintext, uid: format!("plant-{number}") };
                let sealed = client.encrypt(request).await?.into_inner();
                let key = Kind::Secret.etcd_key(NAMESPACE, &name(number));
                let value = stored(&key, &name(number), &dek, sealed)?;
                puts.push(json!({"requestPut": {"key": STANDARD.encode(key), "value": STANDARD.encode(value)}}));
            }
            anyhow::Ok(puts)
        });
    }
    while let Some(puts) = tasks.join_next().await {
        // etcd takes at most 128 operations in one transaction.
        for puts in puts??.chunks(100) {
            let answer = replicas.plane.etcd.call("kv/txn", &json!({"success": puts})).await?;
            ensure!(answer["succeeded"] == true, "etcd did not take them: {answer}");
        }
    }
    Ok(())
}

fn stored(key: &str, name: &str, dek: &[u8; 32], sealed: EncryptResponse) -> Result<Vec<u8>> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": format!("uid-of-{name}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "data": {"word": STANDARD.encode(name)},
    });
    let cipher = RandomizedNonceKey::new(&AES_256_GCM, dek).ok().context("a bad DEK")?;
    let mut data = secret.to_string().into_bytes();
    let nonce = cipher.seal_in_place_append_tag(Aad::from(key), &mut data);
    let nonce = nonce.ok().context("cannot encrypt")?;
    let object = EncryptedObject {
        encrypted_data: [nonce.as_ref().as_slice(), &data].concat().into(),
        key_id: sealed.key_id,
        encrypted_dek_source: sealed.ciphertext,
        annotations: sealed.annotations,
        encrypted_dek_source_type: 0,
    };
    Ok([KMS_V2, PROVIDER.as_bytes(), b":", &object.encode_to_vec()].concat())
}

async fn all_planted_objects_are_listed(node: &Replica) -> Result<()> {
    let listed = node.server.client().list(Kind::Secret, NAMESPACE).await?;
    ensure!(listed.len() == DEKS, "{} of {DEKS} are listed", listed.len());
    for number in 0..DEKS {
        let name = name(number);
        let word = listed.get(&name).and_then(|data| data.get("word"));
        ensure!(word == Some(&name), "{BROKEN}{name} holds {word:?}");
    }
    Ok(())
}

/// Waits until a planted object reads; tells how many attempts failed before.
async fn wait_readable(node: &Replica, number: usize) -> Result<u32> {
    let mut failed = 0;
    let (name, client) = (name(number), node.server.client());
    eventually(format!("{name} is readable"), PATIENCE, async || {
        let data =
            client.read(Kind::Secret, NAMESPACE, &name).await.inspect_err(|_| failed += 1)?;
        if data["word"] != name {
            bail!("{BROKEN}{name} holds {data:?}");
        }
        Ok(())
    })
    .await?;
    Ok(failed)
}

/// How many Decrypts the shim has served, and in how many seconds.
async fn decrypts(node: &Replica) -> Result<(f64, f64)> {
    let metrics = node.shim.metrics().await?;
    let labels = [("operation", "decrypt")];
    let duration = "kms_shim_request_duration_seconds";
    Ok((
        metrics.sum("kms_shim_requests_total", &[("operation", "decrypt"), ("code", "OK")]),
        metrics.sum(&format!("{duration}_sum"), &labels),
    ))
}

fn name(number: usize) -> String {
    format!("storm-{number:04}")
}

async fn timed(event: impl Future<Output = Result<()>>) -> Result<Duration> {
    let began = Instant::now();
    event.await?;
    Ok(began.elapsed())
}
