//! Promise: without shim, in the place of HyperShift's own sidecars, the two
//! roll-outs of its rotation fail no request, and all data stays readable.
//! Before that a new token and a new role are taken over without a restart. The
//! operator that rolls out is imitated by the harness; kubelet, scheduler and
//! controllers are the real ones.
//!
//! kubelet tells sidecars and kube-apiserver to end at the same moment.
//! kube-apiserver serves on for a while, and so must its sidecars: what a newer
//! pod has written could otherwise not be read through the ending one. The load
//! meets that by chance alone, so it is looked at directly as well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sidekey_e2e::cluster::Pod;
use sidekey_e2e::hosted::{Hosted, NAMESPACE, provider_name, web_identity};
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::wait::BROKEN;
use sidekey_e2e::{Kind, KubeClient, Load, LoadOptions, Stored};
use tokio::task::JoinSet;

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 100;

#[tokio::test]
async fn the_two_rollouts_of_hypershifts_rotation_fail_no_request() {
    let hosted = Hosted::start("hosted-native", "token-1").await.unwrap();
    let owner = hosted.moto.owner();
    let (old, new) = (owner.create_key().await.unwrap(), owner.create_key().await.unwrap());
    let pods = hosted.roll_out(&old, None).await.unwrap();
    hosted.wait_usable().await.unwrap();
    let rest = Duration::from_millis(50);
    let options = LoadOptions { rest, ..LoadOptions::default() };
    let load = Load::start(vec![hosted.service().unwrap()], options).unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    new_credentials_restart_nothing(&hosted, &pods, &load).await.unwrap();

    // The new key can be read everywhere before anybody writes under it; then the
    // sockets change places: what was behind the active one is behind the backup's.
    roll_out(&hosted, &old, &new).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let pods = roll_out(&hosted, &new, &old).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout both roll-outs {report}");
    for pod in &pods {
        assert_eq!(pod.restarts(), 0, "{}", pod.summary());
    }
    everything_reads_through_both(&hosted, &[&old, &new]).await.unwrap();
}

/// Rolls out, and looks at the pods that end meanwhile.
async fn roll_out(hosted: &Hosted, write: &str, read: &str) -> Result<Vec<Pod>> {
    let before = hosted.pods().await?;
    let mut followed = BTreeSet::new();
    let mut followers = JoinSet::new();
    let mut rolling = std::pin::pin!(hosted.roll_out(write, Some(read)));
    let pods = loop {
        for pod in hosted.pods().await?.iter().filter(|pod| pod.ending) {
            if followed.insert(pod.name.clone()) {
                followers.spawn(follow(pod.clone(), hosted.server(pod)?, hosted.sidecars(pod)?));
            }
        }
        tokio::select! {
            pods = rolling.as_mut() => break pods?,
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
    };
    for follower in followers.join_all().await {
        follower?;
    }
    for pod in before {
        ensure!(followed.contains(&pod.name), "{} was not seen ending", pod.name);
    }
    Ok(pods)
}

/// Asks an ending pod until its kube-apiserver is gone: as long as that answers, its
/// sidecars must have done so a moment before.
async fn follow(pod: Pod, server: KubeClient, sidecars: Vec<HttpClient>) -> Result<()> {
    let mut times = 0;
    loop {
        let mut answers = Vec::new();
        for sidecar in &sidecars {
            answers.push(sidecar.get("/livez").await.and_then(|answer| answer.ok()));
        }
        if server.raw("/livez").await.is_err() {
            // One that was never asked in time has proven nothing.
            ensure!(times > 0 && !answers.is_empty(), "{} was not seen ending", pod.summary());
            println!("{} was ending and had its sidecars, {times} times", pod.name);
            return Ok(());
        }
        for answer in answers {
            answer.with_context(|| format!("{} serves on without a sidecar", pod.name))?;
        }
        times += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A token that the minter writes, and a role that is patched into the Secret.
async fn new_credentials_restart_nothing(hosted: &Hosted, pods: &[Pod], load: &Load) -> Result<()> {
    let present = hosted.pods().await?;
    hosted.replace_token(pods, 1.0, ["token-1", "token-2"]).await?;
    load.more(BETWEEN_STEPS).await?;

    let (known, before) = (hosted.moto.sessions().await?, hosted.reloads(pods).await?);
    let links: Result<Vec<PathBuf>> = pods.iter().map(|pod| hosted.credentials_link(pod)).collect();
    let credentials = web_identity("another-kms-provider");
    let patch = [("credentials", credentials.as_str())];
    hosted.cluster.client().patch_secret(NAMESPACE, "kms-creds", &patch).await?;
    hosted.wait_reloads(pods, &before, 1.0).await?;
    for (pod, link) in pods.iter().zip(links?) {
        let now = hosted.credentials_link(pod)?;
        ensure!(now != link, "kubelet has not swapped ..data of {}", pod.name);
    }
    let sessions = hosted.moto.sessions().await?;
    let fresh = sessions.keys().filter(|session| !known.contains_key(*session)).count();
    ensure!(fresh >= pods.len(), "{fresh} sessions of the new role");
    load.more(BETWEEN_STEPS).await?;
    hosted.nothing_has_restarted(&present).await
}

async fn everything_reads_through_both(hosted: &Hosted, arns: &[&String; 2]) -> Result<()> {
    let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
    for kind in Kind::ALL {
        for entry in hosted.stored(kind, "default").await? {
            let stored = Stored::parse(&entry.value)?;
            *by_name.entry(stored.provider).or_default() += 1;
            let name = entry.key.rsplit('/').next().unwrap_or_default();
            for pod in &hosted.pods().await? {
                let data = hosted.server(pod)?.read(kind, "default", name).await?;
                ensure!(data["value"] == format!("{name} second"), "{BROKEN}{name} holds {data:?}");
            }
        }
    }
    let both = arns.iter().all(|arn| by_name.contains_key(&provider_name(arn)));
    ensure!(both && by_name.len() == 2, "stored under {by_name:?}");
    println!("stored under {by_name:?}");
    Ok(())
}
