//! A server that lets nobody write for a while.

use anyhow::{Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::binaries;
use sidekey_e2e::wait::{PATIENCE, eventually};

use super::world::{MIGRATOR, World};

const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const NAME: &str = "not-now";

/// How often it is told to wait before it may go on.
const REFUSALS: f64 = 3.0;

pub(super) async fn a_server_that_says_wait_is_waited_for(world: &mut World) {
    let hash = world.promote().await;
    let secrets = world.count("/registry/secrets/").await;
    let token = world.ordinary_token().await;
    let kubeconfig = world.kubeconfig_of(&token);
    let held = have_nobody_write(world, &token).await.unwrap();

    let mut args = world.arguments();
    let at = args.iter().position(|arg| arg == "--kubeconfig").unwrap();
    args[at + 1] = kubeconfig.display().to_string();
    args.extend(["--target".to_owned(), hash]);
    let before = refused(world).await.unwrap();
    let migrating = tokio::spawn(async move { binaries::run("sidekey", &args).await.unwrap() });
    eventually("it is told to wait", PATIENCE, async || {
        let times = refused(world).await? - before;
        ensure!(migrating.is_finished() || times >= REFUSALS, "{times} times");
        Ok(())
    })
    .await
    .unwrap();
    assert!(!migrating.is_finished(), "it has not waited: {:?}", migrating.await);
    // One at a time would do, but slowly.
    world.client.send(Method::DELETE, &format!("{SCHEMAS}/{NAME}"), None).await.unwrap();
    drop(held);

    let done = migrating.await.unwrap();
    assert_eq!(done.code, Some(0), "{done:?}");
    let answer: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(answer["resources"][1]["rewritten"], secrets, "{answer}");
    world.all_is_new().await;
}

/// Gives the writes of the ordinary user a priority level of their own with the least there is,
/// one request at a time, and makes one that does not end. Waits until all others are refused.
async fn have_nobody_write(world: &World, token: &str) -> Result<impl Sized + use<>> {
    let limited = json!({
        "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    });
    let level =
        json!({"metadata": {"name": NAME}, "spec": {"type": "Limited", "limited": limited}});
    world.client.send(Method::POST, LEVELS, Some(&level)).await?;
    let account = json!({"name": MIGRATOR, "namespace": "default"});
    let rule = json!({
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": account}],
        "resourceRules": [{
            "verbs": ["patch"], "apiGroups": [""], "resources": ["secrets"], "namespaces": ["*"],
        }],
    });
    let schema = json!({
        "metadata": {"name": NAME},
        "spec": {
            "priorityLevelConfiguration": {"name": NAME}, "matchingPrecedence": 2, "rules": [rule],
        },
    });
    world.client.send(Method::POST, SCHEMAS, Some(&schema)).await?;
    let client = world.server.client_of(token);
    let path = "/api/v1/namespaces/default/secrets/plain?dryRun=All";
    let mut held = None;
    eventually("the server says wait", PATIENCE, async || {
        let merge = "application/merge-patch+json";
        let patched = client.send_as(Method::PATCH, path, merge, &json!({})).await;
        let refused = patched.as_ref().is_err_and(|why| format!("{why:#}").contains("status 429"));
        if !refused {
            // Only one that came after the level was made is under it.
            held = Some(client.hold_patch(path).await?);
        }
        ensure!(refused, "{patched:?}");
        Ok(())
    })
    .await?;
    Ok(held)
}

/// How often that level has refused a request.
async fn refused(world: &World) -> Result<f64> {
    let metrics = world.server.metrics().await?;
    Ok(metrics.sum("apiserver_flowcontrol_rejected_requests_total", &[("flow_schema", NAME)]))
}
