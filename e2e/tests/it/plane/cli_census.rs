//! Promise: `sidekey census` agrees object by object with what real kube-apiservers have written
//! to a real etcd, before, in the middle of and after a migration; it lets no key go that one
//! last object needs; and it says of a snapshot which keys that one needs.

mod etcd;
mod scene;
mod truth;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use scene::{Scene, Write, census, exit};
use serde_json::Value;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::wait::BROKEN;
use sidekey_e2e::{Kind, Stored, eventually};
use truth::agrees;

#[tokio::test]
async fn a_census_agrees_with_what_was_written_and_lets_no_key_go_too_early() {
    let mut scene = Scene::start("cli-census").await.unwrap();
    every_way_to_store_is_told_apart(&mut scene).await.unwrap();
    let backup = a_snapshot_counts_like_the_live_etcd(&scene).await.unwrap();
    a_migration_is_seen_object_by_object(&mut scene).await.unwrap();
    a_key_that_one_last_object_needs_may_not_go(&scene).await.unwrap();
    data_from_before_the_shim_makes_it_unknown_whose_it_is(&scene).await.unwrap();
    yes_takes_two_counts_apart_and_a_compaction(&scene).await.unwrap();
    an_envelope_that_nobody_knows_makes_it_unknown(&scene).await.unwrap();
    waiting_ends_with_a_yes(&scene).await.unwrap();
    a_place_with_nothing_in_it_is_unknown(&scene, &backup).await.unwrap();
    the_backup_from_before_still_needs_the_old_key(&scene, &backup).await.unwrap();
    no_damage_to_a_real_database_makes_it_count_wrongly(&scene, &backup).await.unwrap();
}

/// Each provider of a real kube-apiserver writes some objects, one after the other.
async fn every_way_to_store_is_told_apart(scene: &mut Scene) -> Result<()> {
    let ways = [Write::Clear, Write::Aescbc, Write::Aesgcm, Write::Secretbox, Write::Direct];
    for (index, way) in ways.into_iter().enumerate() {
        scene.write_with(way).await?;
        for number in 0..=index {
            scene.create(&format!("{way:?}-{number}").to_lowercase()).await?;
        }
    }
    scene.write_with(Write::Shim).await?;
    for number in 0..8 {
        scene.create(&format!("shim-{number}")).await?;
    }
    let counted = census(scene, &[]).await?;
    agrees(&counted, scene).await?;
    // And with what this test knows it has written.
    for (index, way) in ways.into_iter().enumerate() {
        let stored = scene::stored_as(way);
        for resource in ["secrets", "widgets.example.com"] {
            let found = truth::objects(&counted, resource, stored);
            ensure!(found == index as u64 + 1, "{found} {resource} are {stored:?}\n{counted:#}");
        }
    }
    let stale = census(scene, &["--encryption-config", &scene.encryption_file()]).await?;
    // kube-apiserver has some of its own.
    let not_ours = truth::objects_but(&counted, scene::stored_as(Write::Shim));
    ensure!(not_ours >= 2 * (1 + 2 + 3 + 4 + 5) && stale["stale"] == not_ours, "{stale:#}");
    let narrow = census(scene, &["--resource", "widgets.example.com,configmaps"]).await?;
    let names: Vec<_> = truth::resources(&narrow).collect();
    ensure!(names.iter().all(|name| name != "secrets"), "{narrow:#}");
    ensure!(
        truth::rows(&narrow, "widgets.example.com") == truth::rows(&counted, "widgets.example.com")
    );
    Ok(())
}

async fn a_snapshot_counts_like_the_live_etcd(scene: &Scene) -> Result<std::path::PathBuf> {
    let file = scene.plane.scratch.path().join("backup.db");
    std::fs::write(&file, scene.plane.etcd.snapshot().await?)?;
    let (live, saved) = (census(scene, &[]).await?, scene::snapshot(&file).await?);
    ensure!(saved["verified"] == true, "{saved:#}");
    for resource in truth::ENCRYPTED {
        let (live, saved) = (truth::rows(&live, resource), truth::rows(&saved, resource));
        ensure!(live == saved, "{resource}: {live:?} live, {saved:?} in the snapshot");
    }
    Ok(file)
}

/// Rewrites all objects under a second key, and counts on the way.
async fn a_migration_is_seen_object_by_object(scene: &mut Scene) -> Result<()> {
    let (one, two) = (scene.keks[0].endpoint(), scene.keks[1].endpoint());
    scene.shim.load(&ShimConfig::new(2).write(1, one.clone()).read(2, two.clone())).await?;
    scene.shim.load(&ShimConfig::new(3).write(2, two).read(1, one)).await?;
    let announced = scene.shim.key_id_hash().await?;
    scene.server.wait_key_id("sidekey", &announced).await?;
    let names: Vec<String> = scene.names();
    let (before, last) = names.split_at(names.len() / 2);
    for name in before {
        scene.rewrite(name).await?;
    }
    let counted = census(scene, &[]).await?;
    agrees(&counted, scene).await?;
    ensure!(truth::under_key(&counted, 1) > 0 && truth::under_key(&counted, 2) > 0, "{counted:#}");
    let listed = census(scene, &["--list", "1"]).await?;
    let listed: BTreeSet<String> = truth::strings(&listed["listed"]);
    ensure!(listed == scene.under_key(1).await?, "--list 1 names {listed:?}");
    // All but the very last one, and what the plugin wrote without the shim.
    for name in last.iter().filter(|name| *name != "shim-7" && !name.starts_with("direct-")) {
        scene.rewrite(name).await?;
    }
    scene.server.client().delete(Kind::ConfigMap, "default", "shim-7").await?;
    let widget = "/apis/example.com/v1/namespaces/default/widgets/shim-7";
    scene.server.client().send(hyper::Method::DELETE, widget, None).await?;
    let counted = census(scene, &[]).await?;
    agrees(&counted, scene).await
}

async fn a_key_that_one_last_object_needs_may_not_go(scene: &Scene) -> Result<()> {
    let last = "/registry/secrets/default/shim-7";
    let told = scene::may_drop(scene, "1", &["--other-name", "direct"]).await?;
    ensure!(exit(&told) == 3 && told.answer["mayDrop"] == "no", "{told:?}");
    ensure!(told.answer["objects"] == 1, "{told:?}");
    ensure!(
        truth::strings(&told.answer["examples"]) == BTreeSet::from([last.to_owned()]),
        "{told:?}"
    );
    ensure!(!scene.state().exists(), "a no is not counted as a first zero");
    let stored = Stored::parse(&scene.plane.etcd.raw(last).await?)?;
    ensure!(stored.object.key_id.starts_with("sidekey/1-"), "{}", stored.object.key_id);
    scene.update("/api/v1/namespaces/default/secrets/shim-7").await
}

async fn data_from_before_the_shim_makes_it_unknown_whose_it_is(scene: &Scene) -> Result<()> {
    let told = scene::may_drop(scene, "1", &[]).await?;
    ensure!(exit(&told) == 1 && told.answer["mayDrop"] == "unknown", "{told:?}");
    ensure!(told.answer.to_string().contains("--legacy-name direct"), "{told:?}");
    let told = scene::may_drop(scene, "1", &["--legacy-name", "direct"]).await?;
    ensure!(exit(&told) == 3 && told.answer["mayDrop"] == "no", "{told:?}");
    let examples = truth::strings(&told.answer["examples"]);
    ensure!(examples.contains("/registry/secrets/default/direct-4"), "{told:?}");
    let told = scene::may_drop_name(scene, "direct").await?;
    ensure!(exit(&told) == 3 && told.answer["mayDrop"] == "no", "{told:?}");
    for name in scene.names().iter().filter(|name| name.starts_with("direct-")) {
        scene.rewrite(name).await?;
    }
    ensure!(!scene.state().exists(), "neither is a zero");
    Ok(())
}

async fn yes_takes_two_counts_apart_and_a_compaction(scene: &Scene) -> Result<()> {
    let counted = census(scene, &[]).await?;
    ensure!(truth::under_key(&counted, 1) == 0, "{counted:#}");
    let first = scene::may_drop(scene, "1", &[]).await?;
    ensure!(exit(&first) == 3 && first.answer["mayDrop"] == "not-yet", "{first:?}");
    ensure!(truth::strings(&first.answer["reasons"]).len() == 2, "{first:?}");
    ensure!(scene.state().exists(), "the first zero is kept");
    let told = scene::may_drop(scene, "1", &["--apart-for-tests", "0s"]).await?;
    let reasons = truth::strings(&told.answer["reasons"]);
    let revision = &first.answer["revision"];
    let wanted = format!("etcd has not compacted past revision {revision} yet");
    ensure!(reasons.len() == 1 && reasons.iter().all(|why| why.starts_with(&wanted)), "{told:?}");
    scene.create("newer").await?;
    scene.plane.etcd.compact().await?;
    let told = scene::may_drop(scene, "1", &[]).await?;
    let reasons = truth::strings(&told.answer["reasons"]);
    ensure!(exit(&told) == 3 && reasons.len() == 1, "{told:?}");
    ensure!(reasons.iter().all(|why| why.starts_with("count again after 20")), "{told:?}");
    let told = scene::may_drop(scene, "1", &["--apart-for-tests", "0s"]).await?;
    ensure!(exit(&told) == 0 && told.answer["mayDrop"] == "yes", "{told:?}");
    // What counts was kept for one key, and says nothing of another.
    let told = scene::may_drop(scene, "2", &["--apart-for-tests", "0s"]).await?;
    ensure!(exit(&told) == 3 && told.answer["mayDrop"] == "no", "{told:?}");
    ensure!(!scene.state().exists());
    Ok(())
}

async fn an_envelope_that_nobody_knows_makes_it_unknown(scene: &Scene) -> Result<()> {
    let key = "/registry/secrets/default/strange";
    scene.plane.etcd.put(key, b"k8s:enc:kms:v9:sidekey:what is this?").await?;
    let told = scene::may_drop(scene, "1", &["--apart-for-tests", "0s"]).await?;
    ensure!(exit(&told) == 1 && told.answer["mayDrop"] == "unknown", "{told:?}");
    let listed = census(scene, &["--list", "unknown"]).await?;
    ensure!(truth::strings(&listed["listed"]) == BTreeSet::from([key.to_owned()]), "{listed:#}");
    scene.plane.etcd.delete(key).await
}

async fn waiting_ends_with_a_yes(scene: &Scene) -> Result<()> {
    let asked = scene::may_drop(scene, "1", &["--apart-for-tests", "1s", "--wait"]);
    let compact = async {
        eventually("the first count is kept", sidekey_e2e::wait::PATIENCE, async || {
            ensure!(scene.state().exists(), "not yet");
            Ok(())
        })
        .await?;
        scene.create("newest").await?;
        scene.plane.etcd.compact().await
    };
    let (told, compacted) = tokio::join!(asked, compact);
    compacted?;
    let told = told?;
    ensure!(exit(&told) == 0 && told.answer["mayDrop"] == "yes", "{told:?}");
    Ok(())
}

/// A wrong prefix has no object under any key, and proves nothing of one.
async fn a_place_with_nothing_in_it_is_unknown(
    scene: &Scene,
    backup: &std::path::Path,
) -> Result<()> {
    let ask = async |prefixes: &[&str]| {
        let args = [&["--apart-for-tests", "0s"], prefixes].concat();
        scene::may_drop(scene, "1", &args).await
    };
    let told = ask(&["--prefix", "/registry"]).await?;
    ensure!(exit(&told) == 0 && told.answer["mayDrop"] == "yes", "{told:?}");
    for prefixes in [&["--prefix", "/wrong"][..], &["--prefix", "/registry", "--prefix", "/wrong"]]
    {
        let told = ask(prefixes).await?;
        ensure!(exit(&told) == 1 && told.answer["mayDrop"] == "unknown", "{told:?}");
        let reasons = told.answer["reasons"].to_string();
        ensure!(reasons.contains("under /wrong") && reasons.contains("--etcd-prefix"), "{told:?}");
        ensure!(!scene.state().exists(), "it is no first zero");
    }
    // A plain count concludes as little from it, and a resource may well have no objects.
    let (url, file) = (scene.plane.etcd.url(), scene.encryption_file());
    let count = async |args: &[&str]| {
        let head = ["census", "--endpoints", &url];
        scene::run(&[&head[..], args].concat()).await
    };
    let told = count(&["--encryption-config", &file, "--prefix", "/wrong"]).await?;
    ensure!(told.code == Some(1) && told.stdout.contains("unknown: "), "{told:?}");
    ensure!(!told.stdout.contains("nothing is stale"), "{told:?}");
    count(&["--resource", "things.example.com"]).await?.ok()?;
    count(&["--resource", "things.example.com", "--prefix", "/registry"]).await?.ok()?;
    let told = count(&["--resource", "things.example.com", "--prefix", "/wrong"]).await?;
    ensure!(told.code == Some(1), "{told:?}");
    let snapshot = ["census", "--prefix", "/wrong", "--snapshot", backup.to_str().unwrap()];
    let told = scene::run(&snapshot).await?;
    ensure!(told.code == Some(1) && told.stdout.contains("unknown: "), "{told:?}");
    ensure!(!told.stdout.contains("needs, once restored"), "{told:?}");
    Ok(())
}

async fn the_backup_from_before_still_needs_the_old_key(
    scene: &Scene,
    backup: &std::path::Path,
) -> Result<()> {
    let file = backup.to_str().unwrap();
    let text = scene::run(&["census", "--snapshot", file]).await?.ok()?.stdout;
    let needs = text.lines().find(|line| line.starts_with("needs, once restored")).unwrap_or("");
    ensure!(needs.contains("key 1 (provider sidekey)"), "{text}");
    ensure!(!needs.contains("key 2 (provider sidekey)"), "{text}");
    // One of today does not.
    let now = scene.plane.scratch.path().join("now.db");
    std::fs::write(&now, scene.plane.etcd.snapshot().await?)?;
    let text = scene::run(&["census", "--snapshot", now.to_str().unwrap()]).await?.ok()?.stdout;
    let needs = text.lines().find(|line| line.starts_with("needs, once restored")).unwrap_or("");
    ensure!(needs.contains("key 2 (provider sidekey)"), "{text}");
    ensure!(!needs.contains("key 1 (provider sidekey)"), "{text}");
    let listed = scene::snapshot_with(backup, &["--list", "1"]).await?;
    ensure!(truth::strings(&listed["listed"]).contains("/registry/secrets/default/shim-7"));
    Ok(())
}

/// A count that is given agrees with that of the undamaged one; everything else is an error.
async fn no_damage_to_a_real_database_makes_it_count_wrongly(
    scene: &Scene,
    backup: &std::path::Path,
) -> Result<()> {
    let (good, truth) = (std::fs::read(backup)?, scene::snapshot(backup).await?);
    let file = scene.plane.scratch.path().join("damaged.db");
    // Without its checksum it is taken for a bare database, and read.
    let bare = &good[..good.len() - 32];
    ensure!(counts_rightly(&file, bare, &truth).await?, "without damage it is counted");
    let mut refused = [0, 0, 0];
    for round in 0_usize..24 {
        let mut bad = bare.to_vec();
        match round % 3 {
            0 => bad.truncate(bad.len() / 24 * round / 4096 * 4096),
            1 => bad[4096 * (3 * round % 40) + round % 16] ^= 0xff,
            _ => bad[round * 4096..(round + 1) * 4096].fill(0xee),
        }
        let counted = counts_rightly(&file, &bad, &truth).await;
        refused[round % 3] += i32::from(!counted.with_context(|| format!("round {round}"))?);
    }
    // Bytes may be damaged where nothing is stored, but none of it may be missing.
    ensure!(refused[0] == 8 && refused[1] > 0 && refused[2] > 0, "noticed: {refused:?}");
    let mut changed = good.clone();
    changed[good.len() / 2] ^= 1;
    std::fs::write(&file, changed)?;
    let told = scene::run(&["census", "--snapshot", file.to_str().unwrap()]).await?;
    ensure!(told.code == Some(1) && told.stderr.contains("checksum is wrong"), "{told:?}");
    Ok(())
}

/// Whether that database is counted, and then as `truth` has it; it may be refused instead.
async fn counts_rightly(file: &std::path::Path, database: &[u8], truth: &Value) -> Result<bool> {
    std::fs::write(file, database)?;
    let args = ["census", "-o", "json", "--snapshot", file.to_str().context("not UTF-8")?];
    let told = scene::run(&args).await?;
    ensure!(!told.stderr.contains("panicked"), "{told:?}");
    if told.code != Some(0) {
        ensure!(told.code == Some(1) && told.stdout.contains("cannot count"), "{told:?}");
        return Ok(false);
    }
    let counted: Value = serde_json::from_str(&told.stdout)?;
    ensure!(counted["verified"] == false, "{counted:#}");
    let (counted, truth) = (&counted["resources"], &truth["resources"]);
    ensure!(counted == truth, "{BROKEN}counted {counted:#}, and really {truth:#}");
    Ok(true)
}
