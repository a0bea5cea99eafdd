//! A real vault, where somebody names one: `SIDEKEY_TEST_AZURE` is the URL of a key,
//! `https://VAULT/keys/NAME`, and the other variables say who logs in.

use serde_json::json;
use sidekey_conformance::assert_conforms;
use sidekey_e2e::Scratch;

use crate::support::{launched, quick};

#[tokio::test(flavor = "multi_thread")]
async fn a_vault_that_is_given_conforms_to_kms_v2_where_one_is() {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(url) = variable("SIDEKEY_TEST_AZURE") else { return };
    let (vault, key) = url.split_once("/keys/").expect("https://VAULT/keys/NAME");
    let scratch = Scratch::new("azure").unwrap();
    let endpoint = format!("unix://{}", scratch.path().join("kms.sock").display());
    let document = quick(&[json!({
        "id": 1, "type": "azure", "listen": endpoint,
        "kek": {"vault": vault, "key": key},
        "credentials": {
            "tenantId": variable("SIDEKEY_TEST_AZURE_TENANT"),
            "clientId": variable("SIDEKEY_TEST_AZURE_CLIENT"),
            "clientSecretFile": variable("SIDEKEY_TEST_AZURE_SECRET_FILE"),
        },
    })]);
    let path = scratch.path().join("azure.yaml");
    assert_conforms(&launched(&path, &document, &endpoint).await.plugin()).await;
}
