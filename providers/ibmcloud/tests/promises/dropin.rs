//! In the place of IBM's own plugin in HyperShift's pods: its environment, socket and port.

use serde_json::{Value, json};
use sidekey_core::proto::v2::EncryptResponse;
use sidekey_e2e::fakes::ibm::READER;
use sidekey_e2e::http::HttpClient;
use sidekey_e2e::ports::Port;
use sidekey_e2e::wait::BROKEN;
use tonic::Code;

use crate::support::{PLAINTEXT, Served, Stage};

/// One version, as HyperShift writes it.
fn listed(stage: &Stage, key: &str, pods: bool) -> Value {
    json!({
        "crkID": key, "instanceID": stage.instance, "url": stage.fake.url(),
        "correlationID": "7d2f6f9e-65a0-4ea8-b7de-0e1a6a4ef5a1", "serviceToService": pods,
    })
}

/// Starts the binary with HyperShift's environment and no arguments but where to look at it.
async fn serve(stage: &Stage, data: &Value, port: &Port, more: &[(&str, &str)]) -> Served {
    let socket = stage.path("keyprotectprovider.sock").display().to_string();
    let (data, health) = (data.to_string(), format!("127.0.0.1:{}", port.number()));
    let (ca, iam) = (stage.fake.ca().display().to_string(), format!("{}/", stage.fake.url()));
    let set = [
        ("LOG_LEVEL", "info"),
        ("NUM_LEN_BYTES", "4"),
        ("CACHE_TIMEOUT_IN_HOURS", "1"),
        ("RESTART_DELAY_IN_SECONDS", "0"),
        ("UNIX_SOCKET_PATH", &socket),
        ("KP_TIMEOUT", "10"),
        ("KP_WDEK_PATH", "/tmp/kp/wdek"),
        ("KP_STATE_PATH", "/tmp/kp/state"),
        ("HEALTHZ_PATH", "/healthz"),
        ("HEALTHZ_PORT", &health),
        ("KP_DATA_JSON", &data),
        ("REGION", "us-south"),
        // What a real pod needs neither of.
        ("SSL_CERT_FILE", &ca),
        ("IAM_TOKEN_URL", &iam),
    ];
    let mut spec = stage.spec().arg("--admin=127.0.0.1:0");
    for (name, value) in set.iter().chain(more) {
        spec = spec.env(name, value);
    }
    let served = stage.start(spec, &format!("unix://{socket}")).await;
    served.wait_ok().await;
    served
}

#[tokio::test]
async fn hypershifts_environment_serves_as_it_stands_and_older_versions_are_read() {
    let stage = Stage::new("hypershift").await;
    let newer = stage.fake.service().create(&stage.instance);
    let port = Port::free().unwrap();
    let key = [("API_KEY", stage.api_key.as_str())];
    let data = json!({"9": listed(&stage, &stage.key, false)});
    let served = serve(&stage, &data, &port, &key).await;
    let sealed = served.kms.round_trip(PLAINTEXT).await.unwrap();
    drop(served);
    // The highest version writes, by number and not by text.
    let data = json!({
        "9": listed(&stage, &stage.key, false), "10": listed(&stage, &newer, false),
    });
    let served = serve(&stage, &data, &port, &key).await;
    let fresh = served.kms.round_trip(PLAINTEXT).await.unwrap();
    assert_ne!(fresh.key_id.rsplit('/').nth(1), sealed.key_id.rsplit('/').nth(1));
    assert!(fresh.key_id.ends_with(&stage.fake.service().newest(&newer)), "{}", fresh.key_id);
    assert_eq!(served.kms.decrypt(&sealed).await.unwrap(), PLAINTEXT[..]);
    assert_eq!(
        stage.fake.service().headers("wrap")["correlation-id"],
        "7d2f6f9e-65a0-4ea8-b7de-0e1a6a4ef5a1"
    );
    let health = HttpClient::plain(port.address());
    for path in ["/healthz", "/healthz/liveness"] {
        health.get(path).await.unwrap().ok().unwrap();
    }
    // IBM's plugin has no metrics there, as far as is known, and ours are for mTLS.
    assert_eq!(health.get("/metrics").await.unwrap().status, 404);
    let log = std::fs::read_to_string(stage.log()).unwrap();
    assert!(log.contains("warning: an API key in the environment"), "{log}");
    assert!(!log.contains(&stage.api_key), "{BROKEN}{log}");
}

#[tokio::test]
async fn what_ibms_own_plugin_has_stored_is_refused_cleanly() {
    let stage = Stage::new("stored").await;
    let port = Port::free().unwrap();
    let data = json!({"1": listed(&stage, &stage.key, false)});
    let served = serve(&stage, &data, &port, &[("API_KEY", stage.api_key.as_str())]).await;
    for key_id in ["1", stage.key.as_str(), "ibmv2"] {
        let stored = EncryptResponse {
            ciphertext: b"\x00\x00\x00\x20whatever that plugin has stored".to_vec().into(),
            key_id: key_id.to_owned(),
            annotations: Default::default(),
        };
        let error = served.kms.decrypt(&stored).await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.message().contains("IBM's own plugin"), "{error}");
    }
    let sent = stage.fake.exchanges();
    assert!(!sent.iter().any(|sent| sent.request.contains("whatever")), "nothing is tried");
    served.kms.status().await.expect("forged and foreign data do not make the key sick");
}

#[tokio::test]
async fn a_managed_login_is_by_the_pods_token_and_a_profile_that_is_named() {
    let stage = Stage::new("managed").await;
    let port = Port::free().unwrap();
    let profile = ("Profile-1", "control planes");
    stage.fake.service().trust(profile, "pod.token.one", &READER);
    stage.write("pod-token", "pod.token.one");
    let data = json!({"1": listed(&stage, &stage.key, true)});
    let file = stage.path("pod-token").display().to_string();
    let named = [("IAM_PROFILE_ID", profile.0), ("POD_TOKEN_FILE", file.as_str())];
    let served = serve(&stage, &data, &port, &named).await;
    served.kms.round_trip(PLAINTEXT).await.unwrap();
}
