//! Clusters that HyperShift encrypted before.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::render::hashes;

fn native(fake: &Fake, providers: &str) {
    let config = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets, widgets.example.com]\n  providers: [{providers}, {{identity: {{}}}}]\n"
    );
    let name = "kas-secret-encryption-config";
    fake.put_secret(PLANE, name, &[("config.yaml", config.as_bytes())]);
}

fn kms(name: &str) -> String {
    format!("{{kms: {{name: {name}, apiVersion: v2, endpoint: 'unix:///x.sock', timeout: 35s}}}}")
}

/// Adopted names with their keys, by key.
fn adopted(fake: &Fake) -> Vec<(String, u64)> {
    let spec = spec(fake);
    let list = spec["adopt"].as_array().cloned().unwrap_or_default();
    let mut list: Vec<(String, u64)> = list
        .iter()
        .map(|a| (a["name"].as_str().unwrap().to_owned(), a["key"].as_u64().unwrap()))
        .collect();
    list.sort_by_key(|(_, key)| *key);
    list
}

#[tokio::test]
async fn names_that_data_carries_are_adopted_with_their_key_and_stay() {
    let mut both = aws(K2);
    both["kms"]["aws"]["backupKey"] = json!({"arn": K1});
    let fake = world(both);
    let (one, two) = (hashes::aws_provider(K1), hashes::aws_provider(K2));
    native(&fake, &format!("{}, {}", kms(&two), kms(&one)));
    pass(&fake).await;
    assert_eq!(adopted(&fake), [(one.clone(), 1), (two.clone(), 2)]);
    let now = spec(&fake);
    assert_eq!(
        now["adopt"][0]["listen"],
        format!(
            "unix:///var/run/kmsplugin/adopt-{}.sock",
            now["adopt"][0]["name"].as_str().unwrap()
        )
    );
    assert!(now["resources"].as_array().unwrap().contains(&json!("widgets.example.com")));
    assert_stable(&fake).await;
    // Nobody names the old key any more; its data is still there.
    status(&fake, json!({"activeKey": turn(&fake, 2)}));
    edit(&fake, aws(K3)).await;
    edit(&fake, aws(K3)).await;
    assert_eq!(adopted(&fake), [(one.clone(), 1), (two.clone(), 2)]);
    let now = keys(&fake);
    assert!(
        now.contains(&"1 aws read".to_owned()) && now.contains(&"2 aws read".to_owned()),
        "{now:?}"
    );
    assert_stable(&fake).await;
    let retired =
        json!([{"id": one, "type": "aws", "fingerprint": "x", "retiredTime": "t", "advice": "a"}]);
    status(&fake, json!({"activeKey": turn(&fake, 3), "retired": retired}));
    pass(&fake).await;
    assert_eq!(adopted(&fake), [(two, 2)]);
    assert!(!keys(&fake).contains(&"1 aws read".to_owned()), "{:?}", keys(&fake));
}

#[tokio::test]
async fn a_name_that_no_key_is_known_for_is_said_and_nothing_happens() {
    let fake = world(aws(K1));
    let stranger = hashes::aws_provider(K2);
    native(&fake, &format!("{}, {}", kms(&hashes::aws_provider(K1)), kms(&stranger)));
    pass(&fake).await;
    let (reason, message) = fault(&fake);
    assert_eq!(reason, "UnknownProviderName");
    assert!(message.contains(&stranger) && message.contains("backupKey"), "{message}");
    assert_eq!(fake.at(ENCRYPTION), None);
    native(&fake, &kms(&hashes::aws_provider(K1)).replace("v2", "v1"));
    pass(&fake).await;
    assert!(fault(&fake).1.contains("KMS v1"), "{}", fault(&fake).1);
    fake.put_secret(PLANE, "kas-secret-encryption-config", &[("config.yaml", b"kind: x")]);
    pass(&fake).await;
    assert_eq!(fault(&fake).0, "UnknownProviderName");
    assert_eq!(fake.at(ENCRYPTION), None);
}

#[tokio::test]
async fn hypershifts_own_status_names_a_key_that_stays_readable() {
    let fake = world(aws(K2));
    let active = json!({"provider": "AWS", "aws": {"arn": K1}});
    fake.change(HOSTED, |hosted| {
        hosted["status"] = json!({"secretEncryption": {"activeKey": active}})
    });
    native(&fake, &kms(&hashes::aws_provider(K1)));
    pass(&fake).await;
    assert_eq!(keys(&fake), ["1 aws read", "2 aws write"]);
    assert_eq!(adopted(&fake), [(hashes::aws_provider(K1), 1)]);
    assert_stable(&fake).await;
}

#[tokio::test]
async fn a_key_of_another_provider_needs_a_login() {
    let fake = world(aws(K1));
    let vault = json!({"keyVaultName": "v", "keyName": "k", "keyVersion": "1"});
    let active = json!({"provider": "Azure", "azure": vault});
    fake.change(HOSTED, |hosted| {
        hosted["status"] = json!({"secretEncryption": {"activeKey": active}})
    });
    let (vault, name, version) = ("v".to_owned(), "k".to_owned(), "1".to_owned());
    let key = crate::model::AzureKey { vault, name, version, managed_hsm: false };
    native(&fake, &kms(&hashes::azure_provider(&key)));
    pass(&fake).await;
    let (reason, message) = fault(&fake);
    assert!(reason == "InvalidSpec" && message.contains("azure"), "{message}");
    let login = "vendors: {azure: {credentials: {tenantId: t, clientId: c, federatedTokenFile: /run/t/token}}}";
    annotate(&fake, "sidekey.dev/settings", Some(login));
    pass(&fake).await;
    assert_eq!(keys(&fake), ["1 azure read", "2 aws write"]);
    assert_eq!(adopted(&fake)[0].1, 1);
}

#[tokio::test]
async fn what_ibms_own_plugin_stored_is_not_given_to_a_provider_that_cannot_read_it() {
    let fake = world(ibm(&[1]));
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one")]);
    native(&fake, &kms("ibmv2"));
    pass(&fake).await;
    let (reason, message) = fault(&fake);
    assert_eq!(reason, "UnknownProviderName");
    assert!(message.contains("type external") && message.contains("ownData: true"), "{message}");
    assert_eq!(fake.at(ENCRYPTION), None);
    annotate(&fake, "sidekey.dev/settings", Some("vendors: {ibmcloud: {ownData: true}}"));
    pass(&fake).await;
    assert_eq!(adopted(&fake), [("ibmv2".to_owned(), 1)]);
    assert_stable(&fake).await;
}

#[tokio::test]
async fn of_several_keys_under_one_name_none_is_given_up_before_all_is_under_the_newest() {
    let mut keys = ibm(&[1, 2]);
    keys["kms"]["ibmcloud"]["keyList"][1]["crkID"] = "d".into();
    let fake = world(keys);
    fake.put_secret(SOURCES, "ibm", &[("iam_apikey", b"one")]);
    native(&fake, &kms("ibmv2"));
    annotate(&fake, "sidekey.dev/settings", Some("vendors: {ibmcloud: {ownData: true}}"));
    pass(&fake).await;
    let (reason, message) = fault(&fake);
    assert_eq!(reason, "UnknownProviderName");
    assert!(message.contains("rewritten under the newest"), "{message}");
    assert_eq!(fake.at(ENCRYPTION), None);
}

#[tokio::test]
async fn ciphers_that_hypershift_had_stay() {
    let fake = world(aws(K1));
    let secret = STANDARD.encode([9; 32]);
    native(&fake, &format!("{{aescbc: {{keys: [{{name: key-9, secret: '{secret}'}}]}}}}"));
    pass(&fake).await;
    let now = spec(&fake);
    assert_eq!((&now["ciphers"][0]["name"], &now["write"]), (&json!("key-9"), &json!("keys")));
    let copy = now["ciphers"][0]["secret"]["name"].as_str().unwrap();
    assert_eq!(fake.content(PLANE, copy, "key").unwrap(), [9; 32]);
    assert_stable(&fake).await;
}
