//! Objects that somebody does not let us rewrite.

use anyhow::ensure;
use hyper::Method;
use serde_json::{Value, json};
use sidekey_e2e::Kind;
use sidekey_e2e::wait::{PATIENCE, eventually};

use super::world::World;

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

pub(super) async fn what_cannot_be_rewritten_is_named_with_the_reason_and_tried_again(
    world: &mut World,
) {
    let others = world.count("/registry/secrets/").await;
    world.create(Kind::Secret, "default", "frozen", 2).await;
    world.promote().await;
    freeze(world).await;

    let failed = world.migrate(&[]).await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let answer: Value = serde_json::from_str(&failed.stdout).unwrap();
    let secrets = &answer["resources"][1];
    assert_eq!(
        (&secrets["rewritten"], &secrets["failed"]),
        (&json!(others), &json!(2)),
        "{answer}"
    );
    let names: Vec<&Value> =
        secrets["failures"].as_array().unwrap().iter().map(|failure| &failure["object"]).collect();
    assert_eq!(names, ["default/frozen-0000", "default/frozen-0001"]);
    let reason = secrets["failures"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("frozen by order"), "{reason}");
    assert_eq!(world.keys().await.get(&(world.key - 1)), Some(&2), "the others are done");

    let binding = format!("{BINDINGS}/frozen");
    world.client.send(Method::DELETE, &binding, None).await.unwrap();
    world.client.create(Kind::Secret, "default", "frozen-probe", &[]).await.unwrap();
    eventually("updates are let through again", PATIENCE, async || {
        touch(world, "probe").await.map(drop)
    })
    .await
    .unwrap();
    let done = world.migrate(&[]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    world.all_is_new().await;
}

/// Nobody may update a Secret whose name begins with `frozen`, not even by nothing.
async fn freeze(world: &World) {
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["secrets"],
    });
    let policy = json!({
        "metadata": {"name": "frozen"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{
                "expression": "!object.metadata.name.startsWith('frozen')",
                "message": "frozen by order",
            }],
        },
    });
    world.client.send(Method::POST, POLICIES, Some(&policy)).await.unwrap();
    let spec = json!({"policyName": "frozen", "validationActions": ["Deny"]});
    let binding = json!({"metadata": {"name": "frozen"}, "spec": spec});
    world.client.send(Method::POST, BINDINGS, Some(&binding)).await.unwrap();
    world.client.create(Kind::Secret, "default", "frozen-probe", &[]).await.unwrap();
    eventually("the policy is in force", PATIENCE, async || {
        let refused = touch(world, "probe").await;
        ensure!(
            refused.is_err_and(|why| format!("{why:#}").contains("frozen by order")),
            "not yet"
        );
        Ok(())
    })
    .await
    .unwrap();
    let probe = "/api/v1/namespaces/default/secrets/frozen-probe";
    world.client.send(Method::DELETE, probe, None).await.unwrap();
}

async fn touch(world: &World, name: &str) -> anyhow::Result<Value> {
    let path = format!("/api/v1/namespaces/default/secrets/frozen-{name}");
    let patch = json!({"metadata": {"labels": {"touched": "yes"}}});
    world.client.send_as(Method::PATCH, &path, "application/merge-patch+json", &patch).await
}
