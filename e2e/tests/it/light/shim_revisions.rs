//! Promise: a bad new revision is refused and the old one serves, also after
//! the shim was killed with -9 and started again; the reason is in the log, the
//! metrics, `/status` and on the page; and once the cause is gone the revision
//! is taken without anybody's help.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sidekey_e2e::binaries;
use sidekey_e2e::faulty::{Fault, FaultyKms};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::process::Spec;
use sidekey_e2e::shim::{FILE, PROGRAM, ShimConfig, ShimKey, canary};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{LocalPlugin, Scratch, Shim, eventually};

const FAILURES: &str = "kms_shim_reloads_total";

struct Scene {
    shim: Shim,
    /// Lives as long as the shim's process.
    client: KmsClient,
    plugins: Vec<LocalPlugin>,
    /// What is to be in use.
    revision: u64,
    key_id: String,
    scratch: Scratch,
}

impl Scene {
    /// Revision 1: key 1 writes.
    async fn start(name: &str, plugins: usize) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let mut started = Vec::new();
        for number in 1..=plugins {
            started.push(LocalPlugin::start(&scratch, &format!("plugin-{number}")).await?);
        }
        let config = quick(1).write(1, started[0].endpoint());
        let shim = Shim::start(&scratch, "shim", &config).await?;
        let client = KmsClient::connect(&shim.endpoint()).await?;
        let key_id = client.status().await?.key_id;
        Ok(Self { shim, client, plugins: started, revision: 1, key_id, scratch })
    }

    /// What is mounted now is refused for a reason with `why` in it, before and
    /// after a restart, and what was in use before serves.
    async fn is_refused(&mut self, why: &str) -> Result<()> {
        self.is_refused_now(why).await?;
        self.shim.kill()?;
        self.shim.restart().await.with_context(|| format!("restart while refused: {why}"))?;
        self.client = KmsClient::connect(&self.shim.endpoint()).await?;
        self.is_refused_now(why).await.with_context(|| "after a restart")
    }

    async fn is_refused_now(&mut self, why: &str) -> Result<()> {
        let refused = self.shim.wait_status("it is refused", |status| {
            let error = status["config"]["refused"]["error"].as_str().context("nothing is")?;
            ensure!(error.contains(why), "for another reason: {error}");
            Ok(())
        });
        refused.await?;
        self.the_old_one_serves().await?;
        let failures = self.shim.metrics().await?.sum(FAILURES, &[("result", "failure")]);
        ensure!(failures >= 1.0, "the metric says {failures}");
        let log = self.shim.process().log()?;
        let told = log.lines().any(|line| line.contains("refused") && line.contains("WARN"));
        ensure!(told && log.contains(why), "the log does not say {why:?}");
        let page = self.shim.admin().get("/").await?.ok()?.text();
        let (_, note) = page.split_once("id=\"refused\"").context("the page does not tell")?;
        ensure!(note.contains(why), "the page does not say {why:?}: {note}");
        Ok(())
    }

    async fn the_old_one_serves(&self) -> Result<()> {
        let status = self.shim.status().await?;
        let revision = self.revision.to_string();
        ensure!(status["revision"] == revision.as_str(), "{status}");
        let sealed = self.client.round_trip(b"served").await?;
        ensure!(sealed.key_id == self.key_id, "wrapped under {}", sealed.key_id);
        ensure!(self.client.status().await?.key_id == self.key_id);
        Ok(())
    }

    /// Without anybody's help the revision is taken, and nothing is refused.
    async fn is_taken(&mut self, revision: u64) -> Result<()> {
        self.shim.wait_revision(revision).await?;
        let nothing = self.shim.wait_status("nothing is refused", |status| {
            ensure!(status["config"]["refused"].is_null(), "{}", status["config"]);
            Ok(())
        });
        nothing.await?;
        let page = self.shim.admin().get("/").await?.ok()?.text();
        ensure!(!page.contains("id=\"refused\""), "the page still tells of a refusal");
        self.revision = revision;
        self.key_id = self.client.round_trip(b"taken").await?.key_id;
        Ok(())
    }
}

fn quick(revision: u64) -> ShimConfig {
    ShimConfig::new(revision).probe("500ms", "2s")
}

#[tokio::test]
async fn a_revision_whose_keys_do_not_prove_themselves_waits_until_they_do() {
    let mut scene = Scene::start("keys", 4).await.unwrap();
    an_unreachable_provider(&mut scene).await.unwrap();
    another_kek_than_the_canarys_for_writing(&mut scene).await.unwrap();
    another_kek_than_the_canarys_for_reading(&mut scene).await.unwrap();
}

async fn an_unreachable_provider(scene: &mut Scene) -> Result<()> {
    let old = scene.key_id.clone();
    scene.plugins[1].process().kill()?;
    let endpoints = [0, 1].map(|index: usize| scene.plugins[index].endpoint());
    scene.shim.swap(&quick(2).write(2, &endpoints[1]).read(1, &endpoints[0]))?;
    scene.is_refused("key 2 (write) cannot be taken in").await?;
    scene.plugins[1].restart().await?;
    scene.is_taken(2).await?;
    ensure!(scene.key_id != old, "still {old}");
    Ok(())
}

async fn another_kek_than_the_canarys_for_writing(scene: &mut Scene) -> Result<()> {
    let (third, stranger) = (&scene.plugins[2], &scene.plugins[3]);
    let way = FaultyKms::start(&scene.scratch.subdir("way-3")?, stranger.socket()).await?;
    let key = ShimKey::write(3, way.endpoint()).canary(canary(third).await?);
    let config = quick(3).key(key).read(2, scene.plugins[1].endpoint());
    scene.shim.swap(&config.read(1, scene.plugins[0].endpoint()))?;
    scene.is_refused("canary").await?;
    way.lead_to(scene.plugins[2].socket())?;
    scene.is_taken(3).await?;
    // The way ends with this function: from here on the key is reached without it.
    let config = quick(4).write(3, scene.plugins[2].endpoint());
    scene.shim.swap(&config.read(1, scene.plugins[0].endpoint()))?;
    scene.is_taken(4).await
}

async fn another_kek_than_the_canarys_for_reading(scene: &mut Scene) -> Result<()> {
    let (second, stranger) = (&scene.plugins[1], &scene.plugins[3]);
    let way = FaultyKms::start(&scene.scratch.subdir("way-2")?, stranger.socket()).await?;
    let key = ShimKey::read(2, way.endpoint()).canary(canary(second).await?);
    let config = quick(5).write(3, scene.plugins[2].endpoint()).key(key);
    scene.shim.swap(&config.read(1, scene.plugins[0].endpoint()))?;
    scene.is_refused("canary").await?;
    way.lead_to(scene.plugins[1].socket())?;
    scene.is_taken(5).await
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_leaves_the_old_one_in_use() {
    let mut scene = Scene::start("files", 2).await.unwrap();
    let good = |scene: &Scene, revision| {
        quick(revision).key(
            ShimKey::write(1, scene.plugins[0].endpoint()).with("fingerprint", "0a1b2c3d4e5f6789"),
        )
    };
    scene.shim.swap(&good(&scene, 2)).unwrap();
    scene.is_taken(2).await.unwrap();
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[(FILE, "keys: [{id: 1, role: write")], FILE),
        (&[(FILE, "\u{0}\u{1}\u{2} nothing of this is YAML: ]")], FILE),
        (&[(FILE, "revision: 9\nlisten: 7\nkeys: 7\n")], "keys"),
        (&[(FILE, "")], "empty"),
        (&[("another-file", "x")], FILE),
    ];
    let mut revision = 2;
    for (files, why) in cases {
        scene.shim.swap_files(files).unwrap();
        scene.is_refused(why).await.with_context(|| format!("{files:?}")).unwrap();
        // The same again mends it, and so does a newer one.
        for next in [revision, revision + 1] {
            scene.shim.swap(&good(&scene, next)).unwrap();
            scene.is_taken(next).await.with_context(|| format!("{files:?}")).unwrap();
        }
        revision += 1;
    }
    another_kek_under_the_same_number(&mut scene, revision + 1).await.unwrap();
    a_change_in_place_and_by_rename_is_taken(&mut scene).await.unwrap();
    a_writer_of_the_past_does_not_write_again(&mut scene).await.unwrap();
}

async fn another_kek_under_the_same_number(scene: &mut Scene, revision: u64) -> Result<()> {
    // It would pass every other proof: the endpoint leads to a sound key.
    let endpoint = scene.plugins[0].endpoint();
    let key = |fingerprint| ShimKey::write(1, &endpoint).with("fingerprint", fingerprint);
    scene.shim.swap(&quick(revision).key(key("ffffffffffffffff")))?;
    scene.is_refused("the fingerprint of key 1 has changed").await?;
    scene.shim.swap(&quick(revision).key(key("0a1b2c3d4e5f6789")))?;
    scene.is_taken(revision).await?;
    // A `kek` section has a fingerprint, too.
    let kek = ShimKey::write(1, &endpoint).with("kek", serde_json::json!({"arn": "another"}));
    scene.shim.swap(&quick(revision + 1).key(kek))?;
    scene.is_refused("the fingerprint of key 1 has changed").await?;
    scene.shim.swap(&quick(revision + 1).key(key("0a1b2c3d4e5f6789")))?;
    scene.is_taken(revision + 1).await
}

async fn a_change_in_place_and_by_rename_is_taken(scene: &mut Scene) -> Result<()> {
    let file = scene.shim.mount().join(FILE);
    let mut document: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let mut next = || {
        document["revision"] = (scene.revision + 1).to_string().into();
        document.to_string()
    };
    fs::write(&file, next())?;
    scene.is_taken(scene.revision + 1).await?;
    let mut next = || {
        document["revision"] = (scene.revision + 1).to_string().into();
        document.to_string()
    };
    let fresh = file.with_extension("new");
    fs::write(&fresh, next())?;
    fs::rename(&fresh, &file)?;
    scene.is_taken(scene.revision + 1).await
}

/// Also when the shim was not there at the moment of the change.
async fn a_writer_of_the_past_does_not_write_again(scene: &mut Scene) -> Result<()> {
    let [first, second] = [0, 1].map(|index: usize| scene.plugins[index].endpoint());
    let with = |revision, writer: u64| {
        let config = quick(revision);
        let print = "0a1b2c3d4e5f6789";
        match writer {
            1 => config.key(ShimKey::write(1, &first).with("fingerprint", print)).read(2, &second),
            _ => config.key(ShimKey::read(1, &first).with("fingerprint", print)).write(2, &second),
        }
    };
    let revision = scene.revision + 1;
    scene.shim.kill()?;
    // Renaming has replaced the link by a file.
    fs::remove_file(scene.shim.mount().join(FILE))?;
    scene.shim.swap(&with(revision, 2))?;
    scene.shim.restart().await?;
    scene.client = KmsClient::connect(&scene.shim.endpoint()).await?;
    scene.is_taken(revision).await?;
    scene.shim.swap(&with(revision + 1, 1))?;
    scene.is_refused("key 1 has been the write key before").await
}

/// Neither canary nor fingerprint tells them apart: what the key wrote before does.
#[tokio::test]
async fn an_endpoint_that_leads_to_another_kek_is_refused_and_old_data_reads() {
    let mut scene = Scene::start("typo", 2).await.unwrap();
    let old = scene.client.round_trip(b"written before").await.unwrap();
    scene.shim.swap(&quick(2).write(1, scene.plugins[1].endpoint())).unwrap();
    // The shim is killed and started again with that file, too.
    scene
        .is_refused("key 1 (write) cannot be taken in: key 1 cannot read its canary")
        .await
        .unwrap();
    assert_eq!(scene.client.decrypt(&old).await.unwrap(), "written before");
    scene.shim.swap(&quick(3).write(1, scene.plugins[0].endpoint())).unwrap();
    scene.is_taken(3).await.unwrap();
    assert_eq!(scene.client.decrypt(&old).await.unwrap(), "written before");
}

#[tokio::test]
async fn a_directory_that_is_half_written_at_the_start_is_waited_for() {
    let mut scene = Scene::start("directory", 1).await.unwrap();
    scene.shim.kill().unwrap();
    scene.shim.swap_files(&[("another-file", "x")]).unwrap();
    // The directory itself is given, and no socket on the command line.
    let program = binaries::path_async(PROGRAM).await.unwrap();
    let log = scene.scratch.path().join("directory.log");
    let spec = Spec::new("sidekey-shim directory", program, log);
    let mut shim = spec.arg("--config").arg(scene.shim.mount()).start().unwrap();
    let refused = |line: &str| line.contains("configuration refused at the start").then_some(());
    shim.wait_for_log("it uses the last good one", PATIENCE, refused).await.unwrap();
    let endpoint = scene.shim.endpoint();
    let served = shim.wait_until("it serves", PATIENCE, async || {
        KmsClient::connect(&endpoint).await?.round_trip(b"served").await
    });
    assert_eq!(served.await.unwrap().key_id, scene.key_id);
    scene.shim.swap(&quick(2).write(1, scene.plugins[0].endpoint())).unwrap();
    let taken = |line: &str| line.contains("new configuration is in use").then_some(());
    shim.wait_for_log("it takes the whole one", PATIENCE, taken).await.unwrap();
}

#[tokio::test]
async fn a_new_revision_with_a_hung_key_delays_neither_service_nor_the_end() {
    let mut scene = Scene::start("end", 2).await.unwrap();
    let dir = scene.scratch.subdir("way").unwrap();
    let way = FaultyKms::start(&dir, scene.plugins[1].socket()).await.unwrap();
    way.inject(Fault::Hang);
    let config = ShimConfig::new(2).probe("500ms", "3600s").write(2, way.endpoint());
    scene.shim.swap(&config.read(1, scene.plugins[0].endpoint())).unwrap();
    let asked = eventually("the hung key is asked", PATIENCE, async || {
        ensure!(way.calls() > 0, "not yet");
        Ok(())
    });
    asked.await.unwrap();
    scene.the_old_one_serves().await.unwrap();
    let ended = scene.shim.process().terminate(PATIENCE).await.unwrap();
    assert!(ended.success(), "{ended}");
}
