//! Every way to log in, credentials that change, and those that are refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sidekey_e2e::fakes::azure::{KeyKind, TENANT};
use sidekey_e2e::shim::publish;
use sidekey_e2e::wait::BROKEN;
use tonic::Code;

use crate::support::{CLIENT, SECRET, Stage, calm, quick};

const CERTIFIED: &str = "22222222-8888-7777-6666-555555555555";
const FEDERATED: &str = "33333333-8888-7777-6666-555555555555";
const MANAGED: &str = "44444444-8888-7777-6666-555555555555";
const PEM: &str = include_str!("../fixtures/client.pem");
/// With the ciphers that old tools write, under the password `fixture` and under none.
const PKCS12: &[u8] = include_bytes!("../fixtures/client-legacy.p12");
const OPEN_PKCS12: &[u8] = include_bytes!("../fixtures/client-empty.p12");

fn certificate() -> Vec<u8> {
    let text = PEM.split("-----").nth(2).unwrap();
    STANDARD.decode(text.replace('\n', "")).unwrap()
}

/// Lets every client in.
fn known(stage: &Stage) -> String {
    let mut azure = stage.fake.service();
    azure.certificate(CERTIFIED, &certificate()).unwrap();
    azure.managed(MANAGED);
    azure.federated(FEDERATED).unwrap()
}

fn by_azure_json(stage: &Stage, name: &str, content: &Value) -> Value {
    let path = stage.write(name, &content.to_string());
    json!({"azureJsonFile": path})
}

async fn works(stage: &Stage, name: &str, credentials: &Value, env: &[(&str, &str)]) {
    let document = calm(&[stage.key(1, credentials)]);
    let config = stage.write("azure.yaml", &document.to_string());
    let arguments = ["--config".to_owned(), config.display().to_string()];
    let mut served = stage.launch(&arguments, env).await;
    served.wait_ok().await;
    served.round_trip().await;
    let log = served.log();
    for secret in [SECRET, "eyJ0eXAi", "PRIVATE"] {
        assert!(!log.contains(secret), "{BROKEN}{name}: {log}");
    }
    served.plugin.process().kill().unwrap();
}

#[tokio::test]
async fn every_way_to_log_in_works() {
    let stage = Stage::new("ways").await;
    let token = known(&stage);
    let token = stage.write("token", &token);
    let pem = stage.write("client.pem", PEM);
    let who = |client: &str, field: &str, path: &std::path::Path| {
        let mut credentials = json!({"tenantId": TENANT, "clientId": client});
        credentials[field] = json!(path);
        credentials
    };
    works(&stage, "a certificate", &who(CERTIFIED, "certificateFile", &pem), &[]).await;
    works(&stage, "a federated token", &who(FEDERATED, "federatedTokenFile", &token), &[]).await;
    works(&stage, "a managed identity", &json!({"managedIdentity": true}), &[]).await;
    let named = json!({"managedIdentity": true, "clientId": MANAGED});
    works(&stage, "a managed identity by its name", &named, &[]).await;
    for (name, secret) in [("ARO, as PKCS#12", OPEN_PKCS12), ("ARO, as PEM", PEM.as_bytes())] {
        let identity = json!({
            "client_id": CERTIFIED, "client_secret": STANDARD.encode(secret), "tenant_id": TENANT,
            "authentication_endpoint": stage.fake.url(), "not_before": "2026-01-01T00:00:00Z",
        });
        let file = stage.write("identity.json", &identity.to_string());
        works(&stage, name, &json!({"identityFile": file}), &[]).await;
        let content = json!({"aadMSIDataPlaneIdentityPath": file});
        works(&stage, name, &by_azure_json(&stage, "azure.json", &content), &[]).await;
    }
}

#[tokio::test]
async fn without_a_bundle_in_the_settings_the_one_of_the_environment_is_trusted() {
    let stage = Stage::new("bundle").await;
    let mut key = stage.key(1, &stage.by_secret());
    key["settings"].as_object_mut().unwrap().remove("caFile");
    let config = stage.write("azure.yaml", &calm(&[key]).to_string());
    let arguments = ["--config".to_owned(), config.display().to_string()];
    let ca = stage.fake.ca().display().to_string();
    let mut served = stage.launch(&arguments, &[("SSL_CERT_FILE", &ca)]).await;
    served.wait_ok().await;
    served.round_trip().await;
}

#[tokio::test]
async fn azure_json_is_read_as_the_replaced_plugins_read_it() {
    let stage = Stage::new("azure-json").await;
    let token = known(&stage);
    let token = stage.write("token", &token).display().to_string();
    let p12 = stage.path("client.p12");
    std::fs::write(&p12, PKCS12).unwrap();
    let env = [
        ("AZURE_CLIENT_ID", FEDERATED),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_FEDERATED_TOKEN_FILE", token.as_str()),
    ];
    let secret = json!({"tenantId": TENANT, "aadClientId": CLIENT, "aadClientSecret": SECRET, "cloud": "AzurePublicCloud", "somebodyElses": [1]});
    let certificate = json!({"tenantId": TENANT, "aadClientId": CERTIFIED, "aadClientCertPath": p12, "aadClientCertPassword": "fixture"});
    let cases = [
        ("a secret", secret, &[][..]),
        ("PKCS#12", certificate, &[]),
        (
            "a managed identity",
            json!({"useManagedIdentityExtension": true, "userAssignedIdentityID": MANAGED}),
            &[],
        ),
        (
            "a workload identity",
            json!({"useWorkloadIdentityExtension": true, "tenantId": "other"}),
            &env,
        ),
    ];
    for (name, content, env) in cases {
        works(&stage, name, &by_azure_json(&stage, "azure.json", &content), env).await;
    }
    let yaml = format!("tenantId: {TENANT}\naadClientId: {CLIENT}\naadClientSecret: {SECRET}\n");
    let path = stage.write("azure.json", &yaml);
    works(&stage, "YAML", &json!({"azureJsonFile": path}), &[]).await;
}

/// Nobody's token is good any more, the federated ones neither; gives another one of those.
fn begin_anew(stage: &Stage) -> String {
    let mut azure = stage.fake.service();
    azure.end_tokens();
    azure.end_federated(FEDERATED);
    azure.federated(FEDERATED).unwrap()
}

#[tokio::test]
async fn a_new_token_file_is_taken_over_without_a_restart_and_a_bad_one_is_not() {
    let stage = Stage::new("federated").await;
    let token = known(&stage);
    let file = stage.write("token", &token);
    let credentials =
        json!({"tenantId": TENANT, "clientId": FEDERATED, "federatedTokenFile": file});
    let mut served = stage.serve_document(&quick(&[stage.key(1, &credentials)])).await;
    let sealed = served.round_trip().await;
    let logins = stage.fake.calls("token");
    // Half a token, then another one: what serves goes on.
    stage.write("token", "not a token that anybody takes");
    stage.write("token", "not-a-token");
    let refused = served.plugin.process().wait_until(
        "it was tried",
        sidekey_e2e::wait::PATIENCE,
        async || {
            anyhow::ensure!(stage.fake.calls("token") > logins, "no");
            Ok(())
        },
    );
    refused.await.unwrap();
    served.reads(&sealed).await;
    // The new one serves: there is no other any more.
    stage.write("token", &begin_anew(&stage));
    served.logs("new files or settings are in use").await;
    assert_eq!(served.wait_ok().await, sealed.key_id);
    served.reads(&sealed).await;
}

#[tokio::test]
async fn files_that_azure_json_and_variables_name_are_followed() {
    let stage = Stage::new("named").await;
    let token = stage.write("token", &known(&stage)).display().to_string();
    let content = json!({"useWorkloadIdentityExtension": true});
    let document = quick(&[stage.key(1, &by_azure_json(&stage, "azure.json", &content))]);
    let config = stage.write("azure.yaml", &document.to_string());
    let arguments = ["--config".to_owned(), config.display().to_string()];
    let env = [
        ("AZURE_CLIENT_ID", FEDERATED),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_FEDERATED_TOKEN_FILE", token.as_str()),
    ];
    let mut served = stage.launch(&arguments, &env).await;
    let key_id = served.wait_ok().await;
    let sealed = served.round_trip().await;
    stage.write("token", &begin_anew(&stage));
    served.logs("new files or settings are in use").await;
    assert_eq!(served.wait_ok().await, key_id);
    served.reads(&sealed).await;
    served.plugin.process().kill().unwrap();

    // ARO's identity file, in a volume of a secrets store: nobody writes into the file itself. What
    // it names from now on is another client.
    let (volume, mut swaps) = (stage.scratch.subdir("certs").unwrap(), 0);
    let mut identity = |client: &str| {
        let secret = STANDARD.encode(OPEN_PKCS12);
        let identity = json!({
            "client_id": client, "client_secret": secret, "tenant_id": TENANT,
            "authentication_endpoint": stage.fake.url(),
        });
        publish(&volume, &mut swaps, &[("identity", &identity.to_string())]).unwrap();
        volume.join("identity")
    };
    let other = "55555555-8888-7777-6666-555555555555";
    stage.fake.service().certificate(other, &certificate()).unwrap();
    std::fs::remove_file(stage.path("plugin.log")).unwrap();
    let content = json!({"aadMSIDataPlaneIdentityPath": identity(CERTIFIED)});
    by_azure_json(&stage, "azure.json", &content);
    let mut served = stage.launch(&arguments, &[]).await;
    assert_eq!(served.wait_ok().await, key_id);
    identity(other);
    served.logs("new files or settings are in use").await;
    stage.fake.service().allow(CERTIFIED, &[]);
    assert_eq!(served.wait_ok().await, key_id);
    served.reads(&sealed).await;
}

#[tokio::test]
async fn a_cloud_of_ones_own_takes_its_names_from_the_file_of_the_variable() {
    const DOMAIN: &str = "vault.local.azurestack.external";
    let host = "sidekey-test.vault.local.azurestack.external";
    let stage = Stage::with("stack", host, KeyKind::Rsa(2048)).await;
    let environment = json!({
        "name": "AzureStackCloud", "activeDirectoryEndpoint": stage.fake.url(),
        "keyVaultDNSSuffix": DOMAIN, "managedHSMDNSSuffix": "N/A",
        "resourceIdentifiers": {"keyVault": format!("https://{DOMAIN}")},
    });
    let environment = stage.write("environment.json", &environment.to_string());
    let content = json!({
        "cloud": "AzureStackCloud", "tenantId": TENANT, "aadClientId": CLIENT,
        "aadClientSecret": SECRET,
    });
    let mut key = stage.key(1, &by_azure_json(&stage, "azure.json", &content));
    key["kek"]["vault"] = json!("sidekey-test");
    key["settings"].as_object_mut().unwrap().remove("authority");
    let config = stage.write("azure.yaml", &calm(&[key]).to_string());
    let arguments = ["--config".to_owned(), config.display().to_string()];
    let environment = environment.display().to_string();
    let env = [("AZURE_ENVIRONMENT_FILEPATH", environment.as_str())];
    let mut served = stage.launch(&arguments, &env).await;
    served.wait_ok().await;
    served.round_trip().await;
}

#[tokio::test]
async fn a_refused_secret_is_denied_sent_once_and_another_one_is_taken_at_once() {
    let stage = Stage::new("refused").await;
    stage.write("secret", "wrong-secret-never-to-be-seen");
    let mut served = stage.spawn(&stage.document()).await;
    let error = served.wait_bad(Code::PermissionDenied, "AADSTS7000215").await;
    assert!(!error.message().contains("never-to-be-seen"), "{BROKEN}{error}");
    assert_eq!(stage.fake.calls("token"), 1, "a refused login is not repeated");
    stage.write("secret", SECRET);
    served.wait_ok().await;
    assert!(!served.log().contains("never-to-be-seen"));
}

#[tokio::test]
async fn while_nobody_logs_in_the_last_token_serves() {
    let stage = Stage::new("no-login").await;
    let mut served = stage.serve().await;
    let sealed = served.round_trip().await;
    let away = sidekey_e2e::fakes::Answer::json(503, &json!({"error": "temporarily_unavailable"}));
    stage.fake.refuse("token", 1000, &away);
    for _ in 0..10 {
        served.reads(&sealed).await;
    }
    served.wait_ok().await;
}
