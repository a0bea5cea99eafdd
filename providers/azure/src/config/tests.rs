use serde_json::{Value, json};

use super::*;

fn place(document: &Value) -> Result<Place, String> {
    let config: Config = serde_json::from_value(document.clone()).unwrap();
    let mut problems = Problems::default();
    config.check(&mut problems);
    assert!(problems.is_empty(), "{problems}");
    let files = config.files();
    let files = Files::read(files.iter().map(PathBuf::as_path)).unwrap();
    config.place(&files).map_err(|error| error.report())
}

fn document(vault: &str, settings: &Value) -> Value {
    let credentials = json!({"managedIdentity": true});
    json!({"kek": {"vault": vault, "key": "etcd"}, "settings": settings, "credentials": credentials})
}

#[test]
fn a_name_or_a_url_leads_to_the_vault_its_authority_and_what_tokens_are_for() {
    for (vault, cloud, host, authority) in [
        ("kek", "AzurePublicCloud", "kek.vault.azure.net", "https://login.microsoftonline.com"),
        (
            "kek",
            "AzureUSGovernment",
            "kek.vault.usgovcloudapi.net",
            "https://login.microsoftonline.us",
        ),
        ("https://KEK.vault.azure.cn/", "", "kek.vault.azure.cn", "https://login.chinacloudapi.cn"),
        (
            "https://kek.managedhsm.azure.net",
            "",
            "kek.managedhsm.azure.net",
            "https://login.microsoftonline.com",
        ),
    ] {
        let place = place(&document(vault, &json!({"cloud": cloud}))).unwrap();
        assert_eq!(
            (place.host.as_str(), place.authority.address.to_string().as_str()),
            (host, authority)
        );
        assert_eq!(place.endpoint.to_string(), format!("https://{host}"));
        let domain = host.split_once('.').unwrap().1;
        assert_eq!(place.resource, format!("https://{domain}"));
        assert_eq!(place.metadata.to_string(), METADATA);
    }
    let mut hsm = document("kek", &json!({}));
    hsm["kek"]["managedHsm"] = json!(true);
    assert_eq!(place(&hsm).unwrap().host, "kek.managedhsm.azure.net");
    hsm["settings"]["cloud"] = json!("AzureGermanCloud");
    assert!(place(&hsm).unwrap_err().contains("no Managed HSM"));
}

#[test]
fn a_vault_of_an_unknown_cloud_needs_its_authority_and_resource() {
    let error = place(&document("https://kek.vault.local.example", &json!({}))).unwrap_err();
    assert!(error.contains("settings.authority"), "{error}");
    let settings = json!({"authority": "https://adfs.local.example/adfs"});
    let error = place(&document("https://kek.vault.local.example", &settings)).unwrap_err();
    assert!(error.contains("settings.resource"), "{error}");
    let settings = json!({"authority": "https://adfs.local.example/adfs", "resource": "https://vault.local.example"});
    let place = place(&document("https://kek.vault.local.example", &settings)).unwrap();
    assert_eq!(place.authority.path, "/adfs");
}

#[test]
fn plain_http_leaves_the_machine_only_where_that_is_allowed() {
    for field in ["endpoint", "authority", "metadataEndpoint", "gateway"] {
        let count = |url: &str, allowed: bool| {
            let settings = json!({field: url, "allowPlaintext": allowed});
            let config: Config = serde_json::from_value(document("kek", &settings)).unwrap();
            let mut problems = Problems::default();
            config.check(&mut problems);
            problems.iter().count()
        };
        assert_eq!(count("http://proxy.example:7788", false), 1, "{field}");
        assert_eq!(count("http://proxy.example:7788", true), 0, "{field}");
        assert_eq!(count("http://127.0.0.1:7788", false), 0, "{field}");
    }
}
