//! Promise: whatever happens to a provider, kube-apiserver's connection to the
//! shim stays up, other keys are not slowed, Status turns into an error by the
//! documented rule alone, and all heals by itself.
//!
//! Killed and hung providers are real processes that are killed and stopped;
//! slow ones, failing ones and those with another key are simulated by a
//! forwarder in front of a real one.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::faulty::{Fault, FaultyKms};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::shim::{ShimConfig, ShimKey, canary};
use sidekey_e2e::wait::{BROKEN, PATIENCE};
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, LocalPlugin, Scratch, Shim, eventually,
};
use tokio::task::JoinSet;
use tonic::Code;

/// Short, so that a test sees the end of it; as long as it must be for these probes.
const COAST: Duration = Duration::from_secs(7);

/// The time of a call that may not fail beside an endpoint that is stopped.
const CALL: Duration = Duration::from_secs(15);

/// Calls of the write key beside those that hang.
const SERVED: usize = 20;

/// When Status becomes an error.
#[derive(Clone, Copy, Debug)]
enum Turns {
    /// When the coast is over, which counts from the last proof.
    AfterTheCoast,
    /// With the first failure, with this code.
    AtOnce(Code),
}

/// Key 2 writes and key 1 reads, both through forwarders.
struct Scene {
    client: KmsClient,
    shim: Shim,
    writer: LocalPlugin,
    reader: LocalPlugin,
    to_writer: FaultyKms,
    to_reader: FaultyKms,
    old: EncryptResponse,
    new: EncryptResponse,
    scratch: Scratch,
}

impl Scene {
    async fn start(name: &str) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let writer = LocalPlugin::start(&scratch, "writer").await?;
        let reader = LocalPlugin::start(&scratch, "reader").await?;
        let to_writer = FaultyKms::start(&scratch.subdir("to-writer")?, writer.socket()).await?;
        let to_reader = FaultyKms::start(&scratch.subdir("to-reader")?, reader.socket()).await?;
        let first = quick(1).write(1, to_reader.endpoint());
        let mut shim = Shim::start(&scratch, "shim", &first).await?;
        // This connection lives through everything that the tests do.
        let client = KmsClient::connect(&shim.endpoint()).await?;
        let old = client.round_trip(b"under key 1").await?;
        let second = quick(2)
            .key(ShimKey::write(2, to_writer.endpoint()).canary(canary(&writer).await?))
            .key(ShimKey::read(1, to_reader.endpoint()).canary(canary(&reader).await?));
        shim.load(&second).await?;
        let new = client.round_trip(b"under key 2").await?;
        ensure!(old.key_id != new.key_id, "both were wrapped under {}", old.key_id);
        Ok(Self { client, shim, writer, reader, to_writer, to_reader, old, new, scratch })
    }

    /// Takes the forwarders away: nothing is between shim and providers.
    async fn directly(mut self) -> Result<Self> {
        let third = quick(3)
            .key(ShimKey::write(2, self.writer.endpoint()).canary(canary(&self.writer).await?))
            .key(ShimKey::read(1, self.reader.endpoint()).canary(canary(&self.reader).await?));
        self.shim.load(&third).await?;
        Ok(self)
    }

    async fn old_data_reads(&self) -> Result<()> {
        self.client.reads(&self.old, b"under key 1").await
    }

    /// The fault is on: Status is ok until it turns, and then an error; then the fault goes, and
    /// Status is what it was. Old data reads all the while.
    async fn status_follows_the_rule(
        &mut self,
        what: &str,
        turns: Turns,
        heal: impl AsyncFnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let error = first_error(&self.client, &self.new.key_id).await?;
        let failed = SystemTime::now();
        let code = match turns {
            Turns::AfterTheCoast => {
                // No proof comes while the fault is on, so it is the one that the coast counts from.
                let proven = self.shim.key(2).await?["last_success"].take();
                let proven = proven.as_str().context("key 2 was never proven")?;
                let after = failed.duration_since(humantime::parse_rfc3339(proven)?)?;
                ensure!(after >= COAST, "{what}: failed {after:?} after the proof: {error}");
                Code::Unavailable
            }
            Turns::AtOnce(code) => code,
        };
        ensure!(error.code() == code, "{what}: {error}");
        ensure!(error.message().contains("write key 2"), "{what}: {error}");
        let written = self.client.as_kube_apiserver().encrypt(b"x").await;
        ensure!(written.is_err(), "{what}: yet it can be written");
        self.old_data_reads().await.with_context(|| format!("{what}: key 1"))?;
        let key = self.shim.key(2).await?;
        ensure!(key["healthy"] == false && key["last_error"].is_object(), "{what}: {key}");
        heal(self).await?;
        self.heals(what).await
    }

    async fn heals(&mut self, what: &str) -> Result<()> {
        let Self { client, shim, new, .. } = self;
        let healed = shim.process().wait_until("Status heals", PATIENCE, async || {
            let status = client.status().await?;
            ensure!(status.key_id == new.key_id, "key_id has become {}", status.key_id);
            Ok(())
        });
        healed.await.with_context(|| what.to_owned())?;
        client.reads(new, b"under key 2").await.with_context(|| what.to_owned())?;
        let again = client.round_trip(b"afterwards").await.with_context(|| what.to_owned())?;
        ensure!(again.key_id == new.key_id, "{what}: key_id has become {}", again.key_id);
        Ok(())
    }
}

fn quick(revision: u64) -> ShimConfig {
    ShimConfig::new(revision).probe("500ms", "1s").coast(&format!("{}s", COAST.as_secs()))
}

/// Asks for Status until it fails; until then it must name `key_id`.
pub(crate) async fn first_error(client: &KmsClient, key_id: &str) -> Result<tonic::Status> {
    eventually("Status becomes an error", PATIENCE, async || match client.status().await {
        Err(error) => Ok(error),
        Ok(status) if status.key_id == key_id && status.healthz == "ok" => bail!("it is ok"),
        Ok(status) => Ok(tonic::Status::internal(format!("{status:?}"))),
    })
    .await
}

#[tokio::test]
async fn a_killed_or_hung_write_key_turns_status_bad_by_the_rule_and_heals_by_itself() {
    let mut scene = Scene::start("killed").await.unwrap().directly().await.unwrap();
    scene.writer.process().kill().unwrap();
    let restart = async |scene: &mut Scene| scene.writer.restart().await;
    scene.status_follows_the_rule("killed", Turns::AfterTheCoast, restart).await.unwrap();

    scene.writer.process().pause().unwrap();
    let resume = async |scene: &mut Scene| scene.writer.process().resume();
    scene.status_follows_the_rule("hung", Turns::AfterTheCoast, resume).await.unwrap();
}

#[tokio::test]
async fn with_one_of_two_endpoints_stopped_no_call_fails_and_status_stays_ok() {
    let scratch = Scratch::new("stopped").unwrap();
    let mut first = LocalPlugin::start(&scratch, "first").await.unwrap();
    let second = LocalPlugin::with_key_file(&scratch, "second", first.key_file()).await.unwrap();
    let key = ShimKey::write(1, first.endpoint()).endpoint(second.endpoint());
    // No call may fail here, so that each has more time than a busy machine can take.
    let config = ShimConfig::new(1).probe("500ms", "5s").coast("12s").key(key);
    let shim = Shim::start(&scratch, "shim", &config).await.unwrap();
    let client = KmsClient::connect(&shim.endpoint()).await.unwrap().within(CALL);
    let sealed = client.round_trip(b"before").await.unwrap();

    first.process().pause().unwrap();
    // From the first call on, and for longer than the coast.
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(13) {
        assert_eq!(client.decrypt(&sealed).await.unwrap(), "before");
        assert_eq!(client.round_trip(b"meanwhile").await.unwrap().key_id, sealed.key_id);
        assert_eq!(client.status().await.unwrap().key_id, sealed.key_id);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    first.process().resume().unwrap();
    assert_eq!(client.decrypt(&sealed).await.unwrap(), "before");
}

#[tokio::test]
async fn a_slow_or_failing_write_key_turns_status_bad_by_the_rule_and_heals_by_itself() {
    let mut scene = Scene::start("failing").await.unwrap();
    a_slow_provider_is_felt_as_latency(&scene).await.unwrap();
    let heal = async |scene: &mut Scene| {
        scene.to_writer.heal();
        Ok(())
    };
    for (what, fault) in
        [("too slow", Fault::Slow(Duration::from_secs(20))), ("hangs", Fault::Hang)]
    {
        scene.to_writer.inject(fault);
        scene.status_follows_the_rule(what, Turns::AfterTheCoast, heal).await.unwrap();
    }
    // What one of our providers answers is passed on as it is: it has coasted already.
    for (what, code) in ANSWERS {
        scene.to_writer.inject(Fault::Fail(code, what.to_owned()));
        scene.status_follows_the_rule(what, Turns::AtOnce(code), heal).await.unwrap();
    }
}

/// Codes that a plugin answers with, and why.
const ANSWERS: [(&str, Code); 3] = [
    ("the KMS is away", Code::Unavailable),
    ("no such permission", Code::PermissionDenied),
    ("something is broken", Code::Internal),
];

#[tokio::test]
async fn the_failures_of_a_foreign_plugin_coast() {
    let mut scene = Scene::start("foreign").await.unwrap();
    let foreign = ShimKey::write(2, scene.to_writer.endpoint()).with("external", true);
    let reader = ShimKey::read(1, scene.to_reader.endpoint());
    scene.shim.load(&quick(3).key(foreign).key(reader)).await.unwrap();
    let heal = async |scene: &mut Scene| {
        scene.to_writer.heal();
        Ok(())
    };
    for (what, code) in ANSWERS {
        scene.to_writer.inject(Fault::Fail(code, what.to_owned()));
        scene.status_follows_the_rule(what, Turns::AfterTheCoast, heal).await.unwrap();
    }
}

async fn a_slow_provider_is_felt_as_latency(scene: &Scene) -> Result<()> {
    scene.to_writer.inject(Fault::Slow(Duration::from_millis(150)));
    let seen = scene.to_writer.calls();
    // Two probes and more, in which Status could have turned bad.
    while scene.to_writer.calls() < seen + 12 {
        let status = scene.client.status().await?;
        ensure!(status.healthz == "ok" && status.key_id == scene.new.key_id, "{status:?}");
        scene.client.round_trip(b"slowly").await?;
    }
    scene.to_writer.heal();
    Ok(())
}

#[tokio::test]
async fn another_key_than_the_configured_one_is_never_written_with_and_never_trusted() {
    let mut scene = Scene::start("another").await.unwrap();
    let stranger = LocalPlugin::start(&scene.scratch, "stranger").await.unwrap();

    scene.to_writer.lead_to(stranger.socket()).unwrap();
    let refused = scene.client.as_kube_apiserver().encrypt(b"x").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let back = async |scene: &mut Scene| {
        let error = scene.shim.key(2).await?["last_error"]["error"].to_string();
        ensure!(error.contains("canary"), "the reason is not told: {error}");
        scene.to_writer.lead_to(scene.writer.socket())
    };
    let at_once = Turns::AtOnce(Code::FailedPrecondition);
    scene.status_follows_the_rule("another key writes", at_once, back).await.unwrap();

    scene.to_reader.lead_to(stranger.socket()).unwrap();
    a_read_key_with_another_kek_is_told_and_leaves_status_alone(&mut scene).await.unwrap();
}

async fn a_read_key_with_another_kek_is_told_and_leaves_status_alone(
    scene: &mut Scene,
) -> Result<()> {
    let read = scene.client.as_kube_apiserver().decrypt(&scene.old).await;
    ensure!(read.is_err(), "a stranger has read it");
    let seen = scene.shim.wait_status("key 1 is down", |status| {
        let key = &status["keys"][0];
        ensure!(key["id"] == "1" && key["healthy"] == false, "{key}");
        Ok(key["last_error"]["error"].to_string())
    });
    let error = seen.await?;
    ensure!(error.contains("canary"), "the reason is not told: {error}");
    ensure!(scene.client.status().await?.key_id == scene.new.key_id);
    scene.to_reader.lead_to(scene.reader.socket())?;
    let healed = scene.shim.wait_status("key 1 is up", |status| {
        ensure!(status["keys"][0]["healthy"] == true, "{status}");
        Ok(())
    });
    healed.await?;
    scene.old_data_reads().await
}

#[tokio::test]
async fn a_hung_read_key_does_not_slow_the_write_key() {
    let mut scene = Scene::start("hung").await.unwrap();
    scene.reader.process().pause().unwrap();
    beside_hung_calls_others_are_served(&scene).await.unwrap();
    scene.reader.process().resume().unwrap();
    scene.to_reader.inject(Fault::Hang);
    beside_hung_calls_others_are_served(&scene).await.unwrap();
    // Known to be down, it is as before.
    let down = scene.shim.wait_status("key 1 is down", |status| {
        ensure!(status["keys"][0]["healthy"] == false, "{status}");
        Ok(())
    });
    down.await.unwrap();
    beside_hung_calls_others_are_served(&scene).await.unwrap();
    scene.to_reader.heal();
    let client = scene.client.clone();
    let healed = eventually("key 1 reads again", PATIENCE, async || {
        client.decrypt(&scene.old).await.map_err(Into::into)
    });
    healed.await.unwrap();
}

/// Calls of the write key are served while calls of the read key wait: behind a hung call not one
/// would be, however long it takes. A hung call ends with its caller's time at the latest.
async fn beside_hung_calls_others_are_served(scene: &Scene) -> Result<()> {
    let mut served = 0;
    eventually("calls are served beside hung ones", PATIENCE, async || {
        let mut hung = JoinSet::new();
        for _ in 0..64 {
            let (client, old) = (scene.client.within(PATIENCE), scene.old.clone());
            hung.spawn(async move { client.decrypt(&old).await });
        }
        while served < SERVED {
            scene.client.reads(&scene.new, b"under key 2").await?;
            ensure!(scene.client.status().await?.key_id == scene.new.key_id);
            // Only those count that all of the others have waited for.
            if let Some(first) = hung.try_join_next() {
                ended_late(first?)?;
                bail!("{served} of {SERVED} calls were served");
            }
            served += 1;
        }
        Ok(())
    })
    .await?;
    ended_late(scene.client.as_kube_apiserver().decrypt(&scene.old).await)
}

fn ended_late(call: Result<bytes::Bytes, tonic::Status>) -> Result<()> {
    let error = call.err().context("a hung key has answered")?;
    ensure!(error.code() == Code::DeadlineExceeded, "{error}");
    Ok(())
}

#[tokio::test]
async fn a_provider_that_restarts_in_a_loop_is_felt_as_latency_alone() {
    let mut scene = Scene::start("restarts").await.unwrap().directly().await.unwrap();
    let mut calls = JoinSet::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for sealed in [scene.new.clone(), scene.old.clone()] {
        let (client, stopped) = (scene.client.clone(), stopped.clone());
        calls.spawn(async move {
            let mut served = 0_u32;
            while !*stopped.borrow() {
                client.decrypt(&sealed).await.with_context(|| format!("call {served}"))?;
                client.status().await?;
                served += 1;
            }
            anyhow::Ok(served)
        });
    }
    for _ in 0..8 {
        scene.writer.restart().await.unwrap();
        scene.client.round_trip(b"between").await.unwrap();
    }
    stop.send(true).unwrap();
    let served = calls.join_all().await;
    for served in served {
        let served = served.expect("no call fails");
        assert!(served > 0, "no call was made meanwhile");
    }
    a_call_waits_for_a_provider_that_restarts(&mut scene).await.unwrap();
}

/// Also when probes have seen that it is away.
async fn a_call_waits_for_a_provider_that_restarts(scene: &mut Scene) -> Result<()> {
    scene.writer.process().kill()?;
    let down = scene.shim.wait_status("key 2 is down", |status| {
        ensure!(status["keys"][1]["healthy"] == false, "{status}");
        Ok(())
    });
    down.await?;
    let (client, new) = (scene.client.clone(), scene.new.clone());
    let waiting = tokio::spawn(async move { client.decrypt(&new).await });
    let refused = async || {
        let labels = [("reason", "connection")];
        anyhow::Ok(scene.shim.metrics().await?.sum("kms_shim_forward_errors_total", &labels))
    };
    let before = refused().await?;
    // The call has tried in vain, and more than once.
    eventually("the call has been tried", PATIENCE, async || {
        ensure!(waiting.is_finished() || refused().await? >= before + 3.0, "not yet");
        Ok(())
    })
    .await?;
    scene.writer.restart().await?;
    ensure!(waiting.await?? == "under key 2", "{BROKEN}something else came back");
    Ok(())
}

#[tokio::test]
async fn kube_apiserver_keeps_its_connection_and_a_dead_read_key_leaves_readyz_ok() {
    let plane = ControlPlane::start("faults").await.unwrap();
    let mut writer = LocalPlugin::start(&plane.scratch, "writer").await.unwrap();
    let mut reader = LocalPlugin::start(&plane.scratch, "reader").await.unwrap();
    let config = quick(1).write(2, writer.endpoint()).read(1, reader.endpoint());
    let mut shim = Shim::start(&plane.scratch, "shim", &config).await.unwrap();
    let encryption = EncryptionConfiguration::kms("sidekey", shim.endpoint());
    let options = Options::new("a").encryption(encryption);
    let mut server = KubeApiserver::start(&plane, options).await.unwrap();
    let connections = eventually("kube-apiserver has one connection", PATIENCE, async || {
        let connections = accepted(&shim.socket())?;
        ensure!(connections.len() == 1, "{connections:?}");
        Ok(connections)
    });
    let connections = connections.await.unwrap();

    a_dead_read_key_leaves_readyz_ok(&mut shim, &mut reader, &server).await.unwrap();
    for number in 0..5 {
        writer.restart().await.unwrap();
        let (client, name) = (server.client(), format!("restart-{number}"));
        client.create(Kind::Secret, "default", &name, &[("word", "x")]).await.unwrap();
        assert!(server.readyz().await.unwrap()["kms-providers"], "restart {number}");
    }
    writer.process().kill().unwrap();
    server.wait_kms_providers(false).await.unwrap();
    writer.restart().await.unwrap();
    let returned = Instant::now();
    server.wait_kms_providers(true).await.unwrap();
    println!("kms-providers is good {:?} after the provider's return", returned.elapsed());
    server.client().create(Kind::Secret, "default", "after", &[("word", "x")]).await.unwrap();
    // The kernel's table is read in pieces, while others open and close sockets.
    eventually("it is the same connection", PATIENCE, async || {
        let now = accepted(&shim.socket())?;
        ensure!(now == connections, "{now:?} in the place of {connections:?}");
        Ok(())
    })
    .await
    .unwrap();
}

async fn a_dead_read_key_leaves_readyz_ok(
    shim: &mut Shim,
    reader: &mut LocalPlugin,
    server: &KubeApiserver,
) -> Result<()> {
    reader.process().kill()?;
    let down = shim.wait_status("key 1 is down", |status| {
        ensure!(status["keys"][0]["healthy"] == false, "{status}");
        Ok(())
    });
    down.await?;
    let labels = [("key", "1"), ("role", "read")];
    let healthy = shim.metrics().await?.sum("kms_shim_plugin_healthy", &labels);
    ensure!(healthy == 0.0, "the metric says {healthy}");
    // kube-apiserver must have asked since: it asks at most every 20 s.
    let asked = async || {
        let labels = [("operation", "status"), ("code", "OK")];
        anyhow::Ok(shim.metrics().await?.sum("kms_shim_requests_total", &labels))
    };
    let before = asked().await?;
    eventually("kube-apiserver asks for Status", PATIENCE, async || {
        let checks = server.readyz().await?;
        let bad: Vec<_> = checks.iter().filter(|(_, good)| !**good).collect();
        // The end of the wait: this is no reason to ask again.
        if !bad.is_empty() {
            return Ok(Err(anyhow::anyhow!("readyz has bad checks: {bad:?}")));
        }
        ensure!(asked().await? > before, "not yet");
        Ok(Ok(()))
    })
    .await?
}

/// The connections that a listener has accepted, by inode.
fn accepted(socket: &Path) -> Result<BTreeSet<String>> {
    let table = std::fs::read_to_string("/proc/net/unix")?;
    let (dir, name) = (socket.parent().context("no directory")?, socket.file_name());
    let connected = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, _, "03", inode, path] = fields.as_slice() else { return None };
        // A socket keeps the path that it was bound to before it got its name.
        let its = Path::new(path).starts_with(dir) && Path::new(path).file_name() == name;
        its.then(|| (*inode).to_owned())
    });
    Ok(connected.collect())
}
