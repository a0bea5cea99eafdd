#![allow(clippy::unwrap_used, clippy::expect_used)]

use sidekey_core::config::document;

use super::*;
use crate::render::{apiserver, hosted};

fn layout(profile: Profile, phase: Phase) -> Layout<'static> {
    Layout { profile, component: "openshift-kube-apiserver", revision: 1, phase }
}

/// An entry of a Secret, as text.
fn entry(object: &Value, name: &str) -> String {
    let text = object["data"][name].as_str().unwrap_or_else(|| panic!("no {name}"));
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

fn names_of(stanza: &Value) -> Vec<String> {
    let view = |provider: &Value| {
        let (kind, body) = provider.as_object().unwrap().iter().next().unwrap();
        body["name"].as_str().map_or_else(|| kind.clone(), str::to_owned)
    };
    stanza["providers"].as_array().unwrap().iter().map(view).collect()
}

const AWS: &str = "
metadata: {name: a, namespace: clusters}
spec:
  secretEncryption:
    type: kms
    kms:
      provider: AWS
      aws:
        region: us-east-1
        activeKey: {arn: 'arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012'}
        backupKey: {arn: 'arn:test'}
        auth: {awsKms: 'arn:aws:iam::1:role/kms'}
";

fn hosted(text: &str, files: &ResolvedFiles) -> SecretEncryption {
    hosted::parse(&document(text).unwrap()).unwrap().translate(files, &[]).unwrap()
}

#[test]
fn hypershifts_layout_is_its_own() {
    let files = ResolvedFiles::default();
    let encryption = hosted(AWS, &files);
    let list = objects(&encryption, &files, &layout(Profile::Hypershift, Phase::Settled)).unwrap();
    let config = list.last().unwrap();
    assert_eq!(config["metadata"]["name"], "kas-secret-encryption-config");
    let config = document(&entry(config, "config.yaml")).unwrap();
    let stanzas = config["resources"].as_array().unwrap();
    assert_eq!(stanzas.len(), 1);
    assert_eq!(stanzas[0]["resources"], json!(hosted::KMS_RESOURCES));
    let backup = hashes::aws_provider("arn:test");
    assert_eq!(names_of(&stanzas[0]), ["awskmskey-445794736", backup.as_str(), "identity"]);
    let kms = &stanzas[0]["providers"][0]["kms"];
    assert_eq!(kms["endpoint"], "unix:///var/run/awskmsactive.sock");
    assert_eq!((&kms["timeout"], &kms["apiVersion"]), (&json!("35s"), &json!("v2")));
    let backup = &stanzas[0]["providers"][1]["kms"];
    assert_eq!(backup["endpoint"], "unix:///var/run/awskmsbackup.sock");
    let credentials = entry(&list[0], "credentials");
    assert!(credentials.contains("role_arn = arn:aws:iam::1:role/kms\n"), "{credentials}");
    assert!(credentials.ends_with("region = us-east-1\n"), "{credentials}");
}

#[test]
fn identity_goes_first_where_asked_and_everything_else_follows() {
    let files = ResolvedFiles::default();
    let encryption = hosted(AWS, &files);
    for profile in [Profile::Hypershift, Profile::Openshift, Profile::Sidekey] {
        if profile == Profile::Openshift {
            continue; // It runs no plugin for AWS.
        }
        let layout = layout(profile, Phase::IdentityFirst);
        let list = objects(&encryption, &files, &layout).unwrap();
        let last = list.last().unwrap();
        let name = if profile == Profile::Hypershift { "config.yaml" } else { "encryption.yaml" };
        let config = document(&entry(last, name)).unwrap();
        let names = names_of(&config["resources"][0]);
        assert_eq!(names[0], "identity");
        assert!(names.len() > 1 && !names[1..].contains(&"identity".to_owned()), "{names:?}");
    }
}

#[test]
fn hypershifts_aescbc_keys_share_a_provider_and_are_named_by_their_hash() {
    let text = "
metadata: {name: a, namespace: clusters}
spec: {secretEncryption: {type: aescbc, aescbc: {activeKey: {name: new}, backupKey: {name: old}}}}
";
    let mut files = ResolvedFiles::default();
    for source in hosted::parse(&document(text).unwrap()).unwrap().sources() {
        let byte = if source.to_string().contains("new") { 1 } else { 2 };
        files.insert(source, Secret::new(vec![byte; 32]));
    }
    let encryption = hosted(text, &files);
    let list = objects(&encryption, &files, &layout(Profile::Hypershift, Phase::Settled)).unwrap();
    let config = document(&entry(&list[0], "config.yaml")).unwrap();
    let stanza = &config["resources"][0];
    assert_eq!(stanza["resources"], json!(["secrets"]));
    assert_eq!(names_of(stanza), ["aescbc", "identity"]);
    let keys = stanza["providers"][0]["aescbc"]["keys"].as_array().unwrap();
    assert_eq!(keys[0]["name"], hashes::aescbc_key(&[1; 32]).as_str());
    assert_eq!(keys[1]["name"], hashes::aescbc_key(&[2; 32]).as_str());
}

#[test]
fn ibms_keys_are_one_provider() {
    let key = |n: u32| {
        format!("{{crkID: c, instanceID: i, correlationID: o, url: 'https://x', keyVersion: {n}}}")
    };
    let text = format!(
        "metadata: {{name: a, namespace: c}}\nspec: {{secretEncryption: {{type: kms, kms: {{provider: IBMCloud, ibmcloud: {{region: eu, auth: {{type: Managed, managed: {{}}}}, keyList: [{}, {}]}}}}}}}}",
        key(1),
        key(2)
    );
    let files = ResolvedFiles::default();
    let encryption = hosted(&text, &files);
    let list = objects(&encryption, &files, &layout(Profile::Hypershift, Phase::Settled)).unwrap();
    let config = document(&entry(&list[0], "config.yaml")).unwrap();
    assert_eq!(names_of(&config["resources"][0]), ["ibmv2", "identity"]);
}

#[test]
fn azures_keys_have_hypershifts_names_and_its_configuration() {
    let azure = |login: &str| {
        let text = format!(
            "metadata: {{name: a, namespace: c}}\nspec: {{platform: {{azure: {{tenantID: t}}}}, secretEncryption: {{type: kms, kms: {{provider: Azure, azure: {{activeKey: {{keyVaultName: vault, keyName: key, keyVersion: '1'}}, backupKey: {{keyVaultName: vault, keyName: key, keyVersion: '0'}}, {login}}}}}}}}}"
        );
        let files = ResolvedFiles::default();
        let encryption = hosted(&text, &files);
        objects(&encryption, &files, &layout(Profile::Hypershift, Phase::Settled)).unwrap()
    };
    let client = "11111111-2222-3333-4444-555555555555";
    let list = azure(&format!("workloadIdentity: {{clientID: {client}}}"));
    let config = document(&entry(&list[1], "config.yaml")).unwrap();
    let names = names_of(&config["resources"][0]);
    assert_eq!((names.len(), names[0].as_str()), (3, "azure-be23a676"));
    let endpoint = |index: usize| &config["resources"][0]["providers"][index]["kms"]["endpoint"];
    assert_eq!(endpoint(0), "unix:///opt/azurekmsactive.socket");
    assert_eq!(endpoint(1), "unix:///opt/azurekmsbackup.socket");
    assert_eq!(list[0]["metadata"]["name"], "azure-kms-config");
    let file = document(&entry(&list[0], "cloud.conf")).unwrap();
    assert_eq!(
        file,
        json!({
            "cloud": "AzurePublicCloud", "tenantId": "t", "useManagedIdentityExtension": false,
            "useWorkloadIdentityExtension": true,
        })
    );
    let list = azure("kms: {credentialsSecretName: kms-msi, objectEncoding: utf-8}");
    let file = document(&entry(&list[0], "cloud.conf")).unwrap();
    assert_eq!(file["aadMSIDataPlaneIdentityPath"], "/mnt/certs/kms-msi");
}

#[test]
fn a_vault_of_another_cloud_and_a_login_of_another_kind_are_refused_for_hypershifts_plugin() {
    let key = |vault: &str, credentials: Value| {
        json!({
            "apiVersion": "sidekey.dev/v1alpha1", "kind": "SecretEncryption",
            "metadata": {"name": "a", "namespace": "c"},
            "spec": {"resources": ["secrets"], "keys": [{
                "id": 1, "type": "azure", "role": "write", "credentials": credentials,
                "kek": {"vault": vault, "key": "k", "version": "1"},
            }]},
        })
    };
    let rendered = |document: &Value| {
        let encryption = SecretEncryption::from_document(document).unwrap();
        let files = ResolvedFiles::default();
        objects(&encryption, &files, &layout(Profile::Hypershift, Phase::Settled))
    };
    let token = json!({"tenantId": "t", "clientId": "c", "federatedTokenFile": "/t"});
    let list = rendered(&key("https://v.vault.azure.cn", token.clone())).unwrap();
    let file = document(&entry(&list[0], "cloud.conf")).unwrap();
    assert_eq!(file["cloud"], "AzureChinaCloud", "the name alone would be that of another vault");
    let error = rendered(&key("https://v.vault.example", token)).unwrap_err();
    assert!(error.report().contains("vault is not of the cloud"), "{}", error.report());
    let secret = json!({"tenantId": "t", "clientId": "c", "clientSecretFile": "/s"});
    let error = rendered(&key("v", secret)).unwrap_err();
    assert!(error.report().contains("federatedTokenFile"), "{}", error.report());
}

#[test]
fn openshifts_layout_is_library_gos() {
    let digest = "0".repeat(64);
    let text = format!(
        "metadata: {{name: cluster}}\nspec: {{encryption: {{type: KMS, kms: {{type: Vault, vault: {{kmsPluginImage: 'registry.example/v@sha256:{digest}', vaultAddress: 'https://vault:8200', vaultKeyPath: transit/keys/kms, tls: {{caBundle: {{name: ca}}}}, authentication: {{type: AppRole, appRole: {{secret: {{name: approle}}}}}}}}}}}}}}"
    );
    let server = apiserver::parse(&document(&text).unwrap()).unwrap();
    let layout = layout(Profile::Openshift, Phase::Settled);
    let encryption = server.translate(Profile::Openshift, layout.component, KeyNumber(3), &[]);
    let mut files = ResolvedFiles::default();
    for source in encryption.sources() {
        files.insert(source.clone(), Secret::new(source.to_string().into_bytes()));
    }
    let list = objects(&encryption, &files, &layout).unwrap();
    let [key, config] = list.as_slice() else { panic!("{} objects", list.len()) };
    let document = document(&entry(config, "encryption-config")).unwrap();
    assert_eq!(names_of(&document["resources"][0]), ["3_configmaps", "identity"]);
    assert_eq!(names_of(&document["resources"][1]), ["3_secrets", "identity"]);
    let kms = &document["resources"][1]["providers"][0]["kms"];
    assert_eq!(kms["endpoint"], "unix:///var/run/kmsplugin/kms-3.sock");
    assert_eq!(kms["timeout"], "10s");
    let entries: Vec<&str> =
        config["data"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        entries,
        [
            "encryption-config",
            "kms-plugin-config-3",
            "kms-plugin-configmap-ca_ca-bundle.crt-3",
            "kms-plugin-secret-approle_role-id-3",
            "kms-plugin-secret-approle_secret-id-3",
        ]
    );
    let plugin: Value = serde_json::from_str(&entry(config, "kms-plugin-config-3")).unwrap();
    let written = sidekey_core::config::document(&text).unwrap();
    assert_eq!(plugin, written["spec"]["encryption"]["kms"]);
    assert_eq!(key["metadata"]["name"], "encryption-key-openshift-kube-apiserver-3");
    assert_eq!(key["metadata"]["annotations"][format!("{OPENSHIFT_PREFIX}/mode")], "KMS");
    assert_eq!(
        entry(key, &format!("{OPENSHIFT_PREFIX}-kms-plugin-secret-approle_secret-id")),
        "Secret approle, key secret-id"
    );
}

#[test]
fn a_plugin_of_the_users_is_reached_where_they_say() {
    let text = "metadata: {name: cluster}\nspec: {encryption: {type: KMS, kms: {endpoint: 'unix:///var/run/kmsplugin/socket.sock'}}}";
    let server = apiserver::parse(&document(text).unwrap()).unwrap();
    let layout = layout(Profile::Openshift, Phase::Settled);
    let encryption = server.translate(Profile::Openshift, layout.component, KeyNumber(1), &[]);
    let list = objects(&encryption, &ResolvedFiles::default(), &layout).unwrap();
    let config = document(&entry(list.last().unwrap(), "encryption-config")).unwrap();
    let kms = &config["resources"][0]["providers"][0]["kms"];
    assert_eq!(kms["endpoint"], "unix:///var/run/kmsplugin/socket.sock");
}

#[test]
fn what_a_layout_cannot_say_is_refused() {
    let files = ResolvedFiles::default();
    let mut encryption = hosted(AWS, &files);
    let openshift = objects(&encryption, &files, &layout(Profile::Openshift, Phase::Settled));
    assert!(openshift.unwrap_err().report().contains("no plugin for aws"));
    let mut third = encryption.spec.keys[0].clone();
    third.id = KeyNumber(9);
    encryption.spec.keys.push(third);
    let hypershift = objects(&encryption, &files, &layout(Profile::Hypershift, Phase::Settled));
    assert!(hypershift.unwrap_err().report().contains("one backup sidecar"));
}
