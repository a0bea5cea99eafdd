//! Promise: in a hosted control plane on a real kubelet, with the shim in front,
//! a rotation is a patch of the mounted head Secrets and new credentials are a
//! patch of theirs. kubelet delivers each at a time of its own; no request of
//! the load on both kube-apiservers fails, and no container restarts. `sidekey
//! status` asks every replica through kubelet all the while, ending ones too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_e2e::binaries;
use sidekey_e2e::cluster::Pod;
use sidekey_e2e::hosted::{ADMIN, Hosted, NAMESPACE, Role};
use sidekey_e2e::shim::replicas::key_number;
use sidekey_e2e::wait::{BROKEN, LONG_PATIENCE, PATIENCE, eventually};
use sidekey_e2e::{Kind, Load, LoadOptions};

/// Requests between two steps, so that each state sees load.
const BETWEEN_STEPS: u64 = 100;

#[tokio::test]
async fn rotation_and_new_credentials_by_patched_secrets_fail_nothing_and_restart_nothing() {
    let hosted = Hosted::start("hosted-shim", "token-1").await.unwrap();
    let owner = hosted.moto.owner();
    let keys = [owner.create_key().await.unwrap(), owner.create_key().await.unwrap()];
    hosted.put_provider_head(1, &[(1, &keys[0])]).await.unwrap();
    hosted.put_shim_head(1, &[(1, Role::Write)]).await.unwrap();
    let pods = hosted.roll_out_with_shim().await.unwrap();
    hosted.wait_usable().await.unwrap();
    let before = hosted.pods().await.unwrap();
    let servers = pods.iter().map(|pod| hosted.server(pod).unwrap()).collect();
    let rest = Duration::from_millis(50);
    let load = Load::start(servers, LoadOptions { rest, ..LoadOptions::default() }).unwrap();
    load.more(BETWEEN_STEPS).await.unwrap();

    the_new_key_is_taken_in_although_the_shims_hear_of_it_first(&hosted, &pods, &keys, &load)
        .await
        .unwrap();
    a_new_token_of_the_minter_is_taken_over(&hosted, &pods, &load).await.unwrap();
    both_replicas_write_under_the_new_key(&hosted, &pods, &load).await.unwrap();
    status_asks_every_replica_through_kubelet(&hosted, &pods).await.unwrap();
    patched_credentials_are_taken_over_by_kubelets_own_swap(&hosted, &pods, &load).await.unwrap();

    let report = load.stop().await.unwrap().without_failures().unwrap();
    println!("throughout rotation and new credentials {report}");
    hosted.nothing_has_restarted(&before).await.unwrap();
    what_each_key_wrote_reads_through_both(&hosted, &pods).await.unwrap();
    an_ending_kube_apiserver_reads_what_its_successor_writes(&hosted, &pods).await.unwrap();
}

/// The worst order: a shim hears of a key that no provider has yet.
async fn the_new_key_is_taken_in_although_the_shims_hear_of_it_first(
    hosted: &Hosted,
    pods: &[Pod],
    keys: &[String; 2],
    load: &Load,
) -> Result<()> {
    hosted.put_shim_head(2, &[(1, Role::Write), (2, Role::Read)]).await?;
    for pod in pods {
        eventually(format!("the shim of {} waits for the key", pod.name), PATIENCE, async || {
            let status = hosted.shim_status(pod).await?;
            let refused = &status["config"]["refused"]["error"];
            ensure!(refused.is_string() && status["revision"] == "1", "{status}");
            Ok(())
        })
        .await?;
    }
    load.more(BETWEEN_STEPS).await?;
    hosted.put_provider_head(2, &[(1, &keys[0]), (2, &keys[1])]).await?;
    wait_revision(hosted, pods, "2").await?;
    load.more(BETWEEN_STEPS).await
}

async fn both_replicas_write_under_the_new_key(
    hosted: &Hosted,
    pods: &[Pod],
    load: &Load,
) -> Result<()> {
    hosted.put_shim_head(3, &[(2, Role::Write), (1, Role::Read)]).await?;
    wait_revision(hosted, pods, "3").await?;
    load.more(BETWEEN_STEPS).await?;
    for pod in pods {
        let status = hosted.shim_status(pod).await?;
        let hash = status["key_id_hash"].as_str().context("no key_id_hash")?;
        hosted.wait_key_id(pod, hash).await?;
    }
    load.more(BETWEEN_STEPS).await
}

/// `sidekey status`, with nothing but two kubeconfigs; `more` are further arguments.
async fn status(hosted: &Hosted, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let scratch = &hosted.cluster.ground().plane().scratch;
    let kubeconfig = scratch.path().join("hosted.kubeconfig");
    hosted.kubeconfig(&kubeconfig)?;
    let own = [hosted.cluster.kubeconfig(), &kubeconfig].map(|path| path.display().to_string());
    let mut args = vec!["status", "-o", "json", "-n", NAMESPACE, "--kubeconfig", &own[0]];
    args.extend(["--hosted-kubeconfig", &own[1]]);
    args.extend(more);
    let said = binaries::run("sidekey", &args).await?;
    let json = serde_json::from_str(&said.stdout);
    Ok((said.code, json.with_context(|| format!("{} {}", said.stdout, said.stderr))?))
}

/// The same until the answer is like that: between two states, and on a busy machine, somebody may
/// have heard nothing yet, or not answer in time.
async fn wait_status(
    what: &str,
    hosted: &Hosted,
    more: &[&str],
    judge: impl Fn(Option<i32>, &Value) -> Result<()>,
) -> Result<()> {
    eventually(what, PATIENCE, async || {
        let (code, seen) = status(hosted, more).await?;
        judge(code, &seen).with_context(|| format!("{code:?} {seen:#}"))
    })
    .await
}

async fn status_asks_every_replica_through_kubelet(hosted: &Hosted, pods: &[Pod]) -> Result<()> {
    let scratch = &hosted.cluster.ground().plane().scratch;
    let hash = hosted.shim_status(&pods[0]).await?["key_id_hash"].clone();
    let all: BTreeSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    wait_status("every replica is asked through kubelet", hosted, &[], |code, seen| {
        ensure!(code == Some(0) && seen["expected"] == 2, "it is not well");
        for list in ["shims", "servers"] {
            let listed = seen[list].as_array().into_iter().flatten();
            let named: BTreeSet<&str> = listed.filter_map(|one| one["name"].as_str()).collect();
            ensure!(named == all, "{list}: {named:?}, not {all:?}");
        }
        for (shim, server) in (0..2).map(|i| (&seen["shims"][i], &seen["servers"][i])) {
            let shim = &shim["status"];
            ensure!(shim["revision"] == "3" && shim["writeKey"] == "2", "{shim}");
            ensure!(server["status"]["announced"]["sidekey"]["keyIdHash"] == hash, "{server}");
        }
        Ok(())
    })
    .await?;
    // The same with mutual TLS to the port on the pod's address.
    let kubeconfig: Value =
        serde_json::from_slice(&std::fs::read(scratch.path().join("hosted.kubeconfig"))?)?;
    let ca = &kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"];
    let file = scratch.path().join("hosted-ca.crt");
    std::fs::write(&file, STANDARD.decode(ca.as_str().context("no CA")?)?)?;
    let files = [&file, &hosted.operator().certificate, &hosted.operator().key];
    let files = files.map(|path| path.display().to_string());
    let port = ADMIN.to_string();
    let more = [
        "--shim-tls",
        "--shim-port",
        &port,
        "--ca",
        &files[0],
        "--cert",
        &files[1],
        "--key",
        &files[2],
    ];
    wait_status("shims are asked over TLS", hosted, &more, |code, seen| {
        let told = &seen["shims"][1]["status"]["keyIdHash"];
        ensure!(code == Some(0) && *told == hash, "it tells {told}");
        Ok(())
    })
    .await?;
    // A port on which nobody listens: named with kubelet's reason, and nobody is dropped.
    let nobody = ["--shim-port", "8099"];
    wait_status("who does not answer is named", hosted, &nobody, |code, seen| {
        let silent = seen["silent"].as_array().map(Vec::as_slice).unwrap_or_default();
        let refused =
            silent.iter().all(|line| line.as_str().is_some_and(|l| l.contains("refused")));
        ensure!(code == Some(1) && silent.len() == 2 && refused, "silent: {silent:?}");
        Ok(())
    })
    .await
}

async fn a_new_token_of_the_minter_is_taken_over(
    hosted: &Hosted,
    pods: &[Pod],
    load: &Load,
) -> Result<()> {
    hosted.replace_token(pods, 2.0, ["token-1", "token-2"]).await?;
    load.more(BETWEEN_STEPS).await
}

async fn patched_credentials_are_taken_over_by_kubelets_own_swap(
    hosted: &Hosted,
    pods: &[Pod],
    load: &Load,
) -> Result<()> {
    let moto = &hosted.moto;
    moto.check_signatures("new-key", "new-secret").await?;
    moto.accept_access_keys(&["new-key"]).await?;
    let before = hosted.reloads(pods).await?;
    let links: Result<Vec<PathBuf>> = pods.iter().map(|pod| hosted.credentials_link(pod)).collect();
    let credentials =
        "[default]\naws_access_key_id = new-key\naws_secret_access_key = new-secret\n";
    let patch = [("credentials", credentials)];
    hosted.cluster.client().patch_secret(NAMESPACE, "kms-creds", &patch).await?;
    hosted.wait_reloads(pods, &before, 2.0).await?;
    for (pod, link) in pods.iter().zip(links?) {
        let now = hosted.credentials_link(pod)?;
        ensure!(now != link, "kubelet has not swapped ..data of {}", pod.name);
    }
    // From here on nothing but the new credentials opens anything.
    moto.accept_tokens(&[]).await?;
    moto.revoke_sessions("ExpiredTokenException").await?;
    let calls = moto.calls("").await?;
    eventually("KMS is used with the new credentials alone", PATIENCE, async || {
        let (now, last) = (moto.calls("").await?, moto.last().await?);
        // One probe of each pod's write key: they come every 30 s.
        ensure!(now >= calls + 2 && last["access_key"] == "new-key", "{now} calls, {last}");
        Ok(())
    })
    .await?;
    for pod in pods {
        // A probe that was under way while the sessions ended may have failed.
        eventually(format!("both keys of {} are healthy", pod.name), PATIENCE, async || {
            let metrics = hosted.provider_metrics(pod).await?;
            let healthy = metrics.sum("kms_plugin_status_healthy", &[]);
            ensure!(healthy == 2.0, "{healthy} are");
            Ok(())
        })
        .await?;
    }
    load.more(BETWEEN_STEPS).await
}

async fn what_each_key_wrote_reads_through_both(hosted: &Hosted, pods: &[Pod]) -> Result<()> {
    let mut by_key: BTreeMap<u64, usize> = BTreeMap::new();
    for kind in Kind::ALL {
        for entry in hosted.stored(kind, "default").await? {
            *by_key.entry(key_number(&entry.value)?).or_default() += 1;
            let name = entry.key.rsplit('/').next().unwrap_or_default();
            for pod in pods {
                let data = hosted.server(pod)?.read(kind, "default", name).await?;
                ensure!(data["value"] == format!("{name} second"), "{BROKEN}{name} holds {data:?}");
            }
        }
    }
    let both = by_key.len() == 2 && [1, 2].iter().all(|key| by_key.contains_key(key));
    ensure!(both, "stored under {by_key:?}");
    println!("stored under keys 1 and 2: {by_key:?}");
    Ok(())
}

/// Its sidecars outlive it, so that it can unwrap keys that it has not seen before.
async fn an_ending_kube_apiserver_reads_what_its_successor_writes(
    hosted: &Hosted,
    pods: &[Pod],
) -> Result<()> {
    let successor = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "successor", "namespace": "default"}, "stringData": {"word": "new"},
    });
    hosted.cluster.client().delete_pod(&pods[0]).await?;
    eventually("its successor can be written to", PATIENCE, async || {
        let now = hosted.pods().await?;
        let new = now.iter().find(|pod| pods.iter().all(|old| old.uid != pod.uid));
        let new = hosted.server(new.context("there is none")?)?;
        // An answer that got lost must not make the next try fail.
        new.apply(&successor).await
    })
    .await?;
    let ending = hosted.cluster.client().pod(NAMESPACE, &pods[0].name).await?;
    ensure!(ending.ending, "{} is not ending", ending.summary());
    // It still serves: it is asked, and counts for no other.
    wait_status("the ending one is asked too", hosted, &[], |_, seen| {
        let shims = seen["shims"].as_array().map(Vec::as_slice).unwrap_or_default();
        let asked = shims.iter().find(|shim| shim["name"] == ending.name.as_str());
        let asked = asked.context("it is not there")?;
        ensure!(asked["ending"] == true && asked["status"]["revision"] == "3", "{asked}");
        ensure!(shims.len() == 3, "there are {}", shims.len());
        Ok(())
    })
    .await?;
    let data = hosted.server(&ending)?.read(Kind::Secret, "default", "successor").await?;
    ensure!(data["word"] == "new", "{BROKEN}{data:?}");
    Ok(())
}

async fn wait_revision(hosted: &Hosted, pods: &[Pod], revision: &str) -> Result<()> {
    for pod in pods {
        let what = format!("the shim of {} is at revision {revision}", pod.name);
        eventually(what, LONG_PATIENCE, async || {
            let status = hosted.shim_status(pod).await?;
            ensure!(status["revision"] == revision, "{status}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
