//! From a HostedCluster to its SecretEncryption.

use super::fake::{Fake, secret};
use super::*;
use crate::model::SecretEncryption;

#[tokio::test]
async fn a_cluster_that_is_handed_over_gets_a_sound_document_once() {
    let fake = world(aws(K1));
    assert_eq!(pass(&fake).await, Duration::from_secs(30));
    let encryption = fake.at(ENCRYPTION).unwrap();
    SecretEncryption::from_document(&encryption).unwrap();
    assert_eq!(keys(&fake), ["1 aws write"]);
    assert_eq!(encryption["spec"]["write"], "keys");
    assert_eq!(encryption["spec"]["resources"].as_array().unwrap().len(), 5);
    let annotations = &encryption["metadata"]["annotations"];
    assert_eq!(annotations["sidekey.dev/source"], "HostedCluster clusters/a");
    let key = &encryption["spec"]["keys"][0];
    assert_eq!(key["credentials"]["roleArn"], "arn:aws:iam::1:role/kms");
    assert!(key.get("listen").is_none() && key.get("canary").is_none(), "{key}");
    for field in ["timeout", "placement", "controlPlane", "convergence", "images"] {
        assert!(encryption["spec"].get(field).is_none(), "{field} belongs to people");
    }
    assert!(fake.lock().events[0].starts_with("HandedOver"));
    assert_stable(&fake).await;
}

#[tokio::test]
async fn a_cluster_that_is_not_handed_over_is_left_alone() {
    for value in [None, Some("false")] {
        let fake = world(aws(K1));
        annotate(&fake, "sidekey.dev/manage", value);
        pass(&fake).await;
        assert!(fake.lock().writes.is_empty());
    }
    let fake = world(aws(K1));
    fake.change(HOSTED, |h| h["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    pass(&fake).await;
    assert!(fake.lock().writes.is_empty());
}

#[tokio::test]
async fn a_cluster_that_is_handed_back_keeps_its_document_and_that_is_said_once() {
    let fake = world(aws(K1));
    pass(&fake).await;
    let before = spec(&fake);
    annotate(&fake, "sidekey.dev/manage", None);
    edit(&fake, aws(K2)).await;
    assert_eq!(spec(&fake), before);
    let noted = |fake: &Fake| {
        let encryption = fake.at(ENCRYPTION).unwrap();
        encryption["metadata"]["annotations"].get("sidekey.dev/handed-back").is_some()
    };
    assert!(noted(&fake) && fake.lock().events[1].starts_with("HandedBack"));
    assert_stable(&fake).await;
    assert_eq!(fake.lock().events.len(), 2);
    annotate(&fake, "sidekey.dev/manage", Some("true"));
    pass(&fake).await;
    assert!(!noted(&fake));
    assert_eq!(keys(&fake), ["2 aws write"]);
    assert_stable(&fake).await;
}

#[tokio::test]
async fn what_people_add_survives_and_what_they_take_away_comes_back() {
    let fake = world(aws(K1));
    pass(&fake).await;
    fake.change(ENCRYPTION, |encryption| {
        let spec = &mut encryption["spec"];
        spec["timeout"] = "7s".into();
        spec["images"] = json!({"shim": "mine/shim:1"});
        spec["keys"][0]["canary"] = json!({"keyId": "x"});
        spec["keys"][0]["settings"] = json!({"endpoint": "https://kms.internal"});
    });
    assert_stable(&fake).await;
    fake.change(ENCRYPTION, |encryption| encryption["spec"]["keys"][0]["role"] = "read".into());
    edit(&fake, aws(K1)).await;
    let now = spec(&fake);
    assert_eq!((&now["timeout"], &now["keys"][0]["role"]), (&json!("7s"), &json!("write")));
    assert_eq!(now["keys"][0]["settings"]["endpoint"], "https://kms.internal");
    edit(&fake, aws(K2)).await;
    assert_eq!(spec(&fake)["images"]["shim"], "mine/shim:1");
}

#[tokio::test]
async fn a_key_that_people_have_added_to_does_not_fall_apart() {
    let fake = world(aws(K1));
    pass(&fake).await;
    let item = format!("k:{}", json!({"id": 1}));
    let fields = json!({"f:spec": {"f:keys": {item: {"f:canary": {}}}}});
    fake.change(ENCRYPTION, |encryption| {
        encryption["spec"]["keys"][0]["canary"] = json!({"keyId": "x"});
        let list = encryption["metadata"]["managedFields"].as_array_mut().unwrap();
        list.push(json!({"manager": "kubectl", "operation": "Update", "fieldsV1": fields}));
    });
    edit(&fake, aws(K2)).await;
    assert_eq!(keys(&fake), ["1 aws read", "2 aws write"]);
    assert_eq!(spec(&fake)["keys"][0]["canary"]["keyId"], "x");
    assert_stable(&fake).await;
}

#[tokio::test]
async fn a_document_of_another_is_not_touched() {
    let fake = world(aws(K1));
    let mine = json!({"metadata": {"name": "a", "namespace": PLANE}, "spec": {"keys": []}});
    fake.put(ENCRYPTION, mine.clone());
    pass(&fake).await;
    assert_eq!(fake.at(ENCRYPTION).unwrap(), mine);
    let (reason, message) = fault(&fake);
    assert_eq!(reason, "NotOurs");
    assert!(message.contains("sidekey.dev/source: HostedCluster clusters/a"), "{message}");
}

#[tokio::test]
async fn settings_of_the_annotation_reach_the_document_and_every_key() {
    let fake = world(aws(K1));
    fake.put_secret(SOURCES, "static", &[("id", b"i"), ("secret", b"s"), ("more", b"m")]);
    let text = "placement: Proxy\nimages: {aws: 'mine/aws:1'}\ncontrolPlane: {port: 7443}\n\
        vendors:\n  aws:\n    settings: {endpoint: 'https://kms.internal'}\n    credentials: {accessKeyIdFile: /etc/sidekey/id}\n    \
        files: [{name: id, secret: {name: static, key: id}}]\n";
    annotate(&fake, "sidekey.dev/settings", Some(text));
    pass(&fake).await;
    let now = spec(&fake);
    assert_eq!((&now["placement"], &now["images"]["aws"]), (&json!("Proxy"), &json!("mine/aws:1")));
    let key = &now["keys"][0];
    assert_eq!(key["settings"]["endpoint"], "https://kms.internal");
    assert_eq!(key["credentials"], json!({"accessKeyIdFile": "/etc/sidekey/id"}));
    assert_eq!(key["files"][0]["secret"]["name"], "sidekey-source-static");
    let copy = fake.at(&secret(PLANE, "sidekey-source-static")).unwrap();
    assert_eq!(copy["data"].as_object().unwrap().len(), 1, "only what is needed is copied");
    assert_stable(&fake).await;
    edit(&fake, aws(K2)).await;
    assert_eq!(spec(&fake)["keys"][0]["settings"]["endpoint"], "https://kms.internal");
    annotate(&fake, "sidekey.dev/settings", Some("plcement: Proxy\ntimeout: 0s\nkeys: []"));
    pass(&fake).await;
    let (reason, message) = fault(&fake);
    assert_eq!(reason, "InvalidSpec");
    for part in ["plcement", "timeout", "keys"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(spec(&fake)["placement"], "Proxy", "it stays as it is");
}

#[tokio::test]
async fn every_mistake_is_said_at_once_and_the_document_stays() {
    let fake = world(aws(K1));
    pass(&fake).await;
    let before = fake.at(ENCRYPTION);
    let mut wrong = aws("key");
    wrong["kms"]["aws"].as_object_mut().unwrap().remove("region");
    edit(&fake, wrong).await;
    assert_eq!(fake.at(ENCRYPTION), before);
    let (reason, message) = fault(&fake);
    assert_eq!(reason, "InvalidSpec");
    let aws_path = "spec.secretEncryption.kms.aws";
    assert!(message.contains(&format!("{aws_path}.region")), "{message}");
    assert!(message.contains(&format!("{aws_path}.activeKey.arn")), "{message}");
    assert_eq!(condition(&fake, "SecretEncryptionConfigured").unwrap()["observedGeneration"], 7);
    assert_stable(&fake).await;
    for (encryption, part) in [
        (Value::Null, "is required"),
        (json!({"type": "x"}), "type"),
        (json!({"type": "kms", "kms": {"provider": "GCP"}}), "provider"),
        (json!({"type": "aescbc", "kms": {}}), "kms"),
    ] {
        edit(&fake, encryption).await;
        assert!(fault(&fake).1.contains(part), "{}", fault(&fake).1);
        assert_eq!(fake.at(ENCRYPTION), before);
    }
    edit(&fake, aws(K1)).await;
    assert_eq!(condition(&fake, "SecretEncryptionConfigured"), None, "it is right again");
}

#[tokio::test]
async fn a_control_plane_that_is_not_there_yet_is_waited_for() {
    let fake = world(aws(K1));
    fake.lock().absent.push(PLANE.to_owned());
    assert_eq!(pass(&fake).await, Duration::from_secs(5));
    assert_eq!(fault(&fake).0, "ControlPlaneNotFound");
    fake.lock().absent.clear();
    assert_eq!(pass(&fake).await, Duration::from_secs(30));
    assert_eq!(keys(&fake), ["1 aws write"]);
}

#[tokio::test]
async fn a_role_may_stand_in_a_secret() {
    let mut encryption = aws(K1);
    encryption["kms"]["aws"]["auth"]["awsKms"] = "arn-from-secret::kms-role".into();
    let fake = world(encryption);
    assert_eq!(pass(&fake).await, Duration::from_secs(5));
    let (reason, message) = fault(&fake);
    assert_eq!(reason, "ReferenceNotFound");
    assert!(message.contains("Secret clusters/kms-role, key credentials"), "{message}");
    let content = b"[default]\nrole_arn = arn:aws:iam::1:role/x\nregion = us-east-1\n";
    fake.put_secret(SOURCES, "kms-role", &[("credentials", content)]);
    pass(&fake).await;
    assert_eq!(spec(&fake)["keys"][0]["credentials"]["roleArn"], "arn:aws:iam::1:role/x");
    assert_stable(&fake).await;
}

#[tokio::test]
async fn what_it_refers_to_is_copied_and_followed_in_place() {
    let fake = world(ibm(&[1]));
    assert_eq!(pass(&fake).await, Duration::from_secs(5));
    assert!(fault(&fake).1.contains("Secret clusters/ibm, key iam_apikey: not found"));
    assert_eq!(fake.at(ENCRYPTION), None);
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one"), ("other", b"x")]);
    pass(&fake).await;
    let copy = "sidekey-source-ibm";
    assert_eq!(fake.content(PLANE, copy, "iam_apikey").unwrap(), b"one");
    assert_eq!(fake.content(PLANE, copy, "other"), None);
    assert_eq!(spec(&fake)["keys"][0]["files"][0]["secret"]["name"], copy);
    assert_stable(&fake).await;
    let before = spec(&fake);
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"two")]);
    pass(&fake).await;
    assert_eq!(fake.content(PLANE, copy, "iam_apikey").unwrap(), b"two");
    assert_eq!(spec(&fake), before, "no new key");
}

#[tokio::test]
async fn a_secret_of_another_with_the_name_of_a_copy_is_not_touched() {
    let fake = world(ibm(&[1]));
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one")]);
    fake.put_secret(PLANE, "sidekey-source-ibm", &[("mine", b"x")]);
    pass(&fake).await;
    assert_eq!(fault(&fake).0, "NotOurs");
    assert_eq!(fake.content(PLANE, "sidekey-source-ibm", "mine").unwrap(), b"x");
}

#[tokio::test]
async fn whoever_logs_in_by_role_alone_gets_the_token_for_it() {
    let fake = world(aws(K1));
    pass(&fake).await;
    let token = json!({
        "type": "aws", "file": "/var/run/secrets/openshift/serviceaccount/token",
        "audience": "openshift", "expiry": "1h",
        "serviceAccount": {"namespace": "kube-system", "name": "kms-provider"},
    });
    assert_eq!(spec(&fake)["tokens"], json!([token]));
    assert_stable(&fake).await;
    // Keys of a vendor that has left are still read with; so are those of before.
    edit(&fake, azure("1")).await;
    let mut other = token.clone();
    other["type"] = "azure".into();
    assert_eq!(spec(&fake)["tokens"], json!([token, other]));
    assert_stable(&fake).await;
}

#[tokio::test]
async fn managed_azure_logs_in_with_what_the_secrets_store_gives_its_pods() {
    let mut encryption = azure("1");
    let azure = encryption["kms"]["azure"].as_object_mut().unwrap();
    azure.remove("workloadIdentity");
    let login = json!({"credentialsSecretName": "kms-msi", "objectEncoding": "utf-8"});
    azure.insert("kms".to_owned(), login);
    let fake = world(encryption);
    pass(&fake).await;
    let token = json!({
        "type": "azure", "file": "/mnt/certs/kms-msi", "secretProviderClass": "managed-azure-kms",
    });
    assert_eq!(spec(&fake)["tokens"], json!([token]));
    let credentials = &spec(&fake)["keys"][0]["credentials"];
    assert_eq!(credentials, &json!({"identityFile": "/mnt/certs/kms-msi"}));
    assert_stable(&fake).await;
}

#[tokio::test]
async fn services_of_ibms_that_trust_each_other_need_a_profile_that_hypershift_does_not_name() {
    let mut encryption = ibm(&[1]);
    encryption["kms"]["ibmcloud"]["auth"] = json!({"type": "Managed", "managed": {}});
    let fake = world(encryption);
    pass(&fake).await;
    let (reason, message) = fault(&fake);
    assert!(reason == "InvalidSpec" && message.contains("profileName"), "{message}");
    assert_eq!(fake.at(ENCRYPTION), None);
    let file = "/etc/pod-identity-token/pod-identity-token";
    let login = format!("{{tokenFile: {file}, profileName: p}}");
    let settings = format!("vendors: {{ibmcloud: {{credentials: {login}}}}}");
    annotate(&fake, "sidekey.dev/settings", Some(&settings));
    pass(&fake).await;
    let token = json!({"type": "ibmcloud", "file": file, "podToken": {"expiry": "15m"}});
    assert_eq!(spec(&fake)["tokens"], json!([token]));
    assert_eq!(spec(&fake)["keys"][0]["credentials"]["profileName"], "p");
    assert_stable(&fake).await;
}

#[tokio::test]
async fn whoever_says_how_to_log_in_needs_no_token_and_may_say_another() {
    let settings = |text: &str| {
        let fake = world(aws(K1));
        annotate(&fake, "sidekey.dev/settings", Some(text));
        fake
    };
    let fake = settings("vendors: {aws: {credentials: {profile: x}}}");
    pass(&fake).await;
    assert!(spec(&fake).get("tokens").is_none(), "{}", spec(&fake));
    let fake = settings("tokens: [{type: aws, audience: sts, expiry: 2h}]");
    pass(&fake).await;
    assert_eq!(spec(&fake)["tokens"], json!([{"type": "aws", "audience": "sts", "expiry": "2h"}]));
    assert_stable(&fake).await;
    // Access keys in the place of the role: pods that have a minter keep it, until it is said
    // that there is to be none.
    let fake = world(aws(K1));
    pass(&fake).await;
    annotate(&fake, "sidekey.dev/settings", Some("vendors: {aws: {credentials: {profile: x}}}"));
    pass(&fake).await;
    assert_eq!(spec(&fake)["tokens"][0]["type"], "aws");
    let none = "{tokens: [], vendors: {aws: {credentials: {profile: x}}}}";
    annotate(&fake, "sidekey.dev/settings", Some(none));
    pass(&fake).await;
    assert!(spec(&fake).get("tokens").is_none(), "{}", spec(&fake));
    let fake = settings("tokens: [{type: aws, expiry: 1m}]");
    pass(&fake).await;
    assert!(fault(&fake).1.contains("tokens[0].expiry"), "{:?}", fault(&fake));
}
