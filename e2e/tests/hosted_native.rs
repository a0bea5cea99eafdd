//! Promise: without shim, in the place of HyperShift's own sidecars, the two
//! roll-outs of its rotation fail no request, and all data stays readable. The
//! operator that rolls out is imitated by the harness; kubelet, scheduler and
//! controllers are the real ones.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use sidekey_e2e::hosted::{Hosted, provider_name};
use sidekey_e2e::{Kind, Load, LoadOptions, Stored};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 100;

#[tokio::test]
async fn the_two_rollouts_of_hypershifts_rotation_fail_no_request() {
    let hosted = Hosted::start("hosted-native", "token-1").await.unwrap();
    let owner = hosted.moto.owner();
    let (old, new) = (owner.create_key().await.unwrap(), owner.create_key().await.unwrap());
    hosted.roll_out(&old, None).await.unwrap();
    hosted.wait_usable().await.unwrap();
    let rest = Duration::from_millis(50);
    let options = LoadOptions { rest, ..LoadOptions::default() };
    let load = Load::start(vec![hosted.service().unwrap()], options).unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    // The new key can be read everywhere before anybody writes under it; then the
    // sockets change places: what was behind the active one is behind the backup's.
    hosted.roll_out(&old, Some(&new)).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();
    let pods = hosted.roll_out(&new, Some(&old)).await.unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout both roll-outs {report}");
    for pod in &pods {
        assert_eq!(pod.restarts(), 0, "{}", pod.summary());
    }
    everything_reads_through_both(&hosted, &[&old, &new]).await.unwrap();
}

async fn everything_reads_through_both(hosted: &Hosted, arns: &[&String; 2]) -> Result<()> {
    let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
    for kind in Kind::ALL {
        for entry in hosted.stored(kind).await? {
            let stored = Stored::parse(&entry.value)?;
            *by_name.entry(stored.provider).or_default() += 1;
            let name = entry.key.rsplit('/').next().unwrap_or_default();
            for pod in &hosted.pods().await? {
                let data = hosted.server(pod)?.read(kind, "default", name).await?;
                ensure!(data["value"] == format!("{name} second"), "{name} holds {data:?}");
            }
        }
    }
    let both = arns.iter().all(|arn| by_name.contains_key(&provider_name(arn)));
    ensure!(both && by_name.len() == 2, "stored under {by_name:?}");
    println!("stored under {by_name:?}");
    Ok(())
}
