//! From the SecretEncryption's status to the HostedCluster's.

use super::*;

fn said(kind: &str, status: &str) -> Value {
    let time = "2026-01-01T00:00:00Z";
    json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": time})
}

fn hash(text: &str) -> String {
    sidekey_core::hex(&sidekey_core::sha256(text.as_bytes()))
}

fn shown(fake: &Fake) -> Value {
    fake.at(HOSTED).unwrap()["status"]["secretEncryption"].clone()
}

/// A rotation from the first key to the second, with a history.
async fn rotating(stage: &str) -> Fake {
    let fake = world(aws(K1));
    pass(&fake).await;
    let first = turn(&fake, 1);
    status(&fake, json!({"activeKey": first}));
    pass(&fake).await;
    edit(&fake, aws(K2)).await;
    let second = turn(&fake, 2);
    let (started, ended) = ("2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z");
    let past = json!({"from": second, "to": first, "state": "Interrupted", "startedTime": started, "completionTime": ended});
    status(
        &fake,
        json!({
            "activeKey": first, "targetKey": second,
            "rotation": {"stage": stage, "startedTime": ended},
            "history": [past],
            "conditions": [said("KMSKeyAccessible", "True"), said("SecretEncryptionConfigured", "True")],
        }),
    );
    pass(&fake).await;
    fake
}

#[tokio::test]
async fn a_rotation_is_shown_in_hypershifts_words() {
    let fake = rotating("Migrating").await;
    let now = shown(&fake);
    assert_eq!(now["activeKey"], json!({"provider": "AWS", "aws": {"arn": K1}}));
    assert_eq!(now["targetKey"], json!({"provider": "AWS", "aws": {"arn": K2}}));
    let newest = &now["history"][0];
    assert_eq!(newest["from"], json!({"provider": "AWS", "fingerprint": hash(K1)}));
    assert_eq!(newest["to"], json!({"provider": "AWS", "fingerprint": hash(K2)}));
    assert_eq!(newest["state"], "Migrating");
    assert!(newest.get("completionTime").is_none());
    assert_eq!(now["history"][1]["state"], "Interrupted");
    assert_eq!(now["history"][1]["completionTime"], "2026-01-03T00:00:00Z");
    let up_to_date = condition(&fake, "EtcdDataEncryptionUpToDate").unwrap();
    assert_eq!(
        (&up_to_date["status"], &up_to_date["reason"]),
        (&json!("False"), &json!("ReEncryptionInProgress"))
    );
    let valid = condition(&fake, "ValidAWSKMSConfig").unwrap();
    assert_eq!((&valid["status"], &valid["reason"]), (&json!("True"), &json!("AsExpected")));
    assert_eq!(condition(&fake, "SecretEncryptionConfigured").unwrap()["observedGeneration"], 7);
    assert_stable(&fake).await;
}

#[tokio::test]
async fn a_key_that_is_only_being_proven_is_no_target_yet() {
    let fake = rotating("Preflight").await;
    let now = shown(&fake);
    assert!(now.get("targetKey").is_none() && now["history"].as_array().unwrap().len() == 1);
}

#[tokio::test]
async fn hypershifts_policy_lets_an_edit_through_until_the_key_is_promoted() {
    for (stage, status, reason) in [
        ("Preflight", "Unknown", "ReadOnlyRolloutInProgress"),
        ("ReadOnlyDeploy", "Unknown", "ReadOnlyRolloutInProgress"),
        ("WritePromote", "False", "WritePromotionInProgress"),
        ("Migrating", "False", "ReEncryptionInProgress"),
    ] {
        let fake = rotating(stage).await;
        let now = condition(&fake, "EtcdDataEncryptionUpToDate").unwrap();
        assert_eq!((&now["status"], &now["reason"]), (&json!(status), &json!(reason)), "{stage}");
    }
}

#[tokio::test]
async fn what_is_over_goes_from_the_status() {
    let fake = rotating("Migrating").await;
    let second = turn(&fake, 2);
    status(&fake, json!({"activeKey": second, "encryptedUnder": "sha256:00"}));
    pass(&fake).await;
    let now = shown(&fake);
    assert_eq!(now, json!({"activeKey": {"provider": "AWS", "aws": {"arn": K2}}}));
    assert_eq!(condition(&fake, "SecretEncryptionConfigured"), None);
    assert_eq!(condition(&fake, "EtcdDataEncryptionUpToDate").unwrap()["status"], "True");
    pass(&fake).await;
    assert_stable(&fake).await;
}

/// Another manager owns this.
fn owned(fake: &Fake, fields: Value) {
    fake.change(HOSTED, |hosted| {
        let list = hosted["metadata"]["managedFields"].as_array_mut().unwrap();
        list.push(json!({"manager": "hypershift", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": fields}}));
    });
}

#[tokio::test]
async fn what_another_manager_owns_is_left_to_him() {
    let fake = world(aws(K1));
    let theirs = json!({
        "conditions": [said("ValidAWSKMSConfig", "Unknown"), said("Available", "True")],
        "secretEncryption": {"activeKey": {"provider": "AWS", "aws": {"arn": K1}}},
    });
    fake.change(HOSTED, |hosted| hosted["status"] = theirs);
    let item = |kind: &str| format!("k:{}", json!({"type": kind}));
    owned(
        &fake,
        json!({
            "f:conditions": {item("ValidAWSKMSConfig"): {"f:status": {}}, item("Available"): {}},
            "f:secretEncryption": {"f:activeKey": {}},
        }),
    );
    pass(&fake).await;
    let core = [said("ValidAWSKMSConfig", "True"), said("KMSKeyAccessible", "True")];
    let turn = turn(&fake, 1);
    let time = "2026-01-01T00:00:00Z";
    let past = json!({"from": turn, "to": turn, "state": "Completed", "startedTime": time, "completionTime": time});
    status(&fake, json!({"activeKey": turn, "conditions": core, "history": [past]}));
    pass(&fake).await;
    assert_eq!(condition(&fake, "ValidAWSKMSConfig").unwrap()["status"], "Unknown");
    assert!(condition(&fake, "Available").is_some());
    assert!(condition(&fake, "KMSKeyAccessible").is_some(), "that one is free");
    assert!(shown(&fake).get("history").is_none(), "a part of it is another's");
    assert_stable(&fake).await;
}

#[tokio::test]
async fn a_list_that_another_manager_owns_as_a_whole_is_left_to_him() {
    let fake = world(aws(K1));
    owned(&fake, json!({"f:conditions": {}}));
    pass(&fake).await;
    status(&fake, json!({"conditions": [said("KMSKeyAccessible", "True")]}));
    pass(&fake).await;
    assert_eq!(condition(&fake, "KMSKeyAccessible"), None);
}

#[tokio::test]
async fn owners_are_asked_for_where_the_object_came_without_them() {
    let fake = rotating("Migrating").await;
    let mut object = fake.object(HOSTED);
    object.metadata.managed_fields = None;
    fake.forget_writes();
    crate::operator::fronts::hosted_cluster(&object, &fake.context()).await.unwrap();
    assert_eq!(fake.lock().writes, [""; 0]);
}

#[tokio::test]
async fn a_condition_changes_its_time_only_with_its_status() {
    let fake = world(aws(K1));
    pass(&fake).await;
    status(&fake, json!({"conditions": [said("KMSKeyAccessible", "True")]}));
    pass(&fake).await;
    let mut other = said("KMSKeyAccessible", "True");
    other["message"] = "another".into();
    other["lastTransitionTime"] = "2026-02-02T00:00:00Z".into();
    status(&fake, json!({"conditions": [other]}));
    pass(&fake).await;
    let now = condition(&fake, "KMSKeyAccessible").unwrap();
    assert_eq!(now["message"], "another");
    assert_eq!(now["lastTransitionTime"], "2026-01-01T00:00:00Z");
}
