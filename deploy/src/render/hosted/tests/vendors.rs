//! Azure and IBM, and what people take for HyperShift's API.

use super::*;

const CLIENT: &str = "11111111-2222-3333-4444-555555555555";

fn azure(login: &str) -> String {
    let key = |version: u32| format!("{{keyVaultName: v, keyName: k, keyVersion: '{version}'}}");
    format!(
        "{{type: kms, kms: {{provider: Azure, azure: {{activeKey: {}, backupKey: {}, {login}}}}}}}",
        key(2),
        key(1)
    )
}

fn translated(encryption: &str) -> SecretEncryption {
    let hosted = hosted(encryption, "{}").unwrap_or_else(|wrong| panic!("{wrong}"));
    let encryption = hosted.translate(&ResolvedFiles::default(), &[]).unwrap();
    assert_eq!(SecretEncryption::from_document(&encryption.document()).unwrap(), encryption);
    encryption
}

/// What is wrong, each with its path.
fn mistakes(encryption: &str) -> String {
    hosted(encryption, "{}").unwrap_err().to_string()
}

#[test]
fn an_azure_cluster_with_a_workload_identity_logs_in_with_a_token_of_its_own() {
    let encryption = translated(&azure(&format!("workloadIdentity: {{clientID: {CLIENT}}}")));
    assert_eq!(roles(&encryption), [(1, Role::Read), (2, Role::Write)]);
    let key = &encryption.spec.keys[1];
    assert_eq!(key.kek, json!({"vault": "v", "key": "k", "version": "2"}));
    assert_eq!(
        key.credentials,
        json!({"tenantId": "tenant", "clientId": CLIENT, "federatedTokenFile": TOKEN})
    );
    assert_eq!(
        (&key.settings, key.listen.as_str()),
        (&Value::Null, "unix:///var/run/sidekey/azure/kms-2.sock")
    );
    let token = crate::model::Token::told(key).unwrap();
    assert_eq!(token, crate::model::Token::of("azure"));
}

#[test]
fn managed_azure_logs_in_with_the_file_of_its_secrets_store() {
    let login = "kms: {credentialsSecretName: kms-msi, objectEncoding: utf-8}, keyVaultType: ManagedHSM, keyVaultAccess: Private";
    let key = translated(&azure(login)).spec.keys.remove(1);
    assert_eq!(key.kek["managedHsm"], true);
    assert_eq!(key.credentials, json!({"identityFile": "/mnt/certs/kms-msi"}));
    let token = crate::model::Token::told(&key).unwrap();
    assert_eq!(
        json!(token),
        json!({"type": "azure", "file": "/mnt/certs/kms-msi", "secretProviderClass": "managed-azure-kms"})
    );
}

#[test]
fn a_cloud_of_its_own_is_said_and_one_whose_addresses_nobody_knows_is_refused() {
    let at = |cloud: &str| {
        let text = azure(&format!("workloadIdentity: {{clientID: {CLIENT}}}"));
        let document = json!({
            "metadata": {"name": "a", "namespace": "c"},
            "spec": {
                "secretEncryption": document(&text).unwrap(),
                "platform": {"azure": {"tenantID": "t", "cloud": cloud}},
            },
        });
        parse(&document)
    };
    let key = |cloud: &str| {
        at(cloud).unwrap().translate(&ResolvedFiles::default(), &[]).unwrap().spec.keys.remove(0)
    };
    assert_eq!(key("AzureUSGovernmentCloud").settings, json!({"cloud": "AzureUSGovernmentCloud"}));
    assert_eq!(key("AzurePublicCloud").settings, Value::Null);
    let wrong = at("AzureStackCloud").unwrap_err().to_string();
    assert!(wrong.contains("spec.platform.azure.cloud") && wrong.contains("kek.vault"), "{wrong}");
}

#[test]
fn a_workload_identity_needs_a_tenant_and_a_client() {
    let text = azure(&format!("workloadIdentity: {{clientID: {CLIENT}}}"));
    let document = json!({
        "metadata": {"name": "a", "namespace": "c"},
        "spec": {"secretEncryption": document(&text).unwrap()},
    });
    let wrong = parse(&document).unwrap_err().to_string();
    assert!(wrong.contains("spec.platform.azure.tenantID: is required"), "{wrong}");
    let wrong = mistakes(&azure("workloadIdentity: {}"));
    assert!(wrong.contains("workloadIdentity.clientID: is required"), "{wrong}");
    for name in ["../x", "a/b", "a b"] {
        let wrong = mistakes(&azure(&format!("kms: {{credentialsSecretName: '{name}'}}")));
        assert!(wrong.contains("kms.credentialsSecretName: has more in it"), "{wrong}");
    }
}

fn ibm(auth: &str, keys: &[(u32, &str)]) -> String {
    let list: Vec<String> = keys
        .iter()
        .map(|(version, crk)| {
            format!(
                "{{crkID: {crk}, instanceID: i, correlationID: o, url: 'https://eu-de.kms.cloud.ibm.com', keyVersion: {version}}}"
            )
        })
        .collect();
    format!(
        "{{type: kms, kms: {{provider: IBMCloud, ibmcloud: {{region: eu-de, auth: {auth}, keyList: [{}]}}}}}}",
        list.join(", ")
    )
}

const UNMANAGED: &str = "{type: Unmanaged, unmanaged: {credentials: {name: ibm}}}";

#[test]
fn every_root_key_of_ibms_list_counts_and_the_highest_version_writes() {
    let encryption = translated(&ibm(UNMANAGED, &[(2, "new"), (1, "old")]));
    assert_eq!(roles(&encryption), [(1, Role::Read), (2, Role::Write)]);
    let key = &encryption.spec.keys[1];
    assert_eq!(key.kek, json!({"instance": "i", "key": "new"}));
    let settings = json!({"address": "https://eu-de.kms.cloud.ibm.com", "correlationId": "o"});
    assert_eq!(key.settings, settings);
    assert_eq!(key.credentials, json!({"apiKeyFile": "/etc/sidekey/iam_apikey"}));
    assert_eq!(encryption.sources().len(), 1);
}

#[test]
fn one_root_key_under_several_versions_of_hypershifts_count_is_one_key() {
    let encryption = translated(&ibm(UNMANAGED, &[(3, "same"), (2, "other"), (1, "same")]));
    assert_eq!(roles(&encryption), [(2, Role::Read), (1, Role::Write)]);
    let text = ibm(UNMANAGED, &[(2, "same"), (1, "same")]);
    let known = translated(&text).spec.keys.remove(0).fingerprint();
    let known = KnownKey { id: KeyNumber(7), fingerprint: known };
    let hosted = hosted(&text, "{}").unwrap();
    let encryption = hosted.translate(&ResolvedFiles::default(), &[known]).unwrap();
    assert_eq!(roles(&encryption), [(7, Role::Write)]);
}

#[test]
fn what_a_hosted_cluster_cannot_say_of_ibms_login_is_said_with_what_to_write() {
    let managed = hosted(&ibm("{type: Managed, managed: {}}", &[(1, "c")]), "{}").unwrap();
    let (vendor, text) = managed.unsaid_login().unwrap();
    assert_eq!(vendor, "ibmcloud");
    assert!(text.contains("auth.type: Managed") && text.contains("profileName: NAME"), "{text}");
    let unmanaged = hosted(&ibm(UNMANAGED, &[(1, "c")]), "{}").unwrap();
    assert_eq!(unmanaged.unsaid_login(), None);
    assert_eq!(hosted(&aws(ARN, None), "{}").unwrap().unsaid_login(), None);
}

#[test]
fn a_description_of_aws_with_other_names_is_refused_with_the_right_ones() {
    let wrong = mistakes(
        "{type: KMS, kms: {provider: AWS, aws: {region: us-east-1, activeKey: {arn: 'arn:aws:kms:us-east-1:123456789012:key/mrk-abcdef1234567890'}, auth: {awsKMSRoleARN: 'arn:aws:iam::123456789012:role/my-kms-role'}}}}",
    );
    for line in [
        r#"spec.secretEncryption.type: "KMS" is no type of HyperShift's: write type: kms"#,
        "spec.secretEncryption.kms.aws.auth.awsKMSRoleARN: HyperShift calls it awsKms: write auth: {awsKms: ARN-OF-THE-ROLE}",
    ] {
        assert!(wrong.contains(line), "{wrong}");
    }
    assert_eq!(wrong.lines().count(), 2, "{wrong}");
    // With what it says it is taken.
    assert!(
        hosted(&aws("arn:aws:kms:us-east-1:123456789012:key/mrk-abcdef1234567890", None), "{}")
            .is_ok()
    );
}

#[test]
fn a_description_of_azure_with_a_certificate_is_refused_with_what_takes_its_place() {
    let key = "{keyVaultName: my-keyvault, keyName: my-etcd-key, keyVersion: 1234567890abcdef}";
    let example = |kind: &str, login: &str| {
        format!(
            "{{type: {kind}, kms: {{provider: Azure, azure: {{activeKey: {key}, kms: {login}}}}}}}"
        )
    };
    let login = "{clientID: '...', tenantID: '...', certificateName: '...'}";
    let wrong = mistakes(&example("KMS", login));
    let path = "spec.secretEncryption.kms.azure.kms";
    for line in [
        r#"spec.secretEncryption.type: "KMS" is no type of HyperShift's: write type: kms"#
            .to_owned(),
        format!("{path}.clientID: is no GUID"),
        format!("{path}.tenantID: is no field of HyperShift's: leave it out"),
        format!(
            "{path}.certificateName: HyperShift has credentialsSecretName in its place: write kms: {{credentialsSecretName: NAME, objectEncoding: utf-8}}"
        ),
    ] {
        assert!(wrong.contains(&line), "{wrong}");
    }
    assert_eq!(wrong.lines().count(), 4, "{wrong}");
    let right = "{credentialsSecretName: NAME, objectEncoding: utf-8}";
    assert!(hosted(&example("kms", right), "{}").is_ok());
}

#[test]
fn a_vendor_that_hypershift_lacks_is_refused_with_the_key_to_write() {
    for gcp in ["", ", gcp: {keyName: 'projects/p/locations/l/keyRings/r/cryptoKeys/k'}"] {
        let wrong = mistakes(&format!("{{type: kms, kms: {{provider: GCP{gcp}}}}}"));
        assert!(wrong.contains("kms.provider") && wrong.contains("type: gcp"), "{wrong}");
    }
    let wrong = mistakes("{type: kms, kms: {provider: Vault}}");
    assert!(!wrong.contains("gcp"), "{wrong}");
}
