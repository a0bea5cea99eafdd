//! Promise: while AWS is away, slow, throttles or has the key disabled, running
//! kube-apiservers go on: what they have unwrapped stays readable, writes go on
//! within their window, Status turns into an error by the documented rule
//! alone, and all heals by itself. No request fails in all that time.
//!
//! AWS is moto; disabled keys and throttling are simulated on top of it, the
//! network's faults by a gateway in front of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::apiserver::{KubeApiserver, Options};
use sidekey_e2e::aws::{AwsPlugin, KmsFault, Moto, REGION};
use sidekey_e2e::gateway::{Fault, Gateway};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{
    ControlPlane, EncryptionConfiguration, Kind, Load, LoadOptions, Shim, eventually,
};

/// Short, so that a test sees the end of it; long enough to be seen.
const COAST: Duration = Duration::from_secs(3);

/// Requests while a fault is on and after it.
const MEANWHILE: u64 = 100;

/// Dropped, and so ended, in this order.
struct Scene {
    client: KmsClient,
    server: KubeApiserver,
    shim: Shim,
    plugin: AwsPlugin,
    gateway: Gateway,
    moto: Moto,
    key: String,
    sealed: EncryptResponse,
    plane: ControlPlane,
}

#[tokio::test]
async fn faults_of_aws_fail_no_request_and_heal_by_themselves() {
    let mut scene = Scene::start().await.unwrap();
    let load = scene.load().unwrap();
    load.more(MEANWHILE).await.unwrap();

    a_hiccup_within_the_coast_is_not_seen(&mut scene).await.unwrap();
    kms_is_down(&mut scene, &load).await.unwrap();
    kms_has_five_seconds_of_latency(&mut scene, &load).await.unwrap();
    kms_throttles(&mut scene, &load).await.unwrap();
    the_key_is_disabled(&mut scene, &load).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout four faults {report}");
    everything_reads_after_a_restart(&mut scene).await.unwrap();
}

impl Scene {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start("aws-faults").await?;
        let moto = Moto::start(plane.scratch.path()).await?;
        let key = moto.owner().create_key().await?;
        let gateway = Gateway::start(moto.address()).await?;
        let coast = format!("{}s", COAST.as_secs());
        let socket = plane.scratch.subdir("plugin")?.join("kms.sock");
        let flags = [
            format!("--key={key}"),
            format!("--region={REGION}"),
            format!("--listen={}", socket.display()),
            "--health-port=127.0.0.1:0".to_owned(),
            "--probe-interval=1s".to_owned(),
            "--probe-timeout=2s".to_owned(),
            format!("--coast={coast}"),
        ];
        let url = format!("http://{}", gateway.address());
        let env = [
            ("AWS_ENDPOINT_URL", url.as_str()),
            ("AWS_ACCESS_KEY_ID", "AKIATESTTESTTEST"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let mut plugin = AwsPlugin::spawn(&plane.scratch, "plugin", &flags, &env).await?;
        plugin.wait_ready().await?;
        let config = ShimConfig::new(1).write(1, plugin.endpoint("kms"));
        let config = config.probe("1s", "2s").coast(&coast);
        let shim = Shim::start(&plane.scratch, "shim", &config).await?;
        let encryption = EncryptionConfiguration::kms("sidekey", shim.endpoint());
        let server = KubeApiserver::start(&plane, Options::new("a").encryption(encryption)).await?;
        let client = KmsClient::connect(&shim.endpoint()).await?;
        let sealed = client.round_trip(b"before all faults").await?;
        Ok(Self { client, server, shim, plugin, gateway, moto, key, sealed, plane })
    }

    fn load(&self) -> Result<Load> {
        let rest = Duration::from_millis(40);
        let options = LoadOptions { writers: 2, readers: 1, rest, ..Default::default() };
        Load::start(vec![self.server.client()], options)
    }

    /// Asks for Status until it fails; until then it must be as before.
    async fn first_error(&self) -> Result<tonic::Status> {
        let key_id = &self.sealed.key_id;
        eventually("Status becomes an error", PATIENCE, async || match self.client.status().await {
            Err(error) => Ok(error),
            Ok(status) if status.key_id == *key_id && status.healthz == "ok" => bail!("it is ok"),
            Ok(status) => Ok(tonic::Status::internal(format!("{status:?}"))),
        })
        .await
    }

    /// Status is an error that tells why, and so does the plugin's own.
    async fn is_felt(&mut self, error: &tonic::Status, why: &str) -> Result<()> {
        ensure!(error.code() == tonic::Code::Unavailable, "{error}");
        ensure!(error.message().contains("write key 1"), "{error}");
        let status = self.plugin.status().await?;
        let key = &status["keys"][0];
        ensure!(key["healthy"] == false, "{status}");
        ensure!(key["last_error"].to_string().contains(why), "no {why} in {status}");
        ensure!(self.client.decrypt(&self.sealed).await.is_err(), "yet AWS has answered");
        Ok(())
    }

    async fn heals(&mut self) -> Result<()> {
        let Self { client, shim, sealed, .. } = self;
        shim.process()
            .wait_until("Status heals", PATIENCE, async || {
                let status = client.status().await?;
                ensure!(status.key_id == sealed.key_id, "key_id has become {}", status.key_id);
                Ok(())
            })
            .await?;
        ensure!(client.decrypt(sealed).await? == "before all faults");
        Ok(())
    }
}

/// Two failed probes and more, but less than the coast: Status never wavers.
async fn a_hiccup_within_the_coast_is_not_seen(scene: &mut Scene) -> Result<()> {
    scene.gateway.inject(Fault::Cut);
    let failed = eventually("a probe has failed", PATIENCE, async || {
        let status = scene.plugin.status().await?;
        ensure!(status["keys"][0]["last_error"].is_object(), "{status}");
        Ok(())
    });
    failed.await?;
    scene.client.status().await.context("Status must coast")?;
    scene.gateway.heal();
    scene.heals().await
}

async fn kms_is_down(scene: &mut Scene, load: &Load) -> Result<()> {
    let began = Instant::now();
    scene.gateway.inject(Fault::Cut);
    let error = scene.first_error().await?;
    ensure!(began.elapsed() >= COAST, "Status failed after {:?}: {error}", began.elapsed());
    scene.is_felt(&error, &scene.gateway.address().to_string()).await?;
    // kube-apiserver sees it, is not ready, and serves all the same.
    scene.server.wait_kms_providers(false).await?;
    load.more(MEANWHILE).await?;
    scene.gateway.heal();
    scene.heals().await?;
    scene.server.wait_kms_providers(true).await?;
    load.more(MEANWHILE).await
}

async fn kms_has_five_seconds_of_latency(scene: &mut Scene, load: &Load) -> Result<()> {
    let began = Instant::now();
    scene.gateway.inject(Fault::Slow(Duration::from_secs(5)));
    let error = scene.first_error().await?;
    ensure!(began.elapsed() >= COAST, "Status failed after {:?}: {error}", began.elapsed());
    scene.is_felt(&error, "timeout").await?;
    load.more(MEANWHILE).await?;
    scene.gateway.heal();
    scene.heals().await
}

async fn kms_throttles(scene: &mut Scene, load: &Load) -> Result<()> {
    let began = Instant::now();
    scene.moto.faults(&[KmsFault::error("ThrottlingException", "Rate exceeded")]).await?;
    let error = scene.first_error().await?;
    ensure!(began.elapsed() >= COAST, "Status failed after {:?}: {error}", began.elapsed());
    scene.is_felt(&error, "ThrottlingException").await?;
    load.more(MEANWHILE).await?;
    scene.moto.faults(&[]).await?;
    scene.heals().await
}

/// For good, so the plugin does not coast; the shim in front of it does.
async fn the_key_is_disabled(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.moto.owner().change_state("DisableKey", &scene.key).await?;
    let error = scene.first_error().await?;
    scene.is_felt(&error, "is disabled").await?;
    scene.server.wait_kms_providers(false).await?;
    load.more(MEANWHILE).await?;
    scene.moto.owner().change_state("EnableKey", &scene.key).await?;
    scene.heals().await?;
    scene.server.wait_kms_providers(true).await?;
    load.more(MEANWHILE).await
}

async fn everything_reads_after_a_restart(scene: &mut Scene) -> Result<()> {
    scene.server.restart().await?;
    for kind in Kind::ALL {
        let read = scene.server.client().list(kind, "default").await?;
        ensure!(!read.is_empty(), "there is no {kind:?}");
    }
    let raw = scene.plane.etcd.raw(&Kind::Secret.etcd_key("default", "load-0-0")).await?;
    sidekey_e2e::Stored::parse(&raw).map(drop)
}
