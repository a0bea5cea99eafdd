#![allow(clippy::unwrap_used, clippy::expect_used)]

mod copied;
mod crds;
mod fake;
mod hosted;
mod mirrored;
mod native;
mod numbered;
mod quiet;
mod server;

use std::time::Duration;

use fake::Fake;
use serde_json::{Value, json};

/// Of the HostedCluster of these tests, its SecretEncryption, and their namespaces.
const HOSTED: &str = "/apis/hypershift.openshift.io/v1beta1/namespaces/clusters/hostedclusters/a";
const ENCRYPTION: &str = "/apis/sidekey.dev/v1alpha1/namespaces/clusters-a/secretencryptions/a";
const SOURCES: &str = "clusters";
const PLANE: &str = "clusters-a";

const K1: &str = "arn:aws:kms:us-east-1:123456789012:key/1";
const K2: &str = "arn:aws:kms:us-east-1:123456789012:key/2";
const K3: &str = "arn:aws:kms:us-east-1:123456789012:key/3";

fn aws(active: &str) -> Value {
    json!({"type": "kms", "kms": {"provider": "AWS", "aws": {
        "region": "us-east-1", "activeKey": {"arn": active},
        "auth": {"awsKms": "arn:aws:iam::1:role/kms"},
    }}})
}

const CLIENT: &str = "11111111-2222-3333-4444-555555555555";

fn azure(version: &str) -> Value {
    json!({"type": "kms", "kms": {"provider": "Azure", "azure": {
        "activeKey": {"keyVaultName": "v", "keyName": "k", "keyVersion": version},
        "workloadIdentity": {"clientID": CLIENT},
    }}})
}

fn ibm(versions: &[u64]) -> Value {
    let list = versions.iter().map(|version| {
        json!({"crkID": "c", "instanceID": "i", "correlationID": "o", "url": "https://x", "keyVersion": version})
    });
    json!({"type": "kms", "kms": {"provider": "IBMCloud", "ibmcloud": {
        "region": "eu", "keyList": list.collect::<Vec<_>>(),
        "auth": {"type": "Unmanaged", "unmanaged": {"credentials": {"name": "ibm"}}},
    }}})
}

fn aescbc(secret: &str) -> Value {
    json!({"type": "aescbc", "aescbc": {"activeKey": {"name": secret}}})
}

/// A world with one HostedCluster that is handed over.
fn world(encryption: Value) -> Fake {
    let fake = Fake::default();
    fake.put(
        HOSTED,
        json!({
            "apiVersion": "hypershift.openshift.io/v1beta1",
            "kind": "HostedCluster",
            "metadata": {
                "name": "a", "namespace": SOURCES, "generation": 7,
                "annotations": {"sidekey.dev/manage": "true"},
                "managedFields": [{"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:secretEncryption": {}}}}],
            },
            "spec": {
                "platform": {"type": "Azure", "azure": {"tenantID": "tenant"}},
                "secretEncryption": encryption,
            },
        }),
    );
    fake
}

/// One pass over it.
async fn pass(fake: &Fake) -> Duration {
    let object = fake.object(HOSTED);
    super::hosted_cluster(&object, &fake.context()).await.unwrap()
}

async fn edit(fake: &Fake, encryption: Value) {
    fake.change(HOSTED, |hosted| hosted["spec"]["secretEncryption"] = encryption);
    pass(fake).await;
}

fn annotate(fake: &Fake, name: &str, value: Option<&str>) {
    fake.change(HOSTED, |hosted| {
        let map = hosted["metadata"]["annotations"].as_object_mut().unwrap();
        match value {
            Some(value) => map.insert(name.to_owned(), value.into()),
            None => map.remove(name),
        };
    });
}

fn spec(fake: &Fake) -> Value {
    fake.at(ENCRYPTION).unwrap()["spec"].clone()
}

/// Keys as `number vendor role`, by number.
fn keys(fake: &Fake) -> Vec<String> {
    let spec = spec(fake);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let keys = spec["keys"].as_array().unwrap().iter();
    let mut keys: Vec<String> = keys
        .map(|key| format!("{} {} {}", key["id"], text(&key["type"]), text(&key["role"])))
        .collect();
    keys.sort();
    keys
}

fn fingerprint(fake: &Fake, id: u64) -> String {
    let spec = spec(fake);
    let mut keys = spec["keys"].as_array().unwrap().iter();
    super::numbers::fingerprint(keys.find(|key| key["id"] == id).unwrap())
}

fn turn(fake: &Fake, id: u64) -> Value {
    json!({"id": id, "vendor": "aws", "fingerprint": fingerprint(fake, id)})
}

/// What the core would say.
fn status(fake: &Fake, status: Value) {
    fake.change(ENCRYPTION, |encryption| {
        encryption["status"] = status;
        encryption["status"]["observedGeneration"] = encryption["metadata"]["generation"].clone();
    });
}

/// The condition of this type on the HostedCluster.
fn condition(fake: &Fake, kind: &str) -> Option<Value> {
    let hosted = fake.at(HOSTED).unwrap();
    let mut list = hosted["status"]["conditions"].as_array()?.iter();
    list.find(|condition| condition["type"] == kind).cloned()
}

/// Why it is not translated.
fn fault(fake: &Fake) -> (String, String) {
    let condition = condition(fake, "SecretEncryptionConfigured").unwrap();
    assert_eq!(condition["status"], "False");
    let text = |name: &str| condition[name].as_str().unwrap().to_owned();
    (text("reason"), text("message"))
}

/// A pass over what has not changed writes nothing.
async fn assert_stable(fake: &Fake) {
    fake.forget_writes();
    pass(fake).await;
    assert_eq!(fake.lock().writes, [""; 0]);
}
