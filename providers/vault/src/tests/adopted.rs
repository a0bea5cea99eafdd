//! Data as vault-kubernetes-kms stored it.

use std::collections::BTreeMap;

use serde_json::json;
use sidekey_core::{KeyId, Provider, Sealed};

use super::Secret;
use crate::testing::{Reply, Simulated, call, config, connect, document, sound};

/// From an object in etcd that the documentation of that plugin shows byte by byte: beside the
/// wrapped seed there is a key_id, in its first releases the second at which the version was made,
/// and no annotation.
const KEY_ID: &str = "1711242364";
const WRAPPED: &str =
    "vault:v1:mBAJGVV5rFx6GLOb3FP7J8sZyJ8/h6aH+FWUF/gSh0eA1NQEGn0Z08fjYES0L1y5EIP3gLrwa5KaD5Cc";
const MADE: i64 = 1_711_242_364;

#[tokio::test]
async fn what_it_stored_goes_to_vault_as_it_stands_and_with_nothing_beside_it() {
    let server = Simulated::start(|seen| match seen.is("/decrypt/") {
        true => Reply::new(200, &json!({"data": {"plaintext": "c2VlZA=="}})),
        false => sound(seen, "t", &[MADE]),
    })
    .await;
    let secret = Secret::new();
    let mut document = document(&[server.url()], &secret.path());
    // As that plugin's flags have it.
    document["settings"]["associatedData"] = false.into();
    let vault = connect(&config(&document)).await.unwrap();
    let stored = |key_id: &str| Sealed {
        key_id: KeyId::new(key_id).unwrap(),
        ciphertext: WRAPPED.into(),
        annotations: BTreeMap::new(),
    };
    for key_id in [KEY_ID, "1"] {
        let plaintext = vault.decrypt(&stored(key_id), &call()).await.unwrap();
        assert_eq!(plaintext.expose(), b"seed");
    }
    for asked in server.seen("/decrypt/") {
        assert_eq!(asked.body, json!({"ciphertext": WRAPPED}));
    }
    // The way back: what is stored is Vault's own text, wrapped with nothing beside it.
    let key_id = vault.key_id().await.unwrap();
    let ours = vault.encrypt(&key_id, b"seed", &call()).await.unwrap();
    let asked = server.seen("/encrypt/");
    assert!(asked.iter().all(|asked| asked.body.get("associated_data").is_none()));
    assert_eq!(ours.ciphertext, format!("vault:v1:{MADE}/c2VlZA=="));
}
