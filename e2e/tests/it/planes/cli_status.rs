//! Promise: `sidekey status` asks every shim and every kube-apiserver, says what each has, and
//! tells by its exit code whether all is as published. Nobody is left out.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sidekey_e2e::binaries::{self, Outcome};
use sidekey_e2e::ports::Port;
use sidekey_e2e::shim::ShimConfig;
use sidekey_e2e::shim::replicas::Replicas;
use sidekey_e2e::wait::{LONG_PATIENCE, eventually};
use sidekey_e2e::{Kind, LocalPlugin};

/// The program's name.
const PROGRAM: &str = "sidekey";

fn revision(number: u64) -> ShimConfig {
    ShimConfig::new(number).probe("500ms", "2s")
}

#[tokio::test]
async fn status_tells_what_every_replica_has() {
    let first = |plugins: &[LocalPlugin]| revision(1).write(1, plugins[0].endpoint());
    let mut replicas = Replicas::start("cli-status", 2, first).await.unwrap();
    all_is_well_and_says_so(&replicas).await.unwrap();
    a_refused_revision_is_named_with_its_reason(&mut replicas).await.unwrap();
    replicas_between_two_keys_are_not_well(&mut replicas).await.unwrap();
    all_have_followed(&mut replicas).await.unwrap();
    a_sick_read_key_is_named(&mut replicas).await.unwrap();
    who_does_not_answer_is_named_not_dropped(&mut replicas).await.unwrap();
}

/// The whole command line: both shims, both kube-apiservers, one directory of files.
async fn status(replicas: &Replicas, more: &[&str]) -> Result<(Outcome, Value)> {
    let scratch = &replicas.plane.scratch;
    let kubeconfig = scratch.path().join("admin.kubeconfig");
    std::fs::write(&kubeconfig, replicas.nodes[0].server.kubeconfig())?;
    let mut args = vec!["status".to_owned(), "-o".into(), "json".into()];
    args.extend(["--kubeconfig".into(), kubeconfig.display().to_string()]);
    for node in &replicas.nodes {
        args.extend(["--server".into(), format!("https://{}", node.server.address())]);
        args.extend(["--shim".into(), format!("http://{}", node.shim.admin().address())]);
    }
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    let said = binaries::run(PROGRAM, &args).await?;
    let json = serde_json::from_str(&said.stdout)
        .with_context(|| format!("no JSON: {} {}", said.stdout, said.stderr))?;
    Ok((said, json))
}

/// Asks until the answer is like that: between two states, and on a busy machine, somebody may
/// have heard nothing yet, or not answer in time.
async fn wait_status(
    what: &str,
    replicas: &Replicas,
    more: &[&str],
    judge: impl Fn(&Outcome, &Value) -> Result<()>,
) -> Result<()> {
    eventually(what, LONG_PATIENCE, async || {
        let (said, json) = status(replicas, more).await?;
        judge(&said, &json)
    })
    .await
}

fn listed(json: &Value, list: &str) -> Vec<String> {
    let lines = json[list].as_array().into_iter().flatten();
    lines.filter_map(|line| line.as_str().map(str::to_owned)).collect()
}

async fn all_is_well_and_says_so(replicas: &Replicas) -> Result<()> {
    let directory = replicas.plane.scratch.subdir("published/shim")?;
    std::fs::write(directory.join("config.yaml"), "revision: 1\nkeys: []\n")?;
    let published = directory.parent().context("no parent")?.display().to_string();
    for (index, node) in replicas.nodes.iter().enumerate() {
        let name = format!("written-{index}");
        node.server.client().create(Kind::Secret, "default", &name, &[("word", "x")]).await?;
    }
    let hash = replicas.nodes[0].shim.key_id_hash().await?;
    let published = ["--config-dir", &published];
    wait_status("all is well", replicas, &published, |said, json| {
        ensure!(said.code == Some(0), "{said:?}");
        for index in 0..2 {
            let [shim, server] = ["shims", "servers"].map(|list| &json[list][index]["status"]);
            ensure!(shim["keyIdHash"] == hash && shim["revision"] == "1", "{shim}");
            let key = &shim["keys"][0];
            ensure!(key["role"] == "write" && key["healthy"] == true && key["id"] == "1", "{key}");
            ensure!(server["announced"]["sidekey"]["keyIdHash"] == hash, "{server}");
            ensure!(server["written"]["sidekey"]["keyIdHash"] == hash, "{server}");
            ensure!(server["kmsHealthy"] == true, "{server}");
        }
        Ok(())
    })
    .await?;
    std::fs::write(directory.join("config.yaml"), "revision: 2\nkeys: []\n")?;
    wait_status("both are behind what is published", replicas, &published, |said, json| {
        let wrong = listed(json, "wrong");
        let behind = wrong.iter().filter(|line| line.contains("is at revision 1, published is 2"));
        ensure!(said.code == Some(3) && behind.count() == 2, "{said:?}");
        Ok(())
    })
    .await
}

async fn a_refused_revision_is_named_with_its_reason(replicas: &mut Replicas) -> Result<()> {
    let node = &mut replicas.nodes[0];
    let bad = revision(2).write(1, node.kek(1)).read(2, "unix:///nobody/listens.sock");
    node.shim.swap(&bad)?;
    node.shim.wait_refused().await?;
    let address = node.shim.admin().address().to_string();
    wait_status("the refused revision is named", replicas, &[], |said, json| {
        let wrong = listed(json, "wrong");
        let named = wrong.iter().any(|line| {
            line.contains(&address) && line.contains("refuses a newer") && line.contains("nobody")
        });
        ensure!(said.code == Some(3) && named && wrong.len() == 1, "{said:?}");
        Ok(())
    })
    .await
}

async fn replicas_between_two_keys_are_not_well(replicas: &mut Replicas) -> Result<()> {
    for node in &mut replicas.nodes {
        let config = revision(3).write(1, node.kek(1)).read(2, node.kek(2));
        node.shim.load(&config).await?;
    }
    wait_status("all is well", replicas, &[], |said, _| {
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    })
    .await?;
    let node = &mut replicas.nodes[0];
    let config = revision(4).write(2, node.kek(2)).read(1, node.kek(1));
    node.shim.load(&config).await?;
    wait_status("it is told that keys differ", replicas, &[], |said, json| {
        let wrong = listed(json, "wrong");
        let told = wrong.iter().any(|line| line.contains("different keys"));
        ensure!(said.code == Some(3) && told, "{said:?}");
        Ok(())
    })
    .await
}

async fn all_have_followed(replicas: &mut Replicas) -> Result<()> {
    let node = &mut replicas.nodes[1];
    let config = revision(4).write(2, node.kek(2)).read(1, node.kek(1));
    node.shim.load(&config).await?;
    // Its own question makes each kube-apiserver look at the plugin again.
    let hash = replicas.nodes[1].shim.key_id_hash().await?;
    wait_status("both kube-apiservers use the new key", replicas, &[], |said, json| {
        ensure!(said.code == Some(0), "{said:?}");
        for index in 0..2 {
            let announced = &json["servers"][index]["status"]["announced"]["sidekey"];
            ensure!(announced["keyIdHash"] == hash, "{announced} {said:?}");
        }
        Ok(())
    })
    .await
}

async fn a_sick_read_key_is_named(replicas: &mut Replicas) -> Result<()> {
    replicas.nodes[0].plugins[0].process().kill()?;
    wait_status("the dead read key is named", replicas, &[], |said, json| {
        let wrong = listed(json, "wrong");
        let named = wrong.iter().any(|line| line.contains("read key 1 cannot be used"));
        ensure!(said.code == Some(3) && named, "{said:?}");
        Ok(())
    })
    .await?;
    replicas.nodes[0].plugins[0].restart().await?;
    wait_status("all is well again", replicas, &[], |said, _| {
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    })
    .await
}

async fn who_does_not_answer_is_named_not_dropped(replicas: &mut Replicas) -> Result<()> {
    let nobody = Port::free()?;
    let url = format!("https://{}", nobody.address());
    wait_status("who does not answer is named", replicas, &["--server", &url], |said, json| {
        let silent = listed(json, "silent");
        ensure!(said.code == Some(1) && silent.len() == 1, "{said:?}");
        ensure!(silent[0].contains(&nobody.address().to_string()), "{silent:?}");
        ensure!(json["servers"].as_array().is_some_and(|all| all.len() == 3), "{json}");
        Ok(())
    })
    .await?;

    // One that hangs is not waited for longer than told.
    let address = replicas.nodes[1].shim.admin().address();
    replicas.nodes[1].shim.process().pause()?;
    let args = ["status", "-o", "json", "--timeout", "1s", "--shim", &format!("http://{address}")];
    let said = binaries::run(PROGRAM, &args).await?;
    let json: Value = serde_json::from_str(&said.stdout)?;
    // Nothing but time can end the question: it is the same each time.
    let silent = listed(&json, "silent").concat();
    ensure!(said.code == Some(1) && silent.contains("no answer in 1s"), "{said:?}");
    replicas.nodes[1].shim.process().resume()
}

#[tokio::test]
async fn bad_usage_is_told_with_exit_64() {
    for args in [
        vec!["status"],
        vec!["status", "--shim", "http://10.0.0.1:8093"],
        vec!["status", "--shim", "https://127.0.0.1:1", "--timeout", "soon"],
        vec!["status", "-n", "x", "-l", "app"],
        vec!["status", "--hosted-kubeconfig", "/nowhere"],
        vec!["status", "--kubeconfig", "/nowhere/kubeconfig", "-n", "x"],
    ] {
        let said = binaries::run(PROGRAM, &args).await.unwrap();
        assert_eq!(said.code, Some(64), "{args:?}: {said:?}");
        assert!(!said.stderr.contains("panicked"), "{said:?}");
    }
}
