//! Promise: a rotation is a change of the shim's configuration directory. New
//! writes move to the new key on each replica when its own shim is told, no
//! request fails, no kube-apiserver restarts, and what was written before stays
//! readable. An old KEK comes back only under a new number.

use anyhow::{Result, ensure};
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::shim::replicas::{PROVIDER, Replicas};
use sidekey_e2e::wait::BROKEN;
use sidekey_e2e::{Kind, Load};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 150;

#[tokio::test]
async fn a_rotation_by_directory_swap_fails_no_request_and_restarts_no_kube_apiserver() {
    let first = |plugins: &[_]| ShimConfig::new(1).write(1, endpoint(plugins, 1));
    let mut replicas = Replicas::start("shim-rotation", 2, first).await.unwrap();
    let load = replicas.load().unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    the_new_key_is_taken_in_as_read_one_replica_after_the_other(&mut replicas, &load)
        .await
        .unwrap();
    each_replica_writes_under_the_new_key_as_soon_as_its_shim_is_told(&mut replicas, &load)
        .await
        .unwrap();
    the_first_kek_comes_back_under_a_new_number(&mut replicas, &load).await.unwrap();
    a_number_that_was_replaced_is_refused_as_write_key(&mut replicas).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout two rotations {report}");
    replicas.servers_have_not_restarted().unwrap();
    what_each_key_wrote_is_readable(&replicas).await.unwrap();
    the_refusal_outlives_a_killed_shim(&mut replicas).await.unwrap();
    // Nor does a kube-apiserver that knows nothing need the shim that there was.
    replicas.restart_server(1).await.unwrap();
    what_each_key_wrote_is_readable(&replicas).await.unwrap();
    a_key_that_was_replaced_while_the_shim_was_down_is_refused_too(&mut replicas).await.unwrap();
}

async fn the_new_key_is_taken_in_as_read_one_replica_after_the_other(
    replicas: &mut Replicas,
    load: &Load,
) -> Result<()> {
    for node in &mut replicas.nodes {
        let before = node.shim.key_id_hash().await?;
        let config = ShimConfig::new(2).write(1, node.kek(1)).read(2, node.kek(2));
        node.shim.load(&config).await?;
        let after = node.shim.key_id_hash().await?;
        ensure!(after == before, "a read key has moved key_id from {before} to {after}");
        load.more(BETWEEN_STEPS).await?;
    }
    Ok(())
}

async fn each_replica_writes_under_the_new_key_as_soon_as_its_shim_is_told(
    replicas: &mut Replicas,
    load: &Load,
) -> Result<()> {
    for (index, wanted) in [[2, 1], [2, 2]].into_iter().enumerate() {
        let node = &mut replicas.nodes[index];
        let config = ShimConfig::new(3).write(2, node.kek(2)).read(1, node.kek(1));
        node.shim.load(&config).await?;
        node.wait_written_key().await?;
        each_writes_under(replicas, &format!("promoted-{index}"), wanted).await?;
        load.more(BETWEEN_STEPS).await?;
    }
    kube_apiservers_speak_of_the_shims_key_id(replicas).await
}

/// The KEK of key 1 again, but no key_id of before.
async fn the_first_kek_comes_back_under_a_new_number(
    replicas: &mut Replicas,
    load: &Load,
) -> Result<()> {
    let old = replicas.nodes[0].shim.key_id_hash().await?;
    for node in &mut replicas.nodes {
        let keks = (node.kek(1), node.kek(2));
        let config = ShimConfig::new(4).write(2, keks.1).read(1, keks.0.clone()).read(3, keks.0);
        node.shim.load(&config).await?;
    }
    for node in &mut replicas.nodes {
        let (one, two) = (node.kek(1), node.kek(2));
        let config = ShimConfig::new(5).write(3, one.clone()).read(2, two).read(1, one);
        node.shim.load(&config).await?;
        load.more(BETWEEN_STEPS).await?;
    }
    for node in &mut replicas.nodes {
        node.wait_written_key().await?;
        ensure!(node.shim.key_id_hash().await? != old, "key_id has not moved");
    }
    each_writes_under(replicas, "back", [3, 3]).await?;
    kube_apiservers_speak_of_the_shims_key_id(replicas).await
}

async fn a_number_that_was_replaced_is_refused_as_write_key(replicas: &mut Replicas) -> Result<()> {
    for node in &mut replicas.nodes {
        let announced = node.shim.key_id_hash().await?;
        let (one, two) = (node.kek(1), node.kek(2));
        let config = ShimConfig::new(6).write(1, one.clone()).read(2, two).read(3, one);
        node.shim.swap(&config)?;
        let reason = node.shim.wait_refused().await?;
        ensure!(reason.contains("key 1 has been the write key before"), "{reason}");
        let status = node.shim.status().await?;
        ensure!(status["revision"] == "5" && status["write_key"] == "3", "{status}");
        ensure!(node.shim.key_id_hash().await? == announced, "key_id has moved: {status}");
        let refused = [("result", "failure")];
        let refusals = node.shim.metrics().await?.sum("kms_shim_reloads_total", &refused);
        ensure!(refusals >= 1.0, "no metric counts the refusal");
    }
    Ok(())
}

async fn the_refusal_outlives_a_killed_shim(replicas: &mut Replicas) -> Result<()> {
    let node = &mut replicas.nodes[1];
    let announced = node.shim.key_id_hash().await?;
    node.shim.restart().await?;
    let reason = node.shim.wait_refused().await?;
    ensure!(reason.contains("key 1 has been the write key before"), "{reason}");
    let now = node.shim.key_id_hash().await?;
    ensure!(now == announced, "a restart has moved key_id from {announced} to {now}");
    Ok(())
}

async fn a_key_that_was_replaced_while_the_shim_was_down_is_refused_too(
    replicas: &mut Replicas,
) -> Result<()> {
    let node = &mut replicas.nodes[1];
    let (one, two) = (node.kek(1), node.kek(2));
    node.shim.kill()?;
    let promoted = ShimConfig::new(7).write(4, two.clone()).read(3, one.clone());
    node.shim.swap(&promoted)?;
    node.shim.restart().await?;
    node.shim.wait_revision(7).await?;
    node.shim.swap(&ShimConfig::new(8).write(3, one).read(4, two))?;
    let reason = node.shim.wait_refused().await?;
    ensure!(reason.contains("key 3 has been the write key before"), "{reason}");
    Ok(())
}

/// Writes an object through each replica and reads it through the other.
async fn each_writes_under(replicas: &Replicas, name: &str, keys: [u64; 2]) -> Result<()> {
    for (index, key) in keys.into_iter().enumerate() {
        let name = format!("{name}-by-{index}");
        let (one, other) = (&replicas.nodes[index], &replicas.nodes[1 - index]);
        for kind in Kind::ALL {
            one.server.client().create(kind, "default", &name, &[("word", &name)]).await?;
            let stored = replicas.stored_key(kind, &name).await?;
            ensure!(stored == key, "{kind:?} {name} is stored under key {stored}, not {key}");
            let data = other.server.client().read(kind, "default", &name).await?;
            ensure!(data["word"] == name, "{BROKEN}{kind:?} {name} holds {data:?}");
        }
    }
    Ok(())
}

async fn what_each_key_wrote_is_readable(replicas: &Replicas) -> Result<()> {
    for (name, key) in [("promoted-0-by-1", 1), ("promoted-0-by-0", 2), ("back-by-0", 3)] {
        for kind in Kind::ALL {
            let stored = replicas.stored_key(kind, name).await?;
            ensure!(stored == key, "{kind:?} {name} was rewritten under key {stored}");
            for node in &replicas.nodes {
                let data = node.server.client().read(kind, "default", name).await?;
                ensure!(data["word"] == name, "{BROKEN}{kind:?} {name} holds {data:?}");
            }
        }
    }
    let by_key = replicas.read_everything().await?;
    println!("the load's objects by key: {by_key:?}");
    ensure!(by_key.values().sum::<usize>() > 0, "the load has left nothing");
    Ok(())
}

async fn kube_apiservers_speak_of_the_shims_key_id(replicas: &Replicas) -> Result<()> {
    for node in &replicas.nodes {
        let ours = node.shim.key_id_hash().await?;
        let announced = node.server.announced_key_id(PROVIDER).await?;
        let written = node.server.written_key_id(PROVIDER).await?;
        ensure!(announced == ours, "kube-apiserver saw {announced}, the shim says {ours}");
        ensure!(written == ours, "kube-apiserver wrote {written}, the shim says {ours}");
    }
    Ok(())
}

fn endpoint(plugins: &[sidekey_e2e::LocalPlugin], kek: usize) -> String {
    plugins[kek - 1].endpoint()
}
