#![allow(clippy::unwrap_used, clippy::expect_used)]

use sidekey_core::config::document;

use super::*;

const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn server(encryption: &str) -> Result<ApiServer, Problems> {
    let text = format!(
        "apiVersion: config.openshift.io/v1\nkind: APIServer\nmetadata: {{name: cluster}}\nspec: {{encryption: {encryption}}}\n"
    );
    parse(&document(&text).unwrap())
}

fn vault() -> String {
    format!(
        "{{type: KMS, kms: {{type: Vault, vault: {{kmsPluginImage: 'registry.example/vault@sha256:{DIGEST}', vaultAddress: 'https://vault.example:8200', vaultNamespace: ns, vaultKeyPath: transit/keys/kms, tls: {{caBundle: {{name: ca}}, serverName: vault}}, authentication: {{type: AppRole, appRole: {{secret: {{name: approle}}}}}}}}}}}}"
    )
}

fn paths(encryption: &str) -> Vec<String> {
    let problems = server(encryption).unwrap_err();
    let mut paths: Vec<String> =
        problems.iter().map(|p| p.path.trim_start_matches("spec.encryption").to_owned()).collect();
    paths.sort();
    paths
}

#[test]
fn vault_becomes_a_key_whose_document_is_sound() {
    let server = server(&vault()).unwrap();
    let encryption =
        server.translate(Profile::Sidekey, "openshift-kube-apiserver", KeyNumber(1), &[]);
    let key = &encryption.spec.keys[0];
    assert_eq!(key.kek, json!({"keyPath": "transit/keys/kms", "namespace": "ns"}));
    assert_eq!(key.settings["tls"]["caFile"], "/etc/sidekey/ca-bundle-1.crt");
    assert_eq!(key.files.len(), 3);
    assert!(encryption.spec.images.is_empty(), "another plugin's image is none of ours");
    assert_eq!(SecretEncryption::from_document(&encryption.document()).unwrap(), encryption);
}

#[test]
fn another_key_path_gets_the_next_number_and_the_same_one_keeps_its_own() {
    let server = server(&vault()).unwrap();
    let id = |known: &[KnownKey]| {
        let encryption = server.translate(Profile::Sidekey, "x", KeyNumber(1), known);
        encryption.spec.keys[0].id.0
    };
    let other = KnownKey { id: KeyNumber(4), fingerprint: "aaaaaaaa".into() };
    assert_eq!(id(std::slice::from_ref(&other)), 5);
    let kek = json!({"keyPath": "transit/keys/kms", "namespace": "ns"});
    let same = KnownKey { id: KeyNumber(2), fingerprint: sidekey_core::fingerprint(&kek) };
    assert_eq!(id(&[other, same]), 2);
}

#[test]
fn every_type_is_read() {
    assert_eq!(server("{}").unwrap().mode, Mode::Identity);
    assert_eq!(server("{type: identity}").unwrap().mode, Mode::Identity);
    assert_eq!(server("{type: aesgcm}").unwrap().mode, Mode::Cipher(CipherKind::Aesgcm));
    let user =
        server("{type: KMS, kms: {endpoint: 'unix:///var/run/kmsplugin/socket.sock'}}").unwrap();
    assert_eq!(user.mode, Mode::Endpoint("unix:///var/run/kmsplugin/socket.sock".into()));
    let encryption = user.translate(Profile::Sidekey, "x", KeyNumber(1), &[]);
    assert!(encryption.vendors().is_empty(), "the plugin is the user's");
}

#[test]
fn the_rules_of_openshifts_api_hold() {
    assert_eq!(paths("{type: x}"), [".type"]);
    assert_eq!(paths("{type: KMS}"), [".kms"]);
    assert_eq!(paths("{type: aescbc, kms: {}}"), [".kms"]);
    assert_eq!(paths("{type: KMS, kms: {endpoint: 'tcp://x'}}"), [".kms.endpoint"]);
    assert_eq!(paths("{type: KMS, kms: {endpoint: 'unix:///a', type: Vault}}"), [".kms.endpoint"]);
    assert_eq!(paths(&vault().replace("type: Vault", "type: AWS")), [".kms.type"]);
    let wrong = vault()
        .replace(DIGEST, "latest")
        .replace("https://vault.example:8200", "https://user@vault/path")
        .replace("transit/keys/kms", "transit/kms")
        .replace("type: AppRole", "type: Token")
        .replace("serverName: vault", "serverNam: vault");
    assert_eq!(
        paths(&wrong),
        [
            ".kms.vault.authentication.type",
            ".kms.vault.kmsPluginImage",
            ".kms.vault.tls.serverNam",
            ".kms.vault.vaultAddress",
            ".kms.vault.vaultKeyPath"
        ]
    );
}
