//! Promise: while AWS is away, slow, throttles or has the key disabled, running
//! kube-apiservers go on: what they have unwrapped stays readable, writes go on
//! within their window, Status turns into an error by the documented rule
//! alone, and all heals by itself. No request fails in all that time.
//!
//! AWS is moto; disabled keys and throttling are simulated on top of it, the
//! network's faults by a gateway in front of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sidekey_e2e::aws::{AwsPlugin, KmsFault, Moto, REGION};
use sidekey_e2e::gateway::{Fault, Gateway};
use sidekey_e2e::vendor::{COAST, MEANWHILE, Sufferer};
use sidekey_e2e::wait::{BROKEN, PATIENCE};
use sidekey_e2e::{ControlPlane, Load, eventually};
use tokio::task::JoinSet;

const WORDS: &[u8] = b"while AWS has a bad second";

struct Scene {
    gateway: Gateway,
    moto: Moto,
    key: String,
    sufferer: Sufferer<AwsPlugin>,
}

#[tokio::test]
async fn faults_of_aws_fail_no_request_and_heal_by_themselves() {
    let mut scene = Scene::start().await.unwrap();
    let load = scene.sufferer.load().unwrap();
    load.more(MEANWHILE).await.unwrap();

    a_second_of_503_fails_no_decrypt_and_multiplies_no_calls(&scene).await.unwrap();
    a_hiccup_within_the_coast_is_not_seen(&mut scene).await.unwrap();
    kms_is_down(&mut scene, &load).await.unwrap();
    kms_has_five_seconds_of_latency(&mut scene, &load).await.unwrap();
    kms_throttles(&mut scene, &load).await.unwrap();
    the_key_is_disabled(&mut scene, &load).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout four faults {report}");
    scene.sufferer.everything_reads_after_a_restart(&report).await.unwrap();
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
        let endpoint = plugin.endpoint("kms");
        let sufferer = Sufferer::start(plane, plugin, endpoint).await?;
        Ok(Self { gateway, moto, key, sufferer })
    }
}

/// Through shim and provider together: nobody but the key repeats what the KMS has answered, three
/// times at most. How often exactly is proven where no probe is in between: at the provider itself.
async fn a_second_of_503_fails_no_decrypt_and_multiplies_no_calls(scene: &Scene) -> Result<()> {
    const CALLERS: usize = 16;
    // Equal ones would be sent once.
    let mut all = Vec::new();
    for _ in 0..CALLERS {
        all.push(scene.sufferer.client.round_trip(WORDS).await?);
    }
    scene.moto.faults(&[KmsFault::error("KMSInternalException", "").status(503)]).await?;
    let before = scene.moto.calls("Decrypt").await?;
    let mut asked = JoinSet::new();
    for sealed in all {
        let client = scene.sufferer.client.within(PATIENCE);
        asked.spawn(async move { client.decrypt(&sealed).await });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.moto.faults(&[]).await?;
    while let Some(answer) = asked.join_next().await {
        ensure!(answer?? == WORDS, "{BROKEN}something else came back");
    }
    let calls = scene.moto.calls("Decrypt").await? - before;
    // If the shim repeated too, it would be nine for each. Probes come every second, and more
    // often while they fail.
    let most = u64::try_from(CALLERS * 3 + 30)?;
    ensure!(calls <= most, "{calls} calls for {CALLERS} requests");
    Ok(())
}

/// Probes of the plugin fail, but for less than its coast: Status never wavers.
async fn a_hiccup_within_the_coast_is_not_seen(scene: &mut Scene) -> Result<()> {
    scene.gateway.inject(Fault::Cut);
    let Sufferer { client, node, sealed, .. } = &scene.sufferer;
    let coasts = async || {
        let plugin = node.plugin.status().await?;
        ensure!(plugin["keys"][0]["coasting_since"].is_string(), "{plugin}");
        Ok(())
    };
    let answered = eventually("Status is asked in the middle of the coast", PATIENCE, async || {
        coasts().await?;
        let status = client.status().await;
        coasts().await.map(|()| status)
    });
    let status = answered.await?.context("Status must coast")?;
    ensure!(status.healthz == "ok" && status.key_id == sealed.key_id, "{status:?}");
    scene.gateway.heal();
    scene.sufferer.heals().await
}

async fn kms_is_down(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.gateway.inject(Fault::Cut);
    let why = scene.gateway.address().to_string();
    scene.sufferer.is_felt_after_the_coast(&why, load).await?;
    scene.sufferer.is_seen_by_the_apiserver(load).await?;
    scene.gateway.heal();
    scene.sufferer.heals_for_the_apiserver(load).await
}

async fn kms_has_five_seconds_of_latency(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.gateway.inject(Fault::Slow(Duration::from_secs(5)));
    scene.sufferer.is_felt_after_the_coast("timeout", load).await?;
    scene.gateway.heal();
    scene.sufferer.heals().await
}

async fn kms_throttles(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.moto.faults(&[KmsFault::error("ThrottlingException", "Rate exceeded")]).await?;
    scene.sufferer.is_felt_after_the_coast("ThrottlingException", load).await?;
    scene.moto.faults(&[]).await?;
    scene.sufferer.heals().await
}

/// For good, so neither the plugin nor the shim in front of it coasts.
async fn the_key_is_disabled(scene: &mut Scene, load: &Load) -> Result<()> {
    scene.moto.owner().change_state("DisableKey", &scene.key).await?;
    let error = scene.sufferer.first_error().await?;
    ensure!(error.code() == tonic::Code::FailedPrecondition, "{error}");
    scene.sufferer.is_felt(&error, "is disabled").await?;
    scene.sufferer.is_seen_by_the_apiserver(load).await?;
    scene.moto.owner().change_state("EnableKey", &scene.key).await?;
    scene.sufferer.heals_for_the_apiserver(load).await
}
