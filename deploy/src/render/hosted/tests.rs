#![allow(clippy::unwrap_used, clippy::expect_used)]

use sidekey_core::Secret;
use sidekey_core::config::document;

use super::*;

mod vendors;

const ARN: &str = "arn:aws:kms:us-east-1:123456789012:key/1";

fn hosted(encryption: &str, status: &str) -> Result<Hosted, sidekey_core::config::Problems> {
    let text = format!(
        "apiVersion: hypershift.openshift.io/v1beta1\nkind: HostedCluster\n\
         metadata: {{name: a, namespace: clusters}}\n\
         spec: {{platform: {{azure: {{tenantID: tenant}}}}, secretEncryption: {encryption}}}\n\
         status: {{secretEncryption: {status}}}\n"
    );
    parse(&document(&text).unwrap())
}

fn aws(active: &str, backup: Option<&str>) -> String {
    let backup = backup.map(|arn| format!(", backupKey: {{arn: '{arn}'}}")).unwrap_or_default();
    format!(
        "{{type: kms, kms: {{provider: AWS, aws: {{region: us-east-1, activeKey: {{arn: '{active}'}}{backup}, auth: {{awsKms: 'arn:aws:iam::1:role/kms'}}}}}}}}"
    )
}

fn roles(encryption: &SecretEncryption) -> Vec<(u64, Role)> {
    encryption.spec.keys.iter().map(|key| (key.id.0, key.role)).collect()
}

fn paths(encryption: &str) -> Vec<String> {
    let problems = hosted(encryption, "{}").unwrap_err();
    let mut paths: Vec<String> = problems
        .iter()
        .map(|p| p.path.trim_start_matches("spec.secretEncryption").to_owned())
        .collect();
    paths.sort();
    paths
}

#[test]
fn an_aws_cluster_is_translated_and_its_document_is_sound() {
    let hosted = hosted(&aws(ARN, None), "{}").unwrap();
    let encryption = hosted.translate(&ResolvedFiles::default(), &[]).unwrap();
    assert_eq!(encryption.namespace.as_deref(), Some("clusters-a"));
    assert_eq!(encryption.spec.keys[0].kek, json!({"key": ARN}));
    assert_eq!(encryption.spec.resources, KMS_RESOURCES);
    assert_eq!(SecretEncryption::from_document(&encryption.document()).unwrap(), encryption);
}

#[test]
fn a_backup_key_is_never_dropped() {
    let fresh = hosted(&aws(ARN, Some("arn:aws:kms:us-east-1:1:key/old")), "{}").unwrap();
    let encryption = fresh.translate(&ResolvedFiles::default(), &[]).unwrap();
    assert_eq!(roles(&encryption), [(1, Role::Read), (2, Role::Write)]);
    // HyperShift forgets it once its status says that the active key is up to date.
    let status =
        format!("{{activeKey: {{provider: AWS, aws: {{arn: '{ARN}', region: us-east-1}}}}}}");
    let later = hosted(&aws(ARN, Some("arn:aws:kms:us-east-1:1:key/old")), &status).unwrap();
    let encryption = later.translate(&ResolvedFiles::default(), &[]).unwrap();
    assert_eq!(roles(&encryption), [(1, Role::Read), (2, Role::Write)]);
}

#[test]
fn a_new_provider_keeps_the_old_key_as_a_reader_and_waits_for_promotion() {
    let azure = "{provider: Azure, azure: {keyVaultName: v, keyName: k, keyVersion: '1'}}";
    let status = format!("{{activeKey: {azure}}}");
    let changed = hosted(&aws(ARN, None), &status).unwrap();
    let encryption = changed.translate(&ResolvedFiles::default(), &[]).unwrap();
    let vendors: Vec<(&str, Role)> =
        encryption.spec.keys.iter().map(|key| (key.vendor.as_str(), key.role)).collect();
    assert_eq!(vendors, [("azure", Role::Write), ("aws", Role::Read)]);
    let target = format!("{{provider: AWS, aws: {{arn: '{ARN}', region: us-east-1}}}}");
    let status =
        format!("{{activeKey: {azure}, targetKey: {target}, history: [{{state: WritePromote}}]}}");
    let promoted = hosted(&aws(ARN, None), &status).unwrap();
    let encryption = promoted.translate(&ResolvedFiles::default(), &[]).unwrap();
    assert_eq!(roles(&encryption), [(1, Role::Read), (2, Role::Write)]);
}

#[test]
fn a_change_from_aescbc_to_kms_keeps_the_cipher() {
    let status = "{activeKey: {provider: AESCBC, aescbc: {secretRef: {name: old}, dataHash: x}}}";
    let changed = hosted(&aws(ARN, None), status).unwrap();
    assert!(changed.translate(&ResolvedFiles::default(), &[]).is_err(), "its key is not known");
    let mut files = ResolvedFiles::default();
    files.insert(changed.sources().remove(0), Secret::new(vec![7; 32]));
    let encryption = changed.translate(&files, &[]).unwrap();
    assert_eq!(encryption.spec.ciphers.len(), 1);
    assert_eq!(encryption.spec.write, Writer::Cipher(hashes::aescbc_key(&[7; 32])));
    assert_eq!(roles(&encryption), [(1, Role::Write)]);
}

#[test]
fn published_keys_keep_their_numbers_and_new_ones_get_the_next() {
    let known =
        KnownKey { id: KeyNumber(7), fingerprint: sidekey_core::fingerprint(&json!({"key": ARN})) };
    let gone = KnownKey { id: KeyNumber(9), fingerprint: "abcdabcd".into() };
    let hosted = hosted(&aws("arn:aws:kms:us-east-1:1:key/new", Some(ARN)), "{}").unwrap();
    let encryption = hosted.translate(&ResolvedFiles::default(), &[known, gone]).unwrap();
    assert_eq!(roles(&encryption), [(7, Role::Read), (10, Role::Write)]);
}

#[test]
fn the_rules_of_hypershifts_api_hold() {
    assert_eq!(paths("{type: x}"), [".type"]);
    assert_eq!(paths("{type: kms}"), [".kms"]);
    assert_eq!(paths("{type: aescbc, kms: {}}"), [".aescbc", ".kms"]);
    assert_eq!(paths("{type: kms, kms: {provider: GCP}}"), [".kms.provider"]);
    assert_eq!(paths(&aws("key", None)), [".kms.aws.activeKey.arn"]);
    assert_eq!(paths(&aws(ARN, None).replace("region: us-east-1,", "")), [".kms.aws.region"]);
    assert_eq!(
        paths(&aws(ARN, None).replace("activeKey", "activKey")),
        [".kms.aws.activKey", ".kms.aws.activeKey"]
    );
    let azure = "{type: kms, kms: {provider: Azure, azure: {activeKey: {keyVaultName: v, keyName: k, keyVersion: '1'}, backupKey: {keyVaultName: w, keyName: k, keyVersion: '0'}, kms: {}, workloadIdentity: {}, keyVaultType: X, keyVaultAccess: Y}}}";
    assert_eq!(
        paths(azure),
        [
            ".kms.azure",
            ".kms.azure.backupKey.keyVaultName",
            ".kms.azure.keyVaultAccess",
            ".kms.azure.keyVaultType",
        ]
    );
    let ibm = "{type: kms, kms: {provider: IBMCloud, ibmcloud: {region: eu, auth: {type: Unmanaged}, keyList: [{crkID: c, instanceID: i, correlationID: o, url: 'http://x', keyVersion: -1}]}}}";
    assert_eq!(
        paths(ibm),
        [
            ".kms.ibmcloud.auth.unmanaged.credentials.name",
            ".kms.ibmcloud.keyList[0].keyVersion",
            ".kms.ibmcloud.keyList[0].url"
        ]
    );
}

#[test]
fn fingerprints_are_hypershifts() {
    let azure = |managed_hsm| {
        let (vault, name, version) = ("v".into(), "k".into(), "1".into());
        Identity::Azure(AzureKey { vault, name, version, managed_hsm })
    };
    let sha = |text: &str| sidekey_core::hex(&sidekey_core::sha256(text.as_bytes()));
    assert_eq!(azure(false).fingerprint(), sha("v/k/1"));
    assert_eq!(azure(true).fingerprint(), sha("v/k/1/ManagedHSM"));
    assert_eq!(Identity::Aws { arn: ARN.into(), region: "x".into() }.fingerprint(), sha(ARN));
}

#[test]
fn whoever_rotates_instead_of_hypershift_writes_with_what_the_spec_wants() {
    let status = "{activeKey: {provider: AWS, aws: {arn: 'arn:aws:kms:us-east-1:1:key/old'}}}";
    let changed = hosted(&aws(ARN, None), status).unwrap().as_wanted();
    let encryption = changed.translate(&ResolvedFiles::default(), &[]).unwrap();
    assert_eq!(roles(&encryption), [(1, Role::Read), (2, Role::Write)]);
}

#[test]
fn a_key_of_the_status_is_the_same_key_as_in_the_spec() {
    // The status leaves the region out.
    let spec = aws("arn:aws:kms:eu-west-1:1:key/mrk-1", Some("arn:aws:kms:eu-west-1:1:key/mrk-0"));
    let fresh = hosted(&spec, "{}").unwrap();
    let status = "{activeKey: {provider: AWS, aws: {arn: 'arn:aws:kms:eu-west-1:1:key/mrk-1'}}}";
    assert_eq!(hosted(&spec, status).unwrap().keys, fresh.keys);
    let status = "{activeKey: {provider: AWS, aws: {arn: 'arn:aws:kms:eu-west-1:1:key/mrk-9'}}}";
    let keys = hosted(&spec, status).unwrap().keys;
    let region = |key: &HostedKey| key.identity.kek()["region"].clone();
    assert!(keys.iter().all(|key| region(key) == "us-east-1"), "{keys:?}");
}

#[test]
fn a_role_in_a_secret_is_named_and_must_be_read_before() {
    let text = aws(ARN, None).replace("arn:aws:iam::1:role/kms", "arn-from-secret::role");
    let mut found = hosted(&text, "{}").unwrap();
    assert_eq!(found.auth.aws_role_secret.as_deref(), Some("role"));
    assert!(found.translate(&ResolvedFiles::default(), &[]).is_err());
    found.auth.aws_role = Some("arn:aws:iam::1:role/kms".into());
    assert!(found.translate(&ResolvedFiles::default(), &[]).is_ok());
    let none = aws(ARN, None).replace("arn:aws:iam::1:role/kms", "arn-from-secret::");
    assert_eq!(paths(&none), [".kms.aws.auth.awsKms"]);
}

#[test]
fn what_the_status_shows_is_read_back_as_the_same_key() {
    let ibm = Identity::Ibm {
        crk: "c".into(),
        instance: "i".into(),
        version: 3,
        correlation: "o".into(),
        url: "https://x".into(),
        region: String::new(),
    };
    let (vault, name, version) = ("v".into(), "k".into(), "1".into());
    let azure = Identity::Azure(AzureKey { vault, name, version, managed_hsm: true });
    let old = Identity::Aescbc { secret: "old".into() };
    for identity in [ibm, azure, old] {
        let status = json!({"activeKey": identity.status("abc")}).to_string();
        let keys = hosted(&aws(ARN, None), &status).unwrap().keys;
        assert_eq!(keys[0].identity.fingerprint(), identity.fingerprint());
    }
}
