//! Mistakes of a configuration, and what it decides.

use serde_json::json;
use sidekey_core::Provider;
use sidekey_core::config::{Problem, parse};
use sidekey_ibmcloud::IbmCloud;

use crate::support::{PLAINTEXT, Stage, call, connect};

const ID: &str = "02fd6835-6001-4482-a892-13bd2085f75d";

fn paths(keys: &serde_json::Value) -> Vec<String> {
    let problems = parse::<IbmCloud>(&json!({"keys": keys})).err();
    let path = |problem: &Problem| problem.path.clone();
    problems.map(|problems| problems.iter().map(path).collect()).unwrap_or_default()
}

#[test]
fn every_mistake_of_a_configuration_is_reported_at_once() {
    let keys = json!([
        {
            "id": 1, "colour": "red",
            "kek": {"instance": "crn:v1:x", "key": "my-alias"},
            "settings": {
                "address": "http://kms.example", "tokenUrl": "http://iam.example/token?x=1",
                "caFile": "ca.pem", "keyRing": "", "correlationId": "a\nb",
                "olderKeks": [{"instance": ID, "address": "ftp://x"}],
            },
            "credentials": {"apiKeyFile": "key", "tokenFile": "/token"},
        },
        {"id": 2, "settings": {"address": "https://kms"}, "credentials": {"tokenFile": "/token"}},
        {
            "id": 3, "kek": {"instance": ID, "key": ID}, "settings": {"address": "https://kms"},
            "credentials": {"apiKeyFile": "/key", "profileId": "x"},
        },
        {
            "id": 4, "kek": {"instance": ID, "key": ID}, "settings": {"address": "https://kms"},
            "credentials": {"given": true},
        },
    ]);
    let paths = paths(&keys);
    for path in [
        "keys[0].colour",
        "keys[0].kek.instance",
        "keys[0].kek.key",
        "keys[0].settings.address",
        "keys[0].settings.tokenUrl",
        "keys[0].settings.caFile",
        "keys[0].settings.keyRing",
        "keys[0].settings.correlationId",
        "keys[0].settings.olderKeks[0].key",
        "keys[0].settings.olderKeks[0].address",
        "keys[0].credentials",
        "keys[0].credentials.apiKeyFile",
        "keys[0].credentials.profileId",
        "keys[1].kek.instance",
        "keys[1].kek.key",
        "keys[1].credentials.profileId",
        "keys[2].credentials.profileId",
        "keys[3].credentials.given",
    ] {
        assert!(paths.iter().any(|known| known == path), "nothing of {path} in {paths:?}");
    }
    assert_eq!(paths.len(), 18, "{paths:?}");
}

#[test]
fn a_sound_configuration_has_no_mistakes() {
    let keys = json!([{
        "id": 1, "kek": {"instance": ID, "key": ID},
        "settings": {"address": "https://private.us-south.kms.cloud.ibm.com"},
        "credentials": {"apiKeyFile": "/key"},
    }]);
    assert_eq!(paths(&keys), Vec::<String>::new());
}

#[tokio::test]
async fn key_ring_and_correlation_are_sent_as_configured() {
    let stage = Stage::new("headers").await;
    stage.fake.service().set_ring(&stage.key, "rings");
    let mut body = stage.body(&stage.key);
    let client = connect(&body).await.unwrap();
    let key_id = client.key_id().await.unwrap();
    client.encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let headers = stage.fake.service().headers("wrap");
    assert_eq!(headers["bluemix-instance"], stage.instance);
    assert_eq!(headers["correlation-id"], call().uid, "the caller's, where none is configured");
    assert!(!headers.contains_key("x-kms-key-ring"));
    body["settings"]["keyRing"] = "rings".into();
    body["settings"]["correlationId"] = ID.into();
    connect(&body).await.unwrap().encrypt(&key_id, PLAINTEXT, &call()).await.unwrap();
    let headers = stage.fake.service().headers("wrap");
    assert_eq!((&*headers["x-kms-key-ring"], &*headers["correlation-id"]), ("rings", ID));
    body["settings"]["keyRing"] = "other".into();
    connect(&body).await.unwrap().encrypt(&key_id, PLAINTEXT, &call()).await.unwrap_err();
}
