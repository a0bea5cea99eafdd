//! The fake of Azure is proven by Microsoft's own client, and what that said is kept: the provider's
//! tests replay it. And Azure/kubernetes-kms itself reads what `sidekey-azure` wrote in its place,
//! and the other way round.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use sidekey_e2e::fakes::azure::{Azure, KeyKind, TENANT};
use sidekey_e2e::fakes::{Exchange, Fake, RECORD};
use sidekey_e2e::golang::{AZURE_CLIENT, AZURE_KMS};
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::process::{Process, Spec};
use sidekey_e2e::wait::PATIENCE;
use sidekey_e2e::{Scratch, Sidecar, binaries};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

const VAULT: &str = "sidekey-test.vault.azure.net";
const HSM: &str = "sidekey-test.managedhsm.azure.net";
const SECRET: &str = "a secret";
const PLAINTEXT: &[u8] = b"0123456789abcdef0123456789abcdef";

/// What Microsoft's client has said and heard, one call of each shape.
fn recorded() -> PathBuf {
    fixture("azkeys.json")
}

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../providers/azure/tests/fixtures");
    fixtures.join(name)
}

fn shapes(exchanges: &[Exchange]) -> BTreeSet<String> {
    exchanges.iter().map(|exchange| exchange.shape().to_string()).collect()
}

/// A fake with one key and three clients, and Microsoft's client for it.
struct Scene {
    fake: Fake<Azure>,
    input: Value,
    _scratch: Scratch,
}

impl Scene {
    async fn start(host: &str, kind: KeyKind) -> Self {
        let scratch = Scratch::new("azure-client").unwrap();
        let mut azure = Azure::new(host);
        azure.make("etcd", kind).unwrap();
        azure.secret("by-secret", SECRET);
        let pem = fixture("client.pem");
        let text = std::fs::read_to_string(&pem).unwrap();
        let certificate = text.split("-----").nth(2).unwrap().replace('\n', "");
        azure.certificate("by-certificate", &decoded(&certificate)).unwrap();
        let federated = azure.federated("by-token").unwrap();
        let fake = Fake::start(&scratch, "azure", azure).await.unwrap();
        let input = json!({
            "Address": fake.address(), "CA": fake.ca(), "Vault": format!("https://{host}"), "Key": "etcd",
            "Tenant": TENANT, "SecretClient": "by-secret", "Secret": SECRET,
            "CertificateClient": "by-certificate", "Certificate": pem,
            "FederatedClient": "by-token", "Federated": federated, "Aes": kind == KeyKind::Aes,
        });
        Self { fake, input, _scratch: scratch }
    }

    /// What the client says of keys that it cannot use: status, code, and for how long it is to wait.
    async fn refusals(&self, keys: &[&str]) -> Vec<Value> {
        let mut input = self.input.clone();
        input["Refused"] = json!(keys);
        let lines = ask(&input).await;
        let steps: Vec<_> = lines.iter().map(|line| line["step"].clone()).collect();
        assert_eq!(json!(steps), json!(keys), "{lines:?}");
        lines.iter().map(|line| json!([line["status"], line["code"], line["pause"]])).collect()
    }
}

/// Lets the client do all that it is told, and tells what it said.
async fn ask(input: &Value) -> Vec<Value> {
    let program = AZURE_CLIENT.build_async().await.unwrap();
    let mut command = Command::new(program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.to_string().as_bytes()).await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

#[tokio::test]
async fn microsofts_own_client_takes_the_fake_for_azure_and_says_what_is_kept() {
    let mut said = Vec::new();
    for (host, kind) in [(VAULT, KeyKind::Rsa(2048)), (HSM, KeyKind::Aes)] {
        let scene = Scene::start(host, kind).await;
        let lines = ask(&scene.input).await;
        for way in ["secret", "certificate", "federated"] {
            assert!(lines.iter().any(|line| line["step"] == way), "{way}: {lines:?}");
        }
        let refused: BTreeSet<_> = lines
            .iter()
            .filter_map(|line| Some((line["status"].as_u64()?, line["code"].as_str()?)))
            .collect();
        let expected = [(400, "BadParameter"), (404, "KeyNotFound")];
        assert_eq!(refused, BTreeSet::from(expected), "{lines:?}");
        assert_eq!(lines.len(), 9, "{lines:?}");
        said.extend(scene.fake.exchanges());
    }
    let mut seen = BTreeSet::new();
    said.retain(|exchange| seen.insert(exchange.shape().to_string()));
    if std::env::var_os(RECORD).is_some() {
        let mut text = serde_json::to_string_pretty(&said).unwrap();
        text.push('\n');
        std::fs::write(recorded(), text).unwrap();
    }
    let kept: Vec<Exchange> = serde_json::from_slice(&std::fs::read(recorded()).unwrap()).unwrap();
    assert_eq!(shapes(&said), shapes(&kept), "write it anew with {RECORD}=1");
}

#[tokio::test]
async fn microsofts_own_client_is_told_why_a_key_cannot_be_used() {
    let scene = Scene::start(VAULT, KeyKind::Rsa(2048)).await;
    {
        let mut azure = scene.fake.service();
        let version = azure.make("disabled", KeyKind::Rsa(2048)).unwrap();
        azure.enable("disabled", &version, false);
        azure.make("deleted", KeyKind::Rsa(2048)).unwrap();
        azure.delete("deleted", true);
        azure.make("curve", KeyKind::Ec).unwrap();
    }
    let expected = [
        json!([403, "Forbidden", null]),
        json!([404, "KeyNotFound", null]),
        json!([400, "BadParameter", null]),
    ];
    assert_eq!(scene.refusals(&["disabled", "deleted", "curve"]).await, expected);
    scene.fake.service().throttle(1, Duration::from_secs(7));
    assert_eq!(scene.refusals(&["etcd"]).await, [json!([429, "Throttled", "7"])]);
    scene.fake.service().allow("by-secret", &["get", "decrypt"]);
    assert_eq!(scene.refusals(&["etcd"]).await, [json!([403, "Forbidden", null])]);
    let inner: BTreeSet<_> = scene.fake.exchanges().iter().filter_map(why).collect();
    assert_eq!(inner, BTreeSet::from(["ForbiddenByRbac", "KeyDisabled"].map(str::to_owned)));

    let scene = Scene::start(HSM, KeyKind::Aes).await;
    scene.fake.service().make("short", KeyKind::ShortAes).unwrap();
    assert_eq!(scene.refusals(&["short"]).await, [json!([400, "BadParameter", null])]);
}

/// The inner code of a refusal.
fn why(exchange: &Exchange) -> Option<String> {
    let answer: Value = serde_json::from_str(&exchange.answer).ok()?;
    Some(answer["error"]["innererror"]["code"].as_str()?.to_owned())
}

#[tokio::test]
async fn azure_kubernetes_kms_reads_what_we_wrote_in_its_place_and_we_read_what_it_wrote() {
    let theirs = AZURE_KMS.build_async().await.unwrap();
    let ours = binaries::path_async("sidekey-azure").await.unwrap();
    for bits in [2048, 3072, 4096] {
        let scratch = Scratch::new("azure-kms").unwrap();
        let (fake, version, file) = plugins_key(&scratch, bits).await;
        let (host, port) = (fake.plain().ip().to_string(), fake.plain().port().to_string());
        let key = [name(), &version, &host, &port];
        let (_theirs, their_kms) = their_plugin(&scratch, &theirs, &file, key).await;
        let (_ours, our_kms) = our_plugin(&scratch, &ours, &file, key).await;

        for plaintext in [PLAINTEXT, b"healthcheck"] {
            let from_them = their_kms.encrypt(plaintext).await.unwrap();
            let from_us = our_kms.encrypt(plaintext).await.unwrap();
            assert_eq!(from_us.key_id, from_them.key_id);
            assert_eq!(from_us.ciphertext.len(), from_them.ciphertext.len());
            assert_eq!(our_kms.decrypt(&from_them).await.unwrap(), plaintext, "{bits}");
            assert_eq!(their_kms.decrypt(&from_us).await.unwrap(), plaintext, "{bits}");
        }
        let theirs = their_kms.status().await.unwrap();
        assert_eq!(theirs.key_id, our_kms.status().await.unwrap().key_id);
    }
}

#[tokio::test]
async fn azure_kubernetes_kms_refuses_by_name_what_is_marked_as_ours() {
    let theirs = AZURE_KMS.build_async().await.unwrap();
    let ours = binaries::path_async("sidekey-azure").await.unwrap();
    let scratch = Scratch::new("azure-own").unwrap();
    let (fake, version, file) = plugins_key(&scratch, 2048).await;
    let (host, port) = (fake.plain().ip().to_string(), fake.plain().port().to_string());
    let key = [name(), &version, &host, &port];
    let (_theirs, their_kms) = their_plugin(&scratch, &theirs, &file, key).await;

    let endpoint = format!("unix://{}", scratch.path().join("ours.sock").display());
    let document = json!({"admin": "127.0.0.1:0", "keys": [{
        "id": 1, "type": "azure", "listen": endpoint,
        "kek": {"vault": format!("https://{VAULT}"), "key": "etcd", "version": version},
        "settings": {"endpoint": fake.url(), "authority": fake.url(), "caFile": fake.ca()},
        "credentials": {"azureJsonFile": file},
    }]});
    let config = scratch.path().join("ours.yaml");
    std::fs::write(&config, document.to_string()).unwrap();
    let spec = Spec::new("sidekey-azure", ours, scratch.path().join("ours.log")).env_clear();
    let mut process = Sidecar::start(spec.arg("--config").arg(config)).await.unwrap();
    process.wait_ready().await.unwrap();
    let mut sealed = KmsClient::connect(&endpoint).await.unwrap().encrypt(PLAINTEXT).await.unwrap();

    let error = their_kms.decrypt(&sealed).await.unwrap_err();
    assert!(error.message().contains("does not match expected key id"), "{error}");
    sealed.key_id = their_kms.status().await.unwrap().key_id;
    let error = their_kms.decrypt(&sealed).await.unwrap_err();
    let text = error.message();
    assert!(text.contains("sidekey/1") && text.contains("does not match expected"), "{text}");
}

/// A vault with one key, its version, and an `azure.json` that lets in.
async fn plugins_key(scratch: &Scratch, bits: usize) -> (Fake<Azure>, String, String) {
    let mut azure = Azure::new(VAULT);
    let version = azure.make("etcd", KeyKind::Rsa(bits)).unwrap();
    azure.secret("plugin", SECRET);
    let fake = Fake::start(scratch, "azure", azure).await.unwrap();
    let file = scratch.path().join("azure.json");
    let content = json!({"tenantId": TENANT, "aadClientId": "plugin", "aadClientSecret": SECRET});
    std::fs::write(&file, content.to_string()).unwrap();
    (fake, version, file.display().to_string())
}

/// The vault's name.
fn name() -> &'static str {
    VAULT.split('.').next().unwrap()
}

/// Azure/kubernetes-kms, told vault, version, and the host and port of its proxy.
async fn their_plugin(
    scratch: &Scratch,
    program: &Path,
    config: &str,
    [vault, version, host, port]: [&str; 4],
) -> (Process, KmsClient) {
    let path = scratch.path().join("theirs.sock").display().to_string();
    let arguments = [&path, config, vault, "etcd", version, host, port];
    let log = scratch.path().join("theirs.log");
    let mut process =
        Spec::new("azure-kms", program, log).env_clear().args(arguments).start().unwrap();
    let endpoint = format!("unix://{path}");
    let connect = async || KmsClient::connect(&endpoint).await;
    let connected = process.wait_until("it listens", PATIENCE, connect).await.unwrap();
    (process, connected)
}

/// `sidekey-azure` by the flags that Azure/kubernetes-kms has, told the same.
async fn our_plugin(
    scratch: &Scratch,
    program: &Path,
    config: &str,
    [vault, version, host, port]: [&str; 4],
) -> (Sidecar, KmsClient) {
    let endpoint = format!("unix://{}", scratch.path().join("ours.sock").display());
    let flags = [
        format!("--keyvault-name={vault}"),
        "--key-name=etcd".to_owned(),
        format!("--key-version={version}"),
        format!("--listen-addr={endpoint}"),
        format!("--config-file-path={config}"),
        "--proxy-mode".to_owned(),
        format!("--proxy-address={host}"),
        format!("--proxy-port={port}"),
        "--healthz-port=0".to_owned(),
        "--metrics-addr=0".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
    ];
    let log = scratch.path().join("ours.log");
    let spec = Spec::new("sidekey-azure", program, log).env_clear().args(flags);
    let mut process = Sidecar::start(spec).await.unwrap();
    process.wait_ready().await.unwrap();
    (process, KmsClient::connect(&endpoint).await.unwrap())
}
