//! Promise: in the place of HyperShift's own sidecars, on a real kubelet, a new
//! token and a new role are taken over without a failed request or a restart, and
//! all data stays readable through the two roll-outs of HyperShift's rotation.
//! The operator that rolls out is imitated by the harness.
//!
//! Not promised here: that no request fails while a roll-out goes on. kubelet
//! tells sidecars and kube-apiserver to end at the same moment; kube-apiserver
//! serves on for a while, the sidecar does not, and what a newer pod has written
//! can then not be read through the ending one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use sidekey_e2e::cluster::Pod;
use sidekey_e2e::hosted::{Hosted, NAMESPACE, provider_name, web_identity};
use sidekey_e2e::{Kind, Load, LoadOptions, Stored};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 100;

/// What was written before and after the rotation is told apart by its namespace.
const BEFORE: &str = "default";
const AFTER: &str = "kube-public";

#[tokio::test]
async fn new_credentials_fail_nothing_and_hypershifts_rotation_keeps_all_data_readable() {
    let hosted = Hosted::start("hosted-native", "token-1").await.unwrap();
    let owner = hosted.moto.owner();
    let (old, new) = (owner.create_key().await.unwrap(), owner.create_key().await.unwrap());
    let pods = hosted.roll_out(&old, None).await.unwrap();
    hosted.wait_usable().await.unwrap();
    let load = start_load(&hosted, BEFORE).unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    new_credentials_restart_nothing(&hosted, &pods, &load).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout new credentials {report}");

    // The new key can be read everywhere before anybody writes under it; then the
    // sockets change places: what was behind the active one is behind the backup's.
    hosted.roll_out(&old, Some(&new)).await.unwrap();
    hosted.roll_out(&new, Some(&old)).await.unwrap();
    let load = start_load(&hosted, AFTER).unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("after both roll-outs {report}");
    for pod in hosted.pods().await.unwrap() {
        assert_eq!(pod.restarts(), 0, "{}", pod.summary());
    }
    everything_reads_through_both(&hosted, BEFORE, &old).await.unwrap();
    everything_reads_through_both(&hosted, AFTER, &new).await.unwrap();
}

/// Load through the balancer, its objects in a namespace that every cluster has.
fn start_load(hosted: &Hosted, namespace: &str) -> Result<Load> {
    let (rest, namespace) = (Duration::from_millis(50), namespace.to_owned());
    let options = LoadOptions { rest, namespace, ..LoadOptions::default() };
    Load::start(vec![hosted.service()?], options)
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

/// All that the load has left in a namespace, which is stored under that key.
async fn everything_reads_through_both(hosted: &Hosted, namespace: &str, arn: &str) -> Result<()> {
    let mut count = 0;
    for kind in Kind::ALL {
        for entry in hosted.stored(kind, namespace).await? {
            let stored = Stored::parse(&entry.value)?;
            ensure!(
                stored.provider == provider_name(arn),
                "{} is of {}",
                entry.key,
                stored.provider
            );
            let name = entry.key.rsplit('/').next().unwrap_or_default();
            for pod in &hosted.pods().await? {
                let data = hosted.server(pod)?.read(kind, namespace, name).await?;
                ensure!(data["value"] == format!("{name} second"), "{name} holds {data:?}");
            }
            count += 1;
        }
    }
    ensure!(count > 0, "nothing is stored in {namespace}");
    println!("{count} objects of {namespace} read through both");
    Ok(())
}
