//! Promise: any number of keys. Rotations follow each other without any re-encryption;
//! what each of the keys wrote is readable all the time, also by a kube-apiserver that
//! knows nothing yet and after a restart of the shim. `planes::long::vendor_matrix` has four.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use sidekey_e2e::shim::replicas::{PROVIDER, Replica, Replicas};
use sidekey_e2e::shim::{ShimConfig, ShimKey};
use sidekey_e2e::wait::{BROKEN, LONG_PATIENCE};
use sidekey_e2e::{Kind, Load, eventually};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 60;

/// Rotations lead from one to the next.
const KEYS: usize = 6;

#[tokio::test]
async fn five_rotations_in_a_row_leave_the_data_of_six_keys_readable() {
    let first = |plugins: &[sidekey_e2e::LocalPlugin]| {
        ShimConfig::new(revision(1, true)).write(1, plugins[0].endpoint())
    };
    let mut replicas = Replicas::start("shim-many-keys", KEYS, first).await.unwrap();
    let newest = u64::try_from(KEYS).unwrap();
    let load = replicas.load().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    write_under(&replicas, 0, 1).await.unwrap();
    for key in 2..=newest {
        rotate_to(&mut replicas, &load, key).await.unwrap();
    }
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout {} rotations {report}", newest - 1);
    replicas.servers_have_not_restarted().unwrap();

    let by_key = all_data_of_all_keys_is_readable(&replicas, newest).await.unwrap();
    println!("stored objects by key: {by_key:?}");
    a_cold_kube_apiserver_reads_it_too(&mut replicas, newest).await.unwrap();
    it_is_readable_after_the_shims_were_killed(&mut replicas, newest).await.unwrap();
}

/// On all replicas the key can read before it writes on any. One of the two
/// kube-apiservers may miss a whole generation: it polls each 20 s.
async fn rotate_to(replicas: &mut Replicas, load: &Load, key: u64) -> Result<()> {
    for node in &mut replicas.nodes {
        node.shim.load(&config(node, key, false)).await?;
    }
    for node in &mut replicas.nodes {
        node.shim.load(&config(node, key, true)).await?;
    }
    let hash = replicas.nodes[0].shim.key_id_hash().await?;
    let other = replicas.nodes[1].shim.key_id_hash().await?;
    ensure!(hash == other, "the shims announce {hash} and {other}");
    let moved =
        eventually(format!("one of them writes under key {key}"), LONG_PATIENCE, async || {
            for (index, node) in replicas.nodes.iter().enumerate() {
                // The question makes it call Status at most 20 s after the last time.
                node.server.readyz().await?;
                if node.server.announced_key_id(PROVIDER).await? == hash {
                    return Ok(index);
                }
            }
            anyhow::bail!("none has seen {hash}")
        });
    let index = moved.await?;
    replicas.nodes[index].server.wait_kms_providers(true).await?;
    write_under(replicas, index, key).await?;
    load.more(BETWEEN_STEPS).await
}

async fn write_under(replicas: &Replicas, index: usize, key: u64) -> Result<()> {
    let name = generation(key);
    for kind in Kind::ALL {
        let client = replicas.nodes[index].server.client();
        client.create(kind, "default", &name, &[("word", &name)]).await?;
        let stored = replicas.stored_key(kind, &name).await?;
        ensure!(stored == key, "{kind:?} {name} is stored under key {stored}");
    }
    Ok(())
}

async fn all_data_of_all_keys_is_readable(
    replicas: &Replicas,
    newest: u64,
) -> Result<BTreeMap<u64, usize>> {
    for key in 1..=newest {
        let name = generation(key);
        for (kind, node) in
            Kind::ALL.into_iter().flat_map(|k| replicas.nodes.iter().map(move |n| (k, n)))
        {
            let data = node.server.client().read(kind, "default", &name).await?;
            ensure!(data["word"] == name, "{BROKEN}{kind:?} {name} holds {data:?}");
            let stored = replicas.stored_key(kind, &name).await?;
            ensure!(stored == key, "{kind:?} {name} was rewritten under key {stored}");
        }
    }
    let by_key = replicas.read_everything().await?;
    ensure!(by_key.values().sum::<usize>() > 0, "the load has left nothing");
    Ok(by_key)
}

async fn a_cold_kube_apiserver_reads_it_too(replicas: &mut Replicas, newest: u64) -> Result<()> {
    let before = decrypts(&replicas.nodes[0]).await?;
    replicas.restart_server(0).await?;
    all_data_of_all_keys_is_readable(replicas, newest).await?;
    let asked = decrypts(&replicas.nodes[0]).await? - before;
    ensure!(asked >= newest as f64, "only {asked} DEKs were unwrapped for {newest} keys");
    Ok(())
}

async fn it_is_readable_after_the_shims_were_killed(
    replicas: &mut Replicas,
    newest: u64,
) -> Result<()> {
    let node = &mut replicas.nodes[0];
    node.server.process().kill()?;
    node.shim.restart().await?;
    let status = node.shim.status().await?;
    let loaded = status["keys"].as_array().context("no keys")?.len();
    ensure!(u64::try_from(loaded)? == newest, "{loaded} keys are loaded: {status}");
    replicas.restart_server(0).await?;
    all_data_of_all_keys_is_readable(replicas, newest).await.map(drop)
}

/// All keys up to `newest`, which reads first and then writes.
fn config(node: &Replica, newest: u64, promoted: bool) -> ShimConfig {
    let writer = if promoted { newest } else { newest - 1 };
    let keys = (1..=newest).zip(&node.plugins).map(|(id, plugin)| match id == writer {
        true => ShimKey::write(id, plugin.endpoint()),
        false => ShimKey::read(id, plugin.endpoint()),
    });
    keys.fold(ShimConfig::new(revision(newest, promoted)), ShimConfig::key)
}

fn revision(newest: u64, promoted: bool) -> u64 {
    newest * 2 + u64::from(promoted)
}

fn generation(key: u64) -> String {
    format!("generation-{key}")
}

async fn decrypts(node: &Replica) -> Result<f64> {
    let labels = [("operation", "decrypt"), ("code", "OK")];
    Ok(node.shim.metrics().await?.sum("kms_shim_requests_total", &labels))
}
