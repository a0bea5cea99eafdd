//! From OpenShift's APIServer to its SecretEncryption.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::fake::secret;
use super::*;
use crate::model::SecretEncryption;

const SERVER: &str = "/apis/config.openshift.io/v1/apiservers/cluster";
const OURS: &str =
    "/apis/sidekey.dev/v1alpha1/namespaces/openshift-kube-apiserver/secretencryptions/cluster";
const NAMESPACE: &str = "openshift-kube-apiserver";

fn server(encryption: Value) -> Fake {
    let fake = Fake::default();
    fake.put(
        SERVER,
        json!({
            "apiVersion": "config.openshift.io/v1",
            "kind": "APIServer",
            "metadata": {
                "name": "cluster", "generation": 3,
                "annotations": {"sidekey.dev/manage": "true"},
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {"audit": {}, "encryption": encryption},
        }),
    );
    fake
}

fn vault(path: &str) -> Value {
    let image = format!("registry.example/vault@sha256:{}", "0".repeat(64));
    json!({"type": "KMS", "kms": {"type": "Vault", "vault": {
        "kmsPluginImage": image, "vaultAddress": "https://vault:8200", "vaultKeyPath": path,
        "tls": {"caBundle": {"name": "ca"}},
        "authentication": {"type": "AppRole", "appRole": {"secret": {"name": "approle"}}},
    }}})
}

async fn look(fake: &Fake) -> Duration {
    super::super::api_server(&fake.object(SERVER), &fake.context()).await.unwrap()
}

async fn want(fake: &Fake, encryption: Value) {
    fake.change(SERVER, |server| server["spec"]["encryption"] = encryption);
    look(fake).await;
}

fn now(fake: &Fake) -> Value {
    fake.at(OURS).unwrap()["spec"].clone()
}

async fn assert_quiet(fake: &Fake) {
    fake.forget_writes();
    look(fake).await;
    assert_eq!(fake.lock().writes, [""; 0]);
}

fn first_condition(fake: &Fake) -> Value {
    fake.at(SERVER).unwrap()["status"]["conditions"][0].clone()
}

#[tokio::test]
async fn vault_is_translated_and_what_it_refers_to_is_copied() {
    let fake = server(vault("transit/keys/a"));
    assert_eq!(look(&fake).await, Duration::from_secs(5));
    let told = first_condition(&fake);
    let message = told["message"].as_str().unwrap();
    for part in [
        "ConfigMap openshift-config/ca, key ca-bundle.crt",
        "Secret openshift-config/approle, key role-id",
    ] {
        assert!(message.contains(part), "{message}");
    }
    fake.put_secret("openshift-config", "approle", &[("role-id", b"r"), ("secret-id", b"s")]);
    fake.put(
        "/api/v1/namespaces/openshift-config/configmaps/ca",
        json!({"metadata": {"name": "ca"}, "data": {"ca-bundle.crt": "pem"}}),
    );
    look(&fake).await;
    SecretEncryption::from_document(&fake.at(OURS).unwrap()).unwrap();
    let spec = now(&fake);
    assert_eq!(spec["keys"][0]["kek"], json!({"keyPath": "transit/keys/a"}));
    assert_eq!(spec["controlPlane"]["selector"]["app"], "openshift-kube-apiserver");
    assert_eq!(fake.content(NAMESPACE, "sidekey-bundle-ca", "ca-bundle.crt").unwrap(), b"pem");
    assert_eq!(fake.content(NAMESPACE, "sidekey-source-approle", "secret-id").unwrap(), b"s");
    assert_quiet(&fake).await;
    want(&fake, vault("transit/keys/b")).await;
    assert_eq!(now(&fake)["keys"][0]["id"], 2);
    want(&fake, vault("transit/keys/a")).await;
    assert_eq!(now(&fake)["keys"][0]["id"], 3);
    assert_quiet(&fake).await;
}

#[tokio::test]
async fn ciphers_are_made_once_and_never_under_the_same_name() {
    let fake = server(json!({"type": "aescbc"}));
    look(&fake).await;
    let first = now(&fake);
    assert_eq!(
        (&first["write"], &first["ciphers"][0]["type"]),
        (&json!("aescbc-1"), &json!("aescbc"))
    );
    let name = first["ciphers"][0]["secret"]["name"].as_str().unwrap().to_owned();
    let key = fake.content(NAMESPACE, &name, "key").unwrap();
    assert_eq!(key.len(), 32);
    assert_quiet(&fake).await;
    want(&fake, json!({"type": "aesgcm"})).await;
    assert_eq!(now(&fake)["write"], "aesgcm-2");
    want(&fake, json!({"type": "identity"})).await;
    assert_eq!(
        (&now(&fake)["write"], now(&fake)["ciphers"].as_array().unwrap().len()),
        (&json!("identity"), 2)
    );
    want(&fake, json!({"type": "aescbc"})).await;
    assert_eq!(now(&fake)["write"], "aescbc-3");
    assert_eq!(fake.content(NAMESPACE, &name, "key").unwrap(), key, "what it wrote stays readable");
    assert_quiet(&fake).await;
    // Somebody was interrupted after the key was made: it is the one that is used.
    fake.lock().objects.remove(OURS);
    fake.forget_writes();
    look(&fake).await;
    assert_eq!(fake.content(NAMESPACE, &name, "key").unwrap(), key);
}

#[tokio::test]
async fn a_plugin_of_others_is_known_by_its_socket() {
    let kms =
        |socket: &str| json!({"type": "KMS", "kms": {"endpoint": format!("unix:///{socket}")}});
    let fake = server(kms("a.sock"));
    look(&fake).await;
    let key = now(&fake)["keys"][0].clone();
    assert_eq!(
        (&key["id"], &key["type"], &key["listen"]),
        (&json!(1), &json!("external"), &json!("unix:///a.sock"))
    );
    assert_quiet(&fake).await;
    want(&fake, kms("b.sock")).await;
    assert_eq!(now(&fake)["keys"][0]["id"], 2);
}

#[tokio::test]
async fn nothing_is_made_where_nothing_is_encrypted() {
    for encryption in [json!({}), json!({"type": "identity"})] {
        let fake = server(encryption);
        look(&fake).await;
        assert!(fake.lock().writes.is_empty());
    }
    let fake = server(json!({"type": "none"}));
    look(&fake).await;
    assert_eq!(first_condition(&fake)["reason"], "InvalidSpec");
    want(&fake, json!({"type": "identity"})).await;
    assert_eq!(first_condition(&fake), Value::Null, "it is right again");
}

#[tokio::test]
async fn what_openshift_encrypted_itself_stays_readable_or_is_refused() {
    let native = |fake: &Fake, provider: &str| {
        let config = format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{provider}, {{identity: {{}}}}]}}]"
        );
        let name = "encryption-config-openshift-kube-apiserver";
        fake.put_secret(
            "openshift-config-managed",
            name,
            &[("encryption-config", config.as_bytes())],
        );
    };
    let fake = server(json!({"type": "identity"}));
    native(
        &fake,
        &format!("{{aescbc: {{keys: [{{name: '1', secret: '{}'}}]}}}}", STANDARD.encode([3; 32])),
    );
    look(&fake).await;
    assert_eq!(
        (&now(&fake)["ciphers"][0]["name"], &now(&fake)["write"]),
        (&json!("1"), &json!("identity"))
    );
    let fake = server(json!({"type": "aescbc"}));
    native(&fake, "{kms: {name: 1_secrets, apiVersion: v2, endpoint: 'unix:///x.sock'}}");
    look(&fake).await;
    assert_eq!(first_condition(&fake)["reason"], "UnknownProviderName");
    assert_eq!(fake.at(OURS), None);
}

#[tokio::test]
async fn its_status_shows_the_conditions_and_every_mistake() {
    let fake = server(json!({"type": "aescbc"}));
    look(&fake).await;
    let said = json!({"type": "SecretEncryptionHealthy", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    fake.change(OURS, |ours| ours["status"] = json!({"conditions": [said]}));
    look(&fake).await;
    assert_eq!(first_condition(&fake)["type"], "SecretEncryptionHealthy");
    assert!(fake.at(SERVER).unwrap()["status"].get("secretEncryption").is_none());
    want(&fake, json!({"type": "KMS", "kms": {"type": "AWS"}})).await;
    let conditions = fake.at(SERVER).unwrap()["status"]["conditions"].clone();
    let wrong =
        conditions.as_array().unwrap().iter().find(|c| c["reason"] == "InvalidSpec").unwrap();
    for part in ["spec.encryption.kms.type", "spec.encryption.kms.vault"] {
        assert!(wrong["message"].as_str().unwrap().contains(part), "{wrong}");
    }
    assert_eq!(now(&fake)["write"], "aescbc-1");
    assert!(fake.at(&secret(NAMESPACE, "sidekey-cipher-aescbc-1")).is_some());
}
