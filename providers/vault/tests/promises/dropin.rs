//! In the place of the plugins that it replaces: their flags, their variables, their data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sidekey_conformance::Launched;
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::kms::KmsClient;
use sidekey_e2e::openbao::NAMED;
use sidekey_e2e::openbao::auth::AppRole;
use sidekey_e2e::ports::Port;
use sidekey_e2e::wait::BROKEN;
use sidekey_e2e::{OpenBao, Scratch};
use tonic::Code;

use crate::support::{PLAINTEXT, Stage, binary, failed, quick, shared};

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("-{name}={value}")
}

/// Unwraps as vault-kubernetes-kms does: it sends the ciphertext and nothing else.
async fn unwrapped(stage: &Stage, sealed: &EncryptResponse) -> anyhow::Result<Vec<u8>> {
    let ciphertext = std::str::from_utf8(&sealed.ciphertext)?;
    let order = serde_json::json!({"ciphertext": ciphertext});
    let answer = stage.bao.write(&stage.key.path("decrypt"), &order).await?;
    Ok(STANDARD.decode(answer["data"]["plaintext"].as_str().unwrap_or_default())?)
}

#[tokio::test]
async fn openshifts_arguments_serve_as_they_stand() {
    let stage = Stage::new("approle-openshift").await;
    let server = shared().await;
    let (root, options) = (server.root(), serde_json::json!({}));
    root.enable_auth("approle", "approle").await.unwrap();
    let made = AppRole::create(&root, "approle", "openshift", &[&stage.name], &options).await;
    let role = made.unwrap();
    stage.write("secret-id", &role.secret_id().await.unwrap());
    let health = Port::free().unwrap();
    let flags = [
        flag("listen-address", stage.endpoint(1)),
        flag("vault-address", server.named_address()),
        flag("vault-key-path", stage.key.key_path()),
        flag("approle-role-id", &role.role_id),
        flag("approle-secret-id-path", stage.path("secret-id").display()),
        flag("tls-ca-file", server.ca().display()),
        flag("tls-sni", NAMED),
        flag("vault-namespace", ""),
        flag("vault-auth-namespace", ""),
        flag("metrics-port", 0),
        flag("health-port", health.number()),
        "--admin=127.0.0.1:0".to_owned(),
    ];
    let served = stage.serve_flags(&flags).await;
    served.round_trip().await;
    let http = HttpClient::plain(health.address());
    for path in ["/healthz", "/readyz"] {
        http.get(path).await.unwrap().ok().unwrap();
    }
    // Without -tls-sni, -namespace and ports, over an agent's socket: nothing else is needed.
    drop(served);
    let flags = [
        flag("listen-address", stage.endpoint(1)),
        flag("vault-address", format!("unix://{}", server.socket().display())),
        flag("vault-key-path", stage.key.key_path()),
        flag("approle-role-id", &role.role_id),
        flag("approle-secret-id-path", stage.path("secret-id").display()),
        flag("metrics-port", 0),
        "--admin=127.0.0.1:0".to_owned(),
    ];
    stage.serve_flags(&flags).await.round_trip().await;
}

/// The command lines of the contract, word by word; what is not in them is their default.
#[tokio::test]
async fn the_contracts_command_lines_work_as_they_stand() {
    let scratch = Scratch::new("contract").unwrap();
    let server = OpenBao::start(&scratch, "bao").await.unwrap();
    let (root, options) = (server.root(), serde_json::json!({}));
    root.enable("transit", "transit").await.unwrap();
    root.enable_auth("approle", "approle").await.unwrap();
    root.make_key("transit", "kms").await.unwrap();
    let rules: [(&str, &[&str]); 1] = [("transit/*", &["read", "update"])];
    root.policy("kms", &rules).await.unwrap();
    let made = AppRole::create(&root, "approle", "kms", &["kms"], &options).await;
    let (role, address) = (made.unwrap(), server.plain_address());
    let secret_id = role.secret_id().await.unwrap();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    std::fs::write(path("secret-id"), &secret_id).unwrap();
    let socket = |name: &str| format!("unix://{}", path(name));

    let mut openshift = std::process::Command::new(binary());
    openshift.args([
        flag("listen-address", socket("kms-1.sock")),
        flag("vault-address", &address),
        flag("vault-key-path", "transit/keys/kms"),
        flag("approle-role-id", &role.role_id),
        flag("approle-secret-id-path", path("secret-id")),
        flag("metrics-port", 0),
    ]);
    let port = Port::free().unwrap();
    let health = port.number().to_string();
    let mut falco = std::process::Command::new(binary());
    falco.args(["-auth-method", "approle", "-approle-role-id", &role.role_id]);
    falco.args(["-approle-secret-id", &secret_id, "-vault-address", &address]);
    falco.args(["-transit-key", "kms", "-socket", &socket("falco.sock")]);
    falco.args(["-health-port", &health]);
    for (command, name) in [(openshift, "kms-1.sock"), (falco, "falco.sock")] {
        let endpoint = socket(name);
        let _launched = Launched::start(command, endpoint.parse().unwrap()).await.unwrap();
        let kms = KmsClient::connect(&endpoint).await.unwrap();
        kms.round_trip(PLAINTEXT).await.unwrap();
    }
}

#[tokio::test]
async fn the_arguments_and_data_of_vault_kubernetes_kms_are_taken() {
    let stage = Stage::new("falco").await;
    let server = shared().await;
    let health = Port::free().unwrap();
    let secret_id = stage.role.secret_id().await.unwrap();
    let words = [
        "-auth-method",
        "approle",
        "-approle-mount",
        &stage.name,
        "-approle-role-id",
        &stage.role.role_id,
        "-approle-secret-id",
        &secret_id,
        "-vault-address",
        &server.address(),
        "-tls-ca-file",
        &server.ca().display().to_string(),
        "-transit-mount",
        &stage.name,
        "-transit-key",
        "kms",
        "-socket",
        &stage.endpoint(1),
        "-health-port",
        &health.number().to_string(),
        "--admin",
        "127.0.0.1:0",
    ];
    // What that plugin wrote: the bare ciphertext, and the version as key_id.
    let first = stage.key.encrypt(PLAINTEXT).await.unwrap();
    stage.key.rotate().await.unwrap();
    let second = stage.key.encrypt(PLAINTEXT).await.unwrap();
    let mut served = stage.serve_flags(&words.map(str::to_owned)).await;
    let old = |text: &str, key_id: &str| EncryptResponse {
        ciphertext: text.to_owned().into_bytes().into(),
        key_id: key_id.to_owned(),
        ..EncryptResponse::default()
    };
    served.reads(&old(&first, "1")).await;
    served.reads(&old(&second, "2")).await;
    // It asks for the number after it has encrypted: a rotation may have come in between.
    served.reads(&old(&first, "2")).await;
    // A number that this key has never had is not its own.
    failed(served.kms.decrypt(&old(&first, "3")).await, Code::FailedPrecondition, &["no version"]);
    failed(served.kms.decrypt(&old(&first, "one")).await, Code::FailedPrecondition, &[]);
    // The way back is open: what is written is what that plugin sends to Vault to be unwrapped,
    // which is the ciphertext and nothing else.
    let ours = served.round_trip().await;
    assert_eq!(unwrapped(&stage, &ours).await.unwrap(), PLAINTEXT);
    served.reads(&ours).await;

    let http = HttpClient::plain(health.address());
    for path in ["/health", "/live", "/metrics"] {
        http.get(path).await.unwrap().ok().unwrap();
    }
    // The secret was on the command line; it is nowhere else.
    let log = served.plugin.process().log().unwrap();
    assert!(log.contains("warning: a secret on the command line"), "{log}");
    assert!(!log.contains(&secret_id));
    let status = served.plugin.status().await.unwrap().to_string();
    assert!(!status.contains(&secret_id), "{BROKEN}{status}");
}

/// Moves between the two settings, as somebody does who leaves vault-kubernetes-kms for good.
#[tokio::test]
async fn what_either_setting_wrote_is_read_under_the_other_and_only_one_goes_back() {
    let stage = Stage::new("binding").await;
    let document = |binds: bool| {
        let mut key = stage.app_role_key(1, &stage.key);
        key["settings"]["associatedData"] = binds.into();
        quick(&[key])
    };
    let mut served = stage.serve_document(&document(false)).await;
    let unbound = served.round_trip().await;
    served.plugin.reconfigure(&document(true)).unwrap();
    served.logs_times("new files or settings are in use", 1).await;
    let bound = served.round_trip().await;
    assert_eq!(bound.key_id, unbound.key_id, "it is the same version of the same key");
    served.reads(&unbound).await;
    assert_eq!(unwrapped(&stage, &unbound).await.unwrap(), PLAINTEXT);
    assert!(unwrapped(&stage, &bound).await.is_err(), "nothing binds it");
    served.plugin.reconfigure(&document(false)).unwrap();
    served.logs_times("new files or settings are in use", 2).await;
    served.reads(&bound).await;
    served.reads(&unbound).await;
    // Neither can be passed off as the other.
    let (mut forged, mut stripped) = (bound, unbound);
    std::mem::swap(&mut forged.annotations, &mut stripped.annotations);
    failed(served.kms.decrypt(&forged).await, Code::DataLoss, &[]);
    failed(served.kms.decrypt(&stripped).await, Code::DataLoss, &[]);
}
